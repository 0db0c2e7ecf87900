"""exporter.mapping.holdings, and what the tracker makes of it: held-since outlives the process."""

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
from exporter.mapping.holdings import Diff, HeldSince, Holding, HoldingTracker, OpenHolding
from exporter.mapping.identity import UNKNOWN
from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Device,
    DeviceKey,
    Holder,
    Snapshot,
)

A, B = DeviceKey("r", "a"), DeviceKey("r", "b")
P = Holder("n", "p", "c")
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


def test_history_that_is_opened_late_is_believed_of_what_is_older_than_the_first_snapshot() -> None:
    tracker = HoldingTracker()
    tracker.advance(held(A), NOW)
    tracker.advance(held(A, B), NOW + 1)
    tracker.restore(RecordedHoldings([row(A), row(B)]))
    assert since(tracker, A) == HeldSince(100.0, exact=True)
    assert since(tracker, B) == HeldSince(NOW + 1)


def test_a_kubelet_that_lists_nobody_at_first_takes_nothing_away() -> None:
    tracker = HoldingTracker()
    tracker.restore(RecordedHoldings([row(A), row(B)]))
    tracker.advance(held(), NOW)
    tracker.advance(held(A), NOW + 1)
    assert since(tracker, A) == HeldSince(100.0, exact=True)
    tracker.advance(held(A, B), NOW + 60)
    assert since(tracker, B) == HeldSince(NOW + 60)


def test_what_begins_again_is_not_the_holding_that_is_remembered() -> None:
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
