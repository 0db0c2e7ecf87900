"""Claimed devices (DRA) by share, and what DRA says about a device, as text. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from exporter.mapping.device_health import named
from exporter.mapping.model import Claimed, ClaimHolding, Device, Holder
from exporter.views.wording import listed, text
from runtime.text import utc


def restricted(device: Device, through: Iterable[ClaimHolding]) -> Device:
    """A claimed `device` with those containers alone that have it `through` these claims."""
    kept = tuple(through)
    holders = {one.holder for one in kept if not one.admin}
    claimed = device.claimed and replace(device.claimed, through=kept)
    return replace(device, claimed=claimed, holders=tuple(sorted(holders)))


def held_by(device: Device, holder: Holder) -> Device:
    """`device` with this one of its holders."""
    if device.claimed is not None:
        device = restricted(device, [one for one in device.claimed.through if one.holder == holder])
    return device if device.holders == (holder,) else replace(device, holders=(holder,))


def holdings(claimed: Claimed | None) -> tuple[ClaimHolding, ...]:
    """The claims that hold the device: those that are not for administration."""
    return () if claimed is None else tuple([one for one in claimed.through if not one.admin])


def administrators(device: Device) -> tuple[ClaimHolding, ...]:
    """The claims that have the device for administration, which is not holding."""
    return () if device.claimed is None else tuple([one for one in device.claimed.through if one.admin])


def resource_names(device: Device) -> Iterator[str]:
    """The names that a resource's name finds a device by: its own, its driver, and what holders asked by."""
    yield device.key.resource
    if device.claimed is not None:
        yield device.claimed.name.driver
        yield from [one.requested_as for one in holdings(device.claimed) if one.requested_as]


def names(device: Device) -> Iterator[str]:
    """The further names of a claimed device: in its pool, with its pool, of its CDI devices, and its UUID."""
    claimed = device.claimed
    if claimed is None:
        return
    yield claimed.name.device
    yield f"{claimed.name.pool}/{claimed.name.device}"
    yield from claimed.cdi_devices
    if claimed.published is not None and claimed.published.uuid:
        yield claimed.published.uuid
    if claimed.cdi is not None:
        yield from claimed.cdi.uuids


class Share(NamedTuple):
    """A share of a claimed device: the device with the share's holders; "" of one that is not shared by
    capacity.
    """

    share_id: str
    device: Device
    claimed: Claimed


def shares(device: Device) -> Iterator[Share]:
    """The shares of a claimed device that containers hold."""
    held = holdings(device.claimed)
    for share in sorted({one.share_id for one in held}):
        own = restricted(device, [one for one in held if one.share_id == share])
        if own.claimed is not None:
            yield Share(share, own, own.claimed)


def perhaps_administration(device: Device) -> bool:
    """Whether several claims hold a device that is not shared, and some of them cannot be read: one of them
    may be for administration.
    """
    held = holdings(device.claimed)
    if device.claimed is None or device.claimed.shareable or not any(one.admin is None for one in held):
        return False
    return len({one[1:3] for one in held if not one.share_id}) > 1


def texts(claimed: Claimed) -> Iterator[str]:
    """All that a search finds a claimed device by."""
    yield from claimed.name
    yield from claimed.cdi_devices
    for one in claimed.through:
        yield f"{one.claim_namespace}/{one.claim}"
        yield one.share_id
        yield one.requested_as
        yield f"{one.holder.namespace}/{one.holder.pod}"
    if claimed.cdi is not None:
        yield from (*claimed.cdi.uuids, *claimed.cdi.pci_addresses)
    published = claimed.published
    if published is None:
        return
    yield from (published.uuid, published.pci_address, published.model)
    for name, value in (*published.attributes, *published.capacity):
        yield f"{name} {value}"
    if published.taints:
        yield named(published.taints)


# --- sentences ------------------------------------------------------------------------------------------


def through_words(device: Device, holder: Holder) -> str:
    """` through the claim ml/mine, requested as nvidia.com/gpu`; "" for a device of a plugin."""
    claims = [one for one in holdings(device.claimed) if one.holder == holder]
    if not claims:
        return ""
    asked = device.requested_as(holder)
    requested = f", requested as {text(asked).shown}" if asked not in {"", device.key.resource} else ""
    words = "the claims" if len(claims) > 1 else "the claim"
    return f" through {words} {listed([_claim(one) for one in claims])}{requested}"


def _claim(one: ClaimHolding) -> str:
    share = f" (share {text(one.share_id).shown})" if one.share_id else ""
    return f"{one.claim_namespace}/{one.claim}{share}"


def administration(device: Device, name: Callable[[Holder], str]) -> Iterator[str]:
    """Who uses the device for administration, as far as claims can be read; `name` names a holder."""
    if perhaps_administration(device):
        yield "Several claims hold it, perhaps for administration: not all of them can be read."
    found = administrators(device)
    if found:
        who = [f"{name(one.holder)} through the claim {_claim(one)}" for one in found]
        yield f"It is also used for administration by {listed(who)}, which is not holding."


def published_words(device: Device, problems: Iterable[str]) -> Iterator[str]:
    """What the ResourceSlice says about a claimed device; without one, the `problems` of the sources."""
    if device.claimed is None:
        return
    published = device.claimed.published
    if published is None:
        yield "No ResourceSlice names it: its model, NUMA node, capacity and taints are unknown."
        yield from (f"{problem}." for problem in problems)
        return
    if published.model:
        yield f"Its model is {text(published.model).shown}."
    if published.uuid:
        yield f"Its UUID is {text(published.uuid).shown}."
    if published.capacity:
        found = [f"{text(name).shown} {text(value).shown}" for name, value in published.capacity]
        yield f"Its capacity is {listed(found)}."
    if published.shareable:
        yield "Several claims may hold it at once."
    for taint in published.taints:
        since = "" if taint.since is None else f" since {utc(taint.since)}"
        yield f"It has the {text(named([taint])).shown}{since}."
    if device.alternative:
        yield "It is an alternative: another partition of the same physical device is counted in its place."
