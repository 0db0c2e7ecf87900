"""What a resource asks the kubelet now and then: who holds what, and whether it is allocatable at all."""

import asyncio
from contextlib import suppress

from daemon.log import Log
from plugin.core.holders import Held, union
from plugin.core.inventory import Inventory
from plugin.discovery.offload import Offload, StuckError
from plugin.services.board import Board
from plugin.services.registration import Registration
from plugin.services.surroundings import Surroundings

CHECKPOINT_LIMIT = 5.0
LONGEST_VERIFY = 3600.0
"""Seconds between registrations that do not help: doubled from one to the next up to this."""

_log = Log("upkeep")


class Upkeep:
    """Adopts what pods hold from before, drops tombstones that nobody holds, doubts the registration."""

    def __init__(
        self,
        resource: str,
        *,
        inventory: Inventory,
        board: Board,
        registration: Registration,
        surroundings: Surroundings,
    ) -> None:
        self._resource = resource
        self._inventory = inventory
        self._board = board
        self._registration = registration
        self._pod_resources = surroundings.pod_resources
        self._clock = surroundings.clock
        self._pace = surroundings.pace
        self._offload = Offload()
        self.adopted = False
        """Whether `adopt` has been done."""

    async def adopt(self) -> None:
        """Advertise, as unhealthy, what pods hold already and discovery does not find. Once.

        A device that vanished while no plugin ran would else be dropped, although a pod holds it.
        """
        if self.adopted:
            return
        # kubelet: List answers and names nobody, for about a second after a restart. The checkpoint knows.
        held = await self._pod_resources.listed() or await self._checkpointed() or {}
        self._inventory.adopt(sorted(held.get(self._resource, ())), self._clock.now())
        self._board.publish(self._inventory.advertised())
        self.adopted = True

    async def release_tombstones(self) -> None:
        """Drop devices that are gone, once the kubelet says that no pod holds them."""
        while True:
            await asyncio.sleep(self._pace.release)
            candidates = self._inventory.releasable(self._clock.now())
            if not candidates:
                continue
            # List knows what running pods hold, the checkpoint what their init containers were given.
            listed = await self._pod_resources.listed()
            checkpointed = await self._checkpointed()
            if listed is None or checkpointed is None:
                continue
            held = union(listed, checkpointed).get(self._resource, frozenset())
            dropped = self._inventory.release(candidates, held, self._clock.now())
            if dropped:
                _log.info(
                    "dropped devices that are gone and not held", resource=self._resource, count=len(dropped)
                )
                self._board.publish(self._inventory.advertised())

    async def verify(self) -> None:
        """Register anew where the kubelet takes nothing of a registered resource for allocatable.

        kubelet: an older plugin that leaves after this one registered takes this one's endpoint with it,
        and nobody tells.
        """
        pause, not_before = self._pace.verify, 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.verify):
                    await self._registration.doubt.wait()
                    await asyncio.sleep(self._pace.verify_again)
            self._registration.doubt.clear()
            if await self._is_doubtful():
                await asyncio.sleep(self._pace.verify_again)
            if not await self._is_doubtful():
                pause, not_before = self._pace.verify, 0.0
            elif self._clock.steady() >= not_before:
                _log.warn("nothing of it is allocatable, registering anew", resource=self._resource)
                self._registration.renew()
                not_before = self._clock.steady() + pause
                pause = min(2 * pause, LONGEST_VERIFY)

    async def _is_doubtful(self) -> bool:
        if not (self._registration.registered and self._registration.streams):
            return False
        if not any(entry.known.healthy for entry in self._inventory.advertised()):
            return False
        allocatable = await self._pod_resources.allocatable()
        return allocatable is not None and not allocatable.get(self._resource)

    async def _checkpointed(self) -> Held | None:
        try:
            return await self._offload.run(self._pod_resources.checkpointed, limit=CHECKPOINT_LIMIT)
        except StuckError:
            return None
