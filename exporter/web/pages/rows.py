"""The status page's rows: devices, and devices given through claims. Pure.

Which of the status page's rows stand together, and what of them is on one page. Pure.

In which order the status page's rows stand. Pure.

What a row is sorted by is a tuple that begins with whether there is anything to sort by: rows without (a
free device's pod) come last either way. Equal rows stay in the page's own order.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1
from itertools import groupby, islice
from typing import Final

from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    AdvertisedDevice,
    ClaimDevice,
    Device,
    DeviceKey,
    Holder,
    PluginReports,
    PodKey,
    Snapshot,
)
from exporter.mapping.state import State
from exporter.views.links import claim_link, device_link, pod_link
from exporter.views.matching import Match
from exporter.views.query import Column, Group, Sort
from exporter.views.wording import Text, ranges, spelled, text
from exporter.web.pages.periods import When, day, later

_NUMBER: Final = re.compile(r"([0-9]+)(?![0-9A-Za-z])")
_REMEMBERED_LENGTH: Final = 64
"""Characters of a name whose sort key is remembered: at most 4 KiB each, 1 KiB as ids usually are."""

_BY_RESOURCE: Final = Sort(Column.RESOURCE)

Natural = tuple[tuple[int, str], ...]
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one row is about: a device or a claimed one, and of its holders `pod` alone, where it is given."""

    item: Device | ClaimDevice
    pod: PodKey | None = None

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Who holds it, as far as the row tells."""
        item = self.item
        every = item.holders if isinstance(item, Device) else tuple(t.holder for t in item.holders)
        if self.pod is None:
            return every
        return tuple(h for h in every if (h.namespace, h.pod) == self.pod)

    def holdings(self) -> Iterator[Holding]:
        """What of it is held by whom, one for each of `holders`."""
        item = self.item
        if isinstance(item, Device):
            return (Holding(item.key, holder) for holder in self.holders)
        return (
            Holding(item.held(t), t.holder)
            for t in item.holders
            if self.pod is None or t.holder[:2] == self.pod
        )


def arranged(entries: Iterable[Entry], sort: Sort, state: State) -> list[Entry]:
    """`entries` as `sort` wants them, else by resource, shares beside their device, dev-2 before dev-10."""
    found = sorted(entries, key=order)
    if sort == _BY_RESOURCE:
        return found
    key = _keys(state)[sort.column]
    keyed = [(key(entry), entry) for entry in found]
    some = [pair for pair in keyed if pair[0]]
    some.sort(key=lambda pair: pair[0], reverse=sort.descending)
    return [entry for _, entry in some] + [entry for key, entry in keyed if not key]


def order(entry: Entry) -> tuple[str, Natural, Natural]:
    """The page's own order."""
    item = entry.item
    if isinstance(item, Device):
        return item.key.resource, natural(item.parent or item.key.device), natural(item.key.device)
    key = item.key
    return key.driver, natural(f"{key.pool}/{key.device}"), natural(key.share_id)


def _keys(state: State) -> Mapping[Column, Callable[[Entry], Key]]:
    """What a row is sorted by; () where there is nothing."""
    return {
        Column.DEVICE: _device,
        Column.RESOURCE: lambda entry: (order(entry)[0],),
        Column.STATE: lambda entry: (_state(entry, state.snapshot),),
        Column.POD: _pod,
        Column.SINCE: lambda entry: _since(entry, state.since),
        Column.NUMA: lambda entry: entry.item.numa_nodes if isinstance(entry.item, Device) else (),
    }


def _device(entry: Entry) -> Key:
    resource, parent, name = order(entry)
    return parent, name, resource


def _state(entry: Entry, snapshot: Snapshot) -> int:
    """What wants looking after first: unhealthy under a pod, unhealthy, held, free."""
    item = entry.item
    if isinstance(item, Device) and snapshot.complete and not item.allocatable:
        return 0 if item.holders else 1
    return 2 if item.holders else 3


def _pod(entry: Entry) -> Key:
    holders = entry.holders
    if not holders:
        return ()
    first = holders[0]
    return first.namespace, natural(first.pod), first.container


def _since(entry: Entry, since: Mapping[Holding, HeldSince]) -> Key:
    """The first of its holders that is still there."""
    known = map(since.get, entry.holdings())
    first = min((one.at for one in known if one is not None), default=None)
    return () if first is None else (first,)


def natural(name: str) -> Natural:
    """Numbers by value, the rest by letters. Digits before a letter count as letters, for they may be part of
    a hexadecimal number; so do more than 18 of them.
    """
    return _remembered(name) if len(name) <= _REMEMBERED_LENGTH else _split(name[:512])


def _split(name: str) -> Natural:
    return tuple(
        (int(part), part) if part.isascii() and part.isdigit() and len(part) <= 18 else (-1, part)
        for part in _NUMBER.split(name)
    )


_remembered = lru_cache(maxsize=16_384)(_split)


_ID_LIMIT: Final = 52
"""Characters of an id that are shown: a share of a GPU, by UUID, is one line."""
UNHEALTHY_HELD: Final = "unhealthy, held"
"""What a device is called that is not allocatable while a pod holds it."""
HOLDERS_LIMIT: Final = 50
"""Holders shown of one device; its own page and the API have all."""
_ATTRIBUTES: Final = ("model", "product", "address", "pci_address", "interface", "path")
"""What of a plugin's attributes tells a person which device it is; its own page has all."""
_ATTRIBUTES_LENGTH: Final = 54
"""Characters of all attributes together: about those of an id above them."""


@dataclass(frozen=True, slots=True)
class HolderLine:
    """One holder of a device, with its pod's page.

    `workload` is what the pod belongs to, None where that is not known or nothing but the pod; `claim` is
    the claim through which it holds the device, None for a device plugin's.
    """

    key: str
    namespace: Text
    pod: Text
    container: Text
    address: str
    since: When | None
    workload: Text | None
    claim: Text | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One device, and its page. Its id is `stem` and `tail`, where it begins with its parent's or its pool's
    name, else `tail` alone.

    `parent` is only there where the id does not show it. `share` is the share of a claimed device, `cdi` are
    its CDI devices. `state` is one of held, free, unhealthy; `words` say it, `reason` says why it is
    unhealthy and `ill` since when, where that is known. `mark` changes with what a person is to notice.
    """

    key: str
    mark: str
    claimed: bool
    address: str
    stem: str
    tail: str
    whole: str
    parent: Text | None
    share: Text | None
    attributes: tuple[Text, ...]
    cdi: tuple[Text, ...]
    resource: Text
    state: str
    words: str
    reason: Text | None
    ill: When | None
    numa: str
    holders: tuple[HolderLine, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Scene:
    """What rows are made from: the state, unix time, and since when the unhealthy ones are known to be."""

    state: State
    now: float
    ill: Mapping[DeviceKey, float | None]


def scene(state: State, now: float) -> Scene:
    """`state` as it is seen at unix time `now`."""
    ill = (a for a in state.anomalies if a.kind == "unhealthy_held")
    return Scene(state, now, {DeviceKey(a.resource, a.device): a.since for a in ill})


def inputs(entry: Entry, scene: Scene) -> tuple[object, ...]:
    """All that the row of `entry` depends on: where they are equal, so are the rows."""
    state, item = scene.state, entry.item
    known = tuple(state.pods.get((h.namespace, h.pod)) for h in entry.holders[:HOLDERS_LIMIT])
    since = tuple(map(state.since.get, islice(entry.holdings(), HOLDERS_LIMIT)))
    if isinstance(item, ClaimDevice):
        return item, known, since, day(scene.now)
    advertised = state.advertised
    word = advertised.resources.get(item.key.resource)
    told = advertised.devices.get(item.key)
    answers = None if word is None else (word.report.answers, word.resource.served)
    return item, known, since, told, answers, state.snapshot.complete, scene.ill.get(item.key), day(scene.now)


def row(entry: Entry, scene: Scene) -> Row:
    """The row of `entry`, with places for its ages (exporter.web.pages.periods)."""
    if isinstance(entry.item, ClaimDevice):
        return _claimed(entry, entry.item, scene)
    return _plugged(entry, entry.item, scene)


def _plugged(entry: Entry, device: Device, scene: Scene) -> Row:
    state = scene.state
    told = state.advertised.devices.get(device.key)
    healthy = device.allocatable or not state.snapshot.complete
    stem, tail, parent = _id(device)
    holders = entry.holders
    shown = ("held" if device.holders else "free") if healthy else "unhealthy"
    return Row(
        key=row_key("device", *device.key, *(entry.pod or ())),
        mark=_mark(shown, device.holders),
        claimed=False,
        address=device_link(*device.key),
        stem=stem,
        tail=tail.shown,
        whole=tail.whole,
        parent=parent,
        share=None,
        attributes=_attributes(told),
        cdi=(),
        resource=text(device.key.resource, limit=_ID_LIMIT),
        state=shown,
        words=_words(device.holders, healthy=healthy),
        reason=None if healthy else _reason(device, state.advertised),
        ill=None if healthy else _ill(device, told, scene),
        numa=ranges(device.numa_nodes),
        holders=tuple(_holder_line(device, h, scene) for h in holders[:HOLDERS_LIMIT]),
        more=max(0, len(holders) - HOLDERS_LIMIT),
    )


def _claimed(entry: Entry, device: ClaimDevice, scene: Scene) -> Row:
    key, wanted = device.key, set(entry.holders)
    through = [one for one in device.holders if one.holder in wanted]
    name = text(f"{key.pool}/{key.device}", limit=_ID_LIMIT)
    stem = f"{spelled(key.pool)}/"
    split = not name.whole and name.shown.startswith(stem)
    holders = tuple(one.holder for one in device.holders)
    return Row(
        key=row_key("claim", *key, *(entry.pod or ())),
        mark=_mark("held", holders),
        claimed=True,
        address=claim_link(key.driver, key.pool, key.device),
        stem=stem if split else "",
        tail=name.shown.removeprefix(stem) if split else name.shown,
        whole=name.whole,
        parent=None,
        share=text(key.share_id) if key.share_id else None,
        attributes=(),
        cdi=tuple(text(cdi, limit=120) for cdi in device.cdi_devices[:HOLDERS_LIMIT]),
        resource=text(key.driver, limit=_ID_LIMIT),
        state="held" if holders else "free",
        words=_words(holders, healthy=True),
        reason=None,
        ill=None,
        numa="",
        holders=tuple(
            HolderLine(
                key=row_key(one.claim_namespace, one.claim, *one.holder),
                namespace=text(one.holder.namespace),
                pod=text(one.holder.pod),
                container=text(one.holder.container),
                address=pod_link(one.holder.namespace, one.holder.pod),
                since=_held_since(Holding(device.held(one), one.holder), scene),
                workload=workload(scene.state.pods, one.holder),
                claim=text(_claim_name(one.claim_namespace, one.claim, one.holder)),
            )
            for one in through[:HOLDERS_LIMIT]
        ),
        more=max(0, len(through) - HOLDERS_LIMIT),
    )


def _claim_name(namespace: str, claim: str, holder: Holder) -> str:
    """A claim is in its pod's namespace; should it not be, that is told."""
    return claim if namespace == holder.namespace else f"{namespace}/{claim}"


def _mark(state: str, holders: tuple[Holder, ...]) -> str:
    return row_key(state, *(name for h in holders for name in (h.namespace, h.pod, h.container)))[:6]


def _words(holders: tuple[Holder, ...], *, healthy: bool) -> str:
    if not healthy:
        return UNHEALTHY_HELD if holders else "unhealthy"
    if not holders:
        return "free"
    return "held" if len(holders) == 1 else f"held by {len(holders)}"


def _reason(device: Device, advertised: PluginReports) -> Text | None:
    """Why it is unhealthy, by its plugin; None where that tells nothing."""
    told, word = advertised.devices.get(device.key), advertised.resources.get(device.key.resource)
    if told is None or word is None:
        return None
    if not word.report.answers:
        return Text("its plugin does not answer")
    if not told.healthy:
        return text(told.reason, limit=120) if told.reason else None
    return Text(
        "its plugin calls it healthy" if word.resource.served else "the kubelet does not follow its plugin"
    )


def _ill(device: Device, told: AdvertisedDevice | None, scene: Scene) -> When | None:
    """Since when it is unhealthy: by its plugin, else since it was seen so under its holder."""
    since = told.since if told is not None and not told.healthy else scene.ill.get(device.key)
    return None if since is None else later(since, scene.now)


def _attributes(told: AdvertisedDevice | None) -> tuple[Text, ...]:
    if told is None:
        return ()
    found = dict(told.attributes)
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
    """The id with what it shares with its parent set apart, or the parent beside it."""
    raw, parent = device.key.device, device.parent
    shown = text(raw, limit=_ID_LIMIT)
    if not parent:
        return "", shown, None
    stem = spelled(parent)
    if not shown.whole and shown.shown.startswith(stem) and shown.shown != stem:
        return stem, Text(shown.shown.removeprefix(stem), shown.shown), None
    return "", shown, text(parent, limit=_ID_LIMIT)


def _holder_line(device: Device, holder: Holder, scene: Scene) -> HolderLine:
    return HolderLine(
        key=row_key(*holder),
        namespace=text(holder.namespace),
        pod=text(holder.pod),
        container=text(holder.container),
        address=pod_link(holder.namespace, holder.pod),
        since=_held_since(Holding(device.key, holder), scene),
        workload=workload(scene.state.pods, holder),
    )


def _held_since(holding: Holding, scene: Scene) -> When | None:
    since = scene.state.since.get(holding)
    return None if since is None else later(since.at, scene.now, exact=since.exact)


def workload(pods: Mapping[tuple[str, str], PodIdentity], holder: Holder) -> Text | None:
    """What the holder's pod belongs to: `Deployment llama`; None where that is not known, or nothing."""
    identity = pods.get((holder.namespace, holder.pod))
    if identity is None or identity.workload.kind in {"", "Pod"}:
        return None
    return text(f"{identity.workload.kind} {identity.workload.name}")


def row_key(*parts: str) -> str:
    """A short name for a row by which the page's module finds it again."""
    joined = "\0".join(parts).encode(errors="surrogatepass")
    return sha1(joined, usedforsecurity=False).hexdigest()[:12]


_FREE: Final = ("free",)

ClusterKey = tuple[str, ...]
"""() for rows of no group; ("device", domain, id), ("pod", namespace, name), or ("free",)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Rows that stand together: `every` one of them, `shown` those on this page; `continued` where the page
    before ends with some of them.
    """

    key: ClusterKey
    every: tuple[Entry, ...]
    shown: tuple[Entry, ...]
    continued: bool = False


def entries(items: Iterable[Device | ClaimDevice], group: Group, match: Match) -> list[Entry]:
    """A row for each of `items`; by pod, one for each of its pods that `match` names."""
    if group is not Group.POD:
        return [Entry(item) for item in items]
    return [Entry(item, pod) for item in items for pod in _pods(item, match)]


def _pods(item: Device | ClaimDevice, match: Match) -> Sequence[PodKey | None]:
    holders = Entry(item).holders
    if not holders:
        return (None,)
    return list(dict.fromkeys((h.namespace, h.pod) for h in holders if match.named(h)))


def clusters(arranged: Sequence[Entry], group: Group, first: int, number: int) -> tuple[Cluster, ...]:
    """`number` rows of `arranged` from row `first` on (from 0), in the groups that they belong to.

    Groups stand in the order of their first rows; what nobody holds comes last.
    """
    if group is Group.NONE:
        shown = tuple(arranged[first : first + number])
        return (Cluster((), tuple(arranged), shown),) if shown else ()
    gathered: dict[ClusterKey, list[Entry]] = {}
    for entry in arranged:
        gathered.setdefault(_key(entry, group), []).append(entry)
    if _FREE in gathered:
        gathered[_FREE] = gathered.pop(_FREE)
    return tuple(_alone_together(_window(gathered, first, number)))


def _window(gathered: dict[ClusterKey, list[Entry]], first: int, number: int) -> Iterator[Cluster]:
    begins = 0
    for key, found in gathered.items():
        shown = found[max(0, first - begins) : max(0, first + number - begins)]
        if shown:
            own = () if _alone(key, found) else key
            yield Cluster(own, tuple(found), tuple(shown), continued=begins < first)
        begins += len(found)


def _alone(key: ClusterKey, found: Sequence[Entry]) -> bool:
    """Whether this is a whole device and nothing of it is shared: no heading tells more than its row."""
    item = found[0].item
    if key[0] != "device" or len(found) > 1:
        return False
    return not item.key.share_id if isinstance(item, ClaimDevice) else not item.parent


def _alone_together(found: Iterable[Cluster]) -> Iterator[Cluster]:
    """Neighbours of no group are one cluster."""
    for key, same in groupby(found, key=lambda cluster: cluster.key):
        if key:
            yield from same
            continue
        shown = tuple(entry for cluster in same for entry in cluster.shown)
        yield Cluster((), shown, shown)


def _key(entry: Entry, group: Group) -> ClusterKey:
    item = entry.item
    if group is Group.POD:
        return ("pod", *entry.pod) if entry.pod is not None else _FREE
    if isinstance(item, Device):
        # Shares and slices of one device may be of several resources; ids of another vendor are others.
        return "device", item.key.resource.partition("/")[0], item.parent or item.key.device
    return "device", item.key.driver, f"{item.key.pool}/{item.key.device}"
