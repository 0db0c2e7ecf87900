"""Answers Allocate, GetPreferredAllocation and PreStartContainer for one resource.

The steps of an Allocate call, in order:

1. `request` finds the devices behind the advertised ids, and refuses unknown and unhealthy ones.
2. `DeviceScanner.resolve` reads these devices from the host again: they may have changed since the scan.
3. `render` makes the answer of each container from the templates in the configuration.
4. `fit_to_host` removes optional nodes and mounts that the host does not have.
5. `HostFiles.apply` writes the CDI specification and side files, and creates the sources of mounts.
6. The endpoint sends the answers to the kubelet.

Where nothing depends on the host, steps 2, 4 and 5 are left out. Any step may refuse the call with an
AllocationError; then no container gets a device.
"""

import asyncio
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from plugin.config.plan import PreStartPlan, ResourcePlan
from plugin.devices.allocation import (
    AllocationError,
    AllocationRequest,
    ContainerAllocation,
    Refusal,
    offers,
    prefer,
    refusing,
    render,
    request,
    resolve,
    sorted_devices,
    unavailable,
)
from plugin.devices.device import Device
from plugin.devices.inventory import Inventory
from plugin.devices.rendering import Run, distinct, runs
from plugin.discovery.command import Outcome, run_command
from plugin.discovery.host import HostRoot
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.context import PluginContext
from plugin.serving.host_files import HostFiles, fit_to_host
from plugin.serving.scan import DeviceScanner
from plugin.serving.status import ResourceCounters
from runtime.clock import Clock
from runtime.log import Log
from runtime.text import quoted, shortened, visible

HOST_LIMIT: Final = 5.0
"""Seconds for what Allocate does on the host; after that it is refused."""
THREAD_LINGER: Final = 30.0
"""Seconds for which a thread waits for the next Allocate: pods come in bursts."""
IN_PLACE: Final = 0.002
"""Seconds for which the event loop itself waits for the host; reading a device takes 0.05 ms."""
PRE_START_LIMIT: Final = 29.0
"""Seconds for a whole PreStartContainer call. The kubelet gives up after 30."""
MAX_PROGRAMS: Final = 8
"""`pre_start` programs of one resource that run at the same time."""
KILL_MARGIN: Final = 0.5
"""Seconds for killing a program and waiting for its end."""
MAX_OUTPUT: Final = 64 * 1024
MAX_OUTPUT_TAIL: Final = 512
"""Characters at the end of a failed program's output that an error quotes."""

_log = Log("allocate")
_log_pre_start = Log("pre-start")


class HostAllocations(Struct, frozen=True):
    """Answers for the devices as they are on the host now, one for each request.

    `rendered`: the same with the optional paths that the host does not have; `devices`: those of all
    requests, by id.
    """

    allocations: tuple[ContainerAllocation, ...]
    rendered: tuple[ContainerAllocation, ...]
    devices: Mapping[str, Device]

    @property
    def dropped(self) -> tuple[tuple[str, ...], ...]:
        """The optional paths that the host does not have, for each request."""
        return tuple(map(_dropped, self.rendered, self.allocations))


def allocate_on_host(
    plan: ResourcePlan, scanner: DeviceScanner, host: HostRoot, requests: Sequence[AllocationRequest]
) -> HostAllocations:
    """Render the answer to each request. Blocking. Changes nothing on the host.

    Raises AllocationError for all requests where one cannot be served.
    """
    with host.reading_once():
        with refusing(plan, "the host"):
            resolved = scanner.resolve(sorted_devices(d for each in requests for d in each.devices))
        if resolved.faults:
            raise unavailable(plan, [f"{quoted(i)} is unhealthy ({reason})" for i, reason in resolved.faults])
        devices = {device.id: device for device in resolved.devices}
        rendered = tuple([render(plan, each.ids, [devices[d.id] for d in each.devices]) for each in requests])
        return HostAllocations(fit_to_host(plan, host, rendered), rendered, devices)


def _dropped(rendered: ContainerAllocation, fitted: ContainerAllocation) -> tuple[str, ...]:
    nodes = (node.host for node in rendered.devices if node not in fitted.devices)
    mounts = (mount.host for mount in rendered.mounts if mount not in fitted.mounts)
    return (*nodes, *mounts)


class Allocator:
    """Answers the calls of the kubelet for one resource."""

    def __init__(
        self,
        plan: ResourcePlan,
        context: PluginContext,
        *,
        inventory: Inventory,
        scanner: DeviceScanner,
        host_files: HostFiles,
        counters: ResourceCounters,
        given: Callable[[Iterable[str]], None],
    ) -> None:
        """`given` is called with the advertised ids of each answer."""
        self._plan = plan
        self._given = given
        self._host = context.host
        self._clock = context.clock
        self._inventory = inventory
        self._scanner = scanner
        self._host_files = host_files
        self._counters = counters
        self._offload = Offload(linger=THREAD_LINGER, in_place=IN_PLACE)
        self._pre_start = (
            PreStartRunner(plan.name, plan.pre_start, context.clock) if plan.pre_start is not None else None
        )

    @property
    def options(self) -> pb.DevicePluginOptions:
        """The optional calls that the kubelet should make."""
        return pb.DevicePluginOptions(
            pre_start_required=self._plan.pre_start is not None,
            get_preferred_allocation_available=self._plan.prefer != "none",
        )

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAllocation]:
        """What each container gets for its advertised ids.

        Raises AllocationError for all containers where one cannot be served.
        """
        started = self._clock.monotonic()
        ids = [i for each in containers for i in each]
        # Recorded before and after: even if the call fails, the kubelet may have given these ids to a pod.
        self._inventory.name(ids, self._clock.instant())
        try:
            allocations = await self._allocate(containers)
        except AllocationError as error:
            self._counters.allocation_errors += 1
            _log.warn("allocation refused", resource=self._plan.name, reason=str(error))
            raise
        finally:
            self._counters.allocation_seconds.observe(self._clock.monotonic() - started)
            self._inventory.name(ids, self._clock.instant())
        self._counters.allocations += len(allocations)
        self._inventory.give(ids, self._clock.instant())
        self._given(ids)
        for each in containers:
            _log.info("allocated", resource=self._plan.name, devices=",".join(map(shortened, each)))
        return allocations

    async def _allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAllocation]:
        requests = [request(self._inventory, self._plan, ids) for ids in containers]
        if not self._needs_host(device for each in requests for device in each.devices):
            return [render(self._plan, each.ids, each.devices) for each in requests]
        try:
            return await self._offload.run(lambda: self._on_host(requests), limit=HOST_LIMIT)
        except StuckError as error:
            raise unavailable(self._plan, [f"the host's files cannot be read: {error}"]) from None

    def _needs_host(self, devices: Iterable[Device]) -> bool:
        """Whether the answer depends on files of the host, whose access may block."""
        plan, allocate = self._plan, self._plan.allocate
        return (
            bool(plan.probes or allocate.devices or allocate.mounts or allocate.files or plan.cdi)
            or any(tuple(source.host_paths()) for source in plan.sources)
            or any(device.path for device in devices)
        )

    def _on_host(self, requests: Sequence[AllocationRequest]) -> list[ContainerAllocation]:
        made = allocate_on_host(self._plan, self._scanner, self._host, requests)
        return self._host_files.apply(requests, made.allocations, tuple(made.devices.values()))

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """The ids of `available` that a container should get."""
        links = self._scanner.links if self._plan.prefer == "topology" else None
        offered = offers(self._inventory, available, links)
        total = dict.fromkeys([offer.device for offer in offered], self._plan.sharing.replicas or 1)
        return prefer(self._plan.prefer, offered, must_include, size, total)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Run the program that precedes the start of a container with these ids. Raises AllocationError.

        Devices may be unhealthy: a container that has them may be restarting.
        """
        if self._pre_start is None:
            return
        try:
            devices = sorted_devices(
                resolve(self._inventory, self._plan, distinct(ids), healthy=False).values()
            )
            with suppress(StuckError):
                devices = await self._offload.run(lambda: self._current(devices), limit=HOST_LIMIT)
            with refusing(self._plan, "pre_start"):
                programs = runs(self._pre_start.plan, self._plan.name, ids, devices)
            await self._pre_start.run(programs)
        except AllocationError as error:
            self._counters.pre_start_errors += 1
            _log.warn("pre-start refused", resource=self._plan.name, reason=str(error))
            raise
        self._counters.pre_starts += 1

    def _current(self, devices: Sequence[Device]) -> list[Device]:
        """Devices as they are on the host now; one that cannot be resolved, as it was."""
        present = {device.id: device for device in self._scanner.resolve(devices).devices}
        return [present.get(device.id, device) for device in devices]


class PreStartRunner:
    """Runs the `pre_start` program of one resource."""

    def __init__(self, resource: str, plan: PreStartPlan, clock: Clock) -> None:
        self._resource = resource
        self.plan = plan
        self._clock = clock
        self._offload = Offload(MAX_PROGRAMS)
        self._slots = asyncio.Semaphore(MAX_PROGRAMS)

    async def run(self, runs: Sequence[Run]) -> None:
        """Run all programs. Raises AllocationError for the first that fails; then no further one starts."""
        until = self._clock.monotonic() + PRE_START_LIMIT
        tasks = [asyncio.create_task(self._one(run, until)) for run in runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, run: Run, until: float) -> None:
        async with self._slots:
            limit = min(self.plan.timeout, until - self._clock.monotonic() - KILL_MARGIN)
            started = self._clock.monotonic()
            if limit <= 0:
                raise self._refused(Refusal.DEADLINE_EXCEEDED, run, "there was no time left to run it")
            try:
                outcome = await self._offload.run(
                    lambda: run_command(run.command, limit=limit, most=MAX_OUTPUT, last=True),
                    limit=limit + KILL_MARGIN,
                )
            except OSError as error:
                raise self._refused(Refusal.FAILED_PRECONDITION, run, error.strerror or str(error)) from None
            except StuckError:
                raise self._refused(
                    Refusal.DEADLINE_EXCEEDED, run, f"it cannot be ended, {limit:g} s were not enough"
                ) from None
        if outcome.status is None:
            reason = f"still running after {limit:g} s, killed{_end_of_output(outcome)}"
            raise self._refused(Refusal.DEADLINE_EXCEEDED, run, reason)
        if outcome.status:
            reason = f"exit status {outcome.status}{_end_of_output(outcome)}"
            raise self._refused(Refusal.FAILED_PRECONDITION, run, reason)
        _log_pre_start.info(
            "pre_start program succeeded",
            resource=self._resource,
            device=run.device,
            command=shlex.join(run.command),
            seconds=round(self._clock.monotonic() - started, 3),
        )

    def _refused(self, refusal: Refusal, run: Run, reason: str) -> AllocationError:
        device = f" for {visible(run.device)}" if run.device else ""
        command = visible(shlex.join(run.command), 200)
        return AllocationError(refusal, f"{self._resource}: pre_start{device}: {command}: {reason}")


def _end_of_output(outcome: Outcome) -> str:
    """The end of a program's standard error, or else of its output."""
    text = (outcome.error.strip() or outcome.output.strip()).decode(errors="replace")
    if not text:
        return ""
    tail = text if len(text) <= MAX_OUTPUT_TAIL else f"…{text[-MAX_OUTPUT_TAIL:]}"
    return f": {visible(tail, 4 * MAX_OUTPUT_TAIL)}"
