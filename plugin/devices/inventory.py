"""What a resource advertises: devices and their health, shares, and tombstones of held devices.

An id that the kubelet has received stays in the list as unhealthy until no pod can hold it. When an
allocated id disappears, the kubelet reports its pod as healthy; when that happens during Allocate, the
kubelet panics. No I/O and no clock; callers pass the time.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from plugin.config.plan import UNSHARED, Sharing
from plugin.devices.device import Device
from plugin.names import in_order, natural
from runtime.clock import Instant


class ObservedDevice(Struct, frozen=True, gc=False):
    """A device with its present health. `reason`: why it is unhealthy; empty for a healthy one."""

    device: Device
    reason: str = ""


class TrackedDevice(Struct, frozen=True, gc=False):
    """An advertised device. `since`: unix time of its last change of health.

    `vanished`: monotonic time since when no scan finds it; None while it is found.
    """

    device: Device
    reason: str
    since: float
    vanished: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether it is advertised as healthy."""
        return not self.reason


class ListEntry(Struct, frozen=True, gc=False):
    """One entry of the list for the kubelet: a device, or one of its shares."""

    id: str
    known: TrackedDevice


class Tombstone(Struct, frozen=True):
    """A vanished device that is still advertised, with all its ids, or an orphan with a single id.

    An orphan is a held id that no device has, such as one from an earlier configuration. Its id may equal
    the id of a device.
    """

    id: str
    orphan: bool = False


class HealthTransition(Struct, frozen=True):
    """A change of a device's health, or a `new` device."""

    id: str
    healthy: bool
    reason: str
    new: bool = False


GONE: Final = "not found any more"
ORPHAN: Final = "held by a pod, but not found"
RELEASE_AFTER: Final = 60.0
"""Seconds that a tombstone stays at least, after the device vanished and after Allocate last named it."""
MAX_LIST_BYTES: Final = 3 * 1024 * 1024
"""Size limit of the advertised list; the kubelet accepts messages of 4 MiB."""
NO_ROOM: Final = "the list is full: the kubelet accepts at most 4 MiB"
_ENTRY_BYTES: Final = 40
"""Bytes of an entry besides its id: health, topology, field tags."""


class Inventory:
    """The devices of one resource. `generation` grows whenever the advertised list changes."""

    def __init__(self, sharing: Sharing = UNSHARED) -> None:
        self._sharing = sharing
        self._devices: dict[str, TrackedDevice] = {}
        self._ids: dict[str, tuple[str, ...]] = {}
        self._order: list[str] = []
        """Ids of devices in natural order."""
        self._entries: list[ListEntry] = []
        """The entries of the devices in that order, `_width` for each."""
        self._width = 1 if sharing.replicas is None else sharing.replicas
        self._orphans: dict[str, TrackedDevice] = {}
        self._shown: set[str] = set()
        self._adopted: set[str] = set()
        self._named: dict[str, Instant] = {}
        self._given: dict[str, float] = {}
        self._parents: dict[str, str] = {}
        self._bytes = 0
        self._advertised: tuple[ListEntry, ...] | None = ()
        self._left_out: dict[str, str] = {}
        self.generation = 0

    def __len__(self) -> int:
        return len(self._parents) + len(self._orphans)

    @property
    def devices(self) -> Mapping[str, TrackedDevice]:
        """Physical devices by id."""
        return self._devices

    @property
    def left_out(self) -> Mapping[str, str]:
        """Present devices that cannot be advertised, with the reason."""
        return self._left_out

    def advertised(self) -> tuple[ListEntry, ...]:
        """The whole list in natural order of ids. Unchanged entries are the same objects as before."""
        if self._advertised is None:
            orphans = [ListEntry(i, self._orphans[i]) for i in in_order(self._orphans)]
            self._advertised = (*self._entries, *orphans)
        return self._advertised

    def find(self, advertised_id: str) -> TrackedDevice | None:
        """The device behind an advertised id, if any."""
        parent = self._parents.get(advertised_id)
        return self._devices[parent] if parent is not None else self._orphans.get(advertised_id)

    def may_be_held(self, device_id: str) -> bool:
        """Whether a pod may hold the device: Allocate named it, or a pod held it before this process."""
        return any(i in self._named or i in self._adopted for i in self._ids.get(device_id, ()))

    def maybe_held(self) -> Iterator[tuple[str, Device]]:
        """Advertised ids that a pod may hold, each with its device."""
        for advertised_id in {*self._named, *self._adopted}:
            known = self.find(advertised_id)
            if known is not None:
                yield advertised_id, known.device

    def last_given(self, advertised_id: str) -> float | None:
        """Unix time at which Allocate last gave out this id, if ever."""
        return self._given.get(advertised_id)

    def survey(self, sightings: Iterable[ObservedDevice], now: Instant) -> tuple[HealthTransition, ...]:
        """Apply a full scan. A device that is missing becomes a tombstone."""
        every = list(sightings)
        self._left_out = {}
        return self.update(every, self.missing({sighting.device.id for sighting in every}), now)

    def missing(self, present: Collection[str]) -> tuple[str, ...]:
        """The devices that were found until now, and are not `present`."""
        return tuple([i for i, known in self._devices.items() if i not in present and known.vanished is None])

    def update(
        self, sightings: Iterable[ObservedDevice], gone: Iterable[str], now: Instant
    ) -> tuple[HealthTransition, ...]:
        """Apply a partial scan: changed devices, and ids of missing ones."""
        transitions: list[HealthTransition] = []
        seen: set[str] = set()
        for sighting in sightings:
            if sighting.device.id not in seen:
                seen.add(sighting.device.id)
                self._observe(sighting, now, transitions)
        for device_id in gone:
            self._left_out.pop(device_id, None)
            known = self._devices.get(device_id)
            if known is not None and known.vanished is None:
                self._vanish(device_id, now, transitions)
        return tuple(transitions)

    def shown(self) -> None:
        """Record that the list goes to the kubelet: from now on pods may hold its ids."""
        self._shown.update(self._devices)

    def adopt(self, held: Iterable[str], now: Instant) -> None:
        """Add ids that pods held before this process started."""
        for advertised_id in held:
            parent = self._parents.get(advertised_id)
            self._adopted.add(advertised_id)
            if parent is not None:
                self._shown.add(parent)
            elif advertised_id not in self._orphans and self._has_room((advertised_id,)):
                orphan = TrackedDevice(Device(advertised_id, advertised_id), ORPHAN, now.wall, now.monotonic)
                self._orphans[advertised_id] = orphan
                self._bytes += _cost(advertised_id)
                self._changed()

    def name(self, advertised_ids: Iterable[str], now: Instant) -> None:
        """Record that Allocate names these ids: from now on pods may hold them."""
        for advertised_id in advertised_ids:
            if self.find(advertised_id) is not None:
                self._named[advertised_id] = now

    def give(self, advertised_ids: Iterable[str], now: Instant) -> None:
        """Record that Allocate gave out these ids."""
        self._given |= {i: now.wall for i in advertised_ids if i in self._named}

    def releasable(self, now: Instant) -> frozenset[Tombstone]:
        """Tombstones that may be dropped if no pod holds them."""
        devices = (i for i, known in self._devices.items() if self._is_releasable(known, self._ids[i], now))
        orphans = (i for i, known in self._orphans.items() if self._is_releasable(known, (i,), now))
        return frozenset([*map(Tombstone, devices), *(Tombstone(i, orphan=True) for i in orphans)])

    def release(
        self, candidates: frozenset[Tombstone], held: Collection[str], now: Instant
    ) -> tuple[str, ...]:
        """Drop the `candidates` that no pod holds; returns their ids.

        `candidates` comes from `releasable`, called before `held` was read from the kubelet. What Allocate
        named or a scan found in between stays.
        """
        dropped: list[str] = []
        for tombstone in self.releasable(now) & candidates:
            ids = (tombstone.id,) if tombstone.orphan else self._ids[tombstone.id]
            if any(i in held for i in ids):
                continue
            if tombstone.orphan:
                self._drop_orphan(tombstone.id)
            else:
                self._drop(tombstone.id)
            dropped.append(tombstone.id)
        return tuple(dropped)

    def _observe(self, sighting: ObservedDevice, now: Instant, transitions: list[HealthTransition]) -> None:
        device = sighting.device
        known = self._devices.get(device.id)
        if known is None:
            self._add(sighting, now, transitions)
            return
        if known.device is device and known.reason == sighting.reason and known.vanished is None:
            return
        healthy = not sighting.reason
        since = known.since if healthy == known.healthy else now.wall
        new = TrackedDevice(device, sighting.reason, since)
        if new == known:
            return
        if healthy != known.healthy:
            transitions.append(HealthTransition(device.id, healthy, sighting.reason))
        self._set(self._position(device.id), new)

    def _add(self, sighting: ObservedDevice, now: Instant, transitions: list[HealthTransition]) -> None:
        """Advertise a new device, unless its ids conflict or the list is full."""
        device_id = sighting.device.id
        self._left_out.pop(device_id, None)
        ids = self._sharing.ids(device_id)
        problem = ids if isinstance(ids, str) else self._conflict(ids)
        if isinstance(ids, str) or problem is not None:
            self._left_out[device_id] = problem or ""
            return
        adopted = [i for i in ids if i in self._orphans]
        for advertised_id in adopted:
            self._drop_orphan(advertised_id, keep_named=True)
        self._ids[device_id] = ids
        self._parents.update(dict.fromkeys(ids, device_id))
        self._bytes += sum(map(_cost, ids))
        if adopted:
            self._shown.add(device_id)
        at = self._position(device_id)
        self._order.insert(at, device_id)
        self._set(at, TrackedDevice(sighting.device, sighting.reason, now.wall), replaced=0)
        transitions.append(HealthTransition(device_id, not sighting.reason, sighting.reason, new=True))

    def _conflict(self, ids: tuple[str, ...]) -> str | None:
        for advertised_id in ids:
            if advertised_id in self._parents:
                return f"its id {advertised_id!r} is an id of {self._parents[advertised_id]!r} already"
        if any(i in self._orphans for i in ids) or self._has_room(ids):
            return None
        return NO_ROOM

    def _set(self, at: int, known: TrackedDevice, *, replaced: int = 1) -> None:
        """Replace the entries of the device at position `at`, or insert them where none are `replaced`."""
        entries = [ListEntry(i, known) for i in self._ids[known.device.id]]
        self._entries[at * self._width : (at + replaced) * self._width] = entries
        self._devices[known.device.id] = known
        self._changed()

    def _position(self, device_id: str) -> int:
        key = natural(device_id)
        if self._order and natural(self._order[-1]) < key:
            return len(self._order)  # a scan finds devices in their order
        return bisect_left(self._order, key, key=natural)

    def _vanish(self, device_id: str, now: Instant, transitions: list[HealthTransition]) -> None:
        known = self._devices[device_id]
        if device_id not in self._shown and not any(i in self._named for i in self._ids[device_id]):
            self._drop(device_id)
            return
        since = now.wall if known.healthy else known.since
        if known.healthy:
            transitions.append(HealthTransition(device_id, healthy=False, reason=GONE))
        gone = replace(known, reason=GONE, since=since, vanished=now.monotonic)
        self._set(self._position(device_id), gone)

    def _is_releasable(self, known: TrackedDevice, ids: Iterable[str], now: Instant) -> bool:
        if known.vanished is None or now.monotonic - known.vanished < RELEASE_AFTER:
            return False
        named = (self._named[i].monotonic for i in ids if i in self._named)
        return all(now.monotonic - at >= RELEASE_AFTER for at in named)

    def _drop(self, device_id: str) -> None:
        at = self._position(device_id)
        del self._order[at]
        del self._entries[at * self._width : (at + 1) * self._width]
        self._changed()
        for advertised_id in self._ids.pop(device_id):
            del self._parents[advertised_id]
            self._adopted.discard(advertised_id)
            self._named.pop(advertised_id, None)
            self._given.pop(advertised_id, None)
            self._bytes -= _cost(advertised_id)
        del self._devices[device_id]
        self._shown.discard(device_id)

    def _drop_orphan(self, advertised_id: str, *, keep_named: bool = False) -> None:
        del self._orphans[advertised_id]
        self._bytes -= _cost(advertised_id)
        if not keep_named:
            self._adopted.discard(advertised_id)
            self._named.pop(advertised_id, None)
            self._given.pop(advertised_id, None)
        self._changed()

    def _has_room(self, ids: Collection[str]) -> bool:
        return self._bytes + sum(map(_cost, ids)) <= MAX_LIST_BYTES

    def _changed(self) -> None:
        self.generation += 1
        self._advertised = None


def _cost(advertised_id: str) -> int:
    return len(advertised_id.encode()) + _ENTRY_BYTES
