"""--metrics.max-series: which series are left out where a node has too many."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from msgspec import Struct

from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.model import Anomaly
from exporter.mapping.state import State
from runtime.log import Episode, Log
from runtime.text import named, quoted

_CALM: Final = 60.0
_log = Log("metrics")


class SeriesGroup(Enum):
    """Families that are exposed or left out together."""

    DEVICES = "devices"
    ANOMALIES = "anomalies"
    HOLDERS = "containers and pods"
    RESOURCES = "resources"


class SeriesPart(NamedTuple):
    """A group's series of one resource; "": of all resources."""

    group: SeriesGroup
    resource: str = ""

    def __str__(self) -> str:
        return f"{self.group.value} of {quoted(self.resource)}" if self.resource else self.group.value


class SeriesPlan(Struct, frozen=True):
    """What is left out of `series`: the number of series of each part, in the order in which they go."""

    series: int
    left_out: Mapping[SeriesPart, int]

    @property
    def dropped(self) -> int:
        """The number of series that are left out."""
        return sum(self.left_out.values())

    def exposes(self, group: SeriesGroup, resource: str = "") -> bool:
        """Whether the series of a part are exposed."""
        return SeriesPart(group, resource) not in self.left_out

    def devices(self, state: State) -> list[tuple[str, Sequence[DeviceStatus]]]:
        """The devices whose series are exposed, by resource."""
        return [pair for pair in by_resource(state) if self.exposes(SeriesGroup.DEVICES, pair[0])]

    def by_resource(self) -> Mapping[str, int]:
        """The number of series that are left out, by the resource of their devices or anomalies."""
        found: Counter[str] = Counter()
        for part, series in self.left_out.items():
            if part.resource:
                found[part.resource] += series
        return found


def by_resource(state: State) -> Iterable[tuple[str, Sequence[DeviceStatus]]]:
    """The devices of each resource: a snapshot's devices are sorted by it."""
    at = 0
    for resource, counts in state.snapshot.resources().items():
        end = at + counts.known + counts.alternatives
        yield resource, state.devices[at:end]
        at = end


def count_series(state: State) -> dict[SeriesPart, int]:
    """The number of series of each part."""
    snapshot = state.snapshot
    counted: Counter[SeriesPart] = Counter()
    for resource, devices in by_resource(state):
        held = sum([len(one.holders) for one in devices])
        of_each = sum([1 + (one.healthy is not None) + (one.identity is not None) for one in devices])
        through = [one.device.claimed.through for one in devices if one.device.claimed is not None]
        part = SeriesPart(SeriesGroup.DEVICES, resource)
        counted[part] = of_each + 2 * held + sum(map(len, through))
    for device, _ in snapshot.unconfirmed_owners():
        counted[SeriesPart(SeriesGroup.DEVICES, device.key.resource)] += 1
    for key, by_holder in state.choices.items():
        unprovable = sum([bool(one.doubt) for one in by_holder.values()])
        counted[SeriesPart(SeriesGroup.DEVICES, key.resource)] += unprovable
    for anomaly in state.anomalies:
        counted[anomaly_part(anomaly)] += 1
    counted[SeriesPart(SeriesGroup.HOLDERS)] += sum(
        [
            len(one.devices) + bool(one.cpu_ids) + len(one.memory) + bool(one.numa_nodes)
            for one in snapshot.containers
        ]
    ) + sum([1 + bool(identity.labels) for identity in state.pods.values()])
    counted[SeriesPart(SeriesGroup.RESOURCES)] = sum(
        [6 if snapshot.knows_all(name) else 3 for name in snapshot.resources()]
    )
    return {part: series for part, series in counted.items() if series}


def anomaly_part(anomaly: Anomaly) -> SeriesPart:
    """The part of an anomaly's series: that of its resource, or of containers and pods where it has none."""
    if anomaly.resource:
        return SeriesPart(SeriesGroup.ANOMALIES, anomaly.resource)
    return SeriesPart(SeriesGroup.HOLDERS)


def plan_series(state: State, limit: int) -> SeriesPlan:
    """Leave out parts until at most `limit` series are left.

    First the largest parts of single resources, so that one resource with many devices leaves the others
    their series; then those of containers and pods; last the counts of resources.
    """
    counted = count_series(state)
    series = left = sum(counted.values())
    last = (SeriesGroup.HOLDERS, SeriesGroup.RESOURCES)
    turns = {group: turn for turn, group in enumerate(last, 1)}
    left_out: dict[SeriesPart, int] = {}
    for part in sorted(
        counted, key=lambda one: (turns.get(one.group, 0), -counted[one], one.group.value, one.resource)
    ):
        if left <= limit:
            break
        left_out[part] = counted[part]
        left -= counted[part]
    return SeriesPlan(series, left_out)


class SeriesLimit:
    """--metrics.max-series: protects Prometheus from a node with too many series. Logs when it is reached.

    Implements the refresh loop's NoteSource.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._exceeded = Episode(_log, "there are more series than --metrics.max-series", calm=_CALM)
        self._last: tuple[State, SeriesPlan] | None = None

    def plan(self, state: State) -> SeriesPlan:
        """The plan for `state`, counted once. May be called from any thread."""
        last = self._last
        if last is None or not last[0].same_mapping(state):
            # One assignment: two threads at once count twice, without harm.
            self._last = last = (state, plan_series(state, self._limit))
        return last[1]

    def notes(self, state: State) -> tuple[str, ...]:
        """A note if series of `state` are left out."""
        found = self.plan(state)
        if not found.dropped:
            self._exceeded.recovered()
            return ()
        note = (
            f"{found.series} series are more than --metrics.max-series {self._limit}: those of "
            f"{named([str(part) for part in found.left_out])} are left out of /metrics"
        )
        self._exceeded.failed(note)
        return (note,)
