"""Regular expressions of a configuration, restricted to forms whose matching time is bounded.

Python's engine backtracks while it holds the interpreter's lock: `(a+)+b` on an unlucky name would stop the
process for years. So an expression is refused when it is loaded if the engine may try one text in too many
ways, and texts are bounded: the time of the others grows with `MAX_WAYS` times the length of the text.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache, reduce
from operator import or_
from typing import Any, Final

MAX_PATTERN: Final = 1024
MAX_TEXT: Final = 512
"""Characters of a text; a longer text matches nothing."""
MAX_WAYS: Final = 2048
"""Ways of one text. One repeat such as the `.*` of `.*-x` has `MAX_TEXT`; two such repeats have too many."""

_parser: Final[Any] = importlib.import_module("re._parser")
_IGNORES_CASE: Final = re.compile(r"\(\?[a-z]*i", re.ASCII)
"""`(?i)` or `(?i:…)`. A group that it mistakes for one is only checked more strictly."""
_OTHERS: Final = 1 << 256
_ALL: Final = (1 << 257) - 1
"""Sets of characters are bits: one for each of Latin-1, and one for all others."""
_END: Final = 1 << 257
"""The end of the text, which may follow as a character does."""
_NOTHING: Final = 1 << 258
"""The sequence can match nothing."""
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_ASSERTIONS: Final = frozenset({"ASSERT", "ASSERT_NOT"})
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
        return next(_problems(tree, folded=_IGNORES_CASE.search(text) is not None), None)
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


def _problems(tree: list[_Item], *, folded: bool) -> Iterator[str]:
    if any(str(op).startswith("GROUPREF") for op, _ in _walk(tree)):
        yield "expected a regular expression without references to its own groups"
    elif _Ways(folded=folded).of(tree, _END) > MAX_WAYS:
        yield (
            "expected a regular expression whose next character decides between its repeats and alternatives "
            f"([^-]*- rather than .*-): this one may match a text in more than {MAX_WAYS} ways, and never end"
        )


def _walk(tree: Sequence[_Item]) -> Iterator[_Item]:
    for item in tree:
        yield item
        for inner in _inner(item):
            yield from _walk(inner)


def _inner(item: _Item) -> list[list[_Item]]:
    """The sequences inside an item."""
    op, value = str(item[0]), item[1]
    if op in _REPEATS:
        return [_flat(value[2])]
    if op == "BRANCH":
        return [_flat(branch) for branch in value[1]]
    if op in _ASSERTIONS:
        return [_flat(value[1])]
    return [_flat(value)] if op == "ATOMIC_GROUP" else []


def _flat(tree: Any) -> list[_Item]:
    """A sequence with its groups replaced by their contents: groups do not affect matching."""
    items: list[_Item] = []
    for op, value in tree:
        if str(op) == "SUBPATTERN":
            items += _flat(value[3])
        else:
            items.append((op, value))
    return items


class _Ways:
    """Counts the ways in which a backtracking engine may try one text.

    A choice (repeat or go on, which alternative) has one way if the next character decides: a wrong turn then
    ends at that character. Other choices have a way for each outcome, and ways multiply. `follow` is the set
    of characters that may come after an item; all sets and counts are upper bounds.
    """

    def __init__(self, *, folded: bool) -> None:
        """`folded`: upper and lower case are the same."""
        self._folded = folded

    def of(self, items: Sequence[_Item], follow: int) -> int:
        """The ways of a sequence, cut just above `MAX_WAYS`."""
        ways = 1
        for item in reversed(items):
            ways = min(ways * self._of_item(item, follow), MAX_WAYS + 1)
            follow = self._starts((item,), follow)
        return ways

    def _of_item(self, item: _Item, follow: int) -> int:
        op, inner = str(item[0]), _inner(item)
        if op == "BRANCH":
            starts = [self._starts(branch, follow) for branch in inner]
            ways = [self.of(branch, follow) for branch in inner]
            return max(
                sum(way for way, start in zip(ways, starts, strict=True) if start >> char & 1)
                for char in range(_NOTHING.bit_length())
            )
        if op in _ASSERTIONS:  # in a repeat, it reads the same text again and again
            long = any(str(op) in _REPEATS and value[1] > 1 for op, value in _walk(inner[0]))
            return max(self.of(inner[0], _END), MAX_TEXT if long else 1)
        if op in _REPEATS:
            return self._of_repeat(item[1][0], min(item[1][1], MAX_TEXT), inner[0], follow)
        return self.of(inner[0], _END) if op == "ATOMIC_GROUP" else 1

    def _of_repeat(self, least: int, most: int, body: list[_Item], follow: int) -> int:
        again = self._starts(body, _NOTHING)
        ways = self.of(body, (again | follow) & ~_NOTHING if most > 1 else follow)
        if ways > 1:
            ways = ways**most if most <= MAX_WAYS.bit_length() else MAX_WAYS + 1
        if again & _NOTHING:  # as often as it may, without using up any text
            return ways * max(most, least)
        return ways if least >= most or not again & follow else ways * (most - least + 1)

    def _starts(self, items: Sequence[_Item], follow: int) -> int:
        """The characters with which a text of `items`, and of what follows them, can begin."""
        for item in reversed(items):
            op = str(item[0])
            if op in _ONE:
                follow = _chars(item)
                if self._folded:
                    follow = _both_cases(follow)
            elif op == "FAILURE":
                follow = 0
            elif op in _REPEATS:
                follow = self._starts(_inner(item)[0], follow) | (follow if item[1][0] == 0 else 0)
            elif op in {"BRANCH", "ATOMIC_GROUP"}:
                follow = _union(self._starts(inner, follow) for inner in _inner(item))
        return follow


def _union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def _both_cases(chars: int) -> int:
    both = (f"{chr(code).lower()}{chr(code).upper()}" for code in range(256) if chars >> code & 1)
    return chars | _OTHERS | _union(1 << min(ord(char), 256) for char in "".join(both))


def _chars(item: _Item) -> int:
    """The characters that a single-character item matches."""
    op, value = str(item[0]), item[1]
    match op:
        case "ANY":
            return _ALL
        case "LITERAL":
            return 1 << int(min(value, 256))
        case "NOT_LITERAL":
            return _ALL & ~(1 << value) if value < 256 else _ALL
        case _:
            taken = _union(_member(str(kind), part) for kind, part in value)
            return _ALL & ~taken | _OTHERS if str(value[0][0]) == "NEGATE" else taken


def _member(kind: str, part: Any) -> int:
    match kind:
        case "LITERAL":
            return 1 << int(min(part, 256))
        case "RANGE":
            return _union(1 << code for code in range(part[0], min(part[1], 256) + 1)) | (
                _OTHERS if part[1] >= 256 else 0
            )
        case "CATEGORY":
            name = str(part).removeprefix("CATEGORY_").removeprefix("UNI_")
            return _category(name)
        case _:
            return 0


@cache
def _category(name: str) -> int:
    base = _CATEGORIES.get(name.removeprefix("NOT_"))
    if base is None:
        return _ALL
    inside = _union(1 << code for code in range(256) if re.fullmatch(base, chr(code)))
    return (_ALL & ~inside if name.startswith("NOT_") else inside) | _OTHERS
