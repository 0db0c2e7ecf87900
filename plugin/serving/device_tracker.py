"""Tracks the devices of one resource: when to scan, and how scans, claims and probes make its inventory.

A scan follows at start, on changes that inotify or uevents report, and periodically.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

from msgspec import Struct

from plugin.config.plan import ResourcePlan, XidCheck
from plugin.devices.claims import claim_of
from plugin.devices.device import Device
from plugin.devices.health import HealthTracker
from plugin.devices.identify import IdentityChange
from plugin.devices.inventory import HealthTransition, Inventory, ObservedDevice
from plugin.names import natural
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.context import PluginContext
from plugin.serving.ownership import ResourceOwnership
from plugin.serving.prober import Prober
from plugin.serving.scan import DeviceScanner, DirectoryFollower, ScanError, ScanResult
from plugin.serving.status import ResourceCounters, ResourceLog
from runtime.clock import wait_within

T = TypeVar("T")

MAX_ENTRIES: Final = 256
"""Directory entries that are scanned one by one; after more changes at once a full scan follows."""


class ScanRequest(Struct, frozen=True):
    """What to scan: (directory, name) entries, or everything where `entries` is None.

    `since`: monotonic time of the request. A full scan that started later satisfies it.
    """

    entries: frozenset[tuple[str, str]] | None
    since: float


class ScanTriggers(Struct, frozen=True):
    """Changes that call for a scan: entries that come or go, `contents` that are written, and uevents.

    Entries and contents are (directory, pattern) pairs; `subsystems` are the kernel's.
    """

    entries: tuple[tuple[str, str], ...] = ()
    contents: tuple[tuple[str, str], ...] = ()
    subsystems: frozenset[str] = frozenset()


Scan = Callable[[ScanRequest], Awaitable[ScanTriggers | None]]
"""Performs a scan; returns the triggers of the next one, None where it failed."""


class ScanSchedule:
    """Calls for one scan at a time, with pauses as long as the scans themselves."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._clock = context.clock
        self._pace = context.pace
        self._entries: set[tuple[str, str]] = set()
        self._everything = True
        self._since = 0.0
        self._requested = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None

    def everything(self) -> None:
        """Request a full scan."""
        self._request()
        self._everything = True

    def touched(self, directory: str, name: str | None) -> None:
        """Request a scan of one entry of a followed directory; None: of everything."""
        if name is None or len(self._entries) >= MAX_ENTRIES:
            self.everything()
        else:
            self._request()
            self._entries.add((directory, name))

    def uevent(self) -> None:
        """Request a full scan now, and another when udev has made its links in /dev."""
        self.everything()
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.get_running_loop().call_later(self._pace.settle, self.everything)

    async def run(self, scan: Scan, group: asyncio.TaskGroup) -> None:
        """Scan until cancelled. Directory watches run in `group`."""
        following = DirectoryFollower(self._context.watcher, self._context.host, self.touched)
        subsystems: frozenset[str] = frozenset()
        last_full = self._clock.monotonic()
        self.everything()
        with ExitStack() as uevents:
            try:
                while True:
                    request = self._take()
                    started = self._clock.monotonic()
                    if request.entries is None:
                        last_full = started
                    triggers = await scan(request)
                    if triggers is not None:
                        following.follow(triggers.entries, group, triggers.contents)
                        if triggers.subsystems != subsystems:
                            uevents.close()
                            subsystems = triggers.subsystems
                            if subsystems:
                                uevents.enter_context(
                                    self._context.uevents.following(subsystems, self.uevent)
                                )
                    # Bounded: a scan also waits for other resources, and a test's clock may jump.
                    took = min(self._clock.monotonic() - started, self._pace.retry)
                    await asyncio.sleep(max(self._pace.scan_pause, took))
                    await self._wait(last_full, self._pace.retry if triggers is None else self._pace.rescan)
            finally:
                if self._settling is not None:
                    self._settling.cancel()

    def _request(self) -> None:
        if not self._requested.is_set():
            self._since = self._clock.monotonic()
            self._requested.set()

    def _take(self) -> ScanRequest:
        request = ScanRequest(None if self._everything else frozenset(self._entries), self._since)
        self._entries.clear()
        self._everything = False
        self._requested.clear()
        return request

    async def _wait(self, last_full: float, interval: float) -> None:
        """Wait for a request, or until the last full scan is `interval` seconds old."""
        await wait_within(self._requested, max(0.0, last_full + interval - self._clock.monotonic()))
        if self._clock.monotonic() - last_full >= interval:
            self.everything()


UNPROBED: Final = "its probes have not answered yet"
AT_ONCE: Final = 256
"""Devices of a full scan that are applied before the event loop has a turn: a few milliseconds."""


async def _give_way(items: Collection[object]) -> None:
    """Let the event loop run what waits for it, where there are many `items`. Few are applied in one step."""
    if len(items) > AT_ONCE:
        await asyncio.sleep(0)


async def _in_turns(items: Iterable[T]) -> AsyncIterator[Sequence[T]]:
    """`items`, some at a time."""
    every = tuple(items)
    for at in range(0, len(every), AT_ONCE):
        await _give_way(every)
        yield every[at : at + AT_ONCE]


class DeviceTracker:
    """Keeps an inventory up to date. Run `run()`."""

    def __init__(
        self,
        plan: ResourcePlan,
        context: PluginContext,
        *,
        inventory: Inventory,
        scanner: DeviceScanner,
        counters: ResourceCounters,
        log: ResourceLog,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called after each scan, and whenever the inventory changed."""
        self._plan = plan
        self._context = context
        self._clock = context.clock
        self._pace = context.pace
        self._inventory = inventory
        self._scanner = scanner
        self._counters = counters
        self._log = log
        self._changed = changed
        self._sharing = plan.sharing
        self._health = HealthTracker(plan.probes)
        self._prober = Prober(
            plan.probes,
            host=context.host,
            health=self._health,
            clock=self._clock,
            spread=context.spread,
            changed=self._health_changed,
        )
        # One scan at a time: a scanner keeps state between scans.
        self._offload = Offload(1)
        self._schedule = ScanSchedule(context)
        self._ownership = ResourceOwnership(
            plan, context.ownership, find=self._find, wake=self._schedule.everything
        )
        self._survey: ScanResult | None = None
        self._present: dict[str, Device] = {}
        self._refused: dict[str, Device] = {}
        self._claimed = False
        """Whether `_present` has no device that the resource may not offer."""
        self.scanned = asyncio.Event()
        """Set after the first scan that succeeded."""
        self.probed = asyncio.Event()
        """Set when every device has been probed once, or the time for that is over."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the scan may have found fewer devices than expected."""
        return () if self._survey is None else self._survey.notes

    async def run(self) -> None:
        """Track devices until cancelled."""
        # After a defect the first scan is applied as a whole.
        self._survey = None
        with ExitStack() as stack:
            if any(isinstance(probe.check, XidCheck) for probe in self._plan.probes):
                stack.enter_context(
                    self._context.fault_events.following(self._plan.sources, self._prober.fault)
                )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._prober.run())
                group.create_task(self._limit_first_probes())
                await self._schedule.run(self._scan, group)

    def reclaim(self) -> None:
        """Claim again after the holders of devices changed."""
        if self.scanned.is_set():
            self._claim()

    def leave(self) -> None:
        """Give up all claims; what pods may hold is remembered."""
        held = self._inventory.maybe_held() if self._plan.exclusive else ()
        self._ownership.leave(dict(held))

    @property
    def waits_for_holder(self) -> bool:
        """Whether a device is refused because a pod holds it under another resource or id."""
        return bool(self._ownership.waits)

    async def _limit_first_probes(self) -> None:
        await self.scanned.wait()
        await wait_within(self.probed, self._pace.first_answers)
        self.probed.set()

    async def _scan(self, request: ScanRequest) -> ScanTriggers | None:
        """Scan and apply the result. A failed scan changes nothing."""
        try:
            if request.entries is None or not await self._scan_entries(request.entries):
                await self._scan_everything(request.since)
        except (ScanError, StuckError) as error:
            self._counters.discovery_errors += 1
            self._log.discovery.failed(str(error))
            self._ownership.scanned()
            return None
        self._log.discovery.recovered()
        survey = self._survey
        if survey is None:
            return ScanTriggers()
        return ScanTriggers(survey.follow, self._prober.watched, survey.subsystems)

    async def _scan_everything(self, since: float) -> None:
        self._counters.discoveries += 1
        survey = await self._offload.run(lambda: self._scanner.scan(since), limit=self._pace.scan_limit)
        if not self.scanned.is_set():
            await self._ownership.start(survey.devices, self._pace.claim_turn)
        applied = self._survey is not None and self._is_applied(survey.devices)
        self._survey = survey
        transitions: Sequence[HealthTransition] = ()
        if applied:
            self._prober.scanned(self._there(self._present))
        else:
            transitions = await self._apply_survey(survey.devices)
        self._log.left_out([*survey.left_out, *self._inventory.left_out.items()])
        self._ownership.scanned()
        self.scanned.set()
        self._record(transitions)
        await _give_way(survey.devices)
        self._publish()

    async def _apply_survey(self, devices: Collection[Device]) -> Sequence[HealthTransition]:
        """Claim and advertise the devices of a full scan. First some devices at a time, while the event loop
        runs; then all, which takes little time and decides whatever has changed in between.
        """
        self._claimed = False
        self._present = {device.id: device for device in devices}
        self._refused = {}
        if self._plan.exclusive:
            async for some in _in_turns(self._present.items()):
                self._ownership.examine(dict(some), self._inventory.may_be_held)
        self._claim()
        self._prober.scanned(self._there(self._present))
        transitions: list[HealthTransition] = []
        async for ids in _in_turns(self._present):
            seen = {i: self._present[i] for i in ids if i in self._present}
            self._probe(self._there(seen))
            transitions += self._inventory.update(self._sightings(seen), (), self._clock.instant())
        async for ids in _in_turns(self._inventory.missing(self._present)):
            gone = [i for i in ids if i not in self._present]
            transitions += self._inventory.update((), gone, self._clock.instant())
        self._health.survey(self._there(self._present), self._clock.monotonic())
        transitions += self._inventory.survey(self._sightings(self._present), self._clock.instant())
        await _give_way(devices)
        return transitions

    def _is_applied(self, devices: Collection[Device]) -> bool:
        """Whether exactly these devices are present, and none of them needs another decision."""
        return (
            not self._refused
            and not self._inventory.left_out
            and self._is_settled()
            and len(devices) == len(self._present)
            and all(self._present.get(device.id) is device for device in devices)
        )

    def _is_settled(self) -> bool:
        return not self._plan.exclusive or self._ownership.settled

    def _there(self, devices: Mapping[str, Device]) -> dict[str, Device]:
        """Those of `devices` that the probes check."""
        if not self._plan.probes:
            return {}
        return {i: device for i, device in devices.items() if not device.absent}

    def _probe(self, devices: Mapping[str, Device]) -> None:
        """Probe `devices` from now on."""
        now = self._clock.monotonic()
        for device_id, device in devices.items():
            self._health.arrived(device_id, now)
            self._prober.add(device)

    async def _scan_entries(self, entries: Collection[tuple[str, str]]) -> bool:
        """Scan single directory entries; False where a full scan is needed instead."""
        followed = {directory for directory, _ in self._survey.follow} if self._survey is not None else set()
        for directory, name in entries:
            self._prober.touched(directory, name)
        wanted = [entry for entry in entries if entry[0] in followed]
        if not wanted:
            return self._survey is not None
        self._counters.discoveries += 1
        change = await self._offload.run(
            lambda: self._scanner.scan_entries(wanted), limit=self._pace.scan_limit
        )
        if change is None:
            return False
        self._apply_change(change)
        return True

    def _apply_change(self, change: IdentityChange) -> None:
        now = self._clock.monotonic()
        refused = self._refused.keys() - change.gone
        seen = {device.id: device for device in change.devices}
        ids = (*change.gone, *seen)
        before = [self._present[i] for i in ids if i in self._present]
        before += [self._inventory.devices[i].device for i in ids if i in self._inventory.devices]
        for device_id in change.gone:
            self._present.pop(device_id, None)
            self._refused.pop(device_id, None)
        self._present.update(seen)
        if self._refused or not self._is_settled():
            self._claim()
        else:
            self._claim_change(seen, before)
        seen = {i: device for i, device in seen.items() if i in self._present}
        for device_id in (*change.gone, *(self._refused.keys() - refused)):
            self._health.left(device_id, now)
            self._prober.remove(device_id)
        self._probe(seen)
        self._apply(self._inventory.update(self._sightings(seen), change.gone, self._clock.instant()))

    def _claim(self) -> None:
        """Move devices that the resource may not offer from `_present` to `_refused`."""
        self._claimed = True
        if not self._plan.exclusive:
            return
        self._present = {**self._refused, **self._present}
        self._refuse(self._ownership.claim(self._present, self._kept(), self._inventory.may_be_held))

    def _claim_change(self, seen: Mapping[str, Device], before: Iterable[Device]) -> None:
        """As `_claim`, for the devices `seen`; `before`: the same devices as they were, and those gone."""
        if not self._plan.exclusive:
            return
        unwanted = {claim_of(device.found) for device in before if device.found}
        if unwanted:
            still = (*self._present.values(), *self._kept())
            unwanted -= {claim_of(device.found) for device in still if device.found}
        self._refuse(self._ownership.change(seen, unwanted, self._inventory.may_be_held))

    def _kept(self) -> Iterable[Device]:
        """Devices that are gone, but may be held."""
        for device_id, known in self._inventory.devices.items():
            if device_id not in self._present and self._inventory.may_be_held(device_id):
                yield known.device

    def _refuse(self, reasons: Mapping[str, str]) -> None:
        self._refused = {i: self._present.pop(i) for i in reasons}
        self._log.refused(reasons)

    def _find(self, advertised_id: str) -> Device | None:
        """The device that the last scan found under this id."""
        return next(
            (d for i, d in self._present.items() if advertised_id in self._sharing.valid_ids(i)), None
        )

    def _sightings(self, devices: Mapping[str, Device]) -> Iterable[ObservedDevice]:
        """What to advertise. A new device is advertised once all its probes have answered."""
        for device_id, device in devices.items():
            reason = device.absent or self._health.reason(device_id)
            if reason is not None:
                yield ObservedDevice(device, reason)
            elif device_id in self._inventory.devices:
                yield ObservedDevice(device, UNPROBED)

    def _health_changed(self, ids: Collection[str]) -> None:
        if not self._claimed:
            return  # a full scan is being applied, which includes the health of all devices
        devices = {i: self._present[i] for i in ids if i in self._present}
        self._apply(self._inventory.update(self._sightings(devices), (), self._clock.instant()))

    def _apply(self, transitions: tuple[HealthTransition, ...]) -> None:
        self._record(sorted(transitions, key=lambda transition: natural(transition.id)))
        self._publish()

    def _record(self, transitions: Sequence[HealthTransition]) -> None:
        """Count and log `transitions`, in natural order of ids."""
        for transition in transitions:
            if not transition.new:
                self._counters.transitions["healthy" if transition.healthy else "unhealthy"] += 1
        self._counters.health_flaps = self._health.flaps
        self._log.transitions(transitions)

    def _publish(self) -> None:
        if self.scanned.is_set() and not self.probed.is_set() and self._all_probed():
            self.probed.set()
        self._changed()

    def _all_probed(self) -> bool:
        if not self._plan.probes:
            return True
        return all(d.absent or self._health.reason(i) is not None for i, d in self._present.items())
