"""The families built new from each snapshot: one small function for each, name and help together.

Names, labels and meanings are the contract (design.md, section 4). Every function takes the state and
the node's name and returns one whole family; the labels `namespace`, `pod` and `container` are the
holder's, and empty, never absent, where there is none.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from exporter.core.anomalies import Anomaly
from exporter.core.diff import Holding
from exporter.core.model import Container, Device, Holder, ResourceCounts
from exporter.core.state import State
from exporter.services.pod_families import pod_info, pod_labels

_NOBODY: Final = Holder("", "", "")
_HOLDER: Final = ("namespace", "pod", "container")

Family = Callable[[State, str], Metric]


def numa(nodes: Sequence[int]) -> str:
    """NUMA nodes as a label: "0", "0,1" for several, "" where none is known."""
    return ",".join(str(node) for node in nodes)


def _each_holding(state: State) -> Iterator[tuple[Device, Holder]]:
    """Each device with each of its holders; a free one with nobody."""
    for device in state.snapshot.devices:
        for holder in device.holders or (_NOBODY,):
            yield device, holder


def _names(holder: Holder) -> tuple[str, str, str]:
    return holder.namespace, holder.pod, holder.container


def device_info(state: State, node: str) -> Metric:
    """Each device that is allocatable or held."""
    family = GaugeMetricFamily(
        "devicelens_device_info",
        "A device that is allocatable or held (1); parent is the physical device behind a replica or slice. "
        "[STABLE]",
        labels=("node", "resource", "device", "parent", "numa_node"),
    )
    for device in state.snapshot.devices:
        key = device.key
        family.add_metric((node, key.resource, key.device, device.parent, numa(device.numa_nodes)), 1)
    return family


def device_owner_info(state: State, node: str) -> Metric:
    """Each holder of each device."""
    family = GaugeMetricFamily(
        "devicelens_device_owner_info",
        "A container that holds a device (1); a shared device has several, a free one none. [STABLE]",
        labels=("node", "resource", "device", "parent", *_HOLDER, "pod_uid"),
    )
    for device in state.snapshot.devices:
        for holder in device.holders:
            key = device.key
            family.add_metric(
                (node, key.resource, key.device, device.parent, *_names(holder), holder.pod_uid), 1
            )
    return family


def device_healthy(state: State, node: str) -> Metric:
    """Whether each device is allocatable, for each of its holders."""
    family = GaugeMetricFamily(
        "devicelens_device_healthy",
        "Whether the kubelet counts the device as allocatable: 1, or 0 when it is held but not allocatable. "
        "[STABLE]",
        labels=("node", "resource", "device", *_HOLDER),
    )
    if state.snapshot.complete:
        for device, holder in _each_holding(state):
            key = device.key
            family.add_metric((node, key.resource, key.device, *_names(holder)), int(device.allocatable))
    return family


def device_held_since(state: State, node: str) -> Metric:
    """When each holder was first seen."""
    family = GaugeMetricFamily(
        "devicelens_device_held_since_timestamp_seconds",
        "When this holder of the device was first seen, in unix time. [STABLE]",
        labels=("node", "resource", "device", *_HOLDER),
    )
    for device in state.snapshot.devices:
        for holder in device.holders:
            key = device.key
            since = state.since[Holding(key, holder)]
            family.add_metric((node, key.resource, key.device, *_names(holder)), since.at)
    return family


def _resource_gauge(
    name: str, text: str, value: Callable[[ResourceCounts], int], *, of_health: bool = False
) -> Family:
    """A family with one number for each resource; `of_health`: left out where the kubelet cannot tell."""

    def family_of(state: State, node: str) -> Metric:
        family = GaugeMetricFamily(name, f"{text} [STABLE]", labels=("node", "resource"))
        if state.snapshot.complete or not of_health:
            for resource, counts in state.snapshot.resources().items():
                family.add_metric((node, resource), value(counts))
        return family

    return family_of


resource_devices = _resource_gauge(
    "devicelens_resource_devices",
    "Devices of the resource that are known: allocatable or held.",
    lambda counts: counts.known,
)
resource_allocatable = _resource_gauge(
    "devicelens_resource_allocatable_devices",
    "Devices of the resource that the kubelet counts as allocatable, held or free.",
    lambda counts: counts.allocatable,
    of_health=True,
)
resource_allocated = _resource_gauge(
    "devicelens_resource_allocated_devices",
    "Devices of the resource that are held; a shared device counts once.",
    lambda counts: counts.allocated,
)
resource_unhealthy = _resource_gauge(
    "devicelens_resource_unhealthy_devices",
    "Devices of the resource that are known but not allocatable.",
    lambda counts: counts.unhealthy,
    of_health=True,
)


def container_devices(state: State, node: str) -> Metric:
    """How many devices of each resource a container holds."""
    family = GaugeMetricFamily(
        "devicelens_container_devices",
        "Devices of the resource that the container holds. [STABLE]",
        labels=("node", *_HOLDER, "resource"),
    )
    for container in state.snapshot.containers:
        for resource, count in container.devices.items():
            family.add_metric((node, *_names(container.holder), resource), count)
    return family


def claim_device_info(state: State, node: str) -> Metric:
    """Each claimed device, for each container and claim."""
    family = GaugeMetricFamily(
        "devicelens_claim_device_info",
        "A device that a container holds through a ResourceClaim (1). [STABLE]",
        labels=("node", "driver", "pool", "device", "share_id", "claim_namespace", "claim", *_HOLDER),
    )
    for device in state.snapshot.claims:
        key = device.key
        for through in device.holders:
            family.add_metric(
                (
                    *(node, key.driver, key.pool, key.device, key.share_id),
                    *(through.claim_namespace, through.claim),
                    *_names(through.holder),
                ),
                1,
            )
    return family


def _container_gauge(name: str, text: str, value: Callable[[Container], int]) -> Family:
    """A family with one number for each container; containers for which it is 0 are left out."""

    def family_of(state: State, node: str) -> Metric:
        family = GaugeMetricFamily(name, f"{text} [STABLE]", labels=("node", *_HOLDER))
        for container in state.snapshot.containers:
            if number := value(container):
                family.add_metric((node, *_names(container.holder)), number)
        return family

    return family_of


container_exclusive_cpus = _container_gauge(
    "devicelens_container_exclusive_cpus",
    "CPUs that are the container's alone (static CPU manager).",
    lambda container: len(container.cpu_ids),
)
container_numa_nodes = _container_gauge(
    "devicelens_container_numa_nodes",
    "NUMA nodes that the container's devices, CPUs and pinned memory span; 1 is aligned.",
    lambda container: len(container.numa_nodes),
)


def container_pinned_memory(state: State, node: str) -> Metric:
    """Memory pinned to NUMA nodes for a container."""
    family = GaugeMetricFamily(
        "devicelens_container_pinned_memory_bytes",
        "Memory pinned to NUMA nodes for the container (static memory manager), in bytes. [STABLE]",
        labels=("node", *_HOLDER, "memory_type", "numa_node"),
    )
    for container in state.snapshot.containers:
        for block in container.memory:
            labels = (node, *_names(container.holder), block.memory_type, numa(block.numa_nodes))
            family.add_metric(labels, block.size_bytes)
    return family


def anomaly_info(anomalies: Sequence[Anomaly], node: str) -> Metric:
    """Each anomaly while it lasts."""
    family = GaugeMetricFamily(
        "devicelens_anomaly_info",
        "Something that is wrong (1 while it lasts); kind says what. [STABLE]",
        labels=("node", "kind", "resource", "device", *_HOLDER),
    )
    for anomaly in anomalies:
        holder = anomaly.holder or _NOBODY
        family.add_metric((node, anomaly.kind, anomaly.resource, anomaly.device, *_names(holder)), 1)
    return family


MAPPING: Final[tuple[Family, ...]] = (
    device_info,
    device_owner_info,
    device_healthy,
    device_held_since,
    resource_devices,
    resource_allocatable,
    resource_allocated,
    resource_unhealthy,
    container_devices,
    claim_device_info,
    container_exclusive_cpus,
    container_pinned_memory,
    container_numa_nodes,
    pod_info,
    pod_labels,
)
"""What disappears when the mapping is stale."""


def of_snapshot(state: State, node: str) -> list[Metric]:
    """All families of a mapping that may be told."""
    return [*(family(state, node) for family in MAPPING), anomaly_info(state.anomalies, node)]


def of_stale(node: str) -> list[Metric]:
    """What is told instead of a mapping that is too old: that it is."""
    return [anomaly_info((Anomaly("stale", ""),), node)]
