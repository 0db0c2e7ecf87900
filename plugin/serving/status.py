"""What a resource reports about itself: counters, log events and its state in words."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from plugin.devices.inventory import HealthTransition, ListEntry
from runtime.exposition import HistogramCounts
from runtime.log import Episode, Log
from runtime.text import named

ALLOCATION_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Upper bounds in seconds; Allocate delays a pod's start, and the kubelet sets no limit."""
MAX_NAMED: Final = 8
"""Changes of health that are logged one by one; further ones are counted."""

_log = Log("resource")


class ResourceCounters(Struct):
    """Counters of one resource. Allocations are counted by container, `transitions` by the new health."""

    registrations: int = 0
    registration_errors: int = 0
    allocations: int = 0
    allocation_errors: int = 0
    pre_starts: int = 0
    pre_start_errors: int = 0
    discoveries: int = 0
    discovery_errors: int = 0
    transitions: Counter[str] = field(default_factory=Counter[str])
    health_flaps: int = 0
    allocation_seconds: HistogramCounts = field(default_factory=lambda: HistogramCounts(ALLOCATION_BUCKETS))


class ResourceLog:
    """Log events of one resource. A lasting state is logged when it begins, changes and ends."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self.discovery = Episode(_log, "discovery fails", resource=resource)
        self.empty = Episode(_log, "no devices", resource=resource)
        self.defect = Episode(_log, "internal error, restarting the resource", resource=resource)
        self._left_out = Episode(_log, "devices left out", resource=resource)
        self._refused = Episode(_log, "devices belong to another resource", resource=resource)
        self._conflicting = Episode(_log, "two resources advertise the same device id", resource=resource)

    def transitions(self, transitions: Sequence[HealthTransition]) -> None:
        """Log new devices and changes of health, in their order. A new healthy device is logged once."""
        new = [t.id for t in transitions if t.new]
        if new:
            _log.info("devices found", resource=self._resource, devices=named(new))
        changed = [t for t in transitions if not (t.new and t.healthy)]
        for transition in changed[:MAX_NAMED]:
            fields = {"resource": self._resource, "device": transition.id}
            if transition.healthy:
                _log.info("device healthy", **fields)
            else:
                _log.warn("device unhealthy", **fields, reason=transition.reason)
        if len(changed) > MAX_NAMED:
            _log.info("more devices changed health", resource=self._resource, count=len(changed) - MAX_NAMED)

    def left_out(self, reasons: Sequence[tuple[str, str]]) -> None:
        """Log devices, by path or name, that cannot be advertised, and why."""
        report(self._left_out, [f"{name}: {reason}" for name, reason in reasons])

    def refused(self, others: Mapping[str, str]) -> None:
        """Log devices that belong to another resource, with its name."""
        report(self._refused, _pairs(others))

    def conflicting_ids(self, others: Mapping[str, str]) -> None:
        """Log ids that another resource advertises too, with its name."""
        report(self._conflicting, _pairs(others), "the kubelet finds a device's health by id alone: ")


def _pairs(others: Mapping[str, str]) -> list[str]:
    return [f"{device} ({other})" for device, other in sorted(others.items())]


def report(episode: Episode, reasons: Sequence[str], introduction: str = "") -> None:
    """Log `reasons` for a failure, or that there is none any more."""
    if reasons:
        episode.failed(introduction + named(reasons, "; "))
    else:
        episode.recovered()


class ResourceStatus(Struct, frozen=True):
    """One resource at this moment. `ready`: it is served, or waits for what `state` names.

    `last_allocated` returns the unix time at which Allocate last gave out an advertised id.
    """

    name: str
    ready: bool
    state: str
    counters: ResourceCounters
    registered: bool = False
    streams: int = 0
    advertised: tuple[ListEntry, ...] = ()
    last_allocated: Callable[[str], float | None] = lambda _: None
