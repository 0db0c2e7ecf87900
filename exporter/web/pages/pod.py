"""A pod's page: all that it holds and held, where that lies, and who bore its name before. Pure.

What each container of a pod holds. Pure.

The lives of a pod's name: a pod that is made anew under its name is another one. Pure.

Where a uid is known it tells pods apart. Where none is, time does as far as it can: a pod has its devices
from its admission to its end, so that when for a while nothing was held under a name, what came before and
what came after were two pods.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from exporter.history.record import HoldingRow, bounded
from exporter.mapping.holdings import Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import ClaimDevice, ClaimHolder, Container, Device, Holder, PinnedMemory, PodKey
from exporter.mapping.state import State
from exporter.views.documents import Moment
from exporter.views.links import claim_link, device_link, history_link, pod_link
from exporter.views.query import TEXT_LIMIT
from exporter.views.wording import Text, counted, ranges, size, spelled, text
from exporter.web.pages import periods
from exporter.web.pages.device import Fact
from exporter.web.pages.findings import Findings, findings
from exporter.web.pages.numa import Picture, picture
from exporter.web.pages.past import (
    Answer,
    PastRow,
    Range,
    Section,
    in_order,
    life_id,
    of_device,
    past_row,
    section,
)
from exporter.web.pages.periods import End, Stamp
from exporter.web.pages.rows import row_key
from exporter.web.pages.summary import Fresh, fresh

HELD: Final = 500
"""Devices of one container that are shown."""


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device, or a claimed one, in a container's hands: `kind` is held, unhealthy or claimed."""

    key: str
    device: Text
    href: str
    of: Text
    kind: str
    words: str
    numa: str
    since: Stamp | None
    exact: bool


@dataclass(frozen=True, slots=True)
class ContainerFact:
    """One container with all that it holds."""

    key: str
    name: Text
    devices: tuple[HeldDevice, ...]
    more: int
    cpus: str
    cpu_count: str
    memory: tuple[Text, ...]
    numa: str


def container_of(container: Container, devices: Iterable[Device], state: State, now: float) -> ContainerFact:
    """A container with those of its pod's `devices` that it holds."""
    holder = container.holder
    own = sorted((d for d in devices if holder in d.holders), key=in_order)
    held = [_held(device, holder, state, now) for device in own]
    held += [
        _claimed(claimed, through, state, now)
        for claimed in state.snapshot.claims
        for through in claimed.holders
        if through.holder == holder
    ]
    return ContainerFact(
        key=row_key("container", *holder),
        name=text(holder.container),
        devices=tuple(held[:HELD]),
        more=max(0, len(held) - HELD),
        cpus=text(ranges(container.cpu_ids), limit=120).shown,
        cpu_count=counted(len(container.cpu_ids), "CPU") if container.cpu_ids else "",
        memory=tuple(map(_pinned, container.memory[:20])),
        numa=ranges(container.numa_nodes),
    )


def _pinned(memory: PinnedMemory) -> Text:
    where = f" on NUMA {ranges(memory.numa_nodes)}" if memory.numa_nodes else ""
    return text(f"{size(memory.size_bytes)} {memory.memory_type}{where}")


def _held(device: Device, holder: Holder, state: State, now: float) -> HeldDevice:
    key = device.key
    since = state.since.get(Holding(key, holder))
    ill = state.snapshot.complete and not device.allocatable
    return HeldDevice(
        key=row_key("held", *key, *holder),
        device=text(key.device, limit=200),
        href=device_link(key.resource, key.device),
        of=text(key.resource),
        kind="unhealthy" if ill else "held",
        words="unhealthy" if ill else "healthy" if state.snapshot.complete else "held",
        numa=ranges(device.numa_nodes),
        since=None if since is None else periods.stamp(since.at, now),
        exact=since is not None and since.exact,
    )


def _claimed(claimed: ClaimDevice, through: ClaimHolder, state: State, now: float) -> HeldDevice:
    key, held = claimed.key, claimed.held(through)
    since = state.since.get(Holding(held, through.holder))
    share = f", share {key.share_id}" if key.share_id else ""
    claim = f"{key.driver}, pool {key.pool}{share}, claim {through.claim}"
    return HeldDevice(
        key=row_key("claimed", *held, *through.holder),
        device=text(key.device, limit=200),
        href=claim_link(key.driver, key.pool, key.device),
        of=text(claim, limit=160),
        kind="held",
        words="claimed",
        numa="",
        since=None if since is None else periods.stamp(since.at, now),
        exact=since is not None and since.exact,
    )


@dataclass(frozen=True, slots=True)
class Life:
    """One pod of a name: its `uid`, "" where nothing tells it, and its holdings, the newest first. `present`:
    it is on the node now.
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
        """The holding that ended last, or is held still."""
        return max(self.rows, key=lambda row: (row.high, row.id), default=None)


def lives(rows: Iterable[HoldingRow], present: Sequence[str]) -> tuple[Life, ...]:
    """The pods of one name, the newest first. `present` are the uids of those that hold anything now, ""
    where it is not known; history need not have any holding of theirs.
    """
    by_uid: dict[str, list[HoldingRow]] = {}
    unknown: list[HoldingRow] = []
    for row in rows:
        if row.facts.uid:
            by_uid.setdefault(row.facts.uid, []).append(row)
        else:
            unknown.append(row)
    found = [Life(uid, _newest_first(own), uid in present) for uid, own in by_uid.items()]
    clusters = _apart(unknown)
    found += [
        Life("", _newest_first(own), "" in present and any(row.end is None for row in own))
        for own in clusters
    ]
    here = {life.uid for life in found if life.present}
    found += [Life(uid, (), present=True) for uid in dict.fromkeys(present) if uid not in here]
    return tuple(sorted(found, key=_order, reverse=True))


def _newest_first(rows: Iterable[HoldingRow]) -> tuple[HoldingRow, ...]:
    return tuple(sorted(rows, key=lambda row: (row.low, row.id), reverse=True))


def _order(life: Life) -> tuple[bool, float, float]:
    first, last = life.first, life.last
    return (
        life.present,
        math.inf if first is None else first.low,
        math.inf if last is None else last.high,
    )


def _apart(rows: Iterable[HoldingRow]) -> list[list[HoldingRow]]:
    """Holdings in groups between which nothing was held."""
    found: list[list[HoldingRow]] = []
    reached = -math.inf
    for row in sorted(rows, key=lambda row: (row.low, row.id)):
        if not found or row.low > reached:
            found.append([])
        found[-1].append(row)
        reached = max(reached, row.high)
    return found


LIVES: Final = 50
"""Pods of one name that are shown."""
_NEAREST: Final = 5
_COMPARED: Final = 4096


@dataclass(frozen=True, slots=True)
class LifeFact:
    """One pod of the name: `anchor` is its place, `number` counts from the first that is known."""

    anchor: str
    number: int
    uid: str
    present: bool
    workload: Text | None
    began: End | None
    ended: End | None
    rows: tuple[PastRow, ...]
    newer: str
    older: str


@dataclass(frozen=True, slots=True)
class PodPage:
    """Everything that the template shows. `present` is false where no pod of the name holds anything."""

    node: str
    title: str
    now: float
    tag: str
    path: str
    fresh: Fresh
    namespace: Text
    name: Text
    whole: str
    present: bool
    headline: str
    uids: tuple[str, ...]
    facts: tuple[Fact, ...]
    findings: Findings
    containers: tuple[ContainerFact, ...]
    numa: Picture
    lives: tuple[LifeFact, ...]
    lives_left_out: int
    past: Section


@dataclass(frozen=True, slots=True)
class Near:
    """A pod that may have been meant."""

    name: Text
    href: str


def pod_page(
    moment: Moment,
    pod: PodKey,
    span: Range | None,
    answer: Answer,
    *,
    tag: str,
    cpu_nodes: Mapping[int, int],
) -> PodPage | None:
    """The page of the pods called `pod` at `moment`, None where none was ever known. `span` is what to draw,
    None for all of it; `answer` is history's, of the name; `cpu_nodes` maps CPUs to NUMA nodes.
    """
    state, now = moment.state, moment.now
    rows = () if answer.found is None else tuple(answer.found.rows)
    containers = tuple(c for c in state.snapshot.containers if _named(c.holder, pod))
    if not containers and not rows:
        return None
    uids = tuple(dict.fromkeys(c.holder.pod_uid for c in containers))
    told_of = lives(rows, uids)
    facts = tuple(_life(life, number, told_of, now) for number, life in enumerate(told_of[:LIVES]))
    devices = tuple(d for d in state.snapshot.devices if any(_named(h, pod) for h in d.holders))
    numbers = {row.id: len(told_of) - i for i, life in enumerate(told_of) for row in life.rows}
    namespace, name = pod
    return PodPage(
        node=spelled(moment.node),
        title=f"{text(name, limit=40).shown} · {text(moment.node).shown} · devicelens",
        now=now,
        tag=tag,
        path=pod_link(*pod),
        fresh=fresh(moment),
        namespace=text(namespace),
        name=text(name, limit=200),
        whole=f"{spelled(namespace)}/{spelled(name)}",
        present=bool(containers),
        headline=_headline(containers, devices, told_of, now),
        uids=tuple(spelled(uid) for uid in uids if uid),
        facts=tuple(_facts(state.pods.get(pod), told_of, now)),
        findings=findings((a for a in state.anomalies if _concerns(a.holder, a.pods, pod)), now),
        containers=tuple(container_of(c, devices, state, now) for c in containers),
        numa=picture(containers, devices, cpu_nodes, _nodes(state, cpu_nodes)),
        lives=facts,
        lives_left_out=max(0, len(told_of) - LIVES),
        past=_past(pod, answer, span or _all(rows, now), now, numbers),
    )


def near(state: State, pod: PodKey) -> tuple[Near, ...]:
    """The pods that hold anything and whose names are most like `pod`."""
    known = {
        f"{c.holder.namespace}/{c.holder.pod}": c.holder[:2] for c in state.snapshot.containers[:_COMPARED]
    }
    asked = f"{pod[0]}/{pod[1]}"[:512]
    same = [name for name, key in known.items() if key[1] == pod[1]]
    like = get_close_matches(asked, [name for name in known if len(name) <= 512], n=_NEAREST, cutoff=0.5)
    names = list(dict.fromkeys((*same, *like)))[:_NEAREST]
    return tuple(Near(text(name, limit=120), pod_link(*known[name])) for name in names)


def _named(holder: Holder, pod: PodKey) -> bool:
    """Whether it is the one of that name; history cuts names that are very long."""
    if holder[:2] == pod:
        return True
    return (bounded(holder.namespace), bounded(holder.pod)) == pod


def _concerns(holder: Holder | None, pods: Iterable[PodKey], pod: PodKey) -> bool:
    return pod in pods if holder is None else _named(holder, pod)


def _nodes(state: State, cpu_nodes: Mapping[int, int]) -> frozenset[int]:
    """The NUMA nodes that this machine is known to have."""
    told_of = {node for device in state.snapshot.devices for node in device.numa_nodes}
    return frozenset(told_of | set(cpu_nodes.values()))


def _headline(
    containers: tuple[Container, ...], devices: tuple[Device, ...], told_of: tuple[Life, ...], now: float
) -> str:
    if containers:
        parts = [counted(len(devices), "device")] if devices else []
        cpus = sum(len(c.cpu_ids) for c in containers)
        parts += [counted(cpus, "exclusive CPU")] if cpus else []
        ill = sum(not device.allocatable for device in devices)
        unwell = f", {ill} of them unhealthy" if ill else ""
        what = " and ".join(parts) or "what is listed below"
        return f"It holds {what}{unwell}."
    last = told_of[0].last if told_of else None
    end = None if last is None else periods.ended(last, now)
    when = "" if end is None else f"; the last of it ended {periods.in_words(end)}"
    return f"It holds nothing on this node now{when}."


def _facts(identity: PodIdentity | None, told_of: tuple[Life, ...], now: float) -> Iterable[Fact]:
    newest = next((row for life in told_of for row in life.rows if row.facts.workload_kind), None)
    if identity is not None and identity.workload.kind:
        yield Fact("Workload", text(f"{identity.workload.kind} {identity.workload.name}"))
    elif newest is not None:
        yield Fact("Workload", text(f"{newest.facts.workload_kind} {newest.facts.workload}"))
    if identity is None:
        return
    if identity.phase:
        yield Fact("Phase", text(identity.phase))
    if identity.created > 0:
        made = periods.stamp(identity.created, now)
        yield Fact("Created", Text(f"{made.clock} UTC"), "", f"{made.ago} ago")
    if identity.priority_class:
        yield Fact("Priority class", text(identity.priority_class))
    if identity.static:
        yield Fact("Kind", Text("static pod, from a file of the kubelet"))
    for name, value in identity.labels[:40]:
        yield Fact(text(name, limit=60).shown, text(value, limit=100), "", "label")


def _life(life: Life, number: int, told_of: tuple[Life, ...], now: float) -> LifeFact:
    first, last = life.first, life.last
    work = next((row.facts for row in life.rows if row.facts.workload_kind), None)
    return LifeFact(
        anchor=_anchor(told_of, number),
        number=len(told_of) - number,
        uid=spelled(life.uid),
        present=life.present,
        workload=None if work is None else text(f"{work.workload_kind} {work.workload}"),
        began=None if first is None else periods.began(first, now),
        ended=None if last is None else periods.ended(last, now),
        rows=tuple(past_row(row, now) for row in life.rows),
        newer=_anchor(told_of, number - 1) if 0 < number <= LIVES else "",
        older=_anchor(told_of, number + 1) if number + 1 < min(len(told_of), LIVES) else "",
    )


def _anchor(told_of: tuple[Life, ...], number: int) -> str:
    life = told_of[number]
    return life_id(life.uid) if life.uid else f"life-{len(told_of) - number}"


def _all(rows: tuple[HoldingRow, ...], now: float) -> Range:
    """From the first holding that is known to now, or to the end of the last."""
    first = min((row.low for row in rows), default=now - 3600.0)
    last = max((row.high for row in rows), default=now)
    until = min(now, last + 0.05 * (last - first)) if last < now else now
    return Range(min(first - 0.02 * max(until - first, 1.0), until - 1.0), until)


def _past(pod: PodKey, answer: Answer, span: Range, now: float, numbers: Mapping[int, int]) -> Section:
    several = len(set(numbers.values())) > 1

    def named(row: HoldingRow) -> tuple[str, str, str]:
        container = text(row.key.container, limit=40).shown
        number = numbers.get(row.id, 0)
        if not several:
            return container, container, of_device(row).href
        uid = spelled(row.facts.uid[:8])
        life = f"life {number}"
        return f"{life} · {container}{f' · {uid}' if uid else ''}", life, of_device(row).href

    more = history_link(namespace=spelled(pod[0])[:TEXT_LIMIT], pod=spelled(pod[1])[:TEXT_LIMIT])
    found = section(answer, span, now, group=of_device, named=named, more=more)
    return replace(found, rows=())
