"""The families of the mapping: what each has of a device, a container, a pod, a resource, or an anomaly.

Names, labels and meanings are a contract (docs/metrics.md). Every family of the mapping is a gauge with the
label `node`, so its text is the same in both formats. The labels `namespace`, `pod` and `container` are the
holder's.

MappingFamilies writes the families of one state after the other. It keeps the blocks of everything that did
not change (runtime.blocks).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import Anomaly, Container, Holder, ResourceCounts, Snapshot
from exporter.mapping.state import State
from exporter.metrics.series_limit import SeriesGroup, SeriesPlan, anomaly_part
from runtime.blocks import Block, block, runs
from runtime.exposition import Family, ItemFamily, Kind, gauge

_HOLDER: Final = ("namespace", "pod", "container")
_RUN: Final = 16
"""Pods of a block, on average. A pod has many lines."""

T = TypeVar("T")


class Described(NamedTuple):
    """A family of the mapping: its name without `devicelens_`, HELP, labels besides `node`."""

    name: str
    text: str
    labels: Sequence[str]

    def of(self, node: str, add: Callable[[Family, T], None]) -> ItemFamily[T]:
        """The family on `node`. `add` adds the samples of one item."""
        constant = {"node": node}
        new = partial(Family, Kind.GAUGE, f"devicelens_{self.name}", self.text, self.labels, constant)
        return ItemFamily(new, add)


def _names(holder: Holder) -> tuple[str, str, str]:
    return holder.namespace, holder.pod, holder.container


def numa(nodes: Sequence[int]) -> str:
    """NUMA nodes as a label: "0", "0,1", or "" if unknown."""
    return ",".join([str(node) for node in nodes])


def _info(family: Family, status: DeviceStatus) -> None:
    device = status.device
    family.add((*device.key, device.parent, numa(device.numa_nodes)), 1)


def _identity(family: Family, status: DeviceStatus) -> None:
    if status.identity is not None:
        family.add((*status.device.key, *status.identity), 1)


def _owners(family: Family, status: DeviceStatus) -> None:
    device = status.device
    for one in status.holders:
        family.add((*device.key, one.choice.parent(device), *one.holder, one.requested_as), 1)


def _healthy(family: Family, status: DeviceStatus) -> None:
    if status.healthy is not None:
        family.add(status.device.key, int(status.healthy))


def _held_since(family: Family, status: DeviceStatus) -> None:
    for one in status.holders:
        if one.since is not None:
            family.add((*status.device.key, *_names(one.holder)), one.since.at)


def _unprovable(family: Family, status: DeviceStatus) -> None:
    for one in status.holders:
        if one.choice.doubt:
            family.add((*status.device.key, *_names(one.holder)), 1)


def _unconfirmed(family: Family, status: DeviceStatus) -> None:
    for one in status.holders:
        if one.doubt is not None:
            family.add((*status.device.key, *_names(one.holder)), 1)


_OF_DEVICES: Final = (
    (
        Described(
            "device_info",
            "A device that is allocatable, held, known from its plugin or its ResourceSlice, or no longer "
            "offered (1); parent is the physical device behind a share or slice. [STABLE]",
            ("resource", "device", "parent", "numa_node"),
        ),
        _info,
    ),
    (
        Described(
            "device_identity_info",
            "The UUID, PCI address, model and driver of a device (1), each empty if unknown. Shares and "
            "slices have the PCI address of their physical device; driver is the DRA driver of a claimed "
            "device, else the kernel's. [ALPHA]",
            ("resource", "device", "uuid", "pci_address", "model", "driver"),
        ),
        _identity,
    ),
    (
        Described(
            "device_owner_info",
            "A container that holds a device (1); a shared device has several, a free one none. requested_as "
            "is what the container asked by: the resource, or the extended resource or DeviceClass that a "
            "claim serves; empty if unknown. parent is the one that another scheduler chose for the pod, if "
            "any. [STABLE]",
            ("resource", "device", "parent", *_HOLDER, "pod_uid", "requested_as"),
        ),
        _owners,
    ),
    (
        Described(
            "device_healthy",
            "Whether the device is healthy: 1, or 0 when the kubelet or a driver does not offer it, its "
            "pod's status calls it unhealthy, or a taint keeps pods away. No series while nothing reports "
            "its health. [STABLE]",
            ("resource", "device"),
        ),
        _healthy,
    ),
    (
        Described(
            "device_held_since_timestamp_seconds",
            "When this holder of the device was first seen, in unix time. [STABLE]",
            ("resource", "device", *_HOLDER),
        ),
        _held_since,
    ),
)
OWNER_UNCONFIRMED: Final = Described(
    "device_owner_unconfirmed",
    "A container that held the device before the kubelet restarted (1 until the kubelet lists its pod "
    "or another holder). [ALPHA]",
    ("resource", "device", *_HOLDER),
)
OWNER_UNPROVABLE: Final = Described(
    "device_owner_unprovable",
    "A container that holds the device, while another scheduler (HAMi, Volcano) chose its physical device, "
    "which cannot be matched (1). [ALPHA]",
    ("resource", "device", *_HOLDER),
)


class _Resource(NamedTuple):
    """The counts of a resource; `complete`: its free devices are known; `dropped` series."""

    name: str
    counts: ResourceCounts
    complete: bool
    dropped: int


def _counting(
    value: Callable[[ResourceCounts], int], *, of_health: bool = False
) -> Callable[[Family, _Resource], None]:
    """A number for each resource; `of_health`: none where only held devices are known."""

    def add(family: Family, resource: _Resource) -> None:
        if resource.complete or not of_health:
            family.add((resource.name,), value(resource.counts))

    return add


def _dropped(family: Family, resource: _Resource) -> None:
    family.add((resource.name,), resource.dropped)


_OF_RESOURCES: Final = (
    (
        Described(
            "resource_devices",
            "Devices of the resource that are known: allocatable, held, reported by their plugin, or no "
            "longer offered. [STABLE]",
            ("resource",),
        ),
        _counting(lambda counts: counts.known),
    ),
    (
        Described(
            "resource_allocatable_devices",
            "Devices of the resource that the kubelet counts as allocatable, held or free. [STABLE]",
            ("resource",),
        ),
        _counting(lambda counts: counts.allocatable, of_health=True),
    ),
    (
        Described(
            "resource_allocated_devices",
            "Devices of the resource that are held; a shared device counts once. [STABLE]",
            ("resource",),
        ),
        _counting(lambda counts: counts.allocated),
    ),
    (
        Described(
            "resource_free_devices",
            "Devices of the resource that a pod can get: allocatable, not held, not reserved for a claim, "
            "and no alternative to another device. [ALPHA]",
            ("resource",),
        ),
        _counting(lambda counts: counts.free, of_health=True),
    ),
    (
        Described(
            "resource_unhealthy_devices",
            "Devices of the resource that are unhealthy: not allocatable, or so by the status of their pod. "
            "[ALPHA]",
            ("resource",),
        ),
        _counting(lambda counts: counts.unhealthy, of_health=True),
    ),
    (
        Described(
            "resource_series_dropped",
            "Series of the resource's devices that --metrics.max-series leaves out. [ALPHA]",
            ("resource",),
        ),
        _dropped,
    ),
)


def _container_devices(family: Family, container: Container) -> None:
    for resource, count in container.devices.items():
        family.add((*_names(container.holder), resource), count)


def _claim_device(family: Family, status: DeviceStatus) -> None:
    claimed = status.device.claimed
    if claimed is None:
        return
    for one in claimed.through:
        claim = (one.share_id, one.claim_namespace, one.claim)
        family.add((*claimed.name, *claim, *_names(one.holder)), 1)


def _cpus(family: Family, container: Container) -> None:
    if container.cpu_ids:
        family.add(_names(container.holder), len(container.cpu_ids))


def _pinned_memory(family: Family, container: Container) -> None:
    for one in container.memory:
        labels = (*_names(container.holder), one.memory_type, numa(one.numa_nodes))
        family.add(labels, one.size_bytes)


def _numa_nodes(family: Family, container: Container) -> None:
    if container.numa_nodes:
        family.add(_names(container.holder), len(container.numa_nodes))


CONTAINER_DEVICES: Final = Described(
    "container_devices",
    "Devices that the container holds, by what it asked for: the resource, or the extended resource or "
    "DeviceClass that a claim serves; the driver if unknown. [ALPHA]",
    (*_HOLDER, "resource"),
)
CLAIM_DEVICE: Final = Described(
    "claim_device_info",
    "A device that a container has through a ResourceClaim (1), also for administration. [ALPHA]",
    ("driver", "pool", "device", "share_id", "claim_namespace", "claim", *_HOLDER),
)
_OF_CONTAINERS: Final = (
    (
        Described(
            "container_exclusive_cpus",
            "CPUs that are the container's alone (static CPU manager). [ALPHA]",
            _HOLDER,
        ),
        _cpus,
    ),
    (
        Described(
            "container_pinned_memory_bytes",
            "Memory pinned to NUMA nodes for the container (static memory manager), in bytes. [ALPHA]",
            (*_HOLDER, "memory_type", "numa_node"),
        ),
        _pinned_memory,
    ),
    (
        Described(
            "container_numa_nodes",
            "NUMA nodes that the container's devices, CPUs and pinned memory span; 1 is aligned. [ALPHA]",
            _HOLDER,
        ),
        _numa_nodes,
    ),
)


def _pod(family: Family, pod: PodIdentity) -> None:
    work = pod.workload
    family.add((*pod.key, pod.uid, work.kind, work.name, pod.phase, pod.priority_class), 1)


def _pod_labels(family: Family, pod: PodIdentity) -> None:
    if pod.labels:
        names = label_names([name for name, _ in pod.labels])
        labels = dict(zip(("namespace", "pod"), pod.key, strict=True))
        family.add_labelled(labels | {names[name]: value for name, value in pod.labels}, 1)


_OF_PODS: Final = (
    (
        Described(
            "pod_info",
            "A pod that holds something (1): its uid, what it belongs to, phase and priority class. [ALPHA]",
            ("namespace", "pod", "uid", "workload_kind", "workload", "phase", "priority_class"),
        ),
        _pod,
    ),
    (
        Described(
            "pod_labels",
            "The labels of a pod that holds something (1), those that --pod-labels allows. [ALPHA]",
            ("namespace", "pod"),
        ),
        _pod_labels,
    ),
)
_NO_LABEL_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_NEW_WORD: Final = re.compile(r"([a-z0-9])([A-Z])")


def label_names(names: Sequence[str]) -> Mapping[str, str]:
    """Prometheus' name for each of one pod's label names, by the rules of kube-state-metrics.

    `label_` and the name in lower snake_case, with underscores for other characters. Names that become equal
    get `_conflict1`, `_conflict2`… in their order, without those that another label already has.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        snake_case = _NEW_WORD.sub(r"\1_\2", _NO_LABEL_NAME.sub("_", name)).lower()
        groups.setdefault(f"label_{snake_case}", []).append(name)
    taken = {label for label, group in groups.items() if len(group) == 1}
    found: dict[str, str] = {}
    for label, group in groups.items():
        if len(group) == 1:
            found[group[0]] = label
            continue
        count = 0
        for name in group:
            count += 1
            while f"{label}_conflict{count}" in taken:
                count += 1
            found[name] = f"{label}_conflict{count}"
            taken.add(found[name])
    return found


def _anomaly(family: Family, anomaly: Anomaly) -> None:
    names = ("", "", "") if anomaly.holder is None else _names(anomaly.holder)
    family.add((anomaly.kind, anomaly.resource, anomaly.device, *names), 1)


ANOMALY: Final = Described(
    "anomaly_info",
    "An anomaly (1 while it lasts); kind names it. [ALPHA]",
    ("kind", "resource", "device", *_HOLDER),
)


class MappingFamilies:
    """Writes all families of a mapping in blocks, one state after the other. For one thread at a time."""

    def __init__(self, node: str) -> None:
        self._devices = [family.of(node, add) for family, add in _OF_DEVICES]
        self._unconfirmed = OWNER_UNCONFIRMED.of(node, _unconfirmed)
        self._unprovable = OWNER_UNPROVABLE.of(node, _unprovable)
        self._resources = [family.of(node, add) for family, add in _OF_RESOURCES]
        self._container_devices = CONTAINER_DEVICES.of(node, _container_devices)
        self._claims = CLAIM_DEVICE.of(node, _claim_device)
        self._containers = [family.of(node, add) for family, add in _OF_CONTAINERS]
        self._pods = [family.of(node, add) for family, add in _OF_PODS]
        self._anomalies = ANOMALY.of(node, _anomaly)

    def of(self, state: State, plan: SeriesPlan) -> list[Block]:
        """All families of `state`, without what `plan` leaves out."""
        snapshot, devices = state.snapshot, plan.devices(state)
        with_holders = plan.exposes(SeriesGroup.HOLDERS)
        containers = runs(snapshot.containers, lambda one: one.holder[:2], _RUN) if with_holders else []
        found: list[Block] = []
        for of_devices in self._devices:
            found += of_devices.blocks(devices)
        if plan.exposes(SeriesGroup.RESOURCES):
            resources = _resources(state, plan)
            for of_resources in self._resources:
                found += of_resources.blocks([("", resources)])
        if with_holders:
            found += self._container_devices.blocks(containers)
        found += self._claims.blocks(devices if _any_claimed(snapshot) else ())
        found += self._unconfirmed.blocks(devices if snapshot.unconfirmed else ())
        found += self._unprovable.blocks(devices if state.choices else ())
        if with_holders:
            for of_containers in self._containers:
                found += of_containers.blocks(containers)
            pods = runs(tuple(state.pods.values()), lambda one: one.key, _RUN)
            for of_pods in self._pods:
                found += of_pods.blocks(pods)
        anomalies = [one for one in state.anomalies if plan.exposes(*anomaly_part(one))]
        found += self._anomalies.blocks([("", anomalies)])
        found.append(block(_series_dropped(plan).text().encode()))
        return found


def stale_mapping(node: str) -> list[Block]:
    """The only family of a stale mapping: the anomaly `stale`."""
    return ANOMALY.of(node, _anomaly).blocks([("", (Anomaly("stale", ""),))])


def _any_claimed(snapshot: Snapshot) -> bool:
    """Whether a device may be claimed: a node without DRA has no such resource."""
    return bool(snapshot.held_only or snapshot.published)


def _series_dropped(plan: SeriesPlan) -> Family:
    return gauge(
        "devicelens_series_dropped",
        "Series of the mapping that are left out because there are more than --metrics.max-series. [ALPHA]",
        value=plan.dropped,
    )


def _resources(state: State, plan: SeriesPlan) -> list[_Resource]:
    left_out = plan.by_resource()
    return [
        _Resource(name, counts, state.snapshot.knows_all(name), left_out.get(name, 0))
        for name, counts in state.resources().items()
    ]
