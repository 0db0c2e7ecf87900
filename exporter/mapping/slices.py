"""Which devices the node's ResourceSlices publish now. Pure; time is an argument, in seconds.

A pool is published by the slices of its newest complete generation. Drivers replace the slices of a pool one
by one, and the kubelet deletes all slices of a driver at its own start, and 30 s after the driver's last
connection is lost. The last devices are kept meanwhile.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.mapping.dra import CounterName, PublishedDevice, PublishedName
from exporter.mapping.partitions import parents
from exporter.mapping.published import SliceContent
from runtime.text import named, visible

RETURN_WITHIN: Final = 90.0
"""Seconds for which a pool keeps its last devices when all its slices vanish. Kubernetes' library for drivers
publishes deleted slices again 30 s after the last deletion, and those that it has just made up to a minute
later.
"""
MAX_SLICES: Final = 4096
MAX_DEVICES: Final = 65_536
"""Devices of all slices that are kept."""

_NAMED: Final = 3
"""Pools that a note names."""

PoolName = tuple[str, str]
"""Driver and pool."""


class _Pool(Struct):
    """A pool: its slices by name, and what its last complete generation published; `generation` is None
    before the first one. `gone`: since when there are no slices.
    """

    parts: dict[str, SliceContent] = field(default_factory=dict[str, SliceContent])
    generation: int | None = None
    devices: Mapping[PublishedName, PublishedDevice] = field(
        default_factory=dict[PublishedName, PublishedDevice]
    )
    counters: Mapping[CounterName, float] = field(default_factory=dict[CounterName, float])
    gone: float | None = None


class PublishedDevices:
    """The devices that slices publish, one event after the other. An event costs the work of its slice; where
    partitions share counters, of its pool.
    """

    def __init__(self, node: str) -> None:
        """Slices of another node than `node` are ignored."""
        self._node = node
        self._pools: dict[PoolName, _Pool] = {}
        self._pool_of: dict[str, PoolName] = {}
        self._devices = 0
        self._left_out: set[str] = set()
        self.revision = 0
        """Rises when `published` or `counters` change."""
        self._published: Mapping[PublishedName, PublishedDevice] | None = None
        self._counters: Mapping[CounterName, float] = {}

    @property
    def published(self) -> Mapping[PublishedName, PublishedDevice]:
        """All devices; the same mapping and the same objects until they change."""
        if self._published is None:
            devices: dict[PublishedName, PublishedDevice] = {}
            counters: dict[CounterName, float] = {}
            for _, pool in sorted(self._pools.items()):
                devices.update(pool.devices)
                counters.update(pool.counters)
            self._published, self._counters = MappingProxyType(devices), MappingProxyType(counters)
        return self._published

    @property
    def counters(self) -> Mapping[CounterName, float]:
        """The amounts that partitions share."""
        _ = self.published
        return self._counters

    @property
    def drivers(self) -> frozenset[str]:
        """The drivers all of whose pools are known."""
        unknown = {driver for (driver, _), pool in self._pools.items() if pool.generation is None}
        return frozenset(driver for driver, _ in self._pools) - unknown - self._left_out

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the slices is not known, and why; for a person."""
        pools = sorted(self._pools.items())
        unknown = [name for name, pool in pools if pool.generation is None]
        gone = [name for name, pool in pools if pool.gone is not None]
        notes = (
            [f"the slices of pool {_named(unknown)} are not complete, or name a device twice"]
            if unknown
            else []
        )
        if gone:
            notes.append(f"the slices of pool {_named(gone)} are gone: devices are as before")
        if self._left_out:
            notes.append(
                f"more than {MAX_SLICES} ResourceSlices or {MAX_DEVICES} devices: the others are left out"
            )
        return tuple(notes)

    def replace(self, slices: Iterable[SliceContent], now: float) -> None:
        """These are all slices."""
        self._left_out.clear()
        listed = {one.name: one for one in slices}
        touched = [self._take(name) for name in [*self._pool_of]]
        touched += [self._store(one) for one in listed.values()]
        for pool in dict.fromkeys(touched):
            self._settle(pool, now)

    def put(self, found: SliceContent, now: float) -> None:
        """A slice appeared or changed."""
        before = self._take(found.name)
        for pool in dict.fromkeys((before, self._store(found))):
            self._settle(pool, now)

    def remove(self, name: str, now: float) -> None:
        """The slice of this name was deleted."""
        self._settle(self._take(name), now)

    def expire(self, now: float) -> float | None:
        """Drop the devices of pools that did not come back in time. Returns when to call again, if at all."""
        times = {of: pool.gone + RETURN_WITHIN for of, pool in self._pools.items() if pool.gone is not None}
        for of in [of for of, at in times.items() if at <= now]:
            del self._pools[of], times[of]
            self._change()
        return min(times.values(), default=None)

    def _take(self, name: str) -> PoolName | None:
        """Remove a slice. Returns its pool."""
        of = self._pool_of.pop(name, None)
        if of is not None:
            self._devices -= len(self._pools[of].parts.pop(name).devices)
        return of

    def _store(self, found: SliceContent) -> PoolName | None:
        """Add a slice. Returns its pool, None for a slice that does not count."""
        if found.node != self._node:
            return None
        if len(self._pool_of) >= MAX_SLICES or self._devices + len(found.devices) > MAX_DEVICES:
            # The pool is incomplete without this slice.
            if len(self._left_out) < MAX_SLICES:
                self._left_out.add(found.driver)
            return None
        of = (found.driver, found.pool)
        pool = self._pools.setdefault(of, _Pool())
        devices = {name: _kept(pool.devices.get(name), device) for name, device in found.devices.items()}
        pool.parts[found.name] = found._replace(devices=devices)
        self._pool_of[found.name] = of
        self._devices += len(devices)
        return of

    def _settle(self, of: PoolName | None, now: float) -> None:
        """Decide what a pool publishes, after its slices changed."""
        if of is None:
            return
        pool = self._pools[of]
        if not pool.parts:
            if pool.generation is None:
                del self._pools[of]
            elif pool.gone is None:
                # A driver begins with generation 1 again.
                pool.gone, pool.generation = now, 0
            return
        pool.gone = None
        generations: dict[int, list[SliceContent]] = defaultdict(list)
        for _, part in sorted(pool.parts.items()):
            generations[part.generation].append(part)
        complete = [
            generation
            for generation, parts in generations.items()
            if all(part.size == len(parts) for part in parts)
        ]
        if not complete:
            return
        newest, last = max(complete), pool.generation
        if last is not None and newest < last <= max(generations):
            return
        self._publish(of, pool, newest, generations[newest])

    def _publish(self, of: PoolName, pool: _Pool, generation: int, parts: Sequence[SliceContent]) -> None:
        devices: dict[PublishedName, PublishedDevice] = {}
        counters: dict[CounterName, float] = {}
        for part in parts:
            devices.update(part.devices)
            counters.update({CounterName(*of, *name): amount for name, amount in part.counters.items()})
        if len(devices) < sum([len(part.devices) for part in parts]):
            # Kubernetes: a pool that names a device twice is invalid: none of its devices is allocated.
            return
        if any(device.consumes for device in devices.values()):
            found = parents(devices.values(), counters)
            for name, parent in found.items():
                device = devices[name]
                if device.parent != parent:
                    devices[name] = _kept(pool.devices.get(name), replace(device, parent=parent))
        pool.generation = generation
        if devices != pool.devices or counters != pool.counters:
            pool.devices, pool.counters = devices, counters
            self._change()

    def _change(self) -> None:
        self.revision += 1
        self._published = None


def _named(pools: Sequence[PoolName]) -> str:
    return named([f"{visible(name)} of {visible(driver)}" for driver, name in pools], limit=_NAMED)


def _kept(before: PublishedDevice | None, device: PublishedDevice) -> PublishedDevice:
    """The object that was published before, if it is the same device."""
    return before if before is not None and before == device else device
