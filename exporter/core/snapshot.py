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
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exporter.core.advertised import AdvertisedDevice
from exporter.core.ids import Reader, read
from exporter.core.listing import Nodes, nodes_of
from exporter.core.model import (
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
from exporter.pb.podresources.v1 import api_pb2


def build(
    listed: api_pb2.ListPodResourcesResponse,
    allocatable: api_pb2.AllocatableResourcesResponse | None,
    *,
    cpu_numa: Mapping[int, int] | None = None,
    reader: Reader = read,
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
    reader: Reader,
    pod_uids: Mapping[PodKey, str],
    advertised: Mapping[DeviceKey, AdvertisedDevice] | None,
) -> tuple[Snapshot, Mapping[DeviceKey, Nodes], frozenset[DeviceKey]]:
    """As `build`; and each device's NUMA nodes, and the devices that are allocatable."""
    numa = _offered(allocatable)
    offered = frozenset(numa)
    held = Held()
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
class Found:
    """What a container was found to hold: device ids by resource, CPUs, bytes by memory type and nodes."""

    ids: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    cpu_ids: set[int] = field(default_factory=set[int])
    memory: dict[tuple[str, Nodes], int] = field(default_factory=dict[tuple[str, Nodes], int])


class Held:
    """Gathers what containers hold."""

    def __init__(self) -> None:
        self.holders: dict[DeviceKey, set[Holder]] = {}
        self.claims = _Claims()
        self.containers: dict[Holder, Found] = {}

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
        found = self.containers.setdefault(holder, Found())
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
    holder: Holder, found: Found, numa: Mapping[DeviceKey, Nodes], cpu_numa: Mapping[int, int]
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
