"""exporter.mapping.snapshot: one snapshot from any answers of the kubelet."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.device_ids import read_id
from exporter.mapping.dra import PublishedName
from exporter.mapping.model import (
    AdvertisedDevice,
    Claimed,
    ClaimHolding,
    Container,
    DeviceKey,
    Holder,
    PinnedMemory,
    ResourceCounts,
    Snapshot,
)
from exporter.mapping.snapshot import build
from harness.answers import R, allocatables, container, entry, listed, listings, offered, pod, shuffled
from harness.scene import device
from kubelet.pb.podresources.v1 import api_pb2

QUICK = settings(max_examples=80, deadline=None, derandomize=True)


HOLDER = Holder("n", "p", "c")


def _listed(*entries: api_pb2.ContainerDevices) -> api_pb2.ListPodResourcesResponse:
    return listed(pod("p", container(*entries)))


def test_empty_node_is_an_empty_snapshot() -> None:
    assert build(listed(), offered()) == Snapshot()


def test_device_is_free_held_or_held_but_not_allocatable() -> None:
    snapshot = build(_listed(entry("held", "ill")), offered("free", "held"))
    assert snapshot.devices == (
        device("free", resource=R),
        device("held", HOLDER, resource=R),
        device("ill", HOLDER, resource=R, ok=False),
    )
    assert snapshot.resources() == {
        R: ResourceCounts(known=3, allocatable=2, allocated=2, unhealthy=1, free=1)
    }
    assert build(_listed(entry("held")), None).devices == (device("held", HOLDER, resource=R),)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8))
def test_held_free_and_unavailable_sum_up_to_the_known_devices(found: list[tuple[bool, bool]]) -> None:
    devices = [device(f"d{i}", *([HOLDER] if held else []), ok=ok) for i, (held, ok) in enumerate(found)]
    for counts in Snapshot(tuple(devices)).resources().values():
        assert counts.allocated + counts.free + counts.unavailable == counts.known
        assert counts.unavailable == sum(not held and not ok for held, ok in found)
        assert counts.held_unhealthy == sum(held and not ok for held, ok in found)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(None, ()), ([], ()), ([0], (0,)), ([1], (1,)), ([-1], ()), ([1, 0], (0, 1)), ([1, 1, -1], (1,))],
)
def test_numa_nodes_follow_the_kubelets_encoding(nodes: list[int] | None, expected: tuple[int, ...]) -> None:
    one = entry("a", nodes=nodes)
    # Through the wire: node 0 is an empty NUMANode there.
    read = api_pb2.AllocatableResourcesResponse.FromString(offered(one).SerializeToString())
    assert build(listed(), read).devices[0].numa_nodes == expected
    assert build(_listed(one), None).devices[0].numa_nodes == expected


def test_numa_nodes_of_an_allocatable_device_are_those_of_its_offer() -> None:
    snapshot = build(_listed(entry("offered", "gone", nodes=[1])), offered(entry("offered", nodes=[0])))
    assert [(one.key.device, one.numa_nodes) for one in snapshot.devices] == [
        ("gone", (1,)),
        ("offered", (0,)),
    ]


def test_container_without_anything_is_left_out_and_its_pod_counted() -> None:
    claim = api_pb2.DynamicResource(claim_name="pending", claim_namespace="n")
    waiting = api_pb2.ContainerResources(name="no devices yet", dynamic_resources=[claim])
    empty = pod("p", container(entry(), name="no ids"), container(name="nothing"), waiting)
    assert build(listed(empty), None) == Snapshot(pods=1, complete=False)


def test_cpus_and_memory_are_those_of_containers() -> None:
    block = api_pb2.ContainerMemory(memory_type="memory", size=100, topology=entry(nodes=[1]).topology)
    shown = pod("p", api_pb2.ContainerResources(name="c", cpu_ids=[3, 2, 3], memory=[block, block]))
    shown.cpu_ids.extend([2, 3, 4, 5])
    shown.memory.append(block)
    assert build(listed(shown), None, cpu_numa={2: 0, 9: 4}).containers == (
        Container(HOLDER, cpu_ids=(2, 3), memory=(PinnedMemory("memory", (1,), 200),), numa_nodes=(0, 1)),
    )


def test_repeated_claim_is_counted_once() -> None:
    claimed = api_pb2.ClaimResource(
        driver_name="d", pool_name="p", device_name="x", cdi_devices=[api_pb2.CDIDevice(name="cdi")] * 2
    )
    shared = api_pb2.ClaimResource(driver_name="d", pool_name="p", device_name="x", share_id="s")
    resource = api_pb2.DynamicResource(
        claim_name="cl", claim_namespace="n", claim_resources=[claimed, claimed, shared]
    )
    holding = api_pb2.ContainerResources(name="c", dynamic_resources=[resource] * 2)
    snapshot = build(listed(pod("p", holding)), None)
    (device,) = snapshot.devices
    assert (device.key, device.holders) == (DeviceKey("d", "p/x"), (HOLDER,))
    through = tuple(ClaimHolding(HOLDER, "n", "cl", share) for share in ("", "s"))
    assert device.claimed == Claimed(PublishedName("d", "p", "x"), None, ("cdi",), through=through)
    assert snapshot.containers == (Container(HOLDER, devices={"d": 1}),)


def test_entries_of_one_name_are_one_holder() -> None:
    """Of one container, one for each NUMA node; of two pods, as of a static pod and its successor."""
    entries = entry("a", nodes=[0]), entry("b", "a", nodes=[1])
    for answer in (_listed(*entries), listed(*(pod("p", container(one)) for one in entries))):
        snapshot = build(answer, None)
        assert [one.key.device for one in snapshot.devices] == ["a", "b"]
        assert snapshot.containers == (Container(HOLDER, devices={R: 2}, numa_nodes=(0, 1)),)
        assert snapshot.pods == 1


@QUICK
@given(listings(), st.none() | allocatables(), st.integers(0, 99).map(random.Random))
def test_snapshot_does_not_depend_on_order(
    listed: api_pb2.ListPodResourcesResponse,
    offered: api_pb2.AllocatableResourcesResponse | None,
    order: random.Random,
) -> None:
    numa = {0: 0, 1: 1}
    other = None if offered is None else shuffled(offered, order)
    assert build(listed, offered, cpu_numa=numa) == build(shuffled(listed, order), other, cpu_numa=numa)


@QUICK
@given(listings(), st.none() | allocatables())
def test_snapshot_has_exactly_the_content_of_the_answers(
    listed: api_pb2.ListPodResourcesResponse, offered: api_pb2.AllocatableResourcesResponse | None
) -> None:
    snapshot = build(listed, offered)
    held = {
        (entry.resource_name, device_id, Holder(pod.namespace, pod.name, container.name))
        for pod in listed.pod_resources
        for container in pod.containers
        for entry in container.devices
        for device_id in entry.device_ids
    }
    claimed = {
        (
            one.driver_name,
            f"{one.pool_name}/{one.device_name}",
            Holder(pod.namespace, pod.name, container.name),
        )
        for pod in listed.pod_resources
        for container in pod.containers
        for resource in container.dynamic_resources
        for one in resource.claim_resources
    }
    held |= claimed
    allocatable = {
        (entry.resource_name, device_id)
        for entry in (() if offered is None else offered.devices)
        for device_id in entry.device_ids
    }
    assert {(*device.key, holder) for device in snapshot.devices for holder in device.holders} == held
    assert {tuple(device.key) for device in snapshot.devices} == allocatable | {row[:2] for row in held}
    assert all(
        device.allocatable
        is (offered is None or device.claimed is not None or tuple(device.key) in allocatable)
        for device in snapshot.devices
    )
    assert all(device.parent == read_id(device.key.device).parent for device in snapshot.devices)
    assert all(node >= 0 for device in snapshot.devices for node in device.numa_nodes)
    keys = [row.key for row in snapshot.devices]
    assert keys == sorted(set(keys))
    assert all(list(row.holders) == sorted(set(row.holders)) for row in snapshot.devices)
    holders = [one.holder for one in snapshot.containers]
    assert holders == sorted(set(holders))
    for one in snapshot.containers:
        assert dict(one.devices) == {
            resource: len({row[1] for row in held if row[0] == resource and row[2] == one.holder})
            for resource in {row[0] for row in held if row[2] == one.holder}
        }
    assert {row[:2] for row in claimed} == {
        tuple(device.key) for device in snapshot.devices if device.claimed is not None
    }
    assert {
        (
            PublishedName(claimed.driver_name, claimed.pool_name, claimed.device_name),
            Holder(pod.namespace, pod.name, container.name),
            (resource.claim_namespace, resource.claim_name, claimed.share_id),
        )
        for pod in listed.pod_resources
        for container in pod.containers
        for resource in container.dynamic_resources
        for claimed in resource.claim_resources
    } == {
        (device.claimed.name, one.holder, one[1:4])
        for device in snapshot.devices
        if device.claimed is not None
        for one in device.claimed.through
    }
    assert snapshot.pods == len({(pod.namespace, pod.name) for pod in listed.pod_resources})
    counts = snapshot.resources()
    assert list(counts) == sorted({device.key.resource for device in snapshot.devices})
    assert sum(count.known for count in counts.values()) == len(snapshot.devices)
    for count in counts.values():
        assert count.known == count.allocatable + count.unhealthy
        assert count.unhealthy <= count.allocated <= count.known
        assert count.free == count.known - count.allocated


def _reports(
    *names: str, healthy: bool = True, numa: tuple[int, ...] = (), parent: str = ""
) -> dict[DeviceKey, AdvertisedDevice]:
    reports = AdvertisedDevice(healthy, "" if healthy else "dust", numa_nodes=numa, parent=parent)
    return {DeviceKey(R, name): reports for name in names}


def test_device_of_a_report_alone_is_known_and_not_allocatable() -> None:
    for healthy in (True, False):
        reports = _reports("a", "c", healthy=healthy)
        snapshot = build(_listed(entry("a")), offered("a", "b"), advertised=reports)
        assert [(d.key.device, d.allocatable, len(d.holders)) for d in snapshot.devices] == [
            ("a", True, 1),
            ("b", True, 0),
            ("c", False, 0),
        ], "the kubelet decides what is allocatable"
        assert snapshot.resources() == {R: ResourceCounts(3, 2, 1, 1, 1)}
        assert [c.holder for c in snapshot.containers] == [HOLDER]


def test_report_adds_numa_nodes_and_parents_that_the_kubelet_and_the_id_do_not_have() -> None:
    reports = _reports("a", "b", "c", numa=(1,)) | _reports("x-1", "GPU-1::0", parent="x")
    snapshot = build(_listed(entry("a", nodes=[0]), entry("b")), offered(), advertised=reports)
    assert {d.key.device: (d.numa_nodes, d.parent) for d in snapshot.devices} == {
        "a": ((0,), ""),
        "b": ((1,), ""),
        "c": ((1,), ""),
        "x-1": ((), "x"),
        "GPU-1::0": ((), "GPU-1"),
    }
    assert snapshot.numa_by_plugin == {DeviceKey(R, "b"), DeviceKey(R, "c")}
    assert [c.numa_nodes for c in snapshot.containers] == [(0, 1)]


def test_id_is_read_as_one_of_its_resource() -> None:
    answer = offered(entry("card0-1"), entry("card0-1", resource="gpu.intel.com/i915"))
    assert {d.key.resource: d.parent for d in build(listed(), answer).devices} == {
        R: "",
        "gpu.intel.com/i915": "card0",
    }


@QUICK
@given(listings(), st.none() | allocatables(), allocatables())
def test_reports_change_neither_owners_nor_what_is_allocatable(
    listed: api_pb2.ListPodResourcesResponse,
    offered: api_pb2.AllocatableResourcesResponse | None,
    other: api_pb2.AllocatableResourcesResponse,
) -> None:
    reports = {
        DeviceKey(entry.resource_name, device): AdvertisedDevice(healthy=True, numa_nodes=(5,))
        for entry in other.devices
        for device in entry.device_ids
    }
    without, with_them = build(listed, offered), build(listed, offered, advertised=reports)
    before = {d.key: d for d in without.devices}
    for one in with_them.devices:
        known = before.pop(one.key, None)
        if known is None:
            assert one.key in reports
            assert not one.holders
            assert one.allocatable == (offered is None)
        else:
            was = (known.holders, known.allocatable, known.claimed)
            assert (one.holders, one.allocatable, one.claimed) == was
            assert one.numa_nodes == (known.numa_nodes or ((5,) if one.key in reports else ()))
    assert not before
    assert [c.devices for c in with_them.containers] == [c.devices for c in without.containers]
