"""exporter.mapping.identity: when a uid is proven, continued or in doubt."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.dra import PodClaim, PodDevices
from exporter.mapping.holdings import HoldingTracker
from exporter.mapping.identity import (
    NEVER,
    PodIdentity,
    PodRecord,
    PodRegistry,
    PodView,
    Poll,
    contradicted,
    identify,
    pods_with_new_holdings,
    proven,
)
from exporter.mapping.model import (
    ClaimHolding,
    Container,
    Device,
    DeviceKey,
    Holder,
    PodKey,
    Snapshot,
)
from harness import scene

KEY: PodKey = ("n", "p")
A, B = PodIdentity("n", "p", "A", "Running"), PodIdentity("n", "p", "B", "Running")


def _seen(*delivered: tuple[PodIdentity, float], present: float | None = None) -> PodRegistry:
    registry = PodRegistry()
    registry.connect()
    for identity, at in delivered:
        registry.see(identity, at)
    if present is not None:
        registry.confirm(present)
    return registry


POLL = Poll(2.0, 3.0)


_records = st.lists(
    st.builds(
        PodRecord,
        st.sampled_from([A, B, replace(A, phase="Failed")]),
        st.just(1.0),
        known=st.sampled_from([2.0, 2.1, NEVER]),
        present=st.sampled_from([-NEVER, 2.9, 3.0]),
        over=st.sampled_from([2.0, 2.1, NEVER, NEVER]),
    ),
    max_size=2,
    unique_by=lambda record: record.identity.uid,
).map(tuple)


@settings(max_examples=300)
@given(_records, st.sampled_from([None, A, B]))
def test_usual_pods_are_identified_by_the_same_rules(
    records: tuple[PodRecord, ...], before: PodIdentity | None
) -> None:
    known = {} if before is None else {KEY: before}
    found, continued = identify([KEY], known, PodView({KEY: records} if records else {}), POLL)
    expected, of_source = proven(records, POLL), {one.identity.uid: one.identity for one in records}
    continues = expected is None and before is not None and not contradicted(records, before.uid, POLL)
    if continues and before is not None:
        expected = of_source.get(before.uid, before)
    assert found.get(KEY) == expected
    assert continued == ({KEY} if continues else set())


@pytest.mark.parametrize(
    ("registry", "uid"),
    [
        (_seen((A, 1.0), present=4.0), "A"),
        (_seen((A, 2.0), present=3.0), "A"),
        # List may be older than the pod.
        (_seen((A, 2.1), present=4.0), None),
        # A successor may have come while List was answered.
        (_seen((A, 1.0), present=2.9), None),
        # Two candidates, or none.
        (_seen((A, 1.0), (B, 1.0), present=9.0), None),
        (_seen(present=9.0), None),
    ],
)
def test_pod_known_before_and_present_after_list_is_proven(registry: PodRegistry, uid: str | None) -> None:
    found = proven(registry.view.of(KEY), POLL)
    assert (None if found is None else found.uid) == uid


def test_pod_unknown_to_the_kubelet_proves_nothing() -> None:
    registry = PodRegistry()
    registry.see(A, 1.0, known=False)
    registry.confirm(9.0)
    assert proven(registry.view.of(KEY), POLL) is None
    registry.see(A, 5.0)
    registry.see(A, 6.0)
    assert registry.view.of(KEY)[0].known == 5.0


@pytest.mark.parametrize(
    ("registry", "over", "continues"),
    [
        (PodRegistry(), None, True),
        (_seen((A, 1.0)), None, True),
        (_seen((A, 1.0)), 10.5, True),
        (_seen((A, 1.0)), 10.0, False),
        (_seen((A, 1.0), (B, 9.0)), None, False),
        (_seen((A, 1.0), (B, 10.5)), None, True),
        # An event of a removed pod may come after its successor's.
        (_seen((B, 0.5), (A, 1.0)), None, True),
        # The watch is young: it has a successor, and not its predecessor.
        (_seen((B, 9.0)), None, False),
    ],
)
def test_proven_pod_continues_until_contradicted(
    registry: PodRegistry, over: float | None, continues: bool
) -> None:
    """List is called at 10; the pod has ended at `over`."""
    if over is not None:
        registry.end(KEY, "A", over)
    found, continued = identify([KEY], {KEY: A}, registry.view, Poll(10.0, 11.0))
    assert continued == frozenset(found)
    assert (found.get(KEY) == A) is continues


def test_continued_pod_has_the_latest_report_and_proof_comes_first() -> None:
    labelled = replace(A, labels=(("team", "ml"),))
    registry = _seen((A, 1.0), (labelled, 20.0))
    assert identify([KEY], {KEY: A}, registry.view, Poll(10, 11))[0] == {KEY: labelled}
    registry.see(B, 5.0)
    registry.confirm(12.0, ["B"])
    assert identify([KEY], {KEY: A}, registry.view, Poll(10, 11)) == ({KEY: B}, frozenset())
    assert not contradicted(registry.view.of(KEY), "B", Poll(10, 11))


Devices = tuple[DeviceKey, ...]
D, E = DeviceKey("r", "d"), DeviceKey("r", "e")
P = Holder("n", "p", "c")


def _held(*keys: DeviceKey, holder: Holder = P, cpus: tuple[int, ...] = ()) -> Snapshot:
    return Snapshot(
        devices=tuple(Device(key, holders=(holder,)) for key in keys),
        containers=(Container(holder, {"r": len(keys)}, cpus),),
    )


CLAIMED = scene.snapshot(scene.claimed("x", ClaimHolding(P, "n", "c")))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (_held(D), _held(D, E), True),
        (_held(D, E), _held(D), False),
        (_held(D), _held(D, holder=P._replace(pod_uid="A")), False),
        (_held(D), _held(E), True),
        (_held(D), _held(D, holder=P._replace(container="other")), True),
        (_held(cpus=(1, 2)), _held(cpus=(2,)), False),
        (_held(cpus=(1, 2)), _held(cpus=(2, 3)), True),
        (Snapshot(), CLAIMED, True),
        (CLAIMED, CLAIMED, False),
    ],
)
def test_pods_with_new_holdings_are_found_by_name(old: Snapshot, new: Snapshot, found: bool) -> None:
    assert pods_with_new_holdings(old, new) == ({KEY} if found else frozenset())


def test_active_pods_neither_ended_nor_vanished() -> None:
    registry = _seen((A, 1.0), (replace(A, pod="done", phase="Failed"), 1.0), (replace(A, pod="over"), 1.0))
    registry.end(("n", "over"), "A", 2.0)
    keys = [KEY, ("n", "done"), ("n", "over"), ("n", "unknown")]
    assert {key for key in keys if any(one.active for one in registry.view.of(key))} == {KEY}


def test_view_is_the_same_until_something_changes() -> None:
    registry = _seen((A, 1.0))
    view = registry.view
    registry.see(A, 2.0)
    registry.connect()
    assert registry.view is view
    registry.see(replace(A, phase="Failed"), 3.0)
    assert registry.view is not view


def test_unchanged_pod_stays_the_same_object_and_its_claims_stay() -> None:
    registry = PodRegistry()
    devices = PodDevices((PodClaim("gpu", "claim"),))
    first = replace(A, devices=devices)
    registry.see(first, 1.0)
    registry.see(replace(first), 2.0)
    (record,) = registry.view.of(A.key)
    assert record.identity is first
    # kubelet 1.36: the Pods API leaves the name of a generated claim out of later reports.
    registry.see(replace(first, devices=PodDevices((PodClaim("gpu", ""),))), 3.0)
    (record,) = registry.view.of(A.key)
    assert record.identity is first


def test_prune_drops_missing_pods_seen_before_the_list() -> None:
    registry = _seen((A, 1.0), (B, 5.0))
    assert [gone.identity for gone in registry.prune([], 3.0)] == [A]
    assert [s.identity for s in registry.view.of(KEY)] == [B]
    registry.end(KEY, "B", 6.0)
    registry.end(KEY, "B", 100.0)
    assert registry.view.of(KEY)[0].over == 6.0
    registry.see(replace(A, pod="other"), 101.0)
    registry.end(("n", "other"), "A", 102.0)
    assert registry.view.of(KEY) == ()


def test_number_of_names_is_bounded() -> None:
    registry = PodRegistry()
    for number in range(8200):
        registry.see(replace(A, pod=f"p{number}"), 1.0)
    assert len(registry.view.records) == 8192
    registry.clear()
    assert registry.view == PodView()


# All rules together, against a simulated name whose pod is known at each moment.


@dataclass
class World:
    """One name on a node: pods come and go, their events are late, and lists may be older."""

    now: float = 0.0
    uid: str | None = None
    devices: Devices = ()
    number: int = 0
    waiting: list[tuple[str, PodIdentity]] = field(default_factory=list[tuple[str, PodIdentity]])
    registry: PodRegistry = field(default_factory=PodRegistry)
    tracker: HoldingTracker = field(default_factory=HoldingTracker)
    shown: Snapshot = field(default_factory=Snapshot)
    who: Mapping[PodKey, PodIdentity] = field(default_factory=dict[PodKey, PodIdentity])
    poll: Poll = field(default_factory=lambda: Poll(-NEVER, -NEVER))
    listed: tuple[DeviceKey, ...] = ()
    truth: str | None = None
    """Whose the last List was."""
    delivered: list[tuple[str, str, float]] = field(default_factory=list[tuple[str, str, float]])
    """Delivered events of this stream: kind, uid, and time."""

    def __post_init__(self) -> None:
        self.registry.connect()

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def come(self, devices: Devices) -> None:
        """A pod of the name comes, in the place of the one before."""
        self.go()
        self.number += 1
        self.uid, self.devices = f"uid-{self.number}", devices
        self.waiting.append(("seen", replace(A, uid=self.uid)))

    def go(self) -> None:
        if self.uid is not None:
            self.waiting.append(("gone", replace(A, uid=self.uid)))
            self.uid, self.devices = None, ()

    def deliver(self) -> None:
        """One event arrives; those of one pod in order."""
        if self.waiting:
            kind, identity = self.waiting.pop(0)
            self.delivered.append((kind, identity.uid, self.now + 1))
            if kind == "seen":
                self.registry.see(identity, self.tick())
            else:
                self.registry.end(KEY, identity.uid, self.tick())

    def break_off(self) -> None:
        """The stream breaks, and another one begins with what there is."""
        self.registry.clear()
        self.waiting.clear()
        self.delivered.clear()
        self.registry.connect()
        if self.uid is not None:
            self.waiting.append(("seen", replace(A, uid=self.uid)))

    def expire(self) -> None:
        """The watch has expired: its events are lost, and the source lists its pods."""
        self.waiting.clear()
        self.confirm()

    def list(self, successor: Devices | None = None) -> None:
        """List is called; a successor may come during the call."""
        asked = self.tick()
        if successor is not None:
            self.come(successor)
        self.truth, self.listed = self.uid, self.devices
        self.poll = Poll(asked, self.tick())
        self.read(reading=True)

    def confirm(self, successor: Devices | None = None) -> None:
        """The source lists its pods, and the last answer is read again."""
        asked = self.tick()
        if successor is not None:
            self.come(successor)
        present = [] if self.uid is None else [self.uid]
        for uid in present:
            self.registry.see(replace(A, uid=uid), self.tick())
        self.registry.prune(present, asked)
        self.registry.confirm(asked, present)
        self.read(reading=False)

    def read(self, *, reading: bool) -> None:
        """As exporter.refresh.pipeline does."""
        keys = [KEY] if self.truth is not None else []
        found, continued = identify(keys, self.who, self.registry.view, self.poll)

        def built(who: Mapping[PodKey, PodIdentity]) -> Snapshot:
            uid = who[KEY].uid if KEY in who else ""
            return _held(*self.listed, holder=P._replace(pod_uid=uid)) if self.listed else Snapshot()

        snapshot = built(found)
        doubtful = continued & pods_with_new_holdings(self.shown, snapshot)
        found = {key: identity for key, identity in found.items() if key not in doubtful}
        proof = proven(self.registry.view.of(KEY), self.poll)
        if proof is not None and self.listed:
            assert proof.uid == self.truth, "a proof is a proof"
        if reading and KEY in found and found[KEY].uid != self.truth:
            # Only a name without new holdings, whose end was not known when List was called.
            assert KEY in continued
            shown = found[KEY].uid
            assert self.who[KEY].uid == shown
            known = [(kind, uid) for kind, uid, at in self.delivered if at <= self.poll.asked]
            assert ("gone", shown) not in known
            # Uids are numbered as they come.
            assert all(int(uid[4:]) <= int(shown[4:]) for _, uid in known)
        self.shown = built(found)
        holding = {c.holder[:2] for c in self.shown.containers}
        self.who = {key: identity for key, identity in found.items() if key in holding}
        self.tracker.advance(self.shown, self.now)

    def settle(self) -> None:
        """All events arrive; then List and the source are called once more."""
        while self.waiting:
            self.deliver()
        self.list()
        self.confirm()


_devices: st.SearchStrategy[Devices] = st.sampled_from([(), (D,), (E,), (D, E)])
_steps: st.SearchStrategy[list[tuple[str, tuple[Devices | None, ...]]]] = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["come"]), st.tuples(_devices)),
        st.tuples(st.sampled_from(["go", "deliver", "break_off", "expire"]), st.just(())),
        st.tuples(st.sampled_from(["list", "confirm"]), st.tuples(st.none() | _devices)),
    ),
    max_size=30,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(_steps)
def test_any_interleaving_ends_with_the_true_uid(steps: list[tuple[str, tuple[Devices | None, ...]]]) -> None:
    world = World()
    for name, arguments in steps:
        getattr(world, name)(*arguments)
    world.settle()
    expected = {(key, world.uid) for key in world.devices}
    assert {(d.key, h.pod_uid) for d in world.shown.devices for h in d.holders} == expected
    shown = world.shown
    world.settle()
    assert world.shown == shown
