"""One resource: its devices looked after, its list kept, its registration, its tombstones.

An actor of its own: what goes wrong in it is told, and it begins again, while others carry on. What
it knows of its devices outlives that.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from daemon.log import Episode, Log
from daemon.process import innermost
from plugin.core.inventory import Inventory, Transition
from plugin.core.plan import ResourcePlan
from plugin.core.sharing import Sharing
from plugin.discovery.follow import Following
from plugin.discovery.offload import Offload, StuckError
from plugin.discovery.survey import Survey, SurveyError, Surveyor
from plugin.services.allocator import Allocator
from plugin.services.belongings import Belongings
from plugin.services.board import Board
from plugin.services.endpoint import Endpoint, options
from plugin.services.giving import Giving
from plugin.services.registration import Registration
from plugin.services.sockets import SocketNames
from plugin.services.status import ResourceStatus, assess
from plugin.services.surroundings import Surroundings
from plugin.services.tally import Tally
from plugin.services.upkeep import Upkeep

MAX_TOLD: int = 8
"""Devices that one log line names; the rest are counted."""

_log = Log("resource")


class Resource:
    """Serves one resource. Run `run()`; it ends only when it is cancelled."""

    def __init__(self, plan: ResourcePlan, surroundings: Surroundings) -> None:
        """Raises ValueError where the kubelet's directory leaves no room for a socket's name."""
        self.plan = plan
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._tally = Tally()
        self._inventory = Inventory(Sharing.of(plan))
        self._board = Board(self._inventory.shown)
        self._surveyor = Surveyor(plan, surroundings.host)
        names = SocketNames(surroundings.paths.device_plugins, plan.name, surroundings.token)
        self._giving = Giving(
            plan,
            host=surroundings.host,
            surveyor=self._surveyor,
            belongings=Belongings(names.record, plan.name, plan.member_of.text if plan.member_of else ""),
            pod_resources=surroundings.pod_resources,
            clock=self._clock,
            devices=lambda: [known.device for known in self._inventory.devices.values()],
            pause=surroundings.pace.release,
        )
        self._allocator = Allocator(
            plan,
            inventory=self._inventory,
            giving=self._giving,
            clock=self._clock,
            tally=self._tally,
        )
        # One look at a time: a surveyor remembers what it saw.
        self._offload = Offload(1)
        self._registration = Registration(
            plan.name,
            paths=surroundings.paths,
            watcher=surroundings.watcher,
            names=names,
            make_endpoint=self._endpoint,
            options=options(self._allocator),
            clock=self._clock,
            tally=self._tally,
            patience=surroundings.patience,
        )
        self._upkeep = Upkeep(
            plan.name,
            inventory=self._inventory,
            board=self._board,
            registration=self._registration,
            surroundings=surroundings,
        )
        self._changed = asyncio.Event()
        self._surveyed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._notes: tuple[str, ...] = ()
        self._discovery = Episode(_log, "discovery fails", resource=plan.name)
        self._empty = Episode(_log, "no devices", resource=plan.name)
        self._left_out = Episode(_log, "left out", resource=plan.name)
        self._clashing = Episode(_log, "ids of another resource too", resource=plan.name)
        self._defect = Episode(_log, "defect, beginning again", resource=plan.name)

    async def run(self) -> None:
        """Serve until cancelled; a defect is told, and survived."""
        pauses = self._surroundings.pace.restart
        failures = 0
        try:
            while True:
                started = self._clock.steady()
                try:
                    await self._serve()
                except Exception as error:  # noqa: BLE001 -- one resource's defect must not end the others
                    if self._clock.steady() - started > 2 * pauses[-1]:
                        failures = 0
                        self._defect.recovered()
                    cause = innermost(error)
                    self._defect.failed(f"{type(cause).__name__}: {cause}", level="error")
                await asyncio.sleep(pauses[min(failures, len(pauses) - 1)])
                failures += 1
        finally:
            self._surroundings.identities.release(self.plan.name)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._discover(group))
            await self._surveyed.wait()
            await self._upkeep.adopt()
            self._want()
            group.create_task(self._giving.run())
            group.create_task(self._upkeep.release_tombstones())
            await self._wanted.wait()
            group.create_task(self._upkeep.verify())
            await self._registration.run()

    def _endpoint(self, path: Path, on_streams: Callable[[], None]) -> Endpoint:
        return Endpoint(path, board=self._board, allocator=self._allocator, on_streams=on_streams)

    async def _discover(self, group: asyncio.TaskGroup) -> None:
        """Look at once, whenever something changes, and now and then; never more than half the time."""
        pace = self._surroundings.pace
        following = Following(self._surroundings.watcher, self._surroundings.host, self._changed)
        while True:
            self._changed.clear()
            started = self._clock.steady()
            survey = await self._look()
            if survey is not None:
                following.follow(survey.follow, group)
            await asyncio.sleep(max(pace.look_pause, self._clock.steady() - started))
            with suppress(TimeoutError):
                async with asyncio.timeout(pace.retry if survey is None else pace.rescan):
                    await self._changed.wait()

    async def _look(self) -> Survey | None:
        """One look taken in; None where it failed, and everything stays as it was."""
        self._tally.discoveries += 1
        try:
            survey = await self._offload.run(self._surveyor.look, limit=self._surroundings.pace.look_limit)
        except (SurveyError, StuckError) as error:
            self._tally.discovery_errors += 1
            self._discovery.failed(str(error))
            return None
        self._discovery.recovered()
        self._tell(self._inventory.survey(survey.sightings, self._clock.now()))
        self._tell_left_out(survey)
        self._notes = survey.notes
        self._giving.changed()
        advertised = self._inventory.advertised()
        self._board.publish(advertised)
        self._tell_clashes(self._surroundings.identities.claim(self.plan.name, [e.id for e in advertised]))
        self._surveyed.set()
        if self._upkeep.adopted:
            self._want()
        return survey

    def _want(self) -> None:
        """Register once there is something to advertise, or where an empty list is asked for."""
        if len(self._inventory) or self.plan.advertise_empty:
            self._empty.recovered()
            self._wanted.set()
        elif not self._wanted.is_set():
            self._empty.failed("; ".join(self._notes) or "none was found", level="info")

    def _tell(self, transitions: tuple[Transition, ...]) -> None:
        new = [t for t in transitions if t.new]
        if new:
            more = f" and {len(new) - MAX_TOLD} more" if len(new) > MAX_TOLD else ""
            _log.info(
                "devices found",
                resource=self.plan.name,
                devices=", ".join(t.id for t in new[:MAX_TOLD]) + more,
            )
        changed = [t for t in transitions if not t.new]
        for transition in changed:
            self._tally.transitions["healthy" if transition.healthy else "unhealthy"] += 1
        for transition in changed[:MAX_TOLD]:
            if transition.healthy:
                _log.info("device healthy", resource=self.plan.name, device=transition.id)
            else:
                _log.warn(
                    "device unhealthy",
                    resource=self.plan.name,
                    device=transition.id,
                    reason=transition.reason,
                )
        if len(changed) > MAX_TOLD:
            _log.info("more devices changed health", resource=self.plan.name, count=len(changed) - MAX_TOLD)

    def _tell_left_out(self, survey: Survey) -> None:
        reasons = [f"{name}: {reason}" for name, reason in survey.left_out]
        reasons += [f"{device}: {reason}" for device, reason in self._inventory.left_out.items()]
        if not reasons:
            self._left_out.recovered()
            return
        more = f" and {len(reasons) - MAX_TOLD} more" if len(reasons) > MAX_TOLD else ""
        self._left_out.failed("; ".join(reasons[:MAX_TOLD]) + more)

    def _tell_clashes(self, clashes: dict[str, str]) -> None:
        if not clashes:
            self._clashing.recovered()
            return
        told = [f"{i} ({other})" for i, other in sorted(clashes.items())[:MAX_TOLD]]
        more = f" and {len(clashes) - MAX_TOLD} more" if len(clashes) > MAX_TOLD else ""
        self._clashing.failed(f"the kubelet tells health by id alone: {', '.join(told)}{more}")

    def status(self) -> ResourceStatus:
        """Everything that can be said of it now."""
        ready, state = self._state()
        return ResourceStatus(
            name=self.plan.name,
            registered=self._registration.registered,
            streams=self._registration.streams,
            ready=ready,
            state=state,
            advertised=self._inventory.advertised(),
            last_allocated=self._inventory.last_named,
            tally=self._tally,
        )

    def _state(self) -> tuple[bool, str]:
        registration = self._registration
        return assess(
            registered=registration.registered,
            streams=registration.streams,
            stands_by=registration.stands_by,
            registration_problem=registration.reason,
            surveyed=self._surveyed.is_set(),
            wanted=self._wanted.is_set(),
            notes=self._empty.reason,
            discovery_problem=self._discovery.reason,
            giving_problem=self._giving.problem,
            defect=self._defect.reason,
            inventory=self._inventory,
        )
