"""One resource: its devices looked after, its list kept, its registration, its tombstones.

An actor of its own: what goes wrong in it is told, and it begins again, while others carry on. What
it knows of its devices outlives that.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from plugin.config.plan import ResourcePlan
from plugin.devices.claims import claim_of
from plugin.devices.device import Sharing
from plugin.devices.inventory import Advertised, Inventory
from plugin.serving.allocate import Allocator
from plugin.serving.context import Surroundings, Way
from plugin.serving.devices import Devices, Telling
from plugin.serving.endpoint import Board, Endpoint, options
from plugin.serving.host_files import Giving
from plugin.serving.reconciler import Upkeep
from plugin.serving.records import Belongings
from plugin.serving.registration import Basics, DirectoryRegistration, Registration, SocketRegistration
from plugin.serving.scan import DeviceScanner, SharedSources
from plugin.serving.sockets import SocketNames
from plugin.serving.status import ResourceStatus, Tally, assess
from runtime.process import innermost

WRITE_LIMIT: Final = 1.0
"""Seconds for which Allocate waits for what it gives to be written down."""


class Resource:
    """Serves one resource. Run `run()`; it ends only when it is cancelled."""

    def __init__(
        self, plan: ResourcePlan, surroundings: Surroundings, sources: SharedSources | None = None
    ) -> None:
        """`sources`: those of the plan, where they are shared.

        Raises ValueError where the kubelet's directory leaves no room for a socket's name.
        """
        self.plan = plan
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._tally = Tally()
        self._inventory = Inventory(Sharing.of(plan))
        self._board = Board(self._inventory.shown)
        self._scanner = DeviceScanner(plan, surroundings.host, sources)
        self._telling = Telling(plan.name)
        names = SocketNames(surroundings.paths.device_plugins, plan.name, surroundings.token)
        self._giving = Giving(
            plan,
            host=surroundings.host,
            scanner=self._scanner,
            belongings=Belongings(names.record, plan.name, plan.member_of.text if plan.member_of else ""),
            pod_resources=surroundings.pod_resources,
            clock=self._clock,
            devices=lambda: [known.device for known in self._inventory.devices.values()],
            pause=surroundings.pace.release,
            cdi_names=surroundings.cdi_names,
        )
        self._allocator = Allocator(
            plan,
            inventory=self._inventory,
            giving=self._giving,
            clock=self._clock,
            tally=self._tally,
            write_down=self._write_down,
        )
        self._registration = self._registered_by(surroundings.way, names)
        self._upkeep = Upkeep(
            plan.name,
            inventory=self._inventory,
            changed=self._held_changed,
            registration=self._registration,
            surroundings=surroundings,
        )
        self._devices = Devices(
            plan,
            surroundings,
            inventory=self._inventory,
            scanner=self._scanner,
            tally=self._tally,
            telling=self._telling,
            changed=self._changed,
        )
        self._told: tuple[Advertised, ...] | None = None
        self._wanted = asyncio.Event()

    def _registered_by(self, way: Way, names: SocketNames) -> Registration:
        """The registration; its lease and record are always in device-plugins, whichever way it goes."""
        shared = self._surroundings
        registry: SocketNames | None = None
        with nullcontext() if way == "registry" else suppress(ValueError):
            registry = SocketNames(shared.paths.plugins_registry, self.plan.name, shared.token, hidden=True)
        by_directory = registry if way == "registry" else None
        basics = Basics(
            resource=self.plan.name,
            paths=shared.paths,
            watcher=shared.watcher,
            names=by_directory or names,
            elsewhere=names if by_directory else registry,
            lease=names.lease,
            make_endpoint=self._endpoint,
            clock=self._clock,
            tally=self._tally,
            patience=shared.patience,
        )
        if by_directory:
            return DirectoryRegistration(basics)
        return SocketRegistration(basics, options(self._allocator))

    async def run(self) -> None:
        """Serve until cancelled; a defect is told, and survived."""
        pauses = self._surroundings.pace.restart
        failures = 0
        try:
            while True:
                started = self._clock.monotonic()
                try:
                    await self._serve()
                except Exception as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        # What fails while it ends must not keep it from ending.
                        raise asyncio.CancelledError from error
                    if self._clock.monotonic() - started > 2 * pauses[-1]:
                        failures = 0
                        self._telling.defect.recovered()
                    cause = innermost(error)
                    self._telling.defect.failed(f"{type(cause).__name__}: {cause}", level="error")
                await asyncio.sleep(pauses[min(failures, len(pauses) - 1)])
                failures += 1
        finally:
            self._surroundings.identities.release(self.plan.name)
            self._surroundings.cdi_names.release(self.plan.name)
            held = self._inventory.maybe_held() if self.plan.exclusive else ()
            self._surroundings.ownership.leave(self.plan.name, dict(held))

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._devices.run())
            await self._devices.known.wait()
            await self._upkeep.adopt()
            self._want()
            group.create_task(self._keep_given())
            group.create_task(self._upkeep.release_tombstones())
            await self._wanted.wait()
            group.create_task(self._upkeep.verify())
            await self._registration.run()

    async def _keep_given(self) -> None:
        """What is on the host belongs to the process that serves the resource, not to one that stands by."""
        await self._registration.leased.wait()
        self._offer()
        await self._giving.run()

    async def _write_down(self, claims: Mapping[str, str]) -> None:
        if self.plan.exclusive:
            await self._surroundings.ownership.give(self.plan.name, claims, WRITE_LIMIT)

    def _offer(self) -> None:
        """Tell what the list stands for, where no other process speaks for the resource."""
        registration = self._registration
        if self.plan.exclusive and registration.leased.is_set() and not registration.stands_by:
            found = ((entry.id, entry.known.device.found) for entry in self._inventory.advertised())
            claims = {i: "" if thing is None else claim_of(thing) for i, thing in found}
            self._surroundings.ownership.offer(self.plan.name, claims)

    def _endpoint(self, path: Path, on_streams: Callable[[], None]) -> Endpoint:
        return Endpoint(path, board=self._board, allocator=self._allocator, on_streams=on_streams)

    def _changed(self) -> None:
        """The devices were looked at; the list may be another."""
        advertised = self._inventory.advertised()
        if advertised is not self._told:
            self._told = advertised
            self._board.publish(advertised)
            self._giving.changed()
            self._offer()
            self._telling.clashes(
                self._surroundings.identities.claim(self.plan.name, [e.id for e in advertised])
            )
        if self._upkeep.adopted:
            self._want()

    def _held_changed(self) -> None:
        """What pods hold was asked for: something was adopted, or dropped and is free."""
        self._devices.reclaim()
        self._changed()

    def _want(self) -> None:
        """Register once there is something to advertise, or where an empty list is asked for."""
        if len(self._inventory) or self.plan.advertise_empty:
            self._telling.empty.recovered()
            self._wanted.set()
        elif not self._wanted.is_set():
            self._telling.empty.failed("; ".join(self._devices.notes) or "none was found", level="info")

    @property
    def looked(self) -> asyncio.Event:
        """Set once its devices have been looked for, and claimed."""
        return self._devices.looked

    def statuses(self) -> tuple[ResourceStatus, ...]:
        """Its status alone."""
        return (self.status(),)

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
            last_allocated=self._inventory.last_given,
            tally=self._tally,
        )

    def _state(self) -> tuple[bool, str]:
        registration = self._registration
        return assess(
            registered=registration.registered,
            streams=registration.streams,
            stands_by=registration.stands_by,
            registration_problem=registration.reason,
            surveyed=self._devices.known.is_set(),
            wanted=self._wanted.is_set(),
            notes=self._telling.empty.reason,
            discovery_problem=self._telling.discovery.reason,
            giving_problem=self._giving.problem,
            defect=self._telling.defect.reason,
            inventory=self._inventory,
        )
