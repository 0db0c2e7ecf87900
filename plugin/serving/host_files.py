"""Makes allocations true on the host: device nodes checked, mounts created, side files and CDI kept.

Files stay when the process ends, and go with the resource: `HostFilesCollector` removes those of resources
that are no longer configured.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from plugin.config.plan import ResourcePlan
from plugin.devices.allocation import (
    AllocationRequest,
    ContainerAllocation,
    named_by_specification,
    refuse_missing,
    refusing,
)
from plugin.devices.device import Device
from plugin.devices.rendering import Mount, RenderError
from plugin.discovery.host import HostRoot, os_problem
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.context import PluginContext
from plugin.serving.sockets import LEASE_ENDING, RECORD_ENDING, Lease
from plugin.serving.status import report
from plugin.serving.written_files import (
    CdiSpecification,
    HostRecord,
    Record,
    RecordError,
    SideFiles,
    missing_nodes,
    present,
    read_record,
    record_paths,
    remove_specification,
    try_each,
)
from runtime.clock import Clock, wait_within
from runtime.directory import DirectoryWatcher, Kind
from runtime.log import Episode, Log

FILES_TIMEOUT: Final = 10.0
COLLECT_INTERVAL: Final = 60.0
COLLECT_TIMEOUT: Final = 20.0

_log = Log("host-files")


class HostFiles:
    """What one resource has on the host. Run `run()` to keep it up to date."""

    def __init__(
        self,
        plan: ResourcePlan,
        context: PluginContext,
        record: HostRecord,
        devices: Callable[[], Iterable[Device]],
    ) -> None:
        """`devices`: those of the CDI specification."""
        self._plan = plan
        self._host = context.host
        self._kubelet = context.kubelet
        self._clock = context.clock
        self._record = record
        self._devices = devices
        self._interval = context.pace.release
        self._files = SideFiles(context.host, record, context.clock)
        self._cdi = (
            CdiSpecification(plan.cdi, plan.name, context.host, record, context.cdi_names)
            if plan.cdi
            else None
        )
        self._offload = Offload(1)
        self._changed = asyncio.Event()
        self._removed = False
        self._restored = False
        self._unwritten = Episode(_log, "cannot write the CDI specification", resource=plan.name)
        self._left_out = Episode(_log, "devices left out of the CDI specification", resource=plan.name)
        self._unkept = Episode(_log, "cannot keep files for containers", resource=plan.name)

    @property
    def problem(self) -> str | None:
        """Why no device can be allocated, in words."""
        reason = self._unwritten.reason
        return None if reason is None else f"cannot write the CDI specification: {reason}"

    def apply(
        self,
        requests: Sequence[AllocationRequest],
        allocations: Sequence[ContainerAllocation],
        devices: Sequence[Device],
    ) -> list[ContainerAllocation]:
        """Write and create what the allocations need. Blocking. Raises AllocationError.

        `devices`: those of all requests. Returns the allocations with the CDI names that exist.
        """
        made = list(allocations)
        if self._cdi is not None:
            with refusing(self._plan, "cdi"):
                names, edits = self._cdi.ensure(devices)
                nodes = (node for each in edits for node in each.nodes)
                refuse_missing(self._plan, missing_nodes(self._host, nodes))
                self._create(mount for each in edits for mount in each.mounts)
            made = [named_by_specification(self._plan, each, names) for each in made]
        with refusing(self._plan, "allocate.mounts"):
            self._create(mount for each in made for mount in each.mounts)
        with refusing(self._plan, "allocate.files"):
            for request, each in zip(requests, made, strict=True):
                self._files.write(each.files, request.owners)
        return made

    def _create(self, mounts: Iterable[Mount]) -> None:
        for path, kind in {mount.host: mount.create for mount in mounts if mount.create}.items():
            self._host.make(path, kind)

    def devices_changed(self) -> None:
        """Update the CDI specification soon."""
        self._changed.set()

    async def run(self) -> None:
        """Keep the CDI specification and the side files up to date, until cancelled."""
        report(self._unkept, await self._restore_files())
        checked = self._clock.monotonic()
        while True:
            await self._update_specification()
            await wait_within(self._changed, self._interval)
            self._changed.clear()
            if self._clock.monotonic() - checked >= self._interval:
                report(self._unkept, [*await self._restore_files(), *await self._release_files()][:1])
                checked = self._clock.monotonic()

    async def _update_specification(self) -> None:
        if self._cdi is None and self._removed:
            return
        devices = tuple(self._devices())
        left_out: list[str] = []
        problem = await _problem(self._offload, lambda: left_out.extend(self._specify(devices)))
        report(self._unwritten, problem)
        if not problem:
            report(self._left_out, left_out)

    def _specify(self, devices: Sequence[Device]) -> tuple[str, ...]:
        if self._cdi is not None:
            return self._cdi.update(devices)
        remove_specification(self._host, self._record)
        self._removed = True
        return ()

    async def _restore_files(self) -> list[str]:
        """Write missing files again, until that succeeded once; returns the problem, if any."""
        problem = [] if self._restored else await _problem(self._offload, self._files.restore)
        self._restored = not problem
        return problem

    async def _release_files(self) -> list[str]:
        """Remove the files that no pod needs; returns the problem, if any."""
        if not self._files.any():
            return []
        at = self._clock.monotonic()
        held = await self._kubelet.may_be_held(self._plan.name)
        return [] if held is None else await _problem(self._offload, lambda: self._files.release(held, at))


async def _problem(offload: Offload, work: Callable[[], None], limit: float = FILES_TIMEOUT) -> list[str]:
    """Run blocking `work` on the host's files; returns its problem, empty where it succeeds."""
    try:
        await offload.run(work, limit=limit)
    except OSError as error:
        return [os_problem(error)]
    except (StuckError, RenderError) as error:
        return [str(error)]
    return []


def fit_to_host(
    plan: ResourcePlan, host: HostRoot, allocations: Sequence[ContainerAllocation]
) -> tuple[ContainerAllocation, ...]:
    """`allocations` without optional nodes and mounts that the host does not have. Blocking.

    Raises AllocationError for a required node that the host does not have: the container runtime would refuse
    the container again and again. A missing mount source is created by the runtime.
    """
    with refusing(plan, "allocate.devices"):
        refuse_missing(plan, (p for each in allocations for p in missing_nodes(host, each.devices)))
        return tuple(
            replace(each, devices=present(host, each.devices), mounts=present(host, each.mounts))
            for each in allocations
        )


class HostFilesCollector:
    """Removes the files of resources that are no longer configured. Run `run()`."""

    def __init__(
        self,
        directory: Path,
        host: HostRoot,
        wanted: Callable[[], tuple[ResourcePlan, ...]],
        clock: Clock,
    ) -> None:
        """`directory` has the records; `wanted` returns the configured resources."""
        self._directory = directory
        self._host = host
        self._wanted = wanted
        self._clock = clock
        self._offload = Offload(1)
        self._check = asyncio.Event()
        self._failing = Episode(_log, "cannot remove the files of a resource")
        self._unreadable = Episode(_log, "cannot read the record of files on the host")

    async def run(self, watcher: DirectoryWatcher) -> None:
        """Collect at the start, whenever a lease is released, and periodically, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(watcher))
            while True:
                report(self._failing, await _problem(self._offload, self.collect, COLLECT_TIMEOUT))
                await wait_within(self._check, COLLECT_INTERVAL)
                self._check.clear()

    async def _follow(self, watcher: DirectoryWatcher) -> None:
        async for change in watcher.follow(self._directory, contents=False):
            released = change.kind is Kind.VANISHED and change.name.endswith(LEASE_ENDING)
            if released or change.kind is Kind.RESCAN:
                self._check.set()

    def collect(self) -> None:
        """Remove the files of resources that are not configured. Blocking. Raises OSError."""
        records: dict[Path, Record] = {}
        unreadable: list[str] = []
        for path in record_paths(self._directory):
            try:
                record = read_record(path)
            except RecordError as error:
                unreadable.append(str(error))
            else:
                records.update({path: record} if record is not None else {})
        report(self._unreadable, unreadable)
        try_each(records.items(), lambda item: self._collect_one(*item))

    def _collect_one(self, path: Path, record: Record) -> None:
        if self._is_wanted(record):
            return
        lease = Lease(path.with_name(path.name.removesuffix(RECORD_ENDING) + LEASE_ENDING))
        if not lease.try_acquire():
            return  # another process serves the resource
        try:
            # The configuration may have changed before the lock was taken.
            if not self._is_wanted(record):
                self._remove(path, record)
        finally:
            lease.release()

    def _is_wanted(self, record: Record) -> bool:
        """Whether the resource, or its family, is configured: a family's devices may only be late."""
        plans = self._wanted()
        families = {plan.family.text for plan in plans if plan.family is not None}
        return record.resource in {plan.name for plan in plans} or record.family in families

    def _remove(self, path: Path, record: Record) -> None:
        own = HostRecord(path, record.resource, record.family)
        remove_specification(self._host, own)
        SideFiles(self._host, own, self._clock).remove_all()
        _log.info("removed the files of a resource", resource=record.resource)
