"""How fresh the mapping is: the first thing on the status page. Pure.

How far the mapping can be trusted, for the pages of one device, pod or claim. Pure.

The status page's resources: counts, and a small bar of each. Pure.

The status page's lesser table: containers with CPUs or memory of their own. Pure.
"""

from dataclasses import dataclass, replace
from typing import Final

from exporter.mapping.model import Container, ResourceCounts
from exporter.mapping.state import Freshness, State
from exporter.views.documents import Moment
from exporter.views.links import pod_link
from exporter.views.query import PageQuery, address
from exporter.views.wording import Text, counted, judge, lasting, ranges, reason, size, spelled, text
from exporter.web.pages.periods import Stamp, When, later, optional
from exporter.web.pages.rows import row_key


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the last refresh failed: the kubelet's `method`, since when, and the reason in words."""

    method: str
    since: When
    reason: str


@dataclass(frozen=True, slots=True)
class Banner:
    """`level` is ok, warn or bad; `headline` is steady while nothing changes."""

    level: str
    sign: str
    headline: str
    explanation: str
    taken: When | None
    problem: Problem | None


def banner(moment: Moment) -> Banner:
    """How fresh the mapping is at `moment`."""
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
        taken=None if state.taken_at is None else later(state.taken_at, now),
        problem=None
        if failure is None
        else Problem(
            text(failure.method).shown,
            later(failure.since, now),
            text(reason(failure), limit=600).shown,
        ),
    )


_LEVELS: Final = {
    Freshness.FRESH: ("ok", "✓"),
    Freshness.AGEING: ("warn", "!"),
    Freshness.STALE: ("bad", "✕"),
    Freshness.UNKNOWN: ("bad", "✕"),
}


@dataclass(frozen=True, slots=True)
class Fresh:
    """`level` is ok, warn or bad; `headline` is steady while nothing changes. `taken`: when the kubelet was
    asked, None if it has not answered. `problem` says what fails, "" while nothing does.
    """

    level: str
    sign: str
    headline: str
    taken: Stamp | None
    problem: str

    @property
    def trusted(self) -> bool:
        """Whether what is shown counts as of the present."""
        return self.level != "bad"


def fresh(moment: Moment) -> Fresh:
    """How the mapping stands at `moment`."""
    state, now = moment.state, moment.now
    standing = judge(state, now, moment.stale_after)
    level, sign = _LEVELS[standing.freshness]
    headline = f"{standing.headline[0].upper()}{standing.headline[1:]}."
    return Fresh(level, sign, headline, optional(state.taken_at, now), text(standing.error, limit=600).shown)


_CELLS_LIMIT: Final = 32
"""Up to so many devices a resource's bar shows each by itself."""
_BAR: Final = 1000
"""Width of a bar in its own units."""
_FIRST: Final = 6
"""Resources that are seen at once: those with something wrong, then the most held. One or two more are not
worth folding.
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a bar: where it begins, how wide it is, and what it stands for."""

    x: int
    width: int
    state: str


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """One resource's counts, as text: "?" where the kubelet cannot tell."""

    key: str
    name: Text
    address: str
    known: str
    allocatable: str
    held: str
    free: str
    unhealthy: str
    alarming: bool
    bars: tuple[Bar, ...]
    selected: bool


@dataclass(frozen=True, slots=True)
class Resources:
    """Every resource, by name: those seen at once, those folded away, and what is to be said of these."""

    first: tuple[ResourceRow, ...] = ()
    further: tuple[ResourceRow, ...] = ()
    summary: str = ""


def resources(state: State, query: PageQuery) -> Resources:
    """Every resource's row."""
    gone = {anomaly.resource for anomaly in state.anomalies if anomaly.kind == "plugin_gone"}
    rows = [
        _row(name, counts, complete=state.snapshot.complete, gone=name in gone, query=query)
        for name, counts in state.snapshot.resources().items()
    ]
    if len(rows) <= _FIRST + 2:
        return Resources(tuple(rows))
    wanted = sorted(rows, key=lambda row: (not row.selected, not row.alarming, -int(row.held)))[:_FIRST]
    seen = {row.key for row in wanted}
    further = tuple(row for row in rows if row.key not in seen)
    alarming = sum(row.alarming for row in further)
    well = f", {alarming} of them with something wrong" if alarming else ", nothing wrong with them"
    return Resources(
        first=tuple(row for row in rows if row.key in seen),
        further=further,
        summary=f"{counted(len(further), 'more resource')}{well if state.snapshot.complete else ''}",
    )


def _row(name: str, counts: ResourceCounts, *, complete: bool, gone: bool, query: PageQuery) -> ResourceRow:
    """A resource's row; its link filters by it, or no longer where it is the filter already."""
    shown = spelled(name)
    selected = query.filters.resource == shown
    link = replace(query.filters, resource="" if selected else shown)

    def told(count: int) -> str:
        return str(count) if complete else "?"

    return ResourceRow(
        key=row_key("resource", name),
        name=text(name),
        address=address(replace(query, filters=link, page=1)),
        known=str(counts.known),
        allocatable=told(counts.allocatable),
        held=str(counts.allocated),
        free=told(counts.free),
        unhealthy=told(counts.unhealthy),
        alarming=complete and (counts.unhealthy > 0 or gone),
        bars=bars(counts, complete=complete),
        selected=selected,
    )


def bars(counts: ResourceCounts, *, complete: bool) -> tuple[Bar, ...]:
    """A bar of width 1000: held, then unhealthy, then free; a cell for each device where they are few."""
    known = counts.known
    if known == 0:
        return ()
    unhealthy = counts.unhealthy if complete else 0
    parts = (("held", known - unhealthy - counts.free), ("unhealthy", unhealthy), ("free", counts.free))
    if known <= _CELLS_LIMIT:
        states = [state for state, count in parts for _ in range(count)]
        gap = 6 if known > 1 else 0
        edges = [_BAR * i // known for i in range(known + 1)]
        return tuple(
            Bar(edges[i], edges[i + 1] - edges[i] - (gap if i < known - 1 else 0), state)
            for i, state in enumerate(states)
        )
    found: list[Bar] = []
    x = done = 0
    for state, count in parts:
        done += count
        edge = _BAR * done // known
        # What is there at all is seen.
        if count:
            found.append(Bar(min(x, _BAR - 4), max(edge - x, 4), state))
        x = edge
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """One container with exclusive CPUs or pinned memory, and its pod's page."""

    key: str
    namespace: Text
    pod: Text
    container: Text
    address: str
    cpus: str
    cpu_count: str
    memory: tuple[Text, ...]
    numa: str


def container_row(container: Container) -> ContainerRow:
    """The row of a container with exclusive CPUs or pinned memory."""
    holder = container.holder
    return ContainerRow(
        key=row_key("container", *holder),
        namespace=text(holder.namespace),
        pod=text(holder.pod),
        container=text(holder.container),
        address=pod_link(holder.namespace, holder.pod),
        cpus=text(ranges(container.cpu_ids), limit=120).shown,
        cpu_count=counted(len(container.cpu_ids), "CPU"),
        memory=tuple(
            text(f"{size(m.size_bytes)} {m.memory_type}{_on(m.numa_nodes)}") for m in container.memory[:20]
        ),
        numa=ranges(container.numa_nodes),
    )


def _on(nodes: tuple[int, ...]) -> str:
    return f" on NUMA {ranges(nodes)}" if nodes else ""
