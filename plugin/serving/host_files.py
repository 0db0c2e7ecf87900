"""What one resource gives: answers to Allocate made true on the host, and what of that is kept there.

What resources that are no more have left on the host: found by their records, and removed.

A resource that goes leaves nothing behind; one whose process ends leaves what running pods need.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from plugin.config.plan import ResourcePlan
from plugin.devices.allocation import ContainerAnswer, Request, answer
from plugin.devices.claims import CdiNames
from plugin.devices.device import Device
from plugin.devices.rendering import RenderError
from plugin.discovery import host as host_module
from plugin.discovery.host import HostRoot, os_problem
from plugin.serving.answer import answers, make, missing_edits, named_by, refuse_missing, refused
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.pod_resources import PodResources
from plugin.serving.records import Belongings, Record, records, try_each
from plugin.serving.scan import DeviceScanner
from plugin.serving.sockets import LEASE_ENDING, RECORD_ENDING, is_at
from plugin.serving.written_files import CdiFile, SideFiles
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher, Kind
from runtime.log import Episode, Log

KEEP_LIMIT: Final = 10.0
"""Seconds for bringing the host to what is to be there."""
NAMED: Final = 8
"""Problems that one message names; the rest are counted."""

_log = Log("giving")


class Giving:
    """Gives for one resource. `give` is blocking; run `run()` to keep what was given."""

    def __init__(
        self,
        plan: ResourcePlan,
        *,
        host: HostRoot,
        scanner: DeviceScanner,
        belongings: Belongings,
        pod_resources: PodResources,
        clock: Clock,
        devices: Callable[[], Iterable[Device]],
        pause: float,
        cdi_names: CdiNames,
    ) -> None:
        """`devices`: those that there are now; `pause`: seconds between looks for what can go."""
        self._plan = plan
        self._host = host
        self._scanner = scanner
        self._belongings = belongings
        self._pod_resources = pod_resources
        self._clock = clock
        self._devices = devices
        self._pause = pause
        self._files = SideFiles(host, belongings, clock)
        self._cdi = CdiFile(plan.cdi, plan.name, host, belongings, cdi_names) if plan.cdi else None
        self._offload = Offload(1)
        self._changed = asyncio.Event()
        self._discarded = False
        self._restored = False
        self._unwritten = Episode(_log, "cannot write the CDI specification", resource=plan.name)
        self._left_out = Episode(_log, "not in the CDI specification", resource=plan.name)
        self._unkept = Episode(_log, "files for containers cannot be kept", resource=plan.name)

    @property
    def problem(self) -> str | None:
        """Why nothing can be given, in words; None where nothing is wrong."""
        reason = self._unwritten.reason
        return None if reason is None else f"cannot write the CDI specification: {reason}"

    def needs_host(self, devices: Iterable[Device]) -> bool:
        """Whether giving these devices takes a look at the host, which may block."""
        plan, allocate = self._plan, self._plan.allocate
        return (
            bool(plan.probes or allocate.devices or allocate.mounts or allocate.files or plan.cdi)
            or any(tuple(source.host_paths()) for source in plan.sources)
            or any(device.path for device in devices)
        )

    def give(self, containers: Sequence[Request], *, on_host: bool = True) -> list[ContainerAnswer]:
        """What each container gets. Blocking where it is done `on_host`. Raises RefusedError."""
        if not on_host:
            return [answer(self._plan, asked.ids, asked.devices) for asked in containers]
        given = answers(self._plan, self._scanner, self._host, containers)
        made = given.answers
        if self._cdi is not None:
            made = self._named_by_cdi(self._cdi, tuple(given.devices.values()), made)
        with refused(self._plan, "allocate.mounts"):
            make(self._host, (mount for one in made for mount in one.mounts))
        with refused(self._plan, "allocate.files"):
            for asked, one in zip(containers, made, strict=True):
                self._files.write(one.files, asked.owners)
        return list(made)

    def current(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """`devices` as they are now; one that is not there, or not healthy, as it was. Blocking."""
        present = {device.id: device for device in self._scanner.resolve(devices).devices}
        return tuple(present.get(device.id, device) for device in devices)

    def _named_by_cdi(
        self, file: CdiFile, devices: Sequence[Device], made: Sequence[ContainerAnswer]
    ) -> tuple[ContainerAnswer, ...]:
        with refused(self._plan, "cdi"):
            listed = file.ensure(devices)
            edits = file.edits(devices)
            refuse_missing(self._plan, (path for one in edits for path in missing_edits(self._host, one)))
            make(self._host, (mount for one in edits for mount in one.mounts))
        return tuple(named_by(self._plan, one, listed) for one in made)

    def changed(self) -> None:
        """The devices are others now."""
        self._changed.set()

    async def run(self) -> None:
        """Keep the CDI specification to the devices and the files to their holders, until cancelled."""
        self._tell_files(await self._restore_files())
        looked = self._clock.monotonic()
        while True:
            await self._keep_specification()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._changed.wait()
            self._changed.clear()
            if self._clock.monotonic() - looked >= self._pause:
                self._tell_files(await self._restore_files(), await self._release_files())
                looked = self._clock.monotonic()

    async def _keep_specification(self) -> None:
        if self._cdi is None and self._discarded:
            return
        devices = tuple(self._devices())
        try:
            problems = await self._offload.run(lambda: self._specify(devices), limit=KEEP_LIMIT)
        except OSError as error:
            self._unwritten.failed(os_problem(error))
        except (StuckError, RenderError) as error:
            self._unwritten.failed(str(error))
        else:
            self._unwritten.recovered()
            if problems:
                more = f" and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
                self._left_out.failed("; ".join(problems[:NAMED]) + more)
            else:
                self._left_out.recovered()

    def _specify(self, devices: Sequence[Device]) -> tuple[str, ...]:
        if self._cdi is not None:
            return self._cdi.update(devices)
        discard_specification(self._host, self._belongings)
        self._discarded = True
        return ()

    async def _restore_files(self) -> str | None:
        """Write anew what is missing, until that was done once; why it could not be, in words."""
        problem = None if self._restored else await self._on_files(self._files.restore)
        self._restored = problem is None
        return problem

    async def _release_files(self) -> str | None:
        """Remove what nobody holds any more; why that could not be, in words."""
        held = await self._pod_resources.held(self._plan.name) if self._files.any() else None
        return None if held is None else await self._on_files(lambda: self._files.release(held))

    def _tell_files(self, *problems: str | None) -> None:
        told = [problem for problem in problems if problem is not None]
        if told:
            self._unkept.failed(told[0])
        else:
            self._unkept.recovered()

    async def _on_files(self, work: Callable[[], object]) -> str | None:
        """Do it; why it failed, in words."""
        try:
            await self._offload.run(work, limit=KEEP_LIMIT)
        except OSError as error:
            return os_problem(error)
        except StuckError as error:
            return str(error)
        return None


def discard_specification(host: HostRoot, belongings: Belongings) -> None:
    """Remove the CDI specification that is remembered, if any. Blocking. Raises OSError."""
    with belongings.guard:
        if belongings.record.cdi:
            host_module.remove(host, belongings.record.cdi)
            belongings.put(cdi="")


INTERVAL: Final = 60.0
"""Seconds between looks that nothing calls for."""
LIMIT: Final = 20.0

_log_leftovers = Log("leftovers")


class Leftovers:
    """Removes what is left of resources that nobody serves any more. Run `run()`."""

    def __init__(
        self,
        directory: Path,
        host: HostRoot,
        wanted: Callable[[], tuple[ResourcePlan, ...]],
        clock: Clock,
    ) -> None:
        """`directory`: where the records are; `wanted`: what the configuration asks for now."""
        self._directory = directory
        self._host = host
        self._wanted = wanted
        self._clock = clock
        self._offload = Offload(1)
        self._look = asyncio.Event()
        self._failing = Episode(_log_leftovers, "cannot remove what is left of a resource")
        self._unreadable = Episode(_log_leftovers, "cannot read what was left on the host before")

    async def run(self, watcher: DirectoryWatcher) -> None:
        """Look at the start, whenever a lease is given up, and now and then, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(watcher))
            while True:
                await self._collect()
                with suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL):
                        await self._look.wait()
                self._look.clear()

    async def _follow(self, watcher: DirectoryWatcher) -> None:
        async for change in watcher.follow(self._directory, contents=False):
            given_up = change.kind is Kind.VANISHED and change.name.endswith(LEASE_ENDING)
            if given_up or change.kind is Kind.RESCAN:
                self._look.set()

    async def _collect(self) -> None:
        try:
            await self._offload.run(self.collect, limit=LIMIT)
        except OSError as error:
            self._failing.failed(os_problem(error))
        except StuckError as error:
            self._failing.failed(str(error))
        else:
            self._failing.recovered()

    def collect(self) -> None:
        """Remove what is nobody's. Blocking. Raises OSError for what cannot be removed."""
        unreadable: list[str] = []
        left = tuple(records(self._directory, lambda path, reason: unreadable.append(f"{path}: {reason}")))
        if unreadable:
            self._unreadable.failed("; ".join(unreadable))
        else:
            self._unreadable.recovered()
        try_each(left, lambda one: self._collect_one(*one))

    def _collect_one(self, path: Path, record: Record) -> None:
        if self._is_wanted(record):
            return
        lease = path.with_name(path.name.removesuffix(RECORD_ENDING) + LEASE_ENDING)
        file = os.open(lease, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_at(file, lease):
                # Given up since it was opened: by now another may hold a new one.
                return
            # As it is now that nobody else can change it.
            if not self._is_wanted(record):
                self._remove(path, record)
            lease.unlink(missing_ok=True)
        except BlockingIOError:
            return
        finally:
            os.close(file)

    def _is_wanted(self, record: Record) -> bool:
        """Also a member of a family that there is: its devices may only be late."""
        plans = self._wanted()
        families = {plan.family.text for plan in plans if plan.family is not None}
        return record.resource in {plan.name for plan in plans} or record.family in families

    def _remove(self, path: Path, record: Record) -> None:
        belongings = Belongings(path, record.resource, record.family)
        discard_specification(self._host, belongings)
        SideFiles(self._host, belongings, self._clock).remove_all()
        _log_leftovers.info("removed what was left of a resource", resource=record.resource)
