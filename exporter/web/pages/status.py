"""The whole status page, made of the state and of what its address asks for. Pure.

The status page's form and its columns: what can be asked for, and what is. Pure.

The headings of the status page's groups, which count what stands under them. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.mapping.model import ClaimDevice, Device, Snapshot
from exporter.mapping.state import Freshness, State
from exporter.views import matching
from exporter.views.documents import Moment
from exporter.views.links import device_link, pod_link
from exporter.views.query import TEXT_LIMIT, Column, DeviceState, Group, PageQuery, Sort, address
from exporter.views.wording import Text, counted, listed, spelled, text
from exporter.web.pages.findings import Findings, findings
from exporter.web.pages.periods import NOW
from exporter.web.pages.rows import (
    UNHEALTHY_HELD,
    Cluster,
    Entry,
    Scene,
    arranged,
    clusters,
    entries,
    row_key,
    scene,
    workload,
)
from exporter.web.pages.summary import Banner, ContainerRow, Resources, banner, container_row, resources

_OPTIONS_LIMIT: Final = 500

_COLUMNS: Final = (
    ("device", "Device", Column.DEVICE),
    ("resource", "Resource", Column.RESOURCE),
    ("state", "State", Column.STATE),
    ("holder", "Pod", Column.POD),
    ("container", "Container", None),
    ("since", "Held since", Column.SINCE),
    ("numa", "NUMA", Column.NUMA),
)
_GROUPS: Final = {Group.NONE: "nothing", Group.DEVICE: "device", Group.POD: "pod"}


@dataclass(frozen=True, slots=True)
class Option:
    """A choice of the form. `whole` is what is sent, `label` what is shown."""

    whole: str
    label: str
    selected: bool


@dataclass(frozen=True, slots=True)
class Form:
    """The form, filled in as the address says. `clear` is the address without its filters."""

    q: str
    pod: str
    device: str
    resources: tuple[Option, ...]
    namespaces: tuple[Option, ...]
    states: tuple[Option, ...]
    groups: tuple[Option, ...]
    sort: str
    per_page: int | None
    active: bool
    detailed: bool
    clear: str


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's heading.

    `address` sorts by it; where rows are sorted so already, the other way round, and then in the usual order;
    it is "" where they cannot be. `order` is ascending or descending where rows are sorted by it, else "".
    """

    name: str
    label: str
    address: str
    order: str


def form(snapshot: Snapshot, query: PageQuery) -> Form:
    """The form for `snapshot`, with what `query` asks for."""
    filters = query.filters
    resources = {d.key.resource for d in snapshot.devices} | {c.key.driver for c in snapshot.claims}
    namespaces = {c.holder.namespace for c in snapshot.containers}
    return Form(
        q=filters.q,
        pod=filters.pod,
        device=filters.device,
        resources=_options(resources, filters.resource),
        namespaces=_options(namespaces, filters.namespace),
        states=tuple(Option(s, s, s is filters.state) for s in DeviceState),
        groups=tuple(
            Option("" if group is Group.NONE else group, label, group is query.group)
            for group, label in _GROUPS.items()
        ),
        sort="" if query.sort is None else str(query.sort),
        per_page=query.per_page if query.per_page != PageQuery().per_page else None,
        active=filters.any,
        detailed=bool(filters.pod or filters.device),
        clear=address(query.unfiltered()),
    )


def headings(query: PageQuery) -> tuple[Heading, ...]:
    """The columns' headings."""
    return tuple(_heading(name, label, column, query) for name, label, column in _COLUMNS)


def _heading(name: str, label: str, column: Column | None, query: PageQuery) -> Heading:
    if column is None:
        return Heading(name, label, "", "")
    order = query.order
    if order.column is not column:
        return Heading(name, label, address(query.sorted_by(Sort(column))), "")
    if not order.descending:
        following = query.sorted_by(Sort(column, descending=True))
        return Heading(name, label, address(following), "ascending")
    return Heading(name, label, address(query.sorted_by(None)), "descending")


def _options(names: Iterable[str], selected: str) -> tuple[Option, ...]:
    """The choices that there are now, and the one that is made."""
    found = sorted({spelled(name) for name in names})[:_OPTIONS_LIMIT]
    if selected and selected not in found:
        found.append(selected)
    # Longer ones are refused by the query's own limit; they are found by `q`.
    return tuple(
        Option(name, text(name).shown, name == selected) for name in found if len(name) <= TEXT_LIMIT
    )


@dataclass(frozen=True, slots=True)
class Header:
    """A group's heading: what `kind` it is (device, pod, free), its name with a part set back before it, its
    page ("" where it has none), what it belongs to, and its rows counted in words.
    """

    key: str
    kind: str
    before: Text | None
    name: Text
    address: str
    of: Text | None
    counts: str
    continued: bool


def header(cluster: Cluster, state: State) -> Header | None:
    """The heading of `cluster`; None where its rows are of no group."""
    if not cluster.key:
        return None
    kind, *names = cluster.key
    key, first = row_key("group", *cluster.key), cluster.every[0]
    if kind == "pod":
        namespace, pod = names
        return Header(
            key=key,
            kind=kind,
            before=text(namespace),
            name=text(pod),
            address=pod_link(namespace, pod),
            of=workload(state.pods, first.holders[0]),
            counts=_by_resource(cluster.every),
            continued=cluster.continued,
        )
    if kind == "free":
        return Header(
            key, kind, None, Text("Held by no pod"), "", None, _by_resource(cluster.every), cluster.continued
        )
    _, name = names
    whole = [e for e in cluster.every if isinstance(e.item, Device) and e.item.key.device == name]
    return Header(
        key=key,
        kind=kind,
        before=None,
        name=text(name),
        address=device_link(*whole[0].item.key[:2]) if whole else _behind(first, name),
        of=None,
        counts=f"{_by_resource(cluster.every)}: {_by_state(cluster.every, state)}",
        continued=cluster.continued,
    )


def _behind(first: Entry, name: str) -> str:
    """The page of what is behind shares: it is no device of its own, but explained as one is."""
    item = first.item
    return device_link(item.key.resource, name) if isinstance(item, Device) else ""


def _by_resource(entries: Iterable[Entry]) -> str:
    """`3 devices of nvidia.com/gpu, 1 of example.com/nic`"""
    counts = Counter(
        entry.item.key.resource if isinstance(entry.item, Device) else entry.item.key.driver
        for entry in entries
    )
    told = [f"{number} of {text(name).shown}" for name, number in sorted(counts.items())]
    first = next(iter(sorted(counts.items())))
    told[0] = f"{counted(first[1], 'device')} of {text(first[0]).shown}"
    return listed(told, limit=4)


def _by_state(entries: Iterable[Entry], state: State) -> str:
    counts = Counter(_state(entry, complete=state.snapshot.complete) for entry in entries)
    return " · ".join(
        f"{counts[name]} {name}" for name in (UNHEALTHY_HELD, "unhealthy", "held", "free") if counts[name]
    )


def _state(entry: Entry, *, complete: bool) -> str:
    item = entry.item
    if complete and isinstance(item, Device) and not item.allocatable:
        return UNHEALTHY_HELD if item.holders else "unhealthy"
    return "held" if item.holders else "free"


SIDE_LIMIT: Final = 200
"""Rows of containers on the page; the API has all."""


@dataclass(frozen=True, slots=True)
class Paging:
    """Which rows are shown, of how many; addresses are "" where there is no such page."""

    summary: str
    page: int
    pages: int
    previous: str
    next: str


@dataclass(frozen=True, slots=True)
class Section:
    """Rows that stand together under a heading, or none."""

    header: Header | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Containers:
    """The lesser table: its rows, how many there are besides, and whether there are any unfiltered."""

    exist: bool
    rows: tuple[ContainerRow, ...]
    more: int


@dataclass(frozen=True, slots=True)
class StatusPage:
    """Everything that the template shows. Rows are made of `sections`' entries in `scene`, as they are
    rendered, for most of them were before.
    """

    node: str
    title: str
    now: str
    tag: str
    banner: Banner
    trusted: bool
    triggers: str
    notes: tuple[str, ...]
    findings: Findings
    resources: Resources
    form: Form
    headings: tuple[Heading, ...]
    paging: Paging
    scene: Scene
    sections: tuple[Section, ...]
    nothing: str
    containers: Containers


def status_page(moment: Moment, query: PageQuery, *, tag: str, triggers: tuple[str, ...]) -> StatusPage:
    """The page at `moment`, with places for ages. `tag` names what the page depends on besides the time;
    `triggers` in words.
    """
    state, now, filters = moment.state, moment.now, query.filters
    snapshot, told = state.snapshot, matching.told(state)
    items: list[Device | ClaimDevice] = [
        *matching.devices(snapshot, filters, told),
        *matching.claims(snapshot, filters, told),
    ]
    kept = arranged(entries(items, query.group, matching.Match(filters)), query.order, state)
    page = min(query.page, _pages(query, len(kept)))
    shown = clusters(kept, query.group, (page - 1) * query.per_page, query.per_page)
    found = findings(state.anomalies, now)
    return StatusPage(
        node=spelled(moment.node),
        title=_title(moment, found),
        now=NOW,
        tag=tag,
        banner=banner(moment),
        trusted=moment.freshness in {Freshness.FRESH, Freshness.AGEING},
        triggers=_triggers(triggers),
        notes=tuple(text(note, limit=300).shown for note in state.notes),
        findings=found,
        resources=resources(state, query),
        form=form(snapshot, query),
        headings=headings(query),
        paging=_paging(
            query, page, kept, found=len(items), shown=shown, known=_known(state) if state.taken_at else None
        ),
        scene=scene(state, now),
        sections=tuple(Section(header(cluster, state), cluster.shown) for cluster in shown),
        nothing="" if shown else _nothing(state, query),
        containers=_containers(moment, query, told),
    )


def _title(moment: Moment, found: Findings) -> str:
    mark = {
        Freshness.FRESH: f"({len(found)}) " if len(found) else "",
        Freshness.AGEING: "No answer: ",
        Freshness.STALE: "STALE: ",
        Freshness.UNKNOWN: "No mapping: ",
    }[moment.freshness]
    return f"{mark}{text(moment.node).shown} · devicelens"


def _triggers(triggers: tuple[str, ...]) -> str:
    return ", ".join(text(trigger, limit=120).shown for trigger in triggers) or "nothing"


def _known(state: State) -> int:
    return len(state.snapshot.devices) + len(state.snapshot.claims)


def _pages(query: PageQuery, rows: int) -> int:
    """There is always one, empty as it may be."""
    return max(1, -(-rows // query.per_page))


def _paging(
    query: PageQuery,
    page: int,
    kept: Sequence[Entry],
    *,
    found: int,
    shown: Sequence[Cluster],
    known: int | None,
) -> Paging:
    """`known` is None where nothing is known yet. By pod there are more rows than devices."""
    pages, number = _pages(query, len(kept)), sum(len(cluster.shown) for cluster in shown)
    first = (page - 1) * query.per_page + 1
    of = ""
    if known is not None:
        of = f"{found} of {counted(known, 'device')}" if query.filters.any else counted(known, "device")
    span = "" if pages == 1 else f"{first} to {first + number - 1} of "
    if span and query.group is Group.POD:
        span = f"rows {span}{len(kept)}: "
    return Paging(
        summary=f"{span}{of}",
        page=page,
        pages=pages,
        previous=address(query.at_page(page - 1)) if page > 1 else "",
        next=address(query.at_page(page + 1)) if page < pages else "",
    )


def _containers(moment: Moment, query: PageQuery, told: matching.Told) -> Containers:
    snapshot = moment.state.snapshot
    if not any(c.cpu_ids or c.memory for c in snapshot.containers):
        return Containers(exist=False, rows=(), more=0)
    kept = matching.containers(snapshot, query.filters, told)
    rows = tuple(container_row(c) for c in kept[:SIDE_LIMIT])
    return Containers(exist=True, rows=rows, more=max(0, len(kept) - SIDE_LIMIT))


def _nothing(state: State, query: PageQuery) -> str:
    """Why there is no row."""
    if state.taken_at is None:
        return "Nothing is known of this node's devices until the kubelet has answered."
    if _known(state):
        return "No device matches." if query.filters.any else ""
    if not state.snapshot.complete:
        return "No pod holds a device. This kubelet does not tell which devices are free."
    return "No device plugin has registered with this node's kubelet, and no pod holds a device of one."
