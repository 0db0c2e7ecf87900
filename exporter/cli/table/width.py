"""How many columns of a terminal a text takes. Pure.

By Unicode's East Asian Width (UAX 11): wide and fullwidth characters take two, marks none. What hides or
turns text (controls, bidirectional marks) is spelled out before it comes here.
"""

import unicodedata
from functools import lru_cache
from typing import Final

_MARKS: Final = frozenset({"Mn", "Me"})
_STACKED: Final = 3
"""Marks upon one character that are shown as they are; more of them reach into other lines."""
_LEFT_TO_RIGHT: Final = "\u200e"
_RIGHT_TO_LEFT: Final = frozenset({"R", "AL", "AN"})


def width(text: str) -> int:
    """Columns that `text` takes."""
    return len(text) if text.isascii() else _width(text)


@lru_cache(maxsize=1024)
def _width(text: str) -> int:
    return sum(map(character_width, text))


def character_width(character: str) -> int:
    """Columns of one character: 0, 1 or 2."""
    if unicodedata.category(character) in _MARKS or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def tame(text: str) -> str:
    """`text` with what is stacked too high, or begins with a mark, spelled out."""
    if text.isascii():
        return text
    found: list[str] = []
    stacked = _STACKED
    for character in text:
        if unicodedata.category(character) not in _MARKS:
            stacked = 0
            found.append(character)
            continue
        stacked += 1
        code = ord(character)
        known = f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
        found.append(character if stacked <= _STACKED else known)
    return "".join(found)


def closed(text: str) -> str:
    """`text` for a line of a terminal: what is written from right to left ends here, and does not turn the
    columns that follow around.
    """
    if text.isascii() or not any(unicodedata.bidirectional(c) in _RIGHT_TO_LEFT for c in text):
        return text
    return f"{_LEFT_TO_RIGHT}{text}{_LEFT_TO_RIGHT}"


def head(text: str, limit: int) -> str:
    """As much of the beginning as `limit` columns hold."""
    if text.isascii():
        return text[:limit]
    taken = 0
    for at, character in enumerate(text):
        taken += character_width(character)
        if taken > limit:
            return text[:at]
    return text


def tail(text: str, limit: int) -> str:
    """As much of the end as `limit` columns hold; it does not begin with a mark."""
    if text.isascii():
        return text[max(0, len(text) - limit) :]
    taken, begin = 0, len(text)
    for at in range(len(text) - 1, -1, -1):
        columns = character_width(text[at])
        if taken + columns > limit:
            break
        taken += columns
        if columns:
            begin = at
    return text[begin:]


def padded(text: str, columns: int) -> str:
    """`text` with blanks behind it."""
    return text + " " * max(0, columns - width(text))
