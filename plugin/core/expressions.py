"""What a template may contain, and the names that it may use: checked when it is loaded.

Jinja2's sandbox keeps a template from the process's insides, not from eating its time and memory, so
the language is cut down to what describing devices needs: expressions, if, and for over what is given.
"""

from collections.abc import Iterator
from typing import Final

from jinja2 import nodes

from plugin.core.errors import advice, quoted

ALLOWED_FILTERS: Final = frozenset(
    {
        *("abs", "default", "d", "dictsort", "first", "float", "int", "items", "join", "last", "length"),
        *("count", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse"),
        *("round", "select", "selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique"),
        *("upper", "capitalize"),
    }
)
ALLOWED_METHODS: Final = frozenset(
    {
        *("get", "items", "keys", "values"),
        *("startswith", "endswith", "lower", "upper", "strip", "lstrip", "rstrip", "split", "rsplit"),
        *("partition", "rpartition", "replace", "removeprefix", "removesuffix", "find", "rfind", "count"),
        *("isdigit", "isalpha", "isalnum", "index"),
    }
)
"""Methods of text and mappings; nothing else can be called."""

_MAPPING_METHODS: Final = frozenset({"get", "items", "keys", "values"})

MAX_LOOPS: Final = 2
"""Loops within loops: more would let a short template run for ever."""

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

_DEVICE: Final = "device"
_DEVICES: Final = "devices"


def problem(
    tree: nodes.Template,
    variables: frozenset[str],
    fields: frozenset[str],
    attributes: frozenset[str] | None = None,
) -> str | None:
    """What a template must not contain, in words; None where all is well.

    `variables` are the names it is rendered with, `fields` what a `device` among them has, `attributes`
    what its `attrs` may have; None where that cannot be told.
    """
    checker = _Checker(variables, fields, attributes)
    return next(checker.check(tree, {}, 0), None)


class _Checker:
    """Walks a template's tree. `scope` says which loop variables there are and which are devices."""

    def __init__(
        self, variables: frozenset[str], fields: frozenset[str], attributes: frozenset[str] | None
    ) -> None:
        self._variables = variables
        self._fields = fields
        self._attributes = attributes

    def check(self, node: nodes.Node, scope: dict[str, str | None], loops: int) -> Iterator[str]:
        if not isinstance(node, _ALLOWED_NODES):
            yield f"found {type(node).__name__.lower()!r}, expected only expressions, if and for"
            return
        yield from self._own(node, scope)
        if isinstance(node, nodes.For):
            yield from self._loop(node, scope, loops)
            return
        for child in node.iter_child_nodes():
            yield from self.check(child, scope, loops)

    def _loop(self, node: nodes.For, scope: dict[str, str | None], loops: int) -> Iterator[str]:
        if loops >= MAX_LOOPS or node.recursive:
            yield f"found loops more than {MAX_LOOPS} deep, or a recursive one"
            return
        yield from self.check(node.iter, scope, loops)
        targets = [name.name for name in node.target.find_all(nodes.Name)]
        if isinstance(node.target, nodes.Name):
            targets.append(node.target.name)
        element = _DEVICE if self._kind(node.iter, scope) == _DEVICES else None
        inner = {**scope, "loop": None, **dict.fromkeys(targets, element)}
        rest = [*node.body, *([node.test] if node.test is not None else [])]
        for child in rest:
            yield from self.check(child, inner, loops + 1)
        for child in node.else_:
            yield from self.check(child, scope, loops)

    def _own(self, node: nodes.Node, scope: dict[str, str | None]) -> Iterator[str]:
        match node:
            case nodes.Name(name=name, ctx="load") if name not in scope and name not in self._variables:
                known = sorted(self._variables)
                yield f"found the unknown name {quoted(name)}" + (advice(name, known) or _one_of(known))
            case nodes.Filter(name=name) if name not in ALLOWED_FILTERS:
                known = sorted(ALLOWED_FILTERS)
                yield f"found the unknown filter {quoted(name)}" + (advice(name, known) or _one_of(known))
            case nodes.Filter():
                yield from self._filtered(node, scope)
            case nodes.Getattr(node=base, attr=attr) if self._kind(base, scope) == _DEVICE:
                yield from self._field(attr)
            case nodes.Getitem(node=base, arg=nodes.Const(value=str(attr))) if (
                self._kind(base, scope) == _DEVICE
            ):
                yield from self._field(attr)
            case (
                nodes.Getattr(node=base, attr=attr)
                | nodes.Getitem(node=base, arg=nodes.Const(value=str(attr)))
            ) if attr not in _MAPPING_METHODS and self._is_attrs(base, scope):
                yield from self._attribute(attr)
            case nodes.Call(node=called):
                yield from self._called(called)
            case _:
                pass

    @staticmethod
    def _called(called: nodes.Node) -> Iterator[str]:
        if not isinstance(called, nodes.Getattr):
            yield "found a call of something that is not a method"
        elif called.attr not in ALLOWED_METHODS:
            known = sorted(ALLOWED_METHODS)
            yield f"found the unknown method {quoted(called.attr)}" + (
                advice(called.attr, known) or _one_of(known)
            )

    def _filtered(self, node: nodes.Filter, scope: dict[str, str | None]) -> Iterator[str]:
        """`devices | map(attribute='pth')`: an attribute's name in a filter is checked as well."""
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
            known = sorted(self._fields)
            yield f"found device.{name}, which a device does not have" + (
                advice(name, known) or _one_of(known)
            )

    def _attribute(self, name: str) -> Iterator[str]:
        if self._attributes is not None and name not in self._attributes:
            known = sorted(self._attributes)
            yield f"found device.attrs.{name}, which devices of these sources do not have" + (
                (advice(name, known) or _one_of(known)) if known else ": they have no attributes"
            )

    def _is_attrs(self, node: nodes.Node, scope: dict[str, str | None]) -> bool:
        match node:
            case (
                nodes.Getattr(node=base, attr="attrs")
                | nodes.Getitem(node=base, arg=nodes.Const(value="attrs"))
            ):
                return self._kind(base, scope) == _DEVICE
            case _:
                return False

    def _kind(self, node: nodes.Node, scope: dict[str, str | None]) -> str | None:
        """Whether an expression is a device, a list of devices, or something else."""
        kind: str | None = None
        match node:
            case nodes.Name(name=name) if name in scope:
                kind = scope[name]
            case nodes.Name(name="device" | "devices" as name) if name in self._variables:
                kind = name
            case nodes.Getitem(node=base, arg=nodes.Slice()):
                kind = self._kind(base, scope)
            case nodes.Getitem(node=base, arg=arg):
                kind = _DEVICE if self._kind(base, scope) == _DEVICES and not _is_text(arg) else None
            case nodes.Filter(node=nodes.Node() as base, name="first" | "last"):
                kind = _DEVICE if self._kind(base, scope) == _DEVICES else None
            case nodes.Filter(node=nodes.Node() as base, name=name) if name in _LIST_FILTERS:
                kind = self._kind(base, scope)
            case _:
                pass
        return kind


def _is_text(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, str)


def _one_of(known: list[str]) -> str:
    return f", expected one of {', '.join(known)}"
