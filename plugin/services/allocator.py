"""Answers to Allocate and GetPreferredAllocation for one resource."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from daemon.log import Log
from plugin.core.allocation import ContainerAnswer, Refusal, RefusedError, answer, choose, unavailable
from plugin.core.device import Device
from plugin.core.errors import quoted
from plugin.core.inventory import Inventory
from plugin.core.plan import ResourcePlan
from plugin.core.preference import offers, prefer
from plugin.discovery.host import HostRoot
from plugin.discovery.offload import Offload, StuckError
from plugin.discovery.survey import Surveyor, os_problem
from plugin.services.clock import Clock
from plugin.services.tally import Tally

RECHECK_LIMIT: Final = 5.0
"""Seconds for looking at the devices that Allocate asks for; a look that hangs refuses them."""

_log = Log("allocate")


class Allocator:
    """Decides from the inventory as it is, and looks again at what it hands out."""

    def __init__(
        self,
        plan: ResourcePlan,
        *,
        inventory: Inventory,
        host: HostRoot,
        surveyor: Surveyor,
        clock: Clock,
        tally: Tally,
    ) -> None:
        self._plan = plan
        self._inventory = inventory
        self._host = host
        self._surveyor = surveyor
        self._clock = clock
        self._tally = tally
        self._offload = Offload()

    @property
    def prefers(self) -> bool:
        """Whether GetPreferredAllocation is offered."""
        return self._plan.prefer != "none"

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        """What each container gets. Raises RefusedError for all of them where one cannot be served."""
        started = self._clock.steady()
        self._inventory.name((i for ids in containers for i in ids), self._clock.now())
        try:
            answers = await self._answers(containers)
        except RefusedError as error:
            self._tally.allocation_errors += 1
            _log.warn("allocation refused", resource=self._plan.name, reason=str(error))
            raise
        finally:
            self._tally.allocation_seconds.observe(self._clock.steady() - started)
            self._inventory.name((i for ids in containers for i in ids), self._clock.now())
        self._tally.allocations += len(answers)
        for ids in containers:
            _log.info("allocated", resource=self._plan.name, devices=",".join(ids))
        return answers

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """The ids of `available` that a container should best get."""
        total = Counter(entry.known.device.id for entry in self._inventory.advertised())
        return prefer(self._plan.prefer, offers(self._inventory, available), must_include, size, total)

    async def _answers(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        chosen = [choose(self._inventory, self._plan, ids) for ids in containers]
        devices = list({device.id: device for devices in chosen for device in devices}.values())
        answers = [answer(self._plan, ids, devices) for ids, devices in zip(containers, chosen, strict=True)]
        if (
            self._plan.probes
            or any(d.path for d in devices)
            or any(m.create for a in answers for m in a.mounts)
        ):
            await self._prepare(devices, answers)
        return answers

    async def _prepare(self, devices: Sequence[Device], answers: Sequence[ContainerAnswer]) -> None:
        """See that the devices are there at this moment, then make what their mounts need."""
        try:
            faults = await self._offload.run(
                lambda: self._look_and_make(devices, answers), limit=RECHECK_LIMIT
            )
        except StuckError as error:
            raise unavailable(self._plan, [f"the host's files cannot be looked at: {error}"]) from None
        except OSError as error:
            raise RefusedError(
                Refusal.FAILED_PRECONDITION, f"{self._plan.name}: allocate.mounts: {os_problem(error)}"
            ) from None
        if faults:
            raise unavailable(self._plan, [f"{quoted(i)} is unhealthy ({reason})" for i, reason in faults])

    def _look_and_make(
        self, devices: Sequence[Device], answers: Sequence[ContainerAnswer]
    ) -> list[tuple[str, str]]:
        faults = list(self._surveyor.resolve(devices).faults)
        if not faults:
            for made in {m.host: m.create for a in answers for m in a.mounts if m.create}.items():
                self._host.make(*made)
        return faults
