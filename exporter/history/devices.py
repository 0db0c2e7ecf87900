"""The devices of a node over time: which were free, and which were unhealthy. Pure.

History has a row for each time in which a device was known and its health did not change, except for a
partition while another one of its physical device counts in its place (Device.alternative). Two kinds of rows
are no devices:

- RECORDED: the time in which devices were recorded. Outside of it they are unknown: an older version wrote
  it, the kubelet did not report allocatable devices, or there were too many devices or changes.
- a resource with the device "": the time in which none of its devices was allocatable, or, with an unknown
  health, in which only its held devices were known (Snapshot.knows_all). The rows of its devices stay as they
  are meanwhile, so that a restart of the kubelet or of a plugin is one row. A device that vanishes meanwhile
  counts as unhealthy, or is unknown, until the time is over.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from exporter.history.record import bounded
from exporter.mapping.model import Device, DeviceKey, Snapshot

DEVICES: Final = 16_384
"""Devices of a node that are recorded; of a node with more, none."""
CHARACTERS: Final = 2 << 20
"""The same for the characters of their names."""
CHANGES: Final = 2 * DEVICES
"""Changes that are recorded at once. A plugin may list new ids each time."""
CHANGES_PER_SECOND: Final = 1.0
"""Changes that are recorded over long times."""

RECORDED: Final = DeviceKey("", "")

FREE: Final = "free"
UNHEALTHY: Final = "unhealthy"
UNKNOWN: Final = "unknown"


class RecordedDevice(NamedTuple):
    """The physical device behind a replica or a slice, "" for a whole device, and whether the kubelet counts
    the device as allocatable. Of a claimed device only a taint is known, which keeps pods away: without one
    the health is None, unknown.
    """

    parent: str
    healthy: bool | None


KnownDevices = Mapping[DeviceKey, RecordedDevice]
"""What a snapshot records of devices. Without RECORDED they are unknown."""


class DeviceRow(Struct, frozen=True):
    """A time in which a device was known, without a change. Unix times: polls showed it from `since` to
    `until`; the poll before was at `low`, the poll after it at `high`. Both ends are None while it lasts.
    """

    id: int
    key: DeviceKey
    facts: RecordedDevice
    low: float
    since: float
    until: float | None = None
    high: float | None = None

    def surely_at(self, at: float) -> bool:
        """Whether polls before and after `at` showed it."""
        return self.since <= at <= (math.inf if self.until is None else self.until)


class DeviceAt(NamedTuple):
    """A device that nobody held at a moment: FREE, UNHEALTHY or UNKNOWN, and whether it was healthy, None if
    that is unknown.
    """

    key: DeviceKey
    parent: str
    state: str
    healthy: bool | None


def known_devices(snapshot: Snapshot) -> KnownDevices:
    """The devices of `snapshot`, as history records them."""
    devices = snapshot.devices
    if not snapshot.complete or len(devices) > DEVICES:
        return {}
    if sum(len(device.key.device) + len(device.parent) for device in devices) > CHARACTERS:
        return {}
    found = {RECORDED: RecordedDevice("", healthy=True)}
    for resource, counts in snapshot.resources().items():
        if resource and not snapshot.knows_all(resource):
            found[DeviceKey(bounded(resource), "")] = RecordedDevice("", healthy=None)
        elif resource and not counts.allocatable:
            found[DeviceKey(bounded(resource), "")] = RecordedDevice("", healthy=False)
    for device in devices:
        resource, name = device.key
        if resource and name and not device.alternative and snapshot.knows_all(resource):
            key = DeviceKey(bounded(resource), bounded(name))
            found[key] = RecordedDevice(bounded(device.parent), _healthy(device))
    return found


def _healthy(device: Device) -> bool | None:
    return None if device.claimed is not None and device.allocatable else device.allocatable


def same_devices(snapshot: Snapshot, before: Snapshot | None) -> bool:
    """Whether both record the same devices. Cheap where they share their devices."""
    if before is None or _known_of(snapshot) != _known_of(before):
        return False
    changed = snapshot.changed_since(before)
    return changed is not None and all(_recorded(was) == _recorded(now) for was, now in changed)


def _known_of(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.complete, snapshot.published, snapshot.held_only


def _recorded(device: Device) -> tuple[object, ...]:
    return device.allocatable, device.parent, device.alternative


class DeviceJournal:
    """Follows devices through polls. Its methods return the rows to write."""

    def __init__(self, stored: Iterable[DeviceRow] = (), next_id: int = 1) -> None:
        """`stored` are the open rows of the store, `next_id` is its next free id."""
        self._open = {row.key: row for row in stored}
        self._next = next_id
        self._known: KnownDevices = {}
        self._behind = False
        self._budget, self._counted_at = float(CHANGES), -math.inf
        self._fresh: set[int] = set()

    def take(
        self, known: KnownDevices | None, before: float, answered: float, steady: float
    ) -> list[DeviceRow]:
        """Take in a poll that was answered at unix time `answered` and monotonic time `steady`, after a poll
        at `before`. `known` is None if it is unchanged.
        """
        if known is not None:
            self._known = known
        elif not self._behind:
            return []
        self._budget = min(CHANGES, self._budget + CHANGES_PER_SECOND * (steady - self._counted_at))
        self._counted_at = steady
        gone, new = self._changes()
        number = len(gone) + len(new)
        self._behind = number > self._budget
        if self._behind or RECORDED not in self._known:
            gone, new = [row for row in (self._open.get(RECORDED),) if row is not None], []
        else:
            self._budget -= number
        return [*self._ended(gone, before, answered), *self._begun(new, min(before, answered), answered)]

    def _changes(self) -> tuple[list[DeviceRow], list[DeviceKey]]:
        """The open rows that end, and the keys of those that begin."""
        known, rows = self._known, self._open
        none_left = {key.resource for key in known if not key.device and key.resource}
        gone = [
            row
            for key, row in rows.items()
            if known.get(key) != row.facts and not (key.device and key.resource in none_left)
        ]
        ending = {row.key for row in gone}
        return gone, [key for key in known if key not in rows or key in ending]

    def _ended(self, gone: Iterable[DeviceRow], before: float, answered: float) -> Iterable[DeviceRow]:
        for row in gone:
            del self._open[row.key]
            until = max(before, row.since)
            yield replace(row, until=until, high=max(answered, until))

    def _begun(self, new: Iterable[DeviceKey], before: float, answered: float) -> Iterable[DeviceRow]:
        for key in new:
            row = self._open[key] = DeviceRow(self._next, key, self._known[key], before, answered)
            self._fresh.add(row.id)
            self._next += 1
            yield row

    def written(self) -> None:
        """Note that all rows are written."""
        self._fresh.clear()

    def trim(self, pending: MutableMapping[int, DeviceRow], limit: int) -> None:
        """Drop the ended rows of `pending`, which wait to be written, where they are more than `limit`. Their
        time counts as not recorded. A row that is in the store as open stays: its end must be written.
        """
        lost = [row for row in pending.values() if row.until is not None and row.id in self._fresh]
        if len(lost) <= limit:
            return
        for row in lost:
            del pending[row.id]
            self._fresh.discard(row.id)
        mark = self._open.pop(RECORDED, None)
        if mark is not None:
            until = max(mark.since, min(row.low for row in lost))
            pending[mark.id] = replace(mark, until=until, high=until)
            self._behind = True

    def forget(self, before: float) -> None:
        """Nothing was recorded before a time whose rows were deleted."""
        mark = self._open.get(RECORDED)
        if mark is not None and mark.since < before:
            self._open[RECORDED] = replace(mark, low=before, since=before)

    def join(
        self,
        stored: Iterable[DeviceRow],
        next_id: int,
        past: Iterable[DeviceRow],
        until: float | None,
        first: float,
    ) -> list[DeviceRow]:
        """Continue in another store, which has `stored` open and was written until `until`. `past` are this
        process's ended rows, to be written there; its first poll was at `first`.
        """
        left = [(row, row.since if until is None else max(row.since, until)) for row in stored]
        rows = [replace(row, until=last, high=max(first, last)) for row, last in left]
        own = [*past, *self._open.values()]
        self._next = next_id + len(own)
        numbered = [replace(row, id=number) for number, row in enumerate(own, start=next_id)]
        self._open = {row.key: row for row in numbered if row.until is None}
        self._fresh = {row.id for row in numbered}
        return [*rows, *numbered]


class DevicesAt(NamedTuple):
    """The devices that nobody held at a moment, sorted, whether devices were recorded then, and the number of
    devices by state. `held_only` are the resources of which only held devices were known.
    """

    devices: Sequence[DeviceAt]
    recorded: bool
    counts: Mapping[str, int]
    held_only: Sequence[str] = ()


def devices_at(
    at: float, rows: Iterable[DeviceRow], held: Collection[DeviceKey], *, observed: bool
) -> DevicesAt:
    """The devices that nobody held at unix time `at`.

    `rows` may all be of this moment; `held` are the devices that somebody held, perhaps. `observed`: there
    was no gap in observation.
    """
    by_key = sorted(rows, key=lambda row: row.key)
    recorded, none_left = False, dict[str, bool]()
    held_only: list[str] = []
    found: list[DeviceAt] = []
    # The two kinds of rows without a device sort before the devices that they are about.
    for key, group in groupby(by_key, key=lambda row: row.key):
        of_key = list(group)
        sure = [row.facts.healthy for row in of_key if row.surely_at(at)]
        if key == RECORDED:
            recorded = bool(sure)
        elif not key.device:
            none_left[key.resource] = bool(sure)
            if any(row.facts.healthy is None for row in of_key):
                held_only.append(key.resource)
        elif key not in held:
            state = UNHEALTHY if False in sure else FREE
            if not observed or not recorded or len(set(sure)) != 1 or key.resource in held_only:
                state = UNKNOWN
            elif key.resource in none_left and state == FREE:
                state = UNHEALTHY if none_left[key.resource] else UNKNOWN
            healthy = sure[0] if state == FREE else False if state == UNHEALTHY else None
            found.append(DeviceAt(key, of_key[-1].facts.parent, state, healthy))
    return DevicesAt(found, recorded, Counter(device.state for device in found), held_only)
