"""exporter.core.anomalies: what is wrong, and what only looks so."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.core.anomalies import Anomaly, find
from exporter.core.model import Container, Device, DeviceKey, Holder, Snapshot
from exporter.core.snapshot import build
from exporter.pb.podresources.v1 import api_pb2
from harness.answers import allocatables, listings, shuffled

QUICK = settings(max_examples=60, deadline=None, derandomize=True)

P, P2, Q = Holder("n", "p", "c"), Holder("n", "p", "d"), Holder("n", "q", "c")


def _device(
    name: str, *holders: Holder, ok: bool = True, numa: tuple[int, ...] = (), resource: str = "r"
) -> Device:
    return Device(DeviceKey(resource, name), numa_nodes=numa, allocatable=ok, holders=tuple(sorted(holders)))


def _found(*devices: Device, complete: bool = True) -> list[tuple[str, str, str, Holder | None]]:
    snapshot = Snapshot(devices=tuple(sorted(devices, key=lambda d: d.key)), complete=complete)
    return [(found.kind, found.resource, found.device, found.holder) for found in find(snapshot)]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([], []),
        ([_device("a"), _device("b", P)], []),
        # Held but not allocatable, while others of the resource are.
        ([_device("a"), _device("b", P, ok=False)], [("unhealthy_held", "r", "b", P)]),
        # A free device that is not allocatable is nobody's trouble.
        ([_device("a"), _device("b", ok=False)], []),
        # None of the resource is allocatable: the plugin, told once.
        ([_device("a", P, ok=False), _device("b", Q, ok=False)], [("plugin_gone", "r", "", None)]),
        ([_device("a", ok=False)], []),
        # Each resource for itself.
        (
            [
                _device("a", P, ok=False),
                _device("b", resource="other"),
                _device("c", Q, ok=False, resource="other"),
            ],
            [("plugin_gone", "r", "", None), ("unhealthy_held", "other", "c", Q)],
        ),
        # Two pods at once; two containers of one pod are no trouble, nor are shares.
        ([_device("a", P, Q)], [("double_held", "r", "a", P), ("double_held", "r", "a", Q)]),
        ([_device("a", P, P2)], []),
        ([_device("GPU-1::0", P), _device("GPU-1::1", Q)], []),
        ([_device("GPU-1::0", P, Q)], []),
        # Split over nodes though one node has enough, whoever holds the rest there.
        (
            [_device("a", P, numa=(0,)), _device("b", P, numa=(1,)), _device("c", Q, numa=(1,))],
            [("numa_split", "r", "", P)],
        ),
        # No node has enough.
        ([_device("a", P, numa=(0,)), _device("b", P, numa=(1,))], []),
        # Together on one node; across resources; across containers; nothing known.
        ([_device("a", P, numa=(0,)), _device("b", P, numa=(0,)), _device("c", numa=(1,))], []),
        ([_device("a", P, numa=(0,)), _device("b", P, numa=(1,), resource="s"), _device("c", numa=(0,))], []),
        ([_device("a", P, numa=(0,)), _device("b", P2, numa=(1,)), _device("c", numa=(0,))], []),
        ([_device("a", P), _device("b", P, numa=(1,)), _device("c", numa=(1,))], []),
        # A device on two nodes bridges them.
        (
            [_device("a", P, numa=(0, 1)), _device("b", P, numa=(1,)), _device("c", numa=(1,))],
            [],
        ),
    ],
)
def test_what_is_wrong_is_found_and_what_is_not_is_not(
    devices: list[Device], expected: list[tuple[str, str, str, Holder | None]]
) -> None:
    assert _found(*devices) == expected


def test_nothing_is_said_of_health_where_the_kubelet_cannot_tell() -> None:
    assert _found(_device("a", P), complete=False) == []
    snapshot = Snapshot(devices=(_device("a", P, ok=False),), containers=(Container(P),), complete=False)
    assert "plugin_gone" not in {found.kind for found in find(snapshot)}


def test_the_evidence_says_what_was_seen() -> None:
    (gone,) = find(Snapshot(devices=(_device("a", P, ok=False), _device("b", Q, ok=False))))
    assert gone.evidence == "none is allocatable, while 2 of its devices are held"
    double = find(Snapshot(devices=(_device("a", P, Q),)))
    assert {found.evidence for found in double} == {"2 pods hold it: n/p, n/q"}
    split = find(
        Snapshot(
            devices=(_device("a", P, numa=(0,)), _device("b", P, numa=(1,)), _device("c", numa=(1,))),
        )
    )
    assert [found.evidence for found in split] == ["its 2 devices span NUMA nodes 0, 1; node 1 has enough"]


@QUICK
@given(listings(), st.none() | allocatables(), st.randoms(use_true_random=False))
def test_anomalies_follow_from_the_snapshot_alone(
    listed: api_pb2.ListPodResourcesResponse,
    offered: api_pb2.AllocatableResourcesResponse | None,
    order: random.Random,
) -> None:
    snapshot = build(listed, offered)
    found = find(snapshot)
    other = None if offered is None else shuffled(offered, order)
    assert find(build(shuffled(listed, order), other)) == found
    assert len(set(found)) == len(found)
    gone = {anomaly.resource for anomaly in found if anomaly.kind == "plugin_gone"}
    counts = snapshot.resources()
    assert gone == {
        resource
        for resource, count in counts.items()
        if snapshot.complete and count.allocatable == 0 and count.allocated
    }
    assert {(a.resource, a.device, a.holder) for a in found if a.kind == "unhealthy_held"} == {
        (*device.key, holder)
        for device in snapshot.devices
        for holder in device.holders
        if not device.allocatable and device.key.resource not in gone
    }
    assert all(_holds(anomaly, snapshot) for anomaly in found)


def _holds(anomaly: Anomaly, snapshot: Snapshot) -> bool:
    """Whether the holder that an anomaly names holds what it says."""
    return anomaly.holder is None or any(
        anomaly.holder in device.holders
        for device in snapshot.devices
        if device.key.resource == anomaly.resource and anomaly.device in {"", device.key.device}
    )
