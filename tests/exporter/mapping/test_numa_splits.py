"""exporter.mapping.anomaly_tracker: devices on several NUMA nodes."""

import re
from typing import Any

import pytest

from exporter.mapping.anomaly_tracker import NumaSplitTracker
from exporter.mapping.model import ClaimHolding, Device, DeviceKey, Holder, Snapshot
from harness import scene
from harness.scene import device

P, Q = Holder("n", "p", "c"), Holder("n", "q", "c")
HOLDERS = {"P": P, "Q": Q, "D": P._replace(container="d"), "U": P._replace(pod_uid="u")}


def _node(text: str, *, complete: bool = True) -> Snapshot:
    """Devices such as `a0P`: name, NUMA nodes, and holders. `s:a` is of another resource, `a!` is not
    allocatable.
    """
    devices: list[Device] = []
    for word in text.split():
        match = re.fullmatch(r"(?:(\w):)?([a-z])(!?)(\d*)([A-Z]*)", word)
        assert match is not None, word
        resource, name, ill, nodes, who = match.groups()
        holders = [HOLDERS[letter] for letter in who]
        numa = [int(digit) for digit in nodes]
        devices.append(device(name, *holders, resource=resource or "r", numa=numa, ok=not ill))
    return scene.snapshot(*devices, complete=complete)


SPLIT, TAKEN, EMPTY = "a0P b1P c1", "a0P b1P c1Q", "a0 b1 c1"


@pytest.mark.parametrize(
    ("devices", "resource", "numa_nodes"),
    [
        # Node 1 had another one free; both had.
        (SPLIT, "r", (1,)),
        ("a0P b1P c0 d1", "r", (0, 1)),
        # The others were held, unhealthy, or of another resource.
        (TAKEN, None, ()),
        ("a0P b1P c!1", None, ()),
        ("a0P b1P s:c1", None, ()),
        ("a0P b1P", None, ()),
        # One node, one device, an unknown node, nodes that overlap.
        ("a0P b0P c1", None, ()),
        ("a0P b1 c1", None, ()),
        ("a0P bP c0", None, ()),
        ("a01P b1P c1", None, ()),
        # Three devices, two on a node: two more are not enough room for three on the other.
        ("a0P b0P c1P d1", None, ()),
        # Two containers of one pod with one device each are not split.
        ("a0P b1D c1", None, ()),
        # List names all devices of a claim for each container that uses a request of it.
        ("a0PD b1PD c1", None, ()),
        # A container's devices of several resources belong together.
        ("a0P s:n1P b1", "", (1,)),
        ("a0P s:n1P b0", None, ()),
        ("a0P b0P s:n1P c1", None, ()),
        # A container's own devices count as free, even if one has failed since.
        ("a!0P b1P c0", "r", (0,)),
    ],
)
def test_split_is_found_if_one_node_had_room(
    devices: str, resource: str | None, numa_nodes: tuple[int, ...]
) -> None:
    tracker = NumaSplitTracker()
    assert tracker.advance(Snapshot()) == ()
    found = [(one.kind, one.resource, one.holder, one.numa_nodes) for one in tracker.advance(_node(devices))]
    assert found == ([] if resource is None else [("numa_split", resource, P, numa_nodes)])


@pytest.mark.parametrize(
    ("spare", "numa_nodes"),
    [({}, (1,)), ({"alternative": True}, ()), ({"allocatable": False}, ()), (None, ())],
    ids=["free", "alternative", "tainted", "slices are unknown"],
)
def test_split_of_claimed_devices(spare: dict[str, Any] | None, numa_nodes: tuple[int, ...]) -> None:
    through = ClaimHolding(P, "n", "claim", admin=False)
    held = [scene.claimed(name, through, numa_nodes=(node,)) for node, name in enumerate("ab")]
    free = scene.claimed("c", numa_nodes=(1,), **(spare or {}))
    tracker = NumaSplitTracker()
    tracker.advance(Snapshot())
    snapshot = scene.snapshot(*held, free, published=[] if spare is None else ["gpu.example.com"])
    assert [one.numa_nodes for one in tracker.advance(snapshot)] == ([numa_nodes] if numa_nodes else [])


def test_no_split_without_an_allocatable_answer() -> None:
    tracker = NumaSplitTracker()
    tracker.advance(Snapshot())
    assert tracker.advance(_node(SPLIT, complete=False)) == ()


@pytest.mark.parametrize(
    "script",
    [
        # The verdict lasts as long as the allocation; devices that were released later were no choice.
        [(EMPTY, ""), (SPLIT, "ab"), (TAKEN, "ab"), (EMPTY, ""), (TAKEN, ""), (SPLIT, "")],
        # Other devices are judged anew.
        [(EMPTY, ""), (SPLIT, "ab"), ("a0P b1 c1P", "ac")],
        # kubelet: between its restart and the plugin's registration List has no topology.
        [(EMPTY, ""), (SPLIT, "ab"), ("a!P b!P", "ab"), (SPLIT, "ab")],
        [("a!P b!P", ""), (SPLIT, "ab")],
        [("a0 b1 c1 d1", ""), ("a0P b1P cP d1", "ab"), ("a0P b1P c1P d1", "abc")],
        # The uid is proven later.
        [(EMPTY, ""), (SPLIT, "ab"), ("a0U b1U c1Q", "ab")],
    ],
    ids=["lasts", "other devices", "unknown nodes", "late nodes", "more nodes", "uid"],
)
def test_verdict_is_that_of_the_allocation(script: list[tuple[str, str]]) -> None:
    tracker = NumaSplitTracker()
    for devices, expected in script:
        found = tracker.advance(_node(devices))
        assert ["".join(one.devices) for one in found] == [expected] * bool(expected), devices
        assert {one.holder for one in found} <= {HOLDERS["U" if "U" in devices else "P"]}


def test_device_released_in_the_same_refresh_was_no_choice() -> None:
    tracker = NumaSplitTracker()
    tracker.advance(_node("a0 b1 c1Q"))
    assert tracker.advance(_node(SPLIT), [DeviceKey("r", "c")]) == ()


def test_evidence_names_the_nodes_and_the_room() -> None:
    tracker = NumaSplitTracker()
    tracker.advance(_node(EMPTY))
    (found,) = tracker.advance(_node(SPLIT))
    assert (
        found.evidence
        == "its 2 devices span NUMA nodes 0, 1; when it got them node 1 had 2 of r free or held "
        "by this container"
    )
    assert found.pods == (("n", "p"),)
    (first,) = NumaSplitTracker().advance(_node(SPLIT))
    assert "; when the exporter started they were already held, and node 1 had 2 of r " in first.evidence
