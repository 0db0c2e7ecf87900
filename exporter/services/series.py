"""How many series a mapping makes, and which of them are left out where that is more than is wanted.

The limit is a fuse: what a node holds is counted before anything is written. First go the series of single
devices, then those of containers, pods and anomalies, last those of resources, so that sums are told for
longest.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from daemon.log import Episode, Log
from exporter.core.state import State

_CALM: Final = 60.0
_log = Log("metrics")


class Group(Enum):
    """What is told or left out together; in the order in which it goes."""

    DEVICES = "of devices"
    HOLDERS = "of containers, pods and anomalies"
    RESOURCES = "of resources"


@dataclass(frozen=True, slots=True)
class Plan:
    """Of `series` in all, those of the groups `told` are told, and `dropped` are not."""

    told: frozenset[Group]
    series: int
    dropped: int

    @property
    def left_out(self) -> str:
        """The groups that are not told, in words."""
        return " and ".join(group.value for group in Group if group not in self.told)


def count(state: State) -> dict[Group, int]:
    """The series of each group."""
    snapshot = state.snapshot
    holders = [len(device.holders) for device in snapshot.devices]
    held = sum(holders)
    devices = len(holders) + 2 * held + sum(len(claim.holders) for claim in snapshot.claims)
    resources = 2 * len(snapshot.resources())
    if snapshot.complete:
        devices += held + holders.count(0)
        resources *= 2
    containers = sum(
        len(container.devices) + bool(container.cpu_ids) + len(container.memory) + bool(container.numa_nodes)
        for container in snapshot.containers
    )
    pods = sum(1 + bool(identity.labels) for identity in state.pods.values())
    return {
        Group.DEVICES: devices,
        Group.HOLDERS: containers + pods + len(state.anomalies),
        Group.RESOURCES: resources,
    }


def plan(state: State, limit: int) -> Plan:
    """What of `state` is told with at most `limit` series."""
    counted = count(state)
    told, left = set(Group), sum(counted.values())
    for group in Group:
        if left <= limit:
            break
        told.discard(group)
        left -= counted[group]
    series = sum(counted.values())
    return Plan(frozenset(told), series, series - left)


class SeriesLimit:
    """--metrics.max-series, and who says that it is reached."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._episode = Episode(_log, "there are more series than --metrics.max-series", calm=_CALM)
        self._seen: tuple[int, Plan] | None = None

    def plan(self, state: State) -> Plan:
        """What of `state` is told. May be called from any thread."""
        seen = self._seen
        if seen is None or seen[0] != state.generation:
            # One assignment: two threads that come together count twice, and no more.
            self._seen = seen = (state.generation, plan(state, self._limit))
        return seen[1]

    def notes(self, state: State) -> tuple[str, ...]:
        """What there is to say of `state`; also said to the log, when it begins and ends."""
        found = self.plan(state)
        if not found.dropped:
            self._episode.recovered()
            return ()
        words = (
            f"{found.series} series are more than --metrics.max-series {self._limit}: Prometheus is not told "
            f"those {found.left_out}"
        )
        self._episode.failed(words)
        return (words,)
