"""The snapshot's data: what the kubelet said at one moment, sorted and without repetition.

Keys are named tuples: they are hashed and sorted by the thousand at each refresh, and a tuple's own
hash and order are several times quicker than a dataclass's.

What device plugins themselves tell of their devices (their /api/v1/devices), put together.

The kubelet's word wins wherever it has one: what is allocatable it knows, for it is the one that gives
devices out. A plugin adds that a device exists which the kubelet does not name (nobody holds it, and it is
not healthy), why it is not healthy, what it is, and when it was last given out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from types import MappingProxyType
from typing import Final, NamedTuple


class DeviceKey(NamedTuple):
    """A device's name on this node: ids are unique within a resource only."""

    resource: str
    device: str


PodKey = tuple[str, str]
"""A pod's namespace and name: all that the kubelet's List calls it by."""


class Holder(NamedTuple):
    """A container of a pod. `pod_uid` is empty where nothing tells it, and while it is in doubt."""

    namespace: str
    pod: str
    container: str
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """One device that is allocatable or held, or that its plugin tells of.

    `parent` is the physical device behind a replica or a slice, "" for a whole device. `numa_nodes`
    is sorted, and empty where nothing tells. `allocatable` means that the kubelet would hand it out
    (or has): its plugin is there and says Healthy. `holders` is sorted, and empty when it is free.
    """

    key: DeviceKey
    parent: str = ""
    numa_nodes: tuple[int, ...] = ()
    allocatable: bool = True
    holders: tuple[Holder, ...] = ()


class ClaimDeviceKey(NamedTuple):
    """A device given through a ResourceClaim (DRA). `share_id` is "" unless it is shared by capacity."""

    driver: str
    pool: str
    device: str
    share_id: str = ""


class ClaimedKey(NamedTuple):
    """A claimed device as it is held: through one claim. It may be held through several."""

    driver: str
    pool: str
    device: str
    share_id: str
    claim_namespace: str
    claim: str


HeldKey = DeviceKey | ClaimedKey
"""What a holder holds. Flat texts of different number: they sort together, and are never equal."""


class ClaimHolder(NamedTuple):
    """A container, and the claim through which it holds a device."""

    holder: Holder
    claim_namespace: str
    claim: str


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One claimed device with all its holders, and the names of its CDI devices."""

    key: ClaimDeviceKey
    holders: tuple[ClaimHolder, ...]
    cdi_devices: tuple[str, ...] = ()

    def held(self, through: ClaimHolder) -> ClaimedKey:
        """What one of its holders holds."""
        return ClaimedKey(*self.key, through.claim_namespace, through.claim)


class PinnedMemory(NamedTuple):
    """Memory given to one container by the static memory manager: bytes of one type on some NUMA nodes."""

    memory_type: str
    numa_nodes: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Container:
    """A container that holds something: devices, claimed devices, exclusive CPUs or pinned memory.

    `numa_nodes` are those that its devices, CPUs and memory span, as far as they are known.
    """

    holder: Holder
    devices: Mapping[str, int] = field(default_factory=dict[str, int])
    cpu_ids: tuple[int, ...] = ()
    memory: tuple[PinnedMemory, ...] = ()
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceCounts:
    """One resource's devices: `known` = allocatable or held; `unhealthy` = known but not allocatable."""

    known: int
    allocatable: int
    allocated: int
    unhealthy: int
    free: int
    """Allocatable and without holder."""


@dataclass(frozen=True)
class Snapshot:
    """What the kubelet said at one moment.

    Everything is sorted by key, so that two answers that say the same are equal whatever their order.
    `complete` is False where the kubelet cannot tell what is allocatable (UNIMPLEMENTED, old kubelets):
    then only held devices are known, and nothing can be said of their health. `numa_by_plugin` are the
    devices whose NUMA nodes their plugin tells, and not the kubelet.
    """

    devices: tuple[Device, ...] = ()
    claims: tuple[ClaimDevice, ...] = ()
    containers: tuple[Container, ...] = ()
    pods: int = 0
    complete: bool = True
    numa_by_plugin: frozenset[DeviceKey] = frozenset()

    def resources(self) -> Mapping[str, ResourceCounts]:
        """Counts of each resource, by name."""
        return self._counts

    @cached_property
    def held_unhealthy(self) -> frozenset[DeviceKey]:
        """The devices that somebody holds and that are not allocatable."""
        ill = [device for device in self.devices if not device.allocatable]
        return frozenset([device.key for device in ill if device.holders])

    def changed_since(self, old: "Snapshot") -> list[tuple[Device, Device]] | None:
        """Each device that may be another than in `old`, as it was and as it is; by identity, so that it
        takes no time. None where there are other devices, or others may have changed.
        """
        if len(old.devices) != len(self.devices):
            return None
        pairs = [(was, now) for was, now in zip(old.devices, self.devices, strict=True) if was is not now]
        return pairs if all(was.key == now.key for was, now in pairs) else None

    @cached_property
    def _counts(self) -> Mapping[str, ResourceCounts]:
        # Several families, the page and the API ask: counted once. It is why there are no slots here.
        tallies: dict[str, list[int]] = {}
        for resource, group in groupby(self.devices, key=lambda device: device.key[0]):
            tally = tallies.setdefault(resource, [0, 0, 0, 0])
            devices = list(group)
            well = [device.allocatable for device in devices]
            free = [device.allocatable for device in devices if not device.holders]
            tally[0] += len(devices)
            tally[1] += well.count(True)
            tally[2] += len(devices) - len(free)
            tally[3] += free.count(True)
        return {
            resource: ResourceCounts(
                known=known,
                allocatable=allocatable,
                allocated=allocated,
                unhealthy=known - allocatable,
                free=free,
            )
            for resource, (known, allocatable, allocated, free) in sorted(tallies.items())
        }


FORGOTTEN_AFTER: Final = 300.0
"""Seconds for which the last word of a plugin that answers no more is kept.

kubelet: a plugin whose stream ended keeps its place for five minutes, then its devices are forgotten.
"""


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """One device as its plugin tells of it.

    `reason` says why it is not healthy ("" where it is, or where nothing is said), `since` the unix time of
    its last change of health, `last_allocated` that of the last Allocate that gave it out; None: not told.
    `attributes` are sorted by name. `parent` is the device that this one is a share of, "" where it is
    none or nothing is said.
    """

    healthy: bool
    reason: str = ""
    since: float | None = None
    numa_nodes: tuple[int, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    last_allocated: float | None = None
    parent: str = ""


@dataclass(frozen=True, slots=True)
class AdvertisedResource:
    """One resource of a plugin: whether the kubelet took its registration, and how many ListAndWatch
    streams are open.
    """

    registered: bool
    streams: int
    devices: Mapping[str, AdvertisedDevice]

    @property
    def served(self) -> bool:
        """Whether the kubelet follows this plugin."""
        return self.registered and self.streams > 0


@dataclass(frozen=True, slots=True)
class PluginReport:
    """What one plugin told.

    `source` is its address; `received_at` is the unix time of the first answer with this content, None
    before the first answer. `problem` says why it does not answer at present, "" while it does; it was last
    heard at `silent_since`.
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
        """Whether this is its present word."""
        return self.received_at is not None and not self.problem


@dataclass(frozen=True, slots=True)
class ResourceReport:
    """Who tells of a resource: the resource as that plugin has it, and its report."""

    resource: AdvertisedResource
    report: PluginReport


@dataclass(frozen=True, slots=True)
class PluginReports:
    """What all plugins told. Replaced as a whole, never changed."""

    reports: tuple[PluginReport, ...] = ()
    devices: Mapping[DeviceKey, AdvertisedDevice] = field(
        default_factory=lambda: MappingProxyType(dict[DeviceKey, AdvertisedDevice]())
    )
    resources: Mapping[str, ResourceReport] = field(
        default_factory=lambda: MappingProxyType(dict[str, ResourceReport]())
    )

    def answers(self, resource: str) -> bool:
        """Whether a plugin tells of this resource at present."""
        word = self.resources.get(resource)
        return word is not None and word.report.answers

    def serves(self, resource: str) -> bool:
        """Whether a plugin says at present that the kubelet follows it for this resource."""
        word = self.resources.get(resource)
        return word is not None and word.report.answers and word.resource.served


NO_REPORTS: Final = PluginReports()
"""Of a node whose plugins are not asked."""


def merge_reports(reports: Iterable[PluginReport]) -> PluginReports:
    """What all of `reports` say together.

    A resource that several tell of (one process takes over from another) is as the one says that answers
    and that the kubelet follows; among equals, as the first says.
    """
    kept = tuple(reports)
    resources: dict[str, ResourceReport] = {}
    for report in kept:
        for name, resource in report.resources.items():
            before = resources.get(name)
            if before is None or _weight(ResourceReport(resource, report)) > _weight(before):
                resources[name] = ResourceReport(resource, report)
    devices = {
        DeviceKey(name, device): told
        for name, word in resources.items()
        for device, told in word.resource.devices.items()
    }
    return PluginReports(kept, MappingProxyType(devices), MappingProxyType(resources))


def _weight(word: ResourceReport) -> tuple[bool, bool, bool]:
    return word.report.answers, word.resource.served, word.resource.registered
