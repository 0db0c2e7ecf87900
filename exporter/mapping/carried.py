"""Carries the holdings of missing pods over from one snapshot to the next.

After a kubelet restart, List may leave out pods that still hold devices (exporter.mapping.restart_guard).
What List says wins: a missing pod keeps only what no listed container holds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Container,
    Device,
    DeviceKey,
    Doubt,
    Holder,
    PodKey,
    Snapshot,
)

_Claim = tuple[str, str]
"""Namespace and name of a ResourceClaim."""


def carry_over(
    listed: Snapshot, old: Snapshot, doubts: Mapping[PodKey, Doubt], cpu_numa: Mapping[int, int]
) -> Snapshot:
    """`listed` with what the pods of `doubts` held in `old` and no listed container holds.

    `listed` is built of List alone and names none of these pods. A pod that keeps something is `unconfirmed`.
    `cpu_numa` maps CPUs to NUMA nodes. Devices that are as in `old` are the same objects.
    """
    devices, claims = _devices(listed, old, doubts), _claims(listed, old, doubts)
    held: dict[Holder, list[Device]] = {}
    for device in devices.values():
        for holder in device.holders:
            held.setdefault(holder, []).append(device)
    claiming = {through.holder for claim in claims.values() for through in claim.holders}
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
        claims=_merged(listed.claims, claims),
        containers=tuple(sorted((*listed.containers, *containers), key=lambda one: one.holder)),
        numa_by_plugin=listed.numa_by_plugin | by_plugin,
        unconfirmed=MappingProxyType({key: doubts[key] for key in sorted(pods)}),
    )


def _devices(listed: Snapshot, old: Snapshot, doubts: Mapping[PodKey, Doubt]) -> dict[DeviceKey, Device]:
    """The devices that missing pods keep."""
    known = {device.key: device for device in listed.devices}
    kept: dict[DeviceKey, Device] = {}
    for was in old.devices:
        holders = tuple([holder for holder in was.holders if holder[:2] in doubts])
        now = known.get(was.key)
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


def _claims(
    listed: Snapshot, old: Snapshot, doubts: Mapping[PodKey, Doubt]
) -> dict[ClaimDeviceKey, ClaimDevice]:
    """The claimed devices that missing pods keep.

    Other pods of the same claim contradict nothing, nor does a claim that had the device before, such as one
    with admin access.
    """
    before = {(device.key, through[1:]) for device in old.claims for through in device.holders}
    came: dict[tuple[str, str, str], set[tuple[str, _Claim]]] = {}
    for device in listed.claims:
        for through in device.holders:
            if (device.key, through[1:]) not in before:
                came.setdefault(device.key[:3], set()).add((device.key.share_id, through[1:]))
    kept: dict[ClaimDeviceKey, ClaimDevice] = {}
    for device in old.claims:
        taken = {
            claim
            for share, claim in came.get(device.key[:3], ())
            if share == device.key.share_id or not share or not device.key.share_id
        }
        holders = [
            through for through in device.holders if through.holder[:2] in doubts and taken <= {through[1:]}
        ]
        if holders:
            kept[device.key] = replace(device, holders=tuple(holders))
    return kept


def _merged(
    listed: tuple[ClaimDevice, ...], carried: Mapping[ClaimDeviceKey, ClaimDevice]
) -> tuple[ClaimDevice, ...]:
    found = {device.key: device for device in listed}
    for key, device in carried.items():
        now = found.get(key)
        if now is not None:
            holders: set[ClaimHolder] = {*now.holders, *device.holders}
            device = replace(now, holders=tuple(sorted(holders)))  # noqa: PLW2901 -- both hold it
        found[key] = device
    return tuple([found[key] for key in sorted(found)])


def _container(
    was: Container, devices: Sequence[Device], cpus: tuple[int, ...], cpu_numa: Mapping[int, int]
) -> Container:
    """`was` with these devices and CPUs alone, and its memory, which List names by size only."""
    counts = Counter(device.key.resource for device in devices)
    nodes = {cpu_numa[cpu] for cpu in cpus if cpu in cpu_numa}
    nodes.update(node for device in devices for node in device.numa_nodes)
    nodes.update(node for block in was.memory for node in block.numa_nodes)
    return replace(
        was,
        devices={resource: counts[resource] for resource in sorted(counts)},
        cpu_ids=cpus,
        numa_nodes=tuple(sorted(nodes)),
    )
