"""Configuration files: YAML with line numbers, checked against a msgspec model, with one clear error.

`parse` reads one bounded document. Scalars follow YAML 1.2's core schema (`off`, `no` and `1:30` are text);
tags, merge keys, duplicate keys and several documents in a file are refused; an alias counts with what it
expands to. `convert` checks keys, types and limits. An error names the file, the line, the path in it, what
was found and what was expected.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
import yaml
from msgspec import Struct, field, inspect
from yaml import events as ev

from runtime.text import advice, quoted, visible

Path = tuple[str | int, ...]
"""A place in a document: keys and indexes from its root."""


class ConfigError(ValueError):
    """A configuration that cannot be used. Its text is one line."""

    def __init__(self, source: str, line: int | None, path: Path, problem: str) -> None:
        self.source = source
        self.line = line
        self.path = path
        self.problem = problem
        place = visible(source) if line is None else f"{visible(source)}:{line}"
        where = f" {visible(dotted(path))}:" if path else ""
        super().__init__(f"{place}:{where} {visible(problem)}")


def dotted(path: Path) -> str:
    """A path as people write it: `resources[0].discover[1].glob.paths`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32
MAX_NODES: Final = 50_000

Scalar = str | int | float | bool | None
Plain = Scalar | list["Plain"] | dict[str, "Plain"]

_NULL: Final = re.compile(r"~|null|Null|NULL|")
_BOOL: Final = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT: Final = re.compile(r"[-+]?[0-9]{1,18}|0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}")
_FLOAT: Final = re.compile(
    r"[-+]?(?:\.[0-9]{1,24}|[0-9]{1,18}(?:\.[0-9]{0,24})?)(?:[eE][-+]?[0-9]{1,3})?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


class Node(Struct, frozen=True):
    """One value of a document with the line it starts on (from 1), and for mappings their keys' lines.

    `source` names the origin of a value that the file includes rather than writes down; its line is then the
    line of the inclusion.
    """

    value: "Scalar | tuple[Node, ...] | dict[str, Node]"
    line: int
    size: int = 1
    key_lines: dict[str, int] = field(default_factory=dict)
    source: str = ""

    def plain(self) -> Plain:
        """The value without its lines."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value


class Document(Struct, frozen=True):
    """A whole file: where it came from, for messages, and its root.

    `moved` maps the paths of values that were moved to their paths in the file.
    """

    source: str
    root: Node
    moved: Mapping[Path, Path] = field(default_factory=dict)

    def node(self, path: Path) -> Node:
        """The node at `path`, or its nearest ancestor that exists."""
        node = self.root
        for step in path:
            children = node.value
            child: Node | None = None
            if isinstance(children, dict) and isinstance(step, str):
                child = children.get(step)
            elif isinstance(children, tuple) and isinstance(step, int) and step < len(children):
                child = children[step]
            if child is None:
                return node
            node = child
        return node

    def line(self, path: Path) -> int:
        """The line of the key or item at `path`, or of its nearest ancestor that exists."""
        if path and isinstance(path[-1], str):
            parent = self.node(path[:-1])
            if path[-1] in parent.key_lines:
                return parent.key_lines[path[-1]]
        return self.node(path).line

    def error(self, path: Path, problem: str) -> ConfigError:
        """The error `problem` at `path`."""
        source = self.node(path).source
        problem = f"{problem} ({source})" if source else problem
        return ConfigError(self.source, self.line(path), self._written(path), problem)

    def _written(self, path: Path) -> Path:
        for length in range(len(path), 0, -1):
            if path[:length] in self.moved:
                return (*self.moved[path[:length]], *path[length:])
        return path


def parse(content: bytes, source: str) -> Document:
    """The document in `content`; `source` names it in messages.

    Raises ConfigError for what is not one bounded YAML document of plain values.
    """
    if len(content) > MAX_BYTES:
        raise ConfigError(source, None, (), f"found {len(content)} bytes, expected at most {MAX_BYTES}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            source, line, (), f"found byte 0x{content[error.start]:02x}, expected UTF-8"
        ) from None
    try:
        return Document(source, _Reader(source, text).document())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it cannot be read"
        if problem.endswith("cannot start any token"):
            problem += ": put the text in quotes"
        raise ConfigError(source, mark.line + 1 if mark else None, (), f"not YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"found character U+{ord(text[error.position]):04X}, which YAML does not allow"
        raise ConfigError(source, line, (), problem) from None


class _Reader:
    """Turns YAML events into nodes."""

    def __init__(self, source: str, text: str) -> None:
        self._source = source
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self._anchors: dict[str, Node] = {}
        self._count = 0

    def document(self) -> Node:
        if isinstance(self._content_start(), ev.StreamEndEvent):
            raise ConfigError(self._source, 1, (), "found an empty file, expected a configuration")
        root = self._node(next(self._events), (), 0)
        next(self._events)  # the document's end
        following = next(self._events)
        if not isinstance(following, ev.StreamEndEvent):
            raise self._error(following, (), "found a second document ('---'), expected one document a file")
        return root

    def _content_start(self) -> yaml.Event:
        next(self._events)  # the stream's start
        return next(self._events)

    def _error(self, event: yaml.Event, path: Path, problem: str) -> ConfigError:
        return ConfigError(self._source, _line(event), path, problem)

    def _node(self, event: yaml.Event, path: Path, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._error(event, (), f"found more than {MAX_DEPTH} levels of nesting")
        if isinstance(event, ev.AliasEvent):
            node = self._anchors.get(event.anchor or "")
            if node is None:
                raise self._error(event, path, f"alias *{event.anchor} has no anchor before it")
            self._add(event, node.size)
            return node
        self._add(event, 1)
        node = self._fresh(event, path, depth)
        anchor: str | None = getattr(event, "anchor", None)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _add(self, event: yaml.Event, size: int) -> None:
        self._count += size
        if self._count > MAX_NODES:
            raise self._error(event, (), f"found more than {MAX_NODES} values, aliases expanded")

    def _fresh(self, event: yaml.Event, path: Path, depth: int) -> Node:
        line = _line(event)
        tag: str | None = getattr(event, "tag", None)
        if tag is not None and not (tag == "tag:yaml.org,2002:str" and isinstance(event, ev.ScalarEvent)):
            raise self._error(event, path, f"found the tag {tag}, expected a plain value")
        if isinstance(event, ev.ScalarEvent):
            is_plain = event.implicit[0] and tag is None and event.style is None
            return Node(_scalar(event.value) if is_plain else event.value, line)
        if isinstance(event, ev.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(following := next(self._events), ev.SequenceEndEvent):
                items.append(self._node(following, (*path, len(items)), depth + 1))
            return Node(tuple(items), line, 1 + sum(item.size for item in items))
        return self._mapping(line, path, depth)

    def _mapping(self, line: int, path: Path, depth: int) -> Node:
        entries: dict[str, Node] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), ev.MappingEndEvent):
            if isinstance(event, ev.MappingStartEvent) and event.flow_style:
                problem = 'found {{, which YAML reads as a mapping: put a template in quotes, as in "{{ … }}"'
                raise self._error(event, path, problem)
            if not isinstance(event, ev.ScalarEvent):
                raise self._error(event, path, "found a key that is not plain text")
            key: str = event.value
            if key == "<<" and event.style is None:
                raise self._error(event, path, "found a merge key (<<), which this language does not have")
            if key in entries:
                raise self._error(event, (*path, key), f"found the key {quoted(key)} a second time")
            lines[key] = _line(event)
            entries[key] = self._node(next(self._events), (*path, key), depth + 1)
        return Node(entries, line, 1 + sum(node.size for node in entries.values()), lines)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def _scalar(text: str) -> Scalar:
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in {"0x", "0o"} else int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


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


UNIT: Final = "unit"
"""The key in `Meta.extra` that marks a text which is a duration."""

FurtherKeys = Mapping[type, frozenset[str]]
"""Keys that a file may have beside those of a struct: they are replaced before the document is converted."""


def convert(document: Document, model: type[T], further: FurtherKeys | None = None) -> T:
    """The document as `model`. Raises ConfigError for the first thing in it that does not fit.

    The advice for a mistyped key includes the `further` keys.
    """
    info = inspect.type_info(model)
    _check_keys(document, document.root, info, (), further or {})
    try:
        return msgspec.convert(document.root.plain(), model, strict=True)
    except msgspec.ValidationError as error:
        raise _explained(document, info, str(error)) from None


def _check_keys(document: Document, node: Node, info: inspect.Type, path: Path, further: FurtherKeys) -> None:
    """Refuse unknown keys before anything else: a mistyped key explains most other errors."""
    if isinstance(info, inspect.StructType) and isinstance(node.value, dict):
        fields = {field.encode_name: field.type for field in info.fields}
        for key, child in node.value.items():
            if key not in fields:
                known = [*sorted(fields), *sorted(further.get(info.cls, ()))]
                hint = advice(key, known) or f", expected one of {', '.join(sorted(fields))}"
                raise document.error((*path, key), f"found an unknown key {quoted(key)}{hint}")
            _check_keys(document, child, fields[key], (*path, key), further)
    elif isinstance(info, inspect.ListType) and isinstance(node.value, tuple):
        for index, child in enumerate(node.value):
            _check_keys(document, child, info.item_type, (*path, index), further)


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
    value = document.node(path).value
    if wanted == "text" and isinstance(value, (int, float)):
        if _extra(info, path).get(UNIT) and not isinstance(value, bool):
            wanted = f"a duration with its unit: write {value}s"
        else:
            wanted += ": put it in quotes"
    return document.error(path, f"found {found}, expected {wanted}")


def _extra(info: inspect.Type, path: Path) -> Mapping[str, Any]:
    """What the field at `path` declares in `Meta.extra`."""
    extra: Mapping[str, Any] = {}
    for step in (*path, None):
        options: tuple[inspect.Type, ...] = info.types if isinstance(info, inspect.UnionType) else (info,)
        info = next((each for each in options if not isinstance(each, inspect.NoneType)), info)
        if isinstance(info, inspect.Metadata):
            extra = info.extra or {}
            info = info.type
        if isinstance(info, inspect.StructType) and isinstance(step, str):
            info, extra = next(field.type for field in info.fields if field.encode_name == step), {}
        elif isinstance(info, inspect.ListType) and isinstance(step, int):
            info, extra = info.item_type, {}
        elif isinstance(info, inspect.DictType) and isinstance(step, str):
            info, extra = info.value_type, {}
    return extra


def _path(document: Document, place: str, problem: str) -> Path:
    """The path in msgspec's message; for `[...]` the first entry of the wrong type."""
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
