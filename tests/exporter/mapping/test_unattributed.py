"""exporter.mapping.unattributed: allocated devices that no pod lists."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.identity import NEVER, PodIdentity, PodRecord, PodView
from exporter.mapping.model import (
    AdvertisedDevice,
    AdvertisedResource,
    DeviceKey,
    PluginReport,
    merge_reports,
)
from exporter.mapping.unattributed import AFTER, WITHIN, PodsSeen, UnattributedTracker

START = 1_000_000.0


@dataclass
class World:
    """A node as the exporter sees it: who holds what, and when its plugin gave what out."""

    attribution: UnattributedTracker = field(default_factory=UnattributedTracker)
    held: set[str] = field(default_factory=set[str])
    given: dict[str, float | None] = field(default_factory=dict[str, float | None])
    _before: frozenset[str] = frozenset()

    def tell(self) -> None:
        """The plugin's document is read anew."""
        devices = {i: AdvertisedDevice(healthy=True, last_allocated=at) for i, at in self.given.items()}
        resource = AdvertisedResource(registered=True, streams=1, devices=devices)
        self.told = merge_reports([PluginReport("plugin", {"r": resource}, START)])

    def __post_init__(self) -> None:
        self.tell()

    def look(self, at: float, *, took: float = 0.001, pods: PodsSeen | None = None) -> list[str]:
        """A good answer asked for `at` seconds after the start; what is unattributed by it."""
        released = [DeviceKey("r", i) for i in self._before - self.held]
        self._before = frozenset(self.held)
        self.found = self.attribution.advance(
            frozenset(DeviceKey("r", i) for i in self.held),
            self.told,
            released=released,
            asked=START + at,
            now=START + at + took,
            pods=pods,
        )
        return [one.key.device for one in self.found]

    def give(self, device: str, at: float) -> None:
        self.given[device] = START + at
        self.tell()

    def looks(self, times: Iterable[float]) -> list[str]:
        """Several looks; what the last one found."""
        found: list[str] = []
        for at in times:
            found = self.look(at)
        return found


def test_a_device_that_no_pod_lists_is_told_after_half_a_minute_until_a_pod_has_it() -> None:
    world = World()
    world.look(0)
    world.give("x", 1)
    assert world.looks((1.01, 5, 10, 20, 1 + AFTER - 0.1)) == []
    assert world.look(1 + AFTER) == ["x"]
    assert world.looks((60, 90, 200, 5000)) == ["x"]
    world.held = {"x"}
    assert world.look(5001) == []
    world.held = set()
    assert world.looks((5002, 5100)) == []


def test_a_device_that_a_pod_lists_is_nobodys_trouble_also_when_the_pod_has_gone() -> None:
    world = World()
    world.look(0)
    world.give("x", 1)
    world.held = {"x"}
    world.look(1.01)
    world.held = set()
    assert world.looks((8, 20, 40, 100)) == []


def test_the_pods_own_look_may_come_before_its_plugins_word() -> None:
    world = World()
    world.look(0)
    world.held = {"x"}
    world.look(1.01)
    world.held = set()
    world.look(3)
    world.give("x", 1)  # heard of only now
    assert world.looks((4, 20, 40, 100)) == []


def test_what_another_pod_gave_back_just_before_is_not_taken_for_what_was_given_out() -> None:
    """Released and given out anew between two looks: the holder that was seen is the one before."""
    world = World()
    world.held = {"x"}
    world.looks((0, 5))
    world.held = set()
    world.give("x", 5.2)
    assert world.looks((5.21, 10, 35)) == []
    assert world.look(5.2 + AFTER) == ["x"]


def test_a_look_that_was_under_way_at_the_allocation_may_have_shown_its_pod() -> None:
    world = World()
    world.look(0)
    world.held = {"x"}
    world.look(0.9, took=0.3)
    world.held = set()
    world.give("x", 1)
    assert world.looks((1.4, 10, 40, 100)) == []


def test_a_pod_that_came_and_went_between_two_looks_is_not_accused() -> None:
    world = World()
    world.look(0)
    world.give("x", 1)
    assert world.looks((1 + WITHIN + 0.01, 5, 40, 100)) == []


def test_what_was_given_before_the_exporter_looked_is_not_judged() -> None:
    world = World()
    world.give("x", -20)
    assert world.looks((0, 5, 20, 60)) == []


def test_a_word_that_comes_late_is_judged_by_the_looks_of_its_time() -> None:
    world = World()
    world.looks((0, 1.01, 5, 15))
    world.give("x", 1)
    assert world.look(16) == []
    assert world.look(32) == ["x"]


def test_a_word_that_comes_too_late_is_not_judged() -> None:
    world = World()
    world.looks((0, 1.01, *range(5, 100, 5)))
    world.give("x", 1)
    assert world.looks((100, 140)) == []


def test_looks_that_fail_accuse_nobody() -> None:
    """The kubelet answers at the allocation, then not for a minute."""
    world = World()
    world.looks((0, 0.99))
    world.give("x", 1)
    assert world.looks((70, 75)) == []
    seen = World()
    seen.look(0)
    seen.give("x", 1)
    assert seen.looks((1.01, 70)) == ["x"]


def test_a_new_allocation_begins_anew() -> None:
    world = World()
    world.look(0)
    world.give("x", 1)
    assert world.looks((1.01, 40)) == ["x"]
    world.give("x", 41)
    assert world.looks((41.01, 60)) == []
    assert world.look(41 + AFTER) == ["x"]


@pytest.mark.parametrize("what", ["restarted", "gone"])
def test_a_plugin_that_says_it_no_longer_is_believed(what: str) -> None:
    world = World()
    world.look(0)
    world.give("x", 1)
    assert world.looks((1.01, 40)) == ["x"]
    if what == "restarted":
        world.given["x"] = None
    else:
        del world.given["x"]
    world.tell()
    assert world.looks((41, 80)) == []


def test_a_time_that_has_not_come_yet_is_not_judged_before() -> None:
    world = World()
    world.look(0)
    world.give("x", 3600)
    assert world.looks((1, 40, 100)) == []


def test_a_clock_that_is_set_back_lets_everything_go() -> None:
    world = World()
    world.look(0)
    world.give("x", 1)
    world.look(1.01)
    world.held = {"x"}
    world.look(5)
    world.held = set()
    # An hour back: what is released now was released before it was given.
    assert world.looks((-3595, -3500, 1.02, 40)) == []


MONO = 50.0
"""The view's clock at the start."""


def _seen(name: str, told: float, *, over: float = NEVER, phase: str = "Running") -> PodRecord:
    """A pod that was told of `told` seconds after the start."""
    identity = PodIdentity("n", name, f"uid-{name}", phase)
    return PodRecord(identity, MONO + told, known=MONO + told, over=over if over == NEVER else MONO + over)


def _pods(*seen: PodRecord, connected: bool = True) -> PodsSeen:
    view = PodView({s.identity.key: (s,) for s in seen}, connected, MONO - 100 if connected else NEVER)
    return PodsSeen(view, START - MONO)


OLD = _seen("old", -500)
STAYS = _seen("stays", 0.9)


@pytest.mark.parametrize(
    ("pods", "may_have"),
    [
        (_pods(OLD, STAYS), [("n", "stays")]),
        (_pods(OLD, STAYS, _seen("other", 0.5)), [("n", "other"), ("n", "stays")]),
        (_pods(OLD, STAYS, _seen("before", 0.2, over=0.8)), [("n", "stays")]),
        # It came, and has ended, was refused or has gone: the device may have been its.
        (_pods(OLD, STAYS, _seen("short", 0.95, over=1.2)), None),
        (_pods(OLD, STAYS, _seen("refused", 0.95, phase="Failed")), None),
        # None came that could have it.
        (_pods(OLD, _seen("later", 5)), None),
        (_pods(), None),
        # Nobody tells: nothing is known of pods.
        (_pods(connected=False), []),
        (_pods(OLD, _seen("short", 0.95, over=1.2), connected=False), []),
        (None, []),
    ],
)
def test_where_the_pods_are_known_only_one_that_came_in_time_may_have_it(
    pods: PodsSeen | None, may_have: list[tuple[str, str]] | None
) -> None:
    world = World()
    world.look(0)
    world.give("x", 1)
    world.look(1.01, pods=pods)
    world.look(5, pods=pods)
    world.look(40, pods=pods)
    assert [list(found.pods) for found in world.found] == ([] if may_have is None else [may_have])


def test_it_is_over_when_the_pod_that_may_have_it_has_ended_or_is_told_of_no_more() -> None:
    for after in (_pods(OLD, _seen("stays", 0.9, over=90)), _pods(OLD)):
        world = World()
        world.look(0)
        world.give("x", 1)
        world.look(1.01, pods=_pods(OLD, STAYS))
        assert world.look(40, pods=_pods(OLD, STAYS)) == ["x"]
        assert world.look(100, pods=after) == []
        assert world.look(105, pods=_pods(OLD, STAYS)) == []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_nobody_is_accused_who_was_seen(data: st.DataObject) -> None:
    """Pods come and go at random; each is seen at its allocation, as the kubelet's checkpoint tells."""
    world, at = World(), 0.0
    leaked: dict[str, float] = {}
    world.look(at)
    for _ in range(data.draw(st.integers(1, 25))):
        at += data.draw(st.sampled_from([0.05, 0.5, 3.0, 11.0, 40.0]))
        device = data.draw(st.sampled_from("abc"))
        act = data.draw(st.sampled_from(["give", "leak", "release", "look", "hear"]))
        if act == "give" and device not in world.held and device not in leaked:
            world.given[device] = START + at
            world.held.add(device)
            world.look(at + 0.01)
        elif act == "leak" and device not in world.held and device not in leaked:
            world.given[device] = START + at
            leaked[device] = at
            world.look(at + 0.01)
        elif act == "release":
            world.held.discard(device)
        elif act == "hear":
            world.tell()
        found = world.look(at + 0.02)
        assert set(found) <= {i for i, since in leaked.items() if at + 0.03 >= since + AFTER}
