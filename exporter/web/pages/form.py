"""The status page's form and its columns: what can be asked for, and what is. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exporter.core.model import Snapshot
from exporter.web.query import TEXT_LIMIT, Column, DeviceState, Group, PageQuery, Sort, address
from exporter.web.words import spelled, text

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
