"""One resource's devices looked after: discovery, claims and health, brought together in the inventory.

What the log is told of one resource's devices: each thing once, and when it is over.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from plugin.config.plan import ResourcePlan, XidCheck
from plugin.devices.claims import claim_of
from plugin.devices.device import Device, Sharing
from plugin.devices.health import Health
from plugin.devices.identify import Change, Identified
from plugin.devices.inventory import Inventory, Sighting, Transition
from plugin.names import natural
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.context import Surroundings
from plugin.serving.prober import Prober
from plugin.serving.scan import DeviceScanner, ScanError, ScanResult
from plugin.serving.scan_schedule import Follow, Looks, Wish
from plugin.serving.status import Tally
from runtime.log import Episode, Log

MAX_TOLD: Final = 8
"""Devices that one log line names; the rest are counted."""

_log = Log("resource")


class Telling:
    """The log of one resource."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self.discovery = Episode(_log, "discovery fails", resource=resource)
        self.empty = Episode(_log, "no devices", resource=resource)
        self.defect = Episode(_log, "defect, beginning again", resource=resource)
        self._left_out = Episode(_log, "left out", resource=resource)
        self._claimed = Episode(_log, "devices of another resource", resource=resource)
        self._clashing = Episode(_log, "ids of another resource too", resource=resource)

    def transitions(self, transitions: Sequence[Transition]) -> None:
        """Devices that are new, and devices that are well, or not, from now on or from the beginning."""
        new = sorted((t.id for t in transitions if t.new), key=natural)
        if new:
            _log.info("devices found", resource=self._resource, devices=_several(new, ", "))
        changed = [t for t in transitions if not (t.new and t.healthy)]
        for transition in changed[:MAX_TOLD]:
            if transition.healthy:
                _log.info("device healthy", resource=self._resource, device=transition.id)
            else:
                _log.warn(
                    "device unhealthy",
                    resource=self._resource,
                    device=transition.id,
                    reason=transition.reason,
                )
        if len(changed) > MAX_TOLD:
            _log.info("more devices changed health", resource=self._resource, count=len(changed) - MAX_TOLD)

    def left_out(self, reasons: Sequence[tuple[str, str]]) -> None:
        """Devices, by path or name, that cannot be advertised, and why."""
        _tell(self._left_out, [f"{name}: {reason}" for name, reason in reasons])

    def claimed(self, others: Mapping[str, str]) -> None:
        """Devices that another resource found first, and which one."""
        _tell(self._claimed, [f"{device} ({other})" for device, other in sorted(others.items())])

    def clashes(self, clashes: Mapping[str, str]) -> None:
        """Ids that another resource has too, and which one."""
        told = [f"{device} ({other})" for device, other in sorted(clashes.items())]
        _tell(self._clashing, told, "the kubelet tells health by id alone: ")


def _tell(episode: Episode, reasons: Sequence[str], before: str = "") -> None:
    if reasons:
        episode.failed(before + _several(reasons, "; "))
    else:
        episode.recovered()


def _several(items: Sequence[str], between: str) -> str:
    more = f" and {len(items) - MAX_TOLD} more" if len(items) > MAX_TOLD else ""
    return between.join(items[:MAX_TOLD]) + more


UNASKED: Final = "its probes have not answered yet"


class Devices:
    """Keeps an inventory to what the host says. Run `run()`."""

    def __init__(
        self,
        plan: ResourcePlan,
        surroundings: Surroundings,
        *,
        inventory: Inventory,
        scanner: DeviceScanner,
        tally: Tally,
        telling: Telling,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called after each look, and whenever the inventory changed."""
        self._plan = plan
        self._rank = plan.name if plan.member_of is None else plan.member_of.text
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._pace = surroundings.pace
        self._inventory = inventory
        self._scanner = scanner
        self._tally = tally
        self._telling = telling
        self._changed = changed
        self._sharing = Sharing.of(plan)
        self._health = Health(plan.probes)
        self._prober = Prober(
            plan.probes,
            host=surroundings.host,
            health=self._health,
            clock=self._clock,
            spread=surroundings.spread,
            changed=self._judged,
        )
        # One look at a time: a scanner remembers what it saw.
        self._offload = Offload(1)
        self._looks = Looks(surroundings)
        self._survey: ScanResult | None = None
        self._present: dict[str, Identified] = {}
        self._refused: dict[str, Identified] = {}
        self._free: dict[str, Device] = {}
        self._free_at = -1
        self.looked = asyncio.Event()
        """Set after the first look that succeeded."""
        self.known = asyncio.Event()
        """Set when all that is there has been asked once, or for long enough."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Why there may be less than one would think."""
        return () if self._survey is None else self._survey.notes

    async def run(self) -> None:
        """Look after them until cancelled."""
        with ExitStack() as stack:
            if any(isinstance(probe.check, XidCheck) for probe in self._plan.probes):
                stack.enter_context(
                    self._surroundings.listening.following(self._plan.sources, self._prober.fault)
                )
            async with asyncio.TaskGroup() as group:
                group.create_task(self._prober.run())
                group.create_task(self._wait_for_answers())
                await self._looks.run(self._look, group)

    async def _wait_for_answers(self) -> None:
        """A probe that takes its time holds up the first list for as long as is sensible."""
        await self.looked.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.first_answers):
                await self.known.wait()
        self.known.set()

    async def _look(self, wish: Wish) -> Follow | None:
        """One look taken in; None where it failed, and everything stays as it was."""
        try:
            if wish.entries is None or not await self._look_at(wish.entries):
                await self._look_at_everything(wish.since)
        except (ScanError, StuckError) as error:
            self._tally.discovery_errors += 1
            self._telling.discovery.failed(str(error))
            # Nothing was found: later resources need not wait for it.
            self._looked_for()
            return None
        self._telling.discovery.recovered()
        return self._follow()

    async def _look_at_everything(self, since: float) -> None:
        self._tally.discoveries += 1
        survey = await self._offload.run(lambda: self._scanner.scan(since), limit=self._pace.look_limit)
        if self._plan.exclusive and not self.looked.is_set():
            held, nodes = await self._surroundings.pod_resources.holdings()
            ownership = self._surroundings.ownership
            ownership.stake(self._plan.name, lambda ids: _claims_of(survey, self._sharing, ids), held, nodes)
            await ownership.turn(self._rank, self._pace.claim_turn)
        self._survey = survey
        self._present = {item.device.id: item for item in survey.devices}
        self._refused = {}
        self._claim()
        there = {i: item.device for i, item in self._present.items() if not item.absent}
        self._health.survey(there, self._clock.monotonic())
        self._prober.survey(there)
        transitions = self._inventory.survey(self._sightings(self._present), self._clock.instant())
        self._telling.left_out([*survey.left_out, *self._inventory.left_out.items()])
        self._looked_for()
        self.looked.set()
        self._taken(transitions)

    def _looked_for(self) -> None:
        if self._plan.member_of is None:  # a family speaks for its members
            self._surroundings.ownership.looked(self._rank)

    async def _look_at(self, entries: Collection[tuple[str, str]]) -> bool:
        """Look at single entries; whether that was enough."""
        followed = {directory for directory, _ in self._survey.follow} if self._survey is not None else set()
        for directory, name in entries:
            self._prober.touched(directory, name)
        wanted = [entry for entry in entries if entry[0] in followed]
        if not wanted:
            return self._survey is not None
        self._tally.discoveries += 1
        change = await self._offload.run(
            lambda: self._scanner.scan_entries(wanted), limit=self._pace.look_limit
        )
        if change is None:
            return False
        self._take(change)
        return True

    def _take(self, change: Change) -> None:
        """Take in what became of single devices."""
        now = self._clock.monotonic()
        refused = self._refused.keys() - change.gone
        for device_id in change.gone:
            self._present.pop(device_id, None)
            self._refused.pop(device_id, None)
        seen = {item.device.id: item for item in change.devices}
        self._present.update(seen)
        self._claim()
        seen = {i: item for i, item in seen.items() if i in self._present}
        for device_id in (*change.gone, *(self._refused.keys() - refused)):
            self._health.left(device_id, now)
            self._prober.left(device_id)
        for device_id, item in seen.items():
            self._health.arrived(device_id, now)
            self._prober.arrived(item.device)
        self._taken(self._inventory.update(self._sightings(seen), change.gone, self._clock.instant()))

    def reclaim(self) -> None:
        """Claim anew: what is held may be something else now."""
        if self.looked.is_set():
            self._claim()

    def _claim(self) -> None:
        """Leave out of `present` what another resource has."""
        if not self._plan.exclusive:
            return
        # What was refused is wanted still: who wants it is woken when it is free.
        self._present = {**self._refused, **self._present}
        elsewhere = self._held_elsewhere()
        claims = {
            i: claim_of(item.device.found)
            for i, item in self._present.items()
            if item.device.found and i not in elsewhere
        }
        # What is gone and held is not another's: its pod may still use it, or get it back.
        kept = {
            claim_of(known.device.found)
            for device_id, known in self._inventory.devices.items()
            if device_id not in claims
            and known.device.found is not None
            and self._inventory.may_be_held(device_id)
        }
        others = self._surroundings.ownership.claim(
            self._plan.name, ({*claims.values()} | kept) - {""}, self._looks.everything
        )
        refused = {i: others[claim] for i, claim in claims.items() if claim in others} if others else {}
        refused |= elsewhere
        self._refused = {i: self._present.pop(i) for i in refused}
        self._telling.claimed(refused)

    def _held_elsewhere(self) -> Mapping[str, str]:
        """What pods hold as something else, and as what; what they hold, or may, as it is, is not."""
        ownership = self._surroundings.ownership
        if self._free_at != ownership.generation:
            self._free.clear()
            self._free_at = ownership.generation
        devices = {
            device_id: item.device
            for device_id, item in self._present.items()
            if self._free.get(device_id) is not item.device and not self._inventory.may_be_held(device_id)
        }
        elsewhere = ownership.held(
            self._plan.name, devices, self._sharing, self._claim_here, self._looks.everything
        )
        self._free |= {i: device for i, device in devices.items() if i not in elsewhere}
        return elsewhere

    def _claim_here(self, advertised_id: str) -> str | None:
        """The claim of the device that is found by this id; None where none is."""
        for device_id, item in self._present.items():
            if advertised_id in self._sharing.called(device_id):
                return "" if item.device.found is None else claim_of(item.device.found)
        return None

    def _sightings(self, items: dict[str, Identified]) -> Iterable[Sighting]:
        """What is to be advertised, and how. A new device is, once all its probes have answered."""
        for device_id, item in items.items():
            reason = item.absent or self._health.reason(device_id)
            if reason is not None:
                yield Sighting(item.device, reason)
            elif device_id in self._inventory.devices:
                yield Sighting(item.device, UNASKED)

    def _judged(self, ids: Collection[str]) -> None:
        """The probes say something else of these devices."""
        items = {i: self._present[i] for i in ids if i in self._present}
        self._taken(self._inventory.update(self._sightings(items), (), self._clock.instant()))

    def _taken(self, transitions: tuple[Transition, ...]) -> None:
        for transition in transitions:
            if not transition.new:
                self._tally.transitions["healthy" if transition.healthy else "unhealthy"] += 1
        self._tally.flaps = self._health.flaps
        self._telling.transitions(transitions)
        if not self.known.is_set() and self.looked.is_set() and self._all_known():
            self.known.set()
        self._changed()

    def _all_known(self) -> bool:
        return all(
            item.absent or self._health.reason(device_id) is not None
            for device_id, item in self._present.items()
        )

    def _follow(self) -> Follow:
        survey = self._survey
        if survey is None:
            return Follow()
        return Follow(survey.follow, self._prober.follow, survey.subsystems)


def _claims_of(survey: ScanResult, sharing: Sharing, advertised: frozenset[str]) -> Collection[str]:
    """The claims of the devices among those that were found which have one of these ids."""
    found = {item.device.id: item.device.found for item in survey.devices} if advertised else {}
    held = {i for i in found if not advertised.isdisjoint(sharing.called(i))}
    return {claim_of(thing) for i in held if (thing := found[i]) is not None} - {""}
