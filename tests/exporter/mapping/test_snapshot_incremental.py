"""exporter.mapping.snapshot and listing: an incremental build equals a whole one."""

import random
from collections.abc import Iterable, Sequence

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.mapping.anomaly_tracker import AnomalyTracker
from exporter.mapping.device_memory import RememberedDevice
from exporter.mapping.holdings import HoldingTracker, diff
from exporter.mapping.identity import pods_with_new_holdings
from exporter.mapping.listing import ListedPods, ListReader
from exporter.mapping.model import AdvertisedDevice, Device, DeviceKey, Holder, Snapshot
from exporter.mapping.snapshot import SnapshotBuilder, build
from harness import scene
from harness.answers import R, allocatables, listed, listings, offered, pod, pods, shuffled
from kubelet.pb.podresources.v1 import api_pb2

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


def _listed(chosen: Sequence[api_pb2.PodResources], seed: int) -> bytes:
    order = random.Random(seed)
    return shuffled(api_pb2.ListPodResourcesResponse(pod_resources=chosen), order).SerializeToString()


def _offering(answers: Sequence[bytes]) -> api_pb2.AllocatableResourcesResponse:
    """All devices of the answers are allocatable."""
    messages = map(api_pb2.ListPodResourcesResponse.FromString, answers)
    held = [one for message in messages for one in message.pod_resources]
    return offered(*(devices for one in held for box in one.containers for devices in box.devices))


def _key(one: api_pb2.PodResources) -> tuple[str, str]:
    return one.namespace, one.name


def _with_containers(one: api_pb2.PodResources, other: api_pb2.PodResources) -> api_pb2.PodResources:
    return api_pb2.PodResources(namespace=one.namespace, name=one.name, containers=other.containers)


@SETTINGS
@given(st.data(), st.lists(pods(), min_size=6, max_size=8, unique_by=_key))
def test_incremental_snapshot_equals_a_whole_build(
    data: st.DataObject, pool: list[api_pb2.PodResources]
) -> None:
    offers = [None, _offering([_listed(pool, 0)]), data.draw(allocatables())]
    reader, builder = ListReader(), SnapshotBuilder({0: 0, 1: 1})
    incremental, anew = (HoldingTracker(), AnomalyTracker()), (HoldingTracker(), AnomalyTracker())
    before: tuple[Snapshot, Snapshot] | None = None
    shown: list[api_pb2.PodResources | None] = list(pool)
    offer, known = offers[0], 0
    for step in range(7):
        # One pod more, less, or with other containers under its name; now and then none is left.
        index = data.draw(st.integers(0, len(pool) - 1))
        shown[index] = data.draw(
            st.sampled_from([None, pool[index], _with_containers(pool[index], pool[-1])])
        )
        chosen = [one for one in shown if one is not None] if step != 5 else []
        answer = _listed(chosen, step)
        if step in {0, 4}:
            # The allocatable devices and the uids seldom change.
            offer, known = data.draw(st.sampled_from(offers)), data.draw(st.sampled_from([0, 1, 2]))
        uids = {(pod.namespace, pod.name): f"uid-{len(pod.name) * known % 3}" for pod in chosen if known}
        expected = build(
            api_pb2.ListPodResourcesResponse.FromString(answer), offer, cpu_numa={0: 0, 1: 1}, pod_uids=uids
        )
        again = None if offer is None else shuffled(offer, random.Random(step))
        listing = reader.read(answer)
        assert listing.names() == {(pod.namespace, pod.name) for pod in chosen}
        snapshot = builder.build(listing, again, pod_uids=uids)
        assert snapshot == expected
        assert snapshot.resources() == expected.resources()
        assert snapshot.held_unhealthy == expected.held_unhealthy
        if before is not None:
            assert diff(before[0], snapshot) == diff(before[1], expected)
            assert pods_with_new_holdings(before[0], snapshot) == pods_with_new_holdings(before[1], expected)
        before = snapshot, expected
        assert incremental[0].advance(snapshot, step) == anew[0].advance(expected, step)
        judged = [
            tracker.advance(scene.statuses(shown), asked=step, now=step + 0.5)
            for (_, tracker), shown in ((incremental, snapshot), (anew, expected))
        ]
        assert judged[0] == judged[1]


_NODES = st.sampled_from([(), (0,), (1,)])


@SETTINGS
@given(st.data(), st.lists(pods(), min_size=6, max_size=8, unique_by=_key))
def test_devices_that_fail_return_or_are_forgotten_equal_a_whole_build(
    data: st.DataObject, pool: list[api_pb2.PodResources]
) -> None:
    whole, spare = _offering([_listed(pool, 0)]), [DeviceKey("r", f"spare-{n}") for n in range(3)]
    held = [DeviceKey(one.resource_name, name) for one in whole.devices for name in one.device_ids]
    keys = st.lists(st.sampled_from([*held[:2], *spare]), max_size=3)
    reader, builder = ListReader(), SnapshotBuilder({0: 0, 1: 1})
    before: Snapshot | None = None
    reports: dict[DeviceKey, AdvertisedDevice] = {}
    for step in range(5):
        missing = data.draw(keys)
        chosen = [one for one in pool if one is not data.draw(st.sampled_from([None, None, pool[step]]))]
        offer = api_pb2.AllocatableResourcesResponse()
        for entry in [*whole.devices, *offered(*(key.device for key in spare)).devices]:
            ids = [name for name in entry.device_ids if DeviceKey(entry.resource_name, name) not in missing]
            copy = api_pb2.ContainerDevices()
            copy.CopyFrom(entry)
            copy.device_ids[:] = ids
            offer.devices.append(copy)
        if step == 3:
            reports = {key: AdvertisedDevice(True, numa_nodes=data.draw(_NODES)) for key in data.draw(keys)}
        gone = {key: RememberedDevice(1.0, 2.0, "", data.draw(_NODES)) for key in data.draw(keys)}
        answer = _listed(chosen, step)
        given_ = (offer, dict.fromkeys(map(_key, chosen[:2]), "uid"), reports, gone)
        snapshot, expected = (
            one.build(listing, given_[0], pod_uids=given_[1], advertised=given_[2], remembered=given_[3])
            for one, listing in (
                (builder, reader.read(answer)),
                (SnapshotBuilder({0: 0, 1: 1}), ListReader().read(answer)),
            )
        )
        assert snapshot == expected
        assert snapshot.resources() == expected.resources()
        known = {} if before is None else {device.key: device for device in before.devices}
        for device in snapshot.devices:
            was = known.get(device.key)
            assert was is device or was != device
        before = snapshot


def test_device_that_fails_has_the_nodes_of_its_holder_instead_of_its_plugins() -> None:
    some = [pod(f"p{n}", f"d{n}") for n in range(4)]
    some[0].containers[0].devices[0].topology.nodes.add(ID=0)
    listing = ListReader().read(_listed(some, 0))
    key = DeviceKey(R, "d0")
    builder, report = SnapshotBuilder(), {key: AdvertisedDevice(True, numa_nodes=(1,))}
    for offer, nodes, by_plugin in (
        (offered("d0", "d1", "d2", "d3"), (1,), {key}),
        (offered("d1", "d2", "d3"), (0,), set[DeviceKey]()),
    ):
        snapshot = builder.build(listing, offer, advertised=report)
        assert (snapshot.devices[0].numa_nodes, snapshot.containers[0].numa_nodes) == (nodes, nodes)
        assert snapshot.numa_by_plugin == by_plugin


def test_device_is_there_as_long_as_it_is_remembered() -> None:
    some = [pod(f"p{n}", f"d{n}") for n in range(4)]
    listing, offer, builder = (
        ListReader().read(_listed(some, 0)),
        offered("d0", "d1", "d2", "d3"),
        SnapshotBuilder(),
    )
    key = DeviceKey(R, "d1a")
    first = builder.build(listing, offer)
    for since in (1.0, 2.0):
        snapshot = builder.build(listing, offer, remembered={key: RememberedDevice(since, 0.0)})
        assert [one.no_longer_offered_since for one in snapshot.devices] == [None, None, since, None, None]
    assert builder.build(listing, offer) == first


def test_unchanged_devices_are_the_same_objects() -> None:
    reader, builder = ListReader(), SnapshotBuilder()
    some = [pod(f"p{n}", f"d{n}a", f"d{n}b") for n in range(6)]
    offer = _offering([_listed(some, 0)])
    first = builder.build(reader.read(_listed(some, 1)), offer)
    assert builder.build(reader.read(_listed(some, 2)), offer) is first
    third = builder.build(reader.read(_listed([*some[:5], pod("other", "d5a")], 3)), offer)
    changed = third.changed_since(first)
    assert changed is not None
    assert sorted(now.key.device for _, now in changed) == ["d5a", "d5b"]
    less = api_pb2.AllocatableResourcesResponse()
    less.CopyFrom(offer)
    del less.devices[0]
    fourth = builder.build(reader.read(_listed([*some[:5], pod("other", "d5a")], 4)), less)
    changed = fourth.changed_since(third)
    assert changed is not None
    assert {now.allocatable for _, now in changed} == {False}
    assert len(changed) == 2


def test_report_that_places_devices_alike_leaves_them_the_same_objects() -> None:
    reader, builder = ListReader(), SnapshotBuilder()
    some = [pod(f"p{n}", f"d{n}") for n in range(4)]
    listing, offer = reader.read(_listed(some, 0)), _offering([_listed(some, 0)])
    resource = offer.devices[0].resource_name
    keys = [DeviceKey(resource, name) for name in ("d0", "unknown")]

    def built(*, of: Iterable[DeviceKey] = keys, parent: str = "", at: float | None = None) -> Snapshot:
        """With a new report, as one that tells of an allocation."""
        report = {
            key: AdvertisedDevice(True, last_allocated=at, numa_nodes=(0,), parent=parent) for key in of
        }
        fresh = build(api_pb2.ListPodResourcesResponse(pod_resources=some), offer, advertised=report)
        snapshot = builder.build(listing, offer, advertised=report)
        assert snapshot == fresh
        return snapshot

    first = built()
    assert built(at=1.0) is first
    assert built(parent="GPU-0").changed_since(first)
    assert len(built(of=keys[:1]).devices) == 4
    assert len(built(of=[*keys, DeviceKey(resource, "another")]).devices) == 6


def test_snapshots_are_compared_by_identity_with_any_other() -> None:
    devices = {n: Device(DeviceKey("r", f"d{n}")) for n in range(3)}
    one = Snapshot(tuple(devices.values()))
    held = Device(DeviceKey("r", "d1"), holders=(Holder("n", "p", "c"),))
    two = one.with_devices({1: held}, Snapshot(pods=1))
    three = two.with_devices({0: replace(devices[0], allocatable=False)}, Snapshot(pods=1))
    assert (three.pods, len(three.devices)) == (1, 3)
    assert three.changed_at(two) == [0]
    assert three.changed_at(one) == [0, 1]
    assert three.changed_since(two) == [(devices[0], three.devices[0])]
    assert two.changed_at(Snapshot(two.devices)) == []
    assert three.changed_at(Snapshot(two.devices[1:])) is None
    assert three.changed_at(Snapshot((*two.devices[:2], Device(DeviceKey("r", "d9"))))) is None
    assert three.resources() == Snapshot(three.devices).resources()


def test_a_changed_copy_of_a_snapshot_counts_and_compares_for_itself() -> None:
    one = Snapshot((Device(DeviceKey("r", "d0")),))
    assert (one.resources()["r"].known, one.held_unhealthy, one.changed_at(one)) == (1, frozenset(), [])
    held = Device(DeviceKey("r", "d1"), allocatable=False, holders=(Holder("n", "p", "c"),))
    two = replace(one, devices=(*one.devices, held))
    assert (two.resources()["r"].known, two.held_unhealthy, two.changed_at(one)) == (
        2,
        frozenset([held.key]),
        None,
    )
    assert two == Snapshot(two.devices)


def test_unchanged_claimed_devices_are_the_same_objects() -> None:
    reader, builder = ListReader(), SnapshotBuilder()
    claimant = pod("p", "d0")
    claim = claimant.containers[0].dynamic_resources.add(claim_name="mine", claim_namespace="n")
    claim.claim_resources.add(driver_name="drv", pool_name="pool", device_name="gpu-0")
    answer = _listed([claimant], 0)
    first = builder.build(reader.read(answer), _offering([answer]))
    second = builder.build(reader.read(answer), api_pb2.AllocatableResourcesResponse())
    claimed = [[one for one in found.devices if one.claimed is not None] for found in (first, second)]
    assert [device.key.device for device in claimed[0]] == ["pool/gpu-0"]
    assert second.devices != first.devices
    assert claimed[1][0] is claimed[0][0]


def _whole(data: bytes) -> tuple[api_pb2.PodResources, ...] | None:
    try:
        return tuple(api_pb2.ListPodResourcesResponse.FromString(data).pod_resources)
    except DecodeError:
        return None


def _cut(reader: ListReader, data: bytes) -> tuple[api_pb2.PodResources, ...] | None:
    try:
        return reader.read(data).pod_resources
    except DecodeError:
        return None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(listings().map(lambda listed: listed.SerializeToString()), st.data())
def test_damaged_answer_reads_as_protobuf_reads_it(data: bytes, draw: st.DataObject) -> None:
    """Also without bytes before the damage, which is nonsense."""
    reader = ListReader()
    assert _cut(reader, data) == _whole(data)
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(damaged)))
        end = draw.draw(st.integers(at, min(len(damaged), at + 3)))
        damaged[at:end] = draw.draw(st.binary(max_size=4))
    assert _cut(reader, bytes(damaged)) == _whole(bytes(damaged))
    assert _cut(reader, data) == _whole(data)


@pytest.mark.parametrize(
    "data",
    [
        # An unknown field behind a pod; a group; a length in more bytes than it needs, and in too many.
        _listed([pod("p", "d")], 0) + b"\x10\x01",
        _listed([pod("p", "d")], 0) + b"\x13\x14",
        b"\x0a\x83\x80\x00\x0a\x01p",
        b"\x0a\x83\x80\x80\x80\x00\x0a\x01p",
        b"\x0a\x83\x80\x80\x80\x80\x00\x0a\x01p",
        b"\x0a\xff\xff\xff\xff\x0f",
    ],
)
def test_unusual_forms_read_as_protobuf_reads_them(data: bytes) -> None:
    assert _cut(ListReader(), data) == _whole(data)


def test_pods_of_one_name_are_kept_apart() -> None:
    """Their answer is built as a whole each time; the same messages give the same snapshot."""
    message = listed(pod("twin", "a"), pod("twin", "b"))
    listing, offer = ListReader().read(message.SerializeToString()), offered("a", "b")
    assert listing.parts is None
    assert len(listing.pod_resources) == 2
    builder = SnapshotBuilder()
    first = builder.build(listing, offer)
    assert builder.build(listing, offer) is first
    uids = {("n", "twin"): "u"}
    assert builder.build(listing, offer, pod_uids=uids) == build(message, offer, pod_uids=uids) != first
    assert builder.build(listing, None, pod_uids=uids) == build(message, None, pod_uids=uids)
    fewer = api_pb2.ListPodResourcesResponse(pod_resources=message.pod_resources[:1])
    assert builder.build(ListedPods(tuple(fewer.pod_resources)), offer) == build(fewer, offer)
