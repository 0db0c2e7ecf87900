"""The plugin's metric families, made from the status of each resource at a scrape.

Families with a series for each device are rendered once for each change of a list, and kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from plugin.devices.inventory import ListEntry
from plugin.serving.status import ResourceStatus
from runtime.exposition import Body, Families, Format, assemble, render


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """The last reload of the configuration. `succeeded_at`: unix time of the last success."""

    successful: bool
    succeeded_at: float
    problem: str = ""
    """Why the configuration was refused; empty where it was not."""


def device_families(statuses: Sequence[ResourceStatus]) -> list[Metric]:
    """Families of each device, and the number of devices by health."""
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


_COUNTERS: Final = {
    "registrations": "Registrations that the kubelet accepted.",
    "registration_errors": "Attempts to register that failed.",
    "allocations": "Containers for which Allocate was answered.",
    "allocation_errors": "Allocate calls that were refused.",
    "pre_starts": "Containers for which the pre_start program succeeded.",
    "pre_start_errors": "Starts of containers that were refused because the pre_start program failed.",
    "discoveries": "Scans for devices.",
    "discovery_errors": "Scans for devices that failed.",
    "health_flaps": "Devices found flapping and held as unhealthy.",
}
"""HELP of the counters by the field of ResourceCounters that has the same name."""


def process_families(statuses: Sequence[ResourceStatus], config: ConfigStatus) -> list[Metric]:
    """Families of each resource and of the process."""
    registered = GaugeMetricFamily(
        "devicelens_plugin_registered",
        "1 while the kubelet has the resource registered. [ALPHA]",
        labels=["resource"],
    )
    streams = GaugeMetricFamily(
        "devicelens_plugin_streams", "ListAndWatch streams that are open. [ALPHA]", labels=["resource"]
    )
    for status in statuses:
        registered.add_metric([status.name], int(status.registered))
        streams.add_metric([status.name], status.streams)
    counters: list[Metric] = []
    for name, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"devicelens_plugin_{name}", f"{text} [ALPHA]", labels=["resource"])
        for status in statuses:
            counter.add_metric([status.name], getattr(status.counters, name))
        counters.append(counter)
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
        status.counters.allocation_seconds.add_to(durations, [status.name])
    successful = GaugeMetricFamily(
        "devicelens_plugin_config_last_reload_successful",
        "1 if the last reload of the configuration succeeded, 0 if it was refused. [ALPHA]",
        value=int(config.successful),
    )
    succeeded = GaugeMetricFamily(
        "devicelens_plugin_config_last_reload_success_timestamp_seconds",
        "Unix time of the last successful reload of the configuration, in seconds. [ALPHA]",
        value=config.succeeded_at,
    )
    return [registered, streams, *counters, transitions, durations, successful, succeeded]


_Shown = tuple[str, tuple[ListEntry, ...]]


class Exposition:
    """Renders the answer to a scrape. Not thread-safe."""

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
        """The whole document, with `further` families of the process."""
        shown = [(status.name, status.advertised) for status in statuses]
        kept = self._kept.get(form)
        if kept is None or not _same(kept[0], shown):
            kept = shown, render(device_families(statuses), form)
            self._kept[form] = kept
        families = Families([*process_families(statuses, config), *further])
        return assemble(kept[1], families, form, compress=compress)


def _same(before: Sequence[_Shown], now: Sequence[_Shown]) -> bool:
    """Whether the lists are the same objects: an inventory makes a new one at each change."""
    return len(before) == len(now) and all(
        old[0] == new[0] and old[1] is new[1] for old, new in zip(before, now, strict=True)
    )
