"""Containers whose devices lie on several NUMA nodes although one node could have served them.

Whether it could have is judged once, when the devices are first seen in the container's hands: by what the
kubelet then counted as allocatable and nobody else held. What came free later was no choice.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from exporter.core.anomalies import Anomaly, listed
from exporter.core.model import Device, DeviceKey, Holder, Snapshot

T = TypeVar("T")

_Place = tuple[str, int]
"""A resource and a NUMA node."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What was found of a container's `devices`, of which `placed` had a known NUMA node then."""

    devices: frozenset[DeviceKey]
    placed: int
    anomaly: Anomaly | None


class Placements:
    """Judges each container once for each set of devices that it gets."""

    def __init__(self) -> None:
        self._verdicts: dict[Holder, _Verdict] = {}
        self._looked = False
        self._snapshot: Snapshot | None = None
        self._split: dict[Holder, Anomaly] = {}

    def advance(self, snapshot: Snapshot, released: Collection[DeviceKey] = ()) -> tuple[Anomaly, ...]:
        """The containers of `snapshot` that are split needlessly. What was `released` since the snapshot
        before may have been held when others were given theirs.
        """
        changed = None if self._snapshot is None else snapshot.changed_since(self._snapshot)
        self._snapshot = snapshot
        # Whoever holds nothing that changed is judged already.
        names: set[tuple[str, ...]] | None = None
        if changed is not None:
            names = {holder[:3] for pair in changed for one in pair for holder in one.holders}
        held = self._spread(snapshot, names)
        found = _others(self._verdicts, names)
        split = _others(self._split, names)
        free: dict[_Place, int] | None = None
        for holder, devices in held.items():
            # A pod's uid may be learned later: the verdict stays.
            name = holder._replace(pod_uid="")
            keys = frozenset(device.key for device in devices)
            placed = sum(bool(device.numa_nodes) for device in devices)
            known = self._verdicts.get(name)
            if known is None or known.devices != keys or known.placed < placed:
                if free is None:
                    free = _free(snapshot, frozenset(released))
                known = _Verdict(keys, placed, _judge(holder, devices, free, first=not self._looked))
            found[name] = known
            if known.anomaly is not None:
                split[holder] = replace(known.anomaly, holder=holder)
        self._verdicts, self._split = found, split
        self._looked = True
        return tuple(split.values())

    def _spread(
        self, snapshot: Snapshot, names: Collection[tuple[str, ...]] | None
    ) -> dict[Holder, list[Device]]:
        """The devices of each container whose devices are not all in one place, or that was judged before:
        few of many. `names`: those of the containers to look at.
        """
        devices = snapshot.devices
        if names is not None:
            devices = _of(devices, names)
        places: dict[Holder, tuple[int, ...]] = {}
        spread: dict[Holder, list[Device]] = {}
        judged = {name[:3] for name in self._verdicts if names is None or name[:3] in names}
        for device in devices:
            nodes = device.numa_nodes
            for holder in device.holders:
                known = places.setdefault(holder, nodes)
                if known is not nodes and known != nodes and (names is None or holder[:3] in names):
                    spread[holder] = []
        if judged:
            spread |= {holder: [] for holder in places if holder[:3] in judged}
        if spread:
            for device in devices:
                for holder in device.holders:
                    if holder in spread:
                        spread[holder].append(device)
        return spread


def _of(devices: Iterable[Device], names: Collection[tuple[str, ...]]) -> tuple[Device, ...]:
    """The devices that any container of `names` holds."""
    if not names:
        return ()
    return tuple([one for one in devices if any(holder[:3] in names for holder in one.holders)])


def _others(judged: Mapping[Holder, T], names: Collection[tuple[str, ...]] | None) -> dict[Holder, T]:
    """What was found of containers of other names; of none where all are looked at."""
    return {} if names is None else {holder: one for holder, one in judged.items() if holder[:3] not in names}


def _free(snapshot: Snapshot, released: frozenset[DeviceKey]) -> dict[_Place, int]:
    """How many devices of each resource and NUMA node could be given out."""
    free: dict[_Place, int] = {}
    if snapshot.complete:
        for device in snapshot.devices:
            if device.allocatable and not device.holders and device.key not in released:
                _count(free, device)
    return free


def _count(places: dict[_Place, int], device: Device) -> None:
    for node in device.numa_nodes:
        place = device.key.resource, node
        places[place] = places.get(place, 0) + 1


def _judge(
    holder: Holder, devices: list[Device], free: Mapping[_Place, int], *, first: bool
) -> Anomaly | None:
    """The anomaly, if they are split and one node had enough of each resource. `first`: they were held
    already when the exporter first looked.
    """
    placed = [device for device in devices if device.numa_nodes]
    if len(placed) < 2 or set[int].intersection(*(set(device.numa_nodes) for device in placed)):
        return None
    wanted = Counter(device.key.resource for device in placed)
    own: dict[_Place, int] = {}
    for device in placed:
        _count(own, device)
    spanned = sorted({node for device in placed for node in device.numa_nodes})
    nodes = sorted({node for _, node in (*free, *own)})
    room = {node: {r: free.get((r, node), 0) + own.get((r, node), 0) for r in wanted} for node in nodes}
    roomy = [node for node in nodes if all(room[node][r] >= count for r, count in wanted.items())]
    if not roomy:
        return None
    spans = listed([str(node) for node in spanned])
    when = "when the exporter first looked they were held already, and" if first else "when it got them"
    had = listed([f"{count} of {r}" for r, count in room[roomy[0]].items()])
    return Anomaly(
        kind="numa_split",
        resource=next(iter(wanted)) if len(wanted) == 1 else "",
        holder=holder,
        evidence=f"its {len(placed)} devices span NUMA nodes {spans}; {when} node {roomy[0]} had {had} "
        "that nobody else held",
        devices=tuple(sorted(device.key.device for device in placed))[:64],
        pods=((holder.namespace, holder.pod),),
        numa_nodes=tuple(roomy),
    )
