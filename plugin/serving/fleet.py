"""The resources that a process serves: started and stopped one by one, as the configuration changes.

A family is a resource whose name is a template: each name that its devices give is served as a resource.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from plugin.config.plan import ResourcePlan
from plugin.devices.identify import MOST_MEMBERS, members
from plugin.discovery.source import Findings
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.context import PluginContext
from plugin.serving.device_tracker import ScanRequest, ScanSchedule, ScanTriggers
from plugin.serving.resource import ServedResource
from plugin.serving.scan import ScanError, SharedSources, bounded
from plugin.serving.status import ResourceCounters, ResourceLog, ResourceStatus
from runtime.log import Log

_log = Log("fleet")


class ResourceFamily:
    """Serves the resources of one family. A resource is served until the family ends. Run `run()`."""

    def __init__(
        self,
        plan: ResourcePlan,
        context: PluginContext,
        served_by: Callable[[str], str | None],
    ) -> None:
        """`served_by` returns which other resource or family has a name, None where it is free."""
        self.plan = plan
        self._context = context
        self._served_by = served_by
        self._sources = SharedSources(plan, context.host, context.clock.monotonic)
        self._offload = Offload(1)
        self._schedule = ScanSchedule(context)
        self._members: dict[str, tuple[ServedResource, asyncio.Task[None]]] = {}
        self._counters = ResourceCounters()
        self._log = ResourceLog(plan.name)
        self._scanned = False

    @property
    def names(self) -> frozenset[str]:
        """The names of its resources."""
        return frozenset(self._members)

    def rescan(self) -> None:
        """Scan again: a name may have become free."""
        self._schedule.everything()

    async def give_up(self, names: Iterable[str]) -> None:
        """Stop the resources of these names: the configuration has them now."""
        leaving = [(name, self._members.pop(name)[1]) for name in names if name in self._members]
        for _, task in leaving:
            task.cancel()
        for name, task in leaving:
            await asyncio.wait({task})
            _log.info("resource stopped", resource=name)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._schedule.run(lambda request: self._scan(request, group), group)
        finally:
            self._members.clear()
            self._context.ownership.release(self.plan.name)

    def statuses(self) -> tuple[ResourceStatus, ...]:
        """The status of each resource by name, or of the family while it has none."""
        if self._members:
            return tuple(self._members[name][0].status() for name in sorted(self._members))
        failing = self._log.discovery.reason
        waiting = f"waiting for devices: {self._log.empty.reason or 'none names a resource'}"
        scanning = f"discovery fails: {failing}" if failing else "looking for devices"
        return (
            ResourceStatus(
                name=self.plan.name,
                ready=self._scanned,
                state=waiting if self._scanned else scanning,
                counters=self._counters,
            ),
        )

    async def _scan(self, request: ScanRequest, group: asyncio.TaskGroup) -> ScanTriggers | None:
        self._counters.discoveries += 1
        try:
            every = await self._offload.run(
                lambda: self._sources.scan(request.since), limit=self._context.pace.scan_limit
            )
        except Exception as error:  # noqa: BLE001 -- a defect in a source must not end the other resources
            self._counters.discovery_errors += 1
            expected = isinstance(error, ScanError | StuckError)
            self._log.discovery.failed(str(error) if expected else f"{type(error).__name__}: {error}")
            self._context.ownership.scanned(self.plan.name)
            return None
        self._log.discovery.recovered()
        self._serve_members(every, group)
        return ScanTriggers(
            bounded(dict.fromkeys(pair for findings in every for pair in findings.follow)),
            subsystems=frozenset().union(*(findings.subsystems for findings in every)),
        )

    def _serve_members(self, every: Iterable[Findings], group: asyncio.TaskGroup) -> None:
        """Start a resource for each new name."""
        found = members(self.plan, (item for findings in every for item in findings.found))
        left_out = list(found.left_out)
        started: list[ServedResource] = []
        for name, plan in found.plans.items():
            if name in self._members:
                continue
            other = self._served_by(name)
            if other is not None:
                left_out.append((name, f"is served by {other}"))
            elif len(self._members) >= MOST_MEMBERS:
                # Names that no device has any more count too: their resources are still served.
                left_out.append((name, f"there are {MOST_MEMBERS} resources of its family already"))
            else:
                resource = ServedResource(plan, self._context, self._sources)
                self._members[name] = resource, group.create_task(resource.run())
                started.append(resource)
        self._log.left_out(left_out)
        if self._members:
            self._log.empty.recovered()
        else:
            notes = "; ".join(note for findings in every for note in findings.notes)
            self._log.empty.failed(notes or "none names a resource", level="info")
        if not self._scanned:
            group.create_task(self._wait_for_claims(started))
        self._scanned = True

    async def _wait_for_claims(self, started: Iterable[ServedResource]) -> None:
        """Let later resources claim once the first members have."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._context.pace.claim_turn):
                for resource in started:
                    await resource.scanned.wait()
        self._context.ownership.scanned(self.plan.name)


class ResourceFleet:
    """Owns the resources. Run `run()`; `apply` sets which ones there are."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._running: dict[str, tuple[ServedResource | ResourceFamily, asyncio.Task[None]]] = {}
        self._plans: tuple[ResourcePlan, ...] = ()
        self._applied = asyncio.Event()

    @property
    def plans(self) -> tuple[ResourcePlan, ...]:
        """What was applied last."""
        return self._plans

    def apply(self, plans: Sequence[ResourcePlan]) -> None:
        """Serve these resources from now on. One whose plan did not change is not disturbed."""
        self._plans = tuple(plans)
        self._applied.set()

    async def run(self) -> None:
        """Serve what was applied last, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._applied.wait()
                self._applied.clear()
                await self._update(self._plans, group)

    def statuses(self) -> tuple[ResourceStatus, ...]:
        """The status of each resource in the order of the configuration."""
        return tuple(
            status
            for plan in self._plans
            if plan.name in self._running
            for status in self._running[plan.name][0].statuses()
        )

    @property
    def settled(self) -> bool:
        """Whether exactly the resources of the last `apply` run."""
        running = {name: served.plan for name, (served, _) in self._running.items()}
        return not self._applied.is_set() and running == {plan.name: plan for plan in self._plans}

    async def _update(self, plans: Sequence[ResourcePlan], group: asyncio.TaskGroup) -> None:
        wanted = {plan.name: plan for plan in plans}
        leaving = [
            (name, task)
            for name, (resource, task) in self._running.items()
            if wanted.get(name) != resource.plan
        ]
        for _, task in leaving:
            task.cancel()
        for name, task in leaving:
            # Its streams and its lease end before another resource registers in its place.
            await asyncio.wait({task})
            del self._running[name]
            _log.info("resource stopped", resource=name)
        families = [served for served, _ in self._running.values() if isinstance(served, ResourceFamily)]
        for family in families:
            await family.give_up(wanted)
        self._context.ownership.configure(plans)
        for plan in plans:
            if plan.name not in self._running:
                self._start(plan, group)
        for family in families:
            family.rescan()

    def _start(self, plan: ResourcePlan, group: asyncio.TaskGroup) -> None:
        served: ServedResource | ResourceFamily
        if plan.family is None:
            served = ServedResource(plan, self._context)
        else:
            served = ResourceFamily(plan, self._context, lambda name: self._served_by(name, plan.name))
        self._running[plan.name] = served, group.create_task(served.run())

    def _served_by(self, name: str, family: str) -> str | None:
        """Which resource or family other than `family` has a name."""
        if any(plan.name == name for plan in self._plans):
            return "a resource of that name"
        for other, (served, _) in self._running.items():
            if other != family and isinstance(served, ResourceFamily) and name in served.names:
                return f"the family {other}"
        return None
