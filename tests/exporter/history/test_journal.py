"""exporter.history.journal: rows and their bounds, over polls, restarts and gaps."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history.coverage import CoveredSpan, GapReason, PollRecord, PollSequence, PollTimes
from exporter.history.journal import Journal, StoredHistory
from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow, Present
from exporter.history.record import present as present_of
from exporter.mapping.holdings import HoldingTracker
from exporter.mapping.identity import UNKNOWN
from exporter.mapping.model import Snapshot
from exporter.mapping.snapshot import build
from harness.answers import listings

PATIENCE, DOUBT = 16.0, 10.0


def key(device: str, pod: str = "p") -> HoldingKey:
    return HoldingKey("example.com/gpu", "", "", device, "", "", "", "ns", pod, "main")


A, B = key("gpu-0"), key("gpu-1")
CLAIM = HoldingKey("", "driver.example", "pool", "gpu-0", "", "ns", "claim", "ns", "p", "main")


@dataclass
class Exporter:
    """A book with its looks and its disk, and a process that can die. `steady` and `wall` are set by hand."""

    wall: float = 1000.0
    steady: float = 1000.0
    rows: dict[int, HoldingRow] = field(default_factory=dict[int, HoldingRow])
    past: dict[int, HoldingRow] = field(default_factory=dict[int, HoldingRow])
    watches: dict[int, CoveredSpan] = field(default_factory=dict[int, CoveredSpan])
    answering: float = 0.01

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process, with what the disk has."""
        until = max((watch.until for watch in self.watches.values()), default=None)
        ids = [*self.rows, *self.past, 0]
        stored = StoredHistory(tuple(self.rows.values()), until, max(ids) + 1, max([*self.watches, 0]) + 1)
        self.sight, self.book = PollSequence(PATIENCE), Journal(DOUBT, stored)

    def write(self) -> None:
        pending = self.book.pending
        self.rows.update(pending.rows)
        for number, row in pending.ended.items():
            self.rows.pop(number, None)
            self.past[number] = row
        self.watches.update(pending.spans)
        self.book.written()

    def look(self, found: Present, *, after: float = 5.0, told: bool = False) -> PollRecord:
        """Look so many seconds later, and write."""
        self.wall += after
        self.steady += after
        times = PollTimes(self.wall, self.wall + self.answering, self.steady + self.answering)
        look = self.sight.add(times, found, by_event=told)
        self.book.take(look)
        self.write()
        return look

    def open(self, number: HoldingKey) -> HoldingRow:
        (row,) = (row for row in self.rows.values() if row.key == number)
        return row

    def ended(self, number: HoldingKey) -> HoldingRow:
        (row,) = (row for row in self.past.values() if row.key == number)
        return row


def held(*keys: HoldingKey, uid: str = "") -> Present:
    return {key: (HoldingFacts(uid),) for key in keys}


def test_start_is_unknown_for_holdings_of_the_first_poll() -> None:
    exporter = Exporter()
    look = exporter.look(held(A))
    assert exporter.open(A).start == Bound(None, look.times.answered, Certainty.HELD_ALREADY)


def test_start_and_end_lie_between_two_polls() -> None:
    exporter = Exporter()
    one = exporter.look(held())
    two = exporter.look(held(A))
    three = exporter.look(held())
    row = exporter.ended(A)
    assert row.start == Bound(one.times.asked, two.times.answered, Certainty.BETWEEN_POLLS)
    assert row.end == Bound(two.times.asked, three.times.answered, Certainty.BETWEEN_POLLS)


def test_polls_within_a_second_give_certainty_at_once() -> None:
    exporter = Exporter()
    exporter.look(held())
    exporter.look(held(A), after=0.5)
    assert exporter.open(A).start.certainty is Certainty.AT_ONCE


def test_allocation_event_narrows_the_start_of_plugin_devices_only() -> None:
    exporter = Exporter()
    one = exporter.look(held())
    two = exporter.look(held(A, CLAIM), after=4.0, told=True)
    assert exporter.open(A).start == Bound(two.times.asked - 0.75, two.times.answered, Certainty.AT_ONCE)
    assert exporter.open(CLAIM).start == Bound(one.times.asked, two.times.answered, Certainty.BETWEEN_POLLS)


def test_event_narrows_nothing_after_a_failed_or_overlapping_poll() -> None:
    exporter = Exporter()
    one = exporter.look(held())
    exporter.sight.fail()
    exporter.look(held(A), after=4.0, told=True)
    assert exporter.open(A).start.not_before == one.times.asked
    exporter.answering = 3.0
    slow = exporter.look(held(A), after=5.0)
    exporter.answering = 0.01
    exporter.look(held(A, B), after=3.1, told=True)
    assert exporter.open(B).start.not_before == slow.times.asked


def test_start_survives_a_restart() -> None:
    exporter = Exporter()
    exporter.look(held())
    exporter.look(held(A, uid="u1"))
    before = exporter.open(A)
    exporter.start()
    exporter.look(held(A, uid="u1"), after=60.0)
    assert exporter.open(A) == before
    assert not exporter.past


def test_release_while_down_lies_between_last_and_first_poll() -> None:
    exporter = Exporter()
    exporter.look(held(A))
    last = exporter.look(held(A))
    exporter.start()
    first = exporter.look(held(B), after=60.0)
    # In doubt at first: the kubelet may have just come up, and list nobody.
    assert exporter.open(A).missed == Bound(last.times.asked, first.times.answered, Certainty.WHILE_DOWN)
    exporter.look(held(B), after=DOUBT + 1)
    assert exporter.ended(A).end == Bound(last.times.asked, first.times.answered, Certainty.WHILE_DOWN)
    assert exporter.open(B).start == Bound(last.times.asked, first.times.answered, Certainty.WHILE_DOWN)


def test_missing_holdings_end_after_the_doubt_without_other_changes() -> None:
    exporter = Exporter()
    exporter.look(held(A))
    exporter.start()
    exporter.look(held())
    exporter.book.extend(PollTimes(exporter.wall + 9, exporter.wall + 9, exporter.steady + 9))
    exporter.write()
    assert exporter.open(A).missed is not None
    exporter.book.extend(PollTimes(exporter.wall + 11, exporter.wall + 11, exporter.steady + 11))
    exporter.write()
    assert exporter.ended(A).end is not None


def test_empty_first_list_ends_no_holding() -> None:
    exporter = Exporter()
    exporter.look(held())
    exporter.look(held(A, B, uid="u1"))
    before = exporter.open(A)
    exporter.start()
    exporter.look({}, after=3.0)
    exporter.look(held(A, B, uid="u1"), after=1.0)
    assert exporter.open(A) == before
    assert not exporter.past


def test_doubt_ends_despite_repeated_crashes() -> None:
    exporter = Exporter()
    last = exporter.look(held(A))
    exporter.start()
    first = exporter.look(held(), after=2.0)
    for _ in range(3):
        exporter.start()
        exporter.look(held(), after=4.0)
    assert exporter.ended(A).end == Bound(last.times.asked, first.times.answered, Certainty.WHILE_DOWN)


def test_other_uid_after_a_restart_is_another_holding() -> None:
    exporter = Exporter()
    exporter.look(held(A, uid="u1"))
    exporter.start()
    exporter.look(held(A, uid="u2"), after=60.0)
    assert exporter.ended(A).facts.uid == "u1"
    assert exporter.ended(A).end == exporter.open(A).start
    assert exporter.open(A).facts.uid == "u2"
    assert exporter.open(A).start.certainty is Certainty.WHILE_DOWN


def test_without_a_uid_the_same_pod_is_assumed_after_a_gap() -> None:
    exporter = Exporter()
    exporter.look(held(A))
    exporter.look(held(A))
    assert not exporter.open(A).assumed
    exporter.start()
    exporter.look(held(A))
    assert exporter.open(A).assumed


def test_late_uid_confirms_or_refutes_the_assumption() -> None:
    exporter = Exporter()
    last = exporter.look(held(A, B, uid="u1"))
    exporter.start()
    exporter.look(held(A, B), after=60.0)
    assert exporter.open(A).assumed
    told = exporter.look({**held(A, uid="u1"), **held(B, uid="u2")}, after=0.1)
    assert not exporter.open(A).assumed
    assert exporter.ended(B).facts.uid == "u1"
    assert exporter.ended(B).end == Bound(last.times.asked, told.times.answered, Certainty.WHILE_DOWN)
    assert exporter.open(B).start == exporter.ended(B).end


def test_successor_is_not_dated_by_polls_without_a_uid() -> None:
    """A successor listed under the old name, and another crash before its uid was told."""
    exporter = Exporter()
    exporter.look(held(A, uid="one"))
    proven = exporter.look(held(A, uid="one"))
    exporter.start()
    exporter.look(held(A))
    exporter.start()
    found = exporter.look(held(A, uid="two"))
    (row,) = exporter.past.values()
    assert row.end is not None
    assert row.facts.uid == "one"
    assert row.end.not_before is not None
    assert row.end.not_before <= proven.times.asked
    assert row.end.not_after == found.times.answered
    successor = exporter.open(A)
    assert successor.facts.uid == "two"
    assert successor.start.not_before is not None
    assert successor.start.not_before <= proven.times.asked


def test_end_without_a_uid_may_be_as_early_as_the_last_proof() -> None:
    exporter = Exporter()
    proven = exporter.look(held(A, uid="one"))
    exporter.start()
    exporter.look(held(A))
    exporter.start()
    exporter.look(held(B))
    exporter.look(held(B), after=2 * DOUBT)
    (row,) = exporter.past.values()
    assert row.end is not None
    assert row.end.not_before is not None
    assert row.end.not_before <= proven.times.answered


def test_later_facts_belong_to_the_same_holding() -> None:
    exporter = Exporter()
    exporter.look(held(A))
    number = exporter.open(A).id
    exporter.look({A: (HoldingFacts("u1", "Deployment", "web", "GPU-0"),)})
    exporter.look({A: (HoldingFacts(),)})
    row = exporter.open(A)
    assert (row.id, row.facts) == (number, HoldingFacts("u1", "Deployment", "web", "GPU-0"))


def test_silent_kubelet_leaves_a_gap() -> None:
    exporter = Exporter()
    exporter.look(held())
    last = exporter.look(held())
    exporter.sight.fail()
    first = exporter.look(held(A), after=PATIENCE + 1)
    assert exporter.open(A).start == Bound(last.times.asked, first.times.answered, Certainty.WHILE_SILENT)
    gaps = [watch.gap for watch in exporter.watches.values()]
    assert gaps == [None, GapReason.SILENT]


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_bounds_stay_in_order_when_the_clock_is_set(step: float) -> None:
    exporter = Exporter(wall=1e6)
    exporter.look(held())
    exporter.look(held(A))
    exporter.wall += step
    look = exporter.look(held())
    assert look.gap is GapReason.CLOCK
    row = exporter.ended(A)
    assert row.end is not None
    assert row.end.not_before is not None
    assert row.end.not_after is not None
    assert row.start.not_after is not None
    assert row.low <= row.start.not_after <= row.end.not_after
    assert row.end.not_before <= row.end.not_after


def test_trim_drops_only_rows_never_written() -> None:
    exporter = Exporter()
    exporter.look(held(A))

    def look(found: Present) -> None:
        exporter.steady += 5.0
        exporter.wall += 5.0
        times = PollTimes(exporter.wall, exporter.wall, exporter.steady)
        exporter.book.take(exporter.sight.add(times, found, by_event=False))

    for number in range(10):
        look(held(key(f"x{number}")))
    look({})
    assert len(exporter.book.pending.ended) == 11
    assert exporter.book.trim(4) == 7
    exporter.write()
    assert exporter.ended(A).end is not None
    assert [row.key.device for row in exporter.past.values()] == ["gpu-0", "x7", "x8", "x9"]
    assert exporter.watches[max(exporter.watches)].gap is GapReason.LOST


_uids = st.sampled_from(["", "u1", "u2"])
_presents = st.dictionaries(
    st.sampled_from([A, B, key("gpu-0", "q"), CLAIM]),
    st.lists(_uids, min_size=1, max_size=2, unique=True).map(
        lambda found: tuple(HoldingFacts(uid) for uid in found)
    ),
    max_size=4,
)
_acts = st.one_of(
    st.tuples(st.just("look"), _presents, st.sampled_from([0.06, 1.0, 5.0, 30.0]), st.booleans()),
    st.tuples(st.sampled_from(["restart", "crash", "silence"]), st.floats(0.1, 100.0)),
    st.tuples(st.just("clock"), st.floats(-1e4, 1e4)),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(_acts, max_size=25))
def test_open_rows_are_the_present_holders_through_restarts_crashes_and_clocks(
    acts: list[tuple[object, ...]],
) -> None:
    exporter = Exporter(wall=1e6)
    shown: dict[int, HoldingRow] = {}
    for act in acts:
        match act:
            case ("look", found, float(after), bool(told)):
                exporter.look(found, after=after, told=told)  # type: ignore[arg-type] # as drawn
                _check_present(exporter, found)  # type: ignore[arg-type] # as drawn
            case ("restart", float(after)) | ("crash", float(after)):
                exporter.steady += after
                exporter.wall += after
                exporter.start()
            case ("silence", float(after)):
                exporter.sight.fail()
                exporter.steady += after
                exporter.wall += after
            case ("clock", float(step)):
                exporter.wall += step
            case _:
                raise AssertionError(act)
        for row in exporter.past.values():
            _check_bounds(row)
        # Nothing that ended is ever changed or lost.
        assert shown.items() <= exporter.past.items()
        shown.update(exporter.past)
        assert not exporter.rows.keys() & exporter.past.keys()
        assert all(watch.since <= watch.until for watch in exporter.watches.values())


def _check_present(exporter: Exporter, found: Present) -> None:
    assert {row.id: row for row in exporter.book.rows()} == exporter.rows
    rows = [row for row in exporter.rows.values() if row.missed is None]
    for name in {row.key for row in rows} | found.keys():
        known = [row.facts.uid for row in rows if row.key == name]
        facts = found.get(name, ())
        assert len(known) == len(facts)
        # A uid that is seen is a row's; one that is in doubt may be remembered.
        assert {fact.uid for fact in facts if fact.uid} <= set(known)


def _check_bounds(row: HoldingRow) -> None:
    assert row.end is not None
    for bound in (row.start, row.end):
        assert bound.not_after is not None
        assert bound.not_before is None or bound.not_before <= bound.not_after
    assert row.end.not_before is not None
    assert row.start.not_before is None or row.start.not_before <= row.end.not_before
    assert row.start.not_after is not None
    assert row.low <= row.high
    assert row.end.not_after is not None
    assert row.start.not_after <= row.end.not_after


_snapshots = listings().map(lambda listed: build(listed, None))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(_snapshots, min_size=1, max_size=5))
def test_journal_begins_and_ends_match_the_mapping(snapshots: list[Snapshot]) -> None:
    exporter, tracker = Exporter(), HoldingTracker()
    began = ended = 0
    for number, snapshot in enumerate(snapshots):
        step = tracker.advance(snapshot, float(number))
        began += len(step.change.began) if number else len(step.since)
        ended += len(step.released)
        exporter.look(present_of(snapshot, lambda _: UNKNOWN), after=5.0)
    rows = list(_all(exporter))
    assert len(rows) == began
    assert sum(row.end is not None for row in rows) == ended


def _all(exporter: Exporter) -> Iterable[HoldingRow]:
    return [*exporter.rows.values(), *exporter.past.values()]


def test_joined_run_continues_the_stored_one() -> None:
    old = Exporter()
    old.look(held())
    old.look(held(A, B, uid="u1"))
    until = max(watch.until for watch in old.watches.values())
    stored = StoredHistory(tuple(old.rows.values()), until, 100, 100)

    new = Exporter(wall=old.wall + 60, steady=0.0)
    first = new.look(held(A, key("gpu-2"), uid="u1"))
    new.look(held(A, key("gpu-3"), uid="u1"))
    new.book.join(stored, list(new.past.values()), list(new.watches.values()))
    new.rows, new.past, new.watches = {row.id: row for row in stored.rows}, {}, {}
    new.write()
    assert new.open(A) == old.open(A)
    assert new.ended(B).end == Bound(until, first.times.answered, Certainty.WHILE_DOWN)
    assert new.ended(key("gpu-2")).start == Bound(until, first.times.answered, Certainty.WHILE_DOWN)
    assert new.open(key("gpu-3")).start.certainty is Certainty.BETWEEN_POLLS
    assert [watch.gap for watch in new.watches.values()] == [GapReason.DOWN]
    new.look(held(), after=5.0)
    assert not new.rows


def test_holdings_seen_by_two_exporters_are_joined() -> None:
    old, new = Exporter(), Exporter()
    old.look(held(A))
    new.look(held(A))
    for found in (held(A, B), held(A), held(A, key("gpu-2"))):
        old.look(found)
        new.look(found)
    stored = StoredHistory(
        tuple(old.rows.values()), max(watch.until for watch in old.watches.values()), 100, 100
    )
    new.look(held(key("gpu-2")))
    new.look(held(key("gpu-4")))
    new.book.join(stored, list(new.past.values()), list(new.watches.values()))
    new.rows, new.past, new.watches = dict(old.rows), dict(old.past), dict(old.watches)
    new.write()
    told = sorted(row.key.device for row in _all(new))
    assert told == ["gpu-0", "gpu-1", "gpu-2", "gpu-4"]
    assert not new.ended(A).assumed
    assert [row.key.device for row in new.rows.values()] == ["gpu-4"]


def test_names_of_any_length_stay_distinct() -> None:
    long = "x" * 5000
    one = present_of(_of(long + "a", "\ud800"), lambda _: UNKNOWN)
    two = present_of(_of(long + "b", "\ud800"), lambda _: UNKNOWN)
    (first,), (second,) = one, two
    assert first != second
    assert len(first.device) <= 1024
    for name in first:
        name.encode()


def _of(device: str, pod: str) -> Snapshot:
    from exporter.mapping.model import Device, DeviceKey, Holder  # noqa: PLC0415 -- for this alone

    return Snapshot(devices=(Device(DeviceKey("r", device), holders=(Holder("n", pod, "c"),)),))


def test_known_facts_change_no_row() -> None:
    exporter = Exporter()
    exporter.look(held(A, uid="u1"))
    row = exporter.open(A)
    exporter.book.take(
        exporter.sight.add(PollTimes(1e4, 1e4, exporter.steady + 5), held(A, uid="u1"), by_event=False)
    )
    assert exporter.book.pending.changes == 0
    assert exporter.open(A) == replace(row)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.sets(st.sampled_from([A, B, CLAIM])), min_size=1, max_size=14),
    st.integers(0, 13),
    st.integers(0, 13),
    st.booleans(),
)
def test_two_runs_join_with_each_holding_once(
    truth: list[set[HoldingKey]], old_until: int, new_from: int, named: bool
) -> None:
    """One exporter looks from the beginning to `old_until`, another from `new_from` to the end."""
    runs: dict[HoldingKey, list[str]] = {}
    seen: set[str] = set()
    old, new = Exporter(), Exporter()
    before: set[HoldingKey] = set()
    for step, holding in enumerate(truth):
        for started in holding - before:
            names = runs.setdefault(started, [])
            names.append(f"{started.device}{started.driver}-{len(names)}")
        before = holding
        present: Present = {name: (HoldingFacts(runs[name][-1] if named else ""),) for name in holding}
        for exporter, looks in ((old, step <= old_until), (new, step >= new_from)):
            if looks:
                seen.update(runs[name][-1] for name in holding)
                exporter.look(present, after=5.0)
            else:
                exporter.wall, exporter.steady = exporter.wall + 5.0, exporter.steady + 5.0
    until = max((watch.until for watch in old.watches.values()), default=None)
    # The other's doubt is over: it has not restarted.
    new.book.join(
        StoredHistory(tuple(old.rows.values()), until, 1000, 1000), new.past.values(), new.watches.values()
    )
    account = Exporter(rows=dict(old.rows), past=dict(old.past), watches=dict(old.watches))
    account.book = new.book
    account.write()
    if new_from >= len(truth):
        # It has seen nothing: all is as the other left it.
        assert account.rows == old.rows
        return
    last = truth[-1]
    assert {row.key for row in account.rows.values()} == last
    if named:
        told = [row.facts.uid for row in _all(account)]
        assert sorted(told) == sorted(seen)
    for row in account.past.values():
        _check_bounds(row)
