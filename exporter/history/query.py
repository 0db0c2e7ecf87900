"""What history can be asked, and the shapes in which it answers.

A point in time is a range of no length. Rows come newest first by the earliest time at which they may have
begun, then by number: an order that does not change while rows come and go, so that a cursor stays valid.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from exporter.history.coverage import CoverageGap
from exporter.history.record import HoldingRow

LIMIT: Final = 200
MAX_LIMIT: Final = 1000

SPANS: Final = 27
"""Classes of length: rows of class k lasted at most 2^k seconds, the last class any length.

A row overlaps a range if it begins before the range's end and ends after its beginning, and no index
answers both. By class it does: of class k only rows that began within 2^k seconds before the range count.
"""


def span_of(seconds: float) -> int:
    """The class of a row that lasted at most so long."""
    if seconds <= 1.0:
        return 0
    return min(SPANS - 1, math.ceil(math.log2(seconds)))


def reach(span: int) -> float:
    """How long rows of a class may last, in seconds."""
    return math.inf if span >= SPANS - 1 else float(2**span)


class Cursor(NamedTuple):
    """The last row of a page: what follows is earlier, or of the same time and of a lower number."""

    low: float
    id: int


def write_cursor(cursor: Cursor) -> str:
    """A cursor as text, exact to the bit."""
    return f"{cursor.low.hex()}.{cursor.id}".replace("+", "_")


def read_cursor(text: str) -> Cursor:
    """The cursor of a text. Raises ValueError for any other text, also for one that means the same."""
    low, _, number = text.replace("_", "+").rpartition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise ValueError(f"found {text!r}, expected what an earlier answer gave as next")
    try:
        at = float.fromhex(low)
    except OverflowError:
        at = math.inf
    if not math.isfinite(at):
        raise ValueError(f"found {text!r}, expected what an earlier answer gave as next")
    cursor = Cursor(at, int(number))
    if write_cursor(cursor) != text:
        raise ValueError(f"found {text!r}, expected what an earlier answer gave as next")
    return cursor


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Which rows: "" is any. Names are whole; `device` finds the shares and slices of a physical device too.

    `since` and `until` are unix times, None for no limit; the same for both asks for that moment. For
    what is not a name any more when it is shown, both spellings are found.
    """

    resource: str = ""
    driver: str = ""
    device: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    uid: str = ""
    since: float | None = None
    until: float | None = None
    limit: int = LIMIT
    after: Cursor | None = None


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """An answer. Everything in it is written where it is kept, and so of one moment.

    `earliest` is since when it is known who held what, `latest` until when, None for not at all; `unseen`
    are the times of the question at which nobody looked. `next` continues the answer. `resources` are all
    that history knows. `kept_in` is file or memory; `trouble` says why it is not the file that it should
    be, or why that is behind.
    """

    rows: Sequence[HoldingRow]
    next: Cursor | None = None
    earliest: float | None = None
    latest: float | None = None
    unseen: Sequence[CoverageGap] = ()
    resources: Sequence[str] = ()
    kept_in: str = "memory"
    trouble: str = ""


_SPELLED: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([nrt]))")
_SHORT: Final = {"n": "\n", "r": "\r", "t": "\t"}


def spellings(shown: str) -> tuple[str, ...]:
    """The texts that look like `shown` (runtime.text.visible): itself, and what it stands for where hostile
    characters are spelled out in it.
    """
    raw = _SPELLED.sub(_unspelled, shown)
    return (shown,) if raw == shown else (shown, raw)


def _unspelled(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is None:
        return _SHORT[match[4]]
    number = int(code, 16)
    return match[0] if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF else chr(number)
