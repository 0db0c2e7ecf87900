"""What a resource asks the kubelet now and then: who holds what, and whether it is allocatable at all."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from kubelet.holders import Held, union
from plugin.devices.inventory import Inventory
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.context import Surroundings
from plugin.serving.registration import Registration
from runtime.log import Episode, Log

CHECKPOINT_LIMIT = 5.0
LONGEST_VERIFY = 3600.0
"""Seconds between registrations that do not help: doubled from one to the next up to this."""

_log = Log("upkeep")


class _UnknownError(Exception):
    """Whether it is allocatable cannot be told now: nothing of it is healthy, it is not registered, or the
    kubelet does not answer.
    """


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """Nothing of ours is allocatable under this registration; `displaced`: somebody else's devices are."""

    registration: int
    displaced: bool


class Upkeep:
    """Adopts what pods hold from before, drops tombstones that nobody holds, doubts the registration."""

    def __init__(
        self,
        resource: str,
        *,
        inventory: Inventory,
        changed: Callable[[], None],
        registration: Registration,
        surroundings: Surroundings,
    ) -> None:
        """`changed` is called after the inventory has changed here."""
        self._resource = resource
        self._inventory = inventory
        self._changed = changed
        self._registration = registration
        self._pod_resources = surroundings.pod_resources
        self._ownership = surroundings.ownership
        self._clock = surroundings.clock
        self._pace = surroundings.pace
        self._offload = Offload()
        self._displaced = Episode(_log, "another plugin serves it", resource=resource)
        self._taken_over = False
        self.adopted = False
        """Whether `adopt` has been done."""

    async def adopt(self) -> None:
        """Advertise, as unhealthy, what pods hold already and discovery does not find. Once.

        A device that vanished while no plugin ran would else be dropped, although a pod holds it.
        """
        if self.adopted:
            return
        await self._take_over()
        self.adopted = True
        self._changed()

    async def _take_over(self) -> None:
        """Where nobody tells yet what is held, nothing is concluded: it is asked for again."""
        listed = await self._pod_resources.listed()
        # kubelet: List answers and names nobody, for about a second after a restart. The checkpoint knows.
        held = listed or await self._checkpointed()
        if held is None and self.adopted:
            held = listed
        self._taken_over = held is not None
        if held is not None and not self._ownership.learned:
            self._ownership.learn(*await self._pod_resources.holdings())
        if held is not None:
            self._inventory.adopt(sorted(held.get(self._resource, ())), self._clock.instant())

    async def release_tombstones(self) -> None:
        """Drop devices that are gone, once the kubelet says that no pod holds them."""
        while True:
            await asyncio.sleep(self._pace.release)
            if not self._taken_over:
                await self._take_over()
                self._changed()
            await self._review()
            candidates = self._inventory.releasable(self._clock.instant())
            if not candidates:
                continue
            # List knows what running pods hold, the checkpoint what their init containers were given.
            listed = await self._pod_resources.listed()
            checkpointed = await self._checkpointed()
            if listed is None or checkpointed is None:
                continue
            held = union(listed, checkpointed).get(self._resource, frozenset())
            dropped = self._inventory.release(candidates, held, self._clock.instant())
            if dropped:
                _log.info(
                    "dropped devices that are gone and not held", resource=self._resource, count=len(dropped)
                )
                self._changed()

    async def _review(self) -> None:
        """See whether what pods hold as something else is free."""
        if self._ownership.waits(self._resource):
            listed = await self._pod_resources.listed()
            if listed is not None:
                self._ownership.review(listed, self._clock.monotonic(), self._pace.release / 2)

    async def verify(self) -> None:
        """Register anew where the kubelet takes nothing of a registered resource for allocatable.

        kubelet: a newer plugin of the resource that leaves takes this one's endpoint with it, and nobody
        tells. While it stays, the kubelet asks it and not us: that is told, for two that took the
        resource from each other in turn would serve nobody.
        """
        pause, not_before = self._pace.verify, 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.verify):
                    await self._registration.doubt.wait()
                    await asyncio.sleep(self._pace.verify_again)
            self._registration.doubt.clear()
            try:
                suspicion = await self._lasting_suspicion()
            except _UnknownError:
                # Says nothing of whether registering anew has helped.
                continue
            self._tell_displaced(suspicion)
            if suspicion is None or suspicion.displaced:
                pause, not_before = self._pace.verify, 0.0
            elif self._clock.monotonic() >= not_before:
                _log.warn("nothing of it is allocatable, registering anew", resource=self._resource)
                self._registration.renew()
                not_before = self._clock.monotonic() + pause
                pause = min(2 * pause, LONGEST_VERIFY)

    async def _lasting_suspicion(self) -> _Suspicion | None:
        """None: it is well. Raises _UnknownError."""
        suspicion = await self._suspicion()
        if suspicion is None:
            return None
        await asyncio.sleep(self._pace.verify_again)
        # Only what lasts, and of one and the same registration: a kubelet may just have restarted.
        again = await self._suspicion()
        if again is not None and again != suspicion:
            raise _UnknownError
        return again

    async def _suspicion(self) -> _Suspicion | None:
        standing = self._registration.standing
        if standing is None:
            raise _UnknownError
        healthy = {entry.id for entry in self._inventory.advertised() if entry.known.healthy}
        if not healthy:
            raise _UnknownError
        allocatable = await self._pod_resources.allocatable()
        if allocatable is None or self._registration.standing != standing:
            raise _UnknownError
        named = allocatable.get(self._resource, frozenset())
        return None if named & healthy else _Suspicion(standing, displaced=bool(named))

    def _tell_displaced(self, suspicion: _Suspicion | None) -> None:
        if suspicion is not None and suspicion.displaced:
            self._displaced.failed("the devices that the kubelet takes for allocatable are none of ours")
        else:
            self._displaced.recovered()

    async def _checkpointed(self) -> Held | None:
        try:
            return await self._offload.run(self._pod_resources.checkpointed, limit=CHECKPOINT_LIMIT)
        except StuckError:
            return None
