"""Series of one moment made into each node's state, as its exporter had it. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from exporter.cli.prometheus import labels
from exporter.cli.prometheus.answers import Sample
from exporter.cli.prometheus.labels import Key, Series
from exporter.mapping.anomalies import Anomaly
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import UNKNOWN, PodIdentity, Workload
from exporter.mapping.model import (
    ClaimDevice,
    ClaimDeviceKey,
    ClaimHolder,
    Device,
    DeviceKey,
    Holder,
    PodKey,
    Snapshot,
)
from exporter.mapping.state import Failure, State

STALE_AFTER: Final = 300.0
"""Seconds for which Prometheus goes on showing a sample that no newer one has followed: beyond it the
exporter has not looked, whatever it says.
"""

_EVIDENCE: Final = {
    "unhealthy_held": "the kubelet does not count it as allocatable",
    "plugin_gone": "nothing of the resource is allocatable any more, and pods hold some",
    "double_held": "it is not shared, and two pods hold it",
    "unattributed": "its plugin gave it out, and no pod lists it",
    "numa_split": "its devices span NUMA nodes, though one could have served",
    "stale": "the mapping is older than it should be",
}

Value = tuple[Series, float]


@dataclass(frozen=True, slots=True)
class Node:
    """One node, as one exporter tells of it through one scrape target.

    `place` are the labels that may tell it from another of its name. `cpus` are the exclusive CPUs of its
    containers: how many, for which ones is not told. `stale`: its exporter holds the mapping back. `dropped`
    series are not told, for there are too many.
    """

    name: str
    place: Key
    target: Key
    state: State
    cpus: tuple[tuple[Holder, int], ...] = ()
    stale: bool = False
    dropped: int = 0

    @property
    def stale_after(self) -> float:
        """Age in seconds beyond which its mapping is too old."""
        return -1.0 if self.stale else STALE_AFTER


@dataclass(frozen=True, slots=True)
class Seen:
    """All nodes, sorted, and the targets of exporters that tell of no node: with whether they are well."""

    nodes: tuple[Node, ...] = ()
    mute: tuple[tuple[Key, bool], ...] = ()
    now: float | None = None
    """Prometheus' present, where anything was found."""


@dataclass(slots=True)
class _Heap:
    """The series of one target and node."""

    of: dict[str, list[Value]] = field(default_factory=lambda: defaultdict[str, list[Value]](list))

    def values(self, family: str) -> Sequence[Value]:
        return self.of.get(family, ())


def read(samples: Iterable[Sample]) -> Seen:
    """The nodes that `samples`, all of one moment, tell of."""
    heaps: dict[tuple[Key, str], _Heap] = {}
    targets: dict[Key, dict[str, Value]] = {}
    now: float | None = None
    for sample in samples:
        series = labels.read(sample.metric)
        if series is None:
            continue
        now = sample.value[0]
        value = _number(sample.value[1])
        if "node" in labels.OWN[series.family]:
            heaps.setdefault((series.target, series["node"]), _Heap()).of[series.family].append(
                (series, value)
            )
        else:
            targets.setdefault(series.target, {})[series.family] = series, value
    nodes = [
        _node(name, target, heap, targets.get(target, {}), now or 0.0)
        for (target, name), heap in heaps.items()
    ]
    named = {target for target, _ in heaps}
    mute = [
        (target, told.get(labels.UP, (None, 0.0))[1] == 1.0)
        for target, told in targets.items()
        if target not in named
    ]
    return Seen(
        tuple(sorted(nodes, key=lambda node: (node.name, node.place, node.target))), tuple(sorted(mute)), now
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _node(name: str, target: Key, heap: _Heap, told: Mapping[str, Value], now: float) -> Node:
    pods = _pods(heap)
    snapshot = _snapshot(heap, pods)
    success = told.get(labels.LAST_SUCCESS)
    taken_at = None if success is None or not success[1] > 0 else success[1]
    up = told.get(labels.UP)
    scraped = up[0].scrape if up is not None else {}
    failure = None
    if up is not None and up[1] != 1.0:
        since = now if taken_at is None else taken_at
        failure = Failure("the refresh", "devicelens_up 0", "its exporter cannot ask the kubelet", since)
    anomalies = tuple(_anomaly(series, scraped, pods) for series, _ in heap.values(labels.ANOMALY_INFO))
    dropped = told.get(labels.DROPPED)
    return Node(
        name=name,
        place=labels.place(target),
        target=target,
        state=State(
            snapshot=snapshot,
            taken_at=taken_at,
            changed_at=taken_at,
            since=_since(heap, pods),
            pods=pods,
            anomalies=tuple(sorted(anomalies, key=lambda a: (a.kind, a.resource, a.device))),
            failure=failure,
        ),
        cpus=tuple(
            sorted(
                (_holder(series, pods), int(value)) for series, value in heap.values(labels.CPUS) if value > 0
            )
        ),
        stale=any(anomaly.kind == "stale" for anomaly in anomalies),
        dropped=int(dropped[1]) if dropped is not None and dropped[1] > 0 else 0,
    )


def _pods(heap: _Heap) -> Mapping[PodKey, PodIdentity]:
    found: dict[PodKey, PodIdentity] = {}
    for series, _ in heap.values(labels.POD_INFO):
        kind = series["workload_kind"]
        identity = PodIdentity(
            namespace=series["namespace"],
            pod=series["pod"],
            uid=series["uid"],
            phase=series["phase"],
            workload=Workload(kind, series["workload"]) if kind else UNKNOWN,
            priority_class=series["priority_class"],
        )
        found[identity.key] = identity
    return found


def _holder(series: Series, pods: Mapping[PodKey, PodIdentity]) -> Holder:
    namespace, pod, container = series.holder
    known = pods.get((namespace, pod))
    return Holder(namespace, pod, container, series["pod_uid"] or (known.uid if known is not None else ""))


def _snapshot(heap: _Heap, pods: Mapping[PodKey, PodIdentity]) -> Snapshot:
    held: dict[DeviceKey, dict[Holder, None]] = {}
    parents: dict[DeviceKey, str] = {}
    numa: dict[DeviceKey, tuple[int, ...]] = {}
    for series, _ in heap.values(labels.DEVICE_INFO):
        key = _key(series)
        parents[key], numa[key] = series["parent"], _numa(series["numa_node"])
    for series, _ in heap.values(labels.OWNER_INFO):
        key = _key(series)
        parents.setdefault(key, series["parent"])
        held.setdefault(key, {})[_holder(series, pods)] = None
    # A shared device has one series for each holder, and all say the same.
    health = {_key(series): value == 1.0 for series, value in heap.values(labels.HEALTHY)}
    devices = tuple(
        Device(key, parents[key], numa.get(key, ()), health.get(key, True), tuple(sorted(held.get(key, {}))))
        for key in sorted(parents)
    )
    return Snapshot(devices, _claims(heap, pods), complete=bool(health) or not devices)


def _key(series: Series) -> DeviceKey:
    return DeviceKey(series["resource"], series["device"])


def _numa(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(part) for part in text.split(",") if part.isascii() and part.isdigit()))


def _claims(heap: _Heap, pods: Mapping[PodKey, PodIdentity]) -> tuple[ClaimDevice, ...]:
    found: dict[ClaimDeviceKey, set[ClaimHolder]] = {}
    for series, _ in heap.values(labels.CLAIM_INFO):
        key = ClaimDeviceKey(series["driver"], series["pool"], series["device"], series["share_id"])
        through = ClaimHolder(_holder(series, pods), series["claim_namespace"], series["claim"])
        found.setdefault(key, set()).add(through)
    return tuple(ClaimDevice(key, tuple(sorted(through))) for key, through in sorted(found.items()))


def _since(heap: _Heap, pods: Mapping[PodKey, PodIdentity]) -> Mapping[Holding, HeldSince]:
    """When each was first seen. Whether it was held before that the metric does not tell."""
    uids = {
        (_key(series), *series.holder): _holder(series, pods) for series, _ in heap.values(labels.OWNER_INFO)
    }
    return {
        Holding(_key(series), uids.get((_key(series), *series.holder), _holder(series, pods))): HeldSince(
            value, exact=False
        )
        for series, value in heap.values(labels.HELD_SINCE)
        if 0 < value < math.inf
    }


def _anomaly(series: Series, scraped: Mapping[str, str], pods: Mapping[PodKey, PodIdentity]) -> Anomaly:
    holder: Holder | None = _holder(series, pods)
    if series.holder == tuple(scraped.get(name, "") for name in ("namespace", "pod", "container")):
        # Not honoured, an empty holder reads as the scrape's own pod; or it is empty, and honoured.
        holder = None
    elif not series["pod"]:
        holder = None
    kind = series["kind"]
    return Anomaly(
        kind=kind,
        resource=series["resource"],
        device=series["device"],
        holder=holder,
        evidence=_EVIDENCE.get(kind, f"{labels.ANOMALY_INFO} says so"),
    )


def distinct(seen: Seen) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Each node once, and what must be said of those that several targets tell of.

    An exporter is scraped by two jobs, by two Prometheus, or has just been replaced by another: then the one
    that looked last counts. Exporters that tell of quite different devices are of different nodes.
    """
    groups: dict[tuple[str, Key], list[Node]] = {}
    for node in seen.nodes:
        groups.setdefault((node.name, node.place), []).append(node)
    found: list[Node] = []
    notes: list[str] = []
    for (name, _), nodes in groups.items():
        apart = _apart(nodes)
        if apart:
            unlike = labels.telling(node.target for node in nodes)
            found += [_placed(node, unlike) for node in nodes]
            notes.append(
                f"several nodes are called {name}: {_tell(unlike)} tells them apart; a label that names "
                "their cluster would be better"
            )
            continue
        best = max(nodes, key=lambda node: (not node.stale, node.state.taken_at or 0.0))
        found.append(best)
        if any(_says(node) != _says(best) for node in nodes):
            notes.append(
                f"{len(nodes)} targets tell different things of {name}: shown is the one that looked last "
                f"({_target(best)})"
            )
    return tuple(found), tuple(notes)


def _apart(nodes: Sequence[Node]) -> bool:
    """Whether they are of different nodes: each has devices, and no two have one in common."""
    if len(nodes) < 2:
        return False
    keys = [{device.key for device in node.state.snapshot.devices} for node in nodes]
    return all(keys) and sum(map(len, keys)) == len(set[DeviceKey]().union(*keys))


def _placed(node: Node, names: frozenset[str]) -> Node:
    further = tuple((name, value) for name, value in node.target if name in names)
    return replace(node, place=tuple(sorted({*node.place, *further})))


def _says(node: Node) -> object:
    return node.state.snapshot.devices, node.state.snapshot.claims


def _tell(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _target(node: Node) -> str:
    return ", ".join(f"{name} {value}" for name, value in node.target) or "without labels"
