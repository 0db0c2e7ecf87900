"""Queries of history and their results.

A moment is a range without length. Rows are sorted newest first by the earliest time at which they may have
begun, then by id: this order is stable while rows are added and deleted, so a cursor stays valid.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import Struct, field

from exporter.history.coverage import CoverageGap
from exporter.history.devices import DeviceAt
from exporter.history.record import HoldingRow

LIMIT: Final = 200
MAX_LIMIT: Final = 1000

SPANS: Final = 27
"""Classes of length: rows of class k lasted at most 2^k seconds, those of the last class any time.

A row overlaps a range if it begins before the range's end and ends after its beginning. One index cannot
answer both. With classes it can: of class k only rows that began within 2^k seconds before the range overlap.
"""


def span_of(seconds: float) -> int:
    """The class of a row that lasted at most `seconds`."""
    if seconds <= 1.0:
        return 0
    return min(SPANS - 1, math.ceil(math.log2(seconds)))


def reach(span: int) -> float:
    """The longest duration of a class, in seconds."""
    return math.inf if span >= SPANS - 1 else float(2**span)


_AFTER_ROWS: Final = -1.0


class Cursor(NamedTuple):
    """The last row of a page: the next rows are earlier, or have the same time and a lower id.

    The devices of a moment follow its rows: no row is before 1970.
    """

    low: float
    id: int

    @classmethod
    def of_devices(cls, number: int) -> "Cursor":
        """The cursor after all rows and `number` devices."""
        return cls(_AFTER_ROWS, number)

    @property
    def after_rows(self) -> bool:
        """Whether it is after all rows."""
        return self.low == _AFTER_ROWS

    @property
    def devices(self) -> int:
        """The number of devices before it."""
        return self.id if self.after_rows else 0


def write_cursor(cursor: Cursor) -> str:
    """A cursor as text, exact to the bit."""
    return f"{cursor.low.hex()}.{cursor.id}".replace("+", "_")


def read_cursor(text: str) -> Cursor:
    """The cursor of a text. Raises ValueError for any text that `write_cursor` does not return."""
    low, _, number = text.replace("_", "+").rpartition(".")
    cursor: Cursor | None = None
    if number.isascii() and number.isdigit() and len(number) <= 18:
        with suppress(ValueError, OverflowError):
            cursor = Cursor(float.fromhex(low), int(number))
    if cursor is None or not math.isfinite(cursor.low) or write_cursor(cursor) != text:
        raise ValueError(f"found {text!r}, expected what an earlier answer gave as next")
    return cursor


class HistoryQuery(Struct, frozen=True):
    """Filters: "" matches everything. Names are whole. `device` also matches the shares and slices of a
    physical device, and `resource` what the containers asked by. `driver` is the resource of claimed devices.
    A name with spelled-out control characters also matches its raw form.

    `parts`: a `resource`, `device`, or `pod` that is no whole name in history matches as people type it
    (exporter.mapping.names): a resource by the part after its slash; a device and a pod by a part of the
    name, case-insensitive.

    `since` and `until` are unix times, None for no limit; equal values query a moment.
    """

    resource: str = ""
    driver: str = ""
    device: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    uid: str = ""
    claim: str = ""
    parts: bool = False
    since: float | None = None
    until: float | None = None
    limit: int = LIMIT
    after: Cursor | None = None

    @property
    def devices_at(self) -> float | None:
        """The moment whose free devices match; None where only holdings do."""
        names = (self.driver, self.namespace, self.pod, self.container, self.uid, self.claim)
        return None if self.since != self.until or any(names) else self.since


MATCHED: Final = 20
"""Names of a NameMatch."""


class NameMatch(NamedTuple):
    """How history matched the name `given` in the field `field` of a query with `parts`.

    `whole`: it is a name in history. Otherwise it matched `number` names (None: many), and `names` are the
    first of them. `near` are similar names where it matched none.
    """

    field: str
    given: str
    whole: bool
    number: int | None = 1
    names: tuple[str, ...] = ()
    near: tuple[str, ...] = ()


class HistoryResult(Struct, frozen=True):
    """A result, consistent as of one moment. `matches` say how a query with `parts` was matched.

    Coverage reaches from `earliest` to `latest`, None without any; `unseen` are its gaps in the range of the
    query. `next` is the cursor of the next page. At a moment, `devices` are those that nobody held, after the
    last row, and `device_counts` counts all of them by state; `devices_recorded` says whether history has the
    devices of this time (None: not asked, or rows follow), `held_only` are the resources of which it has only
    holdings of this time. `resources` are all resources of history, and what else containers asked by.
    `kept_in` is file or memory; `trouble` says why history is not in its file, or why the file is behind.
    """

    rows: Sequence[HoldingRow]
    next: Cursor | None = None
    matches: Sequence[NameMatch] = ()
    earliest: float | None = None
    latest: float | None = None
    unseen: Sequence[CoverageGap] = ()
    resources: Sequence[str] = ()
    kept_in: str = "memory"
    trouble: str = ""
    devices: Sequence[DeviceAt] = ()
    held_only: Sequence[str] = ()
    device_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    devices_recorded: bool | None = None


_SPELLED: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([nrt]))")
_SHORT: Final = {"n": "\n", "r": "\r", "t": "\t"}


def spellings(shown: str) -> tuple[str, ...]:
    """The texts that are displayed as `shown` (runtime.text.visible): itself, and the text in which
    spelled-out characters are raw.
    """
    raw = _SPELLED.sub(_unspelled, shown)
    return (shown,) if raw == shown else (shown, raw)


def _unspelled(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is None:
        return _SHORT[match[4]]
    number = int(code, 16)
    return match[0] if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF else chr(number)
