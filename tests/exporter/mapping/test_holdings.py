"""exporter.mapping.holdings: the diff of snapshots, and the starts of holdings."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history.record import Bound, Certainty, HoldingRow, RecordedHoldings
from exporter.history.record import present as present_of
from exporter.mapping.holdings import (
    RESTORE_FOR,
    Diff,
    HeldSince,
    Holding,
    HoldingChanges,
    HoldingTracker,
    OpenHolding,
    Release,
    Renamed,
    diff,
    holdings,
)
from exporter.mapping.identity import UNKNOWN
from exporter.mapping.model import ClaimHolding, Device, DeviceKey, Holder, Snapshot
from harness import scene

QUICK = settings(max_examples=100, deadline=None, derandomize=True)

A, B = DeviceKey("r", "a"), DeviceKey("r", "b")
C, D = DeviceKey("drv", "gpu-0"), DeviceKey("drv", "gpu-1")
P, Q = Holder("n", "p", "c"), Holder("n", "q", "c")


def _snapshot(*held: tuple[DeviceKey, Holder]) -> Snapshot:
    devices = {key: [who for other, who in held if other == key] for key, _ in held}
    return scene.snapshot(
        *(
            scene.device(key.device, *holders, resource=key.resource)
            for key, holders in devices.items()
            if key.resource == "r"
        ),
        *(_claimed(key, *holders) for key, holders in devices.items() if key.resource != "r"),
    )


def _claimed(key: DeviceKey, *holders: Holder, claim: str = "shared") -> Device:
    through = [ClaimHolding(holder, "n", claim) for holder in holders]
    return scene.claimed(key.device, *through, driver=key.resource, pool="node-1")


def _of_pods(held: set[tuple[DeviceKey, Holder]], uids: dict[str, str]) -> Snapshot:
    return _snapshot(*((key, who._replace(pod_uid=uids.get(who.pod, ""))) for key, who in sorted(held)))


_snapshots = st.builds(
    _of_pods,
    st.sets(
        st.tuples(st.sampled_from([A, B, C, D]), st.sampled_from([P, P._replace(container="d"), Q])),
        max_size=6,
    ),
    st.dictionaries(st.sampled_from(["p", "q"]), st.sampled_from(["uid-1", "uid-2"])),
)


@QUICK
@given(_snapshots, _snapshots)
def test_diff_applied_to_the_old_holdings_gives_the_new(old: Snapshot, new: Snapshot) -> None:
    change = diff(old, new)
    began, ended = set(change.began), set(change.ended)
    before, after = {pair.old for pair in change.renamed}, {pair.new for pair in change.renamed}
    assert (holdings(old) - ended - before) | began | after == holdings(new)
    for was, now in change.renamed:
        assert was.unnamed() == now.unnamed()
        assert (was.holder.pod_uid == "") != (now.holder.pod_uid == "")
    assert not before & ended
    assert not after & began
    assert not began & holdings(old)
    assert ended <= holdings(old)
    assert list(change.began) == sorted(began)
    assert list(change.ended) == sorted(ended)
    back = tuple(sorted(Renamed(pair.new, pair.old) for pair in change.renamed))
    assert diff(new, old) == Diff(began=change.ended, ended=change.began, renamed=back)


@QUICK
@given(st.lists(_snapshots, min_size=1, max_size=5), st.data())
def test_tracker_follows_the_holdings_exactly(snapshots: list[Snapshot], data: st.DataObject) -> None:
    tracker = HoldingTracker()
    began: Counter[Holding] = Counter()
    ended: Counter[Holding] = Counter()
    previous: dict[Holding, HeldSince] = {}
    shown: HoldingChanges | None = None
    for number, snapshot in enumerate(snapshots):
        now = data.draw(st.floats(0, 1e9))
        step = tracker.advance(snapshot, now)
        assert set(step.since) == holdings(snapshot)
        went_on = {pair.new: pair.old for pair in step.change.renamed}
        for holding, since in step.since.items():
            began_now = number > 0 and holding in step.change.began
            fresh = HeldSince(now, exact=number > 0)
            assert since == (fresh if began_now else previous.get(went_on.get(holding, holding), fresh))
        assert [released.holding for released in step.released] == list(step.change.ended)
        assert all(released.seconds >= 0 for released in step.released)
        assert shown is None or dict(shown.since) == previous, "changes that were returned never change"
        began.update(holding.unnamed() for holding in step.change.began)
        ended.update(holding.unnamed() for holding in step.change.ended)
        previous, shown = dict(step.since), step
    held_at_first = Counter(holding.unnamed() for holding in holdings(snapshots[0]))
    assert held_at_first + began - ended == Counter(h.unnamed() for h in holdings(snapshots[-1]))


_KEYS: tuple[DeviceKey, DeviceKey] = (A, C)
_script = st.lists(st.lists(st.sampled_from(["", "A", "B", "C", None]), min_size=2, max_size=2), max_size=12)


@QUICK
@given(_script)
def test_another_uid_is_another_holding_and_a_doubtful_uid_is_the_same(
    script: list[list[str | None]],
) -> None:
    """A device and a claimed one of pod p; None: not held. Judged against a tracker as simple as can be."""
    tracker = HoldingTracker()
    tracker.advance(Snapshot(), 0.0)
    known: dict[DeviceKey, tuple[str, float]] = {}
    for now, uids in enumerate(script, 1):
        held = [(k, P._replace(pod_uid=u)) for k, u in zip(_KEYS, uids, strict=True) if u is not None]
        step = tracker.advance(_snapshot(*held), float(now))
        began: set[DeviceKey] = set()
        ended: set[tuple[DeviceKey, str, float]] = set()
        for key, uid in zip(_KEYS, uids, strict=True):
            before = known.get(key)
            if before is not None and (uid is None or (uid and before[0] and uid != before[0])):
                ended.add((key, before[0], float(now - before[1])))
                del known[key]
                before = None
            if uid is not None:
                if before is None:
                    began.add(key)
                known[key] = (uid, now) if before is None else (uid or before[0], before[1])
        assert {holding.key for holding in step.change.began} == began
        released = {(one.holding.key, one.holding.holder.pod_uid, one.seconds) for one in step.released}
        assert released == ended
        assert [one.holding for one in step.released] == list(step.change.ended)
        assert {h.key: since.at for h, since in step.since.items()} == {
            key: since for key, (_, since) in known.items()
        }
        assert set(step.since) == set(holdings(_snapshot(*held)))


NOW = 1000.0


def held(*keys: DeviceKey, uid: str = "") -> Snapshot:
    return _snapshot(*((key, P._replace(pod_uid=uid)) for key in keys))


def row(key: DeviceKey, *, uid: str = "", certainty: Certainty = Certainty.BETWEEN_POLLS) -> HoldingRow:
    """As history keeps a holding of the pod p, first seen at 100."""
    ((name, (facts,)),) = present_of(held(key, uid=uid), lambda _: UNKNOWN).items()
    return HoldingRow(1, name, facts, Bound(90.0, 100.0, certainty))


RESTORED = HeldSince(100.0)
UNKNOWN_START = HeldSince(NOW, exact=False)


@pytest.mark.parametrize(
    ("certainty", "exact"),
    [(Certainty.BETWEEN_POLLS, True), (Certainty.HELD_ALREADY, False), (Certainty.WHILE_DOWN, False)],
)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("one", "other"), [(A, B), (C, D)], ids=["devices", "claims"])
def test_holdings_of_the_first_snapshot_start_when_history_says(
    certainty: Certainty, exact: bool, late: bool, one: DeviceKey, other: DeviceKey
) -> None:
    """History is `late` if its file becomes readable after the first snapshots."""
    tracker, recorded = HoldingTracker(), RecordedHoldings([row(one, certainty=certainty)])
    if not late:
        tracker.restore(recorded)
    tracker.advance(held(one, other), NOW)
    tracker.advance(_snapshot((one, P), (other, P), (other, Q)), NOW + 1)
    if late:
        tracker.restore(recorded)
    found = (HeldSince(100.0, exact=exact), UNKNOWN_START, HeldSince(NOW + 1))
    assert tuple(tracker.since[Holding(*it)] for it in ((one, P), (other, P), (other, Q))) == found


@pytest.mark.parametrize(
    ("snapshots", "since"),
    [
        # The first List is empty: what comes within RESTORE_FOR seconds is restored, later holdings are not.
        ([(NOW, ()), (NOW + 1, (A,)), (NOW + RESTORE_FOR + 1, (A, B))], [100.0, NOW + RESTORE_FOR + 1]),
        # A holding that begins again is a new one.
        ([(NOW, (A, B)), (NOW + 1, (B,)), (NOW + 2, (A, B))], [NOW + 2, 100.0]),
    ],
)
def test_each_record_restores_one_start_just_after_the_first_snapshot(
    snapshots: list[tuple[float, tuple[DeviceKey, ...]]], since: list[float]
) -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings([row(A), row(B)]))
    for now, keys in snapshots:
        tracker.advance(held(*keys), now)
    assert [tracker.since[Holding(key, P)].at for key in (A, B)] == since


@pytest.mark.parametrize(("one", "other"), [(A, B), (C, D)], ids=["devices", "claims"])
def test_another_uid_is_another_holding_even_if_it_is_proven_after_the_restore(
    one: DeviceKey, other: DeviceKey
) -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings([row(one, uid="u1"), row(other, uid="u1")]))
    second = P._replace(pod_uid="u2")
    tracker.advance(_snapshot((one, P), (other, second)), NOW)
    assert dict(tracker.since) == {Holding(one, P): RESTORED, Holding(other, second): UNKNOWN_START}
    step = tracker.advance(held(one, other, uid="u2"), NOW + 1)
    old = Holding(one, P._replace(pod_uid="u1"))
    assert step.change == Diff(began=(Holding(one, second),), ended=(old,))
    assert [(released.holding, released.seconds) for released in step.released] == [(old, NOW + 1 - 100.0)]
    assert step.since[Holding(one, second)] == HeldSince(NOW + 1)


@pytest.mark.parametrize("late", [False, True])
def test_record_through_another_claim_is_of_another_pod_unless_the_uid_says_no(late: bool) -> None:
    known = P._replace(pod_uid="u1")
    recorded = RecordedHoldings([row(C), row(D, uid="u1")])
    tracker = HoldingTracker()
    if not late:
        tracker.restore(recorded)
    tracker.advance(Snapshot((_claimed(C, P, claim="own"), _claimed(D, known, claim="own"))), NOW)
    if late:
        tracker.restore(recorded)
    assert dict(tracker.since) == {Holding(C, P): UNKNOWN_START, Holding(D, known): RESTORED}


def test_record_of_a_shortened_name_is_found() -> None:
    key = DeviceKey("r", "x" * 5000)
    found = RecordedHoldings([row(key)])
    assert found.take(Holding(key, P)) == OpenHolding(100.0, exact=True, uid="")
    assert found.take(Holding(key, P)) is None


def test_holding_through_another_claim_is_another_one() -> None:
    """A pod's successor of the same name has claims of its own."""
    tracker = HoldingTracker()
    tracker.advance(scene.snapshot(_claimed(C, P, claim="one")), 1.0)
    assert not tracker.advance(scene.snapshot(_claimed(C, P, claim="one")), 5.0).change.began
    changes = tracker.advance(scene.snapshot(_claimed(C, P, claim="two")), 9.0)
    held = Holding(C, P)
    assert (changes.change.began, changes.change.ended) == ((held,), (held,))
    assert changes.since == {held: HeldSince(9.0)}
    assert changes.released == (Release(held, 8.0),)


def test_administration_is_not_holding() -> None:
    watcher = ClaimHolding(P, "n", "watch", admin=True)
    assert holdings(scene.snapshot(scene.claimed("gpu-0", watcher))) == frozenset()
