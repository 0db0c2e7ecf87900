"""exporter.mapping.anomaly_tracker: devices on several NUMA nodes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.anomaly_tracker import NumaSplitTracker
from exporter.mapping.model import Device, DeviceKey, Holder, Snapshot
from exporter.mapping.snapshot import build
from harness.answers import allocatables, listings, shuffled
from kubelet.pb.podresources.v1 import api_pb2

P, P2, Q = Holder("n", "p", "c"), Holder("n", "p", "d"), Holder("n", "q", "c")


def _device(
    name: str, node: int | tuple[int, ...] | None, *holders: Holder, ok: bool = True, resource: str = "r"
) -> Device:
    nodes = () if node is None else node if isinstance(node, tuple) else (node,)
    return Device(DeviceKey(resource, name), "", nodes, ok, tuple(sorted(holders)))


def _snapshot(*devices: Device, complete: bool = True) -> Snapshot:
    return Snapshot(tuple(sorted(devices, key=lambda d: d.key)), complete=complete)


EMPTY = _snapshot(_device("a", 0), _device("b", 1), _device("c", 1))


def _split(*devices: Device, complete: bool = True) -> list[tuple[str, Holder | None, tuple[int, ...]]]:
    """What is found of devices that are given out before the exporter's eyes."""
    placements = NumaSplitTracker()
    assert placements.advance(Snapshot()) == ()
    found = placements.advance(_snapshot(*devices, complete=complete))
    assert {anomaly.kind for anomaly in found} <= {"numa_split"}
    return [(anomaly.resource, anomaly.holder, anomaly.numa_nodes) for anomaly in found]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        # Node 1 had another one free.
        ([_device("a", 0, P), _device("b", 1, P), _device("c", 1)], [("r", P, (1,))]),
        # Both had.
        ([_device(x, i % 2, *([P] if i < 2 else [])) for i, x in enumerate("abcd")], [("r", P, (0, 1))]),
        # What is left was somebody else's, not healthy, or of another resource.
        ([_device("a", 0, P), _device("b", 1, P), _device("c", 1, Q)], []),
        ([_device("a", 0, P), _device("b", 1, P), _device("c", 1, ok=False)], []),
        ([_device("a", 0, P), _device("b", 1, P), _device("c", 1, resource="s")], []),
        ([_device("a", 0, P), _device("b", 1, P)], []),
        # Together; one only; nodes not known; a device that is near both.
        ([_device("a", 0, P), _device("b", 0, P), _device("c", 1)], []),
        ([_device("a", 0, P), _device("b", 1), _device("c", 1)], []),
        ([_device("a", 0, P), _device("b", None, P), _device("c", 0)], []),
        ([_device("a", (0, 1), P), _device("b", 1, P), _device("c", 1)], []),
        # Two containers are two placements.
        ([_device("a", 0, P), _device("b", 1, P2), _device("c", 1)], []),
        # A container's devices of several resources belong together.
        (
            [_device("a", 0, P), _device("n", 1, P, resource="s"), _device("b", 1)],
            [("", P, (1,))],
        ),
        ([_device("a", 0, P), _device("n", 1, P, resource="s"), _device("b", 0)], []),
        (
            [*(_device(x, 0, P) for x in "ab"), _device("n", 1, P, resource="s"), _device("c", 1)],
            [],
        ),
        # Its own devices are as good as free ones, even if one has failed since.
        ([_device("a", 0, P, ok=False), _device("b", 1, P), _device("c", 0)], [("r", P, (0,))]),
    ],
)
def test_split_without_need_is_told_and_what_had_to_be_is_not(
    devices: list[Device], expected: list[tuple[str, Holder | None, tuple[int, ...]]]
) -> None:
    assert _split(*devices) == expected


def test_where_the_kubelet_cannot_tell_what_is_free_nobody_is_accused() -> None:
    assert _split(_device("a", 0, P), _device("b", 1, P), _device("c", 1), complete=False) == []


def test_the_verdict_is_of_the_time_of_the_allocation() -> None:
    placements = NumaSplitTracker()
    placements.advance(EMPTY)
    split = _snapshot(_device("a", 0, P), _device("b", 1, P), _device("c", 1))
    taken = _snapshot(_device("a", 0, P), _device("b", 1, P), _device("c", 1, Q))
    (before,) = placements.advance(split)
    assert placements.advance(taken) == (before,), "it could have been served, whoever came later"
    assert placements.advance(EMPTY) == ()
    assert placements.advance(taken) == ()
    assert placements.advance(split) == (), "what came free later was no choice"


def test_what_was_released_in_the_same_moment_was_no_choice() -> None:
    placements = NumaSplitTracker()
    placements.advance(_snapshot(_device("a", 0), _device("b", 1), _device("c", 1, Q)))
    split = _snapshot(_device("a", 0, P), _device("b", 1, P), _device("c", 1))
    assert placements.advance(split, [DeviceKey("r", "c")]) == ()


def test_a_container_that_gets_other_devices_is_judged_anew() -> None:
    placements = NumaSplitTracker()
    placements.advance(EMPTY)
    (found,) = placements.advance(_snapshot(_device("a", 0, P), _device("b", 1, P), _device("c", 1)))
    assert found.devices == ("a", "b")
    (found,) = placements.advance(_snapshot(_device("a", 0, P), _device("b", 1), _device("c", 1, P)))
    assert found.devices == ("a", "c")


def test_what_is_not_known_of_the_nodes_later_changes_nothing_and_what_becomes_known_counts() -> None:
    """kubelet: between its restart and the plugin's registration List has no topology."""
    known = _snapshot(_device("a", 0, P), _device("b", 1, P), _device("c", 1))
    unknown = _snapshot(_device("a", None, P, ok=False), _device("b", None, P, ok=False))
    placements = NumaSplitTracker()
    placements.advance(EMPTY)
    (found,) = placements.advance(known)
    assert placements.advance(unknown) == (found,)
    assert placements.advance(known) == (found,)
    late = NumaSplitTracker()
    assert late.advance(unknown) == ()
    assert [anomaly.numa_nodes for anomaly in late.advance(known)] == [(1,)]


def test_a_uid_that_is_learned_later_changes_who_is_told_and_nothing_else() -> None:
    placements = NumaSplitTracker()
    placements.advance(EMPTY)
    (found,) = placements.advance(_snapshot(_device("a", 0, P), _device("b", 1, P), _device("c", 1)))
    named = P._replace(pod_uid="u")
    (again,) = placements.advance(
        _snapshot(_device("a", 0, named), _device("b", 1, named), _device("c", 1, Q))
    )
    assert again.holder == named
    assert again.evidence == found.evidence


def test_the_evidence_says_where_they_are_where_there_was_room_and_how_that_is_known() -> None:
    split = _snapshot(_device("a", 0, P), _device("b", 1, P), _device("c", 1))
    placements = NumaSplitTracker()
    placements.advance(EMPTY)
    (found,) = placements.advance(split)
    assert (
        found.evidence
        == "its 2 devices span NUMA nodes 0, 1; when it got them node 1 had 2 of r free or held "
        "by this container"
    )
    assert (found.devices, found.pods) == (("a", "b"), (("n", "p"),))
    (first,) = NumaSplitTracker().advance(split)
    assert "; when the exporter started they were already held, and node 1 had 2 of r " in first.evidence


@settings(max_examples=60, deadline=None, derandomize=True)
@given(listings(), st.none() | allocatables(), st.integers(0, 99).map(random.Random))
def test_the_order_of_the_answer_plays_no_part(
    listed: api_pb2.ListPodResourcesResponse,
    offered: api_pb2.AllocatableResourcesResponse | None,
    order: random.Random,
) -> None:
    one, other = NumaSplitTracker(), NumaSplitTracker()
    found = one.advance(build(listed, offered))
    again = None if offered is None else shuffled(offered, order)
    assert other.advance(build(shuffled(listed, order), again)) == found
    for anomaly in found:
        assert anomaly.holder is not None
        assert len(anomaly.devices) >= 2
