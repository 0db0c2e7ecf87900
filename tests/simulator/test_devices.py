"""The device manager's state, on a clock that only the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.checkpoint import Checkpoint, Entry
from simulator.devices import Device, DeviceState, Options

R = "example.com/camera"


class Bed:
    def __init__(self) -> None:
        self.now = 0.0
        self.violations: list[str] = []
        self.active = {"uid"}
        self.state = DeviceState(
            lambda: self.now,
            grace_period=300,
            numa_nodes=(0, 1),
            active=lambda: self.active,
            violation=self.violations.append,
        )

    def up(self, *devices: Device) -> None:
        self.state.connected(R, object(), Options())
        self.state.listed(R, devices)

    def counts(self) -> tuple[int, int]:
        return self.state.capacity(R), len(self.state.healthy(R))


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_only_the_word_healthy_is_healthy(bed: Bed) -> None:
    bed.up(Device("a"), Device("b", "Unhealthy"), Device("c", "healthy"), Device("d", ""))
    assert bed.counts() == (4, 1)
    assert len(bed.violations) == 2


def test_a_stream_that_ends_leaves_capacity_and_takes_allocatable(bed: Bed) -> None:
    bed.up(Device("a"), Device("b"))
    bed.state.disconnected(R)
    assert bed.counts() == (2, 0)
    bed.now = 300
    assert not bed.state.expire()
    bed.now = 301
    assert bed.state.expire()
    assert (bed.counts(), bed.state.resources(), bed.state.forgotten(R)) == ((0, 0), (), True)


def test_a_new_plugin_changes_nothing_until_it_lists(bed: Bed) -> None:
    bed.up(Device("a"))
    bed.state.disconnected(R)
    bed.state.connected(R, object(), Options())
    assert bed.counts() == (1, 0)
    bed.now = 1000
    assert not bed.state.expire()
    bed.state.listed(R, [Device("a"), Device("b")])
    assert bed.counts() == (2, 2)


def test_in_the_handover_race_the_new_plugins_endpoint_is_stopped_too(bed: Bed) -> None:
    bed.up(Device("a"))
    bed.up(Device("a"))
    bed.state.disconnected(R)
    assert bed.counts() == (1, 0)
    # Its next list is taken in, but the endpoint stays stopped and is forgotten in time.
    bed.state.listed(R, [Device("a")])
    assert bed.counts() == (1, 1)
    assert bed.state.endpoints[R].stopped_at is not None
    bed.now = 301
    bed.state.expire()
    assert bed.counts() == (0, 0)


def test_a_duplicate_of_two_healths_counts_twice_as_in_a_kubelet(bed: Bed) -> None:
    bed.up(Device("a"), Device("a", "Unhealthy"))
    assert bed.counts() == (2, 1)
    assert bed.violations == [f"{R}: device 'a' is listed more than once"]


def test_numa_nodes_that_are_not_there_are_told(bed: Bed) -> None:
    bed.up(Device("a", numa=(-1,)), Device("b", numa=(7,)), Device("c", numa=()), Device("d", numa=(0, 1)))
    assert len(bed.violations) == 3
    assert "NUMA node -1 is not one of this node's" in bed.violations[0]
    # Once for each device, not with each list.
    bed.state.listed(R, [Device("a", numa=(-1,)), Device("e")])
    assert len(bed.violations) == 3


def test_a_held_device_must_not_be_dropped(bed: Bed) -> None:
    bed.up(Device("a"), Device("b"))
    bed.state.hold("uid", "c", R, {-1: ["a"]}, b"")
    bed.state.listed(R, [Device("b")])
    assert bed.violations == [f"{R}: device 'a' is held by a pod and is no longer advertised"]


def test_the_device_of_an_ended_pod_may_be_dropped(bed: Bed) -> None:
    bed.up(Device("a"), Device("b"))
    bed.state.hold("uid", "c", R, {-1: ["a"]}, b"")
    bed.active.clear()
    bed.state.listed(R, [Device("b")])
    assert bed.violations == []
    assert bed.state.in_use(R) == {"a"}


def test_one_id_in_two_resources_is_told(bed: Bed) -> None:
    bed.up(Device("a"))
    bed.state.listed("example.com/other", [Device("a")])
    assert "is advertised by example.com/camera too" in bed.violations[0]


def test_a_checkpoint_restores_holders_but_no_capacity(bed: Bed) -> None:
    entry = Entry("uid", "c", R, {0: ("a",), 1: ("a", "b")}, b"\x0a\x00")
    bed.state.restore(Checkpoint((entry,), {R: ("a", "b"), "example.com/idle": ()}))
    assert bed.counts() == (0, 0)
    assert bed.state.resources() == (R, "example.com/idle")
    assert bed.state.in_use(R) == {"a", "b"}
    assert bed.state.has(R)
    bed.now = 301
    bed.state.expire()
    assert bed.state.has(R)
    assert not bed.state.has("example.com/idle")
    bed.state.reclaim({"another"})
    assert not bed.state.has(R)


@given(
    st.lists(
        st.one_of(
            st.just("connect"),
            st.just("disconnect"),
            st.just("expire"),
            st.floats(0, 400),
            st.lists(st.builds(Device, st.sampled_from("abc"), st.sampled_from(["Healthy", "Unhealthy"]))),
        ),
        max_size=30,
    )
)
def test_allocatable_never_exceeds_capacity_and_a_checkpoint_is_always_possible(
    steps: list[str | float | list[Device]],
) -> None:
    bed = Bed()
    for step in steps:
        match step:
            case "connect":
                bed.state.connected(R, object(), Options())
            case "disconnect":
                bed.state.disconnected(R)
            case "expire":
                bed.state.expire()
            case list():
                bed.state.listed(R, step)
            case float():
                bed.now += step
            case _:
                raise AssertionError(step)
        capacity, allocatable = bed.counts()
        assert 0 <= allocatable <= capacity
        kept = bed.state.checkpoint().registered
        assert kept is not None
        assert len(kept.get(R, ())) == allocatable
        assert bed.state.healthy(R) <= bed.state.devices.get(R, {}).keys()
