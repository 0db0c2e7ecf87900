"""Regular expressions of a configuration: compiled, and held to forms that end soon.

Python's engine backtracks, in one piece and with the interpreter's lock held: an expression such as
`(a+)+b` on the wrong name would stop the whole process for years. So where one piece of text could be
read in exponentially many ways, the expression is refused when it is loaded, and texts are bounded.
"""

import importlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

MAX_PATTERN: Final = 1024
MAX_TEXT: Final = 512
"""Characters of a text that is matched at all; a longer one matches nothing."""
MAX_AMBIGUOUS: Final = 3
"""Repeats that may end at several places; the time is the text's length to this power at most."""
_MANY: Final = 16
"""Repeats that end by then cost little, however often they are tried."""

_parser: Final[Any] = importlib.import_module("re._parser")
_ALL: Final = frozenset(range(257))
"""Latin-1's characters, and 256 for all others."""
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
_ONE: Final = frozenset({"LITERAL", "NOT_LITERAL", "IN", "ANY"})
_CATEGORIES: Final = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}

_Item = tuple[Any, Any]


def pattern_problem(text: str) -> str | None:
    """What makes `text` unfit as a regular expression, in words; None where it is fit."""
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
    """The match of a whole text, None for one that is too long. `pattern` has no problem."""
    return compiled(pattern).fullmatch(text) if len(text) <= MAX_TEXT else None


@lru_cache(maxsize=256)
def prefix(pattern: str) -> str:
    """What every text that matches begins with, as far as it is plain to see."""
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
        if str(op) in _REPEATS and value[1] > _MANY and not _clear(_flat(value[2])):
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
    """The sequences within an item."""
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
    """A sequence with its groups dissolved, for a group changes nothing in how a text is read."""
    items: list[_Item] = []
    for op, value in tree:
        if str(op) == "SUBPATTERN":
            items += _flat(value[3])
        else:
            items.append((op, value))
    return items


def _clear(body: list[_Item]) -> bool:
    """Whether a text can be cut into repeats of `body` in one way only, as far as can be told.

    Either every reading of the body is equally long, and its alternatives begin differently; or it
    begins with a character that can be nowhere else in it.
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
    return all(_settled(body[index:]) for index in range(len(body)))


def _settled(items: list[_Item]) -> bool:
    """Whether the first of `items` takes what it takes in one way only, whatever the text."""
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
    """What a sequence must begin with; nothing where that cannot be told from its first item."""
    if not body:
        return frozenset()
    op, value = body[0]
    if str(op) in _ONE:
        return _chars(body[0])
    if str(op) in _REPEATS and value[0] >= 1:
        return _first(_flat(value[2]))
    return frozenset()


def _ambiguous(tree: list[_Item], after: list[_Item]) -> int:
    """How many repeats of `tree` are not ended by what comes next, each as often as it is itself repeated."""
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
    """All characters that may be in what an item takes."""
    return frozenset().union(*(_chars(inner) for inner in _walk([item])))


def _chars(item: _Item) -> frozenset[int]:
    """The characters that an item for one character takes; nothing for any other item."""
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
