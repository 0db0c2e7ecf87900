"""exporter.mapping.holdings: the diff of snapshots, and the starts of holdings."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history.record import (
    Bound,
    Certainty,
    HoldingFacts,
    HoldingKey,
    HoldingRow,
    RecordedHoldings,
    bounded,
)
from exporter.history.record import present as present_of
from exporter.mapping.holdings import (
    RESTORE_FOR,
    Diff,
    HeldSince,
    Holding,
    HoldingChanges,
    HoldingTracker,
    OpenHolding,
    Renamed,
    diff,
    holdings,
)
from exporter.mapping.identity import UNKNOWN
from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimedKey,
    ClaimHolder,
    DeviceKey,
    HeldKey,
    Holder,
    Snapshot,
)
from exporter.mapping.restart_guard import missing_pods
from harness import scene

QUICK = settings(max_examples=100, deadline=None, derandomize=True)

A, B = DeviceKey("r", "a"), DeviceKey("r", "b")
C = ClaimedKey("drv", "pool", "gpu-0", "", "n", "mine")
D = C._replace(claim="yours")
P, Q = Holder("n", "p", "c"), Holder("n", "q", "c")


def _snapshot(*held: tuple[HeldKey, Holder]) -> Snapshot:
    devices = {key: [who for other, who in held if other == key] for key, _ in held}
    through: dict[ClaimDeviceKey, list[ClaimHolder]] = {}
    for key, holder in held:
        if isinstance(key, ClaimedKey):
            through.setdefault(ClaimDeviceKey(*key[:4]), []).append(ClaimHolder(holder, *key[4:]))
    return scene.snapshot(
        *(
            scene.device(key.device, *holders, resource=key.resource)
            for key, holders in devices.items()
            if isinstance(key, DeviceKey)
        ),
        claims=[ClaimDevice(key, tuple(sorted(found))) for key, found in through.items()],
    )


def test_holdings_through_each_claim_begin_and_end() -> None:
    old, new = _snapshot((A, P), (C, P), (D, P)), _snapshot((B, P), (D, P), (D, Q))
    assert diff(old, new) == Diff(began=(Holding(D, Q), Holding(B, P)), ended=(Holding(C, P), Holding(A, P)))


class _Untouched(ClaimDevice):
    def held(self, through: ClaimHolder) -> ClaimedKey:
        raise AssertionError(through)


def test_unchanged_claims_are_not_compared_again() -> None:
    claims = (_Untouched(ClaimDeviceKey("drv", "pool", "gpu-0"), (ClaimHolder(P, "n", "mine"),)),)
    old, new = (replace(_snapshot((key, P)), claims=claims) for key in (A, B))
    assert diff(old, new) == Diff(began=(Holding(B, P),), ended=(Holding(A, P),))


def _of_pods(held: set[tuple[HeldKey, Holder]], uids: dict[str, str]) -> Snapshot:
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


def test_pod_without_holdings_has_ended() -> None:
    side = P._replace(container="side")
    old = _snapshot((A, P), (B, side), (A, Q))
    assert missing_pods(old, _snapshot((A, Q), (B, side)), ()).keys() == set()
    assert missing_pods(old, _snapshot((B, P)), ()).keys() == {("n", "q")}
    assert missing_pods(old, _snapshot(), ()).keys() == {("n", "p"), ("n", "q")}
    assert missing_pods(_snapshot(), old, ()) == {}


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


_KEYS: tuple[HeldKey, HeldKey] = (A, C)
_script = st.lists(st.lists(st.sampled_from(["", "A", "B", "C", None]), min_size=2, max_size=2), max_size=12)


@QUICK
@given(_script)
def test_another_uid_is_another_holding_and_a_doubtful_uid_is_the_same(
    script: list[list[str | None]],
) -> None:
    """A device and a claimed one of pod p; None: not held. Judged against a tracker as simple as can be."""
    tracker = HoldingTracker()
    tracker.advance(Snapshot(), 0.0)
    known: dict[HeldKey, tuple[str, float]] = {}
    for now, uids in enumerate(script, 1):
        held = [(k, P._replace(pod_uid=u)) for k, u in zip(_KEYS, uids, strict=True) if u is not None]
        step = tracker.advance(_snapshot(*held), float(now))
        began: set[HeldKey] = set()
        ended: set[tuple[HeldKey, str, float]] = set()
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
    name = HoldingKey(key.resource, "", "", key.device, "", "", "", P.namespace, P.pod, P.container)
    return HoldingRow(1, name, HoldingFacts(uid), Bound(90.0, 100.0, certainty))


RESTORED = HeldSince(100.0)
UNKNOWN_START = HeldSince(NOW, exact=False)


@pytest.mark.parametrize(
    ("certainty", "exact"),
    [(Certainty.BETWEEN_POLLS, True), (Certainty.HELD_ALREADY, False), (Certainty.WHILE_DOWN, False)],
)
@pytest.mark.parametrize("late", [False, True])
def test_holdings_of_the_first_snapshot_start_when_history_says(
    certainty: Certainty, exact: bool, late: bool
) -> None:
    """History is `late` if its file becomes readable after the first snapshots."""
    tracker, recorded = HoldingTracker(), RecordedHoldings([row(A, certainty=certainty)])
    if not late:
        tracker.restore(recorded)
    tracker.advance(held(A, B), NOW)
    tracker.advance(_snapshot((A, P), (B, P), (B, Q)), NOW + 1)
    if late:
        tracker.restore(recorded)
    found = (HeldSince(100.0, exact=exact), UNKNOWN_START, HeldSince(NOW + 1))
    assert tuple(tracker.since[Holding(*one)] for one in ((A, P), (B, P), (B, Q))) == found


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


def test_another_uid_is_another_holding_even_if_it_is_proven_after_the_restore() -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings([row(A, uid="u1"), row(B, uid="u1")]))
    second = P._replace(pod_uid="u2")
    tracker.advance(_snapshot((A, P), (B, second)), NOW)
    assert dict(tracker.since) == {Holding(A, P): RESTORED, Holding(B, second): UNKNOWN_START}
    step = tracker.advance(held(A, B, uid="u2"), NOW + 1)
    old = Holding(A, P._replace(pod_uid="u1"))
    assert step.change == Diff(began=(Holding(A, second),), ended=(old,))
    assert [(one.holding, one.seconds) for one in step.released] == [(old, NOW + 1 - 100.0)]
    assert step.since[Holding(A, second)] == HeldSince(NOW + 1)


def test_record_of_a_shortened_name_is_found() -> None:
    key = DeviceKey("r", "x" * 5000)
    name = HoldingKey("r", "", "", bounded(key.device), "", "", "", *P[:3])
    found = RecordedHoldings([HoldingRow(1, name, HoldingFacts(), Bound(90.0, 100.0, Certainty.AT_ONCE))])
    assert found.take(Holding(key, P)) == OpenHolding(100.0, exact=True, uid="")
    assert found.take(Holding(key, P)) is None


def claimed(*claims: str, uid: str = "") -> Snapshot:
    through = tuple(ClaimHolder(P._replace(pod_uid=uid), "n", claim) for claim in claims)
    return Snapshot(claims=(ClaimDevice(ClaimDeviceKey("drv", "pool", "gpu-0", "s1"), through),))


def claim_rows(snapshot: Snapshot, at: float) -> list[HoldingRow]:
    """As history keeps what `snapshot` shows, first seen at `at`."""
    start = Bound(at - 10.0, at, Certainty.BETWEEN_POLLS)
    found = present_of(snapshot, lambda _: UNKNOWN)
    return [HoldingRow(number, key, facts[0], start) for number, (key, facts) in enumerate(found.items(), 1)]


def test_claimed_device_is_restored_for_each_claim() -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings(claim_rows(claimed("mine", uid="u1"), 100.0)))
    snapshot = claimed("mine", "yours")
    tracker.advance(snapshot, NOW)
    (device,) = snapshot.claims
    mine, yours = (Holding(device.held(through), through.holder) for through in device.holders)
    assert dict(tracker.since) == {mine: HeldSince(100.0, exact=True), yours: HeldSince(NOW, exact=False)}
    step = tracker.advance(claimed("mine", "yours", uid="u2"), NOW + 1)
    assert [one.holding.holder.pod_uid for one in step.released] == ["u1"]
    assert sorted(step.since.values(), key=lambda one: one.at) == [
        HeldSince(NOW, exact=False),
        HeldSince(NOW + 1),
    ]
