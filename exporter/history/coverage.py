"""Coverage of history: which times were polled. Without it, "no holding" could not be told from "no poll"."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from exporter.history.devices import KnownDevices
from exporter.history.record import Certainty, HoldingKey, Present

CLOCK_STEP: Final = 2.0
"""Seconds by which the wall clock may drift between two polls before it counts as set."""

EVENT_LAG: Final = 0.75
"""Upper bound, in seconds, from an allocation to the poll that its event triggers."""

AT_WORK: Final = 0.5
"""Upper bound, in seconds, for which a trigger waits for the poll before."""


class GapReason(StrEnum):
    """Why a time was not polled."""

    DOWN = "exporter_down"
    SILENT = "kubelet_silent"
    PAUSED = "paused"
    """The exporter ran but could not poll: the machine slept or was overloaded."""
    CLOCK = "clock_set"
    """The wall clock was set: times before and after are not comparable."""
    LOST = "not_recorded"
    """Polled, but history could not be written, and too much waited in memory."""
    BEFORE = "before_history"
    """Before the first poll, or deleted by history's limits."""
    LATER = "not_yet"
    """After the last poll."""


class PollTimes(NamedTuple):
    """When List was called and when its answer arrived (unix); `steady` is the latter, monotonic."""

    asked: float
    answered: float
    steady: float


class PollRecord(Struct, frozen=True):
    """One good answer. `before` is the good answer before it in this process; `gap` lies between the two.

    `by_event`: the event of an allocation triggered it. `present` is None if it is unchanged; if it is not
    `whole`, it has only the holdings whose facts changed, with () for one that is gone. `unconfirmed` are
    holdings that may last besides: List leaves their pods out since a kubelet restart. `devices` is None if
    they are unchanged.
    """

    times: PollTimes
    before: PollTimes | None = None
    gap: GapReason | None = None
    by_event: bool = False
    present: Present | None = None
    unconfirmed: frozenset[HoldingKey] = frozenset()
    devices: KnownDevices | None = None
    whole: bool = True

    def not_before(self) -> float | None:
        """The earliest time of an allocation of a device plugin's device that this poll is the first to show.

        The device manager writes its checkpoint after each allocation, and this event triggers a poll at
        once, unless the poll before was in progress.
        """
        if self.before is None:
            return None
        if self.by_event and self.gap is None and self.times.asked - self.before.answered > AT_WORK:
            return max(self.before.asked, self.times.asked - EVENT_LAG)
        return self.before.asked


class PollSequence:
    """Connects polls. Those that are more than `patience` seconds apart leave a gap."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last: PollTimes | None = None
        self._record: PollRecord | None = None
        self._failed = False

    @property
    def last(self) -> PollTimes | None:
        """The last good poll."""
        return self._last

    @property
    def failing(self) -> bool:
        """Whether a poll failed since."""
        return self._failed

    def fail(self) -> None:
        """Record a failed poll."""
        self._failed = True

    def add(
        self,
        times: PollTimes,
        present: Present | None = None,
        *,
        by_event: bool,
        unconfirmed: frozenset[HoldingKey] = frozenset(),
        devices: KnownDevices | None = None,
    ) -> PollRecord:
        """Record a good poll. `by_event` counts only if the poll before was good too."""
        before, failed = self._last, self._failed
        self._last, self._failed = times, False
        gap = None
        if before is not None:
            passed = times.steady - before.steady
            if passed > self._patience:
                gap = GapReason.SILENT if failed else GapReason.PAUSED
            elif abs((times.answered - before.answered) - passed) > CLOCK_STEP:
                gap = GapReason.CLOCK
        by_event = by_event and before is not None and not failed
        self._record = PollRecord(times, before, gap, by_event, present, unconfirmed, devices)
        return self._record

    def again(self) -> PollRecord | None:
        """The last poll, to be recorded with what is known by now. None before the first."""
        return None if self._record is None else replace(self._record, gap=None)


def certainty(gap: GapReason | None) -> Certainty:
    """The certainty of a change that is first seen after `gap`."""
    match gap:
        case None | GapReason.CLOCK:
            return Certainty.BETWEEN_POLLS
        case GapReason.SILENT:
            return Certainty.WHILE_SILENT
        case _:
            return Certainty.WHILE_DOWN


class CoveredSpan(Struct, frozen=True):
    """A time without gaps, from poll to poll. `gap` lies before it, None if the time before is unknown."""

    id: int
    since: float
    until: float
    gap: GapReason | None = None


class CoverageGap(NamedTuple):
    """A time without polls. None is without end."""

    since: float | None
    until: float | None
    why: GapReason


def without_answers(gaps: Iterable[CoverageGap], started: float, at: float | None) -> Iterator[CoverageGap]:
    """The gaps with those that extend beyond `started`, the unix time at which this process began, parted
    there: from then on the exporter ran, and the kubelet did not answer. Of the moment `at` (None: a range)
    only the part that contains it.
    """
    for gap in gaps:
        down = gap.why in {GapReason.DOWN, GapReason.BEFORE}
        if not down or (gap.until is not None and gap.until <= started):
            yield gap
            continue
        if (gap.since is None or gap.since < started) and (at is None or at < started):
            yield gap._replace(until=started)
        if at is None or at >= started:
            since = started if gap.since is None else max(gap.since, started)
            yield CoverageGap(since, gap.until, GapReason.SILENT)


def coverage_gaps(
    spans: Iterable[CoveredSpan], since: float | None, until: float, after: GapReason
) -> Iterator[CoverageGap]:
    """The gaps between `since` (None: from the first poll on) and `until`, in order. If both are the same
    moment: the whole gap that contains it.

    `spans` are sorted by `since` and include those next to the range; they may overlap where the clock was
    set. `after` is the reason of the gap after the last span.
    """
    if since == until:
        yield from _around(spans, until, after)
        return
    covered, first = since, True
    for span in spans:
        why = GapReason.BEFORE if first else span.gap or GapReason.BEFORE
        first = False
        if span.since >= until:
            if covered is None or covered < until:
                yield CoverageGap(covered, until, why)
            return
        if covered is None:
            covered = span.since
        elif span.since > covered:
            yield CoverageGap(covered, span.since, why)
        covered = max(covered, span.until)
    if covered is None or covered < until:
        yield CoverageGap(covered, until, after)


def _around(spans: Iterable[CoveredSpan], at: float, after: GapReason) -> Iterator[CoverageGap]:
    before: float | None = None
    for span in spans:
        if span.since <= at <= span.until:
            return
        if span.since > at:
            why = span.gap if before is not None else None
            yield CoverageGap(before, span.since, why or GapReason.BEFORE)
            return
        before = max(span.until, before or span.until)
    yield CoverageGap(before, None, after)
