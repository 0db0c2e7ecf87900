"""Builds a snapshot from the kubelet's answers.

Works on PodResources v1 messages; the client decodes v1alpha1 as v1, which has the same field numbers. Rules
of the kubelet:

- a container may have several entries of one resource, one for each NUMA group: they are joined;
- GetAllocatableResources lists healthy devices only: a held device that is missing there is unhealthy;
- pod-level CPUs and memory overlap those of the containers and are left out;
- pods that share a claim repeat its devices and CDI names: each is counted once;
- entries with the same pod and container name belong to one holder.

Plugin reports add devices that the kubelet does not name, as not allocatable, and the NUMA nodes and parents
that neither the kubelet nor the id gives. Remembered devices (device_memory) that no answer names are added
as no longer offered.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field

from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.device_memory import RememberedDevice
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

_Offer = frozenset[tuple[str, Nodes, frozenset[str]]]
_Advertised = Mapping[DeviceKey, AdvertisedDevice]
_Remembered = Mapping[DeviceKey, RememberedDevice]


def build(
    listed: api_pb2.ListPodResourcesResponse,
    allocatable: api_pb2.AllocatableResourcesResponse | None,
    *,
    cpu_numa: Mapping[int, int] | None = None,
    reader: IdReader = read_id,
    pod_uids: Mapping[PodKey, str] | None = None,
    advertised: _Advertised | None = None,
) -> Snapshot:
    """Build the snapshot of one List and one GetAllocatableResources answer; see SnapshotBuilder.build."""
    pods = ListedPods(tuple(listed.pod_resources))
    builder = SnapshotBuilder(cpu_numa, reader)
    return builder.build(pods, allocatable, pod_uids=pod_uids, advertised=advertised)


class _ContainerHoldings(Struct):
    """What one container holds: device ids by resource, CPUs, bytes by memory type and nodes."""

    ids: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    cpu_ids: set[int] = field(default_factory=set[int])
    memory: dict[tuple[str, Nodes], int] = field(default_factory=dict[tuple[str, Nodes], int])

    def container(
        self, holder: Holder, numa: Mapping[DeviceKey, Nodes], cpu_numa: Mapping[int, int]
    ) -> Container:
        """The snapshot's container."""
        spanned: set[int] = {cpu_numa[cpu] for cpu in self.cpu_ids if cpu in cpu_numa}
        for resource, ids in self.ids.items():
            for device_id in ids:
                spanned.update(numa.get(DeviceKey(resource, device_id), ()))
        for _, nodes in self.memory:
            spanned.update(nodes)
        memory = [PinnedMemory(kind, nodes, size) for (kind, nodes), size in sorted(self.memory.items())]
        return Container(
            holder=holder,
            devices={resource: len(ids) for resource, ids in sorted(self.ids.items())},
            cpu_ids=tuple(sorted(self.cpu_ids)),
            memory=tuple(memory),
            numa_nodes=tuple(sorted(spanned)),
        )


class _Holdings:
    """Collects the holdings of pods."""

    def __init__(self, offered: frozenset[DeviceKey], numa: dict[DeviceKey, Nodes]) -> None:
        """The NUMA nodes of a device that is not `offered` are added to `numa` from its holders' entries."""
        self._offered = offered
        self._numa = numa
        self.holders: dict[DeviceKey, set[Holder]] = {}
        self.containers: dict[Holder, _ContainerHoldings] = {}
        self._claim_holders: dict[ClaimDeviceKey, set[ClaimHolder]] = {}
        self._cdi: dict[ClaimDeviceKey, set[str]] = {}

    def add(self, pod: api_pb2.PodResources, uid: str) -> None:
        """Add one pod."""
        for container in pod.containers:
            self._add(Holder(pod.namespace, pod.name, container.name, uid), container)

    def _add(self, holder: Holder, listed: api_pb2.ContainerResources) -> None:
        claimed = self._add_claims(holder, listed.dynamic_resources)
        held = claimed or listed.cpu_ids or listed.memory or any(one.device_ids for one in listed.devices)
        if not held:
            return
        # One name may come twice: a static pod and its successor.
        found = self.containers.setdefault(holder, _ContainerHoldings())
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
                if key not in self._offered:
                    _add_nodes(self._numa, key, nodes)

    def _add_claims(self, holder: Holder, resources: Iterable[api_pb2.DynamicResource]) -> bool:
        """Add one container's claims. Whether they hold any device."""
        held = False
        for resource in resources:
            through = ClaimHolder(holder, resource.claim_namespace, resource.claim_name)
            for claimed in resource.claim_resources:
                key = ClaimDeviceKey(
                    claimed.driver_name, claimed.pool_name, claimed.device_name, claimed.share_id
                )
                self._claim_holders.setdefault(key, set()).add(through)
                self._cdi.setdefault(key, set()).update(cdi.name for cdi in claimed.cdi_devices)
                held = True
        return held

    def all_containers(
        self, numa: Mapping[DeviceKey, Nodes], cpu_numa: Mapping[int, int]
    ) -> tuple[Container, ...]:
        """The snapshot's containers."""
        found = sorted(self.containers.items(), key=lambda item: item[0])
        return tuple([one.container(holder, numa, cpu_numa) for holder, one in found])

    def claims(self) -> tuple[ClaimDevice, ...]:
        """The claimed devices."""
        return tuple(
            ClaimDevice(key, tuple(sorted(holders)), tuple(sorted(self._cdi[key])))
            for key, holders in sorted(self._claim_holders.items())
        )


def _add_nodes(numa: dict[DeviceKey, Nodes], key: DeviceKey, nodes: Nodes) -> None:
    known = numa.get(key)
    if not known:
        numa[key] = nodes
    elif nodes and nodes != known:
        numa[key] = tuple(sorted({*known, *nodes}))


class _Built(Struct, frozen=True, eq=False):
    """A snapshot and its inputs. `positions` are the indexes of devices, empty without parts."""

    snapshot: Snapshot
    listed: ListedPods
    uids: Mapping[PodKey, str]
    allocatable: api_pb2.AllocatableResourcesResponse | None
    offer: _Offer | None
    advertised: _Advertised | None
    remembered: _Remembered | None
    numa: Mapping[DeviceKey, Nodes]
    offered: frozenset[DeviceKey]
    positions: Mapping[DeviceKey, int]


class SnapshotBuilder:
    """Builds one snapshot after the other. Unchanged devices are the same objects as in the one before, so
    that Snapshot.changed_since finds the others by identity.
    """

    def __init__(self, cpu_numa: Mapping[int, int] | None = None, reader: IdReader = read_id) -> None:
        """`cpu_numa` maps a CPU's number to its NUMA node; `reader` reads device ids."""
        self.cpu_numa = cpu_numa or {}
        self._reader = reader
        self._last: _Built | None = None

    def build(
        self,
        listed: ListedPods,
        allocatable: api_pb2.AllocatableResourcesResponse | None,
        *,
        pod_uids: Mapping[PodKey, str] | None = None,
        advertised: _Advertised | None = None,
        remembered: _Remembered | None = None,
    ) -> Snapshot:
        """Build the snapshot of one List and one GetAllocatableResources answer.

        `allocatable` None: the kubelet does not serve GetAllocatableResources. Every held device then counts
        as allocatable, `remembered` devices are left out, and the snapshot is not `complete`. `pod_uids` are
        the known uids, `advertised` the devices of plugin reports.
        """
        uids = {key: (pod_uids or {}).get(key, "") for key in listed.names()}
        last = self._last
        if (
            last is not None
            and listed is last.listed
            and allocatable is last.allocatable
            and advertised is last.advertised
            and remembered is last.remembered
            and uids == last.uids
        ):
            return last.snapshot
        offer = None
        if listed.parts is not None:
            known = last is not None and last.offer is not None and allocatable is last.allocatable
            offer = last.offer if last is not None and known else _offer(allocatable)
        if last is None or listed.parts is None or last.listed.parts is None:
            # A second snapshot of a large answer would take too much memory.
            self._last = last = None
        elif (
            offer == last.offer
            and _placed_alike(advertised, last.advertised)
            and remembered is last.remembered
        ):
            snapshot = self._updated(last, last.listed.parts, listed.parts, uids)
            if snapshot is not None:
                self._last = _Built(
                    *(snapshot, listed, uids, allocatable, offer, advertised, remembered),
                    *(last.numa, last.offered, last.positions),
                )
                return snapshot
        sources = advertised, remembered
        self._last = self._built(listed, allocatable, uids, offer=offer, sources=sources, last=last)
        return self._last.snapshot

    def _built(
        self,
        listed: ListedPods,
        allocatable: api_pb2.AllocatableResourcesResponse | None,
        uids: Mapping[PodKey, str],
        *,
        offer: _Offer | None,
        sources: tuple[_Advertised | None, _Remembered | None],
        last: _Built | None,
    ) -> _Built:
        """Build the whole snapshot; devices that equal those of `last` are taken from there."""
        advertised, remembered = sources
        numa = _allocatable_nodes(allocatable)
        offered = frozenset(numa)
        held = _Holdings(offered, numa)
        for pod in listed.pod_resources:
            held.add(pod, uids[pod.namespace, pod.name])
        reported = advertised or {}
        by_plugin = {
            key: device.numa_nodes
            for key, device in reported.items()
            if device.numa_nodes and not numa.get(key)
        }
        numa |= by_plugin
        devices = [
            Device(
                key,
                self._reader(key.device, key.resource).parent
                or (reported[key].parent if key in reported else ""),
                numa.get(key, ()),
                allocatable is None or key in offered,
                tuple(sorted(held.holders.get(key, ()))),
            )
            for key in sorted(offered | held.holders.keys() | reported.keys())
        ]
        if remembered and allocatable is not None:
            devices += _no_longer_offered(remembered, named={device.key for device in devices})
            devices.sort(key=_key)
        claims = held.claims()
        if last is not None:
            old, positions = last.snapshot.devices, last.positions
            for index, device in enumerate(devices):
                before = positions.get(device.key)
                if before is not None and old[before] == device:
                    devices[index] = old[before]
            claims = last.snapshot.claims if last.snapshot.claims == claims else claims
        snapshot = Snapshot(
            devices=tuple(devices),
            claims=claims,
            containers=held.all_containers(numa, self.cpu_numa),
            pods=len(uids),
            complete=allocatable is not None,
            numa_by_plugin=frozenset(by_plugin),
        )
        indexes = {} if listed.parts is None else {device.key: i for i, device in enumerate(devices)}
        return _Built(
            *(snapshot, listed, uids, allocatable, offer, advertised, remembered),
            *(numa, offered, indexes),
        )

    def _updated(
        self,
        last: _Built,
        before: Mapping[PodKey, PodPart],
        parts: Mapping[PodKey, PodPart],
        uids: Mapping[PodKey, str],
    ) -> Snapshot | None:
        """Update the last snapshot by the pods that changed. None if a whole build is needed or faster."""
        changed = {
            key for key, part in parts.items() if part is not before.get(key) or uids[key] != last.uids[key]
        }
        changed |= before.keys() - parts.keys()
        if not changed:
            return last.snapshot
        if 2 * len(changed) > len(parts):
            return None
        held = _Holdings(last.offered, {})
        for name in changed:
            if (part := parts.get(name)) is not None:
                held.add(part.message, uids[name])
        touched = {key for name in changed if name in before for key in _device_keys(before[name])}
        touched |= held.holders.keys()
        # The NUMA nodes of a device that is not offered depend on all its holders.
        if not touched <= last.offered:
            return None
        old = last.snapshot
        devices: dict[int, Device] = {}
        for key in touched:
            index = last.positions[key]
            device = old.devices[index]
            holders = {holder for holder in device.holders if holder[:2] not in changed}
            found = tuple(sorted(holders | held.holders.get(key, set[Holder]())))
            if found != device.holders:
                devices[index] = Device(key, device.parent, device.numa_nodes, device.allocatable, found)
        containers = [one for one in old.containers if one.holder[:2] not in changed]
        containers += [
            found.container(holder, last.numa, self.cpu_numa) for holder, found in held.containers.items()
        ]
        containers.sort(key=lambda one: one.holder)
        either = [part for name in changed for part in (before.get(name), parts.get(name))]
        claims = old.claims
        if any(part.claims for part in either if part is not None):
            claims = _claims(parts, uids, last.offered)
        return old.with_devices(devices, claims=claims, containers=tuple(containers), pods=len(parts))


def _claims(
    parts: Mapping[PodKey, PodPart], uids: Mapping[PodKey, str], offered: frozenset[DeviceKey]
) -> tuple[ClaimDevice, ...]:
    held = _Holdings(offered, {})
    for name, part in parts.items():
        if part.claims:
            held.add(part.message, uids[name])
    return held.claims()


def _no_longer_offered(remembered: _Remembered, named: Collection[DeviceKey]) -> list[Device]:
    """The remembered devices that are not `named` by the kubelet, a pod or a report."""
    return [
        Device(key, one.parent, one.numa_nodes, allocatable=False, no_longer_offered_since=one.since)
        for key, one in remembered.items()
        if key not in named
    ]


def _allocatable_nodes(
    allocatable: api_pb2.AllocatableResourcesResponse | None,
) -> dict[DeviceKey, Nodes]:
    """Each allocatable device with its NUMA nodes."""
    numa: dict[DeviceKey, Nodes] = {}
    for entry in allocatable.devices if allocatable is not None else ():
        nodes = nodes_of(entry.topology)
        for device_id in entry.device_ids:
            _add_nodes(numa, DeviceKey(entry.resource_name, device_id), nodes)
    return numa


def _offer(allocatable: api_pb2.AllocatableResourcesResponse | None) -> _Offer | None:
    """The allocatable devices in a comparable form: the order of the answer differs from call to call."""
    if allocatable is None:
        return None
    return frozenset(
        [
            (entry.resource_name, nodes_of(entry.topology), frozenset(entry.device_ids))
            for entry in allocatable.devices
        ]
    )


def _placed_alike(now: _Advertised | None, before: _Advertised | None) -> bool:
    """Whether a snapshot takes the same from these reports: devices, their parents and NUMA nodes."""
    if now is before:
        return True
    if now is None or before is None or len(now) != len(before):
        return False
    for key, device in now.items():
        was = before.get(key)
        if was is device:
            continue
        if was is None or (was.numa_nodes, was.parent) != (device.numa_nodes, device.parent):
            return False
    return True


def _key(device: Device) -> DeviceKey:
    return device.key


def _device_keys(part: PodPart) -> list[DeviceKey]:
    return [
        DeviceKey(entry.resource_name, device)
        for container in part.message.containers
        for entry in container.devices
        for device in entry.device_ids
    ]
