"""The book of what is held: its open rows are exactly the present holders, look after look.

Pure bookkeeping. What has to be written gathers in `pending` until it is written.

Which holdings are the same: from one look to the next, and in the accounts of two runs, of which one left
off before the other or went on beside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from exporter.history.coverage import CoveredSpan, GapReason, PollRecord, PollTimes, certainty
from exporter.history.record import (
    Bound,
    Certainty,
    HoldingFacts,
    HoldingKey,
    HoldingRow,
    Present,
    between,
    ended,
)


def joined(
    stored: Iterable[HoldingRow], own: Iterable[HoldingRow], until: float | None, first: float
) -> Iterator[HoldingRow]:
    """The rows of both, each holding once. What is new among them has the number 0.

    `stored` were open when the other run last looked, at `until` (None: it never did); `own` are all of this
    run's, which first looked at `first`.
    """
    unclaimed: dict[HoldingKey, list[HoldingRow]] = {}
    for row in sorted(own, key=lambda row: row.low):
        unclaimed.setdefault(row.key, []).append(row)
    for row in stored:
        mine = _continuation(row, unclaimed.get(row.key, ()), until)
        if mine is None:
            last = max(first, until or 0.0)
            gone = between(last if until is None else until, last, Certainty.WHILE_DOWN)
            yield ended(row, row.missed or gone)
        else:
            unclaimed[row.key].remove(mine)
            yield _joined(row, mine, apart=until is None or until < first)
    for rows in unclaimed.values():
        for row in rows:
            if until is not None and row.end is not None and (row.start.not_after or 0.0) <= until:
                # The other saw it too, and has not got it open: it has recorded the end.
                continue
            start = row.start
            if start.certainty is Certainty.HELD_ALREADY and until is not None:
                start = between(until, first, Certainty.WHILE_DOWN)
            yield replace(row, id=0, start=start)


def _continuation(row: HoldingRow, own: Sequence[HoldingRow], until: float | None) -> HoldingRow | None:
    """Which of this run's own rows of the same name goes on with `row`, that was open at `until`."""
    for mine in own:
        beside = until is not None and mine.low <= until
        known = {uid for uid in (row.facts.uid, mine.facts.uid) if uid}
        if (mine.start.certainty is Certainty.HELD_ALREADY or beside) and len(known) < 2:
            return mine
    return None


def _joined(row: HoldingRow, mine: HoldingRow, *, apart: bool) -> HoldingRow:
    """`row` going on as this run's own `mine`; `apart`: nobody looked for a while in between."""
    facts = HoldingFacts(*(new or old for new, old in zip(mine.facts, row.facts, strict=True)))
    confirmed = bool(row.facts.uid) and row.facts.uid == mine.facts.uid
    assumed = row.assumed or mine.assumed or (apart and not confirmed)
    whole = replace(row, facts=facts, assumed=assumed, missed=None)
    return whole if mine.end is None else ended(whole, mine.end)


def paired(
    rows: Sequence[HoldingRow], facts: Sequence[HoldingFacts]
) -> tuple[list[tuple[HoldingRow, HoldingFacts]], list[HoldingRow], list[HoldingFacts]]:
    """Which row goes on as what, which rows have no successor, and what is new.

    The same uid is the same pod. A uid that is not known, on either side, contradicts nothing; but with
    several pods of one name nothing tells which is which (exporter.mapping.holdings has the same rule).
    """
    gone, new = list(rows), list(facts)
    pairs: list[tuple[HoldingRow, HoldingFacts]] = []
    for row in rows:
        match = next((fact for fact in new if fact.uid == row.facts.uid), None)
        if match is not None:
            pairs.append((row, match))
            gone.remove(row)
            new.remove(match)
    if len(gone) == len(new) == 1 and not (gone[0].facts.uid and new[0].uid):
        return [*pairs, (gone[0], new[0])], [], []
    return pairs, gone, new


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """What an earlier run left: the rows that were open, until when it was looked (None: never), and the
    first numbers that are free.
    """

    rows: tuple[HoldingRow, ...] = ()
    until: float | None = None
    next_row: int = 1
    next_watch: int = 1


@dataclass(slots=True)
class PendingWrites:
    """What is not written yet, by id. Writing it twice does no harm.

    `fresh` are the rows that began since the last writing: nobody has been shown them.
    """

    rows: dict[int, HoldingRow] = field(default_factory=dict[int, HoldingRow])
    ended: dict[int, HoldingRow] = field(default_factory=dict[int, HoldingRow])
    watches: dict[int, CoveredSpan] = field(default_factory=dict[int, CoveredSpan])
    fresh: set[int] = field(default_factory=set[int])

    @property
    def changes(self) -> int:
        """Rows that wait."""
        return len(self.rows) + len(self.ended)


class Journal:
    """Follows holdings through looks, restarts and silences.

    `doubt` in seconds: for so long after the first look nothing that is missing counts as gone, for a
    kubelet that has just come up lists nobody, and answers.
    """

    def __init__(self, doubt: float, stored: StoredHistory | None = None) -> None:
        self._doubt = doubt
        self._doubt_until = 0.0
        self._doubting = False
        self._first: PollTimes | None = None
        self._present: Present = {}
        self._watch: CoveredSpan | None = None
        self._go_on_from(stored or StoredHistory())

    def _go_on_from(self, stored: StoredHistory) -> None:
        self.pending = PendingWrites()
        self._open: dict[HoldingKey, tuple[HoldingRow, ...]] = {}
        for row in stored.rows:
            self._open[row.key] = (*self._open.get(row.key, ()), row)
        self._stored_until = stored.until
        self._next_row = stored.next_row
        self._next_watch = stored.next_watch
        self._vague: dict[int, tuple[Bound, bool]] = {}
        for row in stored.rows:
            if row.assumed and row.facts.uid:
                # Another run may have left it so, and what that one knew of the change is lost.
                self._vague[row.id] = (Bound(row.start.not_after, None, Certainty.WHILE_DOWN), True)

    @property
    def watch(self) -> CoveredSpan | None:
        """The time without gaps that lasts, None before the first look."""
        return self._watch

    @property
    def doubting(self) -> bool:
        """Whether what is missing is not yet believed gone."""
        return self._doubting

    def rows(self) -> Iterator[HoldingRow]:
        """The open rows, those in doubt too."""
        return chain.from_iterable(self._open.values())

    def take(self, look: PollRecord) -> None:
        """Take in one look. The first one must tell what is present."""
        first = self._first is None
        if first:
            self._first = look.times
            self._doubt_until = look.times.steady + self._doubt
            self._doubting = True
        self._follow(look, first=first)
        if look.present is not None:
            self._present = look.present
        if look.present is not None or look.gap is not None:
            self._compare(look, first=first)
        self._stop_doubting(look.times)

    def extend(self, times: PollTimes) -> None:
        """A look that followed the last one and showed nothing new."""
        self._lengthen(times)
        self._stop_doubting(times)

    def _lengthen(self, times: PollTimes) -> None:
        if self._watch is not None:
            self._note_watch(replace(self._watch, until=max(self._watch.until, times.asked)))

    def _stop_doubting(self, times: PollTimes) -> None:
        if self._doubting and times.steady >= self._doubt_until:
            self._doubting = False
            self._give_up()

    def written(self) -> None:
        """All that was pending is written."""
        self.pending = PendingWrites()

    def trim(self, limit: int) -> int:
        """Forget the oldest of what waits, down to `limit` rows that ended; the number forgotten.

        Only rows that were never shown are forgotten, and from the earliest of them on the time counts as
        not recorded.
        """
        excess = len(self.pending.ended) - limit
        lost = [id_ for id_ in self.pending.ended if id_ in self.pending.fresh][: max(0, excess)]
        for id_ in lost:
            del self.pending.ended[id_]
            self.pending.fresh.discard(id_)
        if lost and self._watch is not None:
            self.pending.watches.clear()
            self._new_watch(self._watch.until, GapReason.LOST)
        return len(lost)

    def forget(self, before: float) -> None:
        """Of the time before nothing is known any more."""
        for watch in list(self.pending.watches.values()):
            if watch.since < before:
                self.pending.watches[watch.id] = _cut(watch, before)
        if self._watch is not None and self._watch.since < before:
            self._watch = _cut(self._watch, before)

    def join(self, stored: StoredHistory, past: Iterable[HoldingRow], watches: Iterable[CoveredSpan]) -> None:
        """Go on in what another place holds, `stored`, although this book has begun by itself.

        `past` are this run's rows that ended, `watches` its times that were looked at, the present one last;
        all of it has to be written there. If another run left the place it may have gone on beside this one
        for a while, until `stored.until`: what it recorded counts once.
        """
        first, own = self._first, list(chain(past, self.rows()))
        self._go_on_from(stored)
        if first is None:
            return
        self._open = {}
        for row in joined(stored.rows, own, stored.until, first.answered):
            numbered = row if row.id else replace(row, id=self._row_id())
            if row.end is None:
                self._open[row.key] = (*self._open.get(row.key, ()), self._noted(numbered))
                self._doubt_joined(numbered, stored.until)
            else:
                self.pending.ended[numbered.id] = numbered
        self._join_watches(stored.until, watches)

    def _doubt_joined(self, row: HoldingRow, until: float | None) -> None:
        """Whether it is still the pod that the other run knew at `until`."""
        uids = {fact.uid for fact in self._present.get(row.key, ())}
        if row.facts.uid in uids:
            self._vague.pop(row.id, None)
        elif row.facts.uid and until is not None:
            self._vague.setdefault(row.id, (Bound(until, None, Certainty.WHILE_DOWN), row.assumed))

    def _join_watches(self, until: float | None, watches: Iterable[CoveredSpan]) -> None:
        current = self._watch
        for watch in watches:
            if until is not None and watch.until <= until and (current is None or watch.id != current.id):
                continue
            since = watch.since if until is None else max(watch.since, until)
            gap = watch.gap or (GapReason.DOWN if until is not None and since > until else None)
            self._new_watch(since, gap, until=max(since, watch.until))

    def _row_id(self) -> int:
        number = self._next_row
        self._next_row += 1
        return number

    def _follow(self, look: PollRecord, *, first: bool) -> None:
        if first:
            self._new_watch(look.times.asked, GapReason.DOWN if self._stored_until is not None else None)
        elif look.gap is not None:
            self._new_watch(look.times.asked, look.gap)
        else:
            self._lengthen(look.times)

    def _new_watch(self, since: float, gap: GapReason | None, *, until: float | None = None) -> None:
        self._note_watch(CoveredSpan(self._next_watch, since, since if until is None else until, gap))
        self._next_watch += 1

    def _note_watch(self, watch: CoveredSpan) -> None:
        self._watch = watch
        self.pending.watches[watch.id] = watch

    def _compare(self, look: PollRecord, *, first: bool) -> None:
        gap = look.gap is not None or first
        for key in dict.fromkeys((*self._open, *self._present)):
            rows, facts = self._open.get(key, ()), self._present.get(key, ())
            if (
                len(rows) == len(facts) == 1
                and rows[0].facts == facts[0]
                and rows[0].id not in self._vague
                and rows[0].missed is None
                and (facts[0].uid or not gap)
            ):
                continue
            kept = self._settle(key, rows, facts, look, first=first)
            if kept:
                self._open[key] = kept
            else:
                self._open.pop(key, None)

    def _settle(
        self,
        key: HoldingKey,
        rows: Sequence[HoldingRow],
        facts: Sequence[HoldingFacts],
        look: PollRecord,
        *,
        first: bool,
    ) -> tuple[HoldingRow, ...]:
        """The rows of `key` after `look`."""
        pairs, gone, new = paired(rows, facts)
        kept = [self._go_on(row, fact, look, first=first) for row, fact in pairs]
        start = self._start(key, look, first=first)
        for row in gone:
            end = row.missed or self._end(look, first=first)
            if not new and self._in_doubt(row, look, first=first):
                kept.append(row if row.missed is not None else self._noted(replace(row, missed=end)))
                continue
            vague, _ = self._vague.pop(row.id, (None, False))
            if vague is not None and vague.not_before is not None:
                # It was listed all the while, yet nobody knows when the one took the other's place.
                end = start = between(vague.not_before, look.times.answered, vague.certainty)
            self._close(row, end)
        for fact in new:
            row = self._noted(HoldingRow(self._row_id(), key, fact, start))
            self.pending.fresh.add(row.id)
            kept.append(row)
        return tuple(kept)

    def _in_doubt(self, row: HoldingRow, look: PollRecord, *, first: bool) -> bool:
        """Whether a row that is not seen may be held all the same. Not if it has been missed for long, by one
        process after another.
        """
        if not self._doubting:
            return False
        if row.missed is None:
            return first
        return look.times.answered < (row.missed.not_after or 0.0) + self._doubt

    def _go_on(self, row: HoldingRow, fact: HoldingFacts, look: PollRecord, *, first: bool) -> HoldingRow:
        """`row`, of which `look` shows that it goes on."""
        crossed = first or look.gap not in {None, GapReason.CLOCK} or row.missed is not None
        last_seen = row.missed or self._end(look, first=first)
        assumed = row.assumed
        if fact.uid and fact.uid == row.facts.uid:
            _, assumed = self._vague.pop(row.id, (None, assumed))
        else:
            if row.facts.uid and not fact.uid:
                self._vague.setdefault(row.id, (last_seen, assumed))
            assumed = assumed or crossed
        facts = HoldingFacts(*(new or old for new, old in zip(fact, row.facts, strict=True)))
        if facts == row.facts and assumed == row.assumed and row.missed is None:
            return row
        return self._noted(replace(row, facts=facts, assumed=assumed, missed=None))

    def _noted(self, row: HoldingRow) -> HoldingRow:
        self.pending.rows[row.id] = row
        return row

    def _start(self, key: HoldingKey, look: PollRecord, *, first: bool) -> Bound:
        times = look.times
        if first:
            if self._stored_until is None:
                return Bound(None, times.answered, Certainty.HELD_ALREADY)
            return between(self._stored_until, times.answered, Certainty.WHILE_DOWN)
        not_before = look.not_before() if key.resource else look.before.asked if look.before else None
        return between(times.asked if not_before is None else not_before, times.answered, certainty(look.gap))

    def _end(self, look: PollRecord, *, first: bool) -> Bound:
        times = look.times
        if first:
            since = times.asked if self._stored_until is None else self._stored_until
            return between(since, times.answered, Certainty.WHILE_DOWN)
        return between(look.before.asked if look.before else times.asked, times.answered, certainty(look.gap))

    def _close(self, row: HoldingRow, end: Bound) -> None:
        self.pending.rows.pop(row.id, None)
        self.pending.ended[row.id] = ended(row, end)

    def _give_up(self) -> None:
        """What has been missing since the start is gone."""
        for key, rows in list(self._open.items()):
            left = tuple(row for row in rows if row.missed is None)
            for row in rows:
                if row.missed is not None:
                    vague, _ = self._vague.pop(row.id, (None, False))
                    self._close(row, row.missed if vague is None else _widened(row.missed, vague))
            if left:
                self._open[key] = left
            else:
                del self._open[key]


def _widened(end: Bound, vague: Bound) -> Bound:
    """`end`, of a row of which it was not known since `vague` whether it was still the same pod's."""
    if vague.not_before is None or end.not_after is None:
        return end
    return between(vague.not_before, end.not_after, vague.certainty)


def _cut(watch: CoveredSpan, before: float) -> CoveredSpan:
    return CoveredSpan(watch.id, before, max(watch.until, before))
