"""The rule above all: what was shown to the kubelet and may be held is never dropped."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from plugin.config.templates import compile_template
from plugin.devices.device import Device, Sharing
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
from runtime.clock import Instant


def at(seconds: float) -> Instant:
    return Instant(1e9 + seconds, seconds)


def seen(*names: str, reason: str = "") -> list[ObservedDevice]:
    return [ObservedDevice(Device(name, name, f"/dev/{name}"), reason) for name in names]


def listed(inventory: Inventory) -> dict[str, str]:
    return {entry.id: entry.known.reason for entry in inventory.advertised()}


def test_a_device_that_vanishes_is_unhealthy_and_kept_and_comes_back_with_its_id() -> None:
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


def test_a_device_that_no_kubelet_was_shown_may_simply_go() -> None:
    inventory = Inventory()
    inventory.survey(seen("a", "b"), at(0))
    assert inventory.survey(seen("b"), at(1)) == ()
    assert listed(inventory) == {"b": ""}


def test_since_is_the_last_change_of_health_not_of_its_reason() -> None:
    inventory = Inventory()
    inventory.survey(seen("a", reason="x"), at(0))
    inventory.survey(seen("a", reason="y"), at(5))
    assert (inventory.devices["a"].reason, inventory.devices["a"].since) == ("y", 1e9)


def test_replicas_are_listed_in_place_of_their_device_and_go_together() -> None:
    inventory = Inventory(Sharing(2))
    inventory.survey(seen("a", "b"), at(0))
    inventory.shown()
    assert list(listed(inventory)) == ["a::0", "a::1", "b::0", "b::1"]
    assert inventory.find("a") is None
    inventory.survey(seen("b"), at(0))
    late = at(RELEASE_AFTER)
    assert inventory.release(inventory.releasable(late), {"a::1"}, late) == ()
    assert inventory.release(inventory.releasable(late), {"b::1"}, late) == ("a",)
    assert list(listed(inventory)) == ["b::0", "b::1"]


def test_a_tombstone_goes_when_no_pod_holds_it_and_not_within_a_minute_of_its_allocation() -> None:
    inventory = Inventory()
    inventory.survey(seen("a"), at(0))
    inventory.shown()
    inventory.survey([], at(0))
    inventory.name(["a"], at(30))
    assert inventory.releasable(at(RELEASE_AFTER)) == frozenset()
    ripe = at(30 + RELEASE_AFTER)
    assert inventory.releasable(ripe) == {Tombstone("a")}
    assert inventory.release(frozenset({Tombstone("a")}), {"a"}, ripe) == ()
    assert inventory.release(frozenset({Tombstone("a")}), set(), ripe) == ("a",)
    assert listed(inventory) == {}
    assert len(inventory) == 0


def test_a_device_that_came_back_while_the_kubelet_was_asked_stays() -> None:
    inventory = Inventory()
    inventory.survey(seen("a"), at(0))
    inventory.shown()
    inventory.survey([], at(0))
    candidates = inventory.releasable(at(RELEASE_AFTER))
    inventory.survey(seen("a"), at(RELEASE_AFTER))
    assert inventory.release(candidates, set(), at(RELEASE_AFTER)) == ()
    assert listed(inventory) == {"a": ""}


def test_an_allocation_while_the_kubelet_was_asked_keeps_the_tombstone() -> None:
    inventory = Inventory()
    inventory.survey(seen("a"), at(0))
    inventory.shown()
    inventory.survey([], at(0))
    candidates = inventory.releasable(at(RELEASE_AFTER))
    inventory.name(["a"], at(RELEASE_AFTER))
    assert inventory.release(candidates, set(), at(RELEASE_AFTER)) == ()


def test_what_pods_hold_from_before_is_advertised_until_it_is_found_or_released() -> None:
    inventory = Inventory(Sharing(2))
    inventory.survey(seen("a"), at(0))
    inventory.adopt(["a::1", "b::0", "b::7"], at(0))
    assert listed(inventory) == {"a::0": "", "a::1": "", "b::0": ORPHAN, "b::7": ORPHAN}
    inventory.survey(seen("a", "b"), at(1))
    assert listed(inventory) == {"a::0": "", "a::1": "", "b::0": "", "b::1": "", "b::7": ORPHAN}
    late = at(RELEASE_AFTER)
    assert inventory.release(inventory.releasable(late), set(), late) == ("b::7",)


def test_an_adopted_device_that_was_found_and_vanishes_again_is_a_tombstone() -> None:
    inventory = Inventory()
    inventory.adopt(["a"], at(0))
    inventory.survey(seen("a"), at(1))
    inventory.survey([], at(2))
    assert listed(inventory) == {"a": GONE}


def test_an_orphan_that_is_called_as_a_device_is_now_is_not_taken_for_it() -> None:
    inventory = Inventory(Sharing(1))
    inventory.adopt(["a"], at(0))
    inventory.survey(seen("a"), at(1))
    late = at(RELEASE_AFTER)
    assert inventory.release(inventory.releasable(late), {"a::0"}, late) == ("a",)
    assert listed(inventory) == {"a::0": ""}


def test_a_device_that_a_pod_holds_from_before_is_kept_though_no_list_was_shown_yet() -> None:
    inventory = Inventory()
    inventory.survey(seen("a"), at(0))
    inventory.adopt(["a"], at(0))
    inventory.survey([], at(1))
    assert listed(inventory) == {"a": GONE}


def test_the_list_never_outgrows_what_the_kubelet_takes() -> None:
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


def test_replicas_are_called_as_the_template_says() -> None:
    template = compile_template("{{ id }}/vgpu{{ n }}", frozenset({"id", "n"}), frozenset())
    inventory = Inventory(Sharing(2, template, 1))
    inventory.survey(seen("nvidia0"), at(0))
    assert list(listed(inventory)) == ["nvidia0/vgpu1", "nvidia0/vgpu2"]


def test_a_device_whose_ids_another_has_is_left_out_and_reported() -> None:
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


def test_replicas_that_are_no_ids_are_left_out_and_reported() -> None:
    same = compile_template("{{ id }}", frozenset({"id", "n"}), frozenset())
    long = compile_template("{{ id }}" + "y" * 600, frozenset({"id", "n"}), frozenset())
    failing = compile_template("{{ id.split('-')[7] }}", frozenset({"id", "n"}), frozenset())
    for template, reason in (
        (same, "share.id gives two of its replicas the id 'a'"),
        (long, "a replica of it cannot have the id"),
        (failing, "share.id: "),
    ):
        inventory = Inventory(Sharing(2, template))
        inventory.survey(seen("a"), at(0))
        assert listed(inventory) == {}
        assert inventory.left_out["a"].startswith(reason)


def test_what_changed_is_taken_in_alone_and_every_other_entry_stays_itself() -> None:
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


def test_what_may_be_held_was_named_by_allocate_or_held_from_before() -> None:
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


NAMES = st.sampled_from(["a", "b", "c", "d10", "d9"])


class Life(RuleBasedStateMachine):
    """Surveys, health, lists shown, allocations, adoption and releases in any order."""

    @initialize(replicas=st.sampled_from([None, 1, 3]))
    def begin(self, replicas: int | None) -> None:
        self.inventory = Inventory(Sharing(replicas))
        self.now = 0.0
        self.shown: set[str] = set()
        self.held: set[str] = set()
        self.named: dict[str, float] = {}
        self.present: set[str] = set()

    def moment(self) -> Instant:
        return at(self.now)

    @rule(names=st.sets(NAMES), sick=st.sets(NAMES))
    def survey(self, names: set[str], sick: set[str]) -> None:
        self.inventory.survey([*seen(*(names - sick)), *seen(*(names & sick), reason="sick")], self.moment())
        self.present = names
        healthy = {self.inventory.devices[name].device.id for name in names - sick}
        assert {i for i, known in self.inventory.devices.items() if known.healthy} == healthy

    @rule(name=NAMES, sick=st.booleans())
    def see_one(self, name: str, sick: bool) -> None:
        self.inventory.update(seen(name, reason="sick" if sick else ""), [], self.moment())
        self.present.add(name)
        assert self.inventory.devices[name].healthy is not sick

    @rule(name=NAMES)
    def miss_one(self, name: str) -> None:
        self.inventory.update([], [name], self.moment())
        self.present.discard(name)
        assert name not in self.inventory.devices or not self.inventory.devices[name].healthy

    @rule()
    def show(self) -> None:
        self.shown |= {entry.id for entry in self.inventory.advertised()}
        self.inventory.shown()

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        """The kubelet only asks for what it was shown, and from then on a pod holds it."""
        if not self.shown:
            return
        chosen = data.draw(st.sampled_from(sorted(self.shown)))
        assert self.inventory.find(chosen) is not None
        self.inventory.name([chosen], self.moment())
        self.named[chosen] = self.now
        self.held.add(chosen)

    @rule(data=st.data())
    def end_a_pod(self, data: st.DataObject) -> None:
        if self.held:
            self.held.remove(data.draw(st.sampled_from(sorted(self.held))))

    @rule(names=st.sets(st.sampled_from(["a", "a::0", "z", "z::5"])))
    def adopt(self, names: set[str]) -> None:
        self.inventory.adopt(names, self.moment())
        self.shown |= {name for name in names if self.inventory.find(name) is not None}
        self.held |= {name for name in names if self.inventory.find(name) is not None}

    @rule()
    def release(self) -> None:
        now = self.moment()
        before = {entry.id for entry in self.inventory.advertised()}
        self.inventory.release(self.inventory.releasable(now), frozenset(self.held), now)
        dropped = before - {entry.id for entry in self.inventory.advertised()}
        assert not dropped & self.held
        assert all(self.now - self.named.get(i, -1e9) >= RELEASE_AFTER for i in dropped)
        self.shown -= dropped

    @rule(seconds=st.sampled_from([1.0, 30.0, RELEASE_AFTER, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_that_was_shown_is_missing(self) -> None:
        if hasattr(self, "inventory"):
            assert self.shown <= {entry.id for entry in self.inventory.advertised()}
            assert self.held <= self.shown | set(self.named)

    @invariant()
    def no_id_is_listed_twice_and_every_one_can_be_found(self) -> None:
        if hasattr(self, "inventory"):
            entries = self.inventory.advertised()
            assert all(count == 1 for count in Counter(entry.id for entry in entries).values())
            assert len(entries) == len(self.inventory)
            assert {
                i for i, known in self.inventory.devices.items() if known.vanished is None
            } == self.present
            assert all(self.inventory.find(entry.id) is entry.known for entry in entries)


Life.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase
