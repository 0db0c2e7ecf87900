"""Carries the holdings of missing pods over from one snapshot to the next.

After a kubelet restart, List may leave out pods that still hold devices (exporter.mapping.restart_guard).
What List says wins: a missing pod keeps only what no listed container holds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from exporter.mapping.model import (
    ClaimHolding,
    Container,
    Device,
    DeviceKey,
    Doubt,
    Holder,
    PodKey,
    Snapshot,
    by_claim,
)


def carry_over(
    listed: Snapshot, old: Snapshot, doubts: Mapping[PodKey, Doubt], cpu_numa: Mapping[int, int]
) -> Snapshot:
    """`listed` with what the pods of `doubts` held in `old` and no listed container holds.

    `listed` is built of List alone and names none of these pods. A pod that keeps something is `unconfirmed`.
    `cpu_numa` maps CPUs to NUMA nodes. Devices that are as in `old` are the same objects.
    """
    devices = _devices(listed, old, doubts)
    held: dict[Holder, list[Device]] = {}
    for device in devices.values():
        for holder in device.holders:
            held.setdefault(holder, []).append(device)
    claiming = {one.holder for device in devices.values() if device.claimed for one in device.claimed.through}
    taken = {cpu for one in listed.containers for cpu in one.cpu_ids}
    containers: list[Container] = []
    for was in old.containers:
        if was.holder[:2] in doubts:
            cpus = tuple([cpu for cpu in was.cpu_ids if cpu not in taken])
            own = held.get(was.holder, [])
            if own or cpus or was.memory or was.holder in claiming:
                containers.append(_container(was, own, cpus, cpu_numa))
    if not containers:
        return listed
    by_key = {device.key: device for device in listed.devices} | devices
    by_plugin = {key for key in devices if key in old.numa_by_plugin and key not in listed.numa_by_plugin}
    pods = {one.holder[:2] for one in containers}
    return replace(
        listed,
        devices=tuple([by_key[key] for key in sorted(by_key)]),
        held_only=listed.held_only
        | {
            key.resource
            for key, one in devices.items()
            if one.claimed and key.resource not in listed.published
        },
        containers=tuple(sorted((*listed.containers, *containers), key=lambda one: one.holder)),
        numa_by_plugin=listed.numa_by_plugin | by_plugin,
        unconfirmed=MappingProxyType({key: doubts[key] for key in sorted(pods)}),
    )


def _devices(listed: Snapshot, old: Snapshot, doubts: Mapping[PodKey, Doubt]) -> dict[DeviceKey, Device]:
    """The devices that missing pods keep."""
    known = {device.key: device for device in listed.devices}
    kept: dict[DeviceKey, Device] = {}
    for was in old.devices:
        now = known.get(was.key)
        if was.claimed is not None:
            through = _kept_claims(was, now, doubts)
            if through:
                kept[was.key] = _claimed(was, now, through)
            continue
        holders = tuple([holder for holder in was.holders if holder[:2] in doubts])
        if not holders or (now is not None and now.holders):
            continue
        device = replace(
            was,
            numa_nodes=was.numa_nodes if now is None else now.numa_nodes or was.numa_nodes,
            # kubelet: only what GetAllocatableResources names is allocatable.
            allocatable=not listed.complete if now is None else now.allocatable,
            holders=holders,
        )
        kept[was.key] = was if was == device else device
    return kept


def _kept_claims(was: Device, now: Device | None, doubts: Mapping[PodKey, Doubt]) -> list[ClaimHolding]:
    """The claims through which missing pods keep a device.

    Other pods of the same claim contradict nothing, nor does a claim that had the device before, such as one
    with admin access.
    """
    before = () if was.claimed is None else was.claimed.through
    names = {one[1:4] for one in before}
    listed = () if now is None or now.claimed is None else now.claimed.through
    came = [one for one in listed if one[1:4] not in names and not one.admin]
    return [
        one
        for one in before
        if one.holder[:2] in doubts
        and all(
            one[1:3] == other[1:3] or (one.share_id and other.share_id and one.share_id != other.share_id)
            for other in came
        )
    ]


def _claimed(was: Device, now: Device | None, through: Sequence[ClaimHolding]) -> Device:
    """The device with what missing pods keep of it, beside the holders that List names."""
    if now is None or now.claimed is None:
        claimed = was.claimed and replace(was.claimed, through=tuple(through))
        now = replace(was, holders=(), claimed=claimed, no_longer_offered_since=None)
    else:
        both = tuple(sorted({*now.claimed.through, *through}, key=by_claim))
        named = now.claimed if now.claimed.cdi_devices or was.claimed is None else was.claimed
        cdi = named.cdi_devices
        claimed = replace(now.claimed, through=both, cdi_devices=cdi, shared_cdi=named.shared_cdi)
        now = replace(now, claimed=claimed)
    holders = {*now.holders, *(one.holder for one in through if not one.admin)}
    device = replace(now, holders=tuple(sorted(holders)), alternative=False)
    return was if was == device else device


def _container(
    was: Container, devices: Sequence[Device], cpus: tuple[int, ...], cpu_numa: Mapping[int, int]
) -> Container:
    """`was` with these devices and CPUs alone, and its memory, which List names by size only."""
    counts = Counter(device.requested_as(was.holder) or device.key.resource for device in devices)
    nodes = {cpu_numa[cpu] for cpu in cpus if cpu in cpu_numa}
    nodes.update(node for device in devices for node in device.numa_nodes)
    nodes.update(node for block in was.memory for node in block.numa_nodes)
    return replace(
        was,
        devices={resource: counts[resource] for resource in sorted(counts)},
        cpu_ids=cpus,
        numa_nodes=tuple(sorted(nodes)),
    )
