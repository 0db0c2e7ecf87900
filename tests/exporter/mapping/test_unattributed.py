"""exporter.mapping.unattributed: allocated devices that no pod lists."""

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.identity import NEVER, PodIdentity, PodRecord, PodView
from exporter.mapping.model import AdvertisedDevice, DeviceKey
from exporter.mapping.unattributed import AFTER, WITHIN, PodsSeen, UnattributedTracker
from harness.scene import reported

START = 1_000_000.0


@dataclass
class World:
    """A node: its held devices, and when its plugin allocated each."""

    tracker: UnattributedTracker = field(default_factory=UnattributedTracker)
    held: set[str] = field(default_factory=set[str])
    allocated: dict[str, float | None] = field(default_factory=dict[str, float | None])
    _before: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.report()

    def report(self) -> None:
        """The exporter gets the plugin's report."""
        devices = {i: AdvertisedDevice(healthy=True, last_allocated=at) for i, at in self.allocated.items()}
        self.advertised = reported(devices, resource="r")

    def poll(self, at: float, *, took: float = 0.001, pods: PodsSeen | None = None) -> list[str]:
        """The unattributed devices by an answer that was requested `at` seconds after the start."""
        released = [DeviceKey("r", i) for i in self._before - self.held]
        self._before = frozenset(self.held)
        self.found = self.tracker.advance(
            frozenset(DeviceKey("r", i) for i in self.held),
            self.advertised,
            released=released,
            asked=START + at,
            now=START + at + took,
            pods=pods,
        )
        return [one.key.device for one in self.found]

    def allocate(self, at: float | None) -> None:
        """The plugin reports that it allocated `x`."""
        self.allocated["x"] = None if at is None else START + at
        self.report()


class Allocate(NamedTuple):
    """The plugin reports when it last allocated the device; None: it does not know, as after a restart."""

    at: float | None


class Poll(NamedTuple):
    """A List that shows the device without a holder, or as unattributed."""

    at: float
    unattributed: bool = False
    took: float = 0.001


HOLD, FREE, FORGET = "hold", "free", "forget"
Step = Allocate | Poll | str | float


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            [
                *(0.0, Allocate(1), 1.01, 5.0, 20.0, 1 + AFTER - 0.1),
                *(Poll(at, unattributed=True) for at in (1 + AFTER, 60, 90, 5000)),
                *(HOLD, 5001.0, FREE, 5002.0, 5100.0),
            ],
            id="reported after AFTER seconds until a pod holds it",
        ),
        pytest.param([0.0, Allocate(1), HOLD, 1.01, FREE, 8.0, 40.0, 100.0], id="its pod has ended"),
        pytest.param(
            [0.0, HOLD, 1.01, FREE, 3.0, Allocate(1), 4.0, 40.0, 100.0], id="List precedes the report"
        ),
        pytest.param(
            [HOLD, 0.0, 5.0, FREE, Allocate(5.2), 5.21, 10.0, 35.0, Poll(5.2 + AFTER, unattributed=True)],
            id="released and allocated again between two polls",
        ),
        pytest.param(
            [0.0, HOLD, Poll(0.9, took=0.3), FREE, Allocate(1), 1.4, 10.0, 40.0, 100.0],
            id="List was under way at the allocation",
        ),
        pytest.param(
            [0.0, Allocate(1), 1 + WITHIN + 0.01, 5.0, 40.0, 100.0], id="its pod may have come and gone"
        ),
        pytest.param([Allocate(-20), 0.0, 5.0, 20.0, 60.0], id="allocated before the first poll"),
        pytest.param(
            [0.0, 1.01, 5.0, 15.0, Allocate(1), 16.0, Poll(32, unattributed=True)], id="late report"
        ),
        pytest.param(
            [0.0, 1.01, *map(float, range(5, 100, 5)), Allocate(1), 100.0, 140.0], id="too late report"
        ),
        pytest.param([0.0, 0.99, Allocate(1), 70.0, 75.0], id="no List after the allocation"),
        pytest.param([0.0, Allocate(1), 1.01, Poll(70, unattributed=True)], id="List fails later"),
        pytest.param(
            [
                *(0.0, Allocate(1), 1.01, Poll(40, unattributed=True)),
                *(Allocate(41), 41.01, 60.0, Poll(41 + AFTER, unattributed=True)),
            ],
            id="allocated again",
        ),
        pytest.param(
            [0.0, Allocate(1), 1.01, Poll(40, unattributed=True), Allocate(None), 41.0, 80.0],
            id="the plugin has restarted",
        ),
        pytest.param(
            [0.0, Allocate(1), 1.01, Poll(40, unattributed=True), FORGET, 41.0, 80.0],
            id="the plugin has dropped the device",
        ),
        pytest.param([0.0, Allocate(3600), 1.0, 40.0, 100.0], id="allocated in the future"),
        pytest.param([0.0, Allocate(1), 1.01, -3595.0, 40.0, 100.0], id="clock set back, no holder"),
        # An hour back: what is released now was released before the allocation.
        pytest.param(
            [0.0, Allocate(1), 1.01, HOLD, 5.0, FREE, -3595.0, -3500.0, 1.02, 40.0], id="clock set back"
        ),
    ],
)
def test_device_is_unattributed(script: list[Step]) -> None:
    world = World()
    for step in script:
        match step:
            case Allocate(at):
                world.allocate(at)
            case Poll(at, unattributed, took):
                assert world.poll(at, took=took) == ["x"] * unattributed, step
            case "hold":
                world.held = {"x"}
            case "free":
                world.held = set()
            case "forget":
                world.allocated.clear()
                world.report()
            case float():
                assert world.poll(step) == [], step
            case _:
                raise AssertionError(step)


MONO = 50.0
"""The view's clock at the start."""


def _seen(name: str, at: float, *, over: float = NEVER, phase: str = "Running") -> PodRecord:
    """A pod that its source reported `at` seconds after the start."""
    identity = PodIdentity("n", name, f"uid-{name}", phase)
    return PodRecord(identity, MONO + at, known=MONO + at, over=over if over == NEVER else MONO + over)


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
        # It came, and has ended or was rejected: the device may have been its.
        (_pods(OLD, STAYS, _seen("short", 0.95, over=1.2)), None),
        (_pods(OLD, STAYS, _seen("refused", 0.95, phase="Failed")), None),
        # None came that could have it.
        (_pods(OLD, _seen("later", 5)), None),
        (_pods(), None),
        # No source is connected.
        (_pods(connected=False), []),
        (_pods(OLD, _seen("short", 0.95, over=1.2), connected=False), []),
        (None, []),
    ],
)
def test_with_a_source_only_a_pod_that_came_in_time_may_have_it(
    pods: PodsSeen | None, may_have: list[tuple[str, str]] | None
) -> None:
    world = World()
    world.poll(0)
    world.allocate(1)
    for at in (1.01, 5, 40):
        world.poll(at, pods=pods)
    assert [list(found.pods) for found in world.found] == ([] if may_have is None else [may_have])


@pytest.mark.parametrize("after", [_pods(OLD, _seen("stays", 0.9, over=90)), _pods(OLD)])
def test_end_of_the_pod_that_may_have_it_ends_the_anomaly(after: PodsSeen) -> None:
    world = World()
    world.poll(0)
    world.allocate(1)
    before = _pods(OLD, STAYS)
    found = [
        world.poll(at, pods=pods) for at, pods in ((1.01, before), (40, before), (100, after), (105, before))
    ]
    assert found == [[], ["x"], [], []]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_device_whose_pod_was_listed_is_never_unattributed(data: st.DataObject) -> None:
    """Pods come and go at random; List is called at each allocation, as the kubelet's checkpoint triggers."""
    world, at = World(), 0.0
    leaked: dict[str, float] = {}
    world.poll(at)
    for _ in range(data.draw(st.integers(1, 25))):
        at += data.draw(st.sampled_from([0.05, 0.5, 3.0, 11.0, 40.0]))
        device = data.draw(st.sampled_from("abc"))
        act = data.draw(st.sampled_from(["allocate", "leak", "release", "poll", "report"]))
        if act in {"allocate", "leak"} and device not in world.held and device not in leaked:
            world.allocated[device] = START + at
            if act == "allocate":
                world.held.add(device)
            else:
                leaked[device] = at
            world.poll(at + 0.01)
        elif act == "release":
            world.held.discard(device)
        elif act == "report":
            world.report()
        found = world.poll(at + 0.02)
        assert set(found) <= {i for i, since in leaked.items() if at + 0.03 >= since + AFTER}
