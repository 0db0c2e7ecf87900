"""The language of templates that Jinja2 renders: expressions, if, and for over the given variables.

The checks walk Jinja2's tree of a template when it is compiled, and find every name, field, filter, and
method that the template cannot use.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from jinja2 import nodes

from runtime.text import advice, quoted

ALLOWED_FILTERS: Final = frozenset(
    {
        *("abs", "default", "d", "dictsort", "first", "float", "int", "items", "join", "last", "length"),
        *("count", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse"),
        *("round", "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique"),
        *("upper", "capitalize"),
    }
)
_MAPPING_METHODS: Final = frozenset({"get", "items", "keys", "values"})
_TEXT_METHODS: Final = frozenset(
    {
        *("startswith", "endswith", "lower", "upper", "strip", "lstrip", "rstrip", "split", "rsplit"),
        *("partition", "rpartition", "replace", "removeprefix", "removesuffix", "find", "rfind", "count"),
        *("isdigit", "isalpha", "isalnum", "index"),
    }
)
ALLOWED_METHODS: Final = _TEXT_METHODS | _MAPPING_METHODS
"""Methods of texts and mappings. Nothing else can be called."""

_ALLOWED_NODES: Final = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Name, nodes.NSRef),
    *(nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Slice),
    *(nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Test, nodes.Call, nodes.CondExpr, nodes.Concat),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod),
)
_LIST_FILTERS: Final = frozenset(
    {"list", "sort", "reverse", "unique", "selectattr", "rejectattr", "select", "reject"}
)
_ATTRIBUTE_FILTERS: Final = frozenset(
    {"map", "sort", "unique", "selectattr", "rejectattr", "sum", "min", "max"}
)
_POSITIONAL: Final = frozenset({"selectattr", "rejectattr"})

_DEVICE: Final = "a device"
_DEVICES: Final = "a list of devices"
_ATTRS: Final = "a mapping"
_TEXT: Final = "text"
_TEXTS: Final = "a list of texts"
_NUMBER: Final = "a number"
_NUMBERS: Final = "a list of numbers"
_LOOP: Final = "the loop"

_ELEMENTS: Final = {
    _DEVICES: _DEVICE,
    _TEXTS: _TEXT,
    _NUMBERS: _NUMBER,
    _TEXT: _TEXT,
    _ATTRS: _TEXT,
}
"""Kinds of what an index gives."""
_LISTS: Final = frozenset({_DEVICES, _TEXTS, _NUMBERS})
_VARIABLE_KINDS: Final = {
    "device": _DEVICE,
    "devices": _DEVICES,
    "ids": _TEXTS,
    "node": _TEXT,
    "resource": _TEXT,
    "id": _TEXT,
    "n": _NUMBER,
}
_FIELD_KINDS: Final = {
    "id": _TEXT,
    "name": _TEXT,
    "path": _TEXT,
    "attrs": _ATTRS,
    "nodes": _TEXTS,
    "numa_nodes": _NUMBERS,
}
_LOOP_FIELDS: Final = frozenset(
    {"index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem"}
)
_EXPECTED_METHODS: Final = {_TEXT: _TEXT_METHODS, _ATTRS: _MAPPING_METHODS}


class Checker:
    """Walks a template's tree. `scope` maps loop variables to their kinds, None: an unknown kind."""

    def __init__(
        self, variables: frozenset[str], fields: frozenset[str], attributes: frozenset[str] | None
    ) -> None:
        self._variables = variables
        self._fields = fields
        self._attributes = attributes

    def check(self, node: nodes.Node, scope: dict[str, str | None]) -> Iterator[str]:
        """What is wrong with a node and all nodes below it, in their order."""
        if not isinstance(node, _ALLOWED_NODES):
            yield f"found {type(node).__name__.lower()!r}, expected only expressions, if and for"
            return
        yield from self._own(node, scope)
        if isinstance(node, nodes.For):
            yield from self._loop(node, scope)
            return
        for child in node.iter_child_nodes():
            is_method = isinstance(node, nodes.Call) and child is node.node
            # A method is no attribute: only the value that has it is checked.
            parts = child.iter_child_nodes() if is_method else (child,)
            for part in parts:
                yield from self.check(part, scope)

    def _loop(self, node: nodes.For, scope: dict[str, str | None]) -> Iterator[str]:
        if node.recursive:
            yield "found a recursive loop"
            return
        yield from self.check(node.iter, scope)
        targets = [name.name for name in node.target.find_all(nodes.Name)]
        if isinstance(node.target, nodes.Name):
            targets.append(node.target.name)
        kind = self._kind(node.iter, scope)
        element = _ELEMENTS.get(kind or "") if len(targets) == 1 else None
        inner = {**scope, "loop": _LOOP, **dict.fromkeys(targets, element)}
        rest = [*node.body, *([node.test] if node.test is not None else [])]
        for child in rest:
            yield from self.check(child, inner)
        for child in node.else_:
            yield from self.check(child, scope)

    def _own(self, node: nodes.Node, scope: dict[str, str | None]) -> Iterator[str]:
        match node:
            case nodes.Name(name=name, ctx="load") if name not in scope and name not in self._variables:
                yield f"found the unknown name {quoted(name)}{_hint(name, self._variables)}"
            case nodes.Filter(name=name) if name not in ALLOWED_FILTERS:
                yield f"found the unknown filter {quoted(name)}{_hint(name, ALLOWED_FILTERS)}"
            case nodes.Filter():
                yield from self._filtered(node, scope)
            case (
                nodes.Getattr(node=base, attr=attr)
                | nodes.Getitem(node=base, arg=nodes.Const(value=str(attr)))
            ):
                yield from self._member(base, attr, scope)
            case nodes.Call(node=called):
                yield from self._called(called, scope)
            case nodes.Output(nodes=parts):
                kinds = (self._kind(part, scope) for part in parts)
                yield from (_no_text(kind) for kind in kinds if kind in {_DEVICE, _ATTRS, *_LISTS})
            case _:
                pass

    def _member(self, base: nodes.Node, attr: str, scope: dict[str, str | None]) -> Iterator[str]:
        """Check `base.attr`, which is no call."""
        match self._kind(base, scope):
            case None:
                pass
            case kind if kind == _DEVICE:
                yield from self._field(attr)
            case kind if kind == _ATTRS:
                yield from self._attribute(attr)
            case kind if kind == _LOOP:
                if attr not in _LOOP_FIELDS:
                    yield f"found loop.{attr}, expected one of {', '.join(sorted(_LOOP_FIELDS))}"
            case kind:
                yield f"found {_spelled(base)}.{attr}, but {_spelled(base)} is {kind}{_use_of(kind)}"

    def _called(self, called: nodes.Node, scope: dict[str, str | None]) -> Iterator[str]:
        if not isinstance(called, nodes.Getattr):
            yield "found a call of something that is not a method"
            return
        name, kind = called.attr, self._kind(called.node, scope)
        if name not in ALLOWED_METHODS:
            yield f"found the unknown method {quoted(name)}{_hint(name, ALLOWED_METHODS)}"
        elif kind is not None and name not in _EXPECTED_METHODS.get(kind, frozenset()):
            base = _spelled(called.node)
            yield f"found {base}.{name}(), but {base} is {kind}{_use_of(kind)}"

    def _filtered(self, node: nodes.Filter, scope: dict[str, str | None]) -> Iterator[str]:
        """Check names of attributes in filters: `devices | map(attribute='pth')`."""
        if node.name not in _ATTRIBUTE_FILTERS or node.node is None:
            return
        if self._kind(node.node, scope) != _DEVICES:
            return
        named = [pair.value for pair in node.kwargs if pair.key == "attribute"]
        if node.name in _POSITIONAL and node.args:
            named.append(node.args[0])
        for value in named:
            if isinstance(value, nodes.Const) and isinstance(value.value, str):
                field, _, attribute = value.value.partition(".")
                yield from self._field(field)
                if field == "attrs" and attribute:
                    yield from self._attribute(attribute)

    def _field(self, name: str) -> Iterator[str]:
        if name not in self._fields:
            yield f"found device.{name}, which a device does not have{_hint(name, self._fields)}"

    def _attribute(self, name: str) -> Iterator[str]:
        if self._attributes is not None and name not in self._attributes:
            hint = _hint(name, self._attributes) if self._attributes else ": they have no attributes"
            yield f"found device.attrs.{name}, which devices of these sources do not have{hint}"

    def _kind(self, node: nodes.Node, scope: dict[str, str | None]) -> str | None:
        """The kind of an expression's value; None where it is not known."""
        kind: str | None = None
        match node:
            case nodes.Name(name=name) if name in scope:
                kind = scope[name]
            case nodes.Name(name=name) if name in self._variables:
                kind = _VARIABLE_KINDS.get(name)
            case (
                nodes.Getattr(node=base, attr=name)
                | nodes.Getitem(node=base, arg=nodes.Const(value=str(name)))
            ):
                owner = self._kind(base, scope)
                kind = _FIELD_KINDS.get(name) if owner == _DEVICE else _TEXT if owner == _ATTRS else None
            case nodes.Getitem(node=base, arg=nodes.Slice()):
                kind = self._kind(base, scope)
            case nodes.Getitem(node=base):
                kind = _ELEMENTS.get(self._kind(base, scope) or "")
            case nodes.Filter(node=nodes.Node() as base, name="first" | "last"):
                kind = _ELEMENTS.get(self._kind(base, scope) or "")
            case nodes.Filter(node=nodes.Node() as base, name=name) if name in _LIST_FILTERS:
                kind = self._kind(base, scope)
                kind = kind if kind in _LISTS else None
            case _:
                pass
        return kind


def _spelled(node: nodes.Node) -> str:
    """A short expression as it is written; `…` for any other."""
    match node:
        case nodes.Name(name=name):
            return name
        case nodes.Getattr(node=base, attr=attr):
            return f"{_spelled(base)}.{attr}"
        case nodes.Getitem(node=base, arg=nodes.Const(value=value)):
            return f"{_spelled(base)}[{quoted(value)}]"
        case _:
            return "…"


def _use_of(kind: str) -> str:
    """What an expression of this kind has instead."""
    if kind in _LISTS:
        return ": expected an index, a filter such as join, or a loop"
    methods = _EXPECTED_METHODS.get(kind)
    return f", which has only the methods {', '.join(sorted(methods))}" if methods else ""


def _no_text(kind: str) -> str:
    what = {_DEVICE: "an object", _ATTRS: "a mapping"}.get(kind, "a list")
    return f"an expression gives {what}, expected text (filters: join, first, tojson)"


def _hint(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return advice(name, names) or f", expected one of {', '.join(names)}"
