"""The families that are built anew from each snapshot: a function each, with name, help and labels together.

Names, labels and meanings are a contract (docs/metrics.md). Every function takes the state and the node's
name and returns one family. The labels `namespace`, `pod` and `container` are the holder's. The families of
single devices are in exporter.metrics.devices.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from exporter.history.archive import HistoryStatus
from exporter.mapping.model import Anomaly, Container, Holder, ResourceCounts
from exporter.mapping.state import State
from exporter.metrics.devices import DeviceLines, SeriesGroup, SeriesPlan, anomaly_part, numa
from runtime.exposition import Lines

_HOLDER: Final = ("namespace", "pod", "container")

Family = Callable[[State, str], Metric]


def _names(holder: Holder) -> tuple[str, str, str]:
    return holder.namespace, holder.pod, holder.container


def pod_info(state: State, node: str) -> Metric:
    """Each pod that holds something and whose uid is proven."""
    family = GaugeMetricFamily(
        "devicelens_pod_info",
        "A pod that holds something (1): its uid, what it belongs to, phase and priority class. [ALPHA]",
        labels=("node", "namespace", "pod", "uid", "workload_kind", "workload", "phase", "priority_class"),
    )
    for (namespace, pod), identity in state.pods.items():
        work = identity.workload
        labels = (node, namespace, pod, identity.uid)
        family.add_metric((*labels, work.kind, work.name, identity.phase, identity.priority_class), 1)
    return family


def pod_labels(state: State, node: str) -> Metric:
    """The allowed labels of these pods."""
    family = Metric(
        "devicelens_pod_labels",
        "The labels of a pod that holds something (1), those that --pod-labels allows. [ALPHA]",
        "gauge",
    )
    for (namespace, pod), identity in state.pods.items():
        if identity.labels:
            names = label_names([name for name, _ in identity.labels])
            labels = {"node": node, "namespace": namespace, "pod": pod}
            labels |= {names[name]: value for name, value in identity.labels}
            family.add_sample("devicelens_pod_labels", labels, 1)
    return family


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


def _resource_gauge(
    name: str, text: str, value: Callable[[ResourceCounts], int], *, of_health: bool = False
) -> Family:
    """A number for each resource; `of_health`: none without GetAllocatableResources."""

    def family_of(state: State, node: str) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("node", "resource"))
        if state.snapshot.complete or not of_health:
            for resource, counts in state.snapshot.resources().items():
                family.add_metric((node, resource), value(counts))
        return family

    return family_of


def container_devices(state: State, node: str) -> Metric:
    """How many devices of each resource a container holds."""
    family = GaugeMetricFamily(
        "devicelens_container_devices",
        "Devices of the resource that the container holds. [ALPHA]",
        labels=("node", *_HOLDER, "resource"),
    )
    for container in state.snapshot.containers:
        for resource, count in container.devices.items():
            family.add_metric((node, *_names(container.holder), resource), count)
    return family


def owner_unconfirmed(state: State, node: str, plan: SeriesPlan) -> Metric:
    """Each holder of a device that is carried over from before a kubelet restart, without those of devices
    that `plan` leaves out.
    """
    family = GaugeMetricFamily(
        "devicelens_device_owner_unconfirmed",
        "A container that held the device before the kubelet restarted (1 until the kubelet lists its pod "
        "or another holder). [ALPHA]",
        labels=("node", "resource", "device", *_HOLDER),
    )
    for device, holder in state.snapshot.unconfirmed_owners():
        if plan.exposes(SeriesGroup.DEVICES, device.key.resource):
            family.add_metric((node, *device.key, *_names(holder)), 1)
    return family


def claim_device_info(state: State, node: str) -> Metric:
    """Each claimed device, for each container and claim."""
    family = GaugeMetricFamily(
        "devicelens_claim_device_info",
        "A device that a container holds through a ResourceClaim (1). [ALPHA]",
        labels=("node", "driver", "pool", "device", "share_id", "claim_namespace", "claim", *_HOLDER),
    )
    for device in state.snapshot.claims:
        for through in device.holders:
            claim = (through.claim_namespace, through.claim)
            family.add_metric((node, *device.key, *claim, *_names(through.holder)), 1)
    return family


def _container_gauge(name: str, text: str, value: Callable[[Container], int]) -> Family:
    """A number for each container; 0 is left out."""

    def family_of(state: State, node: str) -> Metric:
        family = GaugeMetricFamily(name, text, labels=("node", *_HOLDER))
        for container in state.snapshot.containers:
            if number := value(container):
                family.add_metric((node, *_names(container.holder)), number)
        return family

    return family_of


def container_pinned_memory(state: State, node: str) -> Metric:
    """Memory pinned to NUMA nodes for a container."""
    family = GaugeMetricFamily(
        "devicelens_container_pinned_memory_bytes",
        "Memory pinned to NUMA nodes for the container (static memory manager), in bytes. [ALPHA]",
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
        "An anomaly (1 while it lasts); kind names it. [ALPHA]",
        labels=("node", "kind", "resource", "device", *_HOLDER),
    )
    for anomaly in anomalies:
        names = ("", "", "") if anomaly.holder is None else _names(anomaly.holder)
        family.add_metric((node, anomaly.kind, anomaly.resource, anomaly.device, *names), 1)
    return family


def series_dropped(plan: SeriesPlan) -> Metric:
    """The number of series that are left out."""
    return GaugeMetricFamily(
        "devicelens_series_dropped",
        "Series of the mapping that are left out because there are more than --metrics.max-series. [ALPHA]",
        value=plan.dropped,
    )


def resource_series_dropped(state: State, node: str, plan: SeriesPlan) -> Metric:
    """The number of series that are left out, of each resource."""
    family = GaugeMetricFamily(
        "devicelens_resource_series_dropped",
        "Series of the resource's devices that --metrics.max-series leaves out. [ALPHA]",
        labels=("node", "resource"),
    )
    left_out = plan.by_resource()
    for resource in state.snapshot.resources():
        family.add_metric((node, resource), left_out.get(resource, 0))
    return family


OF_RESOURCES: Final[tuple[Family, ...]] = (
    _resource_gauge(
        "devicelens_resource_devices",
        "Devices of the resource that are known: allocatable, held, reported by their plugin, or no longer "
        "offered. [STABLE]",
        lambda counts: counts.known,
    ),
    _resource_gauge(
        "devicelens_resource_allocatable_devices",
        "Devices of the resource that the kubelet counts as allocatable, held or free. [STABLE]",
        lambda counts: counts.allocatable,
        of_health=True,
    ),
    _resource_gauge(
        "devicelens_resource_allocated_devices",
        "Devices of the resource that are held; a shared device counts once. [STABLE]",
        lambda counts: counts.allocated,
    ),
    _resource_gauge(
        "devicelens_resource_unhealthy_devices",
        "Devices of the resource that are known but not allocatable. [ALPHA]",
        lambda counts: counts.unhealthy,
        of_health=True,
    ),
)
OF_HOLDERS: Final[tuple[Family, ...]] = (
    _container_gauge(
        "devicelens_container_exclusive_cpus",
        "CPUs that are the container's alone (static CPU manager). [ALPHA]",
        lambda container: len(container.cpu_ids),
    ),
    container_pinned_memory,
    _container_gauge(
        "devicelens_container_numa_nodes",
        "NUMA nodes that the container's devices, CPUs and pinned memory span; 1 is aligned. [ALPHA]",
        lambda container: len(container.numa_nodes),
    ),
    pod_info,
    pod_labels,
)


def of_snapshot(state: State, node: str, devices: DeviceLines, plan: SeriesPlan) -> list[Metric | Lines]:
    """All families of a mapping, without what `plan` leaves out."""
    found: list[Metric | Lines] = [*devices.of(state, plan)]
    if plan.exposes(SeriesGroup.RESOURCES):
        found += [family(state, node) for family in OF_RESOURCES]
        found.append(resource_series_dropped(state, node, plan))
    if plan.exposes(SeriesGroup.HOLDERS):
        found.append(container_devices(state, node))
    if plan.exposes(SeriesGroup.DEVICES):
        found.append(claim_device_info(state, node))
    found.append(owner_unconfirmed(state, node, plan))
    if plan.exposes(SeriesGroup.HOLDERS):
        found += [family(state, node) for family in OF_HOLDERS]
    found.append(anomaly_info([one for one in state.anomalies if plan.exposes(*anomaly_part(one))], node))
    found.append(series_dropped(plan))
    return found


def of_stale(node: str) -> list[Metric | Lines]:
    """The only family of a stale mapping: the anomaly `stale`."""
    return [anomaly_info((Anomaly("stale", ""),), node)]


class HistoryFamilies:
    """A collector: the condition of history at the moment of the scrape."""

    def __init__(self, condition: Callable[[], HistoryStatus]) -> None:
        self._condition = condition

    def collect(self) -> Iterable[Metric]:
        """The families."""
        now = self._condition()
        for name, text, value in (
            (
                "up",
                "Whether history is written where it should be; 0 if its file cannot be used or written.",
                int(now.written),
            ),
            ("holdings", "Holdings that history has, those that last and those of the past.", now.rows),
            ("pending_holdings", "Changes of holdings that wait to be written.", now.pending),
            ("size_bytes", "What history takes of its file, or of memory, in bytes.", now.size),
            (
                "earliest_timestamp_seconds",
                "Since when history knows who held what, in unix time.",
                now.earliest,
            ),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"devicelens_history_{name}", f"{text} [ALPHA]", value=value)
        for name, text, count in (
            ("errors", "Attempts to use or to write history's file that failed.", now.errors),
            (
                "dropped_holdings",
                "Holdings that were forgotten because too many waited to be written.",
                now.dropped,
            ),
            (
                "expired_holdings",
                "Holdings that were deleted for their age, or to keep history within its size.",
                now.expired,
            ),
        ):
            yield CounterMetricFamily(f"devicelens_history_{name}", f"{text} [ALPHA]", value=count)
