"""exporter.mapping.identity: when a uid is proven, continued or in doubt."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.holdings import HoldingTracker
from exporter.mapping.identity import (
    NEVER,
    PodIdentity,
    PodRegistry,
    PodView,
    Poll,
    contradicted,
    identify,
    pods_with_new_holdings,
    proven,
)
from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Container,
    Device,
    DeviceKey,
    Holder,
    PodKey,
    Snapshot,
)

KEY: PodKey = ("n", "p")
A, B = PodIdentity("n", "p", "A", "Running"), PodIdentity("n", "p", "B", "Running")


def _seen(*told: tuple[PodIdentity, float], present: float | None = None) -> PodRegistry:
    register = PodRegistry()
    register.connect()
    for identity, at in told:
        register.see(identity, at)
    if present is not None:
        register.confirm(present)
    return register


@pytest.mark.parametrize(
    ("known", "present", "asked", "answered", "is_proven"),
    [
        (1.0, 4.0, 2.0, 3.0, True),
        (2.0, 3.0, 2.0, 3.0, True),
        # List may be older than the pod.
        (2.1, 4.0, 2.0, 3.0, False),
        # A successor may have come while List was answered.
        (1.0, 2.9, 2.0, 3.0, False),
    ],
)
def test_pod_known_before_and_present_after_list_is_proven(
    known: float, present: float, asked: float, answered: float, is_proven: bool
) -> None:
    register = _seen((A, known), present=present)
    assert (proven(register.view, KEY, Poll(asked, answered)) == A) is is_proven


def test_two_candidates_prove_none() -> None:
    assert proven(_seen((A, 1.0), (B, 1.0), present=9.0).view, KEY, Poll(2, 3)) is None
    assert proven(_seen(present=9.0).view, KEY, Poll(2, 3)) is None


def test_pod_unknown_to_the_kubelet_proves_nothing() -> None:
    register = PodRegistry()
    register.see(A, 1.0, known=False)
    register.confirm(9.0)
    assert proven(register.view, KEY, Poll(2, 3)) is None
    register.see(A, 5.0)
    register.see(A, 6.0)
    assert register.view.of(KEY)[0].known == 5.0


def test_proven_pod_continues_until_contradicted() -> None:
    before: dict[PodKey, PodIdentity] = {KEY: A}
    look = Poll(10.0, 11.0)

    def goes_on(register: PodRegistry) -> bool:
        found, continued = identify([KEY], before, register.view, look)
        assert continued == frozenset(found)
        return found.get(KEY) == A

    assert goes_on(PodRegistry())
    assert goes_on(_seen((A, 1.0)))
    # It ended only after List was asked.
    late = _seen((A, 1.0))
    late.end(KEY, "A", 10.5)
    assert goes_on(late)
    over = _seen((A, 1.0))
    over.end(KEY, "A", 10.0)
    assert not goes_on(over)
    assert not goes_on(_seen((A, 1.0), (B, 9.0)))
    assert goes_on(_seen((A, 1.0), (B, 10.5)))
    # An event of a pod that was removed may come after its successor's.
    assert goes_on(_seen((B, 0.5), (A, 1.0)))
    # A successor is known, its predecessor not at all: the watch is young.
    assert not goes_on(_seen((B, 9.0)))


def test_continued_pod_has_the_latest_report() -> None:
    labelled = replace(A, labels=(("team", "ml"),))
    found, _ = identify([KEY], {KEY: A}, _seen((labelled, 20.0)).view, Poll(10, 11))
    assert found == {KEY: labelled}


def test_proof_comes_before_continuity() -> None:
    register = _seen((A, 1.0), (B, 5.0))
    register.confirm(12.0, ["B"])
    found, continued = identify([KEY], {KEY: A}, register.view, Poll(10, 11))
    assert (found, continued) == ({KEY: B}, frozenset())
    assert not contradicted(register.view, KEY, "B", Poll(10, 11))


D, E = DeviceKey("r", "d"), DeviceKey("r", "e")
P = Holder("n", "p", "c")


def _held(*keys: DeviceKey, holder: Holder = P, cpus: tuple[int, ...] = ()) -> Snapshot:
    return Snapshot(
        devices=tuple(Device(key, holders=(holder,)) for key in keys),
        containers=(Container(holder, {"r": len(keys)}, cpus),),
    )


def test_pods_with_new_holdings_are_found_by_name() -> None:
    known = P._replace(pod_uid="A")
    assert pods_with_new_holdings(_held(D), _held(D, E)) == {KEY}
    assert pods_with_new_holdings(_held(D, E), _held(D)) == frozenset()
    assert pods_with_new_holdings(_held(D), _held(D, holder=known)) == frozenset()
    assert pods_with_new_holdings(_held(D), _held(E)) == {KEY}
    assert pods_with_new_holdings(_held(D), _held(D, holder=P._replace(container="other"))) == {KEY}
    assert pods_with_new_holdings(_held(cpus=(1, 2)), _held(cpus=(2,))) == frozenset()
    assert pods_with_new_holdings(_held(cpus=(1, 2)), _held(cpus=(2, 3))) == {KEY}
    claim = ClaimDevice(ClaimDeviceKey("d", "p", "x"), (ClaimHolder(P, "n", "c"),))
    assert pods_with_new_holdings(Snapshot(), Snapshot(claims=(claim,))) == {KEY}
    assert pods_with_new_holdings(Snapshot(claims=(claim,)), Snapshot(claims=(claim,))) == frozenset()


def test_active_pods_neither_ended_nor_vanished() -> None:
    register = _seen((A, 1.0), (replace(A, pod="done", phase="Failed"), 1.0), (replace(A, pod="over"), 1.0))
    register.end(("n", "over"), "A", 2.0)
    keys = [KEY, ("n", "done"), ("n", "over"), ("n", "unknown")]
    assert {key for key in keys if any(one.active for one in register.view.of(key))} == {KEY}


def test_a_view_is_the_same_until_something_changes() -> None:
    register = _seen((A, 1.0))
    view = register.view
    register.see(A, 2.0)
    register.connect()
    assert register.view is view
    register.see(replace(A, phase="Failed"), 3.0)
    assert register.view is not view


def test_prune_drops_missing_pods_seen_before_the_list() -> None:
    register = _seen((A, 1.0), (B, 5.0))
    assert [gone.identity for gone in register.prune([], 3.0)] == [A]
    assert [s.identity for s in register.view.of(KEY)] == [B]
    register.end(KEY, "B", 6.0)
    register.end(KEY, "B", 100.0)
    assert register.view.of(KEY)[0].over == 6.0
    register.see(replace(A, pod="other"), 101.0)
    register.end(("n", "other"), "A", 102.0)
    assert register.view.of(KEY) == ()


def test_what_is_kept_is_bounded() -> None:
    register = PodRegistry()
    for number in range(10_000):
        register.see(replace(A, pod=f"p{number}"), 1.0)
    assert len(register.view.records) == 8192
    register.clear()
    assert register.view == PodView()


# The whole of it against a kubelet whose truth is known at each moment.


@dataclass
class World:
    """One name on a node: pods come and go; what is told of them is late, and lists are what they are."""

    now: float = 0.0
    uid: str | None = None
    devices: tuple[DeviceKey, ...] = ()
    number: int = 0
    waiting: list[tuple[str, PodIdentity]] = field(default_factory=list[tuple[str, PodIdentity]])
    register: PodRegistry = field(default_factory=PodRegistry)
    tracker: HoldingTracker = field(default_factory=HoldingTracker)
    shown: Snapshot = field(default_factory=Snapshot)
    who: Mapping[PodKey, PodIdentity] = field(default_factory=dict[PodKey, PodIdentity])
    look: Poll = field(default_factory=lambda: Poll(-NEVER, -NEVER))
    listed: tuple[DeviceKey, ...] = ()
    truth: str | None = None
    """Whose the last List was."""
    told: list[tuple[str, str, float]] = field(default_factory=list[tuple[str, str, float]])
    """What this life of the stream has delivered, of whom and when."""

    def __post_init__(self) -> None:
        self.register.connect()

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def come(self, devices: tuple[DeviceKey, ...]) -> None:
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
            self.told.append((kind, identity.uid, self.now + 1))
            if kind == "seen":
                self.register.see(identity, self.tick())
            else:
                self.register.end(KEY, identity.uid, self.tick())

    def break_off(self) -> None:
        """The stream breaks, and another one begins with what there is."""
        self.register.clear()
        self.waiting.clear()
        self.told.clear()
        self.register.connect()
        if self.uid is not None:
            self.waiting.append(("seen", replace(A, uid=self.uid)))

    def list(self, *, changes: bool, devices: tuple[DeviceKey, ...]) -> None:
        """List is asked; the truth may change while it is answered, before or after it was made."""
        asked = self.tick()
        if changes:
            self.come(devices)
        self.truth, self.listed = self.uid, self.devices
        self.look = Poll(asked, self.tick())
        self.read(reading=True)

    def confirm(self, *, changes: bool) -> None:
        """The source is asked which pods there are, and what it says is considered."""
        asked = self.tick()
        if changes:
            self.come((D,))
        present = [] if self.uid is None else [self.uid]
        for uid in present:
            self.register.see(replace(A, uid=uid), self.tick())
        self.register.prune(present, asked)
        self.register.confirm(asked, present)
        self.read(reading=False)

    def read(self, *, reading: bool) -> None:
        """As exporter.refresh.pipeline does."""
        keys = [KEY] if self.truth is not None else []
        found, continued = identify(keys, self.who, self.register.view, self.look)

        def built(who: Mapping[PodKey, PodIdentity]) -> Snapshot:
            uid = who[KEY].uid if KEY in who else ""
            return _held(*self.listed, holder=P._replace(pod_uid=uid)) if self.listed else Snapshot()

        snapshot = built(found)
        doubtful = continued & pods_with_new_holdings(self.shown, snapshot)
        found = {key: identity for key, identity in found.items() if key not in doubtful}
        proof = proven(self.register.view, KEY, self.look)
        if proof is not None and self.listed:
            assert proof.uid == self.truth, "a proof is a proof"
        if reading and KEY in found and found[KEY].uid != self.truth:
            # Only a name that holds what it held, of whose end nothing had been heard when List was asked.
            assert KEY in continued
            shown = found[KEY].uid
            assert self.who[KEY].uid == shown
            heard = [(kind, uid) for kind, uid, at in self.told if at <= self.look.asked]
            assert ("gone", shown) not in heard
            # Uids are numbered as they come.
            assert all(int(uid[4:]) <= int(shown[4:]) for _, uid in heard)
        self.shown = built(found)
        holding = {c.holder[:2] for c in self.shown.containers}
        self.who = {key: identity for key, identity in found.items() if key in holding}
        self.tracker.advance(self.shown, self.now)

    def settle(self) -> None:
        """Everything is told, then asked for once more: as the services do when something is told."""
        while self.waiting:
            self.deliver()
        self.list(changes=False, devices=())
        self.confirm(changes=False)


_hands = st.sampled_from([(), (D,), (E,), (D, E)])
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("come"), _hands),
        st.tuples(st.just("go")),
        st.tuples(st.just("deliver")),
        st.tuples(st.just("break")),
        st.tuples(st.just("list"), st.booleans(), _hands),
        st.tuples(st.just("confirm"), st.booleans()),
    ),
    max_size=30,
)


def _play(world: World, steps: list[tuple[object, ...]]) -> None:
    for step in steps:
        match step:
            case ("come", tuple() as hands):
                world.come(hands)
            case ("go",):
                world.go()
            case ("deliver",):
                world.deliver()
            case ("break",):
                world.break_off()
            case ("list", bool() as changes, tuple() as hands):
                world.list(changes=changes, devices=hands)
            case ("confirm", bool() as changes):
                world.confirm(changes=changes)
            case _:
                raise AssertionError(step)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(_steps)
def test_any_interleaving_ends_with_the_true_uid(
    steps: list[tuple[object, ...]],
) -> None:
    world = World()
    _play(world, steps)
    world.settle()
    expected = {(key, world.uid) for key in world.devices}
    assert {(d.key, h.pod_uid) for d in world.shown.devices for h in d.holders} == expected
    # Once more nothing is another.
    shown = world.shown
    world.settle()
    assert world.shown == shown


@settings(max_examples=200, deadline=None, derandomize=True)
@given(_steps)
def test_without_a_source_holdings_have_no_uid(steps: list[tuple[object, ...]]) -> None:
    world = World()
    world.register.clear()
    for step in steps:
        if step[0] in {"come", "go", "list"}:
            _play(world, [step])
            assert all(not h.pod_uid for d in world.shown.devices for h in d.holders)
    world.list(changes=False, devices=())
    assert {d.key for d in world.shown.devices} == set(world.devices)


@pytest.mark.parametrize("order", list(itertools.permutations(["deliver", "list", "confirm"])))
def test_successor_with_the_same_device_is_proven_in_any_order(
    order: tuple[str, ...],
) -> None:
    world = World()
    world.come((D,))
    world.settle()
    assert world.who[KEY].uid == "uid-1"
    world.come((D,))
    for step in order:
        _play(
            world,
            [("list", False, ()) if step == "list" else (step, False) if step == "confirm" else (step,)],
        )
        assert world.who.get(KEY, B).uid in {"uid-1", "uid-2", "B"}
    world.settle()
    assert world.who[KEY].uid == "uid-2"
