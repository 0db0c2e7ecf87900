"""The families with a series for each device or each of its holders: most of what a scrape is made of.

Their lines are written directly, and those of a device are kept until it is another one: a node has
thousands of them, and a change concerns a few.

How many series a mapping makes, and which of them are left out where that is more than is wanted.

The limit is a fuse: what a node holds is counted before anything is written. First go the series of single
devices, then those of containers, pods and anomalies, last those of resources, so that sums are told for
longest.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.utils import floatToGoString

from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.model import Device
from exporter.mapping.state import State
from runtime.exposition import Lines, escaped
from runtime.log import Episode, Log

_KEPT: Final = 16_384
"""Devices whose lines are kept; with more of them memory is worth more than time."""
_KEPT_BYTES: Final = 4 << 20
"""The same of the bytes of their ids."""
_TURN: Final = 128
"""Devices after which other threads get their turn: about a millisecond's work."""
_BREATH: Final = 50e-6

_number: Final = lru_cache(maxsize=1024)(floatToGoString)


def numa(nodes: Sequence[int]) -> str:
    """NUMA nodes as a label: "0", "0,1" for several, "" where none is known."""
    return ",".join(str(node) for node in nodes)


class _Written(NamedTuple):
    """One device's lines in each family, and since when its holders have it."""

    info: str
    owners: str
    healthy: str
    held_since: str
    since: tuple[float, ...]

    def lines(self, family: int) -> str:
        """Those of the family of this number."""
        return (self.info, self.owners, self.healthy, self.held_since)[family]


_HEALTHY: Final = _Written._fields.index("healthy")


class DeviceLines:
    """Writes the families of a node's devices, state after state. One thread at a time."""

    def __init__(self, node: str) -> None:
        self._node = escaped(node)
        self._devices: tuple[Device, ...] = ()
        self._written: list[_Written] = []
        self._since: Mapping[Holding, HeldSince] | None = None

    def of(self, state: State) -> list[Lines]:
        """devicelens_device_info, …_owner_info, …_healthy and …_held_since_timestamp_seconds."""
        devices, since = state.snapshot.devices, state.since
        if len(devices) > _KEPT or sum([len(device.key.device) for device in devices]) > _KEPT_BYTES:
            self._devices, self._written, self._since = (), [], None
            pieces: list[Iterable[bytes]] = [self._anew(devices, since, family) for family in range(4)]
        else:
            written = self._all(devices, since)
            self._devices, self._written, self._since = devices, written, since
            pieces = [_joined([one.lines(family) for one in written]) for family in range(4)]
        if not state.snapshot.complete:
            pieces[_HEALTHY] = ()
        heads = (_info(), _owner_info(), _healthy(), _held_since())
        return [Lines(head, lines) for head, lines in zip(heads, pieces, strict=True)]

    def _anew(
        self, devices: tuple[Device, ...], since: Mapping[Holding, HeldSince], family: int
    ) -> Iterator[bytes]:
        """One family's lines, of which nothing is kept."""
        for at in range(0, len(devices), _TURN):
            some = devices[at : at + _TURN]
            yield "".join([self._write(one, _times(one, since)).lines(family) for one in some]).encode()
            time.sleep(_BREATH)

    def _all(self, devices: tuple[Device, ...], since: Mapping[Holding, HeldSince]) -> list[_Written]:
        # By identity: the devices of before are alive, so an id names none but them.
        kept = dict(zip(map(id, self._devices), self._written, strict=True))
        same = since is self._since
        written: list[_Written] = []
        for count, device in enumerate(devices, 1):
            one = kept.get(id(device))
            if one is None or not (same or not device.holders or one.since == _times(device, since)):
                one = self._write(device, _times(device, since))
                if not count % _TURN:
                    time.sleep(_BREATH)
            written.append(one)
        return written

    def _write(self, device: Device, since: tuple[float, ...]) -> _Written:
        """Labels in the order of their names."""
        node, healthy = self._node, "1.0" if device.allocatable else "0.0"
        resource, name, parent = (
            escaped(device.key.resource),
            escaped(device.key.device),
            escaped(device.parent),
        )
        info = (
            f'devicelens_device_info{{device="{name}",node="{node}",numa_node="{numa(device.numa_nodes)}",'
            f'parent="{parent}",resource="{resource}"}} 1.0\n'
        )
        if not device.holders:
            nobody = (
                f'devicelens_device_healthy{{container="",device="{name}",namespace="",node="{node}",pod="",'
                f'resource="{resource}"}} {healthy}\n'
            )
            return _Written(info, "", nobody, "", ())
        owners, health, held = "", "", ""
        for holder, at in zip(device.holders, since, strict=True):
            namespace, pod, container, uid = map(escaped, holder)
            owners += (
                f'devicelens_device_owner_info{{container="{container}",device="{name}",'
                f'namespace="{namespace}",node="{node}",parent="{parent}",pod="{pod}",pod_uid="{uid}",'
                f'resource="{resource}"}} 1.0\n'
            )
            labels = (
                f'{{container="{container}",device="{name}",namespace="{namespace}",node="{node}",'
                f'pod="{pod}",resource="{resource}"}}'
            )
            health += f"devicelens_device_healthy{labels} {healthy}\n"
            held += f"devicelens_device_held_since_timestamp_seconds{labels} {_number(at)}\n"
        return _Written(info, owners, health, held, since)


def _times(device: Device, since: Mapping[Holding, HeldSince]) -> tuple[float, ...]:
    return tuple([since[Holding(device.key, holder)].at for holder in device.holders])


def _joined(lines: list[str]) -> tuple[bytes, ...]:
    return ("".join(lines).encode(),)


def _info() -> Metric:
    return GaugeMetricFamily(
        "devicelens_device_info",
        "A device that is allocatable, held, or known from its plugin (1); parent is the physical device "
        "behind a replica or slice. [STABLE]",
    )


def _owner_info() -> Metric:
    return GaugeMetricFamily(
        "devicelens_device_owner_info",
        "A container that holds a device (1); a shared device has several, a free one none. [STABLE]",
    )


def _healthy() -> Metric:
    return GaugeMetricFamily(
        "devicelens_device_healthy",
        "Whether the kubelet counts the device as allocatable: 1, or 0 when it is held, or known from its "
        "plugin, but not allocatable. [STABLE]",
    )


def _held_since() -> Metric:
    return GaugeMetricFamily(
        "devicelens_device_held_since_timestamp_seconds",
        "When this holder of the device was first seen, in unix time. [STABLE]",
    )


_CALM: Final = 60.0
_log = Log("metrics")


class SeriesGroup(Enum):
    """What is told or left out together; in the order in which it goes."""

    DEVICES = "of devices"
    HOLDERS = "of containers, pods and anomalies"
    RESOURCES = "of resources"


@dataclass(frozen=True, slots=True)
class SeriesPlan:
    """Of `series` in all, those of the groups `told` are told, and `dropped` are not."""

    told: frozenset[SeriesGroup]
    series: int
    dropped: int

    @property
    def left_out(self) -> str:
        """The groups that are not told, in words."""
        return " and ".join(group.value for group in SeriesGroup if group not in self.told)


def count_series(state: State) -> dict[SeriesGroup, int]:
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
        SeriesGroup.DEVICES: devices,
        SeriesGroup.HOLDERS: containers + pods + len(state.anomalies),
        SeriesGroup.RESOURCES: resources,
    }


def plan_series(state: State, limit: int) -> SeriesPlan:
    """What of `state` is told with at most `limit` series."""
    counted = count_series(state)
    told, left = set(SeriesGroup), sum(counted.values())
    for group in SeriesGroup:
        if left <= limit:
            break
        told.discard(group)
        left -= counted[group]
    series = sum(counted.values())
    return SeriesPlan(frozenset(told), series, series - left)


class SeriesLimit:
    """--metrics.max-series, and who says that it is reached."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._episode = Episode(_log, "there are more series than --metrics.max-series", calm=_CALM)
        self._seen: tuple[int, SeriesPlan] | None = None

    def plan(self, state: State) -> SeriesPlan:
        """What of `state` is told. May be called from any thread."""
        seen = self._seen
        if seen is None or seen[0] != state.generation:
            # One assignment: two threads that come together count twice, and no more.
            self._seen = seen = (state.generation, plan_series(state, self._limit))
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
