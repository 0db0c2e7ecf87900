"""Templates of the configuration: Jinja2, sandboxed, strict, compiled once, bounded when rendered."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jinja2
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from plugin.core import expressions

MAX_OUTPUT: Final = 128 * 1024 - 1
"""The longest text a template may render to: the kernel takes no longer argument or variable."""

DEVICE_FIELDS: Final = frozenset({"id", "name", "path", "attrs", "numa_nodes", "nodes"})
FOUND_FIELDS: Final = frozenset({"name", "path", "attrs", "nodes"})
"""What is known of a device before it has an id."""


class TemplateError(ValueError):
    """A template that cannot be compiled, or not be rendered; the message says why, without its place."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the operations that can make much of little held back."""

    intercepted_binops = frozenset({"*", "%", "+"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            if max(abs(left), abs(right)) > 1 << 62:
                raise TemplateError("found a number that is too large")
        elif operator != "+":
            raise TemplateError(f"{operator} works on numbers only")
        elif isinstance(left, str) and isinstance(right, str):
            _bound(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: PYI063 -- as inherited
        owner = getattr(__obj, "__self__", None)
        if not isinstance(owner, (str, dict)) or __obj.__name__ not in expressions.ALLOWED_METHODS:
            raise TemplateError("only methods of text and mappings can be called")
        if __obj.__name__ == "replace" and isinstance(owner, str):
            return _replace(owner, *args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def _bound(length: int) -> None:
    if length > MAX_OUTPUT:
        raise TemplateError(f"renders to more than {MAX_OUTPUT} characters")


def _replace(text: str, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    _bound(len(text) + text.count(old) * max(0, len(new) - len(old)))
    return text.replace(old, new, -1 if count is None else count)


def _to_json(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    _bound(len(text))
    return text


def _only_text(value: object) -> object:
    """What `{{ … }}` may show: text and numbers, for `None` or `<map object>` is never what was meant."""
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
    for name in filters.keys() - expressions.ALLOWED_FILTERS:
        del filters[name]
    filters["tojson"] = _to_json
    filters["replace"] = _replace
    return environment


_ENVIRONMENT: Final = _environment()


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template. `uses` are the variables that it reads."""

    text: str
    uses: frozenset[str]
    compiled: jinja2.Template | None = field(compare=False)
    """None: the text is rendered as it is. Templates of the same text are equal."""

    def render(self, variables: Mapping[str, object]) -> str:
        """The text for `variables`. Raises TemplateError, whatever goes wrong in it."""
        if self.compiled is None:
            return self.text
        parts: list[str] = []
        length = 0
        try:
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
        """Whether a condition renders as true. Raises TemplateError where it renders as neither."""
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
    """Compile a template that may use `variables`, a device of which has `fields`.

    `attributes` are the names that its `attrs` may have; None where that cannot be told.

    Raises TemplateError for bad syntax, unknown names and what these templates must not do.
    """
    try:
        tree = _ENVIRONMENT.parse(text)
        found = expressions.problem(tree, variables, fields, attributes)
        if found is not None:
            raise TemplateError(found)
        uses = frozenset(meta.find_undeclared_variables(tree))
        if _is_constant(tree):
            return Template(_ENVIRONMENT.from_string(tree).render(), uses, None)
        return Template(text, uses, _ENVIRONMENT.from_string(tree))
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"not a template: {error.message}") from None
    except RecursionError:
        raise TemplateError("is nested too deeply") from None


def _is_constant(tree: nodes.Template) -> bool:
    return all(
        isinstance(node, (nodes.Output, nodes.TemplateData)) for node in tree.iter_child_nodes()
    ) and all(
        isinstance(part, nodes.TemplateData) for node in tree.find_all(nodes.Output) for part in node.nodes
    )
