"""What a resource counts from its start, whatever happens to its parts."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

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
