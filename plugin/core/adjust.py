"""Resources that begin with a preset: `preset: NAME`, what is written beside it merged over it.

Mappings are merged, key by key and all the way down. Everything else (text, numbers, lists) replaces
what the preset has, and a key with nothing in it takes the preset's away.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from daemon.errors import Path, advice, quoted
from daemon.yaml_document import Document, Node, parse

PRESET: Final = "preset"
OF: Final = "of"


def expand(document: Document, presets: Mapping[str, bytes]) -> Document:
    """The document with each resource that begins with a preset written out.

    What does not look like a document of resources is left to be refused later. Raises ConfigError.
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


def _expanded(document: Document, node: Node, path: Path, presets: Mapping[str, bytes]) -> tuple[Node, ...]:
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
    bases = _chosen(document, node.value, path, _resources(presets[name], name))
    written = {key: child for key, child in node.value.items() if key not in {PRESET, OF}}
    if "name" in written and len(bases) > 1:
        problem = f"found one name for {len(bases)} resources, expected of: one of {_names(bases)}"
        raise document.error((*path, "name"), problem)
    own = replace(node, value=written)
    source, line = f"with preset {quoted(name)}", node.key_lines[PRESET]
    return tuple(_merged(document, _placed(base, source, line), own, path, name) for base in bases)


def _chosen(
    document: Document, written: Mapping[str, Node], path: Path, resources: tuple[Node, ...]
) -> tuple[Node, ...]:
    """The preset's resources: all of them, or the one that `of` names, by enough of its beginning."""
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
def _resources(content: bytes, name: str) -> tuple[Node, ...]:
    resources = parse(content, f"preset {name}").node(("resources",)).value
    if not isinstance(resources, tuple):
        raise TypeError(f"preset {name} has no resources")
    return resources


def _placed(node: Node, source: str, line: int) -> Node:
    """A preset's node as if it stood where the file asks for it."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _placed(child, source, line) for key, child in value.items()}
    elif isinstance(value, tuple):
        value = tuple(_placed(child, source, line) for child in value)
    return replace(node, value=value, line=line, source=source, key_lines=dict.fromkeys(node.key_lines, line))


def _merged(document: Document, base: Node, own: Node, path: Path, preset: str) -> Node:
    """`own`, which is at `path`, over `base`."""
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
                f"found nothing, which takes a preset's key away, but preset {quoted(preset)} has no "
                f"{quoted(key)}{hint}",
            )
    size = 1 + sum(child.size for child in merged.values())
    return Node(merged, own.line, size, {**base.key_lines, **own.key_lines})


def _name(resource: Node) -> str:
    name = resource.value.get("name") if isinstance(resource.value, dict) else None
    return name.value if name is not None and isinstance(name.value, str) else ""


def _names(resources: tuple[Node, ...]) -> str:
    return ", ".join(quoted(_name(r)) for r in resources)
