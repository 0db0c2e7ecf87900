"""The whole status page, made of the state and of what its address asks for. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exporter.core.model import ClaimDevice, Device
from exporter.core.state import Freshness, State
from exporter.web import matching
from exporter.web.api.documents import Moment
from exporter.web.pages.banner import Banner, banner
from exporter.web.pages.containers import ContainerRow, container_row
from exporter.web.pages.findings import Findings, findings
from exporter.web.pages.form import Form, Heading, form, headings
from exporter.web.pages.grouping import Cluster, clusters, entries
from exporter.web.pages.headers import Header, header
from exporter.web.pages.resources import Resources, resources
from exporter.web.pages.rows import Scene, scene
from exporter.web.pages.sorting import Entry, arranged
from exporter.web.pages.whens import NOW
from exporter.web.query import Group, PageQuery, address
from exporter.web.words import counted, spelled, text

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
