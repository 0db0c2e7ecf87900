"""The parts of docs/configuration.md that are made from the code, and the parts that are examples.

`python -m harness.reference` (in tests/) renews the former, and docs/plugin.schema.json.
"""

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from plugin.config.jinja_checks import ALLOWED_FILTERS, ALLOWED_METHODS
from plugin.config.schema import field_texts, schema, structs
from plugin.discovery.pci import Pci, PciSelection
from plugin.discovery.registry import Source
from plugin.presets import PRESETS

DOCUMENT = Path(__file__).parents[2] / "docs/configuration.md"
SOURCES: Mapping[type[Struct], str] = {
    struct: field.name
    for field in msgspec.structs.fields(Source)
    for struct in structs()
    if any(struct is option for option in getattr(field.type, "__args__", ()))
}
"""The sources' structs, with their keys."""
PCI_SELECTIONS = {struct for struct in SOURCES if issubclass(struct, PciSelection)} - {Pci}
"""Sources with the keys of `pci`, whose rows are not repeated."""

_BLOCK = re.compile(r"<!-- (?P<name>[\w ]+) -->\n.*?<!-- /(?P=name) -->", re.DOTALL)


def generated() -> dict[str, str]:
    """The text of each part that is made, by its name."""
    parts = {struct.__name__: _described(struct) for struct in structs() if struct is not Source}
    parts["presets"] = _presets()
    parts["filters"] = ", ".join(f"`{name}`" for name in sorted(ALLOWED_FILTERS))
    parts["methods"] = ", ".join(f"`{name}`" for name in sorted(ALLOWED_METHODS))
    return parts


def renewed(document: str) -> str:
    """The document with each made part as it should be. Raises KeyError for a part that nothing makes."""
    parts = generated()

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n{parts[name]}\n<!-- /{name} -->"

    return _BLOCK.sub(block, document)


def whole(text: str) -> bytes:
    """A configuration file of an example: it is one, or resources, or some keys of one resource."""
    if text.lstrip("#").startswith("version:") or "\nversion:" in text:
        return text.encode()
    if text.startswith("- "):
        indented = "".join(f"  {line}" for line in text.splitlines(keepends=True))
        return f"version: 1\nresources:\n{indented}".encode()
    own = {"name": "name: example.com/device", "discover": "discover: [{glob: {paths: [/dev/example*]}}]"}
    for key in re.findall(r"^(\w+):", text, re.MULTILINE):
        own.pop(key, None)
    lines = [*own.values(), *text.splitlines()]
    return ("version: 1\nresources:\n  - " + "\n    ".join(lines) + "\n").encode()


def _described(struct: type[Struct]) -> str:
    texts = field_texts(struct)
    inherited = PciSelection.__struct_fields__ if struct in PCI_SELECTIONS else ()
    rows = [
        f"- `{field.encode_name}`{_default(field)}: {_line(texts[field.name])}"
        for field in msgspec.structs.fields(struct)
        if field.name not in inherited
    ]
    if inherited:
        rows.insert(0, f"- `{inherited[0]}` to `{inherited[-1]}`: as for [`pci`](#pci)")
    return "\n\n".join([inspect.cleandoc(struct.__doc__ or ""), "\n".join(rows)]).strip()


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return " (required)"
    value: Any = field.default
    if field.default_factory is not msgspec.NODEFAULT and callable(field.default_factory):
        value = field.default_factory()
    if value is UNSET or value in ([], {}) or isinstance(value, Struct):
        return ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode().replace(",", ", ")
    return f" (default `{text}`)"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _presets() -> str:
    groups: dict[str, list[str]] = {}
    for name, file in sorted(PRESETS.items()):
        text = file.read_text()
        comment = re.match(r"(?:#[^\n]*\n)*?(?=#\n|version:)", text)
        first = " ".join(line.lstrip("# ") for line in comment[0].splitlines()) if comment else ""
        purpose, tried = first.rstrip(".").rsplit(". ", 1)
        resources = re.findall(r"^  - name: \"?(.*?)\"?$", text, re.MULTILINE)
        families = ", ".join(f"`{_family(resource)}`" for resource in resources)
        groups.setdefault(tried, []).append(f"- `{name}` ({families}): {_purpose(purpose)}.")
    return "\n\n".join(
        "\n".join((f"**{tried}:**\n", *rows)) for tried, rows in sorted(groups.items(), reverse=True)
    )


def _purpose(text: str) -> str:
    """A preset's first comment without the names of its resources."""
    said = re.sub(r"^[\w./<>-]+/[^ ]+(?:, [^ ]+/[^ ]+| and so on)*: ", "", text)
    return said[:1].upper() + said[1:]


def _family(name: str) -> str:
    """A name that devices make, as people read it."""
    return re.sub(r"\{\{ *(?:device\.)?(?:attrs\.)?(\w+).*?\}\}", r"<\1>", name)


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text()))
    text = json.dumps(schema(PRESETS), indent=2, ensure_ascii=False)
    DOCUMENT.with_name("plugin.schema.json").write_text(f"{text}\n")
