"""Templates of the configuration, and the compiler of those that only insert texts, as most do.

`plugin/config/jinja.py` compiles all others, and reports what is wrong with a template.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct

MAX_OUTPUT: Final = 128 * 1024 - 1
"""The longest output: the kernel accepts no longer argument or variable."""

DEVICE_FIELDS: Final = frozenset({"id", "name", "path", "attrs", "numa_nodes", "nodes"})
FOUND_FIELDS: Final = frozenset({"name", "path", "attrs", "nodes"})
"""The fields of a device that has no id yet."""


class TemplateError(ValueError):
    """A template cannot be compiled or rendered; the message says why."""


def check_length(length: int) -> None:
    """Raise TemplateError for an output of more than `MAX_OUTPUT` characters."""
    if length > MAX_OUTPUT:
        raise TemplateError(f"renders to more than {MAX_OUTPUT} characters")


class Template(Struct, frozen=True):
    """A compiled template. `uses`: its variables. Templates with equal text are equal.

    `fill` makes the text from variables; None for a constant text.
    """

    text: str
    uses: frozenset[str]
    fill: Callable[[Mapping[str, object]], str] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def render(self, variables: Mapping[str, object]) -> str:
        """The text for `variables`. Raises TemplateError for every failure."""
        return self.text if self.fill is None else self.fill(variables)

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


_TOKEN: Final = re.compile(
    r"""
    (?P<data> [^{]+ | \{ (?! [{%#] ) )
    | \{\{ \s* (?:
        (?P<name> resource | node | id | n )
        | device\. (?P<field> id | name | path )
        | device\.attrs\. (?P<attribute> [A-Za-z_]\w* )
        | ids \s* \| \s* join\( \s* (?P<quote> ['"] ) (?P<between> [^'"\\{}\n]* ) (?P=quote) \s* \)
    ) \s* \}\}
    """,
    re.ASCII | re.VERBOSE,
)
"""A part of a template that only inserts texts: a text, a variable, a text of `device`, or `ids | join('…')`.

Jinja2 reads each part in the same way. Where `{{`, `{%`, or `{#` begins anything else, nothing matches.
"""
_NEWLINE: Final = re.compile(r"\r\n?")

_Part = str | Callable[[Mapping[str, Any]], str]
"""A text, or what gets one from the variables."""


def plain_template(
    text: str, variables: frozenset[str], fields: frozenset[str], attributes: frozenset[str] | None = None
) -> Template | None:
    """A template that only inserts texts; None for a template that Jinja2 compiles or refuses.

    `variables` are the names that it may use, `fields` the fields of a `device`, `attributes` the names in
    its `attrs`; None: any name is possible.
    """
    source = _NEWLINE.sub("\n", text).removesuffix("\n")  # as Jinja2 does
    parts: list[_Part] = []
    uses: set[str] = set()
    at = 0
    while at < len(source):
        token = _TOKEN.match(source, at)
        if token is None:
            return None
        at = token.end()
        kind = token.lastgroup or ""
        value = token[kind]
        if kind == "data":
            parts.append(value)
            continue
        variable = value if kind == "name" else "ids" if kind == "between" else "device"
        if variable not in variables or not _is_known(kind, value, fields, attributes):
            return None
        uses.add(variable)
        parts.append(_insertion(kind, value))
    if not uses:
        return Template(source, frozenset())
    return Template(text, frozenset(uses), partial(_inserted, tuple(parts)))


def _is_known(kind: str, value: str, fields: frozenset[str], attributes: frozenset[str] | None) -> bool:
    match kind:
        case "field":
            return value in fields
        case "attribute":
            listed = attributes is None or value in attributes
            # To Jinja2 the name of a method is the method: device.attrs.items.
            return "attrs" in fields and listed and not hasattr(dict, value)
        case _:
            return True


def _insertion(kind: str, value: str) -> _Part:
    match kind:
        case "name":
            return lambda variables: str(variables[value])
        case "field":
            return lambda variables: getattr(variables["device"], value)
        case "attribute":
            return lambda variables: _attribute(variables["device"].attrs, value)
        case _:
            return lambda variables: value.join(variables["ids"])


def _attribute(attributes: Mapping[str, str], name: str) -> str:
    try:
        return attributes[name]
    except KeyError:
        raise TemplateError(f"'dict object' has no attribute {name!r}") from None


def _inserted(parts: tuple[_Part, ...], variables: Mapping[str, Any]) -> str:
    try:
        text = "".join([part if isinstance(part, str) else part(variables) for part in parts])
    except KeyError as error:
        raise TemplateError(f"{error.args[0]!r} is undefined") from None
    check_length(len(text))
    return text
