"""The families with a series for each device or holder (most of a scrape), and the limit on series.

Their lines are written directly, without prometheus_client, and kept for each device until it changes: a node
has thousands of devices, and a refresh changes a few.
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
            "A device that is allocatable, held, or known from its plugin (1); parent is the physical device "
            "behind a share or slice. [STABLE]",
        ),
        GaugeMetricFamily(
            "devicelens_device_owner_info",
            "A container that holds a device (1); a shared device has several, a free one none. [STABLE]",
        ),
        GaugeMetricFamily(
            "devicelens_device_healthy",
            "Whether the kubelet counts the device as allocatable: 1, or 0 when it is held, or known from "
            "its plugin, but not allocatable. [STABLE]",
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

    def of(self, state: State) -> list[Lines]:
        """devicelens_device_info, …_owner_info, …_healthy and …_held_since_timestamp_seconds."""
        devices, since = state.snapshot.devices, state.since
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
    """Families that are exposed or left out together, in the order in which they are left out."""

    DEVICES = "of devices"
    HOLDERS = "of containers, pods and anomalies"
    RESOURCES = "of resources"


@dataclass(frozen=True, slots=True)
class SeriesPlan:
    """The groups that are exposed; `dropped` of all `series` are left out."""

    exposed: frozenset[SeriesGroup]
    series: int
    dropped: int

    @property
    def left_out(self) -> str:
        """The groups that are left out, in words."""
        return " and ".join(group.value for group in SeriesGroup if group not in self.exposed)


def count_series(state: State) -> dict[SeriesGroup, int]:
    """The number of series of each group."""
    snapshot = state.snapshot
    held = sum([len(device.holders) for device in snapshot.devices])
    devices = len(snapshot.devices) + 2 * held + sum(len(claim.holders) for claim in snapshot.claims)
    resources = 2 * len(snapshot.resources())
    if snapshot.complete:
        devices += len(snapshot.devices)
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
    """Leave out groups until at most `limit` series are left: first the series of single devices, last those
    of resources, so that sums are exposed for longest.
    """
    counted = count_series(state)
    exposed, left = set(SeriesGroup), sum(counted.values())
    for group in SeriesGroup:
        if left <= limit:
            break
        exposed.discard(group)
        left -= counted[group]
    series = sum(counted.values())
    return SeriesPlan(frozenset(exposed), series, series - left)


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
            f"{found.series} series are more than --metrics.max-series {self._limit}: those {found.left_out} "
            "are left out of /metrics"
        )
        self._exceeded.failed(note)
        return (note,)
