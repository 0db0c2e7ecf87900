"""Serves one resource: tracks its devices, publishes their list, and keeps it registered.

Each resource is an actor of its own. After a defect it restarts, and keeps its inventory; other resources
are not affected.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from plugin.config.plan import ResourcePlan
from plugin.devices.inventory import Inventory, ListEntry
from plugin.serving.allocate import Allocator
from plugin.serving.context import PluginContext
from plugin.serving.device_tracker import DeviceTracker
from plugin.serving.endpoint import DeviceListPublisher, Endpoint
from plugin.serving.host_files import HostFiles
from plugin.serving.reconciler import Reconciler
from plugin.serving.registration import DirectoryRegistration, Registration, SocketRegistration
from plugin.serving.scan import DeviceScanner, SharedSources
from plugin.serving.sockets import SocketNames
from plugin.serving.status import ResourceCounters, ResourceLog, ResourceStatus
from plugin.serving.written_files import HostRecord
from runtime.process import innermost


class ServedResource:
    """Run `run()`; it ends only when it is cancelled."""

    def __init__(
        self, plan: ResourcePlan, context: PluginContext, sources: SharedSources | None = None
    ) -> None:
        """`sources`: those of the plan, where several resources share them.

        Raises ValueError where the path of the kubelet's directory is too long for a socket below it.
        """
        self.plan = plan
        self._context = context
        self._clock = context.clock
        self._counters = ResourceCounters()
        self._log = ResourceLog(plan.name)
        self._inventory = Inventory(plan.sharing)
        self._publisher = DeviceListPublisher(self._inventory.shown)
        scanner = DeviceScanner(plan, context.host, sources)
        names = SocketNames(context.paths.device_plugins, plan.name, context.token)
        self._host_files = HostFiles(
            plan,
            context,
            HostRecord(names.record, plan.name, plan.member_of.text if plan.member_of else ""),
            lambda: [known.device for known in self._inventory.devices.values()],
        )
        self._tracker = DeviceTracker(
            plan,
            context,
            inventory=self._inventory,
            scanner=scanner,
            counters=self._counters,
            log=self._log,
            changed=self._changed,
        )
        self._registration = self._make_registration(names)
        self._reconciler = Reconciler(
            plan.name,
            inventory=self._inventory,
            devices=self._tracker,
            changed=self._changed,
            registration=self._registration,
            context=context,
        )
        self._allocator = Allocator(
            plan,
            context,
            inventory=self._inventory,
            scanner=scanner,
            host_files=self._host_files,
            counters=self._counters,
            given=self._reconciler.given,
        )
        self._published: tuple[ListEntry, ...] | None = None
        self._ready_to_register = asyncio.Event()

    def _make_registration(self, names: SocketNames) -> Registration:
        """The lease is in device-plugins with either method, so that the two exclude each other."""
        context = self._context
        make: type[Registration] = SocketRegistration
        own, other = names, None
        if context.method == "registry":
            make, own, other = DirectoryRegistration, self._registry_names(), names
        else:
            with suppress(ValueError):
                other = self._registry_names()
        return make(
            self.plan.name,
            context,
            names=own,
            other_names=other,
            lease=names.lease,
            make_endpoint=self._make_endpoint,
            counters=self._counters,
        )

    def _registry_names(self) -> SocketNames:
        directory = self._context.paths.plugins_registry
        return SocketNames(directory, self.plan.name, self._context.token, hidden=True)

    def _make_endpoint(self, path: Path, on_streams: Callable[[], None]) -> Endpoint:
        return Endpoint(path, publisher=self._publisher, allocator=self._allocator, on_streams=on_streams)

    async def run(self) -> None:
        """Serve until cancelled, and restart after a defect."""
        pauses = self._context.pace.restart
        failures = 0
        try:
            while True:
                started = self._clock.monotonic()
                try:
                    await self._serve()
                except Exception as error:
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        # An error while the resource ends must not keep it from ending.
                        raise asyncio.CancelledError from error
                    if self._clock.monotonic() - started > 2 * pauses[-1]:
                        failures = 0
                        self._log.defect.recovered()
                    cause = innermost(error)
                    self._log.defect.failed(f"{type(cause).__name__}: {cause}", level="error")
                await asyncio.sleep(pauses[min(failures, len(pauses) - 1)])
                failures += 1
        finally:
            self._context.device_ids.release(self.plan.name)
            self._context.cdi_names.release(self.plan.name)
            self._tracker.leave()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tracker.run())
            await self._tracker.probed.wait()
            await self._reconciler.adopt()
            self._check_empty()
            group.create_task(self._keep_host_files())
            group.create_task(self._reconciler.follow_holders())
            group.create_task(self._reconciler.release_tombstones())
            await self._ready_to_register.wait()
            group.create_task(self._reconciler.verify())
            await self._registration.run()

    async def _keep_host_files(self) -> None:
        """A process that stands by leaves the files to the one that serves the resource."""
        await self._registration.leased.wait()
        await self._host_files.run()

    def _changed(self) -> None:
        """Publish the list if the inventory changed."""
        advertised = self._inventory.advertised()
        if advertised is not self._published:
            self._published = advertised
            self._publisher.publish(advertised)
            self._host_files.devices_changed()
            conflicts = self._context.device_ids.replace(self.plan.name, [e.id for e in advertised])
            self._log.conflicting_ids(conflicts)
        if self._reconciler.adopted:
            self._check_empty()

    def _check_empty(self) -> None:
        """Register once there is a device, or at once with `advertise_empty`."""
        if len(self._inventory) or self.plan.advertise_empty:
            self._log.empty.recovered()
            self._ready_to_register.set()
        elif not self._ready_to_register.is_set():
            self._log.empty.failed("; ".join(self._tracker.notes) or "none was found", level="info")

    @property
    def scanned(self) -> asyncio.Event:
        """Set once its devices have been scanned and claimed."""
        return self._tracker.scanned

    def statuses(self) -> tuple[ResourceStatus, ...]:
        """The status of this resource; a family has several."""
        return (self.status(),)

    def status(self) -> ResourceStatus:
        """The resource at this moment."""
        ready, state = self._assess()
        return ResourceStatus(
            name=self.plan.name,
            ready=ready,
            state=state,
            counters=self._counters,
            registered=self._registration.registered,
            streams=self._registration.streams,
            advertised=self._inventory.advertised(),
            last_allocated=self._inventory.last_given,
        )

    def _assess(self) -> tuple[bool, str]:
        """Whether the resource is ready, and its state in words: the first rule that holds."""
        registration, log = self._registration, self._log
        probed = self._tracker.probed.is_set()
        failing = f"discovery fails: {log.discovery.reason}" if log.discovery.reason else ""
        serving = registration.registered and registration.streams > 0
        files_problem = self._host_files.problem
        waiting = not self._ready_to_register.is_set()
        rules: tuple[tuple[bool, bool, str], ...] = (
            (files_problem is not None, False, files_problem or ""),
            (serving, True, self._serving_state(failing)),
            (not probed and log.defect.reason is not None, False, f"defect: {log.defect.reason}"),
            (not probed, False, failing or "looking for devices"),
            (waiting, True, f"waiting for devices: {log.empty.reason or 'none was found'}"),
            (registration.stands_by, True, f"waiting: {registration.problem}"),
            (registration.registered, False, "registered, but the kubelet has opened no stream"),
            (True, False, registration.problem or "registering"),
        )
        return next((ready, text) for holds, ready, text in rules if holds)

    def _serving_state(self, failing: str) -> str:
        devices = self._inventory.devices.values()
        healthy = sum(known.healthy for known in devices)
        streams = self._registration.streams
        text = f"registered, streams open: {streams}, devices healthy: {healthy} of {len(devices)}"
        return f"{text}; {failing}" if failing else text
