"""The journal: its open rows are exactly the present holdings, poll after poll. Pure.

Rows and covered spans that changed gather in `pending` until they are written. The journal also decides which
holdings are the same: from one poll to the next, and between the records of two processes of which one ended
before the other or ran beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.history.coverage import CoveredSpan, GapReason, PollRecord, PollTimes, certainty
from exporter.history.devices import DeviceJournal, DeviceRow
from exporter.history.record import (
    Bound,
    Certainty,
    HoldingFacts,
    HoldingKey,
    HoldingRow,
    between,
    ended,
)


def joined(
    stored: Iterable[HoldingRow], own: Iterable[HoldingRow], until: float | None, first: float
) -> Iterator[HoldingRow]:
    """Join the rows of two processes, each holding once. New rows have the id 0.

    `stored` were open at the other process's last poll, `until` (None: it never polled). `own` are all rows
    of this process, whose first poll was at `first`.
    """
    unmatched: dict[HoldingKey, list[HoldingRow]] = {}
    for row in sorted(own, key=lambda row: row.low):
        unmatched.setdefault(row.key, []).append(row)
    for row in stored:
        mine = _continuation(row, unmatched.get(row.key, ()), until)
        if mine is None:
            last = max(first, until or 0.0)
            gone = between(last if until is None else until, last, Certainty.WHILE_DOWN)
            yield ended(row, row.missed or gone)
        else:
            unmatched[row.key].remove(mine)
            yield _joined(row, mine, apart=until is None or until < first)
    for row in chain.from_iterable(unmatched.values()):
        if until is not None and row.end is not None and (row.start.not_after or 0.0) <= until:
            # The other process saw it too and has recorded its end.
            continue
        start = row.start
        if start.certainty is Certainty.HELD_ALREADY and until is not None:
            start = between(until, first, Certainty.WHILE_DOWN)
        yield replace(row, id=0, start=start)


def _continuation(row: HoldingRow, own: Sequence[HoldingRow], until: float | None) -> HoldingRow | None:
    """The row of `own` that continues `row`, which was open at `until`."""
    for mine in own:
        beside = until is not None and mine.low <= until
        if (mine.start.certainty is Certainty.HELD_ALREADY or beside) and row.facts.may_continue(mine.facts):
            return mine
    return None


def _joined(row: HoldingRow, mine: HoldingRow, *, apart: bool) -> HoldingRow:
    """`row` continued by `mine`; `apart`: with a time without polls in between."""
    proven = bool(row.facts.uid) and row.facts.uid == mine.facts.uid
    assumed = row.assumed or mine.assumed or (apart and not proven)
    whole = replace(row, facts=_merged(mine.facts, row.facts), assumed=assumed, missed=None)
    return whole if mine.end is None else ended(whole, mine.end)


def _merged(new: HoldingFacts, old: HoldingFacts) -> HoldingFacts:
    return HoldingFacts(*(one or other for one, other in zip(new, old, strict=True)))


def paired(
    rows: Sequence[HoldingRow], facts: Sequence[HoldingFacts]
) -> tuple[list[tuple[HoldingRow, HoldingFacts]], list[HoldingRow], list[HoldingFacts]]:
    """Pair the rows of one key with present facts; also returns the rows and the facts without a pair.

    Equal uids are one pod. An unknown uid contradicts nothing, but with several pods of one name it cannot be
    paired. Without a uid that proves it, another claim is another pod. exporter.mapping.holdings has the same
    rules.
    """
    gone, new = list(rows), list(facts)
    pairs: list[tuple[HoldingRow, HoldingFacts]] = []
    for row in rows:
        same = [fact for fact in new if fact.uid == row.facts.uid and row.facts.may_continue(fact)]
        match = next(iter(same), None)
        if match is not None:
            pairs.append((row, match))
            gone.remove(row)
            new.remove(match)
    if len(gone) == len(new) == 1 and gone[0].facts.may_continue(new[0]):
        return [*pairs, (gone[0], new[0])], [], []
    return pairs, gone, new


class StoredHistory(Struct, frozen=True):
    """What an earlier process left: its open rows, its last poll (None: never), and the next free ids.
    `devices` are its open rows of devices.
    """

    rows: tuple[HoldingRow, ...] = ()
    until: float | None = None
    next_row: int = 1
    next_span: int = 1
    devices: tuple[DeviceRow, ...] = ()
    next_device: int = 1


class PendingWrites(Struct):
    """What is not written yet, by id. Writing it twice is harmless.

    `fresh` are the rows that began since the last write: no query has returned them.
    """

    rows: dict[int, HoldingRow] = field(default_factory=dict[int, HoldingRow])
    ended: dict[int, HoldingRow] = field(default_factory=dict[int, HoldingRow])
    spans: dict[int, CoveredSpan] = field(default_factory=dict[int, CoveredSpan])
    fresh: set[int] = field(default_factory=set[int])
    devices: dict[int, DeviceRow] = field(default_factory=dict[int, DeviceRow])

    @property
    def holdings(self) -> int:
        """The number of rows of holdings."""
        return len(self.rows) + len(self.ended)

    @property
    def changes(self) -> int:
        """The number of rows."""
        return self.holdings + len(self.devices)


class Journal:
    """Follows holdings through polls, restarts and gaps.

    `doubt`: seconds after the first poll within which a missing holding is not ended, because a restarted
    kubelet may list pods late. Its row gets `missed` instead, as does one that is `unconfirmed` in a poll.
    """

    def __init__(self, doubt: float, stored: StoredHistory | None = None) -> None:
        self._doubt = doubt
        self._doubt_until = 0.0
        self._doubting = False
        self._first: PollTimes | None = None
        self._present: dict[HoldingKey, tuple[HoldingFacts, ...]] = {}
        self._span: CoveredSpan | None = None
        self._continue(stored or StoredHistory())

    def _continue(self, stored: StoredHistory) -> None:
        self.pending = PendingWrites()
        self._open: dict[HoldingKey, tuple[HoldingRow, ...]] = {}
        # The keys of open rows that are missed.
        self._missing: set[HoldingKey] = set()
        self._stored_until = stored.until
        self._next_row = stored.next_row
        self._next_span = stored.next_span
        self._devices = DeviceJournal(stored.devices, stored.next_device)
        # Rows whose uid is in doubt: since when, and whether the row was `assumed` before.
        self._vague: dict[int, tuple[Bound, bool]] = {}
        # Rows that have been unconfirmed since a kubelet restart.
        self._unconfirmed: set[int] = set()
        for row in stored.rows:
            self._add_open(row)
            if row.assumed and row.facts.uid:
                # The process that left it so may have known more.
                self._vague[row.id] = (Bound(row.start.not_after, None, Certainty.WHILE_DOWN), True)

    def _add_open(self, row: HoldingRow) -> None:
        self._keep(row.key, (*self._open.get(row.key, ()), row))

    def _keep(self, key: HoldingKey, rows: tuple[HoldingRow, ...]) -> None:
        """Set the open rows of `key`."""
        if rows:
            self._open[key] = rows
        else:
            self._open.pop(key, None)
        if any(row.missed is not None for row in rows):
            self._missing.add(key)
        else:
            self._missing.discard(key)

    @property
    def span(self) -> CoveredSpan | None:
        """The present covered span, None before the first poll."""
        return self._span

    @property
    def first(self) -> PollTimes | None:
        """The first good poll of this process."""
        return self._first

    @property
    def doubting(self) -> bool:
        """Whether missing holdings are not ended yet."""
        return self._doubting

    def rows(self) -> Iterator[HoldingRow]:
        """The open rows, including missed ones."""
        return chain.from_iterable(self._open.values())

    def take(self, poll: PollRecord) -> None:
        """Take in one poll. The first one must have the `whole` that is present."""
        first = self._first is None
        if first:
            self._first = poll.times
            self._doubt_until = poll.times.steady + self._doubt
            self._doubting = True
            self._new_span(poll.times.asked, GapReason.DOWN if self._stored_until is not None else None)
        elif poll.gap is not None:
            self._new_span(poll.times.asked, poll.gap)
        else:
            self._lengthen(poll.times)
        known_until = self._stored_until if first else poll.before and poll.before.asked
        before = poll.times.asked if known_until is None else known_until
        self._note_devices(self._devices.take(poll.devices, before, poll.times.answered, poll.times.steady))
        changed = self._changed(poll)
        if poll.gap is not None or first:
            changed = (*self._open, *self._present)
        self._compare(poll, changed, first=first)
        self._stop_doubting(poll.times)

    def _changed(self, poll: PollRecord) -> Iterable[HoldingKey]:
        """Take over what is present in `poll`. Returns the keys whose rows may not fit any more."""
        if poll.present is None:
            return ()
        if poll.whole:
            self._present = dict(poll.present)
            return (*self._open, *self._present)
        self._present |= poll.present
        for key in [key for key, facts in poll.present.items() if not facts]:
            del self._present[key]
        # What is missed may end by now.
        return (*poll.present, *self._missing)

    def extend(self, times: PollTimes) -> None:
        """Take in a poll that followed the last one without a change."""
        if self._span is not None:
            before = self._span.until
            self._note_devices(self._devices.take(None, before, times.answered, times.steady))
        self._lengthen(times)
        self._stop_doubting(times)

    def _note_devices(self, rows: Iterable[DeviceRow]) -> None:
        self.pending.devices.update({row.id: row for row in rows})

    def _lengthen(self, times: PollTimes) -> None:
        if self._span is not None:
            self._note_span(replace(self._span, until=max(self._span.until, times.asked)))

    def _stop_doubting(self, times: PollTimes) -> None:
        if self._doubting and times.steady >= self._doubt_until:
            self._doubting = False
            self._end_missed()

    def written(self) -> None:
        """Clear `pending`: all of it is written."""
        self.pending = PendingWrites()
        self._devices.written()

    def trim(self, limit: int) -> int:
        """Drop the oldest ended rows that wait, down to `limit`; returns the number.

        Only fresh rows are dropped, and the time from the earliest of them on counts as not recorded.
        """
        self._devices.trim(self.pending.devices, limit)
        excess = len(self.pending.ended) - limit
        lost = [id_ for id_ in self.pending.ended if id_ in self.pending.fresh][: max(0, excess)]
        for id_ in lost:
            del self.pending.ended[id_]
            self.pending.fresh.discard(id_)
        if lost and self._span is not None:
            self.pending.spans.clear()
            self._new_span(self._span.until, GapReason.LOST)
        return len(lost)

    def forget(self, before: float) -> None:
        """Remove the coverage before a time whose rows were deleted."""
        for span in list(self.pending.spans.values()):
            if span.since < before:
                self.pending.spans[span.id] = _cut(span, before)
        if self._span is not None and self._span.since < before:
            self._span = _cut(self._span, before)

    def forget_devices(self, before: float) -> None:
        """Note that the rows of devices before a time were deleted."""
        self._devices.forget(before)

    def join(
        self,
        stored: StoredHistory,
        past: Iterable[HoldingRow],
        spans: Iterable[CoveredSpan],
        devices: Iterable[DeviceRow] = (),
    ) -> None:
        """Continue in another store, which has `stored`.

        `past` are this process's ended rows, `devices` those of devices, and `spans` its covered spans, the
        present one last; all of them have to be written there. The process that left the store may have run
        beside this one until `stored.until`: what both recorded counts once.
        """
        first, own, followed = self._first, list(chain(past, self.rows())), self._devices
        self._continue(stored)
        if first is None:
            return
        self._devices = followed
        self._note_devices(
            followed.join(stored.devices, stored.next_device, devices, stored.until, first.answered)
        )
        self._open, self._missing = {}, set()
        for row in joined(stored.rows, own, stored.until, first.answered):
            numbered = row if row.id else replace(row, id=self._row_id())
            if row.end is None:
                self._add_open(self._noted(numbered))
                self._doubt_joined(numbered, stored.until)
            else:
                self.pending.ended[numbered.id] = numbered
        self._join_spans(stored.until, spans)

    def _doubt_joined(self, row: HoldingRow, until: float | None) -> None:
        """Doubt that the row still is of the pod that the other process knew at `until`."""
        uids = {fact.uid for fact in self._present.get(row.key, ())}
        if row.facts.uid in uids:
            self._vague.pop(row.id, None)
        elif row.facts.uid and until is not None:
            self._vague.setdefault(row.id, (Bound(until, None, Certainty.WHILE_DOWN), row.assumed))

    def _join_spans(self, until: float | None, spans: Iterable[CoveredSpan]) -> None:
        current = self._span
        for span in spans:
            if until is not None and span.until <= until and (current is None or span.id != current.id):
                continue
            since = span.since if until is None else max(span.since, until)
            gap = span.gap or (GapReason.DOWN if until is not None and since > until else None)
            self._new_span(since, gap, until=max(since, span.until))

    def _row_id(self) -> int:
        number = self._next_row
        self._next_row += 1
        return number

    def _new_span(self, since: float, gap: GapReason | None, *, until: float | None = None) -> None:
        self._note_span(CoveredSpan(self._next_span, since, since if until is None else until, gap))
        self._next_span += 1

    def _note_span(self, span: CoveredSpan) -> None:
        self._span = span
        self.pending.spans[span.id] = span

    def _compare(self, poll: PollRecord, keys: Iterable[HoldingKey], *, first: bool) -> None:
        gap = poll.gap is not None or first
        for key in dict.fromkeys(keys):
            rows, facts = self._open.get(key, ()), self._present.get(key, ())
            if (
                len(rows) == len(facts) == 1
                and rows[0].facts == facts[0]
                and rows[0].id not in self._vague
                and rows[0].missed is None
                and (facts[0].uid or not gap)
            ):
                continue
            self._keep(key, self._update(key, rows, facts, poll, first=first))

    def _update(
        self,
        key: HoldingKey,
        rows: Sequence[HoldingRow],
        facts: Sequence[HoldingFacts],
        poll: PollRecord,
        *,
        first: bool,
    ) -> tuple[HoldingRow, ...]:
        """The open rows of `key` after `poll`."""
        pairs, gone, new = paired(rows, facts)
        kept = [self._continued(row, fact, poll, first=first) for row, fact in pairs]
        start = self._start(poll, first=first, claimed=any(fact.claim for fact in new))
        for row in gone:
            end = row.missed or self._end(poll, first=first)
            doubted = self._in_doubt(row, poll, first=first)
            if key in poll.unconfirmed:
                self._unconfirmed.add(row.id)
                doubted = True
            elif row.id in self._unconfirmed:
                self._unconfirmed.discard(row.id)
                # Nothing was known of it since it was missed.
                end = between(end.not_before or 0.0, poll.times.answered, Certainty.WHILE_SILENT)
                doubted = False
            if doubted and not new:
                kept.append(row if row.missed is not None else self._noted(replace(row, missed=end)))
                continue
            vague, _ = self._vague.pop(row.id, (None, False))
            if vague is not None and vague.not_before is not None:
                # It was listed throughout, but the time at which the successor came is unknown.
                end = start = between(vague.not_before, poll.times.answered, vague.certainty)
            self._close(row, end)
        for fact in new:
            row = self._noted(HoldingRow(self._row_id(), key, fact, start))
            self.pending.fresh.add(row.id)
            kept.append(row)
        return tuple(kept)

    def _in_doubt(self, row: HoldingRow, poll: PollRecord, *, first: bool) -> bool:
        """Whether a missing row is not ended yet. A row that is missing for long, over several processes, is
        ended.
        """
        if not self._doubting:
            return False
        if row.missed is None:
            return first
        return poll.times.answered < (row.missed.not_after or 0.0) + self._doubt

    def _continued(self, row: HoldingRow, fact: HoldingFacts, poll: PollRecord, *, first: bool) -> HoldingRow:
        """`row` with the facts of `poll`."""
        crossed = first or poll.gap not in {None, GapReason.CLOCK} or self._long_missed(row, poll)
        self._unconfirmed.discard(row.id)
        last_seen = row.missed or self._end(poll, first=first)
        assumed = row.assumed
        if fact.uid and fact.uid == row.facts.uid:
            _, assumed = self._vague.pop(row.id, (None, assumed))
        else:
            if row.facts.uid and not fact.uid:
                self._vague.setdefault(row.id, (last_seen, assumed))
            assumed = assumed or crossed
        facts = _merged(fact, row.facts)
        if facts == row.facts and assumed == row.assumed and row.missed is None:
            return row
        return self._noted(replace(row, facts=facts, assumed=assumed, missed=None))

    def _long_missed(self, row: HoldingRow, poll: PollRecord) -> bool:
        """Whether a successor of the pod's name may have come while the row was missed."""
        if row.missed is None or row.id not in self._unconfirmed:
            return row.missed is not None
        return poll.times.answered > (row.missed.not_after or 0.0) + self._doubt

    def _noted(self, row: HoldingRow) -> HoldingRow:
        self.pending.rows[row.id] = row
        return row

    def _start(self, poll: PollRecord, *, first: bool, claimed: bool) -> Bound:
        times = poll.times
        if first:
            if self._stored_until is None:
                return Bound(None, times.answered, Certainty.HELD_ALREADY)
            return between(self._stored_until, times.answered, Certainty.WHILE_DOWN)
        not_before = poll.before.asked if claimed and poll.before is not None else poll.not_before()
        return between(times.asked if not_before is None else not_before, times.answered, certainty(poll.gap))

    def _end(self, poll: PollRecord, *, first: bool) -> Bound:
        times = poll.times
        if first:
            since = times.asked if self._stored_until is None else self._stored_until
            return between(since, times.answered, Certainty.WHILE_DOWN)
        return between(poll.before.asked if poll.before else times.asked, times.answered, certainty(poll.gap))

    def _close(self, row: HoldingRow, end: Bound) -> None:
        self.pending.rows.pop(row.id, None)
        self.pending.ended[row.id] = ended(row, end)

    def _end_missed(self) -> None:
        """End the rows that have been missing since the start."""
        for key in tuple(self._missing):
            rows = self._open[key]
            left = tuple(row for row in rows if row.missed is None or row.id in self._unconfirmed)
            for row in rows:
                if row.missed is not None and row.id not in self._unconfirmed:
                    vague, _ = self._vague.pop(row.id, (None, False))
                    self._close(row, row.missed if vague is None else _widened(row.missed, vague))
            self._keep(key, left)


def _widened(end: Bound, vague: Bound) -> Bound:
    """`end` of a row whose uid was in doubt since `vague`."""
    if vague.not_before is None or end.not_after is None:
        return end
    return between(vague.not_before, end.not_after, vague.certainty)


def _cut(span: CoveredSpan, before: float) -> CoveredSpan:
    return CoveredSpan(span.id, before, max(span.until, before))
