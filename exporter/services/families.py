"""The families built new from each snapshot: one small function for each, name and help together.

Names, labels and meanings are the contract (docs/metrics.md); those of single devices are in
device_families. Every function takes the state and the node's name and returns one whole family; the
labels `namespace`, `pod` and `container` are the holder's, and empty, never absent, where there is none.
"""

from collections.abc import Callable, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from daemon.exposition import Lines
from exporter.core.anomalies import Anomaly
from exporter.core.model import Container, Holder, ResourceCounts
from exporter.core.state import State
from exporter.services.device_families import DeviceLines, numa
from exporter.services.pod_families import pod_info, pod_labels
from exporter.services.series import Group, Plan

_NOBODY: Final = Holder("", "", "")
_HOLDER: Final = ("namespace", "pod", "container")

Family = Callable[[State, str], Metric]


def _names(holder: Holder) -> tuple[str, str, str]:
    return holder.namespace, holder.pod, holder.container


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
    "Devices of the resource that are known: allocatable, held, or told of by their plugin.",
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


def series_dropped(plan: Plan) -> Metric:
    """How many series are not told."""
    return GaugeMetricFamily(
        "devicelens_series_dropped",
        "Series of the mapping that are not told, as there are more than --metrics.max-series; 0 where all "
        "are. [STABLE]",
        value=plan.dropped,
    )


OF_RESOURCES: Final[tuple[Family, ...]] = (
    resource_devices,
    resource_allocatable,
    resource_allocated,
    resource_unhealthy,
)
OF_HOLDERS: Final[tuple[Family, ...]] = (
    container_exclusive_cpus,
    container_pinned_memory,
    container_numa_nodes,
    pod_info,
    pod_labels,
)


def of_snapshot(state: State, node: str, devices: DeviceLines, plan: Plan) -> list[Metric | Lines]:
    """All families of a mapping that may be told, as far as `plan` lets them."""
    told = plan.told
    found: list[Metric | Lines] = []
    if Group.DEVICES in told:
        found += devices.of(state)
    if Group.RESOURCES in told:
        found += [family(state, node) for family in OF_RESOURCES]
    if Group.HOLDERS in told:
        found.append(container_devices(state, node))
    if Group.DEVICES in told:
        found.append(claim_device_info(state, node))
    if Group.HOLDERS in told:
        found += [family(state, node) for family in OF_HOLDERS]
        found.append(anomaly_info(state.anomalies, node))
    found.append(series_dropped(plan))
    return found


def of_stale(node: str) -> list[Metric | Lines]:
    """What is told instead of a mapping that is too old: that it is."""
    return [anomaly_info((Anomaly("stale", ""),), node)]
