"""Which times were looked at: without it "nobody held it" could not be told from "nobody looked"."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from exporter.history.record import Certainty, Present

CLOCK_STEP: Final = 2.0
"""Seconds by which the wall clock may go its own way between two looks before it counts as set anew."""

EVENT_LAG: Final = 0.75
"""Seconds, amply, between an allocation and the look that its event brings about."""

AT_WORK: Final = 0.5
"""Seconds, amply, in which a reason for a look that waited for the one before is acted upon."""


class GapReason(StrEnum):
    """Why nobody looked for a while."""

    DOWN = "exporter_down"
    SILENT = "kubelet_silent"
    PAUSED = "paused"
    """The exporter ran, yet did not get to look: the machine slept, or had no time for it."""
    CLOCK = "clock_set"
    """The clock was set: times before and after cannot be compared."""
    LOST = "not_recorded"
    """It was looked, but history could not be written, and there was too much to keep in memory."""
    BEFORE = "before_history"
    """History does not go back so far, or was cleared by its limits."""
    LATER = "not_yet"
    """Later than the last look."""


class PollTimes(NamedTuple):
    """When the kubelet was asked and when its answer was there (unix); `steady` is the latter on a clock
    that nobody sets.
    """

    asked: float
    answered: float
    steady: float


@dataclass(frozen=True, slots=True)
class PollRecord:
    """One good answer of the kubelet. `before` is the good answer before it in this process; `gap` tells what
    lay between the two, None if they followed one another.

    `told`: the event of an allocation asked for it. `present` is None if it shows what the one before did.
    """

    times: PollTimes
    before: PollTimes | None = None
    gap: GapReason | None = None
    told: bool = False
    present: Present | None = None

    def not_before(self) -> float | None:
        """The earliest time of a device plugin's allocation that this look is the first to show.

        The device manager writes its checkpoint after each allocation, and that event is acted upon at
        once; only if the look before was under way just then it may have had to wait for it.
        """
        if self.before is None:
            return None
        if self.told and self.gap is None and self.times.asked - self.before.answered > AT_WORK:
            return max(self.before.asked, self.times.asked - EVENT_LAG)
        return self.before.asked


class PollSequence:
    """Puts looks in a row. `patience` in seconds: looks farther apart than that leave a gap."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: PollTimes | None = None
        self._look: PollRecord | None = None
        self._failed = False

    @property
    def last(self) -> PollTimes | None:
        """The last good look."""
        return self._last

    @property
    def failing(self) -> bool:
        """Whether the kubelet has not answered since."""
        return self._failed

    def fail(self) -> None:
        """The kubelet did not answer as it should."""
        self._failed = True

    def look(self, times: PollTimes, present: Present | None, *, told: bool) -> PollRecord:
        """A good answer. An event that `told` of an allocation counts if the look before was good too."""
        self._look = look = self._next(times, present, told=told)
        return look

    def again(self, present: Present) -> PollRecord | None:
        """The last look once more, for it is known by now that it showed this. None before the first."""
        return None if self._look is None else replace(self._look, gap=None, present=present)

    def _next(self, times: PollTimes, present: Present | None, *, told: bool) -> PollRecord:
        before, failed = self._last, self._failed
        self._last, self._failed = times, False
        if before is None:
            return PollRecord(times, present=present)
        passed = times.steady - before.steady
        gap = None
        if passed > self._patience:
            gap = GapReason.SILENT if failed else GapReason.PAUSED
        elif abs((times.answered - before.answered) - passed) > CLOCK_STEP:
            gap = GapReason.CLOCK
        return PollRecord(times, before, gap, told=told and not failed, present=present)


def certainty(gap: GapReason | None) -> Certainty:
    """How sure a change is that came to be known over `gap`."""
    match gap:
        case None | GapReason.CLOCK:
            return Certainty.BETWEEN_POLLS
        case GapReason.SILENT:
            return Certainty.WHILE_SILENT
        case _:
            return Certainty.WHILE_DOWN


@dataclass(frozen=True, slots=True)
class CoveredSpan:
    """A time without gaps: looks followed one another from `since` to `until`. `gap` tells what lay before
    it, None if nothing is known of the time before.
    """

    id: int
    since: float
    until: float
    gap: GapReason | None = None


class CoverageGap(NamedTuple):
    """A time at which nobody looked, and why. None is without end."""

    since: float | None
    until: float | None
    why: GapReason


def coverage_gaps(
    watches: Iterable[CoveredSpan], since: float | None, until: float, after: GapReason
) -> Iterator[CoverageGap]:
    """The gaps between `since` (None: as early as it was ever looked) and `until`, in order of time. Of one
    moment, the gap that it lies in, whole.

    `watches` are sorted by `since`, with those before and after the range; they may overlap where the clock
    was set. `after` tells why nobody looked after the last of them.
    """
    if since == until:
        yield from _around(watches, until, after)
        return
    seen, first = since, True
    for watch in watches:
        why = GapReason.BEFORE if first else watch.gap or GapReason.BEFORE
        first = False
        if watch.since >= until:
            if seen is None or seen < until:
                yield CoverageGap(seen, until, why)
            return
        if seen is None:
            seen = watch.since
        elif watch.since > seen:
            yield CoverageGap(seen, watch.since, why)
        seen = max(seen, watch.until)
    if seen is None or seen < until:
        yield CoverageGap(seen, until, after)


def _around(watches: Iterable[CoveredSpan], at: float, after: GapReason) -> Iterator[CoverageGap]:
    before: float | None = None
    for watch in watches:
        if watch.since <= at <= watch.until:
            return
        if watch.since > at:
            why = watch.gap if before is not None else None
            yield CoverageGap(before, watch.since, why or GapReason.BEFORE)
            return
        before = max(watch.until, before or watch.until)
    yield CoverageGap(before, None, after)
