"""The status page's resources: counts, and a small bar of each. Pure."""

from dataclasses import dataclass, replace
from typing import Final

from exporter.core.model import ResourceCounts
from exporter.core.state import State
from exporter.web.pages.rows import row_key
from exporter.web.query import PageQuery, address
from exporter.web.words import Text, counted, spelled, text

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
