"""The whole status page, made of the state and of what its address asks for. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exporter.core.model import Snapshot
from exporter.core.state import Freshness, State
from exporter.web import matching
from exporter.web.api.documents import Moment
from exporter.web.pages import rows
from exporter.web.pages.findings import Findings, findings
from exporter.web.pages.resources import ResourceRow, resource_rows
from exporter.web.pages.rows import ClaimRow, ContainerRow, DeviceRow, When
from exporter.web.query import DeviceState, PageQuery, address
from exporter.web.standing import reason
from exporter.web.words import counted, lasting, spelled, text

SIDE_LIMIT: Final = 200
"""Rows of claims and of containers on the page; the API has all."""
_OPTIONS_LIMIT: Final = 500


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the last refresh failed: the kubelet's `method`, since when, and the reason in words."""

    method: str
    since: When
    reason: str


@dataclass(frozen=True, slots=True)
class Banner:
    """The first thing on the page. `level` is ok, warn or bad; `headline` is steady while nothing changes."""

    level: str
    sign: str
    headline: str
    explanation: str
    taken: When | None
    problem: Problem | None


@dataclass(frozen=True, slots=True)
class Option:
    """A choice of the form. `whole` is what is sent, `label` what is shown."""

    whole: str
    label: str
    selected: bool


@dataclass(frozen=True, slots=True)
class Form:
    """The form, filled in as the address says."""

    q: str
    pod: str
    device: str
    resources: tuple[Option, ...]
    namespaces: tuple[Option, ...]
    states: tuple[Option, ...]
    per_page: int | None
    active: bool
    detailed: bool


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
    """A lesser table: how many rows there are besides those shown, and whether there are any unfiltered."""

    exists: bool
    more: int


@dataclass(frozen=True, slots=True)
class StatusPage:
    """Everything that the template shows."""

    node: str
    title: str
    now: float
    tag: str
    banner: Banner
    trusted: bool
    triggers: str
    notes: tuple[str, ...]
    findings: Findings
    resources: tuple[ResourceRow, ...]
    form: Form
    paging: Paging
    devices: tuple[DeviceRow, ...]
    nothing: str
    claims: tuple[ClaimRow, ...]
    claims_section: Section
    containers: tuple[ContainerRow, ...]
    containers_section: Section


def status_page(moment: Moment, query: PageQuery, *, tag: str, triggers: tuple[str, ...]) -> StatusPage:
    """The page at `moment`. `tag` names what the page depends on besides the time; `triggers` in words."""
    state, now, filters = moment.state, moment.now, query.filters
    snapshot = state.snapshot
    kept = sorted(matching.devices(snapshot, filters), key=rows.order)
    page = min(query.page, _pages(query, len(kept)))
    first = (page - 1) * query.per_page
    shown = kept[first : first + query.per_page]
    claims = matching.claims(snapshot, filters)
    containers = matching.containers(snapshot, filters)
    found = findings(state.anomalies, now)
    return StatusPage(
        node=spelled(moment.node),
        title=_title(moment, found),
        now=now,
        tag=tag,
        banner=_banner(moment),
        trusted=moment.freshness in {Freshness.FRESH, Freshness.AGEING},
        triggers=_triggers(triggers),
        notes=tuple(text(note, limit=300).shown for note in state.notes),
        findings=found,
        resources=resource_rows(state, query),
        form=_form(snapshot, query),
        paging=_paging(
            query,
            page=page,
            answered=state.taken_at is not None,
            shown=len(shown),
            kept=len(kept),
            known=len(snapshot.devices),
        ),
        devices=tuple(rows.device_row(device, state, now) for device in shown),
        nothing="" if shown else _nothing(state, query),
        claims=tuple(rows.claim_row(claim) for claim in claims[:SIDE_LIMIT]),
        claims_section=Section(bool(snapshot.claims), max(0, len(claims) - SIDE_LIMIT)),
        containers=tuple(rows.container_row(c) for c in containers[:SIDE_LIMIT]),
        containers_section=Section(
            any(c.cpu_ids or c.memory for c in snapshot.containers), max(0, len(containers) - SIDE_LIMIT)
        ),
    )


def _title(moment: Moment, found: Findings) -> str:
    mark = {
        Freshness.FRESH: f"({len(found)}) " if len(found) else "",
        Freshness.AGEING: "No answer: ",
        Freshness.STALE: "STALE: ",
        Freshness.UNKNOWN: "No mapping: ",
    }[moment.freshness]
    return f"{mark}{text(moment.node).shown} · devicelens"


def _banner(moment: Moment) -> Banner:
    state, now = moment.state, moment.now
    failure = state.failure
    level, sign, headline = {
        Freshness.FRESH: ("ok", "✓", "The mapping is fresh."),
        Freshness.AGEING: ("warn", "!", "The kubelet does not answer as it should."),
        Freshness.STALE: ("bad", "✕", "Do not trust this mapping."),
        Freshness.UNKNOWN: ("bad", "✕", "There is no mapping yet."),
    }[moment.freshness]
    explanation = {
        Freshness.FRESH: "",
        Freshness.AGEING: f"What you see is older than it should be; after {lasting(moment.stale_after)} "
        "it is no longer told to Prometheus.",
        Freshness.STALE: f"It is older than {lasting(moment.stale_after)}: "
        "pods and devices may have changed hands since. It is no longer told to Prometheus.",
        Freshness.UNKNOWN: "The kubelet has not answered since the exporter started.",
    }[moment.freshness]
    return Banner(
        level=level,
        sign=sign,
        headline=headline,
        explanation=explanation,
        taken=None if state.taken_at is None else rows.when(state.taken_at, now),
        problem=None
        if failure is None
        else Problem(
            text(failure.method).shown,
            rows.when(failure.since, now),
            text(reason(failure), limit=600).shown,
        ),
    )


def _triggers(triggers: tuple[str, ...]) -> str:
    return ", ".join(text(trigger, limit=120).shown for trigger in triggers) or "nothing"


def _form(snapshot: Snapshot, query: PageQuery) -> Form:
    filters = query.filters
    namespaces = {c.holder.namespace for c in snapshot.containers}
    return Form(
        q=filters.q,
        pod=filters.pod,
        device=filters.device,
        resources=_options((d.key.resource for d in snapshot.devices), filters.resource),
        namespaces=_options(namespaces, filters.namespace),
        states=tuple(Option(s, s, s is filters.state) for s in DeviceState),
        per_page=query.per_page if query.per_page != PageQuery().per_page else None,
        active=filters.any,
        detailed=bool(filters.pod or filters.device),
    )


def _options(names: Iterable[str], selected: str) -> tuple[Option, ...]:
    """The choices that there are now, and the one that is made."""
    found = sorted({spelled(name) for name in set(names)})[:_OPTIONS_LIMIT]
    if selected and selected not in found:
        found.append(selected)
    # Longer ones are refused by the query's own limit; they are found by `q`.
    return tuple(Option(name, text(name).shown, name == selected) for name in found if len(name) <= 512)


def _pages(query: PageQuery, kept: int) -> int:
    """There is always one, empty as it may be."""
    return max(1, -(-kept // query.per_page))


def _paging(query: PageQuery, *, page: int, answered: bool, shown: int, kept: int, known: int) -> Paging:
    pages = _pages(query, kept)
    first = (page - 1) * query.per_page + 1
    of = f"{kept} of {counted(known, 'device')}" if query.filters.any else counted(known, "device")
    if not answered:
        of = ""
    return Paging(
        summary=of if pages == 1 else f"{first} to {first + shown - 1} of {of}",
        page=page,
        pages=pages,
        previous=address(query.at_page(page - 1)) if page > 1 else "",
        next=address(query.at_page(page + 1)) if page < pages else "",
    )


def _nothing(state: State, query: PageQuery) -> str:
    """Why there is no row."""
    if state.taken_at is None:
        return "Nothing is known of this node's devices until the kubelet has answered."
    if state.snapshot.devices:
        return "No device matches." if query.filters.any else ""
    if not state.snapshot.complete:
        return "No pod holds a device. This kubelet does not tell which devices are free."
    return "No device plugin has registered with this node's kubelet, and no pod holds a device of one."
