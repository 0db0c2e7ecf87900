"""One device explained: which one is meant, and everything that is known of it. explain_words tells it.

What is known of a device in plain sentences: what it is, who has it, who says so, and how fresh it is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from exporter.mapping.anomalies import Anomaly, listed, pods_of
from exporter.mapping.device_ids import DeviceKind, IdReader, IdReading
from exporter.mapping.holdings import Holding
from exporter.mapping.model import (
    AdvertisedDevice,
    ClaimDevice,
    Device,
    DeviceKey,
    Holder,
    ResourceReport,
    Snapshot,
)
from exporter.mapping.state import Freshness, State
from runtime.text import utc, visible

_NEAREST: Final = 5
_COMPARED: Final = 4096
"""Ids that one that is not known is compared with."""
_LENGTH: Final = 256
"""Characters of an id that are compared, and shown."""


class Subject(StrEnum):
    """What an id was found to be."""

    DEVICE = "device"
    """A device of a device plugin."""
    PARENT = "parent"
    """What is behind shares or parts, and no device that the kubelet knows by itself."""
    CLAIMED = "claimed"
    """A device given through ResourceClaims (DRA)."""


class UnknownDevice(Exception):  # noqa: N818 -- an answer, not a failure
    """There is no such device. `nearest` are the ones whose ids are most like it."""

    def __init__(self, message: str, nearest: tuple[DeviceKey, ...]) -> None:
        super().__init__(message)
        self.nearest = nearest


class AmbiguousDevice(ValueError):  # noqa: N818 -- a wrong use
    """Several devices may be meant: `devices`, or more than them."""

    def __init__(self, message: str, devices: tuple[DeviceKey, ...]) -> None:
        super().__init__(message)
        self.devices = devices


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything known of what an id names.

    `key` is the device's (`resource` "" for what is none of a device plugin's). `device` is its place in the
    snapshot, None unless it is a DEVICE. `reading` tells how its id was read, `parent_reading` its parent's
    (None without one). `siblings` are the other devices of its parent, `parts` the devices whose parent it
    is itself, `elsewhere` the other resources that have a device of this id, `claimed` the claimed devices of
    this name. `told` is its plugin's word on it, `word` on its resource. `numa_by_plugin`: where it is only
    its plugin tells.
    """

    subject: Subject
    key: DeviceKey
    reading: IdReading
    parent_reading: IdReading | None = None
    device: Device | None = None
    siblings: tuple[Device, ...] = ()
    parts: tuple[Device, ...] = ()
    elsewhere: tuple[str, ...] = ()
    claimed: tuple[ClaimDevice, ...] = ()
    told: AdvertisedDevice | None = None
    word: ResourceReport | None = None
    numa_by_plugin: bool = False
    anomalies: tuple[Anomaly, ...] = ()

    @property
    def parent(self) -> str:
        """The device behind it, by its id or by its plugin; "" for a whole one."""
        return self.reading.parent if self.device is None else self.device.parent


def explain(state: State, device: str, resource: str = "", *, reader: IdReader) -> Findings:
    """What is known of the device whose id is `device`, as it is or as it is shown, or has it as a part if
    only one does, or only those into which one device is divided. `resource` is a whole name, or what
    follows its slash.

    Raises UnknownDevice and AmbiguousDevice.
    """
    snapshot = state.snapshot
    names = _resources(snapshot, resource)
    if names is not None and not names:
        raise _no_resource(resource, snapshot)
    known = [found for found in snapshot.devices if names is None or found.key.resource in names]
    claimed = tuple(c for c in snapshot.claims if _same(c.key.device, device)) if names is None else ()
    exact = [found for found in known if _same(found.key.device, device)]
    if len({found.key for found in exact}) > 1:
        raise _ambiguous(device, exact, "is an id in several resources")
    if exact:
        return _device(exact[0], state, reader, claimed)
    parts = tuple(found for found in known if found.parent and _same(found.parent, device))
    if parts:
        return _parent(parts, state, reader)
    if claimed:
        key = DeviceKey("", claimed[0].key.device)
        return Findings(Subject.CLAIMED, key, reader(key.device), claimed=claimed)
    like = [found for found in known if device and device.casefold() in found.key.device.casefold()]
    if len(like) > 1:
        behind = {found.parent for found in like}
        if len(behind) == 1 and device.casefold() in like[0].parent.casefold():
            return _parent(tuple(found for found in known if found.parent in behind), state, reader)
        raise _ambiguous(device, like, f"is part of {len(like)} ids")
    if like:
        return _device(like[0], state, reader, ())
    raise _unknown(device, resource, known, state, reader)


def _same(raw: str, asked: str) -> bool:
    return raw == asked or visible(raw, limit=8192) == asked


def _resources(snapshot: Snapshot, asked: str) -> frozenset[str] | None:
    """The resources that may be meant; None for all."""
    if not asked:
        return None
    known = snapshot.resources()
    whole = frozenset(name for name in known if _same(name, asked))
    return whole or frozenset(name for name in known if _same(name.rpartition("/")[2], asked))


def _device(device: Device, state: State, reader: IdReader, claimed: tuple[ClaimDevice, ...]) -> Findings:
    snapshot, key = state.snapshot, device.key
    siblings = _others(snapshot, lambda d: bool(device.parent) and d.parent == device.parent and d.key != key)
    return Findings(
        subject=Subject.DEVICE,
        key=key,
        reading=reader(key.device, key.resource),
        parent_reading=reader(device.parent, key.resource) if device.parent else None,
        device=device,
        siblings=siblings,
        parts=_others(snapshot, lambda d: d.parent == key.device),
        elsewhere=tuple(
            d.key.resource
            for d in snapshot.devices
            if d.key.device == key.device and d.key.resource != key.resource
        ),
        claimed=claimed,
        told=state.advertised.devices.get(key),
        word=state.advertised.resources.get(key.resource),
        numa_by_plugin=key in snapshot.numa_by_plugin,
        anomalies=_concerning(state.anomalies, device),
    )


def _parent(parts: tuple[Device, ...], state: State, reader: IdReader) -> Findings:
    first = parts[0]
    resource = first.key.resource
    return Findings(
        subject=Subject.PARENT,
        key=DeviceKey("", first.parent),
        reading=reader(first.parent, resource),
        parts=parts,
        anomalies=tuple(dict.fromkeys(a for part in parts for a in _concerning(state.anomalies, part))),
    )


def _others(snapshot: Snapshot, kept: Callable[[Device], bool]) -> tuple[Device, ...]:
    return tuple(device for device in snapshot.devices if kept(device))


def _concerning(anomalies: Iterable[Anomaly], device: Device) -> tuple[Anomaly, ...]:
    """Those that name the device, its resource as a whole, or it among others."""
    key = device.key
    return tuple(
        anomaly
        for anomaly in anomalies
        if anomaly.resource in {key.resource, ""}
        and (
            anomaly.device == key.device
            or (not anomaly.device and anomaly.holder is None)
            or (key.device in anomaly.devices and anomaly.holder in {None, *device.holders})
        )
    )


def _ambiguous(asked: str, found: list[Device], why: str) -> AmbiguousDevice:
    keys = tuple(device.key for device in found[:20])
    shown = ", ".join(f"{_cut(key.resource)}={_cut(key.device)}" for key in keys[:_NEAREST])
    more = f" and {len(found) - _NEAREST} more" if len(found) > _NEAREST else ""
    return AmbiguousDevice(f"'{_cut(asked)}' {why}: say which: {shown}{more}", keys)


def _unknown(asked: str, resource: str, known: list[Device], state: State, reader: IdReader) -> UnknownDevice:
    where = f" of {_cut(resource)}" if resource else ""
    words = [f"no device '{_cut(asked)}'{where} is known on this node"]
    parent = reader(asked, resource).parent
    if parent:
        there = any(parent in {found.parent, found.key.device} for found in known)
        words.append(f"its id reads as one of {_cut(parent)}, which is {'' if there else 'not '}known")
    nearest = _nearest(asked, known)
    if nearest:
        words.append(f"most like it are {', '.join(_cut(key.device) for key in nearest)}")
    if not state.advertised.reports:
        words.append(
            "a device that is neither allocatable nor held is known only where its plugin is asked "
            "(--plugin.url)"
        )
    return UnknownDevice("; ".join(words), nearest)


def _no_resource(asked: str, snapshot: Snapshot) -> UnknownDevice:
    known = ", ".join(_cut(name) for name in list(snapshot.resources())[:20])
    return UnknownDevice(f"no resource '{_cut(asked)}' on this node: there are {known or 'none at all'}", ())


def _nearest(asked: str, known: list[Device]) -> tuple[DeviceKey, ...]:
    """The ids that begin and end most like it: the ends of two ids differ more often than the middle."""
    wanted = asked.casefold()[:_LENGTH]
    scored: list[tuple[int, DeviceKey]] = []
    for device in known[:_COMPARED]:
        other = device.key.device.casefold()[:_LENGTH]
        alike = _common(wanted, other) + _common(wanted[::-1], other[::-1])
        if 2 * alike >= max(len(wanted), 2):
            scored.append((-alike, device.key))
    return tuple(key for _, key in sorted(scored)[:_NEAREST])


def _common(one: str, other: str) -> int:
    """Characters that both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _cut(text: str) -> str:
    return visible(text, limit=_LENGTH)


_LENGTH_EXPLAIN_WORDS: Final = 8192
"""Characters of a sentence."""
NO_PLUGIN: Final = "No plugin is asked what it tells of its devices (--plugin.url)."

_HOLDERS: Final = 10
"""Holders of one device that are named, each in a sentence."""


def sentences(found: Findings, state: State, *, now: float, stale_after: float) -> tuple[str, ...]:
    """Everything in words, the most important first, with nothing hidden in them. `now` is unix time,
    `stale_after` in seconds.
    """
    words = (
        _what(found),
        *_family(found),
        *_who(found, state),
        *_allocatable(found, state),
        *_numa(found),
        *_plugin(found, state),
        *_wrong(found),
        _fresh(state, now, stale_after),
    )
    return tuple(visible(sentence, limit=_LENGTH_EXPLAIN_WORDS) for sentence in words)


def why_nobody(found: Findings, state: State) -> str:
    """Why no pod is named as the device's holder, "" where one is."""
    device = found.device
    if device is None or device.holders:
        return ""
    if state.failure is not None:
        return "no pod lists it in the last good answer, and the kubelet fails since: that may have changed"
    if any(anomaly.kind == "unattributed" for anomaly in found.anomalies):
        return (
            "its plugin gave it out, yet no pod lists it: an init container has it, whose devices the "
            "kubelet does not list, or the pod was refused, or it leaked"
        )
    gave = None if found.told is None else found.told.last_allocated
    last = "" if gave is None else f"; its plugin last gave it out at {utc(gave)}"
    if not state.snapshot.complete:
        return f"no pod lists it{last}"
    if not device.allocatable:
        return f"no pod lists it, and the kubelet would not give it out{last}"
    return f"no pod lists it: it is free{last}"


def _what(found: Findings) -> str:
    name = found.key.device
    match found.subject:
        case Subject.PARENT:
            count = len(found.parts)
            known = (
                f"{count} that it knows are parts of it" if count > 1 else "one that it knows is a part of it"
            )
            return f"{name} is no device that the kubelet knows by itself: {known}."
        case Subject.CLAIMED:
            return f"{name} is given through ResourceClaims by a DRA driver, not by a device plugin."
        case _:
            elsewhere = f" {listed(found.elsewhere)} has a device of this id too." if found.elsewhere else ""
            return f"{name} of {found.key.resource} is {_read(found)}.{elsewhere}"


def _read(found: Findings) -> str:
    reading = found.reading
    if reading.kind is DeviceKind.WHOLE:
        if found.parent:
            return f"a share of {found.parent}, as its plugin says: its id does not tell"
        by = (
            f" (id rule {reading.rule})" if reading.rule != "whole" else ": no id rule reads its id otherwise"
        )
        return f"a whole device{by}"
    further = found.parent_reading
    itself = ""
    if further is not None and further.kind is not DeviceKind.WHOLE:
        itself = f", which is itself {_kind(further, further.parent)}"
    return f"{_kind(reading, found.parent)}{itself} (id rule {reading.rule})"


def _kind(reading: IdReading, parent: str) -> str:
    of = f" of {parent}" if parent else ", of a device that its id does not name"
    if reading.kind is DeviceKind.REPLICA:
        partition = f" of partition {reading.partition}" if reading.partition else ""
        return f"share {reading.replica}{partition}{of}" if reading.replica else f"a share{of}"
    if reading.kind is DeviceKind.PARTITION:
        return f"partition {reading.partition}{of}" if reading.partition else f"a partition{of}"
    return "a whole device"


def _family(found: Findings) -> Iterator[str]:
    if found.siblings:
        yield f"Of {found.parent} there are also {_summary(found.siblings)}."
    if found.parts:
        also = " also" if found.subject is Subject.DEVICE else ""
        yield f"Of {found.key.device} there are{also} {_summary(found.parts)}."


def _summary(devices: Sequence[Device]) -> str:
    """`a::1, a::2, a::3, of which 2 are held, by n/p, n/q`."""
    held = [device for device in devices if device.holders]
    names = listed([device.key.device for device in devices])
    if not held:
        return f"{names}, which nobody holds"
    pods = pods_of(holder for device in held for holder in device.holders)
    by = listed([f"{namespace}/{pod}" for namespace, pod in pods])
    count = "all" if len(held) == len(devices) else str(len(held))
    return f"{names}, of which {count} {'is' if count == '1' else 'are'} held, by {by}"


def _who(found: Findings, state: State) -> Iterator[str]:
    for claim in found.claimed:
        for through in claim.holders[:_HOLDERS]:
            key, named = claim.key, f"{through.claim_namespace}/{through.claim}"
            share = f", share {key.share_id}" if key.share_id else ""
            when = _since(Holding(claim.held(through), through.holder), state)
            yield (
                f"{_name(through.holder)} holds {key.device} of the driver {key.driver} "
                f"(pool {key.pool}{share}) through the claim {named}{when}."
            )
    device = found.device
    if device is None:
        return
    for holder in device.holders[:_HOLDERS]:
        when = _since(Holding(device.key, holder), state)
        yield f"{_name(holder)} holds it{when}, as the kubelet's List says."
    if len(device.holders) > _HOLDERS:
        yield f"{len(device.holders) - _HOLDERS} more hold it."
    nobody = why_nobody(found, state)
    if nobody:
        yield f"{nobody[0].upper()}{nobody[1:]}."


def _since(holding: Holding, state: State) -> str:
    since = state.since.get(holding)
    if since is None:
        return ""
    return f" since {utc(since.at)}" if since.exact else f" since before {utc(since.at)}"


def _name(holder: Holder) -> str:
    uid = f", uid {holder.pod_uid}" if holder.pod_uid else ""
    return f"{holder.namespace}/{holder.pod} (container {holder.container}{uid})"


def _allocatable(found: Findings, state: State) -> Iterator[str]:
    device, told, word = found.device, found.told, found.word
    if device is None:
        return
    not_so = "It is not allocatable, as the kubelet says"
    if not state.snapshot.complete:
        yield "Whether it is allocatable this kubelet does not tell."
    elif device.allocatable:
        yield "It is allocatable, as the kubelet says: its plugin is there and calls it healthy."
    elif word is not None and not word.report.answers:
        yield f"{not_so}, and its plugin does not answer: {word.report.problem}."
    elif told is not None and not told.healthy:
        yield f"{not_so}, for its plugin calls it unhealthy: {told.reason or 'it gives no reason'}."
    elif word is not None and not word.resource.served:
        yield f"{not_so}: it does not follow the plugin at present."
    else:
        yield f"{not_so}: its plugin calls it unhealthy, or is gone."


def _numa(found: Findings) -> Iterator[str]:
    device = found.device
    if device is None:
        return
    if not device.numa_nodes:
        yield "On which NUMA node it is nobody tells."
        return
    nodes = (
        f"NUMA node{'s' if len(device.numa_nodes) > 1 else ''} {listed([str(n) for n in device.numa_nodes])}"
    )
    who = "its plugin tells; the kubelet does not" if found.numa_by_plugin else "the kubelet tells"
    yield f"It is on {nodes}, as {who}."


def _plugin(found: Findings, state: State) -> Iterator[str]:
    if found.device is None:
        return
    tellings = state.advertised.reports
    if found.told is None:
        if not tellings:
            yield NO_PLUGIN
        elif found.word is None:
            asked = listed([telling.source for telling in tellings])
            yield f"None of the plugins that are asked ({asked}) tells of its resource."
        else:
            yield f"Its plugin ({found.word.report.source}) does not tell of it."
        return
    telling = None if found.word is None else found.word.report
    told = "Healthy" if found.told.healthy else "Unhealthy"
    since = "" if found.told.since is None else f" since {utc(found.told.since)}"
    source = "" if telling is None else f" ({telling.source})"
    if telling is None or telling.answers:
        yield f"Its plugin{source} says that it is {told}{since}."
    else:
        silent = "" if telling.silent_since is None else f" since {utc(telling.silent_since)}"
        yield f"Its plugin{source} is silent{silent}: {telling.problem}; it last said {told}{since}."


def _wrong(found: Findings) -> Iterator[str]:
    for anomaly in found.anomalies:
        since = "" if anomaly.since is None else f" since {utc(anomaly.since)}"
        who = "" if anomaly.holder is None else f" ({_name(anomaly.holder)})"
        yield f"Wrong{since}: {anomaly.kind}{who}: {anomaly.evidence}."


def _fresh(state: State, now: float, stale_after: float) -> str:
    if state.taken_at is None:
        return "The kubelet has not answered yet."
    taken = f"All this is of {utc(state.taken_at)}, {now - state.taken_at:.0f} s ago"
    freshness = state.freshness(now, stale_after)
    failure = state.failure
    why = (
        ""
        if failure is None
        else f": {failure.method} fails since {utc(failure.since)}: {failure.code}: {failure.message}"
    )
    match freshness:
        case Freshness.STALE:
            return f"{taken}, which is too old to be trusted{why}."
        case Freshness.AGEING:
            return f"{taken}; it is the last good answer{why}."
        case _:
            return f"{taken}, and fresh."
