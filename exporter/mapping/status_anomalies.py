"""Anomalies that the statuses of devices show: unhealthy_held by the status of a pod, tainted_held, and
double_held by claims, or by a plugin and a driver. Pure.

Rules of Kubernetes for claimed devices:

- pods and containers that use one claim share its devices;
- several claims share a device only if they have different share ids, or if its driver permits it;
- access for administration is not holding. List does not show it: without the claim only what serves an
  extended resource is known to be no administration (ClaimHolding.sure).
"""

from collections.abc import Iterable, Iterator
from itertools import combinations

from msgspec.structs import replace

from exporter.mapping.anomalies import MAX_FACTS, listed, names, of_several_pods, pods_of
from exporter.mapping.device_health import named
from exporter.mapping.device_identity import same_physical
from exporter.mapping.device_status import DeviceStatus, DeviceStatuses
from exporter.mapping.model import Anomaly, ClaimHolding, Device
from runtime.text import shortened, utc


def status_anomalies(statuses: DeviceStatuses) -> Iterator[Anomaly]:
    """The anomalies of `statuses`, in no order."""
    for ill in statuses.ill.values():
        yield from _unhealthy_held(*ill)
    snapshot = statuses.snapshot
    if not (snapshot.published or snapshot.held_only):
        return
    for device in snapshot.devices:
        if device.claimed is not None and device.holders:
            if device.claimed.taints and device.key not in statuses.ill:
                yield from _tainted_held(device)
            if len(device.claimed.through) > 1:
                yield from _held_by_claims(device)
    yield from _given_twice(statuses)


def _unhealthy_held(device: Device, reason: str) -> Iterator[Anomaly]:
    evidence = f"it is held but unhealthy; the status of its pod says {f'why: {reason}' if reason else 'so'}"
    if device.claimed is not None and device.claimed.taints:
        evidence += f"; it has the {named(device.claimed.taints)}"
    for holder in device.holders:
        yield _of(Anomaly("unhealthy_held", *device.key, holder, evidence))


def _tainted_held(device: Device) -> Iterator[Anomaly]:
    taints = () if device.claimed is None else device.claimed.taints
    since = min([one.since for one in taints if one.since is not None], default=None)
    when = "" if since is None else f" since {utc(since)}"
    evidence = f"it is held but tainted; it has the {named(taints)}{when}"
    for holder in device.holders:
        yield _of(Anomaly("tainted_held", *device.key, holder, evidence))


def _of(one: Anomaly) -> Anomaly:
    """An anomaly with the facts about its own device and pod."""
    return replace(one, devices=(one.device,), pods=() if one.holder is None else pods_of((one.holder,)))


def _held_by_claims(device: Device) -> Iterator[Anomaly]:
    """An anomaly for each holder through one of several claims that do not share the device."""
    claimed = device.claimed
    if claimed is None or claimed.shareable:
        return
    sure = [one for one in claimed.through if one.sure]
    apart = {one for pair in combinations(sure, 2) if not _shared(*pair) for one in pair}
    if not apart:
        return
    claims = sorted({(one.claim_namespace, one.claim) for one in apart})
    evidence = f"{len(claims)} claims hold it, and it is not shared: {listed(names(claims))}"
    holders = sorted({one.holder for one in apart})
    for holder in holders:
        yield Anomaly(
            *("double_held", device.key.resource, device.key.device, holder, evidence),
            devices=(device.key.device,),
            pods=pods_of(holders)[:MAX_FACTS],
        )


def _shared(one: ClaimHolding, other: ClaimHolding) -> bool:
    same_claim = (one.claim_namespace, one.claim) == (other.claim_namespace, other.claim)
    return same_claim or bool(one.share_id and other.share_id and one.share_id != other.share_id)


def _given_twice(statuses: DeviceStatuses) -> Iterator[Anomaly]:
    """Physical devices that one pod holds by a plugin, and another by a claim."""
    worlds = {one.device.claimed is None for one in statuses.devices if one.device.holders}
    groups = same_physical(_near(statuses.devices), statuses.advertised.devices) if len(worlds) > 1 else []
    for group in groups:
        held = [device for device in group if device.surely_held]
        holders = sorted({holder for device in held for holder in device.holders})
        both = len({device.claimed is None for device in held}) > 1
        # Of pods that are not confirmed, some may have ended before the others came.
        if not both or not of_several_pods(holders) or any(map(statuses.snapshot.doubt, holders)):
            continue
        evidence = f"one physical device is given twice: {listed(list(map(_given, held)))}"
        for given in held:
            others = [one.key.device for one in held if one is not given]
            for holder in given.holders:
                yield Anomaly(
                    *("double_held", given.key.resource, given.key.device, holder, evidence),
                    devices=(given.key.device, *others)[:MAX_FACTS],
                    pods=pods_of(holders)[:MAX_FACTS],
                )


def _given(device: Device) -> str:
    resource, name = device.key
    by = "its plugin" if device.claimed is None else "a claim"
    return f"{resource} {shortened(name)} to {' and '.join(names(pods_of(device.holders))[:5])} by {by}"


def _near(statuses: Iterable[DeviceStatus]) -> list[Device]:
    """The devices that may be one physical device with a held claimed one: by its UUID or PCI address, or by
    those of a device that has one of these.
    """
    known = [(one.device, one.identity) for one in statuses if one.identity is not None]
    wanted = {
        name
        for device, identity in known
        if device.claimed is not None and device.holders
        for name in (identity.uuid, identity.pci_address)
    } - {""}
    if not wanted:
        return []
    wanted |= {
        name
        for _, identity in known
        if identity.uuid in wanted or identity.pci_address in wanted
        for name in (identity.uuid, identity.pci_address)
    } - {""}
    return [device for device, identity in known if identity.uuid in wanted or identity.pci_address in wanted]
