"""Templates that Jinja2 renders: sandboxed, strict, compiled once, and bounded when rendered.

Jinja2's sandbox protects the process's objects, but not its time and memory. So `jinja_checks` reduces the
language, and each rendering has a budget of steps that iterations, filters, comparisons, and copies use up.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Final, Literal, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.filters import do_round, make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plugin.config.jinja_checks import ALLOWED_FILTERS, ALLOWED_METHODS, Checker
from plugin.config.templates import Template, TemplateError, check_length

MAX_STEPS: Final = 500_000
"""The steps of one rendering. An iteration takes one step for each 16 nodes of the loop's body;
a filter, method, comparison, or copy takes one for each item and for each 16 characters of its values.
"""
_MAX_STRIPPED: Final = 64
"""Characters that `strip` and `trim` remove; the time is their number times the text's length."""
_MAX_PRECISION: Final = 20

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
            check_length(len(left) + len(right))
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


def _few(chars: str | None = None) -> None:
    if chars is not None and len(chars) > _MAX_STRIPPED:
        raise TemplateError(f"strips more than {_MAX_STRIPPED} different characters")


def _replace(text: str, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    check_length(len(text) + text.count(old) * max(0, len(new) - len(old)))
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
        check_length(length)
        length += len(d)
    return str(d).join(texts)


def _to_json(value: object) -> str:
    parts: list[str] = []
    length = 0
    for part in _JSON.iterencode(value):
        parts.append(part)
        length += len(part)
        check_length(length)
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


def jinja_template(
    text: str, variables: frozenset[str], fields: frozenset[str], attributes: frozenset[str] | None = None
) -> Template:
    """Compile any template; the arguments are those of `plain_template`.

    Raises TemplateError for bad syntax, unknown names, and forbidden constructs.
    """
    try:
        tree = _ENVIRONMENT.parse(text)
        found = next(Checker(variables, fields, attributes).check(tree, {}), None)
        if found is not None:
            raise TemplateError(found)
        uses = frozenset(meta.find_undeclared_variables(tree))
        constant = _is_constant(tree)
        with _budget():  # Jinja2 computes constant expressions when it compiles
            compiled = _ENVIRONMENT.from_string(_meter(tree))
            return (
                Template(compiled.render(), uses)
                if constant
                else Template(text, uses, partial(_rendered, compiled))
            )
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


def _rendered(compiled: jinja2.Template, variables: Mapping[str, object]) -> str:
    parts: list[str] = []
    length = 0
    try:
        with _budget():
            for part in compiled.generate(variables):
                length += len(part)
                check_length(length)
                parts.append(part)
    except TemplateError:
        raise
    except RecursionError:
        raise TemplateError("is nested too deeply") from None
    except Exception as error:  # a template's values may fail in any way  # noqa: BLE001
        raise TemplateError(str(error) or type(error).__name__) from None
    return "".join(parts)
