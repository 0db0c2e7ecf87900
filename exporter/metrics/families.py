"""The families built new from each snapshot: one small function for each, name and help together.

Names, labels and meanings are the contract (docs/metrics.md); those of single devices are in
device_families. Every function takes the state and the node's name and returns one whole family; the
labels `namespace`, `pod` and `container` are the holder's, and empty, never absent, where there is none.

The families about pods: who they are, and their allowed labels.

Only pods that hold something, and of those only whose uid is beyond doubt.

What Prometheus gets of history itself.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from exporter.history.archive import HistoryStatus
from exporter.mapping.anomalies import Anomaly
from exporter.mapping.model import Container, Holder, ResourceCounts
from exporter.mapping.state import State
from exporter.metrics.devices import DeviceLines, SeriesGroup, SeriesPlan, numa
from runtime.exposition import Lines

_NO_LABEL_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_NEW_WORD: Final = re.compile(r"([a-z0-9])([A-Z])")


def pod_info(state: State, node: str) -> Metric:
    """Each pod that holds something."""
    family = GaugeMetricFamily(
        "devicelens_pod_info",
        "A pod that holds something (1): its uid, what it belongs to, phase and priority class. [STABLE]",
        labels=("node", "namespace", "pod", "uid", "workload_kind", "workload", "phase", "priority_class"),
    )
    for (namespace, pod), identity in state.pods.items():
        work = identity.workload
        family.add_metric(
            (
                *(node, namespace, pod, identity.uid),
                *(work.kind, work.name, identity.phase, identity.priority_class),
            ),
            1,
        )
    return family


def pod_labels(state: State, node: str) -> Metric:
    """The allowed labels of each pod that holds something and has any."""
    family = Metric(
        "devicelens_pod_labels",
        "The labels of a pod that holds something (1), those that --pod-labels allows. [STABLE]",
        "gauge",
    )
    for (namespace, pod), identity in state.pods.items():
        if identity.labels:
            names = label_names([name for name, _ in identity.labels])
            labels = {"node": node, "namespace": namespace, "pod": pod}
            labels |= {names[name]: value for name, value in identity.labels}
            family.add_sample("devicelens_pod_labels", labels, 1)
    return family


def label_names(names: Sequence[str]) -> Mapping[str, str]:
    """Prometheus' name for each of one pod's label names, as kube-state-metrics has it.

    Characters that Prometheus does not know are underscores, camelCase is snake_case, all is lower case,
    with `label_` before it; names that fall together have `_conflict1`, `_conflict2`… behind them, in
    their own order, leaving out what another label is called already.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(f"label_{_snake_case(_NO_LABEL_NAME.sub('_', name))}", []).append(name)
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


def _snake_case(name: str) -> str:
    return _NEW_WORD.sub(r"\1_\2", name).lower()


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


def series_dropped(plan: SeriesPlan) -> Metric:
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


def of_snapshot(state: State, node: str, devices: DeviceLines, plan: SeriesPlan) -> list[Metric | Lines]:
    """All families of a mapping that may be told, as far as `plan` lets them."""
    told = plan.told
    found: list[Metric | Lines] = []
    if SeriesGroup.DEVICES in told:
        found += devices.of(state)
    if SeriesGroup.RESOURCES in told:
        found += [family(state, node) for family in OF_RESOURCES]
    if SeriesGroup.HOLDERS in told:
        found.append(container_devices(state, node))
    if SeriesGroup.DEVICES in told:
        found.append(claim_device_info(state, node))
    if SeriesGroup.HOLDERS in told:
        found += [family(state, node) for family in OF_HOLDERS]
        found.append(anomaly_info(state.anomalies, node))
    found.append(series_dropped(plan))
    return found


def of_stale(node: str) -> list[Metric | Lines]:
    """What is told instead of a mapping that is too old: that it is."""
    return [anomaly_info((Anomaly("stale", ""),), node)]


class HistoryFamilies:
    """A collector: how history is, at the moment of the scrape."""

    def __init__(self, condition: Callable[[], HistoryStatus]) -> None:
        self._condition = condition

    def collect(self) -> Iterable[Metric]:
        """The families."""
        now = self._condition()
        yield GaugeMetricFamily(
            "devicelens_history_up",
            "Whether history is written where it should be; 0 if its file cannot be used or written. "
            "[STABLE]",
            value=int(now.written),
        )
        yield GaugeMetricFamily(
            "devicelens_history_holdings",
            "Holdings that history has, those that last and those of the past. [STABLE]",
            value=now.rows,
        )
        yield GaugeMetricFamily(
            "devicelens_history_pending_holdings",
            "Changes of holdings that wait to be written. [STABLE]",
            value=now.pending,
        )
        yield GaugeMetricFamily(
            "devicelens_history_size_bytes",
            "What history takes of its file, or of memory, in bytes. [STABLE]",
            value=now.size,
        )
        if now.earliest is not None:
            yield GaugeMetricFamily(
                "devicelens_history_earliest_timestamp_seconds",
                "Since when history knows who held what, in unix time. [STABLE]",
                value=now.earliest,
            )
        yield CounterMetricFamily(
            "devicelens_history_errors_total",
            "Attempts to use or to write history's file that failed. [STABLE]",
            value=now.errors,
        )
        yield CounterMetricFamily(
            "devicelens_history_dropped_holdings_total",
            "Holdings that were forgotten because too many waited to be written. [STABLE]",
            value=now.dropped,
        )
        yield CounterMetricFamily(
            "devicelens_history_expired_holdings_total",
            "Holdings that were deleted for their age, or to keep history within its size. [STABLE]",
            value=now.expired,
        )
