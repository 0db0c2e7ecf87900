"""The status page's rows: devices and claimed devices, their order, and their groups. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Final

from msgspec import Struct

from exporter.mapping.device_health import NOT_OFFERED
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.model import AdvertisedDevice, ClaimDevice, Device, Holder, PodKey
from exporter.mapping.state import Moment, State
from exporter.views.health import health
from exporter.views.matching import ItemMatcher
from exporter.views.query import RowGroup, Sort, SortColumn, claim_link, device_link
from exporter.views.wording import Text, spelled, text
from exporter.web.pages.parts import (
    UNHEALTHY_HELD,
    device_order,
    device_state,
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
_BY_RESOURCE: Final = Sort(SortColumn.RESOURCE)
_FREE: Final = ("free",)

SortKey = tuple[object, ...]
ClusterKey = tuple[str, ...]
"""() for ungrouped rows; ("device", domain, id), ("pod", namespace, name), or ("free",)."""


class RowItem(Struct, frozen=True):
    """The subject of one row: a device or a claimed device, with the holders of `pod` alone where given."""

    item: Device | ClaimDevice
    pod: PodKey | None = None

    def held(self) -> Iterator[Holding]:
        """The holdings in this row."""
        item = self.item
        if isinstance(item, Device):
            every = (Holding(item.key, holder) for holder in item.holders)
        else:
            every = (Holding(item.held(through), through.holder) for through in item.holders)
        return (one for one in every if self.pod is None or one.holder[:2] == self.pod)

    @property
    def holders(self) -> tuple[Holder, ...]:
        """The holders in this row."""
        return tuple(holding.holder for holding in self.held())

    @property
    def resource(self) -> str:
        """The resource, or the driver of a claimed device."""
        return self.item.key[0]

    def state(self, *, complete: bool) -> str:
        """held, free, unhealthy, UNHEALTHY_HELD, or NOT_OFFERED; `complete` as in Snapshot."""
        item = self.item
        if isinstance(item, Device):
            return device_state(item, complete=complete)
        return "held" if item.holders else "free"


def row_items(items: Iterable[Device | ClaimDevice], group: RowGroup, matcher: ItemMatcher) -> list[RowItem]:
    """A row for each item; grouped by pod, a row for each item and matching pod."""
    if group is not RowGroup.POD:
        return [RowItem(item) for item in items]
    return [RowItem(item, pod) for item in items for pod in _pods(RowItem(item).holders, matcher)]


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
    item = row.item
    if isinstance(item, Device):
        return device_order(item)
    key = item.key
    return key.driver, natural(f"{key.pool}/{key.device}"), natural(key.share_id)


def _sort_keys(state: State) -> Mapping[SortColumn, Callable[[RowItem], SortKey]]:
    """The sort key of each column; () for a row without a value."""
    complete = state.snapshot.complete
    ranks = {UNHEALTHY_HELD: 0, "unhealthy": 1, NOT_OFFERED: 1, "held": 2, "free": 3}
    return {
        SortColumn.DEVICE: lambda row: (*_order(row)[1:], row.resource),
        SortColumn.RESOURCE: lambda row: (row.resource,),
        SortColumn.STATE: lambda row: (ranks[row.state(complete=complete)],),
        SortColumn.POD: _pod_key,
        SortColumn.SINCE: lambda row: _since_key(row, state.since),
        SortColumn.NUMA: lambda row: row.item.numa_nodes if isinstance(row.item, Device) else (),
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
    item = found[0].item
    if key[0] != "device" or len(found) > 1:
        return False
    return not item.key.share_id if isinstance(item, ClaimDevice) else not item.parent


def _ungrouped_joined(found: Iterable[Cluster]) -> Iterator[Cluster]:
    """Adjacent clusters without a key become one."""
    for key, same in groupby(found, key=lambda cluster: cluster.key):
        if key:
            yield from same
            continue
        shown = tuple(item for cluster in same for item in cluster.shown)
        yield Cluster((), shown, shown)


def _cluster_key(row: RowItem, group: RowGroup) -> ClusterKey:
    item = row.item
    if group is RowGroup.POD:
        return ("pod", *row.pod) if row.pod is not None else _FREE
    if isinstance(item, Device):
        # Shares and slices of one device may have several resources, but of one vendor.
        return "device", item.key.resource.partition("/")[0], item.parent or item.key.device
    return "device", item.key.driver, f"{item.key.pool}/{item.key.device}"


# --- what a row shows -----------------------------------------------------------------------------------


class Row(Struct, frozen=True):
    """What one row shows. The id is `stem` and `tail` where it begins with its parent's or its pool's name,
    else `tail` alone; `whole` is the uncut id. `parent` is set only where the id does not contain it.

    `state` is held, free or unhealthy, `words` its text; `reason` and `ill` (unix time) say why and since
    when it is unhealthy. `mark` changes when the page's module highlights the row. `claim` is the claimed
    device.
    """

    key: str
    mark: str
    address: str
    tail: str
    whole: str
    resource: str
    state: str
    words: str
    holdings: tuple[Holding, ...]
    more: int
    stem: str = ""
    parent: Text | None = None
    attributes: tuple[Text, ...] = ()
    reason: Text | None = None
    ill: float | None = None
    numa_nodes: tuple[int, ...] = ()
    claim: ClaimDevice | None = None


def row_inputs(item: RowItem, moment: Moment) -> tuple[object, ...]:
    """Everything that the row of `item` depends on: rows with equal inputs are equal."""
    state, device = moment.state, item.item
    holdings = tuple(islice(item.held(), HOLDERS))
    known = tuple(state.pods.get((one.holder.namespace, one.holder.pod)) for one in holdings)
    since = tuple(map(state.since.get, holdings))
    doubts = tuple(state.snapshot.doubt(one.holder) for one in holdings)
    if isinstance(device, ClaimDevice):
        return device, known, since, doubts, day(moment.now)
    reported = state.advertised.devices.get(device.key)
    chosen = state.choices.get(device.key)
    return device, known, since, doubts, chosen, reported, health(device, state), day(moment.now)


def row(item: RowItem, moment: Moment) -> Row:
    """The row of `item`."""
    if isinstance(item.item, ClaimDevice):
        return _claim_row(item, item.item)
    return _device_row(item, item.item, moment)


def _device_row(item: RowItem, device: Device, moment: Moment) -> Row:
    found = health(device, moment.state)
    unhealthy = found.kind == "unhealthy"
    stem, tail, parent = _id(device)
    holdings = tuple(item.held())
    words = item.state(complete=moment.state.snapshot.complete)
    shown = "unhealthy" if unhealthy else words
    why = found.words if found.words == "its plugin does not answer" else found.reason
    return Row(
        key=row_key("device", *device.key, *(item.pod or ())),
        mark=_mark(shown, device.holders),
        address=device_link(*device.key),
        tail=tail.shown,
        whole=tail.whole,
        resource=device.key.resource,
        state=shown,
        words=_state_words(words, len(device.holders)),
        holdings=holdings[:HOLDERS],
        more=max(0, len(holdings) - HOLDERS),
        stem=stem,
        parent=parent,
        attributes=_attributes(moment.state.advertised.devices.get(device.key)),
        reason=text(why, limit=120) if unhealthy and why else None,
        ill=found.since if unhealthy else None,
        numa_nodes=device.numa_nodes,
    )


def _claim_row(item: RowItem, device: ClaimDevice) -> Row:
    key, holdings = device.key, tuple(item.held())
    name = text(f"{key.pool}/{key.device}", limit=_ID_LENGTH)
    stem = f"{spelled(key.pool)}/"
    split = not name.whole and name.shown.startswith(stem)
    holders = tuple(one.holder for one in device.holders)
    words = item.state(complete=True)
    return Row(
        key=row_key("claim", *key, *(item.pod or ())),
        mark=_mark("held", holders),
        address=claim_link(key.driver, key.pool, key.device),
        tail=name.shown.removeprefix(stem) if split else name.shown,
        whole=name.whole,
        resource=key.driver,
        state=words,
        words=_state_words(words, len(holders)),
        holdings=holdings[:HOLDERS],
        more=max(0, len(holdings) - HOLDERS),
        stem=stem if split else "",
        claim=device,
    )


def _mark(state: str, holders: tuple[Holder, ...]) -> str:
    return row_key(state, *(name for h in holders for name in (h.namespace, h.pod, h.container)))[:6]


def _state_words(state: str, holders: int) -> str:
    return f"held by {holders}" if state == "held" and holders > 1 else state


def _attributes(reported: AdvertisedDevice | None) -> tuple[Text, ...]:
    if reported is None:
        return ()
    found = dict(reported.attributes)
    kept: list[Text] = []
    left = _ATTRIBUTES_LENGTH
    for value in dict.fromkeys(found[name] for name in _ATTRIBUTES if found.get(name)):
        shown = text(value, limit=40)
        left -= len(shown.shown) + 3
        if left < 0:
            break
        kept.append(shown)
    return tuple(kept)


def _id(device: Device) -> tuple[str, Text, Text | None]:
    """The id, split after its parent's name, or the parent beside it."""
    parent = device.parent
    shown = text(device.key.device, limit=_ID_LENGTH)
    if not parent:
        return "", shown, None
    stem = spelled(parent)
    if not shown.whole and shown.shown.startswith(stem) and shown.shown != stem:
        return stem, Text(shown.shown.removeprefix(stem), shown.shown), None
    return "", shown, text(parent, limit=_ID_LENGTH)
