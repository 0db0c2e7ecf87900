"""The kubelet's answers made into one snapshot.

Works on PodResources v1 messages; v1alpha1's are a subset of the same field numbers and are
decoded as v1 by the client. Rules of the kubelet that are applied here:

- a container may have several entries of one resource, one for each NUMA group: they are joined;
- NUMA node 0 is a NUMANode with no field set; a negative node is no node;
- allocatable lists healthy devices only: a held device that is not there is not healthy;
- pod-level CPUs and memory overlap the containers' on purpose and are left out;
- a claim that pods share repeats its devices, and their CDI names inside: both are counted once;
- what is listed twice under one name of pod and container is one holder's.

And of the plugins' own word, where it is known: a device that the kubelet does not name is there all the
same, and not allocatable; and NUMA nodes and parents that the kubelet and the id do not tell.

Snapshots one after the other: what did not change is taken from the one before, object by object.

The result equals snapshot.build's. What follows snapshots sees by identity what may have changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.listing import ListedPods, Nodes, PodPart, nodes_of
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
    PodKey,
    Snapshot,
)
from kubelet.pb.podresources.v1 import api_pb2


def build(
    listed: api_pb2.ListPodResourcesResponse,
    allocatable: api_pb2.AllocatableResourcesResponse | None,
    *,
    cpu_numa: Mapping[int, int] | None = None,
    reader: IdReader = read_id,
    pod_uids: Mapping[PodKey, str] | None = None,
    advertised: Mapping[DeviceKey, AdvertisedDevice] | None = None,
) -> Snapshot:
    """The snapshot of one List and the GetAllocatableResources that goes with it.

    `allocatable` None: the kubelet cannot tell; every held device then counts as allocatable, and the
    snapshot is not `complete`. `cpu_numa` maps a CPU's number to its NUMA node, for containers with
    exclusive CPUs. `reader` reads device ids. `pod_uids`: the uid of each pod for which it is known.
    `advertised`: what plugins tell of their devices.
    """
    return assemble(
        listed.pod_resources,
        allocatable,
        cpu_numa=cpu_numa or {},
        reader=reader,
        pod_uids=pod_uids or {},
        advertised=advertised,
    )[0]


def assemble(
    pods: Iterable[api_pb2.PodResources],
    allocatable: api_pb2.AllocatableResourcesResponse | None,
    *,
    cpu_numa: Mapping[int, int],
    reader: IdReader,
    pod_uids: Mapping[PodKey, str],
    advertised: Mapping[DeviceKey, AdvertisedDevice] | None,
) -> tuple[Snapshot, Mapping[DeviceKey, Nodes], frozenset[DeviceKey]]:
    """As `build`; and each device's NUMA nodes, and the devices that are allocatable."""
    numa = _offered(allocatable)
    offered = frozenset(numa)
    held = HoldingCollector()
    names: set[PodKey] = set()
    for pod in pods:
        name = (pod.namespace, pod.name)
        names.add(name)
        held.add_pod(pod, pod_uids.get(name, ""), offered, numa)

    told = advertised or {}
    by_plugin = _fill(numa, told)
    devices = tuple(
        [
            Device(
                key,
                reader(key.device, key.resource).parent or (_parent(told, key) if told else ""),
                numa.get(key, ()),
                allocatable is None or key in offered,
                tuple(sorted(held.holders.get(key, ()))),
            )
            for key in sorted(offered | held.holders.keys() | told.keys())
        ]
    )
    containers = tuple(
        [container_of(holder, found, numa, cpu_numa) for holder, found in sorted(held.containers.items())]
    )
    snapshot = Snapshot(
        devices=devices,
        claims=held.claims.result(),
        containers=containers,
        pods=len(names),
        complete=allocatable is not None,
        numa_by_plugin=by_plugin,
    )
    return snapshot, numa, offered


def _parent(advertised: Mapping[DeviceKey, AdvertisedDevice], key: DeviceKey) -> str:
    told = advertised.get(key)
    return "" if told is None else told.parent


def _fill(
    numa: dict[DeviceKey, Nodes], advertised: Mapping[DeviceKey, AdvertisedDevice]
) -> frozenset[DeviceKey]:
    """Give the devices without NUMA nodes those that their plugin tells; which these are."""
    filled = {
        key: told.numa_nodes for key, told in advertised.items() if told.numa_nodes and not numa.get(key)
    }
    numa |= filled
    return frozenset(filled)


def _offered(allocatable: api_pb2.AllocatableResourcesResponse | None) -> dict[DeviceKey, Nodes]:
    """Each allocatable device with its NUMA nodes."""
    numa: dict[DeviceKey, Nodes] = {}
    for entry in allocatable.devices if allocatable is not None else ():
        nodes = nodes_of(entry.topology)
        for device_id in entry.device_ids:
            _add_nodes(numa, DeviceKey(entry.resource_name, device_id), nodes)
    return numa


@dataclass(slots=True)
class ContainerHoldings:
    """What a container was found to hold: device ids by resource, CPUs, bytes by memory type and nodes."""

    ids: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    cpu_ids: set[int] = field(default_factory=set[int])
    memory: dict[tuple[str, Nodes], int] = field(default_factory=dict[tuple[str, Nodes], int])


class HoldingCollector:
    """Gathers what containers hold."""

    def __init__(self) -> None:
        self.holders: dict[DeviceKey, set[Holder]] = {}
        self.claims = _Claims()
        self.containers: dict[Holder, ContainerHoldings] = {}

    def add_pod(
        self,
        pod: api_pb2.PodResources,
        uid: str,
        offered: frozenset[DeviceKey],
        numa: dict[DeviceKey, Nodes],
    ) -> None:
        """Take in one pod."""
        for container in pod.containers:
            self._add(Holder(pod.namespace, pod.name, container.name, uid), container, offered, numa)

    def _add(
        self,
        holder: Holder,
        listed: api_pb2.ContainerResources,
        offered: frozenset[DeviceKey],
        numa: dict[DeviceKey, Nodes],
    ) -> None:
        """Take in one container. Of a device that is not `offered` its own entry tells the NUMA nodes."""
        claims = self.claims.add(holder, listed.dynamic_resources)
        if not (
            claims or listed.cpu_ids or listed.memory or any(entry.device_ids for entry in listed.devices)
        ):
            return
        # The same name may come twice: a static pod and its successor.
        found = self.containers.setdefault(holder, ContainerHoldings())
        found.cpu_ids.update(listed.cpu_ids)
        for block in listed.memory:
            where = (block.memory_type, nodes_of(block.topology))
            found.memory[where] = found.memory.get(where, 0) + block.size
        for entry in listed.devices:
            if not entry.device_ids:
                continue
            nodes = nodes_of(entry.topology)
            found.ids.setdefault(entry.resource_name, set()).update(entry.device_ids)
            for device_id in entry.device_ids:
                key = DeviceKey(entry.resource_name, device_id)
                self.holders.setdefault(key, set()).add(holder)
                if key not in offered:
                    _add_nodes(numa, key, nodes)


class _Claims:
    """Gathers claimed devices: once for each driver, pool, device and share, with all holders."""

    def __init__(self) -> None:
        self._holders: dict[ClaimDeviceKey, set[ClaimHolder]] = {}
        self._cdi: dict[ClaimDeviceKey, set[str]] = {}

    def add(self, holder: Holder, resources: Iterable[api_pb2.DynamicResource]) -> bool:
        """Take in one container's claims; whether they hold any device."""
        held = False
        for resource in resources:
            for claimed in resource.claim_resources:
                key = ClaimDeviceKey(
                    claimed.driver_name, claimed.pool_name, claimed.device_name, claimed.share_id
                )
                through = ClaimHolder(holder, resource.claim_namespace, resource.claim_name)
                self._holders.setdefault(key, set()).add(through)
                self._cdi.setdefault(key, set()).update(cdi.name for cdi in claimed.cdi_devices)
                held = True
        return held

    def result(self) -> tuple[ClaimDevice, ...]:
        return tuple(
            ClaimDevice(key, tuple(sorted(holders)), tuple(sorted(self._cdi[key])))
            for key, holders in sorted(self._holders.items())
        )


def container_of(
    holder: Holder, found: ContainerHoldings, numa: Mapping[DeviceKey, Nodes], cpu_numa: Mapping[int, int]
) -> Container:
    """What `found` makes of a container."""
    spanned: set[int] = {cpu_numa[cpu] for cpu in found.cpu_ids if cpu in cpu_numa}
    for resource, ids in found.ids.items():
        for device_id in ids:
            spanned.update(numa.get(DeviceKey(resource, device_id), ()))
    for _, nodes in found.memory:
        spanned.update(nodes)
    return Container(
        holder=holder,
        devices={resource: len(ids) for resource, ids in sorted(found.ids.items())},
        cpu_ids=tuple(sorted(found.cpu_ids)),
        memory=tuple(PinnedMemory(kind, nodes, size) for (kind, nodes), size in sorted(found.memory.items())),
        numa_nodes=tuple(sorted(spanned)),
    )


def _add_nodes(numa: dict[DeviceKey, Nodes], key: DeviceKey, nodes: Nodes) -> None:
    known = numa.get(key)
    if known is None or not known:
        numa[key] = nodes
    elif nodes and nodes != known:
        numa[key] = tuple(sorted({*known, *nodes}))


_Offer = frozenset[tuple[str, Nodes, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class _Built:
    """A snapshot, and all that it was made of."""

    snapshot: Snapshot
    parts: Mapping[PodKey, PodPart]
    uids: Mapping[PodKey, str]
    offer: _Offer | None
    advertised: Mapping[DeviceKey, AdvertisedDevice] | None
    numa: Mapping[DeviceKey, Nodes]
    offered: frozenset[DeviceKey]
    places: Mapping[DeviceKey, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """A snapshot of pods that are not told apart, and all that it was made of."""

    snapshot: Snapshot
    listing: ListedPods
    allocatable: api_pb2.AllocatableResourcesResponse | None
    uids: Mapping[PodKey, str]
    advertised: Mapping[DeviceKey, AdvertisedDevice] | None


class SnapshotBuilder:
    """Makes snapshots; keeps what the last one was made of."""

    def __init__(self, cpu_numa: Mapping[int, int] | None = None, reader: IdReader = read_id) -> None:
        self._cpu_numa = cpu_numa or {}
        self._reader = reader
        self._built: _Built | None = None
        self._whole: _Whole | None = None

    def build(
        self,
        listing: ListedPods,
        allocatable: api_pb2.AllocatableResourcesResponse | None,
        *,
        pod_uids: Mapping[PodKey, str] | None = None,
        advertised: Mapping[DeviceKey, AdvertisedDevice] | None = None,
    ) -> Snapshot:
        """As snapshot.build."""
        uids, built = pod_uids or {}, self._built
        if listing.parts is None:
            return self._build_whole(listing, allocatable, uids, advertised)
        self._whole = None
        offer = _offer(allocatable)
        if built is not None and offer == built.offer and advertised is built.advertised:
            snapshot = self._continued(built, listing.parts, uids)
            if snapshot is not None:
                parts, known = listing.parts, {key: uids.get(key, "") for key in listing.parts}
                self._built = _Built(
                    snapshot,
                    parts,
                    known,
                    *(built.offer, built.advertised, built.numa, built.offered, built.places),
                )
                return snapshot
        snapshot, numa, offered = self._assembled(listing, allocatable, uids, advertised)
        if built is not None:
            snapshot = _with_kept(snapshot, built)
        known = {key: uids.get(key, "") for key in listing.parts}
        places = {device.key: place for place, device in enumerate(snapshot.devices)}
        self._built = _Built(snapshot, listing.parts, known, offer, advertised, numa, offered, places)
        return snapshot

    def _build_whole(
        self,
        listing: ListedPods,
        allocatable: api_pb2.AllocatableResourcesResponse | None,
        uids: Mapping[PodKey, str],
        advertised: Mapping[DeviceKey, AdvertisedDevice] | None,
    ) -> Snapshot:
        """The same object for the very same messages: a second one of a large answer takes much memory."""
        self._built, whole = None, self._whole
        if (
            whole is not None
            and listing is whole.listing
            and allocatable is whole.allocatable
            and uids == whole.uids
            and advertised is whole.advertised
        ):
            return whole.snapshot
        self._whole = whole = None
        snapshot, _, _ = self._assembled(listing, allocatable, uids, advertised)
        self._whole = _Whole(snapshot, listing, allocatable, uids, advertised)
        return snapshot

    def _assembled(
        self,
        listing: ListedPods,
        allocatable: api_pb2.AllocatableResourcesResponse | None,
        uids: Mapping[PodKey, str],
        advertised: Mapping[DeviceKey, AdvertisedDevice] | None,
    ) -> tuple[Snapshot, Mapping[DeviceKey, Nodes], frozenset[DeviceKey]]:
        return assemble(
            listing.pod_resources,
            allocatable,
            cpu_numa=self._cpu_numa,
            reader=self._reader,
            pod_uids=uids,
            advertised=advertised,
        )

    def _continued(
        self, built: _Built, parts: Mapping[PodKey, PodPart], uids: Mapping[PodKey, str]
    ) -> Snapshot | None:
        """The snapshot by what changed of pods alone; None where more than their own devices hangs on it."""
        affected = {
            key
            for key, part in parts.items()
            if part is not built.parts.get(key) or uids.get(key, "") != built.uids[key]
        }
        affected |= built.parts.keys() - parts.keys()
        if not affected:
            return built.snapshot
        if 2 * len(affected) > len(parts):
            return None
        touched = {key for name in affected if name in built.parts for key in _devices(built.parts[name])}
        held = HoldingCollector()
        numa = dict[DeviceKey, Nodes]()
        for name in affected:
            if (part := parts.get(name)) is not None:
                held.add_pod(part.message, uids.get(name, ""), built.offered, numa)
        touched |= held.holders.keys()
        # Of a device that is not offered the entries of all who hold it tell, and whether it is known.
        if not touched <= built.offered:
            return None
        old = built.snapshot
        devices = list(old.devices)
        for key in touched:
            place = built.places[key]
            device = devices[place]
            holders = {holder for holder in device.holders if holder[:2] not in affected}
            holders |= held.holders.get(key, set[Holder]())
            found = tuple(sorted(holders))
            if found != device.holders:
                devices[place] = Device(key, device.parent, device.numa_nodes, device.allocatable, found)
        containers = [one for one in old.containers if one.holder[:2] not in affected]
        containers += [
            container_of(holder, found, built.numa, self._cpu_numa)
            for holder, found in held.containers.items()
        ]
        containers.sort(key=lambda one: one.holder)
        return Snapshot(
            devices=tuple(devices),
            claims=_claims(built, parts, uids, affected),
            containers=tuple(containers),
            pods=len(parts),
            complete=old.complete,
            numa_by_plugin=old.numa_by_plugin,
        )


def _claims(
    built: _Built, parts: Mapping[PodKey, PodPart], uids: Mapping[PodKey, str], affected: Iterable[PodKey]
) -> tuple[ClaimDevice, ...]:
    """All claimed devices; those of before where none of the affected pods has or had any."""
    either = [part for name in affected for part in (built.parts.get(name), parts.get(name))]
    if not any(part.claims for part in either if part is not None):
        return built.snapshot.claims
    held, numa = HoldingCollector(), dict[DeviceKey, Nodes]()
    for name, part in parts.items():
        if part.claims:
            held.add_pod(part.message, uids.get(name, ""), built.offered, numa)
    return held.claims.result()


def _offer(allocatable: api_pb2.AllocatableResourcesResponse | None) -> _Offer | None:
    """What is offered, to be compared: the order of the answer differs from call to call."""
    if allocatable is None:
        return None
    return frozenset(
        [
            (entry.resource_name, nodes_of(entry.topology), frozenset(entry.device_ids))
            for entry in allocatable.devices
        ]
    )


def _devices(part: PodPart) -> list[DeviceKey]:
    return [
        DeviceKey(entry.resource_name, device)
        for container in part.message.containers
        for entry in container.devices
        for device in entry.device_ids
    ]


def _with_kept(snapshot: Snapshot, built: _Built) -> Snapshot:
    """The same, of the objects of the snapshot before where they are equal."""
    old, places = built.snapshot.devices, built.places
    devices = [
        old[place] if (place := places.get(device.key)) is not None and old[place] == device else device
        for device in snapshot.devices
    ]
    return Snapshot(
        devices=tuple(devices),
        claims=built.snapshot.claims if built.snapshot.claims == snapshot.claims else snapshot.claims,
        containers=snapshot.containers,
        pods=snapshot.pods,
        complete=snapshot.complete,
        numa_by_plugin=snapshot.numa_by_plugin,
    )
