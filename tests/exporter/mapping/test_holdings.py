"""exporter.mapping.holdings: the diff of snapshots, and the starts of holdings."""

from collections import Counter
from dataclasses import replace

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
    Diff,
    HeldSince,
    Holding,
    HoldingTracker,
    OpenHolding,
    Release,
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
    Container,
    Device,
    DeviceKey,
    HeldKey,
    Holder,
    Snapshot,
)
from exporter.mapping.restart_guard import missing_pods
from exporter.mapping.snapshot import build
from harness.answers import listings
from kubelet.pb.podresources.v1 import api_pb2

QUICK = settings(max_examples=60, deadline=None, derandomize=True)

_uids = st.dictionaries(
    st.tuples(st.sampled_from(["default", "kube-system"]), st.sampled_from(["a", "b", "c-0", "c-1"])),
    st.sampled_from(["", "uid-1", "uid-2"]),
)


def _built(listed: api_pb2.ListPodResourcesResponse, uids: dict[tuple[str, str], str]) -> Snapshot:
    return build(listed, None, pod_uids=uids)


_snapshots = st.builds(_built, listings(), _uids)

A, B = DeviceKey("r", "a"), DeviceKey("r", "b")
C = ClaimedKey("drv", "pool", "gpu-0", "", "n", "mine")
D = C._replace(claim="yours")
P, Q = Holder("n", "p", "c"), Holder("n", "q", "c")


def _snapshot(*held: tuple[HeldKey, Holder]) -> Snapshot:
    keys = sorted({key for key, _ in held if isinstance(key, DeviceKey)})
    through: dict[ClaimDeviceKey, list[ClaimHolder]] = {}
    for key, holder in held:
        if isinstance(key, ClaimedKey):
            through.setdefault(ClaimDeviceKey(*key[:4]), []).append(ClaimHolder(holder, *key[4:]))
    return Snapshot(
        devices=tuple(
            Device(key, holders=tuple(sorted(holder for other, holder in held if other == key)))
            for key in keys
        ),
        claims=tuple(ClaimDevice(key, tuple(sorted(found))) for key, found in sorted(through.items())),
        containers=tuple(Container(holder) for holder in sorted({holder for _, holder in held})),
    )


def test_diff_has_what_began_and_ended() -> None:
    old, new = _snapshot((A, P), (B, P)), _snapshot((A, Q), (B, P))
    assert diff(old, new) == Diff(began=(Holding(A, Q),), ended=(Holding(A, P),))


def test_claimed_devices_begin_and_end_beside_others_each_claim_by_itself() -> None:
    old, new = _snapshot((A, P), (C, P), (D, P)), _snapshot((B, P), (D, P), (D, Q))
    assert diff(old, new) == Diff(began=(Holding(D, Q), Holding(B, P)), ended=(Holding(C, P), Holding(A, P)))


class _Untouched(ClaimDevice):
    def held(self, through: ClaimHolder) -> ClaimedKey:
        raise AssertionError(through)


def test_claimed_devices_that_are_the_same_object_are_not_looked_at_again() -> None:
    claims = (_Untouched(ClaimDeviceKey("drv", "pool", "gpu-0"), (ClaimHolder(P, "n", "mine"),)),)
    old, new = (replace(_snapshot((key, P)), claims=claims) for key in (A, B))
    assert diff(old, new) == Diff(began=(Holding(B, P),), ended=(Holding(A, P),))


@QUICK
@given(_snapshots, _snapshots)
def test_a_difference_applied_to_the_old_gives_the_new(old: Snapshot, new: Snapshot) -> None:
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
@given(_snapshots)
def test_nothing_changed_between_a_snapshot_and_itself(snapshot: Snapshot) -> None:
    assert diff(snapshot, snapshot) == Diff()
    assert not missing_pods(snapshot, snapshot, ())


def test_pod_without_holdings_has_ended() -> None:
    side = P._replace(container="side")
    old = _snapshot((A, P), (B, side), (A, Q))
    assert missing_pods(old, _snapshot((A, Q), (B, side)), ()).keys() == set()
    assert missing_pods(old, _snapshot((B, P)), ()).keys() == {("n", "q")}
    assert missing_pods(old, _snapshot(), ()).keys() == {("n", "p"), ("n", "q")}
    assert missing_pods(_snapshot(), old, ()) == {}


def test_holdings_of_the_first_snapshot_have_an_inexact_start() -> None:
    step = HoldingTracker().advance(_snapshot((A, P)), 100.0)
    assert (step.change, step.released) == (Diff(), ())
    assert dict(step.since) == {Holding(A, P): HeldSince(100.0, exact=False)}


def test_later_holdings_start_and_end_when_seen() -> None:
    tracker = HoldingTracker()
    tracker.advance(_snapshot((A, P)), 100.0)
    step = tracker.advance(_snapshot((A, P), (B, Q)), 107.0)
    assert dict(step.since) == {Holding(A, P): HeldSince(100.0, exact=False), Holding(B, Q): HeldSince(107.0)}
    step = tracker.advance(_snapshot((B, Q)), 130.0)
    assert step.released == (Release(Holding(A, P), 30.0),)
    assert dict(step.since) == {Holding(B, Q): HeldSince(107.0)}
    step = tracker.advance(_snapshot((A, P), (B, Q)), 140.0)
    assert step.since[Holding(A, P)] == HeldSince(140.0)


def test_later_uid_is_the_same_holding() -> None:
    tracker = HoldingTracker()
    tracker.advance(_snapshot(), 100.0)
    tracker.advance(_snapshot((A, P)), 107.0)
    known = P._replace(pod_uid="uid-1")
    step = tracker.advance(_snapshot((A, known)), 108.0)
    assert step.change == Diff(renamed=(Renamed(Holding(A, P), Holding(A, known)),))
    assert step.released == ()
    assert dict(step.since) == {Holding(A, known): HeldSince(107.0)}


def test_a_successor_of_the_same_name_is_told_from_its_predecessor_even_after_doubt() -> None:
    tracker = HoldingTracker()
    first, second = P._replace(pod_uid="uid-1"), P._replace(pod_uid="uid-2")
    tracker.advance(_snapshot((A, first)), 100.0)
    step = tracker.advance(_snapshot((A, P)), 110.0)
    assert (step.change.began, step.change.ended) == ((), ())
    step = tracker.advance(_snapshot((A, second)), 111.0)
    assert step.change == Diff(began=(Holding(A, second),), ended=(Holding(A, first),))
    assert step.released == (Release(Holding(A, first), 11.0),)
    assert dict(step.since) == {Holding(A, second): HeldSince(111.0)}


def test_clock_set_back_makes_no_duration_negative() -> None:
    tracker = HoldingTracker()
    tracker.advance(_snapshot((A, P)), 100.0)
    step = tracker.advance(_snapshot(), 40.0)
    assert step.released == (Release(Holding(A, P), 0.0),)


def test_a_step_that_was_handed_out_does_not_change_any_more() -> None:
    tracker = HoldingTracker()
    first = tracker.advance(_snapshot((A, P)), 1.0)
    before = dict(first.since)
    tracker.advance(_snapshot((B, Q)), 2.0)
    assert dict(first.since) == before


@QUICK
@given(st.lists(_snapshots, min_size=1, max_size=5), st.data())
def test_tracker_follows_the_holdings_exactly(snapshots: list[Snapshot], data: st.DataObject) -> None:
    tracker = HoldingTracker()
    began: Counter[Holding] = Counter()
    ended: Counter[Holding] = Counter()
    previous: dict[Holding, HeldSince] = {}
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
        began.update(holding.unnamed() for holding in step.change.began)
        ended.update(holding.unnamed() for holding in step.change.ended)
        previous = dict(step.since)
    held_at_first = Counter(holding.unnamed() for holding in holdings(snapshots[0]))
    assert held_at_first + began - ended == Counter(h.unnamed() for h in holdings(snapshots[-1]))


_KEYS: tuple[HeldKey, HeldKey] = (A, C)
_script = st.lists(st.lists(st.sampled_from(["", "A", "B", "C", None]), min_size=2, max_size=2), max_size=12)


@QUICK
@given(_script)
def test_a_uid_that_changes_is_another_holding_and_one_that_is_in_doubt_is_the_same(
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
        ended: set[tuple[HeldKey, str]] = set()
        for key, uid in zip(_KEYS, uids, strict=True):
            before = known.get(key)
            if before is not None and (uid is None or (uid and before[0] and uid != before[0])):
                ended.add((key, before[0]))
                del known[key]
                before = None
            if uid is not None:
                if before is None:
                    began.add(key)
                known[key] = (uid, now) if before is None else (uid or before[0], before[1])
        assert {holding.key for holding in step.change.began} == began
        assert {(h.key, h.holder.pod_uid) for h in step.change.ended} == ended
        assert {h.key: since.at for h, since in step.since.items()} == {
            key: since for key, (_, since) in known.items()
        }
        assert set(step.since) == set(holdings(_snapshot(*held)))


NOW = 1000.0


def held(*keys: DeviceKey, uid: str = "") -> Snapshot:
    return Snapshot(devices=tuple(Device(key, holders=(P._replace(pod_uid=uid),)) for key in sorted(keys)))


def row(key: DeviceKey, *, uid: str = "", certainty: Certainty = Certainty.BETWEEN_POLLS) -> HoldingRow:
    name = HoldingKey(key.resource, "", "", key.device, "", "", "", P.namespace, P.pod, P.container)
    return HoldingRow(1, name, HoldingFacts(uid), Bound(90.0, 100.0, certainty))


def since(tracker: HoldingTracker, key: DeviceKey, uid: str = "") -> HeldSince:
    return tracker.since[Holding(key, P._replace(pod_uid=uid))]


def test_what_the_first_snapshot_shows_is_held_since_history_knows_it() -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings([row(A)]))
    tracker.advance(held(A, B), NOW)
    assert since(tracker, A) == HeldSince(100.0, exact=True)
    assert since(tracker, B) == HeldSince(NOW, exact=False)


def test_late_history_restores_starts_before_the_first_snapshot() -> None:
    tracker = HoldingTracker()
    tracker.advance(held(A), NOW)
    tracker.advance(held(A, B), NOW + 1)
    tracker.restore(RecordedHoldings([row(A), row(B)]))
    assert since(tracker, A) == HeldSince(100.0, exact=True)
    assert since(tracker, B) == HeldSince(NOW + 1)


def test_empty_first_list_loses_no_start() -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings([row(A), row(B)]))
    tracker.advance(held(), NOW)
    tracker.advance(held(A), NOW + 1)
    assert since(tracker, A) == HeldSince(100.0, exact=True)
    tracker.advance(held(A, B), NOW + 60)
    assert since(tracker, B) == HeldSince(NOW + 60)


def test_holding_that_begins_again_is_a_new_one() -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings([row(A)]))
    tracker.advance(held(A), NOW)
    tracker.advance(held(), NOW + 1)
    tracker.advance(held(A), NOW + 2)
    assert since(tracker, A) == HeldSince(NOW + 2)


def test_another_uid_is_another_holding_and_a_uid_told_late_may_refute_what_was_assumed() -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings([row(A, uid="u1"), row(B, uid="u1")]))
    first = held(A).devices + held(B, uid="u2").devices
    tracker.advance(Snapshot(devices=first), NOW)
    assert since(tracker, A) == HeldSince(100.0, exact=True)
    assert since(tracker, B, "u2") == HeldSince(NOW, exact=False)
    step = tracker.advance(held(A, B, uid="u2"), NOW + 1)
    old, new = Holding(A, P._replace(pod_uid="u1")), Holding(A, P._replace(pod_uid="u2"))
    assert step.change == Diff(began=(new,), ended=(old,))
    assert [(one.holding, one.seconds) for one in step.released] == [(old, NOW + 1 - 100.0)]
    assert since(tracker, A, "u2") == HeldSince(NOW + 1)


def test_what_was_held_when_history_began_or_came_while_nobody_looked_is_held_since_then_or_longer() -> None:
    for certainty in (Certainty.HELD_ALREADY, Certainty.WHILE_DOWN):
        tracker = HoldingTracker()
        tracker.restore(RecordedHoldings([row(A, certainty=certainty)]))
        tracker.advance(held(A), NOW)
        assert since(tracker, A) == HeldSince(100.0, exact=False)


def test_a_name_that_is_kept_shortened_is_found() -> None:
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


def test_a_claimed_device_is_remembered_by_the_claim_through_which_it_is_held() -> None:
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
