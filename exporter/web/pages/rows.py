"""The status page's rows: devices, and devices given through claims. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha1
from itertools import islice
from typing import Final

from exporter.core.advertised import Advertised, AdvertisedDevice
from exporter.core.diff import Holding
from exporter.core.identity import Identity
from exporter.core.model import ClaimDevice, Device, DeviceKey, Holder
from exporter.core.state import State
from exporter.web.links import claim_link, device_link, pod_link
from exporter.web.pages.sorting import Entry
from exporter.web.pages.whens import When, day, later
from exporter.web.words import Text, ranges, spelled, text

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
    answers = None if word is None else (word.telling.answers, word.resource.served)
    return item, known, since, told, answers, state.snapshot.complete, scene.ill.get(item.key), day(scene.now)


def row(entry: Entry, scene: Scene) -> Row:
    """The row of `entry`, with places for its ages (exporter.web.pages.whens)."""
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


def _reason(device: Device, advertised: Advertised) -> Text | None:
    """Why it is unhealthy, by its plugin; None where that tells nothing."""
    told, word = advertised.devices.get(device.key), advertised.resources.get(device.key.resource)
    if told is None or word is None:
        return None
    if not word.telling.answers:
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


def workload(pods: Mapping[tuple[str, str], Identity], holder: Holder) -> Text | None:
    """What the holder's pod belongs to: `Deployment llama`; None where that is not known, or nothing."""
    identity = pods.get((holder.namespace, holder.pod))
    if identity is None or identity.workload.kind in {"", "Pod"}:
        return None
    return text(f"{identity.workload.kind} {identity.workload.name}")


def row_key(*parts: str) -> str:
    """A short name for a row by which the page's module finds it again."""
    joined = "\0".join(parts).encode(errors="surrogatepass")
    return sha1(joined, usedforsecurity=False).hexdigest()[:12]
