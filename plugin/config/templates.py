"""Templates of the configuration: Jinja2, sandboxed, strict, compiled once, and bounded when rendered.

Jinja2's sandbox protects the process's objects, but not its time and memory. So the language is reduced to
expressions, if, and for over the given variables, and each rendering has a budget of steps that iterations,
filters, comparisons, and copies use up. Unknown names are found when a template is compiled.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, Literal, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.filters import do_round, make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment

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


class _Checker:
    """Walks a template's tree. `scope` maps loop variables to their kinds, None: an unknown kind."""

    def __init__(
        self, variables: frozenset[str], fields: frozenset[str], attributes: frozenset[str] | None
    ) -> None:
        self._variables = variables
        self._fields = fields
        self._attributes = attributes

    def check(self, node: nodes.Node, scope: dict[str, str | None]) -> Iterator[str]:
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


MAX_OUTPUT: Final = 128 * 1024 - 1
"""The longest output: the kernel accepts no longer argument or variable."""
MAX_STEPS: Final = 500_000
"""The steps of one rendering. An iteration takes one step for each 16 nodes of the loop's body;
a filter, method, comparison, or copy takes one for each item and for each 16 characters of its values.
"""
_MAX_STRIPPED: Final = 64
"""Characters that `strip` and `trim` remove; the time is their number times the text's length."""
_MAX_PRECISION: Final = 20

DEVICE_FIELDS: Final = frozenset({"id", "name", "path", "attrs", "numa_nodes", "nodes"})
FOUND_FIELDS: Final = frozenset({"name", "path", "attrs", "nodes"})
"""The fields of a device that has no id yet."""


class TemplateError(ValueError):
    """A template cannot be compiled or rendered; the message says why."""


_left: Final[ContextVar[list[int]]] = ContextVar("left")
"""The steps that the current rendering has left."""


@contextmanager
def _budget() -> Generator[None]:
    token = _left.set([MAX_STEPS])
    try:
        yield
    finally:
        _left.reset(token)


def _spend(steps: int) -> None:
    left = _left.get()
    left[0] -= steps
    if left[0] < 0:
        raise TemplateError(
            f"takes more than {MAX_STEPS} steps, expected fewer iterations and filters, or shorter lists"
        )


def _measured(value: Any) -> Any:
    """Spend the steps of reading `value` once. A list counts as often as it is in itself."""
    if isinstance(value, str):
        _spend(1 + len(value) // 16)
    elif isinstance(value, (list, tuple, set, frozenset)):
        _spend(1)
        for item in value:
            _measured(item)
    elif isinstance(value, dict):
        _spend(1)
        for pair in value.items():
            _measured(pair)
    else:
        _spend(1)
    return value


def _iterated(value: Any, steps: int) -> Any:
    """The iterable of a loop; each of its items takes so many steps."""
    if hasattr(value, "__len__"):
        _spend(len(value) * steps)
        return value
    return _counted(value, steps) if isinstance(value, Iterable) else value


def _counted(items: Iterable[Any], steps: int) -> Iterator[Any]:
    for item in items:
        _spend(steps)
        yield item


def _metered(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that spends the steps of its arguments and of its result."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            _measured(value)
        result = function(*args, **kwargs)
        return _counted(result, 1) if isinstance(result, Iterator) else _measured(result)

    return call


def _meter(tree: nodes.Template) -> nodes.Template:
    """Add filters that spend steps where Jinja2 calls neither filter nor method."""
    for node in list(tree.find_all(nodes.Node)):
        match node:
            case nodes.For():
                weight = 1 + sum(1 for child in node.body for _ in child.find_all(nodes.Node)) // 16
                node.iter = _filter(node.iter, "_iterated", nodes.Const(weight))
            case nodes.Compare() | nodes.Operand():
                node.expr = _filter(node.expr, "_measured")
            case nodes.Concat():
                node.nodes = [_filter(part, "_measured") for part in node.nodes]
            case nodes.Getitem(arg=nodes.Slice()):
                node.node = _filter(node.node, "_measured")
            case _:
                pass
    return tree


def _filter(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr", node), name, list(args), [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with limits on operations whose result can be much larger than their operands."""

    intercepted_binops = frozenset({"*", "%", "+"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            if max(abs(left), abs(right)) > 1 << 62:
                raise TemplateError("found a number that is too large")
        elif operator != "+":
            raise TemplateError(f"{operator} works on numbers only")
        elif isinstance(left, str) and isinstance(right, str):
            _bound(len(left) + len(right))
        _measured((left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: PYI063 -- as inherited
        owner = getattr(__obj, "__self__", None)
        if not isinstance(owner, (str, dict)) or __obj.__name__ not in ALLOWED_METHODS:
            raise TemplateError("only methods of text and mappings can be called")
        _measured((owner, args, kwargs))
        if __obj.__name__ == "replace" and isinstance(owner, str):
            return _measured(_replace(owner, *args, **kwargs))
        if __obj.__name__ in {"strip", "lstrip", "rstrip"}:
            _few(*args)
        return _measured(super().call(__context, __obj, *args, **kwargs))


def _bound(length: int) -> None:
    if length > MAX_OUTPUT:
        raise TemplateError(f"renders to more than {MAX_OUTPUT} characters")


def _few(chars: str | None = None) -> None:
    if chars is not None and len(chars) > _MAX_STRIPPED:
        raise TemplateError(f"strips more than {_MAX_STRIPPED} different characters")


def _replace(text: str, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    _bound(len(text) + text.count(old) * max(0, len(new) - len(old)))
    return text.replace(old, new, -1 if count is None else count)


def _trim(text: str, chars: str | None = None) -> str:
    _few(chars)
    return str(text).strip(chars)


def _round(value: float, precision: int = 0, method: Literal["common", "ceil", "floor"] = "common") -> float:
    if abs(precision) > _MAX_PRECISION:
        raise TemplateError(f"rounds to {precision} digits, expected at most {_MAX_PRECISION}")
    return do_round(value, precision, method)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, items: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    texts: list[str] = []
    length = 0
    for item in items if attribute is None else map(make_attrgetter(environment, attribute), items):
        texts.append(str(item))
        length += len(texts[-1])
        _bound(length)
        length += len(d)
    return str(d).join(texts)


def _to_json(value: object) -> str:
    parts: list[str] = []
    length = 0
    for part in _JSON.iterencode(value):
        parts.append(part)
        length += len(part)
        _bound(length)
    return "".join(parts)


def _only_text(value: object) -> object:
    """Allow only texts and numbers in `{{ … }}`: `None` or `<map object>` is always a mistake."""
    if value is None:
        raise TemplateError("an expression gives nothing (None)")
    if not isinstance(value, (str, int, float, jinja2.Undefined)):
        kind = (
            "a mapping"
            if isinstance(value, Mapping)
            else "a list"
            if isinstance(value, Iterable)
            else "an object"
        )
        raise TemplateError(f"an expression gives {kind}, expected text (filters: join, first, tojson)")
    return value


def _environment() -> _Environment:
    environment = _Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, cache_size=0, finalize=_only_text
    )
    environment.globals.clear()
    filters: dict[str, Any] = environment.filters
    for name in filters.keys() - ALLOWED_FILTERS:
        del filters[name]
    filters |= {"tojson": _to_json, "replace": _replace, "trim": _trim, "round": _round, "join": _join}
    tests: dict[str, Any] = environment.tests
    for calls in (filters, tests):
        calls.update({name: _metered(function) for name, function in calls.items()})
    filters |= {"_iterated": _iterated, "_measured": _measured}
    return environment


_JSON: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
_ENVIRONMENT: Final = _environment()


_Part = str | Callable[[Mapping[str, Any]], str]
"""A text, or what gets one from the variables."""
_INSERTED: Final = frozenset({"id", "name", "path"})
"""Fields of a device that are texts."""


def _plain_parts(tree: nodes.Template) -> tuple[_Part, ...] | None:
    """The parts of a template that only inserts texts: `/dev/{{ device.name }}`, `{{ ids | join(',') }}`.

    None for any other template. Allocate renders these without Jinja2, in a tenth of the time.
    """
    outputs = list(tree.iter_child_nodes())
    every = [part for output in outputs if isinstance(output, nodes.Output) for part in output.nodes]
    parts = [_plain_part(part) for part in every]
    found = tuple(part for part in parts if part is not None)
    only_outputs = all(isinstance(output, nodes.Output) for output in outputs)
    return found if only_outputs and len(found) == len(parts) else None


def _plain_part(node: nodes.Node) -> _Part | None:
    match node:
        case nodes.TemplateData(data=text):
            return text
        case nodes.Name(name="resource" | "node" as name):
            return lambda variables: variables[name]
        case nodes.Getattr(node=nodes.Name(name="device"), attr=field) if field in _INSERTED:
            return lambda variables: getattr(variables["device"], field)
        case nodes.Filter(
            node=nodes.Name(name="ids"), name="join", args=[nodes.Const(value=str(between))], kwargs=[]
        ):
            return lambda variables: between.join(variables["ids"])
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template. `uses`: its variables. Templates with equal text are equal.

    `compiled` is None for a constant text. `parts`: those of a template that only inserts texts.
    """

    text: str
    uses: frozenset[str]
    compiled: jinja2.Template | None = field(compare=False)
    parts: tuple[_Part, ...] | None = field(compare=False, default=None)

    def render(self, variables: Mapping[str, object]) -> str:
        """The text for `variables`. Raises TemplateError for every failure."""
        if self.compiled is None:
            return self.text
        if self.parts is not None:
            with suppress(KeyError, TypeError):  # Jinja2 says what is missing
                text = "".join([part if isinstance(part, str) else part(variables) for part in self.parts])
                _bound(len(text))
                return text
        parts: list[str] = []
        length = 0
        try:
            with _budget():
                for part in self.compiled.generate(variables):
                    length += len(part)
                    _bound(length)
                    parts.append(part)
        except TemplateError:
            raise
        except RecursionError:
            raise TemplateError("is nested too deeply") from None
        except Exception as error:  # a template's values may fail in any way  # noqa: BLE001
            raise TemplateError(str(error) or type(error).__name__) from None
        return "".join(parts)

    def holds(self, variables: Mapping[str, object]) -> bool:
        """Whether a condition renders as true. Raises TemplateError if it is neither true nor false."""
        text = self.render(variables).strip()
        match text.lower():
            case "true" | "1" | "yes":
                return True
            case "false" | "0" | "no" | "" | "none":
                return False
            case _:
                raise TemplateError(f"rendered {text[:80]!r}, expected true or false")


def compile_template(
    text: str,
    variables: frozenset[str],
    fields: frozenset[str],
    attributes: frozenset[str] | None = None,
) -> Template:
    """Compile a template. Raises TemplateError for bad syntax, unknown names and forbidden constructs.

    `variables` are the names that it may use, `fields` the fields of a `device`, `attributes` the names in
    its `attrs`; None: any name is possible.
    """
    try:
        tree = _ENVIRONMENT.parse(text)
        found = next(_Checker(variables, fields, attributes).check(tree, {}), None)
        if found is not None:
            raise TemplateError(found)
        uses = frozenset(meta.find_undeclared_variables(tree))
        constant, plain = _is_constant(tree), _plain_parts(tree)
        with _budget():  # Jinja2 computes constant expressions when it compiles
            compiled = _ENVIRONMENT.from_string(_meter(tree))
            if constant:
                return Template(compiled.render(), uses, None)
            return Template(text, uses, compiled, plain)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"not a template: {error.message}") from None
    except (RecursionError, SyntaxError):  # Python nests at most 20 loops
        raise TemplateError("is nested too deeply") from None


def _is_constant(tree: nodes.Template) -> bool:
    return all(
        isinstance(node, (nodes.Output, nodes.TemplateData)) for node in tree.iter_child_nodes()
    ) and all(
        isinstance(part, nodes.TemplateData) for node in tree.find_all(nodes.Output) for part in node.nodes
    )
