"""Resources that devices name themselves: looked for, and each served as a resource of its own."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from daemon.log import Log
from plugin.core.families import MOST_MEMBERS, members
from plugin.core.plan import ResourcePlan
from plugin.discovery.offload import Offload, StuckError
from plugin.discovery.source import Findings
from plugin.discovery.survey import Sources, SurveyError, bounded
from plugin.services.looks import Follow, Looks, Wish
from plugin.services.resource import Resource
from plugin.services.status import ResourceStatus
from plugin.services.surroundings import Surroundings
from plugin.services.tally import Tally
from plugin.services.telling import Telling

_log = Log("family")

Make = Callable[[ResourcePlan, Sources | None], Resource]


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
        self._sources = Sources(plan, surroundings.host, surroundings.clock.steady)
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
            _log.info("stopped", resource=name)

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
                lambda: self._sources.discover(wish.since), limit=self._surroundings.pace.look_limit
            )
        except Exception as error:  # noqa: BLE001 -- one family's defect must not end the other resources
            self._tally.discovery_errors += 1
            expected = isinstance(error, SurveyError | StuckError)
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
