"""Builds a snapshot from the kubelet's answers.

Works on PodResources v1 messages; the client decodes v1alpha1 as v1, which has the same field numbers. Rules
of the kubelet:

- a container may have several entries of one resource, one for each NUMA group: they are joined;
- GetAllocatableResources lists healthy devices only: a held device that is missing there is unhealthy;
- pod-level CPUs and memory overlap those of the containers and are left out;
- pods that share a claim repeat its devices and CDI names: each is counted once;
- entries with the same pod and container name belong to one holder.

Plugin reports add devices that the kubelet does not name, as not allocatable, and the NUMA nodes and parents
that neither the kubelet nor the id gives. ResourceSlices add claimed devices that no pod holds, and the facts
of those that are held (claimed_devices). Remembered devices (device_memory) that no answer names are added as
no longer offered.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from exporter.mapping.claimed_devices import NO_CLAIMS, ClaimFacts, ClaimHoldings, with_alternatives
from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.device_memory import RememberedDevice
from exporter.mapping.listing import ListedPods, Nodes, PodPart, nodes_of
from exporter.mapping.model import (
    AdvertisedDevice,
    Container,
    Device,
    DeviceKey,
    Holder,
    PinnedMemory,
    PodKey,
    Snapshot,
)
from kubelet.pb.podresources.v1 import api_pb2

_Advertised = Mapping[DeviceKey, AdvertisedDevice]
_Remembered = Mapping[DeviceKey, RememberedDevice]
_NO_REPORTS: Final[_Advertised] = MappingProxyType({})
_NOTHING: Final[_Remembered] = MappingProxyType({})

T = TypeVar("T")


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
    """What one container holds: device ids by resource, claimed devices and what it asked for them by, CPUs,
    bytes by memory type and nodes.
    """

    ids: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    claimed: Mapping[DeviceKey, str] = field(default_factory=dict[DeviceKey, str])
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
        counts = Counter({resource: len(ids) for resource, ids in self.ids.items()})
        for key, requested_as in self.claimed.items():
            spanned.update(numa.get(key, ()))
            counts[requested_as] += 1
        for _, nodes in self.memory:
            spanned.update(nodes)
        memory = [PinnedMemory(kind, nodes, size) for (kind, nodes), size in sorted(self.memory.items())]
        return Container(
            holder=holder,
            devices=dict(sorted(counts.items())),
            cpu_ids=tuple(sorted(self.cpu_ids)),
            memory=tuple(memory),
            numa_nodes=tuple(sorted(spanned)),
        )


class _Holdings:
    """Collects the holdings of pods."""

    def __init__(
        self, offered: Collection[DeviceKey], numa: dict[DeviceKey, Nodes], facts: ClaimFacts
    ) -> None:
        """The NUMA nodes of a device that is not `offered` are added to `numa` from its holders' entries.
        `facts` are those of claims and their devices.
        """
        self._offered = offered
        self._numa = numa
        self.holders: dict[DeviceKey, set[Holder]] = {}
        self.containers: dict[Holder, _ContainerHoldings] = {}
        self.claims = ClaimHoldings(facts)

    def add(self, pod: api_pb2.PodResources, uid: str) -> None:
        """Add one pod."""
        for container in pod.containers:
            self._add(Holder(pod.namespace, pod.name, container.name, uid), container)

    def _add(self, holder: Holder, listed: api_pb2.ContainerResources) -> None:
        claimed = self.claims.add(holder, listed.dynamic_resources)
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

    def all_containers(
        self, numa: Mapping[DeviceKey, Nodes], cpu_numa: Mapping[int, int]
    ) -> tuple[Container, ...]:
        """The snapshot's containers."""
        for holder, claimed in self.claims.by_holder().items():
            self.containers[holder].claimed = claimed
        found = sorted(self.containers.items(), key=lambda item: item[0])
        return tuple([one.container(holder, numa, cpu_numa) for holder, one in found])


def _add_nodes(numa: dict[DeviceKey, Nodes], key: DeviceKey, nodes: Nodes) -> None:
    known = numa.get(key)
    if not known:
        numa[key] = nodes
    elif nodes and nodes != known:
        numa[key] = tuple(sorted({*known, *nodes}))


class _Inputs(Struct, frozen=True, eq=False):
    """What a snapshot is built of. `offer` are the allocatable devices with their NUMA nodes, `claims` the
    facts of claims and of devices that ResourceSlices name.
    """

    listed: ListedPods
    uids: Mapping[PodKey, str]
    allocatable: api_pb2.AllocatableResourcesResponse | None
    offer: Mapping[DeviceKey, Nodes]
    advertised: _Advertised
    remembered: _Remembered
    claims: ClaimFacts

    @property
    def parts(self) -> Mapping[PodKey, PodPart]:
        """The pods by name, empty if they cannot be recognised."""
        return self.listed.parts or {}

    def same(self, other: "_Inputs") -> bool:
        """Whether these are the very same inputs."""
        return (
            self.listed is other.listed
            and self.allocatable is other.allocatable
            and self.advertised is other.advertised
            and self.remembered is other.remembered
            and self.claims is other.claims
            and self.uids == other.uids
        )


class _Built(Struct, frozen=True, eq=False):
    """A snapshot and its inputs. `positions` are the indexes of devices, empty without parts."""

    snapshot: Snapshot
    inputs: _Inputs
    positions: Mapping[DeviceKey, int]

    def holders(self, key: DeviceKey) -> tuple[Holder, ...]:
        """The holders of a device, which may be none of the snapshot's."""
        index = self.positions.get(key)
        return () if index is None else self.snapshot.devices[index].holders

    def pods(self, key: DeviceKey) -> Iterable[PodKey]:
        """The pods of the holders, and those with a claim for the device."""
        index = self.positions.get(key)
        if index is None:
            return ()
        device = self.snapshot.devices[index]
        through = () if device.claimed is None else device.claimed.through
        return [*[holder[:2] for holder in device.holders], *[one.holder[:2] for one in through]]


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
        claims: ClaimFacts = NO_CLAIMS,
    ) -> Snapshot:
        """Build the snapshot of one List and one GetAllocatableResources answer.

        `allocatable` None: the kubelet does not serve GetAllocatableResources. Every held device then counts
        as allocatable, `remembered` devices are left out, and the snapshot is not `complete`. `pod_uids` are
        the known uids, `advertised` the devices of plugin reports, `claims` the facts of claims and slices.
        """
        uids = {key: (pod_uids or {}).get(key, "") for key in listed.names()}
        last = self._last
        offer = last.inputs.offer if last is not None else {}
        if last is None or allocatable is not last.inputs.allocatable:
            found = _allocatable_nodes(allocatable)
            offer = offer if found == offer else found
        sources = advertised or _NO_REPORTS, remembered or _NOTHING
        inputs = _Inputs(listed, uids, allocatable, offer, *sources, claims)
        if last is not None and inputs.same(last.inputs):
            return last.snapshot
        if last is None or listed.parts is None or last.inputs.listed.parts is None:
            # A second snapshot of a large answer would take too much memory.
            self._last = last = None
        built = None if last is None else self._updated(last, inputs)
        self._last = built or self._built(inputs, last)
        return self._last.snapshot

    def _built(self, inputs: _Inputs, last: _Built | None) -> _Built:
        """Build the whole snapshot; devices that equal those of `last` are taken from there."""
        numa = dict(inputs.offer)
        held = _Holdings(inputs.offer, numa, inputs.claims)
        for pod in inputs.listed.pod_resources:
            held.add(pod, inputs.uids[pod.namespace, pod.name])
        numa |= held.claims.numa_nodes(inputs.claims.published)
        by_plugin = _nodes_by_plugin(inputs.advertised, inputs.advertised, numa)
        numa |= by_plugin
        keys = {
            *inputs.offer,
            *held.holders,
            *inputs.advertised,
            *held.claims.names,
            *inputs.claims.published,
        }
        if inputs.allocatable is not None:
            keys |= inputs.remembered.keys()
        made = {key: self._device(key, inputs, numa, held, held.holders.get(key, ())) for key in sorted(keys)}
        devices = list(with_alternatives(made, inputs.claims).values())
        if last is not None:
            devices = [_same_or(last, device) for device in devices]
        snapshot = Snapshot(
            devices=tuple(devices),
            containers=held.all_containers(numa, self.cpu_numa),
            pods=len(inputs.uids),
            complete=inputs.allocatable is not None,
            numa_by_plugin=frozenset(by_plugin),
            published=inputs.claims.resources,
            held_only=_held_only(devices, inputs.claims.resources),
        )
        return _Built(snapshot, inputs, {} if inputs.listed.parts is None else _positions(devices))

    def _device(
        self,
        key: DeviceKey,
        inputs: _Inputs,
        numa: Mapping[DeviceKey, Nodes],
        held: _Holdings,
        holders: Collection[Holder],
    ) -> Device:
        """The device `key` as the inputs have it, with these holders and those through claims."""
        offered, reported = key in inputs.offer, inputs.advertised.get(key)
        claimed = held.claims.device(key)
        if claimed is not None:
            holders = {*holders, *[one.holder for one in claimed.through if not one.admin]}
        elif not offered and not holders and reported is None:
            one = inputs.remembered[key]
            facts = (key, one.parent, one.numa_nodes)
            since = one.since
            return Device(*facts, allocatable=False, no_longer_offered_since=since, claimed=one.claimed)
        parent = self._reader(key.device, key.resource).parent or (
            "" if reported is None else reported.parent
        )
        allocatable = offered or inputs.allocatable is None
        if claimed is not None:
            parent = inputs.claims.parent(claimed) or parent
            # Only a claim for administration names a device that its driver no longer publishes.
            gone = (
                not holders
                and claimed.published is None
                and claimed.name.driver in inputs.claims.view.drivers
            )
            allocatable = not claimed.taints and not gone
        return Device(key, parent, numa.get(key, ()), allocatable, tuple(sorted(holders)), claimed=claimed)

    def _updated(self, last: _Built, now: _Inputs) -> _Built | None:
        """Update the last snapshot by what changed. None if a whole build is needed or faster."""
        was, old = last.inputs, last.snapshot
        if (now.allocatable is None) is old.complete or not _placed_alike(now.advertised, was.advertised):
            return None
        if not now.claims.names_alike(was.claims) or now.claims.view.drivers != was.claims.view.drivers:
            return None
        moved = _differing(now.offer, was.offer) | _differing(now.remembered, was.remembered)
        moved |= now.claims.published_otherwise(was.claims, last.positions)
        moved |= now.claims.siblings(moved) | was.claims.siblings(moved)
        changed = _affected_pods(last, now, moved)
        if 2 * len(changed) > len(now.parts) or 2 * len(moved) > len(old.devices):
            return None
        if not changed and not moved and now.claims.resources == was.claims.resources:
            return _Built(old, now, last.positions)
        touched = moved | _device_keys(changed, was.parts, now.parts, now.claims)
        touched |= now.claims.siblings(touched)
        numa = {key: now.offer[key] for key in touched if key in now.offer}
        held = _Holdings(now.offer, numa, now.claims)
        for name in changed & now.parts.keys():
            held.add(now.parts[name].message, now.uids[name])
        numa |= held.claims.numa_nodes(touched)
        by_plugin = _nodes_by_plugin(touched, now.advertised, numa)
        numa |= by_plugin
        devices: dict[DeviceKey, Device] = {}
        for key in touched:
            lasting = {holder for holder in last.holders(key) if holder[:2] not in changed}
            holders = lasting | held.holders.get(key, set())
            remembered = now.allocatable is not None and key in now.remembered
            claimed = key in held.claims.names or key in now.claims.published
            if holders or remembered or claimed or key in now.offer or key in now.advertised:
                devices[key] = self._device(key, now, numa, held, holders)
        devices = {
            key: _same_or(last, device) for key, device in with_alternatives(devices, now.claims).items()
        }
        containers = [one for one in old.containers if one.holder[:2] not in changed]
        containers += held.all_containers(numa, self.cpu_numa)
        containers.sort(key=lambda one: one.holder)
        numa_by_plugin = (old.numa_by_plugin - touched) | by_plugin.keys()
        rest = Snapshot(
            (),
            tuple(containers),
            len(now.parts),
            old.complete,
            numa_by_plugin,
            published=now.claims.resources,
            held_only=old.held_only,
        )
        built = _following(last, now, touched, devices, rest)
        if (
            old.held_only
            or now.claims.resources != was.claims.resources
            or any(one.claimed for one in devices.values())
        ):
            held_only = _held_only(built.snapshot.devices, now.claims.resources)
            force_setattr(built.snapshot, "held_only", held_only)
        return built


def _following(
    last: _Built,
    now: _Inputs,
    touched: Collection[DeviceKey],
    devices: Mapping[DeviceKey, Device],
    rest: Snapshot,
) -> _Built:
    """The snapshot after `last` that has `devices` of those `touched`, and everything else of `rest`."""
    old, positions = last.snapshot, last.positions
    if len(devices) == len(touched) and devices.keys() <= positions.keys():
        others = {
            positions[key]: one for key, one in devices.items() if one is not old.devices[positions[key]]
        }
        return _Built(old.with_devices(others, rest), now, positions)
    kept = [device for device in old.devices if device.key not in touched]
    found = sorted([*kept, *devices.values()], key=_key)
    return _Built(replace(rest, devices=tuple(found)), now, _positions(found))


def _positions(devices: Iterable[Device]) -> Mapping[DeviceKey, int]:
    return {device.key: index for index, device in enumerate(devices)}


def _same_or(last: _Built, device: Device) -> Device:
    """The last snapshot's object if it is equal."""
    index = last.positions.get(device.key)
    before = None if index is None else last.snapshot.devices[index]
    return before if before is not None and before == device else device


def _affected_pods(last: _Built, now: _Inputs, moved: Collection[DeviceKey]) -> set[PodKey]:
    """The pods that changed, and those that hold a device of which more than the holders may change: one that
    `moved`, and one that is not offered, whose NUMA nodes depend on all its holders.
    """
    before, parts, uids = last.inputs.parts, now.parts, last.inputs.uids
    changed = {
        key for key, part in parts.items() if part is not before.get(key) or now.uids[key] != uids[key]
    }
    changed |= before.keys() - parts.keys()
    changed |= now.claims.pods_that_differ(last.inputs.claims, parts)
    more = {pod for key in moved for pod in last.pods(key)} | changed
    while more and 2 * len(changed) <= len(parts):
        changed |= more
        loose = _device_keys(more, before, parts, now.claims) - now.offer.keys()
        loose |= now.claims.siblings(loose)
        more = {pod for key in loose for pod in last.pods(key)} - changed
    return changed


def _differing(now: Mapping[DeviceKey, T], before: Mapping[DeviceKey, T]) -> set[DeviceKey]:
    """The keys that are in one of the two alone, or have another value."""
    return set() if now is before else {key for key, _ in now.items() ^ before.items()}


def _nodes_by_plugin(
    keys: Iterable[DeviceKey], advertised: _Advertised, numa: Mapping[DeviceKey, Nodes]
) -> dict[DeviceKey, Nodes]:
    """The NUMA nodes that plugins report of devices without any."""
    found = [(key, advertised[key].numa_nodes) for key in keys if key in advertised]
    return {key: nodes for key, nodes in found if nodes and not numa.get(key)}


def _held_only(devices: Iterable[Device], published: Collection[str]) -> frozenset[str]:
    """The resources of claimed devices that no ResourceSlice names."""
    return frozenset({one.key.resource for one in devices if one.claimed is not None} - set(published))


def _allocatable_nodes(
    allocatable: api_pb2.AllocatableResourcesResponse | None,
) -> dict[DeviceKey, Nodes]:
    """Each allocatable device with its NUMA nodes."""
    numa: dict[DeviceKey, Nodes] = {}
    for entry in allocatable.devices if allocatable is not None else ():
        resource, nodes = entry.resource_name, nodes_of(entry.topology)
        for device_id in entry.device_ids:
            key = DeviceKey(resource, device_id)
            if numa.setdefault(key, nodes) is not nodes:
                _add_nodes(numa, key, nodes)
    return numa


def _placed_alike(now: _Advertised, before: _Advertised) -> bool:
    """Whether a snapshot takes the same from these reports: devices, their parents and NUMA nodes."""
    if now is before:
        return True
    if len(now) != len(before):
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


def _device_keys(
    names: Iterable[PodKey],
    before: Mapping[PodKey, PodPart],
    now: Mapping[PodKey, PodPart],
    facts: ClaimFacts,
) -> set[DeviceKey]:
    """The devices that pods of these names hold in either of the listings."""
    found: set[DeviceKey] = set()
    for part in [parts[name] for name in names for parts in (before, now) if name in parts]:
        for container in part.message.containers:
            for entry in container.devices:
                found.update([DeviceKey(entry.resource_name, device) for device in entry.device_ids])
            if part.claims:
                found.update(facts.keys(container.dynamic_resources))
    return found
