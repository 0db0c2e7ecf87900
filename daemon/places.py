"""A document checked against the model: keys, kinds and limits, each error with its place and advice.

The decoder is msgspec; what it says about a wrong value is put into words that name what was found
and what was expected, and where in the file.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, inspect

from daemon.errors import ConfigError, Path, advice, quoted
from daemon.yaml_document import Document, Node

T = TypeVar("T", bound=Struct)

_PLACE: Final = re.compile(r"^(?P<problem>.*?)(?: - at `\$(?P<place>.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[([0-9]+|\.\.\.)\]")
_EXPECTED: Final = re.compile(r"Expected (.*?)(?:, got `.*`)?$", re.DOTALL)
_KINDS: Final = re.compile(r"`([^`]*)`")
_WORDS: Final = {
    "str": "text",
    "int": "a whole number",
    "bool": "true or false",
    "float": "a number",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


Planned = Mapping[type, frozenset[str]]
"""Keys that a language will have, by the struct that will have them."""


def convert(document: Document, model: type[T], planned: Planned | None = None) -> T:
    """The document as `model`. Raises ConfigError for the first thing in it that does not fit.

    A key that is `planned` is told apart from one that is mistyped.
    """
    info = inspect.type_info(model)
    _check_keys(document, document.root, info, (), planned or {})
    try:
        return msgspec.convert(document.root.plain(), model, strict=True)
    except msgspec.ValidationError as error:
        raise _explained(document, info, str(error)) from None


def _check_keys(document: Document, node: Node, info: inspect.Type, path: Path, planned: Planned) -> None:
    """Refuse unknown keys, before anything else: a mistyped key explains most other errors."""
    if isinstance(info, inspect.StructType) and isinstance(node.value, dict):
        fields = {field.encode_name: field.type for field in info.fields}
        for key, child in node.value.items():
            if key not in fields:
                soon = planned.get(info.cls, frozenset[str]())
                raise _unknown(document, (*path, key), sorted(fields), soon)
            _check_keys(document, child, fields[key], (*path, key), planned)
    elif isinstance(info, inspect.ListType) and isinstance(node.value, tuple):
        for index, child in enumerate(node.value):
            _check_keys(document, child, info.item_type, (*path, index), planned)


def _unknown(document: Document, path: Path, fields: list[str], planned: frozenset[str]) -> ConfigError:
    built, key = ", ".join(fields), str(path[-1])
    if key in planned:
        return document.error(path, f"{quoted(key)} is not supported yet; this version has {built}")
    hint = advice(key, [*fields, *sorted(planned)]) or f", expected one of {built}"
    return document.error(path, f"found an unknown key {quoted(key)}{hint}")


def _explained(document: Document, info: inspect.Type, text: str) -> ConfigError:
    match = _PLACE.match(text)
    problem, place = (match["problem"], match["place"] or "") if match else (text, "")
    path = _path(document, place, problem)
    if problem.startswith("Object missing required field"):
        return document.error(path, f"expected the key {problem.split('`')[1]!r}, which is missing")
    found = _found(document.node(path).plain())
    expected = _EXPECTED.match(problem)
    if problem.startswith("Invalid enum value"):
        values = [quoted(v) if isinstance(v, str) else str(v) for v in _literals(info, path)]
        names = [value.strip("'") for value in values]
        plain = document.node(path).plain()
        hint = advice(plain, names) if isinstance(plain, str) else ""
        return document.error(path, f"found {found}, expected {_one_of(values)}{hint}")
    if expected is None:
        return document.error(path, f"found {found}: {problem}")
    wanted = _KINDS.sub(
        lambda kinds: " or ".join(_WORDS.get(k, k) for k in kinds[1].split(" | ")), expected[1]
    )
    hint = (
        ": put it in quotes"
        if wanted == "text" and isinstance(document.node(path).value, (int, float))
        else ""
    )
    return document.error(path, f"found {found}, expected {wanted}{hint}")


def _path(document: Document, place: str, problem: str) -> Path:
    """The path that msgspec tells; where it says only `[...]`, the first entry that has the fault."""
    path: Path = ()
    got = problem.rpartition("got `")[2].removesuffix("`")
    for name, index in _STEP.findall(place):
        if name:
            path = (*path, name)
        elif index != "...":
            path = (*path, int(index))
        else:
            children = document.node(path).value
            faulty = [k for k, n in children.items() if _kind(n) == got] if isinstance(children, dict) else []
            return (*path, faulty[0]) if faulty else path
    return path


def _one_of(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"one of {', '.join(values)}"


def _kind(node: Node) -> str:
    """How msgspec names the kind of a value."""
    match node.value:
        case dict():
            return "object"
        case tuple():
            return "array"
        case None:
            return "null"
        case value:
            return type(value).__name__


def _found(value: object) -> str:
    if isinstance(value, (list, str)) and len(value) > 80:
        return f"{'a list' if isinstance(value, list) else 'text'} of length {len(value)}"
    if value == []:
        return "an empty list"
    return quoted(value)


def _literals(info: inspect.Type, path: Path) -> tuple[str | int, ...]:
    """The values that a Literal at `path` allows."""
    step: Any
    for step in path:
        if isinstance(info, inspect.StructType):
            info = next(field.type for field in info.fields if field.encode_name == step)
        elif isinstance(info, inspect.ListType):
            info = info.item_type
    return (
        tuple(v for v in info.values if isinstance(v, (str, int)))
        if isinstance(info, inspect.LiteralType)
        else ()
    )
