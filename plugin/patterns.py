"""Regular expressions of a configuration, restricted to forms whose matching time is bounded.

Python's engine backtracks while it holds the interpreter's lock: `(a+)+b` on an unlucky name would stop the
process for years. So expressions that can match a text in exponentially many ways are refused when they are
loaded, and texts are bounded.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

MAX_PATTERN: Final = 1024
MAX_TEXT: Final = 512
"""Characters of a text; a longer text matches nothing."""
MAX_AMBIGUOUS: Final = 3
"""Repeats with several possible ends. The time is at most the length of the text to this power."""
_MANY: Final = 16
"""Repeats of at most this count are cheap."""

_parser: Final[Any] = importlib.import_module("re._parser")
_ALL: Final = frozenset(range(257))
"""The characters of Latin-1, and 256 for all others."""
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
_ONE: Final = frozenset({"LITERAL", "NOT_LITERAL", "IN", "ANY"})
_CATEGORIES: Final = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}

_Item = tuple[Any, Any]


def pattern_problem(text: str) -> str | None:
    """Check a regular expression."""
    if len(text) > MAX_PATTERN:
        return f"expected a regular expression of at most {MAX_PATTERN} characters"
    try:
        re.compile(text)
        tree = _flat(_parser.parse(text))
        return next(_problems(tree), None)
    except (re.error, OverflowError) as error:
        return f"expected a regular expression: {error}"
    except RecursionError:
        return "expected a regular expression that is nested less deeply"


def fullmatch(pattern: str, text: str) -> re.Match[str] | None:
    """Match a whole text with a valid pattern; None for a text that is too long."""
    return compiled(pattern).fullmatch(text) if len(text) <= MAX_TEXT else None


@lru_cache(maxsize=256)
def prefix(pattern: str) -> str:
    """The literal text with which every match begins."""
    if compiled(pattern).flags & re.IGNORECASE or "(?" in pattern.replace("(?P<", "("):
        return ""
    start = ""
    for op, value in _flat(_parser.parse(pattern)):
        if str(op) == "LITERAL":
            start += chr(value)
        elif str(op) != "AT":
            break
    return start


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """The compiled expression."""
    return re.compile(pattern)


def _problems(tree: list[_Item]) -> Iterator[str]:
    if any(str(op).startswith("GROUPREF") for op, _ in _walk(tree)):
        yield "expected a regular expression without references to its own groups"
    for op, value in _walk(tree):
        if str(op) in _REPEATS and value[1] > _MANY and not _splits_uniquely(_flat(value[2])):
            yield "expected a regular expression without repeats in repeats, which may never end"
    ambiguous = _ambiguous(tree, [])
    if ambiguous > MAX_AMBIGUOUS:
        yield (
            f"expected a regular expression with at most {MAX_AMBIGUOUS} repeats that the next character "
            f"does not end, found {ambiguous}"
        )


def _walk(tree: Sequence[_Item]) -> Iterator[_Item]:
    for item in tree:
        yield item
        for inner in _inner(item):
            yield from _walk(inner)


def _inner(item: _Item) -> Iterator[list[_Item]]:
    """The sequences inside an item."""
    op, value = str(item[0]), item[1]
    if op in _REPEATS or op == "POSSESSIVE_REPEAT":
        yield _flat(value[2])
    elif op == "BRANCH":
        yield from (_flat(branch) for branch in value[1])
    elif op in {"ASSERT", "ASSERT_NOT"}:
        yield _flat(value[1])
    elif op == "ATOMIC_GROUP":
        yield _flat(value)
    elif op == "GROUPREF_EXISTS":
        yield from (_flat(part) for part in value[1:] if part is not None)


def _flat(tree: Any) -> list[_Item]:
    """A sequence with its groups replaced by their contents: groups do not affect matching."""
    items: list[_Item] = []
    for op, value in tree:
        if str(op) == "SUBPATTERN":
            items += _flat(value[3])
        else:
            items.append((op, value))
    return items


def _splits_uniquely(body: list[_Item]) -> bool:
    """Whether a text can be split into repeats of `body` in only one way; False if in doubt.

    It can if all matches of the body have the same length and its alternatives begin differently, or if the
    body begins with a character that occurs nowhere else in it.
    """
    if len(body) == 1 and str(body[0][0]) == "BRANCH":
        branches = [_flat(branch) for branch in body[0][1][1]]
        firsts = [_first(branch) for branch in branches]
        apart = sum(len(first) for first in firsts) == len(frozenset().union(*firsts))
        return apart and all(firsts) and all(_fixed(branch) for branch in branches)
    if _fixed(body):
        return True
    first = _chars(body[0]) if body else frozenset()
    if not first or any(first & _chars(item) for item in _walk(body[1:])):
        return False
    return all(_matches_uniquely(body[index:]) for index in range(len(body)))


def _matches_uniquely(items: list[_Item]) -> bool:
    """Whether the first of `items` has only one possible match in every text."""
    op, value = str(items[0][0]), items[0][1]
    if op not in _REPEATS:
        return op in _ONE or op == "AT"
    if not _fixed(_flat(value[2])):
        return False
    own = _chars_of(items[0])
    for item in items[1:]:
        if value[0] != value[1] and own & _chars_of(item):
            return False
        if str(item[0]) not in _REPEATS or item[1][0] > 0:
            break
    return True


def _fixed(body: Sequence[_Item]) -> bool:
    return all(str(op) in _ONE or str(op) == "AT" for op, _ in body) or all(
        str(op) in _ONE or (str(op) in _REPEATS and value[0] == value[1] and _fixed(_flat(value[2])))
        for op, value in body
    )


def _first(body: Sequence[_Item]) -> frozenset[int]:
    """The possible first characters of a sequence; empty if its first item does not decide."""
    if not body:
        return frozenset()
    op, value = body[0]
    if str(op) in _ONE:
        return _chars(body[0])
    if str(op) in _REPEATS and value[0] >= 1:
        return _first(_flat(value[2]))
    return frozenset()


def _ambiguous(tree: list[_Item], after: list[_Item]) -> int:
    """Count the repeats of `tree` that the next item does not end, multiplied by their own repeats."""
    count = 0
    for index, item in enumerate(tree):
        op, value = str(item[0]), item[1]
        rest = [i for i in [*tree[index + 1 :], *after] if str(i[0]) != "AT"]
        again = value[1] if op in _REPEATS and value[1] <= _MANY else 1
        for inner in _inner(item):
            if op not in {"ATOMIC_GROUP", "POSSESSIVE_REPEAT"}:
                count += again * _ambiguous(inner, [*inner, *rest] if op in _REPEATS else rest)
        if op in _REPEATS and value[0] != value[1] > 1:
            following = _first(rest)
            count += bool(rest) and (not following or bool(_chars_of(item) & following))
    return count


def _chars_of(item: _Item) -> frozenset[int]:
    """All characters that a match of an item can contain."""
    return frozenset().union(*(_chars(inner) for inner in _walk([item])))


def _chars(item: _Item) -> frozenset[int]:
    """The characters that a single-character item matches; empty for other items."""
    op, value = str(item[0]), item[1]
    match op:
        case "ANY":
            return _ALL
        case "LITERAL":
            return frozenset({min(value, 256)})
        case "NOT_LITERAL":
            return _ALL - {value} if value < 256 else _ALL
        case "IN":
            taken = frozenset().union(*(_member(str(kind), part) for kind, part in value))
            return (_ALL - taken) | {256} if str(value[0][0]) == "NEGATE" else taken
        case _:
            return frozenset()


def _member(kind: str, part: Any) -> frozenset[int]:
    match kind:
        case "LITERAL":
            return frozenset({min(part, 256)})
        case "RANGE":
            return frozenset(min(code, 256) for code in range(part[0], min(part[1], 256) + 1)) | (
                {256} if part[1] >= 256 else frozenset()
            )
        case "CATEGORY":
            name = str(part).removeprefix("CATEGORY_").removeprefix("UNI_")
            base = _CATEGORIES.get(name.removeprefix("NOT_"))
            if base is None:
                return _ALL
            inside = frozenset(code for code in range(256) if re.fullmatch(base, chr(code)))
            return (_ALL - inside if name.startswith("NOT_") else inside) | {256}
        case _:
            return frozenset()
