"""exporter.core.diff and holdings: what changed, since when each holding is, and what was counted."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.diff import Diff, Holding, diff, holdings, pods_gone
from exporter.core.holdings import Ledger, Released, Since
from exporter.core.model import Container, Device, DeviceKey, Holder, Snapshot
from exporter.core.snapshot import build
from harness.answers import listings

QUICK = settings(max_examples=60, deadline=None, derandomize=True)

_snapshots = listings().map(lambda listed: build(listed, None))

A, B = DeviceKey("r", "a"), DeviceKey("r", "b")
P, Q = Holder("n", "p", "c"), Holder("n", "q", "c")


def _snapshot(*held: tuple[DeviceKey, Holder]) -> Snapshot:
    keys = sorted({key for key, _ in held})
    return Snapshot(
        devices=tuple(
            Device(key, holders=tuple(sorted(holder for other, holder in held if other == key)))
            for key in keys
        ),
        containers=tuple(Container(holder) for holder in sorted({holder for _, holder in held})),
    )


def test_a_change_names_what_began_and_what_ended() -> None:
    old, new = _snapshot((A, P), (B, P)), _snapshot((A, Q), (B, P))
    assert diff(old, new) == Diff(began=(Holding(A, Q),), ended=(Holding(A, P),))


@QUICK
@given(_snapshots, _snapshots)
def test_a_difference_applied_to_the_old_gives_the_new(old: Snapshot, new: Snapshot) -> None:
    change = diff(old, new)
    began, ended = set(change.began), set(change.ended)
    assert (holdings(old) - ended) | began == holdings(new)
    assert not began & holdings(old)
    assert ended <= holdings(old)
    assert list(change.began) == sorted(began)
    assert list(change.ended) == sorted(ended)
    assert diff(new, old) == Diff(began=change.ended, ended=change.began)


@QUICK
@given(_snapshots)
def test_nothing_changed_between_a_snapshot_and_itself(snapshot: Snapshot) -> None:
    assert diff(snapshot, snapshot) == Diff()
    assert pods_gone(snapshot, snapshot) == frozenset()


def test_a_pod_is_gone_when_none_of_its_containers_holds_anything() -> None:
    side = P._replace(container="side")
    old = _snapshot((A, P), (B, side), (A, Q))
    assert pods_gone(old, _snapshot((A, Q), (B, side))) == frozenset()
    assert pods_gone(old, _snapshot((B, P))) == {("n", "q")}
    assert pods_gone(old, _snapshot()) == {("n", "p"), ("n", "q")}
    assert pods_gone(_snapshot(), old) == frozenset()


def test_what_is_held_at_the_first_look_began_nobody_knows_when() -> None:
    step = Ledger().advance(_snapshot((A, P)), 100.0)
    assert (step.change, step.released) == (Diff(), ())
    assert dict(step.since) == {Holding(A, P): Since(100.0, exact=False)}


def test_what_begins_later_began_when_it_was_seen_and_what_ends_lasted_until_then() -> None:
    ledger = Ledger()
    ledger.advance(_snapshot((A, P)), 100.0)
    step = ledger.advance(_snapshot((A, P), (B, Q)), 107.0)
    assert dict(step.since) == {Holding(A, P): Since(100.0, exact=False), Holding(B, Q): Since(107.0)}
    step = ledger.advance(_snapshot((B, Q)), 130.0)
    assert step.released == (Released(Holding(A, P), 30.0),)
    assert dict(step.since) == {Holding(B, Q): Since(107.0)}
    step = ledger.advance(_snapshot((A, P), (B, Q)), 140.0)
    assert step.since[Holding(A, P)] == Since(140.0)


def test_a_clock_that_was_set_back_makes_no_time_negative() -> None:
    ledger = Ledger()
    ledger.advance(_snapshot((A, P)), 100.0)
    step = ledger.advance(_snapshot(), 40.0)
    assert step.released == (Released(Holding(A, P), 0.0),)


def test_a_step_that_was_handed_out_does_not_change_any_more() -> None:
    ledger = Ledger()
    first = ledger.advance(_snapshot((A, P)), 1.0)
    before = dict(first.since)
    ledger.advance(_snapshot((B, Q)), 2.0)
    assert dict(first.since) == before


@QUICK
@given(st.lists(_snapshots, min_size=1, max_size=5), st.data())
def test_the_ledger_follows_exactly_what_is_held(snapshots: list[Snapshot], data: st.DataObject) -> None:
    ledger = Ledger()
    began: Counter[Holding] = Counter()
    ended: Counter[Holding] = Counter()
    previous: dict[Holding, Since] = {}
    for number, snapshot in enumerate(snapshots):
        now = data.draw(st.floats(0, 1e9))
        step = ledger.advance(snapshot, now)
        assert set(step.since) == holdings(snapshot)
        for holding, since in step.since.items():
            assert since == previous.get(holding, Since(now, exact=number > 0))
        assert [released.holding for released in step.released] == list(step.change.ended)
        for released in step.released:
            assert released.seconds == max(0.0, now - previous[released.holding].at)
        began.update(step.change.began)
        ended.update(step.change.ended)
        previous = dict(step.since)
    held_at_first = Counter(holdings(snapshots[0]))
    assert held_at_first + began - ended == Counter(holdings(snapshots[-1]))
