"""The set of resources that is being served: each an actor of its own, started and stopped singly."""

import asyncio
from collections.abc import Callable, Sequence

from daemon.log import Log
from plugin.core.plan import ResourcePlan
from plugin.services.resource import Resource
from plugin.services.status import ResourceStatus

_log = Log("fleet")


class Fleet:
    """Owns the resources. Run `run()`; say with `apply` which ones there should be."""

    def __init__(self, make: Callable[[ResourcePlan], Resource]) -> None:
        self._make = make
        self._running: dict[str, tuple[Resource, asyncio.Task[None]]] = {}
        self._plans: tuple[ResourcePlan, ...] = ()
        self._applied = asyncio.Event()

    def apply(self, plans: Sequence[ResourcePlan]) -> None:
        """Serve these and no others from now on; one whose plan did not change is not disturbed."""
        self._plans = tuple(plans)
        self._applied.set()

    @property
    def plans(self) -> tuple[ResourcePlan, ...]:
        """What was applied last."""
        return self._plans

    async def run(self) -> None:
        """Serve what was applied last, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._applied.wait()
                self._applied.clear()
                await self._bring_about(self._plans, group)

    def statuses(self) -> tuple[ResourceStatus, ...]:
        """Each resource as it stands, in the order of the configuration."""
        return tuple(
            self._running[plan.name][0].status() for plan in self._plans if plan.name in self._running
        )

    @property
    def settled(self) -> bool:
        """Whether every resource that should be served has been started."""
        return not self._applied.is_set() and len(self._running) == len(self._plans)

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
        for plan in plans:
            if plan.name not in self._running:
                resource = self._make(plan)
                self._running[plan.name] = resource, group.create_task(resource.run())
