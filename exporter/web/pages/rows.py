"""The status page's rows: devices, their order, and their groups. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct

from exporter.mapping.device_health import NOT_OFFERED, DeviceHealth, named
from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.model import Claimed, Device, DeviceKey, Holder, PodKey
from exporter.mapping.state import Moment, State
from exporter.views.claimed import perhaps_administration
from exporter.views.health import health
from exporter.views.matching import ItemMatcher
from exporter.views.query import RowGroup, Sort, SortColumn, device_link
from exporter.views.wording import Text, spelled, text
from exporter.web.pages.parts import (
    UNHEALTHY_HELD,
    HolderLine,
    device_order,
    device_state,
    holder_lines,
    natural,
    row_key,
)
from exporter.web.pages.times import day

HOLDERS: Final = 50
"""Holders in one device's row; its own page and the API have all."""
_ID_LENGTH: Final = 52
"""Characters of an id: a share of a GPU, by UUID, is one line."""
_ATTRIBUTES: Final = ("model", "product", "address", "pci_address", "interface", "path")
"""The plugin's attributes that a row shows; the device's page has all."""
_ATTRIBUTES_LENGTH: Final = 54
"""Characters of all attributes of a row."""
_CDI: Final = 50
"""CDI names, and capacities, in a row's details."""
_BY_RESOURCE: Final = Sort(SortColumn.RESOURCE)
_FREE: Final = ("free",)

SortKey = tuple[object, ...]
ClusterKey = tuple[str, ...]
"""() for ungrouped rows; ("device", domain, id), ("pod", namespace, name), or ("free",)."""


class RowItem(Struct, frozen=True):
    """The subject of one row: a device, with the holders of `pod` alone where given."""

    status: DeviceStatus
    pod: PodKey | None = None

    @property
    def device(self) -> Device:
        """The device."""
        return self.status.device

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The holders in this row."""
        holders = self.device.holders
        return holders if self.pod is None else tuple([one for one in holders if one[:2] == self.pod])

    def held(self) -> Iterator[Holding]:
        """The holdings in this row."""
        return (Holding(self.device.key, holder) for holder in self.holders)

    @property
    def resource(self) -> str:
        """The resource."""
        return self.device.key.resource


def row_items(items: Iterable[DeviceStatus], group: RowGroup, matcher: ItemMatcher) -> list[RowItem]:
    """A row for each item; grouped by pod, a row for each item and matching pod."""
    if group is not RowGroup.POD:
        return [RowItem(item) for item in items]
    return [RowItem(item, pod) for item in items for pod in _pods(item.device.holders, matcher)]


def _pods(holders: tuple[Holder, ...], matcher: ItemMatcher) -> Sequence[PodKey | None]:
    if not holders:
        return (None,)
    return list(dict.fromkeys((h.namespace, h.pod) for h in holders if matcher.holder(h)))


# --- order ----------------------------------------------------------------------------------------------


def arranged(items: Iterable[RowItem], sort: Sort, state: State) -> list[RowItem]:
    """`items` in the order of `sort`, equal ones by resource, with shares beside their device.

    Rows without a value to sort by (a free device's pod) come last in both directions.
    """
    found = sorted(items, key=_order)
    if sort == _BY_RESOURCE:
        return found
    key = _sort_keys(state)[sort.column]
    keyed = [(key(item), item) for item in found]
    some = [pair for pair in keyed if pair[0]]
    some.sort(key=lambda pair: pair[0], reverse=sort.descending)
    return [item for _, item in some] + [item for key, item in keyed if not key]


def _order(row: RowItem) -> tuple[str, str, str]:
    return device_order(row.device)


def _sort_keys(state: State) -> Mapping[SortColumn, Callable[[RowItem], SortKey]]:
    """The sort key of each column; () for a row without a value."""
    ranks = {UNHEALTHY_HELD: 0, "unhealthy": 1, NOT_OFFERED: 1, "held": 2}
    ranks |= {"reserved": 3, "free": 4, "alternative": 5}
    return {
        SortColumn.DEVICE: lambda row: (*_order(row)[1:], row.resource),
        SortColumn.RESOURCE: lambda row: (row.resource,),
        SortColumn.STATE: lambda row: (ranks[device_state(row.status)],),
        SortColumn.POD: _pod_key,
        SortColumn.SINCE: lambda row: _since_key(row, state.since),
        SortColumn.NUMA: lambda row: row.device.numa_nodes,
    }


def _pod_key(row: RowItem) -> SortKey:
    first = next(row.held(), None)
    if first is None:
        return ()
    return first.holder.namespace, natural(first.holder.pod), first.holder.container


def _since_key(row: RowItem, since: Mapping[Holding, HeldSince]) -> SortKey:
    known = map(since.get, row.held())
    first = min((one.at for one in known if one is not None), default=None)
    return () if first is None else (first,)


# --- groups ---------------------------------------------------------------------------------------------


class Cluster(Struct, frozen=True):
    """Rows of one group: `every` one, and those `shown` on this page; `continued` from the page before."""

    key: ClusterKey
    every: tuple[RowItem, ...]
    shown: tuple[RowItem, ...]
    continued: bool = False


def clusters(items: Sequence[RowItem], group: RowGroup, first: int, number: int) -> tuple[Cluster, ...]:
    """`number` rows from row `first` (from 0), in their groups. Groups are in the order of their first rows;
    free devices come last.
    """
    if group is RowGroup.NONE:
        shown = tuple(items[first : first + number])
        return (Cluster((), tuple(items), shown),) if shown else ()
    gathered: dict[ClusterKey, list[RowItem]] = {}
    for item in items:
        gathered.setdefault(_cluster_key(item, group), []).append(item)
    if _FREE in gathered:
        gathered[_FREE] = gathered.pop(_FREE)
    return tuple(_ungrouped_joined(_window(gathered, first, number)))


def _window(gathered: dict[ClusterKey, list[RowItem]], first: int, number: int) -> Iterator[Cluster]:
    begins = 0
    for key, found in gathered.items():
        shown = found[max(0, first - begins) : max(0, first + number - begins)]
        if shown:
            own = () if _is_single(key, found) else key
            yield Cluster(own, tuple(found), tuple(shown), continued=begins < first)
        begins += len(found)


def _is_single(key: ClusterKey, found: Sequence[RowItem]) -> bool:
    """Whether the group is one whole device, which needs no heading."""
    return key[0] == "device" and len(found) == 1 and not found[0].device.parent


def _ungrouped_joined(found: Iterable[Cluster]) -> Iterator[Cluster]:
    """Adjacent clusters without a key become one."""
    for key, same in groupby(found, key=lambda cluster: cluster.key):
        if key:
            yield from same
            continue
        shown = tuple(item for cluster in same for item in cluster.shown)
        yield Cluster((), shown, shown)


def _cluster_key(row: RowItem, group: RowGroup) -> ClusterKey:
    if group is RowGroup.POD:
        return ("pod", *row.pod) if row.pod is not None else _FREE
    # Shares and slices of one device may have several resources, but of one vendor.
    device = row.device
    return "device", device.key.resource.partition("/")[0], device.parent or device.key.device


# --- what a row shows -----------------------------------------------------------------------------------


class Row(Struct, frozen=True):
    """What one row shows. The id is `stem` and `tail` where it begins with its parent's or its pool's name,
    else `tail` alone; `whole` is the uncut id. `parent` is set only where the id does not contain it.

    `state` is held, free, alternative, reserved or unhealthy, `words` its text; `reason` and `ill` (unix
    time) say why and since when it is unhealthy, `note` what is not known. `device` is the key, `lines` are
    the holders, `more` the number of those left out. `mark` changes when the page's module highlights the
    row. `details` are what DRA says, None for a device of a plugin.
    """

    key: str
    mark: str
    address: str
    tail: str
    whole: str
    device: DeviceKey
    state: str
    words: str
    lines: tuple[HolderLine, ...]
    more: int
    stem: str = ""
    parent: Text | None = None
    attributes: tuple[Text, ...] = ()
    reason: Text | None = None
    ill: float | None = None
    note: str = ""
    numa_nodes: tuple[int, ...] = ()
    details: tuple[tuple[str, Text], ...] | None = None


def row_inputs(item: RowItem, moment: Moment) -> tuple[object, ...]:
    """Everything that the row of `item` depends on: rows with equal inputs are equal."""
    return item.status, health(item.device, moment.state), day(moment.now)


def row(item: RowItem, moment: Moment) -> Row:
    """The row of `item`."""
    device, found = item.device, health(item.device, moment.state)
    unhealthy = found.kind == "unhealthy"
    stem, tail, parent = _id(device)
    lines = holder_lines(device, item.holders)
    words = device_state(item.status)
    shown = "unhealthy" if unhealthy else words
    why = found.words if found.words == "its plugin does not answer" else found.reason
    return Row(
        key=row_key("device", *device.key, *(item.pod or ())),
        mark=_mark(shown, device.holders),
        address=device_link(*device.key),
        tail=tail.shown,
        whole=tail.whole,
        device=device.key,
        state=shown,
        words=_state_words(words, len(device.holders)),
        lines=tuple(lines[:HOLDERS]),
        more=max(0, len(lines) - HOLDERS),
        stem=stem,
        parent=parent,
        attributes=_attributes(item.status),
        reason=text(why, limit=120) if unhealthy and why else None,
        ill=found.since if unhealthy else None,
        note=_note(device, found),
        numa_nodes=device.numa_nodes,
        details=None if device.claimed is None else tuple(_details(device.claimed)),
    )


def _note(device: Device, found: DeviceHealth) -> str:
    """What is not known of a claimed device."""
    if device.claimed is None or not device.holders:
        return ""
    doubt = ["perhaps for administration"] if perhaps_administration(device) else []
    return "; ".join([*doubt, *([found.words] if found.kind == "unknown" else [])])


def _details(claimed: Claimed) -> Iterator[tuple[str, Text]]:
    """What DRA says about a device, and no other part of its row."""
    yield "driver", text(claimed.name.driver)
    yield "pool", text(claimed.name.pool)
    for name in claimed.cdi_devices[:_CDI]:
        yield "CDI", text(name, limit=120)
    published = claimed.published
    if published is None:
        return
    for name, value in published.capacity[:_CDI]:
        yield text(name, limit=40).shown, text(value, limit=40)
    for taint in published.taints:
        yield "taint", text(named([taint]).partition(" ")[2], limit=120)


def _mark(state: str, holders: tuple[Holder, ...]) -> str:
    return row_key(state, *(name for h in holders for name in (h.namespace, h.pod, h.container)))[:6]


def _state_words(state: str, holders: int) -> str:
    return f"held by {holders}" if state == "held" and holders > 1 else state


def _attributes(status: DeviceStatus) -> tuple[Text, ...]:
    identity, values = status.identity, list[str]()
    if status.plugin is not None:
        found = dict(status.plugin.device.attributes)
        values = [found[name] for name in _ATTRIBUTES if found.get(name)]
    elif status.device.claimed is not None and identity is not None:
        values = [one for one in (identity.model, identity.pci_address, identity.uuid) if one]
    kept: list[Text] = []
    left = _ATTRIBUTES_LENGTH
    for value in dict.fromkeys(values):
        shown = text(value, limit=40)
        left -= len(shown.shown) + 3
        if left < 0:
            break
        kept.append(shown)
    return tuple(kept)


def _id(device: Device) -> tuple[str, Text, Text | None]:
    """The id, split after its parent's or its pool's name, or the parent beside it."""
    parent, name = device.parent, device.key.device
    pool = "" if device.claimed is None else f"{device.claimed.name.pool}/"
    begin = parent if parent and name.startswith(parent) else pool if name.startswith(pool) else ""
    shown, stem = text(name, limit=_ID_LENGTH), spelled(begin)
    beside = text(parent, limit=_ID_LENGTH) if parent and begin != parent else None
    if stem and not shown.whole and shown.shown.startswith(stem) and shown.shown != stem:
        return stem, Text(shown.shown.removeprefix(stem), shown.shown if begin == parent else ""), beside
    return "", shown, text(parent, limit=_ID_LENGTH) if parent else None
