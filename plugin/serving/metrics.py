"""The plugin's Prometheus families, made from the resources' status at the moment of a scrape.

What grows with the number of devices is rendered once for each change and kept; the rest is small.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from plugin.devices.inventory import Advertised
from plugin.serving.status import ResourceCounters, ResourceStatus
from runtime.exposition import Body, Format, assemble, render


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """How the configuration was last read. `succeeded_at`: wall time of the last success."""

    successful: bool
    succeeded_at: float
    problem: str = ""
    """Why it was refused; empty where it was not."""


def device_families(statuses: Sequence[ResourceStatus]) -> list[Metric]:
    """What is told of each device, and how many there are by health."""
    devices = GaugeMetricFamily(
        "devicelens_plugin_devices",
        "Devices that the plugin advertises, by health. [ALPHA]",
        labels=["resource", "health"],
    )
    healthy = GaugeMetricFamily(
        "devicelens_plugin_device_healthy",
        "1 for a device that is advertised as healthy, 0 otherwise; the reason says why not. [ALPHA]",
        labels=["resource", "device", "reason"],
    )
    for status in statuses:
        well = sum(entry.known.healthy for entry in status.advertised)
        devices.add_metric([status.name, "Healthy"], well)
        devices.add_metric([status.name, "Unhealthy"], len(status.advertised) - well)
        for entry in status.advertised:
            healthy.add_metric([status.name, entry.id, entry.known.reason], int(entry.known.healthy))
    return [devices, healthy]


def process_families(statuses: Sequence[ResourceStatus], config: ConfigStatus) -> list[Metric]:
    """What is told of each resource and of the process."""
    gauges = [
        _gauge(
            "registered", "1 while the kubelet has the resource registered.", statuses, lambda s: s.registered
        ),
        _gauge("streams", "ListAndWatch streams that are open.", statuses, lambda s: s.streams),
    ]
    counters = [
        _counter(
            "registrations", "Registrations that the kubelet accepted.", statuses, lambda t: t.registrations
        ),
        _counter(
            "registration_errors",
            "Attempts to register that failed.",
            statuses,
            lambda t: t.registration_errors,
        ),
        _counter(
            "allocations", "Containers that Allocate was answered for.", statuses, lambda t: t.allocations
        ),
        _counter(
            "allocation_errors", "Allocate calls that were refused.", statuses, lambda t: t.allocation_errors
        ),
        _counter(
            "pre_starts",
            "Containers that the configured program was run before.",
            statuses,
            lambda t: t.pre_starts,
        ),
        _counter(
            "pre_start_errors",
            "Starts of containers that were refused, for the program before them failed.",
            statuses,
            lambda t: t.pre_start_errors,
        ),
        _counter("discoveries", "Looks for devices.", statuses, lambda t: t.discoveries),
        _counter(
            "discovery_errors", "Looks for devices that failed.", statuses, lambda t: t.discovery_errors
        ),
        _counter(
            "health_flaps", "Devices found flapping and held as unhealthy.", statuses, lambda t: t.flaps
        ),
    ]
    transitions = CounterMetricFamily(
        "devicelens_plugin_health_transitions",
        "Changes of a device's health, by what it changed to. [ALPHA]",
        labels=["resource", "to"],
    )
    durations = HistogramMetricFamily(
        "devicelens_plugin_allocation_duration_seconds",
        "How long Allocate took, in seconds. [ALPHA]",
        labels=["resource"],
    )
    for status in statuses:
        for to in ("healthy", "unhealthy"):
            transitions.add_metric([status.name, to], status.counters.transitions[to])
        histogram = status.counters.allocation_seconds
        buckets: list[tuple[str, float]] = []
        count = 0
        for bound, found in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            count += found
            buckets.append(("+Inf" if bound == float("inf") else str(bound), count))
        durations.add_metric([status.name], buckets, sum_value=histogram.total)
    successful = GaugeMetricFamily(
        "devicelens_plugin_config_last_reload_successful",
        "1 if the configuration was read when it was last tried, 0 if it was refused. [ALPHA]",
        value=int(config.successful),
    )
    succeeded = GaugeMetricFamily(
        "devicelens_plugin_config_last_reload_success_timestamp_seconds",
        "When the configuration was last read, in seconds since 1970. [ALPHA]",
        value=config.succeeded_at,
    )
    return [*gauges, *counters, transitions, durations, successful, succeeded]


def _gauge(
    name: str, text: str, statuses: Sequence[ResourceStatus], value: Callable[[ResourceStatus], int]
) -> Metric:
    family = GaugeMetricFamily(f"devicelens_plugin_{name}", f"{text} [ALPHA]", labels=["resource"])
    for status in statuses:
        family.add_metric([status.name], int(value(status)))
    return family


def _counter(
    name: str, text: str, statuses: Sequence[ResourceStatus], value: Callable[[ResourceCounters], int]
) -> Metric:
    family = CounterMetricFamily(f"devicelens_plugin_{name}", f"{text} [ALPHA]", labels=["resource"])
    for status in statuses:
        family.add_metric([status.name], value(status.counters))
    return family


@dataclass(frozen=True, slots=True)
class _Families:
    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


_Shown = tuple[str, tuple[Advertised, ...]]


class Exposition:
    """Renders what a scrape gets. Used from one thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[Format, tuple[list[_Shown], Body]] = {}

    def document(
        self,
        statuses: Sequence[ResourceStatus],
        config: ConfigStatus,
        form: Format,
        *,
        compress: bool,
        further: Sequence[Metric] = (),
    ) -> bytes:
        """The whole document for resources as they are, with `further` families of the process."""
        shown = [(status.name, status.advertised) for status in statuses]
        kept = self._kept.get(form)
        if kept is None or not _same(kept[0], shown):
            kept = shown, render(device_families(statuses), form)
            self._kept[form] = kept
        families = _Families([*process_families(statuses, config), *further])
        return assemble(kept[1], families, form, compress=compress)


def _same(before: Sequence[_Shown], now: Sequence[_Shown]) -> bool:
    """Whether these are the very lists: an inventory makes a new one at each change."""
    return len(before) == len(now) and all(
        old[0] == new[0] and old[1] is new[1] for old, new in zip(before, now, strict=True)
    )
