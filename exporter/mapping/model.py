"""Data of a snapshot: which devices a node has, which containers hold them, and what device plugins report.

Everything is sorted by key, so two answers with the same content give equal snapshots whatever their order.
Keys are named tuples: a refresh hashes and sorts thousands of them, and a tuple's own hash and order are
several times faster than a Struct's.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress, count, groupby
from operator import is_not
from types import MappingProxyType
from typing import Final, NamedTuple
from weakref import ReferenceType, ref

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from exporter.mapping.dra import CdiDevice, ClaimName, PublishedDevice, PublishedName, Taint


class DeviceKey(NamedTuple):
    """A device's name on this node. Ids are unique within a resource only."""

    resource: str
    device: str


PodKey = tuple[str, str]
"""A pod's namespace and name: all that the kubelet's List contains of a pod's identity."""


class Holder(NamedTuple):
    """A container that holds a device. `pod_uid` is empty while the uid is unknown or not proven."""

    namespace: str
    pod: str
    container: str
    pod_uid: str = ""


class ClaimHolding(NamedTuple):
    """A container that has a device through a ResourceClaim (DRA).

    `share_id` is "" unless the device is shared by capacity. `request` is the claim's request without its
    subrequest, `requested_as` the extended resource that the container asked for, else the DeviceClass of the
    request; both are "" while the claim is not known. `admin`: the claim is for administration, which is not
    holding; None while the claim is not known.
    """

    holder: Holder
    claim_namespace: str
    claim: str
    share_id: str = ""
    request: str = ""
    requested_as: str = ""
    admin: bool | None = None

    @property
    def sure(self) -> bool:
        """Whether this is known to be holding. Kubernetes: a claim that serves an extended resource is never
        for administration, and no other one is known without the claim.
        """
        return self.admin is False or (self.admin is None and bool(self.requested_as))


def by_claim(one: ClaimHolding) -> tuple[object, ...]:
    """Sort key of the claims of one device."""
    return one[:4]


class Claimed(Struct, frozen=True):
    """What DRA says about a device: its names there, its ResourceSlice's facts, None while no slice has it,
    the names of its CDI devices, sorted, and through which claims containers have it, sorted.

    `cdi` is what the CDI specifications of the names say that no other device bears. `shared_cdi` are the
    names that several devices of one claim bear, with their number. `reserved` are the claims that the device
    is allocated by and that no listed container uses.
    """

    name: PublishedName
    published: PublishedDevice | None = None
    cdi_devices: tuple[str, ...] = ()
    cdi: CdiDevice | None = None
    through: tuple[ClaimHolding, ...] = ()
    shared_cdi: tuple[tuple[str, int], ...] = ()
    reserved: tuple[ClaimName, ...] = ()

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints that keep pods away from the device."""
        return () if self.published is None else tuple([one for one in self.published.taints if one.repels])

    @property
    def shareable(self) -> bool:
        """Whether several claims may hold the device."""
        return self.published is not None and self.published.shareable


class Device(Struct, frozen=True):
    """One device that is allocatable, held, reported by its plugin, published by its DRA driver, or no longer
    offered.

    `parent` is the physical device behind a replica or a slice, "" for a whole device. `numa_nodes` is
    sorted, empty if unknown. `allocatable`: the kubelet counts the device as allocatable, whether it is held
    or free; for a claimed device: no taint keeps pods away, as far as slices are known. `holders` is sorted,
    empty for a free device.

    `no_longer_offered_since` is None unless no answer names the device any more (device_memory): the unix
    time from which the kubelet has not offered it.

    `claimed` is None for a device of a plugin. `alternative`: another partition of the same physical device
    counts in its place.
    """

    key: DeviceKey
    parent: str = ""
    numa_nodes: tuple[int, ...] = ()
    allocatable: bool = True
    holders: tuple[Holder, ...] = ()
    no_longer_offered_since: float | None = None
    claimed: Claimed | None = None
    alternative: bool = False

    @property
    def reserved(self) -> tuple[ClaimName, ...]:
        """The claims that the device is allocated by and that no listed container uses."""
        return () if self.claimed is None else self.claimed.reserved

    @property
    def surely_held(self) -> bool:
        """Whether the device is known to be held, and not only by claims that may be for administration."""
        if self.claimed is None:
            return bool(self.holders)
        return any(one.sure for one in self.claimed.through)

    def requested_as(self, holder: Holder) -> str:
        """What `holder` asked by: the resource; for a claimed device the extended resource, else the
        DeviceClass, else "".
        """
        if self.claimed is None:
            return self.key.resource
        found = [one.requested_as for one in self.claimed.through if one.holder == holder and not one.admin]
        return next(filter(None, found), "")


class PinnedMemory(NamedTuple):
    """Memory that the static memory manager gave to a container: bytes of one type on some NUMA nodes."""

    memory_type: str
    numa_nodes: tuple[int, ...]
    size_bytes: int


class Container(Struct, frozen=True):
    """A container that holds devices, claimed devices, exclusive CPUs or pinned memory.

    `devices` counts devices by what the container asked for: the resource, the extended resource or the
    DeviceClass that a claim serves, the driver where that is not known. `numa_nodes` are the known nodes of
    its devices, CPUs and memory.
    """

    holder: Holder
    devices: Mapping[str, int] = field(default_factory=dict[str, int])
    cpu_ids: tuple[int, ...] = ()
    memory: tuple[PinnedMemory, ...] = ()
    numa_nodes: tuple[int, ...] = ()


class ResourceCounts(Struct, frozen=True):
    """Counts of one resource's devices, without `alternatives`, which are counted apart.

    `allocated` = held; `unhealthy` = known but not allocatable, held or not, and those that a pod's status
    calls unhealthy (DeviceStatuses.ill); `free` = allocatable, without a holder, and not reserved.
    `allocated`, `free` and `unavailable` exclude each other; their sum is `known`. `reserved` = allocatable,
    without a holder, and reserved.
    """

    known: int
    allocatable: int
    allocated: int
    unhealthy: int
    free: int
    alternatives: int = 0
    reserved: int = 0

    @property
    def unavailable(self) -> int:
        """Devices that are neither held nor free."""
        return self.known - self.allocated - self.free

    @property
    def held_unhealthy(self) -> int:
        """Held devices that are unhealthy."""
        return self.unhealthy - (self.unavailable - self.reserved)


class Doubt(Struct, frozen=True):
    """Why a pod that the kubelet has not listed since its restart may still hold its devices.

    `since` is the restart and `until` the latest end of the doubt, both unix times.
    """

    why: str
    since: float
    until: float


class Snapshot(Struct, frozen=True, dict=True, weakref=True):
    """The devices of a node and their holders at one moment.

    `complete` is False if the kubelet does not serve GetAllocatableResources: then only held devices are
    known, and their health is not. `numa_by_plugin` are the devices whose NUMA nodes come from their plugin
    and not from the kubelet. `unconfirmed` are the pods whose holdings are carried over from before a kubelet
    restart: the kubelet has not listed them since (exporter.mapping.carried). Of the resources in `published`
    ResourceSlices name all devices, of those in `held_only` only devices that a pod holds are known.
    """

    devices: tuple[Device, ...] = ()
    containers: tuple[Container, ...] = ()
    pods: int = 0
    complete: bool = True
    numa_by_plugin: frozenset[DeviceKey] = frozenset()
    unconfirmed: Mapping[PodKey, Doubt] = field(
        default_factory=lambda: MappingProxyType(dict[PodKey, Doubt]())
    )
    published: frozenset[str] = frozenset()
    held_only: frozenset[str] = frozenset()

    def knows_all(self, resource: str) -> bool:
        """Whether the free devices of a resource are known, and with them its counts."""
        return resource in self.published or (self.complete and resource not in self.held_only)

    def is_free(self, device: Device) -> bool | None:
        """Whether a pod can get `device`, which no pod holds; None where only held devices are known."""
        if not self.knows_all(device.key.resource):
            return None
        return device.allocatable and not (device.holders or device.alternative or device.reserved)

    def with_devices(self, changed: Mapping[int, Device], rest: "Snapshot") -> "Snapshot":
        """`rest` with the devices of this snapshot, of which those at some indexes `changed`, but not their
        keys. The work is proportional to what changed.
        """
        devices = list(self.devices)
        for index, device in changed.items():
            devices[index] = device
        found = replace(rest, devices=tuple(devices))
        pairs = [(self.devices[index], device) for index, device in changed.items()]
        force_setattr(found, "_compared", (ref(self), sorted(changed)))
        force_setattr(found, "_counts", _recounted(self._counts, pairs))
        return found

    def doubt(self, holder: Holder) -> Doubt | None:
        """Why what `holder` holds is not confirmed; None if it is."""
        return self.unconfirmed.get(holder[:2])

    def unconfirmed_owners(self) -> list[tuple[Device, Holder]]:
        """The devices of unconfirmed pods, each with its holder."""
        if not self.unconfirmed:
            return []
        return [(one, holder) for one in self.devices for holder in one.holders if self.doubt(holder)]

    def resources(self) -> Mapping[str, ResourceCounts]:
        """Counts of each resource, by name."""
        return self._counts

    @cached_property
    def held_unhealthy(self) -> frozenset[DeviceKey]:
        """The held devices of plugins that are not allocatable."""
        unhealthy = [device for device in self.devices if not device.allocatable]
        return frozenset([device.key for device in unhealthy if device.holders and device.claimed is None])

    def changed_at(self, old: "Snapshot") -> Sequence[int] | None:
        """The indexes of the devices that may differ, compared by identity: a snapshot shares unchanged
        Device objects with the one before. None if the set of devices differs.
        """
        compared = self._compared
        if compared is None or compared[0]() is not old:
            compared = ref(old), _changed_at(old.devices, self.devices)
            force_setattr(self, "_compared", compared)
        return compared[1]

    def changed_since(self, old: "Snapshot") -> list[tuple[Device, Device]] | None:
        """Pairs (old, new) of the devices at `changed_at`."""
        indexes = self.changed_at(old)
        return None if indexes is None else [(old.devices[i], self.devices[i]) for i in indexes]

    @cached_property
    def _compared(self) -> tuple[ReferenceType["Snapshot"], Sequence[int] | None] | None:
        # The snapshot that this one was compared with last, and the result: all steps of a refresh need it.
        return None

    @cached_property
    def _counts(self) -> Mapping[str, ResourceCounts]:
        # Several families, the page and the API read the counts.
        return {
            resource: _counted(group)
            for resource, group in groupby(self.devices, key=lambda device: device.key[0])
        }


def _changed_at(old: Sequence[Device], new: Sequence[Device]) -> Sequence[int] | None:
    if len(old) != len(new):
        return None
    indexes = list(compress(count(), map(is_not, old, new)))
    return indexes if all(old[i].key == new[i].key for i in indexes) else None


def _recounted(
    counts: Mapping[str, ResourceCounts], pairs: Iterable[tuple[Device, Device]]
) -> Mapping[str, ResourceCounts]:
    """`counts` after devices changed from old to new."""
    found = dict(counts)
    for was, now in pairs:
        before, one, other = found[now.key.resource], _counted([was]), _counted([now])
        found[now.key.resource] = replace(
            before,
            known=before.known - one.known + other.known,
            allocatable=before.allocatable - one.allocatable + other.allocatable,
            allocated=before.allocated - one.allocated + other.allocated,
            unhealthy=before.unhealthy - one.unhealthy + other.unhealthy,
            free=before.free - one.free + other.free,
            alternatives=before.alternatives - one.alternatives + other.alternatives,
            reserved=before.reserved - one.reserved + other.reserved,
        )
    return found


def _counted(devices: Iterable[Device]) -> ResourceCounts:
    every = list(devices)
    devices = [device for device in every if not device.alternative]
    allocatable = [device.allocatable for device in devices].count(True)
    unheld = [device for device in devices if not device.holders]
    spare = [bool(device.reserved) for device in unheld if device.allocatable]
    return ResourceCounts(
        known=len(devices),
        allocatable=allocatable,
        allocated=len(devices) - len(unheld),
        unhealthy=len(devices) - allocatable,
        free=spare.count(False),
        alternatives=len(every) - len(devices),
        reserved=spare.count(True),
    )


class Anomaly(Struct, frozen=True):
    """One anomaly: its `kind` (docs/messages.md), the resource and device, the holder it affects, and the
    evidence in words. `device` is "" and `holder` None if it concerns a whole resource or no pod.

    `since` is the unix time at which it was first found. `devices`, `pods` and the `numa_nodes` that could
    have served are the facts behind the words.
    """

    kind: str
    resource: str
    device: str = ""
    holder: Holder | None = None
    evidence: str = ""
    since: float | None = None
    devices: tuple[str, ...] = ()
    pods: tuple[PodKey, ...] = ()
    numa_nodes: tuple[int, ...] = ()


FORGOTTEN_AFTER: Final = 300.0
"""Seconds for which the last report of a silent plugin is kept.

kubelet: an endpoint whose ListAndWatch stream ended is kept for five minutes, then its devices are dropped.
"""


class AdvertisedDevice(Struct, frozen=True):
    """One device as its plugin reports it.

    `reason` says why it is unhealthy, "" if healthy or not given. `since` is the unix time of its last change
    of health, `last_allocated` that of the last Allocate that returned it; None if not reported. `attributes`
    are sorted by name. `parent` is the device that this one is a share of, "" if none.
    """

    healthy: bool
    reason: str = ""
    since: float | None = None
    numa_nodes: tuple[int, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    last_allocated: float | None = None
    parent: str = ""


class AdvertisedResource(Struct, frozen=True):
    """One resource of a plugin: whether the kubelet accepted its registration, and the number of open
    ListAndWatch streams.
    """

    registered: bool
    streams: int
    devices: Mapping[str, AdvertisedDevice]

    @property
    def served(self) -> bool:
        """Whether the kubelet watches this plugin."""
        return self.registered and self.streams > 0


class PluginReport(Struct, frozen=True):
    """The last report of one plugin.

    `source` is the plugin's address. `received_at` is the unix time at which this content first arrived, None
    before the first report. `problem` says why the plugin does not answer at present, "" while it does; its
    last answer came at `silent_since`.
    """

    source: str
    resources: Mapping[str, AdvertisedResource] = field(
        default_factory=lambda: MappingProxyType(dict[str, AdvertisedResource]())
    )
    received_at: float | None = None
    problem: str = ""
    silent_since: float | None = None

    @property
    def answers(self) -> bool:
        """Whether the report is current."""
        return self.received_at is not None and not self.problem


class ResourceReport(Struct, frozen=True):
    """One resource as a plugin reports it, and the whole report."""

    resource: AdvertisedResource
    report: PluginReport


class PluginReports(Struct, frozen=True):
    """The reports of all plugins, and their devices and resources together. Immutable.

    The kubelet decides what is allocatable. A report adds devices that the kubelet does not name (free and
    unhealthy), why a device is unhealthy, its attributes, and when it was last allocated.
    """

    reports: tuple[PluginReport, ...] = ()
    devices: Mapping[DeviceKey, AdvertisedDevice] = field(
        default_factory=lambda: MappingProxyType(dict[DeviceKey, AdvertisedDevice]())
    )
    resources: Mapping[str, ResourceReport] = field(
        default_factory=lambda: MappingProxyType(dict[str, ResourceReport]())
    )

    def answers(self, resource: str) -> bool:
        """Whether a plugin reports this resource at present."""
        found = self.resources.get(resource)
        return found is not None and found.report.answers

    def serves(self, resource: str) -> bool:
        """Whether a plugin reports at present that the kubelet watches it for this resource."""
        found = self.resources.get(resource)
        return found is not None and found.report.answers and found.resource.served


NO_REPORTS: Final = PluginReports()
"""No plugin is polled."""


def merge_reports(reports: Iterable[PluginReport]) -> PluginReports:
    """Merge reports. If several plugins report a resource, as while one process takes over from another, the
    one that answers and that the kubelet watches wins; among equals the first.
    """
    kept = tuple(reports)
    resources: dict[str, ResourceReport] = {}
    for report in kept:
        for name, resource in report.resources.items():
            found, before = ResourceReport(resource, report), resources.get(name)
            if before is None or _rank(found) > _rank(before):
                resources[name] = found
    devices = {
        DeviceKey(name, device): advertised
        for name, found in resources.items()
        for device, advertised in found.resource.devices.items()
    }
    return PluginReports(kept, MappingProxyType(devices), MappingProxyType(resources))


def _rank(found: ResourceReport) -> tuple[bool, bool, bool]:
    return found.report.answers, found.resource.served, found.resource.registered
