"""PromQL as far as it is needed: matchers read from a command line and written into a query. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from runtime.text import visible

_EXPECTED: Final = """expected matchers such as '{cluster="a", node=~"gpu-.*"}'"""
_LIMIT: Final = 4096

_NAME: Final = r"[a-zA-Z_][a-zA-Z0-9_]*"
_MATCHER: Final = re.compile(
    rf"""\s*(?P<name>{_NAME})\s*(?P<operator>=~|!~|!=|=)\s*"""
    r"""(?:"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)')\s*"""
)
_ESCAPED: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SHORT: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
}
_SPECIAL: Final = re.compile(r"[.+*?()|\[\]{}^$\\]")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label. `operator` is =, !=, =~ or !~."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f'{self.label}{self.operator}"{escaped(self.value)}"'


def escaped(value: str) -> str:
    """A text between double quotes (Go's string literals, as PromQL has them)."""
    found = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return "".join(c if c.isprintable() or c == " " else _numbered(c) for c in found)


def _numbered(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def literally(value: str) -> str:
    """A text as a regular expression that matches nothing else (RE2)."""
    return _SPECIAL.sub(r"\\\g<0>", value)


def one_of(label: str, values: Iterable[str]) -> Matcher:
    """That a label has one of these values."""
    known = sorted(set(values))
    if len(known) == 1:
        return Matcher(label, "=", known[0])
    return Matcher(label, "=~", "|".join(map(literally, known)))


def selector(name: str, matchers: Iterable[Matcher] = ()) -> str:
    """The series of one family."""
    return f"{name}{{{','.join(map(str, matchers))}}}"


def any_of(names: Iterable[str], matchers: Iterable[Matcher] = ()) -> str:
    """The series of several families, of one moment each."""
    return f"{{{','.join(map(str, (one_of('__name__', names), *matchers)))}}}"


def parse_matchers(text: str) -> tuple[Matcher, ...]:
    """The matchers of `{a="b", c=~"d"}`; the braces may be left out.

    They are read here, and not only passed on, so that nothing else than matchers becomes part of a query.
    Raises ValueError.
    """
    inner = text.strip()
    if len(inner) > _LIMIT:
        raise ValueError(f"found {len(inner)} characters, expected at most {_LIMIT}")
    if inner.startswith("{"):
        if not inner.endswith("}"):
            raise ValueError(f"found {visible(text)!r}, {_EXPECTED}")
        inner = inner[1:-1]
    found: list[Matcher] = []
    at = 0
    while at < len(inner.rstrip()):
        match = _MATCHER.match(inner, at)
        if match is None:
            raise ValueError(f"found {visible(inner[at:].strip(), 80)!r}, {_EXPECTED}")
        quoted = match["double"] if match["double"] is not None else match["single"]
        if match["name"] == "__name__":
            raise ValueError("found __name__, expected labels: what is asked for is devicelens' own")
        found.append(Matcher(match["name"], match["operator"], _unescaped(quoted)))
        at = match.end()
        if at < len(inner):
            if inner[at] != ",":
                raise ValueError(f"found {visible(inner[at:].strip(), 80)!r}, {_EXPECTED}")
            at += 1
    if not found:
        raise ValueError(f"found {visible(text)!r}, {_EXPECTED}")
    return tuple(found)


def _unescaped(quoted: str) -> str:
    return _ESCAPED.sub(_character, quoted)


def _character(match: re.Match[str]) -> str:
    code = match[1]
    if code in _SHORT:
        return _SHORT[code]
    if len(code) == 1:
        raise ValueError(f"found \\{code} within quotes, which is no escape: a backslash itself is \\\\")
    number = int(code[1:], 16)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise ValueError(f"found \\{code} within quotes, which is no character")
    return chr(number)
