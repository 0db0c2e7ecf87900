"""Tracks anomalies from refresh to refresh: since when each lasts, and those that a single snapshot does not
show: devices on several NUMA nodes (numa_split), devices without a pod (unattributed), devices that have not
been offered for some time (no_longer_offered), and claims that wait for their driver (unprepared).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.mapping.anomalies import MAX_FACTS, find, listed, no_longer_offered
from exporter.mapping.claimed_devices import NO_CLAIMS, ClaimFacts
from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.device_status import DeviceStatuses, IllDevice
from exporter.mapping.model import NO_REPORTS, Anomaly, Device, DeviceKey, Holder, PluginReports, Snapshot
from exporter.mapping.status_anomalies import status_anomalies
from exporter.mapping.unattributed import PodsSeen, UnattributedDevice, UnattributedTracker
from exporter.mapping.unprepared import UnpreparedTracker
from runtime.text import utc

NOT_OFFERED_FOR: Final = 60.0
"""Seconds after which devices that are no longer offered are an anomaly: plugins register again by then after
a kubelet restart, or after an update of their own.
"""
NOTHING_SEEN: Final = PodsSeen()
"""There is no pod source."""
_Place = tuple[str, int]
"""A resource and a NUMA node."""


class _Verdict(Struct, frozen=True):
    """The verdict on a container with `devices`, of which `placed` had known NUMA nodes."""

    devices: frozenset[DeviceKey]
    placed: int
    anomaly: Anomaly | None


class NumaSplitTracker:
    """Finds containers whose devices span several NUMA nodes although one node could have served them.

    Each container is judged once for each set of devices, when the set is first seen: by the devices that
    were allocatable and free then. Devices that were released later were no choice.
    """

    def __init__(self) -> None:
        self._verdicts: dict[Holder, _Verdict] = {}
        self._split: dict[Holder, Anomaly] = {}
        self._snapshot: Snapshot | None = None

    def advance(self, snapshot: Snapshot, released: Collection[DeviceKey] = ()) -> tuple[Anomaly, ...]:
        """Find the split containers of `snapshot`. The devices `released` since the snapshot before count as
        held: they may have been when the others were allocated.
        """
        last, self._snapshot = self._snapshot, snapshot
        changed = None if last is None else snapshot.changed_since(last)
        verdicts: dict[Holder, _Verdict] = {}
        split: dict[Holder, Anomaly] = {}
        if changed is None:
            found = _devices_by_holder(snapshot.devices)
        else:
            names = {holder[:3] for pair in changed for device in pair for holder in device.holders}
            verdicts = self._verdicts.copy()
            for container in names:
                verdicts.pop(Holder(*container), None)
            split = {holder: one for holder, one in self._split.items() if holder[:3] not in names}
            found = _devices_of(snapshot, names, [now for _, now in changed])
        free: dict[_Place, int] | None = None
        for holder, devices in found.items():
            # The uid may be proven later: the verdict stays.
            name = holder._replace(pod_uid="")
            verdict = self._verdicts.get(name)
            # What an unconfirmed pod keeps was allocated with what others have taken since.
            unconfirmed = snapshot.doubt(holder) is not None
            if verdict is None and (unconfirmed or len({device.numa_nodes for device in devices}) < 2):
                continue
            keys = frozenset(device.key for device in devices)
            placed = sum(bool(device.numa_nodes) for device in devices)
            if verdict is None or (not unconfirmed and (verdict.devices != keys or verdict.placed < placed)):
                if free is None:
                    free = _free(snapshot, frozenset(released))
                verdict = _Verdict(keys, placed, _judge(holder, devices, free, first=last is None))
            verdicts[name] = verdict
            if verdict.anomaly is not None:
                split[holder] = replace(verdict.anomaly, holder=holder)
        self._verdicts, self._split = verdicts, split
        return tuple(split.values())


def _devices_by_holder(devices: Iterable[Device]) -> dict[Holder, list[Device]]:
    """The devices of each container."""
    found: dict[Holder, list[Device]] = {}
    for device in devices:
        for holder in device.holders:
            found.setdefault(holder, []).append(device)
    return found


def _devices_of(
    snapshot: Snapshot, names: Collection[tuple[str, ...]], changed: Iterable[Device]
) -> dict[Holder, list[Device]]:
    """The devices of each container called `names`. The devices that `changed` are most often all of them."""
    held = sum(sum(one.devices.values()) for one in snapshot.containers if one.holder[:3] in names)
    found = _devices_by_holder(changed)
    if sum(map(len, found.values())) != held:
        found = _devices_by_holder(snapshot.devices)
    return {holder: devices for holder, devices in found.items() if holder[:3] in names}


def _free(snapshot: Snapshot, released: frozenset[DeviceKey]) -> dict[_Place, int]:
    """The number of free devices of each resource and NUMA node."""
    free: dict[_Place, int] = {}
    for device in [one for one in snapshot.devices if snapshot.is_free(one)]:
        if device.key not in released:
            _count(free, device)
    return free


def _count(places: dict[_Place, int], device: Device) -> None:
    for node in device.numa_nodes:
        place = device.key.resource, node
        places[place] = places.get(place, 0) + 1


def _is_alone(device: Device, holder: Holder) -> bool:
    """Whether no other container of the pod has the device.

    kubelet: List names all devices of a claim for each container that uses any request of the claim. Unless
    the pod's object says more, which of these containers uses which device is unknown.
    """
    pod = holder[:2]
    return all(other[:2] != pod or other.container == holder.container for other in device.holders)


def _judge(
    holder: Holder, devices: list[Device], free: Mapping[_Place, int], *, first: bool
) -> Anomaly | None:
    """The anomaly, if the devices are split and one node had enough of each resource. `first`: the exporter's
    first snapshot, which shows devices that were allocated earlier.
    """
    placed = [device for device in devices if device.numa_nodes and _is_alone(device, holder)]
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
    when = "when the exporter started they were already held, and" if first else "when it got them"
    had = listed([f"{count} of {r}" for r, count in room[roomy[0]].items()])
    return Anomaly(
        kind="numa_split",
        resource=next(iter(wanted)) if len(wanted) == 1 else "",
        holder=holder,
        evidence=f"its {len(placed)} devices span NUMA nodes {spans}; {when} node {roomy[0]} had {had} "
        "free or held by this container",
        devices=tuple(sorted(device.key.device for device in placed))[:MAX_FACTS],
        pods=((holder.namespace, holder.pod),),
        numa_nodes=tuple(roomy),
    )


_Name = tuple[str, str, str, str, str, str]
"""Identity of an anomaly: its kind, resource, device, and the names of the container."""


class AnomalyTracker:
    """Finds the anomalies of one node, one good answer after the other."""

    def __init__(self, reader: IdReader = read_id, unattributed: UnattributedTracker | None = None) -> None:
        self._reader = reader
        self._splits_of = NumaSplitTracker()
        self._unattributed_of = unattributed or UnattributedTracker()
        self._unprepared_of = UnpreparedTracker()
        self._since: dict[_Name, float] = {}
        self._snapshot: Snapshot | None = None
        self._held: frozenset[DeviceKey] = frozenset()
        self._advertised: PluginReports = NO_REPORTS
        self._splits: tuple[Anomaly, ...] = ()
        self._ill: Mapping[DeviceKey, IllDevice] = {}
        self._unattributed: tuple[UnattributedDevice, ...] = ()
        self._unprepared: tuple[Anomaly, ...] = ()
        self._not_offered: tuple[Device, ...] = ()
        self._due: tuple[Device, ...] = ()
        self._anomalies: tuple[Anomaly, ...] = ()

    def advance(
        self,
        statuses: DeviceStatuses,
        *,
        asked: float,
        now: float,
        pods: PodsSeen = NOTHING_SEEN,
        claims: ClaimFacts = NO_CLAIMS,
    ) -> tuple[Anomaly, ...]:
        """The anomalies by the answer requested at `asked` and received at `now` (unix times). `claims` are
        the facts that its snapshot was built with. Returns the same tuple object as before if nothing
        changed.
        """
        snapshot, advertised, ill = statuses.snapshot, statuses.advertised, statuses.ill
        changed = snapshot is not self._snapshot
        held = self._held_devices(snapshot) if changed else self._held
        released = self._held - held if changed else frozenset[DeviceKey]()
        unattributed = self._unattributed_of.advance(
            held, advertised, released=released, asked=asked, now=now, pods=pods
        )
        not_offered = self._not_offered_devices(snapshot) if changed else self._not_offered
        due = tuple([d for d in not_offered if now >= (d.no_longer_offered_since or 0.0) + NOT_OFFERED_FOR])
        unprepared = self._unprepared_of.advance(snapshot, claims, pods.view, now=now)
        further = unattributed, due, unprepared, ill
        same = further == (self._unattributed, self._due, self._unprepared, self._ill)
        if same and not changed and advertised is self._advertised:
            return self._anomalies
        if changed:
            self._splits = self._splits_of.advance(snapshot, released)
        self._snapshot, self._held = snapshot, held
        self._advertised, self._unattributed = advertised, unattributed
        self._not_offered, self._due = not_offered, due
        self._unprepared, self._ill = unprepared, ill
        others = (*self._splits, *map(_unattributed, unattributed), *no_longer_offered(due, snapshot))
        others += (*status_anomalies(statuses), *unprepared)
        found = find(snapshot, advertised, reader=self._reader, further=others)
        self._since = {name: self._since.get(name, now) for name in map(_name, found)}
        dated = tuple(
            replace(one, since=self._since[_name(one)]) if one.since is None else one for one in found
        )
        if dated != self._anomalies:
            self._anomalies = dated
        return self._anomalies

    def _not_offered_devices(self, snapshot: Snapshot) -> tuple[Device, ...]:
        changed = None if self._snapshot is None else snapshot.changed_since(self._snapshot)
        pairs = changed or ()
        if changed is not None and all(one.no_longer_offered_since is None for pair in pairs for one in pair):
            return self._not_offered
        return tuple([one for one in snapshot.devices if one.no_longer_offered_since is not None])

    def _held_devices(self, snapshot: Snapshot) -> frozenset[DeviceKey]:
        changed = None if self._snapshot is None else snapshot.changed_since(self._snapshot)
        if changed is None:
            return frozenset([device.key for device in snapshot.devices if device.holders])
        held = self._held.difference([now.key for _, now in changed if not now.holders])
        return held.union([now.key for _, now in changed if now.holders])


def _name(anomaly: Anomaly) -> _Name:
    # Without the uid, which may be proven while the anomaly lasts.
    holder = anomaly.holder
    namespace, pod, container = ("", "", "") if holder is None else holder[:3]
    return anomaly.kind, anomaly.resource, anomaly.device, namespace, pod, container


def _unattributed(found: UnattributedDevice) -> Anomaly:
    who = "an init container holds it, the kubelet refused the pod, or the device leaked"
    if found.pods:
        names = listed([f"{namespace}/{pod}" for namespace, pod in found.pods])
        who = f"an init container has it, or it leaked; the pods that came then are {names}"
    return Anomaly(
        "unattributed",
        found.key.resource,
        found.key.device,
        evidence=f"its plugin allocated it at {utc(found.at)}, and no pod has listed it since: {who}",
        devices=(found.key.device,),
        pods=found.pods[:MAX_FACTS],
    )
