"""The families with a series for each device or holder (most of a scrape), and the limit on series.

Their lines are written directly, without prometheus_client, and kept for each device until it changes: a node
has thousands of devices, and a refresh changes a few.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.utils import floatToGoString

from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.model import Anomaly, Device
from exporter.mapping.state import State
from runtime.exposition import Lines, escaped
from runtime.log import Episode, Log
from runtime.text import named, quoted

_KEPT: Final = 16_384
"""Devices whose lines are kept; more would take too much memory."""
_KEPT_BYTES: Final = 4 << 20
"""Bytes of their ids."""
_TURN: Final = 128
"""Devices after which the thread yields: about a millisecond's work."""
_YIELD: Final = 50e-6

_number: Final = lru_cache(maxsize=1024)(floatToGoString)


def numa(nodes: Sequence[int]) -> str:
    """NUMA nodes as a label: "0", "0,1", or "" if unknown."""
    return ",".join(str(node) for node in nodes)


class _Written(NamedTuple):
    """One device's lines in each family, and the starts of its holdings."""

    info: str
    owners: str
    healthy: str
    held_since: str
    starts: tuple[float, ...]

    def lines(self, family: int) -> str:
        """The lines of a family, by its index."""
        return (self.info, self.owners, self.healthy, self.held_since)[family]


_HEALTHY: Final = _Written._fields.index("healthy")


def _heads() -> tuple[Metric, ...]:
    """The families without samples, in the order of _Written."""
    return (
        GaugeMetricFamily(
            "devicelens_device_info",
            "A device that is allocatable, held, known from its plugin, or no longer offered (1); parent is "
            "the physical device behind a share or slice. [STABLE]",
        ),
        GaugeMetricFamily(
            "devicelens_device_owner_info",
            "A container that holds a device (1); a shared device has several, a free one none. [STABLE]",
        ),
        GaugeMetricFamily(
            "devicelens_device_healthy",
            "Whether the kubelet counts the device as allocatable: 1, or 0 when it is held, known from its "
            "plugin, or no longer offered, but not allocatable. [STABLE]",
        ),
        GaugeMetricFamily(
            "devicelens_device_held_since_timestamp_seconds",
            "When this holder of the device was first seen, in unix time. [STABLE]",
        ),
    )


class DeviceLines:
    """Writes the device families of one state after the other, in one thread."""

    def __init__(self, node: str) -> None:
        self._node = escaped(node)
        self._devices: tuple[Device, ...] = ()
        self._written: list[_Written] = []
        self._since: Mapping[Holding, HeldSince] | None = None

    def of(self, state: State, plan: "SeriesPlan | None" = None) -> list[Lines]:
        """devicelens_device_info, …_owner_info, …_healthy and …_held_since_timestamp_seconds, without the
        devices that `plan` leaves out.
        """
        devices, since = state.snapshot.devices if plan is None else plan.devices(state), state.since
        if len(devices) > _KEPT or sum([len(device.key.device) for device in devices]) > _KEPT_BYTES:
            self._devices, self._written, self._since = (), [], None
            pieces: list[Iterable[bytes]] = [self._stream(devices, since, family) for family in range(4)]
        else:
            written = self._update(devices, since)
            self._devices, self._written, self._since = devices, written, since
            pieces = [("".join([one.lines(family) for one in written]).encode(),) for family in range(4)]
        if not state.snapshot.complete:
            pieces[_HEALTHY] = ()
        return [Lines(head, lines) for head, lines in zip(_heads(), pieces, strict=True)]

    def _stream(
        self, devices: tuple[Device, ...], since: Mapping[Holding, HeldSince], family: int
    ) -> Iterator[bytes]:
        """One family's lines, without keeping them."""
        for at in range(0, len(devices), _TURN):
            some = devices[at : at + _TURN]
            yield "".join([self._write(one, _starts(one, since)).lines(family) for one in some]).encode()
            time.sleep(_YIELD)

    def _update(self, devices: tuple[Device, ...], since: Mapping[Holding, HeldSince]) -> list[_Written]:
        # By identity: the last devices are alive, so no other object has one of their ids.
        kept = dict(zip(map(id, self._devices), self._written, strict=True))
        same = since is self._since
        written: list[_Written] = []
        for count, device in enumerate(devices, 1):
            one = kept.get(id(device))
            if one is None or not (same or not device.holders or one.starts == _starts(device, since)):
                one = self._write(device, _starts(device, since))
                if not count % _TURN:
                    time.sleep(_YIELD)
            written.append(one)
        return written

    def _write(self, device: Device, starts: tuple[float, ...]) -> _Written:
        """One device's lines, with labels in the order of their names as prometheus_client writes them."""
        node = self._node
        resource, name = escaped(device.key.resource), escaped(device.key.device)
        parent = escaped(device.parent)
        info = (
            f'devicelens_device_info{{device="{name}",node="{node}",numa_node="{numa(device.numa_nodes)}",'
            f'parent="{parent}",resource="{resource}"}} 1.0\n'
        )
        healthy = (
            f'devicelens_device_healthy{{device="{name}",node="{node}",resource="{resource}"}} '
            f"{'1.0' if device.allocatable else '0.0'}\n"
        )
        owners, held = "", ""
        for holder, at in zip(device.holders, starts, strict=True):
            namespace, pod, container, uid = map(escaped, holder)
            owners += (
                f'devicelens_device_owner_info{{container="{container}",device="{name}",'
                f'namespace="{namespace}",node="{node}",parent="{parent}",pod="{pod}",pod_uid="{uid}",'
                f'resource="{resource}"}} 1.0\n'
            )
            held += (
                f'devicelens_device_held_since_timestamp_seconds{{container="{container}",device="{name}",'
                f'namespace="{namespace}",node="{node}",pod="{pod}",resource="{resource}"}} {_number(at)}\n'
            )
        return _Written(info, owners, healthy, held, starts)


def _starts(device: Device, since: Mapping[Holding, HeldSince]) -> tuple[float, ...]:
    return tuple([since[Holding(device.key, holder)].at for holder in device.holders])


_CALM: Final = 60.0
_log = Log("metrics")


class SeriesGroup(Enum):
    """Families that are exposed or left out together."""

    DEVICES = "devices"
    ANOMALIES = "anomalies"
    HOLDERS = "containers and pods"
    RESOURCES = "resources"


class SeriesPart(NamedTuple):
    """A group's series of one resource; "": of claimed devices, or of all resources."""

    group: SeriesGroup
    resource: str = ""

    def __str__(self) -> str:
        if self.resource:
            return f"{self.group.value} of {quoted(self.resource)}"
        return "claimed devices" if self.group is SeriesGroup.DEVICES else self.group.value


@dataclass(frozen=True, slots=True)
class SeriesPlan:
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

    def devices(self, state: State) -> tuple[Device, ...]:
        """The devices whose series are exposed."""
        devices = state.snapshot.devices
        if not self.left_out:
            return devices
        return tuple([device for device in devices if self.exposes(SeriesGroup.DEVICES, device.key.resource)])

    def by_resource(self) -> Mapping[str, int]:
        """The number of series that are left out, by the resource of their devices or anomalies."""
        found: Counter[str] = Counter()
        for part, series in self.left_out.items():
            if part.resource:
                found[part.resource] += series
        return found


def count_series(state: State) -> dict[SeriesPart, int]:
    """The number of series of each part."""
    snapshot = state.snapshot
    of_each = 2 if snapshot.complete else 1
    devices: Counter[str] = Counter()
    for device in snapshot.devices:
        devices[device.key.resource] += of_each + 2 * len(device.holders)
    devices.update(device.key.resource for device, _ in snapshot.unconfirmed_owners())
    counted = Counter({SeriesPart(SeriesGroup.DEVICES, name): series for name, series in devices.items()})
    counted[SeriesPart(SeriesGroup.DEVICES)] += sum(len(claim.holders) for claim in snapshot.claims)
    for anomaly in state.anomalies:
        counted[anomaly_part(anomaly)] += 1
    counted[SeriesPart(SeriesGroup.HOLDERS)] += sum(
        len(container.devices) + bool(container.cpu_ids) + len(container.memory) + bool(container.numa_nodes)
        for container in snapshot.containers
    ) + sum(1 + bool(identity.labels) for identity in state.pods.values())
    counted[SeriesPart(SeriesGroup.RESOURCES)] = (2 * of_each + 1) * len(snapshot.resources())
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
    """--metrics.max-series: protects Prometheus from a node with too many series. Logs when it is reached."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._exceeded = Episode(_log, "there are more series than --metrics.max-series", calm=_CALM)
        self._last: tuple[int, SeriesPlan] | None = None

    def plan(self, state: State) -> SeriesPlan:
        """The plan for `state`. May be called from any thread."""
        last = self._last
        if last is None or last[0] != state.generation:
            # One assignment: two threads at once count twice, without harm.
            self._last = last = (state.generation, plan_series(state, self._limit))
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
