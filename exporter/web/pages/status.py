"""The status page: freshness, findings, resources, the filter form, devices, and exclusive CPUs. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.mapping.device_health import NOT_OFFERED
from exporter.mapping.model import Container, Device, ResourceCounts, Snapshot
from exporter.mapping.state import Freshness, Moment, State
from exporter.views.matching import ItemMatcher
from exporter.views.query import (
    TEXT_LIMIT,
    PageQuery,
    RowGroup,
    Sort,
    SortColumn,
    StateFilter,
    address,
    device_link,
    pod_link,
)
from exporter.views.wording import Text, count_states, counted, listed, spelled, text
from exporter.web.pages.parts import (
    UNHEALTHY_HELD,
    FindingList,
    Frame,
    PageChoice,
    device_state,
    findings,
    freshness_banner,
    row_key,
    workload,
)
from exporter.web.pages.rows import Cluster, RowItem, arranged, clusters, row_items

CONTAINERS: Final = 200
"""Containers with exclusive CPUs or pinned memory on the page; the API has all."""
_OPTIONS: Final = 500
_COLUMNS: Final = (
    ("device", "Device", SortColumn.DEVICE),
    ("resource", "Resource", SortColumn.RESOURCE),
    ("state", "State", SortColumn.STATE),
    ("holder", "Pod", SortColumn.POD),
    ("container", "Container", None),
    ("since", "Held since", SortColumn.SINCE),
    ("numa", "NUMA", SortColumn.NUMA),
)
_GROUPS: Final = {RowGroup.NONE: "nothing", RowGroup.DEVICE: "device", RowGroup.POD: "pod"}
_CELLS: Final = 32
"""Devices up to which a resource's bar has a cell for each."""
_BAR: Final = 1000
"""Width of a bar in its own units."""
_RESOURCES: Final = 6
"""Resources that are not folded away: those with problems, then the most held. One or two more are not worth
folding.
"""


class Heading(Struct, frozen=True):
    """A column's heading. `address` sorts by the column, then descending, then in the default order; "" for
    an unsortable column. `order` is ascending, descending, or "".
    """

    name: str
    label: str
    address: str
    order: str


class GroupHeader(Struct, frozen=True):
    """A group's heading: `kind` is device, pod or free; `name`, after `before`, with its page `address`; its
    owner `of`; and its rows counted in words.
    """

    key: str
    kind: str
    name: Text
    counts: str
    continued: bool
    address: str = ""
    before: Text | None = None
    of: str = ""


class ResourceRow(Struct, frozen=True):
    """One resource's counts; `bars` are (x, width, state). `known`: so are its free devices. `alarming`: a
    device is unhealthy, or all are gone.
    """

    key: str
    name: Text
    address: str
    counts: ResourceCounts
    known: bool
    alarming: bool
    bars: tuple[tuple[int, int, str], ...]
    selected: bool


class ResourceList(Struct, frozen=True):
    """Every resource: those in view, those folded away, and a summary of these."""

    first: tuple[ResourceRow, ...] = ()
    further: tuple[ResourceRow, ...] = ()
    summary: str = ""


class StatusPage(Struct, frozen=True):
    """What status.html shows. Rows are rendered of `sections`: a heading (None for ungrouped rows) and items.
    Addresses of other pages are "" where there are none. `containers` is None where no container has
    exclusive CPUs or pinned memory.
    """

    frame: Frame
    query: PageQuery
    triggers: str
    notes: tuple[str, ...]
    findings: FindingList
    resources: ResourceList
    options: dict[str, tuple[PageChoice, ...]]
    unfiltered: str
    headings: tuple[Heading, ...]
    summary: str
    page: int
    pages: int
    previous: str
    next: str
    sections: tuple[tuple[GroupHeader | None, tuple[RowItem, ...]], ...]
    nothing: str
    containers: tuple[Container, ...] | None
    containers_left_out: int


def status_page(moment: Moment, query: PageQuery, *, tag: str, triggers: tuple[str, ...]) -> StatusPage:
    """The page at `moment`, with placeholders for ages; `triggers` says in words what makes the exporter
    refresh.
    """
    state, snapshot = moment.state, moment.state.snapshot
    matcher = ItemMatcher.of(state, query.filters)
    items = matcher.devices(state.devices)
    kept = arranged(row_items(items, query.group, matcher), query.order, state)
    pages = max(1, -(-len(kept) // query.per_page))
    page = min(query.page, pages)
    shown = clusters(kept, query.group, (page - 1) * query.per_page, query.per_page)
    found = findings(state.anomalies, moment.now, seconds=False)
    banner = freshness_banner(moment, seconds=False)
    pinned = any(c.cpu_ids or c.memory for c in snapshot.containers)
    containers = matcher.containers(snapshot) if pinned else []
    return StatusPage(
        frame=Frame(moment, _title(moment, found), tag, "/", banner, seconds=False),
        query=query,
        triggers=", ".join(text(trigger, limit=120).shown for trigger in triggers) or "nothing",
        notes=tuple(text(note, limit=300).shown for note in state.notes),
        findings=found,
        resources=resources(state, query),
        options=_options(snapshot, query),
        unfiltered=address(query.unfiltered()),
        headings=tuple(_heading(name, label, column, query) for name, label, column in _COLUMNS),
        summary=_summary(state, query, found=len(items), rows=len(kept), shown=shown, page=page),
        page=page,
        pages=pages,
        previous=address(query.at_page(page - 1)) if page > 1 else "",
        next=address(query.at_page(page + 1)) if page < pages else "",
        sections=tuple((group_header(cluster, state), cluster.shown) for cluster in shown),
        nothing="" if shown else _nothing(state, query),
        containers=tuple(containers[:CONTAINERS]) if pinned else None,
        containers_left_out=max(0, len(containers) - CONTAINERS),
    )


def _title(moment: Moment, found: FindingList) -> str:
    mark = {
        Freshness.FRESH: f"({len(found)}) " if len(found) else "",
        Freshness.AGEING: "No answer: ",
        Freshness.STALE: "STALE: ",
        Freshness.UNKNOWN: "No mapping: ",
    }[moment.freshness]
    return f"{mark}{text(moment.node).shown} · devicelens"


def _summary(
    state: State, query: PageQuery, *, found: int, rows: int, shown: Sequence[Cluster], page: int
) -> str:
    """How many devices there are, and which rows this page has. Groups by pod have more rows than devices."""
    first, number = (page - 1) * query.per_page + 1, sum(len(cluster.shown) for cluster in shown)
    of = ""
    if state.taken_at is not None:
        known = _counted(one.device for one in state.devices)
        of = f"{found} of {known}" if query.filters.any else known
    span = "" if rows <= query.per_page else f"{first} to {first + number - 1} of "
    if span and query.group is RowGroup.POD:
        span = f"rows {span}{rows}: "
    return f"{span}{of}"


def _counted(devices: Iterable[Device]) -> str:
    """`15 devices`, `15 devices and 3 alternatives`: these are never added up."""
    alternatives = Counter(device.alternative for device in devices)
    more = f" and {counted(alternatives[True], 'alternative')}" if alternatives[True] else ""
    return f"{counted(alternatives[False], 'device')}{more}"


def _nothing(state: State, query: PageQuery) -> str:
    """Why there is no row."""
    if state.taken_at is None:
        return "This node's devices are unknown until the kubelet has answered."
    if state.devices:
        return "No device matches." if query.filters.any else ""
    if not state.snapshot.complete:
        return "No pod holds a device. This kubelet does not report free devices."
    return "No device plugin has registered with this node's kubelet, and no pod holds a device of one."


# --- the form and the headings --------------------------------------------------------------------------


def _options(snapshot: Snapshot, query: PageQuery) -> dict[str, tuple[PageChoice, ...]]:
    filters = query.filters
    asked = {name for container in snapshot.containers for name in container.devices}
    resources = {*snapshot.resources(), *asked}
    namespaces = {c.holder.namespace for c in snapshot.containers}
    return {
        "resource": _choices(resources, filters.resource),
        "namespace": _choices(namespaces, filters.namespace),
        "state": tuple(PageChoice(state, state, state is filters.state) for state in StateFilter),
        "group": tuple(
            PageChoice("" if group is RowGroup.NONE else group, label, group is query.group)
            for group, label in _GROUPS.items()
        ),
    }


def _choices(names: Iterable[str], selected: str) -> tuple[PageChoice, ...]:
    """The present names, and the selected one."""
    found = sorted({spelled(name) for name in names})[:_OPTIONS]
    if selected and selected not in found:
        found.append(selected)
    # A query refuses longer names; `q` finds them.
    return tuple(
        PageChoice(name, text(name).shown, name == selected) for name in found if len(name) <= TEXT_LIMIT
    )


def _heading(name: str, label: str, column: SortColumn | None, query: PageQuery) -> Heading:
    if column is None:
        return Heading(name, label, "", "")
    order = query.order
    if order.column is not column:
        return Heading(name, label, address(query.sorted_by(Sort(column))), "")
    if not order.descending:
        return Heading(name, label, address(query.sorted_by(Sort(column, descending=True))), "ascending")
    return Heading(name, label, address(query.sorted_by(None)), "descending")


# --- groups ---------------------------------------------------------------------------------------------


def group_header(cluster: Cluster, state: State) -> GroupHeader | None:
    """The heading of a group; None for ungrouped rows."""
    if not cluster.key:
        return None
    kind, *names = cluster.key
    key, counts = row_key("group", *cluster.key), _by_resource(cluster.every)
    if kind == "free":
        return GroupHeader(key, kind, Text("Held by no pod"), counts, cluster.continued)
    if kind == "pod":
        namespace, pod = names
        return GroupHeader(
            *(key, kind, text(pod), counts, cluster.continued, pod_link(namespace, pod)),
            before=text(namespace),
            of=workload(state.pods, cluster.every[0].holders[0]),
        )
    name = names[1]
    own = next((row for row in cluster.every if row.device.key.device == name), None)
    # The parent of shares has a page too, below its first share's resource.
    resource = (own or cluster.every[0]).resource
    states = Counter(device_state(row.status) for row in cluster.every)
    by_state = count_states(
        held=states["held"] + states[UNHEALTHY_HELD],
        held_unhealthy=states[UNHEALTHY_HELD],
        free=states["free"],
        unavailable=states["unhealthy"] + states[NOT_OFFERED] + states["reserved"],
        alternatives=states["alternative"],
    )
    return GroupHeader(
        *(key, kind, text(name), f"{counts}: {by_state}", cluster.continued),
        address=device_link(resource, name),
    )


def _by_resource(rows: Iterable[RowItem]) -> str:
    """`3 devices of nvidia.com/gpu, 1 of example.com/nic`"""
    numbers = Counter[str]()
    for row in rows:
        numbers[row.resource] += not row.device.alternative
    (name, number), *others = sorted(numbers.items())
    counts = [f"{counted(number, 'device')} of {text(name).shown}"]
    return listed([*counts, *(f"{number} of {text(name).shown}" for name, number in others)], limit=4)


# --- resources ------------------------------------------------------------------------------------------


def resources(state: State, query: PageQuery) -> ResourceList:
    """Every resource's row."""
    known = state.snapshot.knows_all
    gone = {anomaly.resource for anomaly in state.anomalies if anomaly.kind == "plugin_gone"}
    rows = [
        _resource_row(name, counts, known=known(name), gone=name in gone, query=query)
        for name, counts in state.resources().items()
    ]
    if len(rows) <= _RESOURCES + 2:
        return ResourceList(tuple(rows))
    wanted = sorted(rows, key=lambda row: (not row.selected, not row.alarming, -row.counts.allocated))[
        :_RESOURCES
    ]
    seen = {row.key for row in wanted}
    further = tuple(row for row in rows if row.key not in seen)
    alarming = sum(row.alarming for row in further)
    problems = f", {alarming} of them with problems" if alarming else ", without problems"
    known_all = all(row.known for row in further)
    return ResourceList(
        first=tuple(row for row in rows if row.key in seen),
        further=further,
        summary=f"{counted(len(further), 'more resource')}{problems if known_all else ''}",
    )


def _resource_row(
    name: str, counts: ResourceCounts, *, known: bool, gone: bool, query: PageQuery
) -> ResourceRow:
    """A resource's row; its link sets or removes the filter."""
    shown = spelled(name)
    selected = query.filters.resource == shown
    link = replace(query.filters, resource="" if selected else shown)
    return ResourceRow(
        key=row_key("resource", name),
        name=text(name),
        address=address(replace(query, filters=link, page=1)),
        counts=counts,
        known=known,
        alarming=known and (counts.unhealthy > 0 or gone),
        bars=bars(counts, known=known),
        selected=selected,
    )


def bars(counts: ResourceCounts, *, known: bool) -> tuple[tuple[int, int, str], ...]:
    """A bar of width 1000 as (x, width, state): held, unhealthy or unavailable, free; few devices have a cell
    each. `known`: free and unhealthy devices are known.
    """
    number = counts.known
    if number == 0:
        return ()
    unhealthy = counts.unhealthy + counts.reserved if known else 0
    parts = (("held", number - unhealthy - counts.free), ("unhealthy", unhealthy), ("free", counts.free))
    if number <= _CELLS:
        states = [state for state, count in parts for _ in range(count)]
        gap = 6 if number > 1 else 0
        edges = [_BAR * i // number for i in range(number + 1)]
        return tuple(
            (edges[i], edges[i + 1] - edges[i] - (gap if i < number - 1 else 0), state)
            for i, state in enumerate(states)
        )
    found: list[tuple[int, int, str]] = []
    x = done = 0
    for state, count in parts:
        done += count
        edge = _BAR * done // number
        if count:
            found.append((min(x, _BAR - 4), max(edge - x, 4), state))  # wide enough to see
        x = edge
    return tuple(found)
