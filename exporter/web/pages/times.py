"""Times and ages on a page, and the start and end of a holding in words. Pure.

Between two changes of the mapping only ages change. So a page is rendered with a placeholder for each age,
kept, and filled for the second in which it is sent. A placeholder is marked by a control character, which no
text from outside contains by then (exporter.views.wording.spelled).
"""

import re
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from exporter.history.coverage import GapReason
from exporter.history.record import AT_ONCE_WITHIN, Bound, Certainty, HoldingRow
from exporter.views.wording import clock_time, lasting, rfc3339

NOW: Final = "\x02now\x02"
"""The placeholder for the current unix time in seconds."""
_PLACE: Final = re.compile(rb"\x02(now|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\x02")
_DAY: Final = 86400.0
_UTC: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} UTC")

REASONS: Final = {
    GapReason.DOWN: "the exporter was not running",
    GapReason.SILENT: "the kubelet did not answer",
    GapReason.PAUSED: "the exporter was suspended or had no CPU time",
    GapReason.CLOCK: "the clock was set",
    GapReason.LOST: "observations could not be written",
    GapReason.BEFORE: "the record begins later",
    GapReason.LATER: "it is later than the last refresh",
}
"""Why there is a gap in observation."""
_WHY: Final = {
    Certainty.AT_ONCE: "",
    Certainty.BETWEEN_POLLS: "between two polls",
    Certainty.WHILE_SILENT: "the kubelet did not answer",
    Certainty.WHILE_DOWN: "the exporter was down",
    Certainty.HELD_ALREADY: "already held at the first refresh",
    Certainty.IN_DOUBT: "not listed since the exporter started, and possibly still held",
}


class Stamp(Struct, frozen=True):
    """A time: RFC 3339, for the clock (UTC), and its age. `exact` false: then or earlier. `seconds`: the
    clock always has seconds.
    """

    iso: str
    clock: str
    ago: str
    exact: bool = True
    seconds: bool = False


class HoldingEnd(Struct, frozen=True):
    """The start or the end of a holding: `word` before the time ("" for an exact time), the time `at`, the
    time `until` where it is a span, and `why` it is not exact.
    """

    word: str
    at: Stamp | None
    until: Stamp | None = None
    why: str = ""

    def __str__(self) -> str:
        """`22:41:03`, `between 22:41:03 and 22:41:08 (between two polls)`, `before 22:41:03 (…)`."""
        if self.at is None:
            return "at an unknown time"
        when = f"{self.word} {self.at.clock}".strip()
        if self.until is not None:
            when = f"between {self.at.clock} and {self.until.clock}"
        return f"{when} ({self.why})" if self.why else when


def stamp(at: float, now: float, *, exact: bool = True, seconds: bool = True) -> Stamp:
    """Unix time `at` on a page of `now`, with a placeholder for its age. Valid for the day of `now`."""
    clock = clock_time(at, now)
    if seconds and clock.count(":") < 2:
        clock += f":{datetime.fromtimestamp(at, UTC):%S}"
    return Stamp(rfc3339(at), clock, f"\x02{at!r}\x02", exact, seconds)


def with_times(words: str, now: float) -> tuple[str | Stamp, ...]:
    """`words` in pieces, with a Stamp for each time in the form of runtime.text.utc."""
    found: list[str | Stamp] = []
    begins = 0
    for time in _UTC.finditer(words):
        try:
            at = datetime.strptime(time[0], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
        found += [words[begins : time.start()], stamp(at, now)]
        begins = time.end()
    return *found, words[begins:]


def optional(at: float | None, now: float, *, seconds: bool = True) -> Stamp | None:
    """As `stamp`; None for None."""
    return None if at is None else stamp(at, now, seconds=seconds)


def day(now: float) -> int:
    """The day (UTC) for which stamps of `now` are valid."""
    return int(now // _DAY)


def filled(page: bytes, now: float) -> bytes:
    """`page` with every placeholder filled for unix time `now`."""
    present = repr(round(now, 3)).encode()

    def fill(place: re.Match[bytes]) -> bytes:
        at = place[1]
        return present if at == b"now" else lasting(now - float(at)).encode()

    return _PLACE.sub(fill, page)


def began(row: HoldingRow, now: float) -> HoldingEnd:
    """When a holding began."""
    return _end(row.start, now)


def ended(row: HoldingRow, now: float) -> HoldingEnd | None:
    """When a holding ended; None while it lasts."""
    if row.missed is not None:
        return HoldingEnd("last seen", optional(row.missed.not_before, now), None, _WHY[Certainty.IN_DOUBT])
    return None if row.end is None else _end(row.end, now)


def _end(bound: Bound, now: float) -> HoldingEnd:
    first, last = bound.not_before, bound.not_after
    why = _WHY[bound.certainty]
    if first is None or last is None:
        known = first if last is None else last
        return HoldingEnd("before" if first is None else "after", optional(known, now), None, why)
    if last - first <= AT_ONCE_WITHIN:
        # Exact enough for one time; only a gap in observation still needs its reason.
        return HoldingEnd(
            "", stamp(last, now), None, "" if bound.certainty is Certainty.BETWEEN_POLLS else why
        )
    return HoldingEnd("", stamp(first, now), stamp(last, now), why)


def lasted(row: HoldingRow, now: float) -> str:
    """How long a holding lasted: `10 min`, `4 s to 14 s`, or `at least 10 min`."""
    start, end = row.start, row.end or row.missed
    first = start.not_after if start.not_after is not None else start.not_before
    last = now if end is None else end.not_before if end.not_before is not None else end.not_after
    if first is None or last is None:
        return ""
    least = lasting(last - first)
    latest = now if end is None else end.not_after
    if start.not_before is None or latest is None:
        return f"at least {least}"
    most = lasting(latest - start.not_before)
    if (latest - start.not_before) - (last - first) <= 2 * AT_ONCE_WITHIN and last > first:
        return least  # both ends are exact
    if last <= first:
        return f"at most {most}"
    return least if least == most else f"{least} to {most}"
