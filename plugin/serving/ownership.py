"""Coordinates the exclusive resources of a process: who claims a device first, and who waits for it."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol

from plugin.config.plan import ResourcePlan
from plugin.devices import cdi
from plugin.devices.claims import ClaimResult, DeviceClaims, HeldDevices, claim_of
from plugin.devices.device import Device, HeldIds, Holding
from plugin.devices.rendering import RenderError


class HoldingsSource(Protocol):
    """Reports what pods hold."""

    async def holdings(self) -> Mapping[Holding, frozenset[str]] | None:
        """Identifiers of the physical devices behind each held id; None without an answer."""
        ...


class DeviceOwnership:
    """The device claims of a process, and what pods hold on its node."""

    def __init__(self, kubelet: HoldingsSource) -> None:
        self._kubelet = kubelet
        self._members: dict[str, ResourceOwnership] = {}
        self._progress = asyncio.Event()
        self._learned = False
        self.claims = DeviceClaims()
        self.held = HeldDevices()

    def configure(self, plans: Iterable[ResourcePlan]) -> None:
        """Set the configured resources, in their order."""
        plans = tuple(plans)
        exclusive = [plan.name for plan in plans if plan.exclusive]
        self.claims.configure(exclusive)
        self.held.configure(exclusive, [plan.name for plan in plans if not plan.exclusive])
        self._progress.set()

    def join(self, member: "ResourceOwnership") -> None:
        """Add a resource."""
        self._members[member.name] = member
        self.held.join(member.name, member.find_identifiers)
        # Holdings of this resource may be its own devices: resources that wait for them decide again.
        self._wake(m.name for m in self._members.values() if any(n == member.name for n, _ in m.waits))

    async def learn(self) -> None:
        """Read from the kubelet what pods hold. Without an answer nothing changes."""
        holdings = await self._kubelet.holdings()
        if holdings is not None:
            self.held.learn(holdings)
            if not self._learned:
                self._learned = True
                self._wake(tuple(self._members))

    async def learn_once(self) -> None:
        """Read what pods hold, unless that succeeded before."""
        if not self._learned:
            await self.learn()

    async def turn(self, resource: str, limit: float) -> None:
        """Wait until the resources that claim before `resource` have claimed, at most `limit` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self.claims.awaited(resource, self.held.resources - {resource}):
                    self._progress.clear()
                    await self._progress.wait()

    def started(self, resource: str, claims: Collection[str]) -> None:
        """Claim the devices that pods hold of `resource`."""
        self.claims.start(resource, claims)
        self._progress.set()

    def scanned(self, resource: str) -> None:
        """Record that `resource` has scanned once: later resources need not wait for it."""
        self.claims.scanned(resource)
        self._progress.set()

    def claim(self, resource: str, claims: Collection[str]) -> Mapping[str, str]:
        """Replace the claims of `resource`; returns those that other resources have."""
        return self._claimed(self.claims.claim(resource, claims))

    def change(self, resource: str, wanted: Collection[str], unwanted: Collection[str]) -> Mapping[str, str]:
        """Add and remove claims of `resource`; returns those that other resources have."""
        return self._claimed(self.claims.change(resource, wanted, unwanted))

    def _claimed(self, result: ClaimResult) -> Mapping[str, str]:
        self._wake(result.wake)
        return result.refused

    def review(self, listed: HeldIds, now: float, patience: float) -> None:
        """Forget what the kubelet no longer lists, and wake the resources that waited for it."""
        ended = self.held.review(listed, now, patience)
        self._wake(name for name, member in tuple(self._members.items()) if member.waits & ended)

    def release(self, resource: str) -> None:
        """Remove a resource."""
        self._members.pop(resource, None)
        self._wake(self.claims.release(resource))

    def _wake(self, resources: Iterable[str]) -> None:
        for name in tuple(resources):
            if name in self._members:
                self._members[name].wake()


class ResourceOwnership:
    """One resource's part: decides which of its devices it may offer.

    A resource that is not exclusive may offer everything that it finds.
    """

    def __init__(
        self,
        plan: ResourcePlan,
        ownership: DeviceOwnership,
        *,
        find: Callable[[str], Device | None],
        wake: Callable[[], None],
    ) -> None:
        """`find` returns the device that the last scan found under an advertised id; `wake` is called when
        a device that was refused may be free.
        """
        self.plan = plan
        self.name = plan.name
        self.wake = wake
        self.waits: frozenset[Holding] = frozenset()
        """Holdings of devices that were refused."""
        self._rank = plan.name if plan.member_of is None else plan.member_of.text
        self._ownership = ownership
        self._find = find
        self._sharing = plan.sharing
        self._free: dict[str, Device] = {}
        self._free_at = -1

    async def start(self, devices: Iterable[Device], limit: float) -> None:
        """Claim what pods hold of `devices`, then wait for the turn to claim the others."""
        if not self.plan.exclusive:
            return
        self._ownership.join(self)
        await self._ownership.learn()
        held = self._ownership.held.ids(self.name)
        own = (d.found for d in devices if not held.isdisjoint(self._sharing.valid_ids(d.id))) if held else ()
        self._ownership.started(self.name, {claim_of(f) for f in own if f is not None} - {""})
        await self._ownership.turn(self._rank, limit)

    def scanned(self) -> None:
        """Record the first scan. A family records it for its members."""
        if self.plan.member_of is None:
            self._ownership.scanned(self._rank)

    def claim(
        self, devices: Mapping[str, Device], kept: Iterable[Device], may_be_held: Callable[[str], bool]
    ) -> Mapping[str, str]:
        """Claim `devices`, by id, and `kept`; returns the refused ids with the reason.

        `kept`: devices that are gone but may be held: a pod may still use them, or they may come back.
        """
        elsewhere = self._held_elsewhere(devices, may_be_held)
        claims = _claims(devices, elsewhere)
        wanted = {*claims.values(), *(claim_of(d.found) for d in kept if d.found)} - {""}
        return _refused(claims, self._ownership.claim(self.name, wanted), elsewhere)

    def examine(self, devices: Mapping[str, Device], may_be_held: Callable[[str], bool]) -> None:
        """Find out which of `devices` pods hold elsewhere, so that `claim` finds it out for few."""
        self._held_elsewhere(devices, may_be_held)

    @property
    def settled(self) -> bool:
        """Whether the devices that are not changed need no decision: none waits, and no holding is new."""
        return not self.waits and self._free_at == self._ownership.held.generation

    def change(
        self, devices: Mapping[str, Device], unwanted: Collection[str], may_be_held: Callable[[str], bool]
    ) -> Mapping[str, str]:
        """Claim further `devices`, by id, and give up the claims `unwanted`; returns as `claim` does.

        Equals `claim` with all devices while `settled` holds and no device is refused.
        """
        elsewhere = self._held_elsewhere(devices, may_be_held)
        claims = _claims(devices, elsewhere)
        wanted = {*claims.values()} - {""}
        return _refused(claims, self._ownership.change(self.name, wanted, unwanted), elsewhere)

    def find_identifiers(self, advertised_id: str) -> frozenset[str] | None:
        """Identifiers of the device that the last scan found under an advertised id."""
        device = self._find(advertised_id)
        return None if device is None else _identifiers(self.plan, device)

    def leave(self, held: Mapping[str, Device]) -> None:
        """Remove the resource; `held`: devices that pods may hold, by advertised id."""
        if self.plan.exclusive:
            names = {i: _identifiers(self.plan, device) for i, device in held.items()}
            self._ownership.held.leave(self.name, names)
        self._ownership.release(self.name)

    def _held_elsewhere(
        self, devices: Mapping[str, Device], may_be_held: Callable[[str], bool]
    ) -> Mapping[str, str]:
        """Devices that pods hold under another resource or id. What they hold as it is offered is not."""
        held = self._ownership.held
        if self._free_at != held.generation:
            self._free.clear()
            self._free_at = held.generation
        found: dict[str, Holding] = {}
        for device_id, device in devices.items():
            if self._free.get(device_id) is device or may_be_held(device_id):
                continue
            holding = held.holding_of(
                self.name, device, self._sharing, partial(_identifiers, self.plan, device)
            )
            if holding is None:
                self._free[device_id] = device
            else:
                found[device_id] = holding
        self.waits = frozenset(found.values())
        return {i: f"{name}: a pod holds it as {held_id}" for i, (name, held_id) in found.items()}


def _claims(devices: Mapping[str, Device], elsewhere: Collection[str]) -> dict[str, str]:
    """The claim of each device that no pod holds elsewhere, by id."""
    return {i: claim_of(d.found) for i, d in devices.items() if d.found and i not in elsewhere}


def _refused(
    claims: Mapping[str, str], others: Mapping[str, str], elsewhere: Mapping[str, str]
) -> dict[str, str]:
    """Refused ids with the reason; `others`: owners by claim."""
    refused = {i: others[claim] for i, claim in claims.items() if claim in others} if others else {}
    return {**refused, **elsewhere}


def _identifiers(plan: ResourcePlan, device: Device) -> frozenset[str]:
    """What names `device` in an answer to Allocate: its paths, PCI address and own CDI name."""
    claim = "" if device.found is None else claim_of(device.found)
    names = {device.path, *device.nodes, claim.removeprefix("pci:")}
    with suppress(RenderError):  # the CDI specification reports the error
        names.update(cdi.names_of(plan, [device]))
    return frozenset(names - {""})
