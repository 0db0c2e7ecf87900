"""What is wrong, judged from one snapshot and from what plugins tell. judgement adds what takes time.

Containers whose devices lie on several NUMA nodes although one node could have served them.

Whether it could have is judged once, when the devices are first seen in the container's hands: by what the
kubelet then counted as allocatable and nobody else held. What came free later was no choice.

What is wrong, followed from look to look: since when, and what only time tells.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from exporter.mapping.device_ids import DeviceKind, IdReader, read_id
from exporter.mapping.model import NO_REPORTS, Device, DeviceKey, Holder, PluginReports, PodKey, Snapshot
from exporter.mapping.unattributed import PodsSeen, UnattributedDevice, UnattributedTracker
from runtime.text import utc

_NAMED: Final = 5
"""Names in a sentence; the facts have more."""
_FACTS: Final = 64
"""Names in the facts."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong: its `kind` (docs/messages.md), where, who is hit, and the evidence in
    words. `device` is "" and `holder` None where it concerns a whole resource or no pod.

    `since` is the unix time at which it was first seen, None where nobody watched. The facts behind the
    words: the `devices` and `pods` that are part of it, and the `numa_nodes` that could have served.
    """

    kind: str
    resource: str
    device: str = ""
    holder: Holder | None = None
    evidence: str = ""
    since: float | None = None
    devices: tuple[str, ...] = ()
    pods: tuple[PodKey, ...] = ()
    numa_nodes: tuple[int, ...] = ()


def find(
    snapshot: Snapshot,
    advertised: PluginReports = NO_REPORTS,
    *,
    reader: IdReader = read_id,
    further: Iterable[Anomaly] = (),
) -> tuple[Anomaly, ...]:
    """The anomalies of `snapshot`, sorted: plugin_gone, unhealthy_held, double_held, and `further` ones.

    A resource whose plugin is gone is told once for the resource, not again for each device.
    Nothing is said of health while the kubelet cannot tell what is allocatable.
    """
    found: list[Anomaly] = list(further)
    gone: set[str] = set()
    if snapshot.complete:
        for resource, counts in snapshot.resources().items():
            # A plugin that the kubelet follows, and whose devices are all ill, is not gone.
            if counts.allocatable == 0 and counts.allocated > 0 and not advertised.serves(resource):
                gone.add(resource)
                found.append(_plugin_gone(resource, snapshot, advertised))
    parts: list[Device] = []
    for device in snapshot.devices:
        holders = device.holders
        if not holders:
            continue
        if not device.allocatable and device.key.resource not in gone:
            found.extend(_unhealthy_held(device, advertised))
        if device.parent:
            parts.append(device)
        if len(holders) > 1 and not _shared(device, advertised, reader):
            found.extend(_double_held(device))
    if parts:
        found.extend(_whole_and_parts(snapshot, parts))
    return tuple(sorted(set(found), key=order))


def order(anomaly: Anomaly) -> tuple[str, str, str, Holder]:
    """How anomalies are sorted."""
    return anomaly.kind, anomaly.resource, anomaly.device, anomaly.holder or Holder("", "", "")


def listed(names: Collection[str]) -> str:
    """`a, b, c`, and how many more there are."""
    shown = ", ".join(list(names)[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def pods_of(holders: Iterable[Holder]) -> tuple[PodKey, ...]:
    """The pods of `holders`, each once, sorted."""
    return tuple(sorted({(holder.namespace, holder.pod) for holder in holders}))


def _names(pods: Iterable[PodKey]) -> list[str]:
    return [f"{namespace}/{pod}" for namespace, pod in pods]


def _plugin_gone(resource: str, snapshot: Snapshot, advertised: PluginReports) -> Anomaly:
    held = [device for device in snapshot.devices if device.key.resource == resource and device.holders]
    pods = pods_of(holder for device in held for holder in device.holders)
    evidence = f"none is allocatable, while {len(held)} of its devices are held by {listed(_names(pods))}"
    word = advertised.resources.get(resource)
    if word is not None and not word.report.answers:
        evidence += f"; its plugin does not answer: {word.report.problem}"
    elif word is not None:
        evidence += (
            "; its plugin answers, but the kubelet follows it no longer"
            if word.resource.registered
            else "; its plugin answers, but is not registered with the kubelet"
        )
    devices = tuple(device.key.device for device in held)[:_FACTS]
    return Anomaly("plugin_gone", resource, evidence=evidence, devices=devices, pods=pods[:_FACTS])


def _unhealthy_held(device: Device, advertised: PluginReports) -> Iterator[Anomaly]:
    key = device.key
    evidence = "it is held but not allocatable"
    told = advertised.devices.get(key)
    if told is not None:
        when = "says" if advertised.answers(key.resource) else "last said"
        if told.healthy:
            evidence += f"; its plugin {when} that it is healthy"
        else:
            evidence += f"; its plugin {when} why: {told.reason or 'it is not healthy'}"
    for holder in device.holders:
        yield Anomaly(
            *("unhealthy_held", key.resource, key.device, holder, evidence),
            devices=(key.device,),
            pods=pods_of((holder,)),
        )


def _double_held(device: Device) -> Iterator[Anomaly]:
    """The kubelet gives an id to one container at a time, and a pod's containers may hand it on."""
    if not _of_several(device.holders):
        return
    pods = pods_of(device.holders)
    alike = "" if len(pods) > 1 else " under one name"
    count = max(len(pods), len({holder.pod_uid for holder in device.holders}))
    evidence = f"{count} pods hold it{alike}: {listed(_names(pods))}"
    key = device.key
    for holder in device.holders:
        yield Anomaly(
            *("double_held", key.resource, key.device, holder, evidence),
            devices=(key.device,),
            pods=pods[:_FACTS],
        )


def _of_several(holders: Iterable[Holder]) -> bool:
    """Whether they are of several pods: other names, or two uids that are both known."""
    pods: dict[PodKey, set[str]] = {}
    for holder in holders:
        pods.setdefault((holder.namespace, holder.pod), set()).update({holder.pod_uid} - {""})
    return len(pods) > 1 or any(len(uids) > 1 for uids in pods.values())


def _shared(device: Device, advertised: PluginReports, reader: IdReader) -> bool:
    """Whether it is one of several shares, by its id or by its plugin."""
    key = device.key
    told = advertised.devices.get(key)
    return reader(key.device, key.resource).kind is DeviceKind.REPLICA or (
        told is not None and bool(told.parent)
    )


def _whole_and_parts(snapshot: Snapshot, parts: Iterable[Device]) -> Iterator[Anomaly]:
    """Devices that one pod holds as a whole while another one holds a part: what a plugin leaves behind that
    was told to divide what it had given out already.
    """
    of_parent: dict[DeviceKey, list[Device]] = {}
    for part in parts:
        of_parent.setdefault(DeviceKey(_plain(part.key.resource), part.parent), []).append(part)
    wholes = (
        (device, of_parent.get(DeviceKey(_plain(device.key.resource), device.key.device)))
        for device in snapshot.devices
        if device.holders
    )
    for whole, held in wholes:
        if held is None:
            continue
        holders = [*whole.holders, *(holder for part in held for holder in part.holders)]
        if not _of_several(holders):
            continue
        pods = pods_of(holder for part in held for holder in part.holders)
        evidence = (
            f"{listed(_names(pods_of(whole.holders)))} holds it as a whole, "
            f"{listed(_names(pods))} a part of it: {listed([part.key.device for part in held])}"
        )
        ids = (whole.key.device, *(part.key.device for part in held))[:_FACTS]
        for holder in whole.holders:
            yield Anomaly(
                *("double_held", whole.key.resource, whole.key.device, holder, evidence),
                devices=ids,
                pods=pods_of(holders)[:_FACTS],
            )


def _plain(resource: str) -> str:
    """NVIDIA's plugin calls a resource that it shares `….shared`: the same devices under another name."""
    return resource.removesuffix(".shared")


T = TypeVar("T")

_Place = tuple[str, int]
"""A resource and a NUMA node."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What was found of a container's `devices`, of which `placed` had a known NUMA node then."""

    devices: frozenset[DeviceKey]
    placed: int
    anomaly: Anomaly | None


class NumaSplitTracker:
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


_Name = tuple[str, str, str, str, str, str]
"""What makes an anomaly the same one: its kind, where it is, and the container that it hits."""


class AnomalyTracker:
    """Judges each good answer. One judge for one node; one answer at a time."""

    def __init__(self, reader: IdReader = read_id) -> None:
        self._reader = reader
        self._placements = NumaSplitTracker()
        self._attribution = UnattributedTracker()
        self._since: dict[_Name, float] = {}
        self._snapshot: Snapshot | None = None
        self._held: frozenset[DeviceKey] = frozenset()
        self._advertised: PluginReports = NO_REPORTS
        self._splits: tuple[Anomaly, ...] = ()
        self._unattributed: tuple[UnattributedDevice, ...] = ()
        self._anomalies: tuple[Anomaly, ...] = ()

    def judge(
        self,
        snapshot: Snapshot,
        advertised: PluginReports,
        *,
        asked: float,
        now: float,
        pods: PodsSeen | None = None,
    ) -> tuple[Anomaly, ...]:
        """The anomalies by the good answer that was `asked` for and came `now`, in unix time: the very same
        tuple as before where nothing changed.
        """
        held, released = self._held, frozenset[DeviceKey]()
        if snapshot is not self._snapshot:
            held = self._held_in(snapshot)
            released = self._held - held
        unattributed = self._attribution.look(
            held, advertised, released=released, asked=asked, now=now, pods=pods
        )
        if (
            snapshot is self._snapshot
            and advertised is self._advertised
            and unattributed == self._unattributed
        ):
            return self._anomalies
        if snapshot is not self._snapshot:
            self._splits = self._placements.advance(snapshot, released)
        self._snapshot, self._held = snapshot, held
        self._advertised, self._unattributed = advertised, unattributed
        further = (*self._splits, *map(_unattributed, unattributed))
        found = find(snapshot, advertised, reader=self._reader, further=further)
        names = [_name(anomaly) for anomaly in found]
        self._since = {name: self._since.get(name, now) for name in names}
        judged = tuple(
            replace(anomaly, since=self._since[name]) for anomaly, name in zip(found, names, strict=True)
        )
        if judged != self._anomalies:
            self._anomalies = judged
        return self._anomalies

    def _held_in(self, snapshot: Snapshot) -> frozenset[DeviceKey]:
        changed = None if self._snapshot is None else snapshot.changed_since(self._snapshot)
        if changed is None:
            return frozenset([device.key for device in snapshot.devices if device.holders])
        held = self._held.difference([now.key for _, now in changed if not now.holders])
        return held.union([now.key for _, now in changed if now.holders])


def _name(anomaly: Anomaly) -> _Name:
    # A pod's uid may be learned while it lasts.
    holder = anomaly.holder
    namespace, pod, container = ("", "", "") if holder is None else holder[:3]
    return anomaly.kind, anomaly.resource, anomaly.device, namespace, pod, container


def _unattributed(found: UnattributedDevice) -> Anomaly:
    who = "an init container has it, or the pod that was to get it was refused, or it leaked"
    if found.pods:
        names = listed([f"{namespace}/{pod}" for namespace, pod in found.pods])
        who = f"an init container has it, or it leaked; the pods that came then are {names}"
    return Anomaly(
        "unattributed",
        found.key.resource,
        found.key.device,
        evidence=f"its plugin gave it out at {utc(found.at)}, and no pod has listed it since: {who}",
        devices=(found.key.device,),
        pods=found.pods[:64],
    )
