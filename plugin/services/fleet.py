"""The set of resources that is being served: each an actor of its own, started and stopped singly."""

import asyncio
from collections.abc import Sequence

from daemon.log import Log
from plugin.core.plan import ResourcePlan
from plugin.services.family import Family, Make
from plugin.services.resource import Resource
from plugin.services.status import ResourceStatus
from plugin.services.surroundings import Surroundings

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
