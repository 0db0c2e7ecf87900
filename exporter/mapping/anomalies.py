"""Anomalies in one snapshot: plugin_gone, unhealthy_held, double_held and no_longer_offered.

Anomalies that depend on time are in anomaly_tracker, those of claimed devices in status_anomalies.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from exporter.mapping.device_ids import DeviceKind, IdReader, read_id
from exporter.mapping.model import (
    NO_REPORTS,
    Anomaly,
    Device,
    Holder,
    PluginReports,
    PodKey,
    ResourceCounts,
    Snapshot,
)
from runtime.text import shortened

_LISTED: Final = 5
"""Names in a sentence."""
MAX_FACTS: Final = 64
"""Names in the facts of an anomaly."""
SEPARATE: Final = 8
"""Devices of a resource that have an anomaly each when they are no longer offered."""


def find(
    snapshot: Snapshot,
    advertised: PluginReports = NO_REPORTS,
    *,
    reader: IdReader = read_id,
    further: Iterable[Anomaly] = (),
) -> tuple[Anomaly, ...]:
    """Find the anomalies of `snapshot`; returns them and `further` ones, sorted.

    A resource whose plugin is gone is one anomaly, not one for each device. Health is not judged while the
    kubelet does not serve GetAllocatableResources.
    """
    found: list[Anomaly] = list(further)
    gone: set[str] = set()
    if snapshot.complete:
        for resource, counts in snapshot.resources().items():
            # A plugin that the kubelet watches and whose devices are all unhealthy is not gone.
            claimed = resource in snapshot.published or resource in snapshot.held_only
            none = counts.allocatable == 0 and counts.allocated > 0
            if none and not claimed and not advertised.serves(resource):
                gone.add(resource)
                found.append(_plugin_gone(resource, snapshot, advertised))
    found = [one for one in found if one.kind != "no_longer_offered" or one.resource not in gone]
    parts: list[Device] = []
    for device in [
        one
        for one in snapshot.devices
        if one.holders and (one.parent or not one.allocatable or one.holders[1:])
    ]:
        if device.parent and device.surely_held:
            parts.append(device)
        if device.claimed is not None:
            continue
        if not device.allocatable and device.key.resource not in gone:
            found.extend(_unhealthy_held(device, advertised))
        if len(device.holders) > 1 and not _shared(device, advertised, reader):
            found.extend(_double_held(device))
    if parts:
        found.extend(_whole_and_parts(snapshot, parts))
    # One for each device and holder: a device may be held by two pods, and one of its parts by a third.
    first = {order(anomaly): anomaly for anomaly in reversed(found)}
    return tuple([first[key] for key in sorted(first)])


def no_longer_offered(devices: Iterable[Device], snapshot: Snapshot) -> Iterator[Anomaly]:
    """An anomaly for each of `devices`, which are no longer offered. One for the whole resource if it has
    nothing allocatable, or if more than SEPARATE devices left: its plugin is gone, or was reconfigured.
    """
    of_resource: dict[str, list[Device]] = {}
    for device in devices:
        of_resource.setdefault(device.key.resource, []).append(device)
    for resource, found in of_resource.items():
        counts = snapshot.resources()[resource]
        separate = counts.allocatable > 0 and len(found) <= SEPARATE
        for group in [[one] for one in found] if separate else [found]:
            yield _not_offered(resource, group, counts, separate=separate)


def _not_offered(resource: str, devices: list[Device], counts: ResourceCounts, *, separate: bool) -> Anomaly:
    ids = [device.key.device for device in devices]
    what, them = "the kubelet no longer offers it", "it"
    if not separate:
        number = "any" if counts.allocatable == 0 else str(len(ids))
        what = f"the kubelet no longer offers {number} of its {counts.known} devices"
        them = "them"
    return Anomaly(
        "no_longer_offered",
        resource,
        ids[0] if separate else "",
        evidence=f"{what}; its plugin is gone, no longer lists {them}, or reports {them} unhealthy",
        since=min([device.no_longer_offered_since or 0.0 for device in devices]),
        devices=tuple(ids[:MAX_FACTS]),
    )


def order(anomaly: Anomaly) -> tuple[str, str, str, Holder]:
    """Sort key of anomalies."""
    return anomaly.kind, anomaly.resource, anomaly.device, anomaly.holder or Holder("", "", "")


def listed(names: Collection[str]) -> str:
    """`a, b, c`, and how many more there are."""
    shown = ", ".join(list(names)[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"


def pods_of(holders: Iterable[Holder]) -> tuple[PodKey, ...]:
    """The pods of `holders`, sorted."""
    return tuple(sorted({(holder.namespace, holder.pod) for holder in holders}))


def names(pods: Iterable[PodKey]) -> list[str]:
    """`namespace/name` of each pod, or of each claim."""
    return [f"{namespace}/{pod}" for namespace, pod in pods]


def _plugin_gone(resource: str, snapshot: Snapshot, advertised: PluginReports) -> Anomaly:
    held = [device for device in snapshot.devices if device.key.resource == resource and device.holders]
    pods = pods_of(holder for device in held for holder in device.holders)
    evidence = f"none is allocatable, while {len(held)} of its devices are held by {listed(names(pods))}"
    found = advertised.resources.get(resource)
    if found is not None and not found.report.answers:
        evidence += f"; its plugin does not answer: {found.report.problem}"
    elif found is not None:
        evidence += (
            "; its plugin answers, but the kubelet no longer watches it"
            if found.resource.registered
            else "; its plugin answers, but is not registered with the kubelet"
        )
    devices = tuple(device.key.device for device in held)[:MAX_FACTS]
    return Anomaly("plugin_gone", resource, evidence=evidence, devices=devices, pods=pods[:MAX_FACTS])


def _unhealthy_held(device: Device, advertised: PluginReports) -> Iterator[Anomaly]:
    key = device.key
    evidence = "it is held but not allocatable"
    reported = advertised.devices.get(key)
    if reported is not None:
        says = "says" if advertised.answers(key.resource) else "last said"
        if reported.healthy:
            evidence += f"; its plugin {says} that it is healthy"
        else:
            evidence += f"; its plugin {says} why: {reported.reason or 'it is not healthy'}"
    for holder in device.holders:
        yield Anomaly(
            *("unhealthy_held", key.resource, key.device, holder, evidence),
            devices=(key.device,),
            pods=pods_of((holder,)),
        )


def _double_held(device: Device) -> Iterator[Anomaly]:
    """kubelet: a device is allocated to one container; containers of one pod may pass it on."""
    if not of_several_pods(device.holders):
        return
    pods = pods_of(device.holders)
    same_name = "" if len(pods) > 1 else " under one name"
    count = max(len(pods), len({holder.pod_uid for holder in device.holders}))
    evidence = f"{count} pods hold it{same_name}: {listed(names(pods))}"
    key = device.key
    for holder in device.holders:
        yield Anomaly(
            *("double_held", key.resource, key.device, holder, evidence),
            devices=(key.device,),
            pods=pods[:MAX_FACTS],
        )


def of_several_pods(holders: Iterable[Holder]) -> bool:
    """Whether `holders` have several names, or one name and two known uids."""
    pods: dict[PodKey, set[str]] = {}
    for holder in holders:
        pods.setdefault((holder.namespace, holder.pod), set()).update({holder.pod_uid} - {""})
    return len(pods) > 1 or any(len(uids) > 1 for uids in pods.values())


def _shared(device: Device, advertised: PluginReports, reader: IdReader) -> bool:
    """Whether the device is one of several shares, by its id or by its plugin's report."""
    key = device.key
    if reader(key.device, key.resource).kind is DeviceKind.REPLICA:
        return True
    reported = advertised.devices.get(key)
    return reported is not None and bool(reported.parent)


def _whole_and_parts(snapshot: Snapshot, parts: Iterable[Device]) -> Iterator[Anomaly]:
    """Devices held as a whole by one pod and in part by another. A plugin leaves such holdings behind when it
    is configured to divide devices that are already allocated.
    """
    of_parent: dict[str, list[Device]] = {}
    if snapshot.unconfirmed:
        # Their holders may have ended before the others came.
        parts = [part for part in parts if not any(map(snapshot.doubt, part.holders))]
    for part in parts:
        of_parent.setdefault(part.parent, []).append(part)
    for whole in [device for device in snapshot.devices if device.key[1] in of_parent]:
        resource = _plain(whole.key.resource)
        held = [part for part in of_parent[whole.key.device] if _plain(part.key.resource) == resource]
        if not held or not whole.surely_held or any(map(snapshot.doubt, whole.holders)):
            continue
        of_parts = [holder for part in held for holder in part.holders]
        holders = [*whole.holders, *of_parts]
        if not of_several_pods(holders):
            continue
        parts_of = listed([shortened(part.key.device) for part in held])
        evidence = (
            f"{listed(names(pods_of(whole.holders)))} holds it as a whole, "
            f"{listed(names(pods_of(of_parts)))} a part of it: {parts_of}"
        )
        ids = (whole.key.device, *(part.key.device for part in held))[:MAX_FACTS]
        for holder in whole.holders:
            yield Anomaly(
                *("double_held", whole.key.resource, whole.key.device, holder, evidence),
                devices=ids,
                pods=pods_of(holders)[:MAX_FACTS],
            )


def _plain(resource: str) -> str:
    """NVIDIA's plugin renames a shared resource to `….shared`: the same devices under another name."""
    return resource.removesuffix(".shared")
