"""The plugin's metric families, made from the status of each resource at a scrape.

The series of devices are kept in blocks, and written again where their list changed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from plugin.devices.inventory import ListEntry
from plugin.serving.status import ResourceStatus
from runtime.blocks import Block, BlockCache, block, gzipped, plain
from runtime.exposition import END, Family, Format, counter, gauge, histogram


class ConfigStatus(Struct, frozen=True):
    """The last reload of the configuration. `succeeded_at`: unix time of the last success."""

    successful: bool
    succeeded_at: float
    problem: str = ""
    """Why the configuration was refused; empty where it was not."""


def _device_counts(statuses: Sequence[ResourceStatus]) -> Family:
    """The number of devices by health."""
    devices = gauge(
        "devicelens_plugin_devices",
        "Devices that the plugin advertises, by health. [ALPHA]",
        ["resource", "health"],
    )
    for status in statuses:
        well = sum([entry.known.healthy for entry in status.advertised])
        devices.add([status.name, "Healthy"], well)
        devices.add([status.name, "Unhealthy"], len(status.advertised) - well)
    return devices


def _device_health() -> Family:
    return gauge(
        "devicelens_plugin_device_healthy",
        "1 for a device that is advertised as healthy, 0 otherwise; the reason says why not. [ALPHA]",
        ["resource", "device", "reason"],
    )


def _health_lines(resource: str, entries: Sequence[ListEntry]) -> bytes:
    family = _device_health()
    for entry in entries:
        family.add([resource, entry.id, entry.known.reason], int(entry.known.healthy))
    return family.lines().encode()


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


def process_families(statuses: Sequence[ResourceStatus], config: ConfigStatus) -> list[Family]:
    """Families of each resource and of the process."""
    registered = gauge(
        "devicelens_plugin_registered",
        "1 while the kubelet has the resource registered. [ALPHA]",
        ["resource"],
    )
    streams = gauge("devicelens_plugin_streams", "ListAndWatch streams that are open. [ALPHA]", ["resource"])
    for status in statuses:
        registered.add([status.name], int(status.registered))
        streams.add([status.name], status.streams)
    counters: list[Family] = []
    for name, text in _COUNTERS.items():
        family = counter(f"devicelens_plugin_{name}", f"{text} [ALPHA]", ["resource"])
        for status in statuses:
            family.add([status.name], getattr(status.counters, name))
        counters.append(family)
    transitions = counter(
        "devicelens_plugin_health_transitions",
        "Changes of a device's health, by what it changed to. [ALPHA]",
        ["resource", "to"],
    )
    durations = histogram(
        "devicelens_plugin_allocation_duration_seconds",
        "How long Allocate took, in seconds. [ALPHA]",
        ["resource"],
    )
    for status in statuses:
        for to in ("healthy", "unhealthy"):
            transitions.add([status.name, to], status.counters.transitions[to])
        status.counters.allocation_seconds.add_to(durations, [status.name])
    successful = gauge(
        "devicelens_plugin_config_last_reload_successful",
        "1 if the last reload of the configuration succeeded, 0 if it was refused. [ALPHA]",
        value=int(config.successful),
    )
    succeeded = gauge(
        "devicelens_plugin_config_last_reload_success_timestamp_seconds",
        "Unix time of the last successful reload of the configuration, in seconds. [ALPHA]",
        value=config.succeeded_at,
    )
    return [registered, streams, *counters, transitions, durations, successful, succeeded]


class Exposition:
    """Writes the answer to a scrape. Not thread-safe."""

    def __init__(self) -> None:
        self._health: dict[str, BlockCache[ListEntry]] = {}
        """The series of devices, by resource."""

    def document(
        self,
        statuses: Sequence[ResourceStatus],
        config: ConfigStatus,
        form: Format,
        *,
        compress: bool,
        further: Sequence[Block] = (),
    ) -> bytes:
        """The whole document, with `further` families of the process."""
        self._health = {
            status.name: self._health.get(status.name) or BlockCache(partial(_health_lines, status.name))
            for status in statuses
        }
        blocks = [block(f"{_device_counts(statuses).text()}{_device_health().head()}".encode())]
        for status in statuses:
            blocks += self._health[status.name].of([("", status.advertised)])
        text = "".join([family.text(form) for family in process_families(statuses, config)])
        blocks += (block(text.encode()), *further, END[form])
        return gzipped(blocks) if compress else plain(blocks)
