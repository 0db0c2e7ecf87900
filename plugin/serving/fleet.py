"""The set of resources that is being served: each an actor of its own, started and stopped singly.

Resources that devices name themselves: looked for, and each served as a resource of its own.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from plugin.config.plan import ResourcePlan
from plugin.devices.identify import MOST_MEMBERS, members
from plugin.discovery.source import Findings
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.context import Surroundings
from plugin.serving.devices import Telling
from plugin.serving.resource import Resource
from plugin.serving.scan import ScanError, SharedSources, bounded
from plugin.serving.scan_schedule import Follow, Looks, Wish
from plugin.serving.status import ResourceStatus, Tally
from runtime.log import Log

_log_family = Log("family")

Make = Callable[[ResourcePlan, SharedSources | None], Resource]


class Family:
    """Serves one family. Run `run()`. A resource that a device named once is served until the end."""

    def __init__(
        self,
        plan: ResourcePlan,
        surroundings: Surroundings,
        make: Make,
        taken: Callable[[str], str | None],
    ) -> None:
        """`taken` says which other resource or family has a name, None where it is free."""
        self.plan = plan
        self._surroundings = surroundings
        self._make = make
        self._taken = taken
        self._sources = SharedSources(plan, surroundings.host, surroundings.clock.monotonic)
        self._offload = Offload(1)
        self._looks = Looks(surroundings)
        self._members: dict[str, tuple[Resource, asyncio.Task[None]]] = {}
        self._tally = Tally()
        self._telling = Telling(plan.name)
        self._looked = False
        self._notes: tuple[str, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of the resources that are served."""
        return frozenset(self._members)

    def look(self) -> None:
        """Look again: a name that was taken may be free."""
        self._looks.everything()

    async def give_up(self, names: Iterable[str]) -> None:
        """Serve none of these any more: the configuration has resources of these names now."""
        leaving = [(name, self._members.pop(name)[1]) for name in names if name in self._members]
        for _, task in leaving:
            task.cancel()
        for name, task in leaving:
            await asyncio.wait({task})
            _log_family.info("stopped", resource=name)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                await self._looks.run(lambda wish: self._look(wish, group), group)
        finally:
            self._members.clear()
            self._surroundings.ownership.release(self.plan.name)

    def statuses(self) -> tuple[ResourceStatus, ...]:
        """Each resource as it stands, in the order of their names; the family itself while it has none."""
        if self._members:
            return tuple(self._members[name][0].status() for name in sorted(self._members))
        failing = self._telling.discovery.reason
        waiting = f"waiting for devices: {self._telling.empty.reason or 'none names a resource'}"
        looking = f"discovery fails: {failing}" if failing else "looking for devices"
        return (
            ResourceStatus(
                name=self.plan.name,
                registered=False,
                streams=0,
                ready=self._looked,
                state=waiting if self._looked else looking,
                advertised=(),
                last_allocated=lambda _: None,
                tally=self._tally,
            ),
        )

    async def _look(self, wish: Wish, group: asyncio.TaskGroup) -> Follow | None:
        self._tally.discoveries += 1
        try:
            every = await self._offload.run(
                lambda: self._sources.scan(wish.since), limit=self._surroundings.pace.look_limit
            )
        except Exception as error:  # noqa: BLE001 -- one family's defect must not end the other resources
            self._tally.discovery_errors += 1
            expected = isinstance(error, ScanError | StuckError)
            self._telling.discovery.failed(str(error) if expected else f"{type(error).__name__}: {error}")
            self._surroundings.ownership.looked(self.plan.name)
            return None
        self._telling.discovery.recovered()
        self._serve(every, group)
        return Follow(
            bounded(dict.fromkeys(pair for findings in every for pair in findings.follow)),
            subsystems=frozenset().union(*(findings.subsystems for findings in every)),
        )

    def _serve(self, every: Iterable[Findings], group: asyncio.TaskGroup) -> None:
        """Begin to serve what is named for the first time."""
        found = members(self.plan, (item for findings in every for item in findings.found))
        left_out = list(found.left_out)
        begun: list[Resource] = []
        for name, plan in found.plans.items():
            if name in self._members:
                continue
            other = self._taken(name)
            if other is not None:
                left_out.append((name, f"is served by {other}"))
                continue
            if len(self._members) >= MOST_MEMBERS:
                # A resource is served until the end: what devices were called before counts too.
                left_out.append((name, f"there are {MOST_MEMBERS} resources of its family already"))
                continue
            resource = self._make(plan, self._sources)
            self._members[name] = resource, group.create_task(resource.run())
            begun.append(resource)
        self._telling.left_out(left_out)
        if self._members:
            self._telling.empty.recovered()
        else:
            notes = "; ".join(note for findings in every for note in findings.notes)
            self._telling.empty.failed(notes or "none names a resource", level="info")
        if not self._looked:
            group.create_task(self._claimed(begun))
        self._looked = True

    async def _claimed(self, begun: Iterable[Resource]) -> None:
        """Let later resources claim once the first ones here have."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._surroundings.pace.claim_turn):
                for resource in begun:
                    await resource.looked.wait()
        self._surroundings.ownership.looked(self.plan.name)


_log = Log("fleet")


class Fleet:
    """Owns the resources. Run `run()`; say with `apply` which ones there should be."""

    def __init__(self, surroundings: Surroundings, make: Make | None = None) -> None:
        """`make` makes a resource."""
        self._surroundings = surroundings
        self._make: Make = make or (lambda plan, sources: Resource(plan, surroundings, sources))
        self._running: dict[str, tuple[Resource | Family, asyncio.Task[None]]] = {}
        self._plans: tuple[ResourcePlan, ...] = ()
        self._applied = asyncio.Event()

    @property
    def plans(self) -> tuple[ResourcePlan, ...]:
        """What was applied last."""
        return self._plans

    def apply(self, plans: Sequence[ResourcePlan]) -> None:
        """Serve these and no others from now on; one whose plan did not change is not disturbed."""
        self._plans = tuple(plans)
        self._applied.set()

    async def run(self) -> None:
        """Serve what was applied last, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._applied.wait()
                self._applied.clear()
                await self._bring_about(self._plans, group)

    def statuses(self) -> tuple[ResourceStatus, ...]:
        """Each resource as it stands, in the order of the configuration; a family's where it is written."""
        return tuple(
            status
            for plan in self._plans
            if plan.name in self._running
            for status in self._running[plan.name][0].statuses()
        )

    @property
    def settled(self) -> bool:
        """Whether every resource that should be served has been started."""
        running = {name: served.plan for name, (served, _) in self._running.items()}
        return not self._applied.is_set() and running == {plan.name: plan for plan in self._plans}

    async def _bring_about(self, plans: Sequence[ResourcePlan], group: asyncio.TaskGroup) -> None:
        wanted = {plan.name: plan for plan in plans}
        leaving = [
            (name, task)
            for name, (resource, task) in self._running.items()
            if wanted.get(name) != resource.plan
        ]
        for _, task in leaving:
            task.cancel()
        for name, task in leaving:
            # Its streams end and its lease is given up before another registers in its place.
            await asyncio.wait({task})
            del self._running[name]
            _log.info("stopped", resource=name)
        families = [served for served, _ in self._running.values() if isinstance(served, Family)]
        for family in families:
            await family.give_up(wanted)
        self._surroundings.ownership.configure(
            [plan.name for plan in plans if plan.exclusive],
            [plan.name for plan in plans if not plan.exclusive],
        )
        for plan in plans:
            if plan.name not in self._running:
                self._begin(plan, group)
        for family in families:
            family.look()

    def _begin(self, plan: ResourcePlan, group: asyncio.TaskGroup) -> None:
        served: Resource | Family
        if plan.family is None:
            served = self._make(plan, None)
        else:
            served = Family(plan, self._surroundings, self._make, lambda name: self._taken(name, plan.name))
        self._running[plan.name] = served, group.create_task(served.run())

    def _taken(self, name: str, family: str) -> str | None:
        """Who else has a name that a family would serve."""
        if any(plan.name == name for plan in self._plans):
            return "a resource of that name"
        for other, (served, _) in self._running.items():
            if other != family and isinstance(served, Family) and name in served.names:
                return f"the family {other}"
        return None
