"""Remembers devices that the kubelet offered or a pod held once, and that no answer names any more.

kubelet: GetAllocatableResources lists healthy devices only. A free device that fails is missing from every
answer, and so is a device whose plugin no longer lists it or is gone. Such a device stays in the snapshot as
*no longer offered* until an answer names it again, or for `forget_after` seconds.

While GetAllocatableResources is not answered, nothing is known of devices that no pod holds: the memory then
waits. The memory is bounded: a plugin may list new ids each time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.mapping.model import Claimed, Device, DeviceKey, Snapshot

FORGET_AFTER: Final = 86_400.0
"""Seconds for which a device stays: the default of --forget-after."""
PER_RESOURCE: Final = 1024
"""Devices of one resource that are remembered; further ones are left out."""
IN_ALL: Final = 4096
"""Devices of all resources that are remembered."""
ID_CHARACTERS: Final = 1 << 20
"""Characters of their ids."""


class RememberedDevice(NamedTuple):
    """A device as it was last known. `since` is the unix time from which the kubelet has not offered it,
    `vanished_at` the monotonic time of the first answer that did not name it.
    """

    since: float
    vanished_at: float
    parent: str = ""
    numa_nodes: tuple[int, ...] = ()
    claimed: Claimed | None = None


_NONE: Final[Mapping[DeviceKey, RememberedDevice]] = MappingProxyType({})


class DeviceMemory(Struct, frozen=True):
    """The memory after some snapshots. Immutable, so that a snapshot which is not believed leaves no trace.

    `devices` are those to remember, the same object while they do not change. `notes` say of which resources
    devices are left out.
    """

    forget_after: float
    devices: Mapping[DeviceKey, RememberedDevice] = field(default_factory=lambda: _NONE)
    notes: tuple[str, ...] = ()
    _stopped: Mapping[DeviceKey, float] = field(default_factory=lambda: MappingProxyType({}))
    """Unix time from which each device that was offered or held once has not been offered."""
    _last: Snapshot | None = None
    """The last snapshot with known allocatable devices."""

    def after(self, snapshot: Snapshot, *, now: float, at: float) -> "DeviceMemory":
        """The memory after `snapshot`, which was built with `devices`. `now` is its unix time, `at` its
        monotonic time.
        """
        over = self.expired(at)
        if self.forget_after <= 0 or (snapshot is self._last and not over):
            return self
        kept = {key: device for key, device in self.devices.items() if not (over and self._over(device, at))}
        if not snapshot.complete:
            return replace(self, devices=MappingProxyType(kept)) if over else self
        last = self._last
        changed = None if last is None else snapshot.changed_since(last)
        if changed is None:
            before = {} if last is None else {device.key: device for device in last.devices}
            named: Iterable[Device] = snapshot.devices
            vanished = {
                key
                for key in before.keys() - {device.key for device in named}
                # Of other resources only devices that a pod holds are known.
                if snapshot.knows_all(key.resource)
            }
            stopped = self._stopped_by(named, before, now)
        else:
            before, named, vanished = {was.key: was for was, _ in changed}, [new for _, new in changed], set()
            stopped = {key: since for key, since in self._stopped.items() if key not in before}
            stopped |= self._stopped_by(named, before, now)
        if kept:
            for device in named:
                if device.no_longer_offered_since is None:
                    kept.pop(device.key, None)
        notes = self._add(kept, [before[key] for key in sorted(vanished)], now, at)
        stopped |= {key: device.since for key, device in kept.items()}
        devices = self.devices if kept == self.devices else MappingProxyType(kept)
        return DeviceMemory(self.forget_after, devices, notes, MappingProxyType(stopped), snapshot)

    def built(self, snapshot: Snapshot) -> "DeviceMemory":
        """The same memory, where `snapshot` is the last one with the present `devices`."""
        kept = snapshot is self._last or not snapshot.complete or self.forget_after <= 0
        return self if kept else replace(self, _last=snapshot)

    def expired(self, at: float) -> bool:
        """Whether a device is to be forgotten at monotonic time `at`."""
        return bool(self.devices) and any(self._over(device, at) for device in self.devices.values())

    def _over(self, device: RememberedDevice, at: float) -> bool:
        return at >= device.vanished_at + self.forget_after

    def _stopped_by(
        self, devices: Iterable[Device], before: Mapping[DeviceKey, Device], now: float
    ) -> dict[DeviceKey, float]:
        """Since when each of `devices` has not been offered, if it was offered or held once."""
        found: dict[DeviceKey, float] = {}
        for device in devices:
            key = device.key
            if device.allocatable:
                continue
            was = before.get(key)
            if key in self._stopped:
                found[key] = self._stopped[key]
            elif device.holders or (was is not None and was.allocatable):
                found[key] = now
        return found

    def _add(
        self, kept: dict[DeviceKey, RememberedDevice], gone: Iterable[Device], now: float, at: float
    ) -> tuple[str, ...]:
        """Add the devices that are `gone` to `kept`, within the limits; returns the notes."""
        number = Counter(key.resource for key in kept)
        characters = sum(len(key.device) for key in kept)
        full = {} if not kept else dict.fromkeys(self.notes)
        for device in gone:
            key = device.key
            since = now if device.allocatable else self._stopped.get(key)
            if since is None or device.no_longer_offered_since is not None:
                continue
            room = number[key.resource] < PER_RESOURCE and len(kept) < IN_ALL
            if not room or characters + len(key.device) > ID_CHARACTERS:
                full[_note(key.resource)] = None
                continue
            number[key.resource] += 1
            characters += len(key.device)
            claimed = device.claimed and Claimed(device.claimed.name, cdi=device.claimed.cdi)
            kept[key] = RememberedDevice(since, at, device.parent, device.numa_nodes, claimed)
        return tuple(full)


def _note(resource: str) -> str:
    return f"too many devices of {resource} are no longer offered: the mapping leaves out the further ones"
