"""What is wrong, judged from one snapshot."""

from collections.abc import Iterator
from dataclasses import dataclass

from exporter.core.ids import read
from exporter.core.model import Device, DeviceKey, Holder, Snapshot


@dataclass(frozen=True, slots=True, order=True)
class Anomaly:
    """One thing that is wrong: its `kind` (design.md, section 5), where, who is hit, and the evidence in
    words. `device` and `holder` are None where it concerns a whole resource or no pod.
    """

    kind: str
    resource: str
    device: str = ""
    holder: Holder | None = None
    evidence: str = ""


def find(snapshot: Snapshot) -> tuple[Anomaly, ...]:
    """The anomalies of `snapshot`, sorted: plugin_gone, unhealthy_held, double_held, numa_split.

    A resource whose plugin is gone is told once for the resource, not again for each device.
    Nothing is said of health while the kubelet cannot tell what is allocatable.
    """
    found: set[Anomaly] = set()
    gone: set[str] = set()
    if snapshot.complete:
        for resource, counts in snapshot.resources().items():
            if counts.allocatable == 0 and counts.allocated > 0:
                gone.add(resource)
                found.add(
                    Anomaly(
                        "plugin_gone",
                        resource,
                        evidence=f"none is allocatable, while {counts.allocated} of its devices are held",
                    )
                )
    for device in snapshot.devices:
        found.update(_of_device(device, plugin_gone=device.key.resource in gone))
    found.update(_numa_splits(snapshot))
    return tuple(sorted(found, key=_order))


def _order(anomaly: Anomaly) -> tuple[str, str, str, Holder]:
    return anomaly.kind, anomaly.resource, anomaly.device, anomaly.holder or Holder("", "", "")


def _of_device(device: Device, *, plugin_gone: bool) -> Iterator[Anomaly]:
    key = device.key
    if not device.allocatable and not plugin_gone:
        for holder in device.holders:
            yield Anomaly(
                "unhealthy_held", key.resource, key.device, holder, "it is held but not allocatable"
            )
    pods = {(holder.namespace, holder.pod) for holder in device.holders}
    if len(pods) > 1 and not read(key.device).replica:
        names = ", ".join(f"{namespace}/{pod}" for namespace, pod in sorted(pods))
        for holder in device.holders:
            yield Anomaly(
                "double_held", key.resource, key.device, holder, f"{len(pods)} pods hold it: {names}"
            )


def _numa_splits(snapshot: Snapshot) -> Iterator[Anomaly]:
    """Containers whose devices of one resource lie on several NUMA nodes, although one node has enough.

    "Has enough" counts every device of that node, held ones too: another placement was possible.
    """
    homes: dict[str, dict[int, int]] = {}
    numa: dict[DeviceKey, tuple[int, ...]] = {}
    held: dict[tuple[Holder, str], list[DeviceKey]] = {}
    for device in snapshot.devices:
        numa[device.key] = device.numa_nodes
        for node in device.numa_nodes:
            counts = homes.setdefault(device.key.resource, {})
            counts[node] = counts.get(node, 0) + 1
        for holder in device.holders:
            held.setdefault((holder, device.key.resource), []).append(device.key)
    for (holder, resource), keys in held.items():
        if len(keys) < 2:
            continue
        placed = [set(numa[key]) for key in keys if numa[key]]
        if len(placed) < 2 or set.intersection(*placed):
            continue
        roomy = sorted(node for node, count in homes[resource].items() if count >= len(keys))
        if roomy:
            spans = ", ".join(str(node) for node in sorted(set[int]().union(*placed)))
            yield Anomaly(
                "numa_split",
                resource,
                holder=holder,
                evidence=f"its {len(keys)} devices span NUMA nodes {spans}; node {roomy[0]} has enough",
            )
