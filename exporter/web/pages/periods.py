"""When a holding began and ended, and when nobody looked, as a person reads it. Pure.

An end of a holding is a time that was seen at once, a span between two looks, or something that is not
known. Each is told as it is: nothing is made exact by being shown.

Moments on a page, and pages whose ages are filled in when they are sent. Pure.

Between two changes of the mapping nothing on a page changes but how long ago things were. So a page is
rendered with a place for each age and kept, and the ages are put in for the second in which it is sent. A
place is marked by a control character, which no text from outside has by the time it is in a page
(exporter.views.wording.spelled).
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from exporter.history.coverage import CoverageGap, GapReason
from exporter.history.record import AT_ONCE_WITHIN, Bound, Certainty, HoldingRow
from exporter.views.wording import clock_time, lasting, rfc3339


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment: for a machine, to the second for the clock (UTC), and how long ago."""

    iso: str
    clock: str
    ago: str


@dataclass(frozen=True, slots=True)
class End:
    """One end of a holding: `word` before the time ("" if it is one time), the time, and where it is a span
    the time until which it may have been; `why` it is not known better, "" where it was seen.
    """

    word: str
    at: Stamp | None
    until: Stamp | None = None
    why: str = ""

    @property
    def sure(self) -> bool:
        """Whether it is known to within a second."""
        return not self.word and self.until is None and self.at is not None


@dataclass(frozen=True, slots=True)
class Silence:
    """A time at which nobody looked; None is without end."""

    since: Stamp | None
    until: Stamp | None
    why: str
    lasted: str


_WHY: Final = {
    Certainty.AT_ONCE: "",
    Certainty.BETWEEN_POLLS: "between two looks",
    Certainty.WHILE_SILENT: "the kubelet did not answer",
    Certainty.WHILE_DOWN: "the exporter was down",
    Certainty.HELD_ALREADY: "it was held already at the first look",
    Certainty.IN_DOUBT: "not seen since the exporter started, and not yet sure to be gone",
}

REASONS: Final = {
    GapReason.DOWN: "the exporter was down",
    GapReason.SILENT: "the kubelet did not answer",
    GapReason.PAUSED: "the exporter did not get to look: the machine slept, or had no time",
    GapReason.CLOCK: "the clock was set",
    GapReason.LOST: "what was seen could not be written",
    GapReason.BEFORE: "history does not go back so far",
    GapReason.LATER: "it is later than the last look",
}
"""Why nobody looked, in words."""


def stamp(at: float, now: float) -> Stamp:
    """Unix time `at`, seen at `now`, to the second whatever day it is of."""
    shown = clock_time(at, now)
    if shown.count(":") < 2:
        shown += f":{datetime.fromtimestamp(at, UTC):%S}"
    return Stamp(rfc3339(at), shown, lasting(now - at))


def optional(at: float | None, now: float) -> Stamp | None:
    """The same of what may not be known."""
    return None if at is None else stamp(at, now)


def began(row: HoldingRow, now: float) -> End:
    """When a holding began."""
    return _bound(row.start, now)


def ended(row: HoldingRow, now: float) -> End | None:
    """When it ended; None while it is held."""
    if row.missed is not None:
        return End("last seen", optional(row.missed.not_before, now), None, _WHY[Certainty.IN_DOUBT])
    return None if row.end is None else _bound(row.end, now)


def _bound(bound: Bound, now: float) -> End:
    first, last = bound.not_before, bound.not_after
    why = _WHY[bound.certainty]
    if first is None or last is None:
        known = first if last is None else last
        return End("before" if first is None else "after", optional(known, now), None, why)
    if last - first <= AT_ONCE_WITHIN:
        # Narrow enough to be one time; how it came to be known still counts where nobody was looking.
        return End("", stamp(last, now), None, "" if bound.certainty is Certainty.BETWEEN_POLLS else why)
    return End("", stamp(first, now), stamp(last, now), why)


def in_words(end: End) -> str:
    """`22:41:03`, `between 22:41:03 and 22:41:08 (between two looks)`, `before 22:41:03 (…)`."""
    if end.at is None:
        return "at an unknown time"
    when = f"{end.word} {end.at.clock}".strip()
    if end.until is not None:
        when = f"between {end.at.clock} and {end.until.clock}"
    return f"{when} ({end.why})" if end.why else when


def lasted(row: HoldingRow, now: float) -> str:
    """How long it was held: `10 min`, `4 s to 14 s`, or `at least 10 min`."""
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
        # Both ends were seen at once: a second more or less is no news.
        return least
    if last <= first:
        return f"at most {most}"
    return least if least == most else f"{least} to {most}"


def silence(gap: CoverageGap, now: float) -> Silence:
    """A time at which nobody looked."""
    span = "" if gap.since is None or gap.until is None else lasting(gap.until - gap.since)
    return Silence(optional(gap.since, now), optional(gap.until, now), REASONS[gap.why], span)


NOW: Final = "\x02now\x02"
"""The place for the present, as unix time in seconds."""
_PLACE: Final = re.compile(rb"\x02(now|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\x02")
_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class When:
    """A moment: for a machine, for the clock (in UTC), and how long ago. `exact` false: then or earlier."""

    iso: str
    clock: str
    ago: str
    exact: bool = True


def when(at: float, now: float, *, exact: bool = True) -> When:
    """Unix time `at`, seen at `now`."""
    return When(rfc3339(at), clock_time(at, now), lasting(now - at), exact)


def later(at: float, now: float, *, exact: bool = True) -> When:
    """As `when`, with a place for how long ago it was. It holds for the day of `now`."""
    return When(rfc3339(at), clock_time(at, now), f"\x02{at!r}\x02", exact)


def day(now: float) -> int:
    """The day (in UTC) for which a moment's clock is right."""
    return int(now // _DAY)


def filled(page: bytes, now: float) -> bytes:
    """`page` with every place filled in, for unix time `now`."""
    present = repr(round(now, 3)).encode()

    def fill(place: re.Match[bytes]) -> bytes:
        at = place[1]
        return present if at == b"now" else lasting(now - float(at)).encode()

    return _PLACE.sub(fill, page)
