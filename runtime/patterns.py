"""Regular expressions that users write, matched by RE2 in time that grows with the text alone.

Python's engine backtracks while it holds the interpreter's lock: `(a+)+b` on an unlucky name would stop the
process for years. RE2 has the syntax of Prometheus and Go: no lookaround, no references to groups. It is
imported (4 MiB) only where a user has an expression.
"""

import importlib
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from itertools import takewhile
from typing import Any, Final, Protocol

MAX_PATTERN: Final = 1024
MAX_TEXT: Final = 512
"""Characters of a text; a longer text matches nothing."""
_MAX_MEMORY: Final = 1 << 20
"""Bytes of a compiled expression. RE2 refuses one that needs more."""
_MAX_PREFIX: Final = 64


class Match(Protocol):
    """The match of a whole text."""

    def groupdict(self) -> dict[str, Any]:
        """The texts of the named groups; None for a group that took no part."""
        ...


class Pattern(Protocol):
    """A compiled expression, of RE2 or of Python's re."""

    @property
    def groupindex(self) -> Mapping[str, int]:
        """The named groups."""
        ...

    def fullmatch(self, string: str, /) -> Match | None:
        """Match a whole text."""
        ...


class UserPattern:
    """An expression of RE2 for texts of limited length; a dot matches line breaks too."""

    def __init__(self, pattern: str) -> None:
        re2 = _re2()
        options = re2.Options()
        options.max_mem, options.log_errors, options.dot_nl = _MAX_MEMORY, False, True
        self._regexp: Any = re2.compile(pattern, options)
        self.groupindex: Mapping[str, int] = self._regexp.groupindex

    def fullmatch(self, string: str, /) -> Match | None:
        """Match a whole text; None for a text that is too long or not Unicode."""
        if len(string) > MAX_TEXT:
            return None
        try:
            found: Match | None = self._regexp.fullmatch(string)
        except UnicodeEncodeError:  # a file name with bytes that are no UTF-8
            return None
        return found

    @cached_property
    def prefix(self) -> str:
        """Literal text with which every match begins, "" if there is none."""
        try:
            least, most = self._regexp.possiblematchrange(_MAX_PREFIX)
        except _re2().error:  # any text may match
            return ""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(least, most, strict=False))
        return bytes(byte for byte, _ in same).decode(errors="ignore")


@cache
def _re2() -> Any:
    return importlib.import_module("re2")


@lru_cache(maxsize=256)
def compiled(pattern: str) -> UserPattern:
    """The compiled expression.

    Raises ValueError with what is wrong and what is expected.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"expected a regular expression of at most {MAX_PATTERN} characters")
    try:
        return UserPattern(pattern)
    except _re2().error as error:
        problem = error.args[0].decode(errors="replace") if error.args else "invalid"
        raise ValueError(f"expected a regular expression in RE2's syntax: {problem}") from None
    except UnicodeEncodeError:
        raise ValueError("expected a regular expression of Unicode characters") from None


def pattern_problem(text: str) -> str | None:
    """Check a regular expression: what is wrong and what is expected, or None."""
    try:
        compiled(text)
    except ValueError as error:
        return str(error)
    return None


def fullmatch(pattern: str, text: str) -> Match | None:
    """Match a whole text with a valid pattern; None for a text that is too long."""
    return compiled(pattern).fullmatch(text)
