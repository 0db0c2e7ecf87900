"""What a resource advertises: discovery and health merged, tombstones kept, replicas counted out.

The rule above all (kubelet: dropping a device that is allocated makes its pod look healthy, dropping
one whose Allocate is in flight makes the kubelet panic): an id that the kubelet was shown stays in the
list, unhealthy, until nobody can hold it. No I/O and no clock in here; time is handed in.

What is known of a resource's devices: words for the inventory and for those who read it.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from plugin.devices.device import PLAIN, Device, Sharing
from plugin.names import natural
from runtime.clock import Instant


@dataclass(frozen=True, slots=True)
class Sighting:
    """A device as discovery and health see it now; `reason` says why it is unhealthy, empty: healthy."""

    device: Device
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """A device that is advertised. `since`: wall time of its last change of health.

    `vanished`: steady time since when discovery does not find it; None while it does.
    """

    device: Device
    reason: str
    since: float
    vanished: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether it is advertised as healthy."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class Advertised:
    """One entry of the list that the kubelet sees: a device, or one of its replicas."""

    id: str
    known: Known


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is gone and still advertised: a device with all its ids, or the single id of an orphan.

    Told apart because an orphan, from another configuration, may be called as a device is now.
    """

    id: str
    orphan: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """A device's change of health, or its first appearance (`new`)."""

    id: str
    healthy: bool
    reason: str
    new: bool = False


__all__ = [
    "GONE",
    "MAX_LIST_BYTES",
    "ORPHAN",
    "RELEASE_AFTER",
    "Advertised",
    "Instant",
    "Inventory",
    "Known",
    "Sighting",
    "Tombstone",
    "Transition",
]

GONE: Final = "not found any more"
ORPHAN: Final = "held by a pod, but not found"
RELEASE_AFTER: Final = 60.0
"""Seconds for which a tombstone is kept at least, since it vanished and since Allocate last named it."""
MAX_LIST_BYTES: Final = 3 * 1024 * 1024
"""How large the advertised list may grow; the kubelet takes messages of 4 MiB."""
NO_ROOM: Final = "the kubelet takes no longer list"
_ENTRY_BYTES: Final = 40
"""What an entry of the list needs beside its id: health, topology, field marks."""


class Inventory:
    """The devices of one resource. `generation` grows whenever the advertised list changes."""

    def __init__(self, sharing: Sharing = PLAIN) -> None:
        self._sharing = sharing
        self._devices: dict[str, Known] = {}
        self._ids: dict[str, tuple[str, ...]] = {}
        self._order: list[tuple[tuple[tuple[str, int], ...], str]] = []
        self._entries: dict[str, tuple[Advertised, ...]] = {}
        self._orphans: dict[str, Known] = {}
        self._shown: set[str] = set()
        self._adopted: set[str] = set()
        self._named: dict[str, Instant] = {}
        self._given: dict[str, float] = {}
        self._parents: dict[str, str] = {}
        self._bytes = 0
        self._advertised: tuple[Advertised, ...] | None = ()
        self._left_out: dict[str, str] = {}
        self.generation = 0

    def __len__(self) -> int:
        return len(self._parents) + len(self._orphans)

    @property
    def devices(self) -> Mapping[str, Known]:
        """Physical devices by id."""
        return self._devices

    @property
    def left_out(self) -> Mapping[str, str]:
        """Devices that are there and cannot be advertised, and why."""
        return self._left_out

    def advertised(self) -> tuple[Advertised, ...]:
        """The whole list, in the natural order of ids; each id once. An entry that is the same is itself."""
        if self._advertised is None:
            entries = [entry for _, device_id in self._order for entry in self._entries[device_id]]
            entries += [Advertised(i, self._orphans[i]) for i in sorted(self._orphans, key=natural)]
            self._advertised = tuple(entries)
        return self._advertised

    def find(self, advertised_id: str) -> Known | None:
        """What is behind an advertised id; None for one that is not advertised."""
        parent = self._parents.get(advertised_id)
        return self._devices[parent] if parent is not None else self._orphans.get(advertised_id)

    def may_be_held(self, device_id: str) -> bool:
        """Whether a pod may hold the device: Allocate has named it, or it was held before this process."""
        return any(i in self._named or i in self._adopted for i in self._ids.get(device_id, ()))

    def maybe_held(self) -> Iterator[tuple[str, Device]]:
        """Advertised ids that a pod may hold, each with its device."""
        for advertised_id in {*self._named, *self._adopted}:
            known = self.find(advertised_id)
            if known is not None:
                yield advertised_id, known.device

    def last_given(self, advertised_id: str) -> float | None:
        """Wall time when Allocate last gave this id out, and did not refuse it; None if it never did."""
        return self._given.get(advertised_id)

    def survey(self, sightings: Iterable[Sighting], now: Instant) -> tuple[Transition, ...]:
        """Take in everything that is there; what is not among it becomes a tombstone."""
        every = list(sightings)
        seen = {sighting.device.id for sighting in every}
        self._left_out = {}
        gone = [i for i, known in self._devices.items() if i not in seen and known.vanished is None]
        return self.update(every, gone, now)

    def update(
        self, sightings: Iterable[Sighting], gone: Iterable[str], now: Instant
    ) -> tuple[Transition, ...]:
        """Take in what changed: devices that are there, and ids of those that are not there any more."""
        transitions: list[Transition] = []
        seen: set[str] = set()
        for sighting in sightings:
            if sighting.device.id not in seen:
                seen.add(sighting.device.id)
                self._see(sighting, now, transitions)
        for device_id in gone:
            self._left_out.pop(device_id, None)
            known = self._devices.get(device_id)
            if known is not None and known.vanished is None:
                self._vanish(device_id, now, transitions)
        return tuple(transitions)

    def shown(self) -> None:
        """The list as it is now goes to the kubelet: from here on its ids may be held."""
        self._shown.update(self._devices)

    def adopt(self, held: Iterable[str], now: Instant) -> None:
        """Take in ids that pods hold already, from before this process: none of them is ever dropped."""
        for advertised_id in held:
            parent = self._parents.get(advertised_id)
            self._adopted.add(advertised_id)
            if parent is not None:
                self._shown.add(parent)
            elif advertised_id not in self._orphans and self._has_room((advertised_id,)):
                orphan = Known(Device(advertised_id, advertised_id), ORPHAN, now.wall, now.monotonic)
                self._orphans[advertised_id] = orphan
                self._bytes += _cost(advertised_id)
                self._changed()

    def name(self, advertised_ids: Iterable[str], now: Instant) -> None:
        """Allocate names these ids: they may be held from now on."""
        for advertised_id in advertised_ids:
            if self.find(advertised_id) is not None:
                self._named[advertised_id] = now

    def give(self, advertised_ids: Iterable[str], now: Instant) -> None:
        """Allocate has given out these ids, which it named before."""
        self._given |= {i: now.wall for i in advertised_ids if i in self._named}

    def releasable(self, now: Instant) -> frozenset[Tombstone]:
        """What may go once it is known that nobody holds it."""
        devices = (i for i, known in self._devices.items() if self._ripe(known, self._ids[i], now))
        orphans = (i for i, known in self._orphans.items() if self._ripe(known, (i,), now))
        return frozenset([*map(Tombstone, devices), *(Tombstone(i, orphan=True) for i in orphans)])

    def release(
        self, candidates: frozenset[Tombstone], held: Collection[str], now: Instant
    ) -> tuple[str, ...]:
        """Drop those of `candidates` that nobody holds; returns what was dropped.

        `candidates`: what `releasable` said before the holders were asked for, `held`: every advertised
        id that is held by the answer. What was named or seen again in between stays.
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

    def _see(self, sighting: Sighting, now: Instant, transitions: list[Transition]) -> None:
        device = sighting.device
        known = self._devices.get(device.id)
        if known is None:
            self._begin(sighting, now, transitions)
            return
        healthy = not sighting.reason
        since = known.since if healthy == known.healthy else now.wall
        new = Known(device, sighting.reason, since)
        if new == known:
            return
        if healthy != known.healthy:
            transitions.append(Transition(device.id, healthy, sighting.reason))
        self._know(device.id, new)

    def _begin(self, sighting: Sighting, now: Instant, transitions: list[Transition]) -> None:
        """Advertise a device that was not advertised, unless something is in its way."""
        device_id = sighting.device.id
        self._left_out.pop(device_id, None)
        ids = self._sharing.ids(device_id)
        problem = ids if isinstance(ids, str) else self._in_the_way(ids)
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
        insort(self._order, (natural(device_id), device_id))
        transitions.append(Transition(device_id, not sighting.reason, sighting.reason, new=True))
        self._know(device_id, Known(sighting.device, sighting.reason, now.wall))

    def _in_the_way(self, ids: tuple[str, ...]) -> str | None:
        for advertised_id in ids:
            if advertised_id in self._parents:
                return f"its id {advertised_id!r} is an id of {self._parents[advertised_id]!r} already"
        if any(i in self._orphans for i in ids) or self._has_room(ids):
            return None
        return NO_ROOM

    def _know(self, device_id: str, known: Known) -> None:
        self._devices[device_id] = known
        self._entries[device_id] = tuple(Advertised(i, known) for i in self._ids[device_id])
        self._changed()

    def _vanish(self, device_id: str, now: Instant, transitions: list[Transition]) -> None:
        known = self._devices[device_id]
        if device_id not in self._shown and not any(i in self._named for i in self._ids[device_id]):
            self._drop(device_id)
            return
        since = now.wall if known.healthy else known.since
        if known.healthy:
            transitions.append(Transition(device_id, healthy=False, reason=GONE))
        self._know(device_id, replace(known, reason=GONE, since=since, vanished=now.monotonic))

    def _ripe(self, known: Known, ids: Iterable[str], now: Instant) -> bool:
        if known.vanished is None or now.monotonic - known.vanished < RELEASE_AFTER:
            return False
        named = (self._named[i].monotonic for i in ids if i in self._named)
        return all(now.monotonic - at >= RELEASE_AFTER for at in named)

    def _drop(self, device_id: str) -> None:
        for advertised_id in self._ids.pop(device_id):
            del self._parents[advertised_id]
            self._adopted.discard(advertised_id)
            self._named.pop(advertised_id, None)
            self._given.pop(advertised_id, None)
            self._bytes -= _cost(advertised_id)
        del self._devices[device_id]
        del self._entries[device_id]
        del self._order[bisect_left(self._order, (natural(device_id), device_id))]
        self._shown.discard(device_id)
        self._changed()

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
