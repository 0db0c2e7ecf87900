"""An id that the kubelet has received stays advertised as long as a pod may hold it."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from plugin.config.compile import compile_template
from plugin.config.plan import Sharing
from plugin.devices.device import Device
from plugin.devices.inventory import (
    GONE,
    MAX_LIST_BYTES,
    ORPHAN,
    RELEASE_AFTER,
    HealthTransition,
    Inventory,
    ObservedDevice,
    Tombstone,
)
from plugin.names import natural
from runtime.clock import Instant


def at(seconds: float) -> Instant:
    return Instant(1e9 + seconds, seconds)


def seen(*names: str, reason: str = "") -> list[ObservedDevice]:
    return [ObservedDevice(Device(name, name, f"/dev/{name}"), reason) for name in names]


def listed(inventory: Inventory) -> dict[str, str]:
    return {entry.id: entry.known.reason for entry in inventory.advertised()}


def vanished(sharing: Sharing = Sharing()) -> Inventory:  # noqa: B008 -- immutable
    """The device `a` was advertised and has vanished, `b` is there."""
    inventory = Inventory(sharing)
    inventory.survey(seen("a", "b"), at(0))
    inventory.shown()
    inventory.survey(seen("b"), at(0))
    return inventory


def test_a_device_that_vanishes_is_unhealthy_until_it_comes_back() -> None:
    inventory = Inventory()
    assert inventory.survey(seen("a", "b"), at(0)) == (
        HealthTransition("a", healthy=True, reason="", new=True),
        HealthTransition("b", healthy=True, reason="", new=True),
    )
    inventory.shown()
    assert inventory.survey(seen("b"), at(1)) == (HealthTransition("a", healthy=False, reason=GONE),)
    assert listed(inventory) == {"a": GONE, "b": ""}
    assert inventory.devices["a"].since == 1e9 + 1
    assert inventory.survey(seen("a", "b"), at(2)) == (HealthTransition("a", healthy=True, reason=""),)
    assert listed(inventory) == {"a": "", "b": ""}


def test_since_is_the_last_change_of_health() -> None:
    inventory = Inventory()
    inventory.survey(seen("a", reason="x"), at(0))
    inventory.survey(seen("a", reason="y"), at(5))
    assert (inventory.devices["a"].reason, inventory.devices["a"].since) == ("y", 1e9)


def test_ids_that_pods_held_before_are_advertised_until_found_or_released() -> None:
    inventory = Inventory(Sharing(2))
    inventory.survey(seen("a"), at(0))
    inventory.adopt(["a::1", "b::0", "b::7"], at(0))
    assert listed(inventory) == {"a::0": "", "a::1": "", "b::0": ORPHAN, "b::7": ORPHAN}
    inventory.survey(seen("a", "b"), at(1))
    assert listed(inventory) == {"a::0": "", "a::1": "", "b::0": "", "b::1": "", "b::7": ORPHAN}
    late = at(RELEASE_AFTER)
    assert inventory.release(inventory.releasable(late), set(), late) == ("b::7",)


def test_an_orphan_with_the_id_of_a_device_is_not_the_device() -> None:
    inventory = Inventory(Sharing(1))
    inventory.adopt(["a"], at(0))
    inventory.survey(seen("a"), at(1))
    late = at(RELEASE_AFTER)
    assert inventory.release(inventory.releasable(late), {"a::0"}, late) == ("a",)
    assert listed(inventory) == {"a::0": ""}


def test_the_list_stays_below_the_limit_of_the_kubelet() -> None:
    inventory = Inventory()
    names = [f"{n:06d}" + "x" * 494 for n in range(8000)]
    inventory.survey(seen(*names), at(0))
    assert len(inventory.left_out) == 8000 - len(inventory.advertised())
    assert set(inventory.left_out.values()) == {"the list is full: the kubelet accepts at most 4 MiB"}
    assert sum(len(entry.id) + 30 for entry in inventory.advertised()) < MAX_LIST_BYTES
    # Those that are listed keep their place; a newcomer does not push them out.
    before = set(inventory.devices)
    inventory.survey(seen("000000", *names), at(1))
    assert before <= set(inventory.devices)


def test_a_device_with_the_ids_of_another_is_left_out_and_reported() -> None:
    template = compile_template("{{ id[:1] }}{{ n }}", frozenset({"id", "n"}), frozenset())
    inventory = Inventory(Sharing(2, template))
    inventory.survey(seen("xa", "xb"), at(0))
    assert list(listed(inventory)) == ["x0", "x1"]
    assert dict(inventory.left_out) == {"xb": "its id 'x0' is an id of 'xa' already"}
    # When the first has gone for good, there is room for the other.
    inventory.survey(seen("xb"), at(1))
    inventory.survey(seen("xb"), at(2))
    assert inventory.find("x0") is inventory.devices["xb"]
    assert not inventory.left_out


def test_a_partial_scan_replaces_changed_entries_alone() -> None:
    inventory = Inventory()
    inventory.survey(seen("a", "b", "c"), at(0))
    inventory.shown()
    before = {entry.id: entry for entry in inventory.advertised()}
    assert inventory.update(seen("c", reason="hot"), ["a"], at(1)) == (
        HealthTransition("c", healthy=False, reason="hot"),
        HealthTransition("a", healthy=False, reason=GONE),
    )
    assert listed(inventory) == {"a": GONE, "b": "", "c": "hot"}
    assert [entry is before[entry.id] for entry in inventory.advertised()] == [False, True, False]


def test_a_device_may_be_held_if_allocate_named_it_or_a_pod_held_it_before() -> None:
    inventory = Inventory(Sharing(2))
    inventory.survey(seen("a", "b", "c"), at(0))
    inventory.shown()
    inventory.adopt(["a::1", "d::0"], at(0))
    inventory.name(["b::0"], at(1))
    assert [i for i in "abcd" if inventory.may_be_held(i)] == ["a", "b"]
    inventory.survey(seen("d"), at(2))
    assert [i for i in "abcd" if inventory.may_be_held(i)] == ["a", "b", "d"]
    late = at(2 + RELEASE_AFTER)
    inventory.release(inventory.releasable(late), {"a::1"}, late)
    assert [i for i in "abcd" if inventory.may_be_held(i)] == ["a", "d"]


def test_a_device_that_was_never_advertised_is_dropped() -> None:
    inventory = Inventory()
    inventory.survey(seen("a", "b"), at(0))
    assert inventory.survey(seen("b"), at(1)) == ()
    assert listed(inventory) == {"b": ""}


def test_shares_are_listed_in_place_of_their_device_and_go_together() -> None:
    inventory = vanished(Sharing(2))
    assert list(listed(inventory)) == ["a::0", "a::1", "b::0", "b::1"]
    assert inventory.find("a") is None
    late = at(RELEASE_AFTER)
    assert inventory.release(inventory.releasable(late), {"a::1"}, late) == ()
    assert inventory.release(inventory.releasable(late), {"b::1"}, late) == ("a",)
    assert list(listed(inventory)) == ["b::0", "b::1"]


def test_a_tombstone_goes_when_no_pod_holds_it_and_a_minute_after_its_allocation() -> None:
    inventory = vanished()
    inventory.name(["a"], at(30))
    assert inventory.releasable(at(RELEASE_AFTER)) == frozenset()
    late = at(30 + RELEASE_AFTER)
    candidates = inventory.releasable(late)
    assert candidates == {Tombstone("a")}
    assert inventory.release(candidates, {"a"}, late) == ()
    assert inventory.release(candidates, set(), late) == ("a",)
    assert listed(inventory) == {"b": ""}
    assert len(inventory) == 1


@pytest.mark.parametrize("allocated", [True, False])
def test_a_tombstone_that_is_in_use_again_during_a_query_stays(*, allocated: bool) -> None:
    inventory, late = vanished(), at(RELEASE_AFTER)
    candidates = inventory.releasable(late)
    if allocated:
        inventory.name(["a"], late)
    else:
        inventory.survey(seen("a", "b"), late)
    assert inventory.release(candidates, set(), late) == ()
    assert listed(inventory) == {"a": GONE if allocated else "", "b": ""}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ id }}", "share.id gives two of its replicas the id 'a'"),
        ("{{ id }}" + "y" * 600, "a replica of it cannot have the id"),
        ("{{ id.split('-')[7] }}", "share.id: "),
        ("{{ id }}/vgpu{{ n }}", ""),
    ],
)
def test_ids_of_shares_are_made_by_the_template(template: str, reason: str) -> None:
    compiled = compile_template(template, frozenset({"id", "n"}), frozenset())
    inventory = Inventory(Sharing(2, compiled, 1))
    inventory.survey(seen("a"), at(0))
    assert list(listed(inventory)) == ([] if reason else ["a/vgpu1", "a/vgpu2"])
    assert inventory.left_out.get("a", "").startswith(reason)


NAMES = ("a", "b", "c", "d10", "d9")


class Life:
    """Surveys, health, advertised lists, allocations, adoption, and releases in a random order."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.inventory = Inventory(Sharing(random.choice([None, 1, 3])))
        self.now = 0.0
        self.shown: set[str] = set()
        self.held: set[str] = set()
        self.named: dict[str, float] = {}
        self.present: set[str] = set()

    def step(self) -> None:
        actions = (
            *(self.survey, self.find_one, self.miss_one, self.show, self.allocate),
            *(self.end_a_pod, self.adopt, self.release, self.wait),
        )
        action = self.random.choice(actions)
        note(f"{self.now:g}: {action.__name__}")
        action()
        self.check()

    def some(self) -> set[str]:
        return {name for name in NAMES if self.random.random() < 0.5}

    def ids(self) -> set[str]:
        return {entry.id for entry in self.inventory.advertised()}

    def survey(self) -> None:
        self.present, sick = self.some(), self.some()
        found = [*seen(*(self.present - sick)), *seen(*(self.present & sick), reason="sick")]
        self.inventory.survey(found, at(self.now))
        healthy = {i for i, known in self.inventory.devices.items() if known.healthy}
        assert healthy == self.present - sick

    def find_one(self) -> None:
        name, reason = self.random.choice(NAMES), self.random.choice(["", "sick"])
        self.inventory.update(seen(name, reason=reason), [], at(self.now))
        self.present.add(name)
        assert self.inventory.devices[name].reason == reason

    def miss_one(self) -> None:
        name = self.random.choice(NAMES)
        self.inventory.update([], [name], at(self.now))
        self.present.discard(name)
        assert name not in self.inventory.devices or not self.inventory.devices[name].healthy

    def show(self) -> None:
        self.shown |= self.ids()
        self.inventory.shown()

    def allocate(self) -> None:
        """The kubelet asks only for advertised ids; a pod holds the id from then on."""
        if self.shown:
            chosen = self.random.choice(sorted(self.shown))
            self.inventory.name([chosen], at(self.now))
            self.named[chosen] = self.now
            self.held.add(chosen)

    def end_a_pod(self) -> None:
        if self.held:
            self.held.remove(self.random.choice(sorted(self.held)))

    def adopt(self) -> None:
        names = {name for name in ("a", "a::0", "z", "z::5") if self.random.random() < 0.3}
        self.inventory.adopt(names, at(self.now))
        self.shown |= names
        self.held |= names

    def release(self) -> None:
        before = self.ids()
        now = at(self.now)
        self.inventory.release(self.inventory.releasable(now), frozenset(self.held), now)
        dropped = before - self.ids()
        assert not dropped & self.held
        assert all(self.now - self.named.get(i, -1e9) >= RELEASE_AFTER for i in dropped)
        self.shown -= dropped

    def wait(self) -> None:
        self.now += self.random.choice([1.0, 30.0, RELEASE_AFTER, 1000.0])

    def check(self) -> None:
        entries = self.inventory.advertised()
        assert self.held <= self.shown <= self.ids()
        assert all(count == 1 for count in Counter(entry.id for entry in entries).values())
        assert len(entries) == len(self.inventory)
        devices = [entry for entry in entries if entry.known.reason != ORPHAN]
        assert devices == sorted(devices, key=lambda entry: natural(entry.known.device.id))
        found = {i for i, known in self.inventory.devices.items() if known.vanished is None}
        assert found == self.present
        assert all(self.inventory.find(entry.id) is entry.known for entry in entries)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_order_of_events_drops_an_id_that_a_pod_may_hold(seed: int) -> None:
    life = Life(Random(seed))
    for _ in range(50):
        life.step()
