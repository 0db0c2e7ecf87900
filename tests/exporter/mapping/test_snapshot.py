"""exporter.mapping.snapshot: the kubelet's answers made into one snapshot, whatever they look like."""

import random

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.mapping.device_ids import read_id
from exporter.mapping.model import (
    AdvertisedDevice,
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Container,
    Device,
    DeviceKey,
    Holder,
    PinnedMemory,
    ResourceCounts,
)
from exporter.mapping.snapshot import build
from harness.answers import allocatables, listings, shuffled
from harness.recordings import RECORDINGS
from kubelet.pb.podresources.v1 import api_pb2

QUICK = settings(max_examples=80, deadline=None, derandomize=True)


GPU = "example.com/gpu"


def _devices(resource: str, *ids: str, nodes: list[int] | None = None) -> api_pb2.ContainerDevices:
    topology = (
        None if nodes is None else api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=node) for node in nodes])
    )
    return api_pb2.ContainerDevices(resource_name=resource, device_ids=ids, topology=topology)


def _offered(*entries: api_pb2.ContainerDevices) -> api_pb2.AllocatableResourcesResponse:
    return api_pb2.AllocatableResourcesResponse(devices=entries)


def _listed(*containers: api_pb2.ContainerResources, pod: str = "p") -> api_pb2.ListPodResourcesResponse:
    return api_pb2.ListPodResourcesResponse(
        pod_resources=[api_pb2.PodResources(namespace="n", name=pod, containers=containers)]
    )


def _container(*entries: api_pb2.ContainerDevices, name: str = "c") -> api_pb2.ContainerResources:
    return api_pb2.ContainerResources(name=name, devices=entries)


HOLDER = Holder("n", "p", "c")


def test_an_empty_node_is_an_empty_snapshot() -> None:
    snapshot = build(api_pb2.ListPodResourcesResponse(), api_pb2.AllocatableResourcesResponse())
    assert (snapshot.devices, snapshot.claims, snapshot.containers) == ((), (), ())
    assert (snapshot.pods, snapshot.complete, snapshot.resources()) == (0, True, {})


def test_a_device_is_free_held_or_held_but_not_allocatable() -> None:
    snapshot = build(
        _listed(_container(_devices(GPU, "held", "ill"))),
        _offered(_devices(GPU, "free", "held")),
    )
    assert snapshot.devices == (
        Device(DeviceKey(GPU, "free")),
        Device(DeviceKey(GPU, "held"), holders=(HOLDER,)),
        Device(DeviceKey(GPU, "ill"), allocatable=False, holders=(HOLDER,)),
    )
    assert snapshot.resources() == {
        GPU: ResourceCounts(known=3, allocatable=2, allocated=2, unhealthy=1, free=1)
    }


def test_where_the_kubelet_cannot_tell_what_is_allocatable_nothing_is_called_unhealthy() -> None:
    snapshot = build(_listed(_container(_devices(GPU, "held"))), None)
    assert snapshot.devices == (Device(DeviceKey(GPU, "held"), holders=(HOLDER,)),)
    assert not snapshot.complete


def test_several_entries_of_one_resource_are_one_holding() -> None:
    snapshot = build(
        _listed(_container(_devices(GPU, "a", nodes=[0]), _devices(GPU, "b", "a", nodes=[1]))), None
    )
    assert [device.key.device for device in snapshot.devices] == ["a", "b"]
    assert snapshot.containers == (Container(HOLDER, devices={GPU: 2}, numa_nodes=(0, 1)),)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(None, ()), ([], ()), ([0], (0,)), ([1], (1,)), ([-1], ()), ([1, 0], (0, 1)), ([1, 1, -1], (1,))],
)
def test_numa_nodes_are_read_as_the_kubelet_means_them(
    nodes: list[int] | None, expected: tuple[int, ...]
) -> None:
    entry = _devices(GPU, "a", nodes=nodes)
    assert build(_listed(), _offered(entry)).devices[0].numa_nodes == expected
    assert build(_listed(_container(entry)), None).devices[0].numa_nodes == expected


def test_node_0_is_what_the_wire_has_as_an_empty_node() -> None:
    wire = _offered(_devices(GPU, "a", nodes=[0])).SerializeToString()
    assert wire.endswith(b"\x1a\x02\x0a\x00")
    read_back = api_pb2.AllocatableResourcesResponse.FromString(wire)
    assert build(_listed(), read_back).devices[0].numa_nodes == (0,)


def test_the_allocatable_entry_tells_the_nodes_of_a_device_that_is_offered_and_its_own_of_another() -> None:
    snapshot = build(
        _listed(_container(_devices(GPU, "offered", "gone", nodes=[1]))),
        _offered(_devices(GPU, "offered", nodes=[0])),
    )
    assert {device.key.device: device.numa_nodes for device in snapshot.devices} == {
        "offered": (0,),
        "gone": (1,),
    }


def test_a_container_without_anything_is_left_out_and_its_pod_counted() -> None:
    empty_claim = api_pb2.DynamicResource(claim_name="pending", claim_namespace="n")
    snapshot = build(
        _listed(
            _container(_devices(GPU), name="no ids"),
            _container(name="nothing"),
            api_pb2.ContainerResources(name="no devices yet", dynamic_resources=[empty_claim]),
        ),
        None,
    )
    assert snapshot.containers == ()
    assert snapshot.devices == ()
    assert snapshot.pods == 1


def test_cpus_and_memory_are_the_containers_and_never_the_pods() -> None:
    topology = api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=1)])
    block = api_pb2.ContainerMemory(memory_type="memory", size=100, topology=topology)
    listed = _listed(api_pb2.ContainerResources(name="c", cpu_ids=[3, 2, 3], memory=[block, block]))
    listed.pod_resources[0].cpu_ids.extend([2, 3, 4, 5])
    listed.pod_resources[0].memory.append(block)
    snapshot = build(listed, None, cpu_numa={2: 0, 9: 4})
    assert snapshot.containers == (
        Container(HOLDER, cpu_ids=(2, 3), memory=(PinnedMemory("memory", (1,), 200),), numa_nodes=(0, 1)),
    )


def test_a_claim_that_repeats_is_counted_once() -> None:
    claimed = api_pb2.ClaimResource(
        driver_name="d", pool_name="p", device_name="x", cdi_devices=[api_pb2.CDIDevice(name="cdi")] * 2
    )
    shared = api_pb2.ClaimResource(driver_name="d", pool_name="p", device_name="x", share_id="s")
    resource = api_pb2.DynamicResource(
        claim_name="cl", claim_namespace="n", claim_resources=[claimed, claimed, shared]
    )
    snapshot = build(_listed(api_pb2.ContainerResources(name="c", dynamic_resources=[resource] * 2)), None)
    through = (ClaimHolder(HOLDER, "n", "cl"),)
    assert snapshot.claims == (
        ClaimDevice(ClaimDeviceKey("d", "p", "x"), through, ("cdi",)),
        ClaimDevice(ClaimDeviceKey("d", "p", "x", "s"), through),
    )


def test_the_same_name_listed_twice_is_one_holder() -> None:
    listed = _listed(_container(_devices(GPU, "a")))
    listed.pod_resources.extend(_listed(_container(_devices(GPU, "b", "a"))).pod_resources)
    snapshot = build(listed, None)
    assert snapshot.containers == (Container(HOLDER, devices={GPU: 2}),)
    assert snapshot.pods == 1


@QUICK
@given(listings(), st.none() | allocatables(), st.integers(0, 99).map(random.Random))
def test_a_snapshot_does_not_depend_on_the_order_of_anything(
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
    allocatable = {
        (entry.resource_name, device_id)
        for entry in (() if offered is None else offered.devices)
        for device_id in entry.device_ids
    }
    assert {(*device.key, holder) for device in snapshot.devices for holder in device.holders} == held
    assert {tuple(device.key) for device in snapshot.devices} == allocatable | {row[:2] for row in held}
    assert all(
        device.allocatable is (offered is None or tuple(device.key) in allocatable)
        for device in snapshot.devices
    )
    assert all(device.parent == read_id(device.key.device).parent for device in snapshot.devices)
    assert all(node >= 0 for device in snapshot.devices for node in device.numa_nodes)
    for rows in (snapshot.devices, snapshot.claims):
        keys = [row.key for row in rows]
        assert keys == sorted(set(keys))
        assert all(list(row.holders) == sorted(set(row.holders)) for row in rows)
    holders = [container.holder for container in snapshot.containers]
    assert holders == sorted(set(holders))
    for container in snapshot.containers:
        assert dict(container.devices) == {
            resource: len({row[1] for row in held if row[0] == resource and row[2] == container.holder})
            for resource in {row[0] for row in held if row[2] == container.holder}
        }
    assert {
        (claimed.driver_name, claimed.pool_name, claimed.device_name, claimed.share_id, through)
        for pod in listed.pod_resources
        for container in pod.containers
        for resource in container.dynamic_resources
        for claimed in resource.claim_resources
        for through in [
            ClaimHolder(
                Holder(pod.namespace, pod.name, container.name), resource.claim_namespace, resource.claim_name
            )
        ]
    } == {(*device.key, through) for device in snapshot.claims for through in device.holders}
    assert snapshot.pods == len({(pod.namespace, pod.name) for pod in listed.pod_resources})


@QUICK
@given(listings(), allocatables())
def test_the_counts_of_a_resource_add_up(
    listed: api_pb2.ListPodResourcesResponse, offered: api_pb2.AllocatableResourcesResponse
) -> None:
    snapshot = build(listed, offered)
    counts = snapshot.resources()
    assert list(counts) == sorted({device.key.resource for device in snapshot.devices})
    assert sum(count.known for count in counts.values()) == len(snapshot.devices)
    for count in counts.values():
        assert count.known == count.allocatable + count.unhealthy
        assert count.unhealthy <= count.allocated <= count.known
        assert count.free == count.known - count.allocated


DEFAULT_PODS = {
    "dev-0": "dra-shared-2/a",
    "dev-2": "holder-6469975cb6-956jk/c",
    "dev-3": "holder-6469975cb6-4nbq6/c",
    "dev-4": "holder-6469975cb6-4nbq6/c",
    "dev-5": "holder-6469975cb6-956jk/c",
    "dev-6": "holder-6469975cb6-64qvd/c",
    "dev-7": "holder-6469975cb6-64qvd/c",
}

RECORDED = {
    "after-kubelet-restart-plugin-not-registered": (
        {("held.example/foo", device): f"default/{owner}" for device, owner in DEFAULT_PODS.items()},
        {"held.example/foo": ResourceCounts(7, 0, 7, 7, 0)},
    ),
    "dra-shared-and-inline-claims": (
        {("held.example/foo", device): f"default/{owner}" for device, owner in DEFAULT_PODS.items()},
        {"held.example/foo": ResourceCounts(8, 8, 7, 0, 1)},
    ),
    "init-sidecar-guaranteed-and-completed-job": (
        {("held.example/foo", device): f"default/{owner}" for device, owner in DEFAULT_PODS.items()}
        | {
            ("held.example/foo", "dev-8"): "default/init-and-sidecar/sidecar",
            ("held.example/foo", "dev-9"): "default/init-and-sidecar/main",
            ("held.example/foo", "dev-11"): "default/init-and-sidecar/main",
            ("held.example/foo", "dev-10"): "kube-system/guaranteed/main",
            ("held.example/nic", "0000:3b:02.-0"): "default/init-and-sidecar/main",
            ("held.example/nic", "0000:3b:02.-5"): "default/init-and-sidecar/main",
        },
        {
            "held.example/foo": ResourceCounts(12, 12, 11, 0, 1),
            "held.example/nic": ResourceCounts(6, 6, 2, 0, 4),
        },
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_real_kubelets_answer_gives_its_owners(name: str) -> None:
    snapshot = build(
        api_pb2.ListPodResourcesResponse.FromString((RECORDINGS / f"{name}.list.binpb").read_bytes()),
        api_pb2.AllocatableResourcesResponse.FromString(
            (RECORDINGS / f"{name}.allocatable.binpb").read_bytes()
        ),
    )
    owners = {
        tuple(device.key): "/".join(holder[:3]) for device in snapshot.devices for holder in device.holders
    }
    expected, counts = RECORDED[name]
    assert owners == expected
    assert snapshot.resources() == counts

    # Once more against the text form, by another reader and one by one.
    listed = text_format.Parse(
        (RECORDINGS / f"{name}.list.txtpb").read_text(encoding="utf-8"), api_pb2.ListPodResourcesResponse()
    )
    rows = [
        ((entry.resource_name, device_id), f"{pod.namespace}/{pod.name}/{container.name}")
        for pod in listed.pod_resources
        for container in pod.containers
        for entry in container.devices
        for device_id in entry.device_ids
    ]
    assert dict(rows) == owners
    assert len(rows) == len(owners)
    assert all(device.numa_nodes == (0,) for device in snapshot.devices if device.allocatable)


def test_a_real_kubelets_claims_cpus_and_memory_are_read() -> None:
    name = "init-sidecar-guaranteed-and-completed-job"
    snapshot = build(
        api_pb2.ListPodResourcesResponse.FromString((RECORDINGS / f"{name}.list.binpb").read_bytes()), None
    )
    assert [
        (device.key, [(through.claim, "/".join(through.holder[:3])) for through in device.holders])
        for device in snapshot.claims
    ] == [
        (
            ClaimDeviceKey("test-driver.cdi.k8s.io", "bed-node", "device-00"),
            [("shared", "default/dra-shared-1/a"), ("shared", "default/dra-shared-2/a")],
        ),
        (
            ClaimDeviceKey("test-driver.cdi.k8s.io", "bed-node", "device-01"),
            [
                ("dra-inline-g-mj9pj", "default/dra-inline/a"),
                ("dra-inline-g-mj9pj", "default/dra-inline/b"),
            ],
        ),
    ]
    assert [len(device.cdi_devices) for device in snapshot.claims] == [1, 1]
    (guaranteed,) = [container for container in snapshot.containers if container.cpu_ids]
    assert guaranteed == Container(
        Holder("kube-system", "guaranteed", "main"),
        devices={"held.example/foo": 1},
        cpu_ids=(1,),
        memory=(PinnedMemory("memory", (0,), 209715200),),
        numa_nodes=(0,),
    )


def _told(
    *names: str, healthy: bool = True, numa: tuple[int, ...] = (), parent: str = ""
) -> dict[DeviceKey, AdvertisedDevice]:
    told = AdvertisedDevice(healthy, "" if healthy else "dust", numa_nodes=numa, parent=parent)
    return {DeviceKey(GPU, name): told for name in names}


def test_a_device_that_its_plugin_alone_tells_of_is_known_and_not_allocatable() -> None:
    listed, offered = _listed(_container(_devices(GPU, "a"))), _offered(_devices(GPU, "a", "b"))
    for healthy in (True, False):
        snapshot = build(listed, offered, advertised=_told("a", "c", healthy=healthy))
        assert [(d.key.device, d.allocatable, len(d.holders)) for d in snapshot.devices] == [
            ("a", True, 1),
            ("b", True, 0),
            ("c", False, 0),
        ], "the kubelet's word on what is allocatable wins"
        assert snapshot.resources() == {GPU: ResourceCounts(3, 2, 1, 1, 1)}
        assert [c.holder for c in snapshot.containers] == [HOLDER]


def test_a_plugin_s_numa_nodes_count_where_the_kubelet_tells_none() -> None:
    listed = _listed(_container(_devices(GPU, "a", nodes=[0]), _devices(GPU, "b")))
    snapshot = build(listed, _offered(), advertised=_told("a", "b", "c", numa=(1,)))
    assert {d.key.device: d.numa_nodes for d in snapshot.devices} == {"a": (0,), "b": (1,), "c": (1,)}
    assert snapshot.numa_by_plugin == {DeviceKey(GPU, "b"), DeviceKey(GPU, "c")}
    assert [c.numa_nodes for c in snapshot.containers] == [(0, 1)]


def test_a_plugin_s_parent_counts_where_the_id_tells_none() -> None:
    snapshot = build(_listed(), _offered(), advertised=_told("x-1", "GPU-1::0", parent="x"))
    assert {d.key.device: d.parent for d in snapshot.devices} == {"x-1": "x", "GPU-1::0": "GPU-1"}


def test_ids_are_read_as_those_of_their_resource() -> None:
    offered = _offered(_devices(GPU, "card0-1"), _devices("gpu.intel.com/i915", "card0-1"))
    assert [d.parent for d in build(_listed(), offered).devices] == ["", "card0"]


@QUICK
@given(listings(), st.none() | allocatables(), allocatables())
def test_whatever_plugins_tell_owners_and_what_is_allocatable_are_the_kubelets(
    listed: api_pb2.ListPodResourcesResponse,
    offered: api_pb2.AllocatableResourcesResponse | None,
    other: api_pb2.AllocatableResourcesResponse,
) -> None:
    told = {
        DeviceKey(entry.resource_name, device): AdvertisedDevice(healthy=True, numa_nodes=(5,))
        for entry in other.devices
        for device in entry.device_ids
    }
    without, with_them = build(listed, offered), build(listed, offered, advertised=told)
    before = {d.key: d for d in without.devices}
    for device in with_them.devices:
        known = before.pop(device.key, None)
        if known is None:
            assert device.key in told
            assert not device.holders
            assert device.allocatable == (offered is None)
        else:
            assert (device.holders, device.allocatable) == (known.holders, known.allocatable)
            assert device.numa_nodes == (known.numa_nodes or ((5,) if device.key in told else ()))
    assert not before
    assert [c.devices for c in with_them.containers] == [c.devices for c in without.containers]
    assert with_them.claims == without.claims
