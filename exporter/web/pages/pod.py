"""A pod's page: what it holds and held, a drawing of the NUMA nodes, and other pods of its name. Pure.

A pod that is recreated under its name is another pod. Its uid distinguishes it. Without a uid, time does: a
pod has its devices from its admission to its end, so holdings before and after a time without any belong to
two pods.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.history.record import HoldingRow, bounded
from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import Container, Device, Holder, PodKey
from exporter.mapping.names import most_similar
from exporter.mapping.state import Moment, State
from exporter.views.claimed import administrators
from exporter.views.query import TEXT_LIMIT, device_link, history_link, pod_link
from exporter.views.verdict import Severity, Verdict, pod_verdict
from exporter.views.wording import Text, counted, listed, ranges, size, spelled, text
from exporter.web.pages import parts, times
from exporter.web.pages.parts import ID_LENGTH, Fact, HolderLine, device_order, holder_lines, row_key
from exporter.web.pages.past import (
    HistoryAnswer,
    PastSection,
    TimeRange,
    lane_of_device,
    past_section,
)

HELD: Final = 500
"""Devices of one container on the page."""
LIVES: Final = 50
"""Pods of one name on the page."""
BOXES: Final = 16
"""NUMA nodes in the drawing; the pod's own come first."""
ITEMS: Final = 48
"""Items in one box."""

_TOP: Final = 34
_ITEM: Final = 30
_GAP: Final = 6
_CELL: Final = 15
_CELLS: Final = 16
_ROWS: Final = 4
_SHOWN: Final = 34


# --- where it is ----------------------------------------------------------------------------------------


class NumaItem(Struct, frozen=True):
    """A device, CPUs or memory (`kind`: device, cpus, memory) of a container, and its NUMA nodes; none where
    they are unknown.
    """

    kind: str
    name: str
    detail: str
    nodes: tuple[int, ...]
    href: str = ""
    cpus: tuple[int, ...] = ()

    @property
    def shown(self) -> Text:
        """The name, cut to the width of a box."""
        return text(self.name, limit=_SHOWN)


class PlacedItem(Struct, frozen=True):
    """An item in a box: `y` and `height` in pixels; `cells` are its CPUs (x, y, number)."""

    key: str
    item: NumaItem
    y: int
    height: int
    cells: tuple[tuple[int, int, int], ...]


class NumaBox(Struct, frozen=True):
    """A NUMA node, the items on several nodes, or those on an unknown node; `left_out` items do not fit."""

    key: str
    name: str
    kind: str
    items: tuple[PlacedItem, ...]
    height: int
    left_out: int


class Alignment(Struct, frozen=True):
    """Whether a container is on one NUMA node: `kind` is aligned, split or unknown; why, in `words`."""

    key: str
    container: Text
    kind: str
    words: str


class NumaPicture(Struct, frozen=True):
    """The drawing and the words."""

    boxes: tuple[NumaBox, ...]
    verdicts: tuple[Alignment, ...]

    @property
    def drawn(self) -> bool:
        """Whether any box has an item."""
        return any(box.items for box in self.boxes)


def numa_picture(
    containers: Sequence[Container],
    devices: Iterable[Device],
    cpu_nodes: Mapping[int, int],
    nodes: Iterable[int] = (),
) -> NumaPicture:
    """The drawing of a pod's `containers`, which hold `devices`. `cpu_nodes` maps CPUs to NUMA nodes, `nodes`
    are the machine's known nodes.
    """
    held, several = tuple(devices), len(containers) > 1
    items_of = {c.holder: _items(c, held, cpu_nodes, several=several) for c in containers}
    items = [item for own in items_of.values() for item in own]
    used = sorted({node for item in items for node in item.nodes})
    others = [node for node in sorted(set(nodes)) if node not in used][: max(0, BOXES - len(used))]
    boxes = [
        _box(f"node-{node}", f"NUMA node {node}", "one", [t for t in items if t.nodes == (node,)])
        for node in sorted({*used, *others})[:BOXES]
    ]
    across = [item for item in items if len(item.nodes) > 1]
    nowhere = [item for item in items if not item.nodes]
    if across:
        boxes.append(_box("across", "Across several nodes", "across", across))
    if nowhere:
        boxes.append(_box("nowhere", "NUMA node unknown", "nowhere", nowhere))
    verdicts = (_alignment(c, items_of[c.holder]) for c in containers if items_of[c.holder])
    return NumaPicture(tuple(boxes), tuple(verdicts))


def _items(
    container: Container, devices: Iterable[Device], cpu_nodes: Mapping[int, int], *, several: bool
) -> list[NumaItem]:
    """What a container has; with `several` containers, details name it."""
    holder = container.holder
    of = f" of {text(holder.container, limit=30).shown}" if several else ""
    found = [
        NumaItem(
            "device",
            device.key.device,
            f"{text(device.key.resource).shown}{of}{_across(device.numa_nodes)}",
            device.numa_nodes,
            device_link(*device.key),
        )
        for device in devices
        if holder in device.holders
    ]
    cpus: dict[tuple[int, ...], list[int]] = {}
    for cpu in container.cpu_ids:
        node = cpu_nodes.get(cpu)
        cpus.setdefault(() if node is None else (node,), []).append(cpu)
    for nodes, own in sorted(cpus.items()):
        name, detail = (
            f"{'CPU' if len(own) == 1 else 'CPUs'} {ranges(own)}",
            counted(len(own), "exclusive CPU"),
        )
        found.append(NumaItem("cpus", name, f"{detail}{of}", nodes, cpus=tuple(own)))
    for m in container.memory:
        name = f"{size(m.size_bytes)} {m.memory_type}"
        found.append(NumaItem("memory", name, f"pinned{of}{_across(m.numa_nodes)}", m.numa_nodes))
    return found


def _across(nodes: tuple[int, ...]) -> str:
    return f", on NUMA nodes {ranges(nodes)}" if len(nodes) > 1 else ""


def _box(key: str, name: str, kind: str, items: Sequence[NumaItem]) -> NumaBox:
    placed: list[PlacedItem] = []
    y = _TOP
    for number, item in enumerate(items[:ITEMS]):
        cells = tuple(
            (10 + _CELL * (i % _CELLS), y + 26 + _CELL * (i // _CELLS), cpu)
            for i, cpu in enumerate(item.cpus[: _CELLS * _ROWS])
        )
        height = _ITEM + (_CELL * -(-len(cells) // _CELLS) + 2 if cells else 0)
        placed.append(PlacedItem(row_key("numa", key, str(number), item.name), item, y, height, cells))
        y += height + _GAP
    left_out = max(0, len(items) - ITEMS)
    return NumaBox(key, name, kind, tuple(placed), y + (18 if left_out or not placed else 4), left_out)


def _alignment(container: Container, items: Sequence[NumaItem]) -> Alignment:
    """Whether a container is on one node: aligned only if the nodes of everything are known. A device that
    several nodes reach does not split it; memory from several nodes does.
    """
    key, name = row_key("numa", *container.holder), text(container.holder.container)
    known = [item for item in items if item.nodes]
    if not known:
        return Alignment(key, name, "unknown", f"NUMA alignment unknown for {_names(items)}")
    common = set[int].intersection(*(set(item.nodes) for item in known))
    unknown = [item for item in items if not item.nodes]
    rest = f"; unknown for {_names(unknown)}" if unknown else ""
    spread = any(item.kind == "memory" and len(item.nodes) > 1 for item in known)
    if common and not spread:
        named = f"{_names(known)} {'is' if len(known) == 1 else 'are'}"
        where = f"on NUMA node {min(common)}"
        if unknown:
            words = f"NUMA alignment unknown for {_names(unknown)}; {named} {where}"
            return Alignment(key, name, "unknown", words)
        what = "everything is" if len(known) > 1 else named
        return Alignment(key, name, "aligned", f"aligned: {what} {where}")
    nodes = sorted({node for item in known for node in item.nodes})
    by_nodes: dict[tuple[int, ...], list[NumaItem]] = {}
    for item in known:
        by_nodes.setdefault(item.nodes, []).append(item)
    where = "; ".join(f"{_names(own)} on {ranges(at)}" for at, own in sorted(by_nodes.items()))
    return Alignment(
        key, name, "split", f"split over NUMA nodes {listed([str(n) for n in nodes])}: {where}{rest}"
    )


def _names(items: Iterable[NumaItem]) -> str:
    return listed([item.shown.shown for item in items], limit=3)


# --- pods of one name -----------------------------------------------------------------------------------


class PodLife(Struct, frozen=True):
    """One pod of a name: its `uid` ("" if unknown), and its holdings, the newest first. `present`: it is on
    the node now.
    """

    uid: str
    rows: tuple[HoldingRow, ...]
    present: bool = False

    @property
    def first(self) -> HoldingRow | None:
        """The holding that began first."""
        return min(self.rows, key=lambda row: (row.low, row.id), default=None)

    @property
    def last(self) -> HoldingRow | None:
        """The holding that ended last, or still lasts."""
        return max(self.rows, key=lambda row: (row.high, row.id), default=None)


def lives(rows: Iterable[HoldingRow], present: Sequence[str]) -> tuple[PodLife, ...]:
    """The pods of one name, the newest first. `present` are the uids of those on the node now, "" for an
    unknown one; history may have no holding of theirs.
    """
    by_uid: dict[str, list[HoldingRow]] = {}
    unknown: list[list[HoldingRow]] = []
    reached = -math.inf
    for row in sorted(rows, key=lambda row: (row.low, row.id)):
        if row.facts.uid:
            by_uid.setdefault(row.facts.uid, []).append(row)
            continue
        if not unknown or row.low > reached:
            unknown.append([])
        unknown[-1].append(row)
        reached = max(reached, row.high)
    found = [PodLife(uid, tuple(reversed(own)), uid in present) for uid, own in by_uid.items()]
    for own in unknown:
        lasts = any(row.end is None for row in own)
        found.append(PodLife("", tuple(reversed(own)), "" in present and lasts))
    here = {life.uid for life in found if life.present}
    found += [PodLife(uid, (), present=True) for uid in dict.fromkeys(present) if uid not in here]
    return tuple(sorted(found, key=_life_order, reverse=True))


def _life_order(life: PodLife) -> tuple[bool, float, float]:
    first, last = life.first, life.last
    return (
        life.present,
        math.inf if first is None else first.low,
        math.inf if last is None else last.high,
    )


class LifeSection(Struct, frozen=True):
    """One pod of the name on the page: `anchor` is its place, `number` counts from the first known pod.
    `newer` and `older` are the anchors of its neighbours.
    """

    life: PodLife
    anchor: str
    number: int
    workload: str
    newer: str
    older: str


class ContainerBox(Struct, frozen=True):
    """One container, the devices that it holds, each with its line, and those that it administers."""

    container: Container
    devices: tuple[tuple[DeviceStatus, HolderLine], ...]
    administers: tuple[Device, ...]


class PodPage(Struct, frozen=True):
    """What pod.html shows. `kind` is held, unhealthy, or gone: no pod of the name holds anything now, and
    `containers` are empty.
    """

    frame: parts.Frame
    pod: PodKey
    verdict: Verdict
    kind: str
    uids: tuple[str, ...]
    facts: tuple[Fact, ...]
    findings: parts.FindingList
    containers: tuple[ContainerBox, ...]
    numa: NumaPicture
    lives: tuple[LifeSection, ...]
    lives_left_out: int
    past: PastSection


def pod_page(
    moment: Moment,
    pod: PodKey,
    span: TimeRange | None,
    answer: HistoryAnswer,
    *,
    tag: str,
    cpu_nodes: Mapping[int, int],
) -> PodPage | parts.NotFound:
    """The page of the pods named `pod`. `span` is the range to draw, None for all; `answer` is history's for
    the name; `cpu_nodes` maps CPUs to NUMA nodes.
    """
    state, now = moment.state, moment.now
    rows = () if answer.found is None else tuple(answer.found.rows)
    containers = tuple(c for c in state.snapshot.containers if _is_named(c.holder, pod))
    namespace, name = pod
    if not containers and not rows and state.taken_at is None:
        return parts.not_known_yet(f"{namespace}/{name}")
    if not containers and not rows:
        words = (
            "No pod of this name holds devices, exclusive CPUs or pinned memory on this node, now or in "
            "recorded history."
        )
        shown = text(f"{namespace}/{name}", limit=ID_LENGTH)
        return parts.NotFound("Unknown pod", shown, words, _similar(state, pod))
    uids = tuple(dict.fromkeys(c.holder.pod_uid for c in containers))
    known = lives(rows, uids)
    devices = tuple(d for d in state.devices if any(_is_named(h, pod) for h in d.device.holders))
    administered = tuple(
        d for d in state.snapshot.devices if any(_is_named(one.holder, pod) for one in administrators(d))
    )
    nodes = {node for device in state.snapshot.devices for node in device.numa_nodes}
    concerned = tuple(a for a in state.anomalies if _concerns(a.holder, a.pods, pod))
    verdict = _gone(known, moment)
    if containers:
        verdict = pod_verdict(
            *(containers, devices, concerned),
            freshness=moment.freshness,
            administers=len(administered),
            unconfirmed=any(state.snapshot.doubt(c.holder) for c in containers),
        )
    return PodPage(
        frame=parts.frame(moment, name, tag=tag, path=pod_link(*pod)),
        pod=pod,
        verdict=verdict,
        kind="held" if containers else "gone",
        uids=tuple(spelled(uid) for uid in uids if uid),
        facts=tuple(_facts(state.pods.get(pod), known, now)),
        findings=parts.findings(concerned, now),
        containers=tuple(_container(c, devices, administered) for c in containers),
        numa=numa_picture(
            containers, [d.device for d in devices], cpu_nodes, nodes | set(cpu_nodes.values())
        ),
        lives=tuple(_life(number, known) for number in range(min(len(known), LIVES))),
        lives_left_out=max(0, len(known) - LIVES),
        past=_past(pod, answer, span or _whole_range(rows, now), now, known),
    )


def _similar(state: State, pod: PodKey) -> tuple[parts.Suggestion, ...]:
    """The holding pods with the most similar names."""
    known = [c.holder[:2] for c in state.snapshot.containers]
    same = [key for key in known if key[1] == pod[1]][:5]
    like = most_similar("/".join(pod), (("/".join(key), key) for key in known))
    names = list(dict.fromkeys((*same, *like)))[:5]
    return tuple(parts.Suggestion(text("/".join(key), limit=120), pod_link(*key)) for key in names)


def _is_named(holder: Holder, pod: PodKey) -> bool:
    # History cuts very long names, and its links have the cut ones.
    return holder[:2] == pod or (bounded(holder.namespace), bounded(holder.pod)) == pod


def _concerns(holder: Holder | None, pods: Iterable[PodKey], pod: PodKey) -> bool:
    return pod in pods if holder is None else _is_named(holder, pod)


def _gone(known: tuple[PodLife, ...], moment: Moment) -> Verdict:
    """The verdict on a pod that holds nothing now."""
    last = known[0].last if known else None
    end = None if last is None else times.ended(last, moment.now)
    ended = "" if end is None else f"; its last holding ended {end}"
    if moment.state.taken_at is None:
        return Verdict(Severity.UNKNOWN, f"{parts.NOT_YET}{ended}.")
    return Verdict(Severity.OK, f"It holds nothing on this node now{ended}.")


def _facts(identity: PodIdentity | None, known: tuple[PodLife, ...], now: float) -> Iterator[Fact]:
    newest = next((row.facts for life in known for row in life.rows if row.facts.workload_kind), None)
    if identity is not None and identity.workload.kind:
        yield Fact("Workload", text(f"{identity.workload.kind} {identity.workload.name}"))
    elif newest is not None:
        yield Fact("Workload", text(f"{newest.workload_kind} {newest.workload}"))
    if identity is None:
        return
    if identity.phase:
        yield Fact("Phase", text(identity.phase))
    if identity.created > 0:
        yield Fact("Created", Text(""), at=times.stamp(identity.created, now))
    if identity.priority_class:
        yield Fact("Priority class", text(identity.priority_class))
    if identity.static:
        yield Fact("Kind", Text("static pod, from a file of the kubelet"))
    for name, value in identity.labels[:40]:
        yield Fact(text(name, limit=60).shown, text(value, limit=100), "", "label")


# --- what it holds --------------------------------------------------------------------------------------


def _container(
    container: Container, devices: Iterable[DeviceStatus], administered: Iterable[Device]
) -> ContainerBox:
    """A container with those of its pod's devices that it holds or administers."""
    holder = container.holder
    own = sorted((d for d in devices if holder in d.device.holders), key=lambda d: device_order(d.device))
    lines = ((one, holder_lines(one.device, (holder,))[0]) for one in own[:HELD])
    others = [d for d in administered if any(one.holder == holder for one in administrators(d))]
    return ContainerBox(container, tuple(lines), tuple(others[:HELD]))


# --- what it held ---------------------------------------------------------------------------------------


def _life(index: int, known: tuple[PodLife, ...]) -> LifeSection:
    life = known[index]
    facts = next((row.facts for row in life.rows if row.facts.workload_kind), None)
    return LifeSection(
        life=life,
        anchor=_anchor(known, index),
        number=len(known) - index,
        workload="" if facts is None else f"{facts.workload_kind} {facts.workload}",
        newer=_anchor(known, index - 1) if index > 0 else "",
        older=_anchor(known, index + 1) if index + 1 < min(len(known), LIVES) else "",
    )


def _anchor(known: tuple[PodLife, ...], index: int) -> str:
    life = known[index]
    return parts.life_id(life.uid) if life.uid else f"life-{len(known) - index}"


def _whole_range(rows: tuple[HoldingRow, ...], now: float) -> TimeRange:
    """From the first known holding to now, or to the end of the last."""
    first = min((row.low for row in rows), default=now - 3600.0)
    last = max((row.high for row in rows), default=now)
    until = min(now, last + 0.05 * (last - first)) if last < now else now
    return TimeRange(min(first - 0.02 * max(until - first, 1.0), until - 1.0), until)


def _past(
    pod: PodKey, answer: HistoryAnswer, span: TimeRange, now: float, known: tuple[PodLife, ...]
) -> PastSection:
    """The drawing, with bars named by container and life; each life has its own table."""
    numbers = {row.id: len(known) - i for i, life in enumerate(known) for row in life.rows}
    several = len(set(numbers.values())) > 1

    def named(row: HoldingRow) -> tuple[str, str, str]:
        container, href = text(row.key.container, limit=40).shown, lane_of_device(row).href
        if not several:
            return container, container, href
        uid, life = spelled(row.facts.uid[:8]), f"life {numbers.get(row.id, 0)}"
        return f"{life} · {container}{f' · {uid}' if uid else ''}", life, href

    more = history_link({"namespace": spelled(pod[0])[:TEXT_LIMIT], "pod": spelled(pod[1])[:TEXT_LIMIT]})
    return replace(past_section(answer, span, now, lane=lane_of_device, named=named, more=more), rows=())
