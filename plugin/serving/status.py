"""What can be said of a resource at this moment.

What a resource counts from its start, whatever happens to its parts.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from plugin.devices.inventory import Advertised, Inventory

ALLOCATION_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
"""Upper bounds in seconds; Allocate holds up a pod's start, and the kubelet sets it no limit."""


@dataclass(slots=True)
class Histogram:
    """Observations by bucket, not cumulated; the last bucket is what lies above every bound."""

    bounds: tuple[float, ...] = ALLOCATION_BUCKETS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Tally:
    """Counters of one resource. Allocations are counted by container."""

    registrations: int = 0
    registration_errors: int = 0
    allocations: int = 0
    allocation_errors: int = 0
    pre_starts: int = 0
    pre_start_errors: int = 0
    discoveries: int = 0
    discovery_errors: int = 0
    transitions: Counter[str] = field(default_factory=Counter[str])
    """Changes of health by what it changed to: `healthy`, `unhealthy`."""
    flaps: int = 0
    """How many times a device was found flapping, and held as unhealthy."""
    allocation_seconds: Histogram = field(default_factory=Histogram)


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """One resource. `ready`: it is served, or waits for something that is said in `state`."""

    name: str
    registered: bool
    streams: int
    ready: bool
    state: str
    advertised: tuple[Advertised, ...]
    last_allocated: Callable[[str], float | None]
    tally: Tally


def assess(
    *,
    registered: bool,
    streams: int,
    stands_by: bool,
    registration_problem: str | None,
    surveyed: bool,
    wanted: bool,
    notes: str | None,
    discovery_problem: str | None,
    giving_problem: str | None,
    defect: str | None,
    inventory: Inventory,
) -> tuple[bool, str]:
    """Whether a resource is ready, and how it stands in words: the first of these that holds.

    `surveyed`: its devices have been looked for once; `wanted`: there was something to register;
    `notes`: why there is nothing; the problems: what fails at this moment, None where nothing does.
    """
    failing = f"discovery fails: {discovery_problem}" if discovery_problem else ""
    rules: tuple[tuple[bool, bool, str], ...] = (
        (giving_problem is not None, False, giving_problem or ""),
        (registered and streams > 0, True, _serving(inventory, streams, failing)),
        (not surveyed and defect is not None, False, f"defect: {defect}"),
        (not surveyed, False, failing or "looking for devices"),
        (not wanted, True, f"waiting for devices: {notes or 'none was found'}"),
        (stands_by, True, f"waiting: {registration_problem}"),
        (registered, False, "registered, but the kubelet has opened no stream"),
        (True, False, registration_problem or "registering"),
    )
    return next((ready, text) for holds, ready, text in rules if holds)


def _serving(inventory: Inventory, streams: int, failing: str) -> str:
    devices = inventory.devices.values()
    healthy = sum(known.healthy for known in devices)
    text = f"registered, streams open: {streams}, devices healthy: {healthy} of {len(devices)}"
    return f"{text}; {failing}" if failing else text
