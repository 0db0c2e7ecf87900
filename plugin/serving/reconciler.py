"""Compares one resource with the kubelet's state: adoption, tombstones and the registration."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from msgspec import Struct

from plugin.devices.inventory import RELEASE_AFTER, Inventory
from plugin.serving.context import PluginContext
from plugin.serving.device_tracker import DeviceTracker
from plugin.serving.registration import Registration
from runtime.log import Episode, Log

MAX_REGISTRATION_PAUSE: Final = 3600.0
"""Seconds between registrations that do not help: doubled from one to the next up to this."""

_log = Log("reconciler")


class _NoVerdictError(Exception):
    """Nothing healthy is advertised, no registration is followed, or the kubelet gives no answer."""


class _Suspicion(Struct, frozen=True):
    """No id of this resource is allocatable under a registration; `displaced`: another plugin's ids are."""

    registration: int
    displaced: bool


class Reconciler:
    """Adopts ids that pods held before, drops tombstones, and registers again where the kubelet lost us."""

    def __init__(
        self,
        resource: str,
        *,
        inventory: Inventory,
        devices: DeviceTracker,
        changed: Callable[[], None],
        registration: Registration,
        context: PluginContext,
    ) -> None:
        """`changed` is called after the inventory changed."""
        self._resource = resource
        self._inventory = inventory
        self._devices = devices
        self._changed = changed
        self._registration = registration
        self._kubelet = context.kubelet
        self._ownership = context.ownership
        self._clock = context.clock
        self._pace = context.pace
        self._displaced = Episode(_log, "another plugin serves the resource", resource=resource)
        self._holders_known = False
        self._unlisted: dict[str, float] = {}
        self._given = asyncio.Event()
        self.adopted = False
        """Whether `adopt` is done."""

    async def adopt(self) -> None:
        """Advertise ids that pods hold and the scan did not find, as unhealthy. Once.

        Otherwise a device that vanished while no plugin ran would be dropped although a pod holds it.
        Without an answer of the kubelet, `release_tombstones` tries again.
        """
        if self.adopted:
            return
        await self._adopt_held()
        self.adopted = True
        self._changed()

    async def _adopt_held(self) -> None:
        held = await self._kubelet.held()
        self._holders_known = held is not None
        if held is not None:
            await self._ownership.learn_once()
            adopted = sorted(held.get(self._resource, ()))
            self._inventory.adopt(adopted, self._clock.instant())
            self.given(adopted)
            self._devices.reclaim()

    def given(self, advertised_ids: Iterable[str]) -> None:
        """Record that pods got these ids."""
        self._unlisted |= dict.fromkeys(advertised_ids, self._clock.monotonic())
        self._given.set()

    async def follow_holders(self) -> None:
        """Check soon after each Allocate that List names the pod. Runs until cancelled.

        List proves the end of such a pod alone (`EndedPods`): check before the pod ends.
        """
        while True:
            await self._given.wait()
            self._given.clear()
            await asyncio.sleep(self._pace.confirm)
            await self._confirm_holders()

    async def _confirm_holders(self) -> None:
        """Forget the ids whose pod List has named, or that no pod has got after all."""
        now = self._clock.monotonic()
        before = dict(self._unlisted)
        listed = await self._kubelet.with_listed_pod(self._resource)
        held = await self._kubelet.may_be_held(self._resource)
        if listed is None or held is None:
            return
        for device_id, at in before.items():
            lost = device_id not in held and now - at >= RELEASE_AFTER
            if (lost or device_id in listed) and self._unlisted.get(device_id) == at:
                del self._unlisted[device_id]

    async def release_tombstones(self) -> None:
        """Drop vanished devices that no pod holds. Runs until cancelled."""
        while True:
            await asyncio.sleep(self._pace.release)
            if self._unlisted:
                await self._confirm_holders()
            if not self._holders_known:
                await self._adopt_held()
                self._changed()
            if self._devices.waits_for_holder and (listed := await self._kubelet.listed()) is not None:
                self._ownership.review(listed, self._clock.monotonic(), self._pace.release / 2)
            candidates = self._inventory.releasable(self._clock.instant())
            held = await self._kubelet.may_be_held(self._resource) if candidates else None
            if held is None:
                continue
            dropped = self._inventory.release(candidates, held, self._clock.instant())
            if dropped:
                _log.info("dropped vanished devices", resource=self._resource, count=len(dropped))
                self._devices.reclaim()
                self._changed()

    async def verify(self) -> None:
        """Register again where the kubelet has none of the resource's devices allocatable.

        When a newer plugin of the resource leaves, the kubelet stops the endpoint of this one too, and
        does not report it. While the newer plugin stays, registering again would make the two displace
        each other in turn; that is only logged.
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
            except _NoVerdictError:
                continue
            if suspicion is not None and suspicion.displaced:
                self._displaced.failed("the kubelet's allocatable devices are not the advertised ones")
            else:
                self._displaced.recovered()
            if suspicion is None or suspicion.displaced:
                pause, not_before = self._pace.verify, 0.0
            elif self._clock.monotonic() >= not_before:
                _log.warn("no device is allocatable, registering again", resource=self._resource)
                self._registration.renew()
                not_before = self._clock.monotonic() + pause
                pause = min(2 * pause, MAX_REGISTRATION_PAUSE)

    async def _lasting_suspicion(self) -> _Suspicion | None:
        """A suspicion that two checks of the same registration confirm, None where there is none.

        One check is not enough: the kubelet may just have restarted. Raises _NoVerdictError.
        """
        suspicion = await self._suspicion()
        if suspicion is None:
            return None
        await asyncio.sleep(self._pace.verify_again)
        again = await self._suspicion()
        if again is not None and again != suspicion:
            raise _NoVerdictError
        return again

    async def _suspicion(self) -> _Suspicion | None:
        standing = self._registration.standing
        healthy = {entry.id for entry in self._inventory.advertised() if entry.known.healthy}
        if standing is None or not healthy:
            raise _NoVerdictError
        allocatable = await self._kubelet.allocatable()
        if allocatable is None or self._registration.standing != standing:
            raise _NoVerdictError
        ids = allocatable.get(self._resource, frozenset())
        return None if ids & healthy else _Suspicion(standing, displaced=bool(ids))
