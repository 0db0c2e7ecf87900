"""Loads configuration files: parse, expand presets, decode, compile, and check the resources together.

`preset: NAME` adds a preset's resources; the keys beside it are merged over each. Mappings are merged key by
key at all levels, other values replace the preset's, and a key without a value removes the preset's key.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Final

from msgspec.structs import replace

from plugin.config import model
from plugin.config.compile import compile_resource
from plugin.config.plan import ResourcePlan
from plugin.config.privileges import ALL, forbidden
from plugin.presets import PRESETS
from runtime import config_file
from runtime.config_file import MAX_BYTES, ConfigError, Document, Node, Path, parse
from runtime.text import advice, quoted

PRESET: Final = "preset"
OF: Final = "of"

PresetFiles = Mapping[str, FilePath]
"""The file of each preset, by name."""


def read(path: FilePath) -> bytes:
    """The content of a file, cut one byte above the limit of a configuration. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        problem = f"cannot be read: {error.strerror or type(error).__name__}"
        raise ConfigError(str(path), None, (), problem) from None


def expand(document: Document, presets: PresetFiles) -> Document:
    """The document with all presets expanded. Raises ConfigError.

    A document without a list of resources is returned as it is; the decoder refuses it.
    """
    root = document.root
    if not isinstance(root.value, dict):
        return document
    resources = root.value.get("resources")
    if resources is None or not isinstance(resources.value, tuple):
        return document
    expanded: list[Node] = []
    moved: dict[Path, Path] = {}
    for index, node in enumerate(resources.value):
        path: Path = ("resources", index)
        for resource in _expanded(document, node, path, presets):
            moved["resources", len(expanded)] = path
            expanded.append(resource)
    value = {**root.value, "resources": replace(resources, value=tuple(expanded))}
    return Document(document.source, replace(root, value=value), moved)


def _expanded(document: Document, node: Node, path: Path, presets: PresetFiles) -> tuple[Node, ...]:
    if not isinstance(node.value, dict):
        return (node,)
    if PRESET not in node.value:
        if OF in node.value:
            raise document.error((*path, OF), "found of without preset, one of whose resources it names")
        return (node,)
    name = node.value[PRESET].value
    if not isinstance(name, str) or name not in presets:
        found = quoted(node.value[PRESET].plain())
        hint = advice(name, sorted(presets)) if isinstance(name, str) else ""
        raise document.error(
            (*path, PRESET), f"found {found}{hint}, expected one of {', '.join(sorted(presets))}"
        )
    bases = _chosen(document, node.value, path, _preset_resources(presets[name], name))
    written = {key: child for key, child in node.value.items() if key not in {PRESET, OF}}
    if "name" in written and len(bases) > 1:
        problem = f"found one name for {len(bases)} resources, expected of: one of {_names(bases)}"
        raise document.error((*path, "name"), problem)
    own = replace(node, value=written)
    source, line = f"with preset {quoted(name)}", node.key_lines[PRESET]
    return tuple(_merged(document, _relocated(base, source, line), own, path, name) for base in bases)


def _chosen(
    document: Document, written: Mapping[str, Node], path: Path, resources: tuple[Node, ...]
) -> tuple[Node, ...]:
    """All of the preset's resources, or the one whose name begins with `of`."""
    if OF not in written:
        return resources
    wanted = written[OF].value
    if isinstance(wanted, str) and wanted:
        exact = tuple(r for r in resources if _name(r) == wanted)
        found = exact or tuple(r for r in resources if _name(r).startswith(wanted))
        if len(found) == 1:
            return found
    hint = advice(wanted, [_name(r) for r in resources]) if isinstance(wanted, str) else ""
    problem = f"found {quoted(written[OF].plain())}{hint}, expected one of {_names(resources)}"
    raise document.error((*path, OF), problem)


@lru_cache(maxsize=64)
def _preset_resources(file: FilePath, name: str) -> tuple[Node, ...]:
    resources = parse(file.read_bytes(), f"preset {name}").node(("resources",)).value
    if not isinstance(resources, tuple):
        raise TypeError(f"preset {name} has no resources")
    return resources


def _relocated(node: Node, source: str, line: int) -> Node:
    """A preset's node with the line of the file that uses the preset."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _relocated(child, source, line) for key, child in value.items()}
    elif isinstance(value, tuple):
        value = tuple(_relocated(child, source, line) for child in value)
    return replace(node, value=value, line=line, source=source, key_lines=dict.fromkeys(node.key_lines, line))


def _merged(document: Document, base: Node, own: Node, path: Path, preset: str) -> Node:
    """`own`, the node at `path`, merged over `base`."""
    if not isinstance(base.value, dict) or not isinstance(own.value, dict):
        return own
    merged = dict(base.value)
    for key, child in own.value.items():
        if child.value is not None:
            below = merged.get(key)
            merged[key] = child if below is None else _merged(document, below, child, (*path, key), preset)
        elif merged.pop(key, None) is None:
            hint = advice(key, sorted(base.value)) or f", only of {', '.join(sorted(base.value))}"
            raise document.error(
                (*path, key),
                f"found nothing, which removes a preset's key, but preset {quoted(preset)} has no "
                f"{quoted(key)}{hint}",
            )
    size = 1 + sum(child.size for child in merged.values())
    return Node(merged, own.line, size, {**base.key_lines, **own.key_lines})


def _name(resource: Node) -> str:
    name = resource.value.get("name") if isinstance(resource.value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else ""


def _names(resources: tuple[Node, ...]) -> str:
    return ", ".join(quoted(_name(r)) for r in resources)


PRESET_SOURCE: Final = "preset "
"""The prefix of a preset's name as the source of a document."""

_EXPANDED: Final[config_file.FurtherKeys] = {model.Resource: frozenset({PRESET, OF})}
"""Keys that `expand` removes; advice on mistyped keys includes them."""


def load(
    content: bytes, source: str, presets: PresetFiles = PRESETS, *, allowed: frozenset[str] = ALL
) -> tuple[ResourcePlan, ...]:
    """The resources of one configuration file; messages call it `source`.

    Raises ConfigError for the first problem.
    """
    return load_all([(source, content)], presets, allowed=allowed)


def load_all(
    files: Sequence[tuple[str, bytes]], presets: PresetFiles = PRESETS, *, allowed: frozenset[str] = ALL
) -> tuple[ResourcePlan, ...]:
    """The resources of several (source, content) files together; `allowed` are the privileges of --allow.

    Raises ConfigError for the first problem, such as a resource in two of them.
    """
    first: dict[str, tuple[str, int]] = {}
    plans: list[ResourcePlan] = []
    for source, content in files:
        for plan, document, path in _resources(content, source, presets, allowed):
            if plan.name in first:
                raise document.error(path, _twice(plan.name, source, *first[plan.name]))
            rival = next((other for other in plans if _same_devices(plan, other)), None)
            if rival is not None:
                raise document.error(path, _starved(rival.name, source, *first[rival.name]))
            first[plan.name] = source, document.line(path)
            plans.append(plan)
    return tuple(plans)


def decoded(document: Document) -> model.Configuration:
    """Decode an expanded document. Raises ConfigError."""
    return config_file.convert(document, model.Configuration, _EXPANDED)


def _resources(
    content: bytes, source: str, presets: PresetFiles, allowed: frozenset[str]
) -> Iterator[tuple[ResourcePlan, Document, Path]]:
    """(resource, document, path of its name) for each resource of one file."""
    document = parse(content, source)
    if not isinstance(document.root.value, dict):
        found = quoted(document.root.plain())
        raise document.error((), f"found {found}, expected a mapping with the keys version and resources")
    document = expand(document, presets)
    for index, resource in enumerate(decoded(document).resources):
        path: Path = ("resources", index)
        problem = forbidden(resource, allowed)
        if problem is not None:
            raise document.error((*path, *problem[0]), problem[1])
        yield compile_resource(resource, document, path), document, (*path, "name")


def _same_devices(plan: ResourcePlan, earlier: ResourcePlan) -> bool:
    """Whether an earlier resource keeps every device that this one can find.

    Listed and printed devices may be different devices under equal configurations.
    """
    return (
        plan.exclusive
        and earlier.exclusive
        and plan.family is None
        and earlier.family is None
        and (plan.sources, plan.match) == (earlier.sources, earlier.match)
        and all(source.identifies_devices for source in plan.sources)
    )


def _starved(name: str, source: str, first_source: str, first_line: int) -> str:
    place = f"on line {first_line}" if source == first_source else f"in {first_source}:{first_line}"
    return (
        f"would find what {quoted(name)} {place} finds, which keeps it: expected another match, or "
        "exclusive: false"
    )


def _twice(name: str, source: str, first_source: str, first_line: int) -> str:
    if source == first_source:
        return f"found {quoted(name)} a second time, the first is on line {first_line}"
    is_preset = [each.startswith(PRESET_SOURCE) for each in (source, first_source)]
    place = first_source if is_preset[1] else f"{first_source}:{first_line}"
    hint = ": begin the file's resource with the key 'preset' to adjust a preset" if any(is_preset) else ""
    return f"found {quoted(name)}, which {place} has too{'' if all(is_preset) else hint}"
