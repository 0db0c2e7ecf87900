"""A pod's page: what it holds and held, where that is, and other pods of its name. Pure.

A pod that is recreated under its name is another pod. Its uid distinguishes it. Without a uid, time does: a
pod has its devices from its admission to its end, so holdings before and after a time without any belong to
two pods.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from exporter.history.record import HoldingRow, bounded
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import ClaimDevice, ClaimHolder, Container, Device, Holder, PodKey
from exporter.mapping.state import Moment, State
from exporter.views.links import history_link, pod_link
from exporter.views.query import TEXT_LIMIT
from exporter.views.wording import Text, counted, spelled, text
from exporter.web.pages import parts, times
from exporter.web.pages.numa import NumaPicture, numa_picture
from exporter.web.pages.parts import ID_LENGTH, Fact
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
_NEAREST: Final = 5
_COMPARED: Final = 4096


@dataclass(frozen=True, slots=True)
class PodLife:
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


@dataclass(frozen=True, slots=True)
class LifeSection:
    """One pod of the name on the page: `anchor` is its place, `number` counts from the first known pod.
    `newer` and `older` are the anchors of its neighbours.
    """

    life: PodLife
    anchor: str
    number: int
    workload: str
    newer: str
    older: str


@dataclass(frozen=True, slots=True)
class ContainerBox:
    """One container, and the devices and claimed devices that it holds."""

    container: Container
    devices: tuple[Device, ...]
    claimed: tuple[tuple[ClaimDevice, ClaimHolder], ...]


@dataclass(frozen=True, slots=True)
class PodPage:
    """What pod.html shows. `containers` are empty where no pod of the name holds anything now."""

    frame: parts.Frame
    pod: PodKey
    headline: str
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
    if not containers and not rows:
        words = (
            "No pod of this name holds devices, exclusive CPUs or pinned memory on this node, now or in "
            "recorded history."
        )
        shown = text(f"{namespace}/{name}", limit=ID_LENGTH)
        return parts.NotFound("Unknown pod", shown, words, _similar(state, pod))
    uids = tuple(dict.fromkeys(c.holder.pod_uid for c in containers))
    known = lives(rows, uids)
    devices = tuple(d for d in state.snapshot.devices if any(_is_named(h, pod) for h in d.holders))
    nodes = {node for device in state.snapshot.devices for node in device.numa_nodes}
    concerned = (a for a in state.anomalies if _concerns(a.holder, a.pods, pod))
    return PodPage(
        frame=parts.frame(moment, name, tag=tag, path=pod_link(*pod)),
        pod=pod,
        headline=_headline(containers, devices, known, now),
        uids=tuple(spelled(uid) for uid in uids if uid),
        facts=tuple(_facts(state.pods.get(pod), known, now)),
        findings=parts.findings(concerned, now),
        containers=tuple(_container(c, devices, state) for c in containers),
        numa=numa_picture(containers, devices, cpu_nodes, nodes | set(cpu_nodes.values())),
        lives=tuple(_life(number, known) for number in range(min(len(known), LIVES))),
        lives_left_out=max(0, len(known) - LIVES),
        past=_past(pod, answer, span or _whole_range(rows, now), now, known),
    )


def _similar(state: State, pod: PodKey) -> tuple[parts.Suggestion, ...]:
    """The holding pods with the most similar names."""
    known = {
        f"{c.holder.namespace}/{c.holder.pod}": c.holder[:2] for c in state.snapshot.containers[:_COMPARED]
    }
    wanted = f"{pod[0]}/{pod[1]}"[:512]
    same = [name for name, key in known.items() if key[1] == pod[1]]
    like = get_close_matches(wanted, [name for name in known if len(name) <= 512], n=_NEAREST, cutoff=0.5)
    names = list(dict.fromkeys((*same, *like)))[:_NEAREST]
    return tuple(parts.Suggestion(text(name, limit=120), pod_link(*known[name])) for name in names)


def _is_named(holder: Holder, pod: PodKey) -> bool:
    # History cuts very long names, and its links have the cut ones.
    return holder[:2] == pod or (bounded(holder.namespace), bounded(holder.pod)) == pod


def _concerns(holder: Holder | None, pods: Iterable[PodKey], pod: PodKey) -> bool:
    return pod in pods if holder is None else _is_named(holder, pod)


def _headline(
    containers: tuple[Container, ...], devices: tuple[Device, ...], known: tuple[PodLife, ...], now: float
) -> str:
    if containers:
        held = [counted(len(devices), "device")] if devices else []
        cpus = sum(len(c.cpu_ids) for c in containers)
        held += [counted(cpus, "exclusive CPU")] if cpus else []
        unhealthy = sum(not device.allocatable for device in devices)
        also = f", {unhealthy} of them unhealthy" if unhealthy else ""
        return f"It holds {' and '.join(held) or 'what is listed below'}{also}."
    last = known[0].last if known else None
    end = None if last is None else times.ended(last, now)
    return f"It holds nothing on this node now{'' if end is None else f'; its last holding ended {end}'}."


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
        created = times.stamp(identity.created, now)
        yield Fact("Created", Text(f"{created.clock} UTC"), "", f"{created.ago} ago")
    if identity.priority_class:
        yield Fact("Priority class", text(identity.priority_class))
    if identity.static:
        yield Fact("Kind", Text("static pod, from a file of the kubelet"))
    for name, value in identity.labels[:40]:
        yield Fact(text(name, limit=60).shown, text(value, limit=100), "", "label")


# --- what it holds --------------------------------------------------------------------------------------


def _container(container: Container, devices: Iterable[Device], state: State) -> ContainerBox:
    """A container with those of its pod's `devices` that it holds."""
    holder = container.holder
    own = sorted((d for d in devices if holder in d.holders), key=parts.device_order)
    claimed = (
        (one, through) for one in state.snapshot.claims for through in one.holders if through.holder == holder
    )
    return ContainerBox(container, tuple(own[:HELD]), tuple(claimed)[:HELD])


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
