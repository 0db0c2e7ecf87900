"""One device explained, for the API, the device's page and `devicelens explain`. Pure.

`explain` finds the device that an id means and collects the facts; `sentences` writes them in plain English.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from exporter.mapping.anomalies import listed, pods_of
from exporter.mapping.device_health import BY_STATUS, NOT_OFFERED, DeviceHealth
from exporter.mapping.device_ids import DeviceKind, IdReader, IdReading
from exporter.mapping.holdings import Holding
from exporter.mapping.model import (
    AdvertisedDevice,
    Anomaly,
    Device,
    DeviceKey,
    Holder,
    ResourceReport,
    Snapshot,
)
from exporter.mapping.names import is_resource, most_similar
from exporter.mapping.state import Freshness, State
from exporter.views.claimed import administration, names, published_words, resource_names, through_words
from exporter.views.health import concerning, health, health_of_parts
from runtime.text import shortened, utc, visible

NO_PLUGIN: Final = "No --plugin.url is set: health reasons and attributes of devices are unknown."

_NAMED: Final = 5
"""Devices that an error about an ambiguous id names."""
_SENTENCE_LENGTH: Final = 8192
_HOLDERS: Final = 10
"""Holders of one device that get a sentence each."""


class Subject(StrEnum):
    """The kind of object that an id names."""

    DEVICE = "device"
    """A device of a device plugin or of a DRA driver."""
    PARENT = "parent"
    """A physical device behind shares or slices, which the kubelet does not list itself."""


class UnknownDevice(Exception):  # noqa: N818 -- an answer, not a failure
    """There is no such device. `nearest` are the devices with the most similar ids."""

    def __init__(self, message: str, nearest: tuple[DeviceKey, ...]) -> None:
        super().__init__(message)
        self.nearest = nearest


class NotKnownYet(Exception):  # noqa: N818 -- an answer, not a failure
    """The kubelet has not answered yet, so which devices the node has is unknown."""

    def __init__(self) -> None:
        super().__init__("the kubelet has not answered yet: which devices this node has is unknown")


class AmbiguousDevice(ValueError):  # noqa: N818 -- a wrong use
    """The id means several devices: `devices`, or more than these."""

    def __init__(self, message: str, devices: tuple[DeviceKey, ...]) -> None:
        super().__init__(message)
        self.devices = devices


class DeviceFacts(Struct, frozen=True):
    """The facts about the object that an id names.

    `key.resource` is "" unless `subject` is DEVICE, and so `device` is None. `health` of a parent is the
    worst of its parts. `reading` is how the id is read, `parent_reading` how its parent's id is. `siblings`
    are the other devices of the same parent, `parts` the devices whose parent this is, `elsewhere` other
    resources with a device of this id. `plugin_device` and `plugin` are what its plugin reports.
    `numa_by_plugin`: the NUMA nodes come from the plugin, not from the kubelet. `why_nobody` says why no pod
    is its holder, "" where one is. `unconfirmed`: the kubelet has not listed a holder since its restart.
    """

    subject: Subject
    key: DeviceKey
    reading: IdReading
    parent_reading: IdReading | None = None
    device: Device | None = None
    health: DeviceHealth | None = None
    siblings: tuple[Device, ...] = ()
    parts: tuple[Device, ...] = ()
    elsewhere: tuple[str, ...] = ()
    plugin_device: AdvertisedDevice | None = None
    plugin: ResourceReport | None = None
    numa_by_plugin: bool = False
    anomalies: tuple[Anomaly, ...] = ()
    why_nobody: str = ""
    unconfirmed: bool = False

    @property
    def parent(self) -> str:
        """The physical device behind it, by its id or by its plugin; "" for a whole device."""
        return self.reading.parent if self.device is None else self.device.parent


def explain(state: State, device: str, resource: str = "", *, reader: IdReader) -> DeviceFacts:
    """The facts about `device`: a whole id, raw or as it is shown; a parent's id; a claimed device's name in
    its pool, the name of its CDI device or its UUID; or a part of an id, if only one device has it.
    `resource` is a whole name, or the part after the slash; "" for any.

    Raises NotKnownYet, UnknownDevice and AmbiguousDevice.
    """
    if state.taken_at is None:
        raise NotKnownYet
    snapshot = state.snapshot
    known = _of_resource(snapshot.devices, resource)
    if resource and not known:
        raise _no_resource(resource, snapshot)
    exact = [found for found in known if _same(found.key.device, device)]
    parts = tuple(found for found in known if found.parent and _same(found.parent, device))
    if exact:
        return _device(_only(exact, device, "is an id in several resources"), state, reader)
    if parts:
        return _parent(parts, state, reader)
    named = [found for found in known if any(_same(name, device) for name in names(found))]
    if named:
        return _device(_only(named, device, "is a name of several devices"), state, reader)
    like = [found for found in known if device and device.casefold() in found.key.device.casefold()]
    if len(like) > 1:
        behind = {found.parent for found in like}
        if len(behind) == 1 and device.casefold() in like[0].parent.casefold():
            return _parent(tuple(found for found in known if found.parent in behind), state, reader)
        raise _ambiguous(device, like, f"is part of {len(like)} ids")
    if like:
        return _device(like[0], state, reader)
    raise _unknown(device, resource, known, state, reader)


def _only(found: list[Device], asked: str, why: str) -> Device:
    """The one device of `found`. Raises AmbiguousDevice."""
    if len(found) > 1:
        raise _ambiguous(asked, found, why)
    return found[0]


def _same(raw: str, asked: str) -> bool:
    return raw == asked or visible(raw, limit=8192) == asked


def _of_resource(devices: Sequence[Device], asked: str) -> list[Device]:
    """The devices of the resource that is meant; all for ""."""
    if not asked:
        return list(devices)
    whole = [one for one in devices if any(_same(name, asked) for name in resource_names(one))]
    return whole or [one for one in devices if any(is_resource(name, asked) for name in resource_names(one))]


def _device(device: Device, state: State, reader: IdReader) -> DeviceFacts:
    snapshot, key = state.snapshot, device.key
    driver = _driver(device)
    kin = [one for one in snapshot.devices if one.parent and _driver(one) == driver]
    siblings = [one for one in kin if one.parent == device.parent and one.key != key]
    return DeviceFacts(
        subject=Subject.DEVICE,
        key=key,
        reading=reader(key.device, key.resource),
        parent_reading=reader(device.parent, key.resource) if device.parent else None,
        device=device,
        health=health(device, state),
        siblings=tuple(siblings),
        parts=tuple(one for one in kin if one.parent == key.device),
        elsewhere=tuple(
            d.key.resource
            for d in snapshot.devices
            if d.key.device == key.device and d.key.resource != key.resource
        ),
        plugin_device=state.advertised.devices.get(key),
        plugin=state.advertised.resources.get(key.resource),
        numa_by_plugin=key in snapshot.numa_by_plugin,
        anomalies=concerning(state.anomalies, device),
        why_nobody=_why_nobody(device, state),
        unconfirmed=_doubted(device.holders, snapshot),
    )


def _parent(parts: tuple[Device, ...], state: State, reader: IdReader) -> DeviceFacts:
    first = parts[0]
    resource = first.key.resource
    return DeviceFacts(
        subject=Subject.PARENT,
        key=DeviceKey("", first.parent),
        reading=reader(first.parent, resource),
        health=health_of_parts(parts, state),
        parts=parts,
        anomalies=tuple(dict.fromkeys(a for part in parts for a in concerning(state.anomalies, part))),
        unconfirmed=_doubted((holder for part in parts for holder in part.holders), state.snapshot),
    )


def _doubted(holders: Iterable[Holder], snapshot: Snapshot) -> bool:
    return any(snapshot.doubt(holder) for holder in holders)


def _driver(device: Device) -> str:
    """The DRA driver, whose devices have names of their own; "" for a device of a plugin."""
    return "" if device.claimed is None else device.claimed.name.driver


def _ambiguous(asked: str, found: list[Device], why: str) -> AmbiguousDevice:
    keys = tuple(device.key for device in found[:20])
    shown = ", ".join(f"{_cut(key.resource)}={_cut(key.device)}" for key in keys[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return AmbiguousDevice(f"'{_cut(asked)}' {why}: say which: {shown}{more}", keys)


def _unknown(asked: str, resource: str, known: list[Device], state: State, reader: IdReader) -> UnknownDevice:
    where = f" of {_cut(resource)}" if resource else ""
    words = [f"no device '{_cut(asked)}'{where} is known on this node"]
    parent = reader(asked, resource).parent
    if parent:
        there = any(parent in {found.parent, found.key.device} for found in known)
        words.append(f"its id names the parent {_cut(parent)}, which is {'' if there else 'not '}known")
    nearest = tuple(most_similar(asked, ((found.key.device, found.key) for found in known)))
    if nearest:
        words.append(f"the most similar ids are {', '.join(_cut(key.device) for key in nearest)}")
    if not state.advertised.reports:
        words.append(
            "a device that was neither allocatable nor held before is known only where its plugin is queried "
            "(--plugin.url)"
        )
    return UnknownDevice("; ".join(words), nearest)


def _no_resource(asked: str, snapshot: Snapshot) -> UnknownDevice:
    known = ", ".join(_cut(name) for name in list(snapshot.resources())[:20])
    there = f"there are {known}" if known else "the node has no resources"
    return UnknownDevice(f"no resource '{_cut(asked)}' on this node: {there}", ())


def _cut(text: str) -> str:
    return shortened(visible(text, limit=_SENTENCE_LENGTH))


def _why_nobody(device: Device, state: State) -> str:
    if device.holders:
        return ""
    if state.failure is not None:
        return "the last good List names no holder; List has failed since, so a pod may hold it now"
    if any(anomaly.kind == "unattributed" for anomaly in concerning(state.anomalies, device)):
        return (
            "its plugin allocated it, and List names no holder: an init container has it, whose devices the "
            "kubelet does not list, or the pod was refused, or it leaked"
        )
    if device.reserved:
        claims = listed(["/".join(claim) for claim in device.reserved])
        return f"reserved for the claim {_cut(claims)}, which no listed container uses"
    reported = state.advertised.devices.get(device.key)
    last = None if reported is None else reported.last_allocated
    allocated = f"; its plugin last allocated it at {utc(last)}" if last is not None else ""
    return f"{_unheld(device, state.snapshot)}{allocated}"


def _unheld(device: Device, snapshot: Snapshot) -> str:
    if not snapshot.knows_all(device.key.resource):
        return "List names no holder"
    if device.alternative:
        return f"no pod holds it; another partition of {_cut(device.parent)} is counted in its place"
    if device.allocatable:
        return "free: no pod holds it"
    if device.claimed is None:
        return "no pod holds it, and the kubelet does not allocate it"
    if device.no_longer_offered_since is not None:
        return "no pod holds it, and no ResourceSlice names it any more"
    return "no pod holds it, and its taints keep pods away"


def sentences(facts: DeviceFacts, state: State, *, now: float, stale_after: float) -> tuple[str, ...]:
    """As `statements`, and how fresh the mapping is. `now` is unix time, `stale_after` in seconds."""
    return *statements(facts, state), visible(_freshness(state, now, stale_after), limit=_SENTENCE_LENGTH)


def statements(facts: DeviceFacts, state: State) -> tuple[str, ...]:
    """The facts as sentences, the most important first, with control characters spelled out."""
    words = (
        _identity(facts),
        *_relatives(facts),
        *_holders(facts, state),
        *_allocatable(facts),
        *_numa(facts),
        *(() if facts.device is None else published_words(facts.device, state.problems)),
        *_plugin(facts, state),
        *_anomalies(facts),
    )
    return tuple(visible(sentence, limit=_SENTENCE_LENGTH) for sentence in words)


def _identity(facts: DeviceFacts) -> str:
    name, device = _cut(facts.key.device), facts.device
    if device is None:
        count = len(facts.parts)
        if _driver(facts.parts[0]):
            slices = "partition" if count == 1 else "partitions"
            return f"{name} is a physical device. ResourceSlices name {count} {slices} of it."
        known = f"{count} devices that are its parts" if count > 1 else "one device that is its part"
        return f"{name} is a physical device. The kubelet lists {known}."
    also = f" {listed(facts.elsewhere)} also has a device of this id." if facts.elsewhere else ""
    if device.claimed is None:
        return f"{name} of {facts.key.resource} is {_read(facts)}.{also}"
    part = f", a partition of {_cut(device.parent)}" if device.parent else ""
    driver, pool, own = map(_cut, device.claimed.name)
    where = f"the device {own} in the pool {pool} of the DRA driver {driver}{part}"
    return f"{name} of {facts.key.resource} is {where}: pods get it through ResourceClaims.{also}"


def _read(facts: DeviceFacts) -> str:
    reading = facts.reading
    if reading.kind is DeviceKind.WHOLE:
        if facts.parent:
            return f"a share of {_cut(facts.parent)}, by its plugin; its id does not name the parent"
        rule = f" (id rule {reading.rule})" if reading.rule != "whole" else ": no id rule matches"
        return f"a whole device{rule}"
    further = facts.parent_reading
    itself = ""
    if further is not None and further.kind is not DeviceKind.WHOLE:
        itself = f", which is itself {_kind(further, further.parent)}"
    return f"{_kind(reading, facts.parent)}{itself} (id rule {reading.rule})"


def _kind(reading: IdReading, parent: str) -> str:
    of = f" of {_cut(parent)}" if parent else ", of a device that its id does not name"
    if reading.kind is DeviceKind.REPLICA:
        slice_of = f" of slice {_cut(reading.partition)}" if reading.partition else ""
        return f"share {_cut(reading.replica)}{slice_of}{of}" if reading.replica else f"a share{of}"
    return f"slice {_cut(reading.partition)}{of}" if reading.partition else f"a slice{of}"


def _relatives(facts: DeviceFacts) -> Iterator[str]:
    if facts.siblings:
        yield f"{_cut(facts.parent)} also has {_summary(facts.siblings)}."
    if facts.parts:
        yield f"{_cut(facts.key.device)} has the parts {_summary(facts.parts)}."


def _summary(devices: Sequence[Device]) -> str:
    """`a::1, a::2, a::3; 2 are held, by n/p, n/q`."""
    held = [device for device in devices if device.holders]
    names = listed([_cut(device.key.device) for device in devices])
    if not held:
        return f"{names}; none is held"
    pods = pods_of(holder for device in held for holder in device.holders)
    by = listed([f"{namespace}/{pod}" for namespace, pod in pods])
    count = "all" if len(held) == len(devices) else str(len(held))
    return f"{names}; {count} {'is' if count == '1' else 'are'} held, by {by}"


def _holders(facts: DeviceFacts, state: State) -> Iterator[str]:
    device = facts.device
    if device is None:
        return
    for holder in device.holders[:_HOLDERS]:
        when = _since(Holding(device.key, holder), state)
        by = _unconfirmed(holder, state) or ", as the kubelet lists"
        yield f"{_name(holder)} holds it{through_words(device, holder)}{when}{by}."
        yield from _chosen(device, holder, state)
    if len(device.holders) > _HOLDERS:
        yield f"{len(device.holders) - _HOLDERS} more hold it."
    yield from administration(device, _name)
    if facts.why_nobody:
        yield f"{facts.why_nobody[0].upper()}{facts.why_nobody[1:]}."


def _chosen(device: Device, holder: Holder, state: State) -> Iterator[str]:
    choice = state.choices.get(device.key, {}).get(holder)
    if choice is None:
        return
    if choice.doubt:
        yield f"Which physical device {holder.namespace}/{holder.pod} uses is not provable: {choice.doubt}."
    else:
        yield f"{choice.scheduler} chose {_cut(choice.device)} for it, whatever the id says (pod annotation)."


def _unconfirmed(holder: Holder, state: State) -> str:
    """Why the holder is not confirmed, and for how long it is kept at most; "" if it is."""
    doubt = state.snapshot.doubt(holder)
    if doubt is None:
        return ""
    return (
        f", not confirmed since the kubelet restarted at {utc(doubt.since)}: List leaves the pod out, and "
        f"{doubt.why}. The holder is kept until List names the pod or another holder, at the latest until "
        f"{utc(doubt.until)}"
    )


def _since(holding: Holding, state: State) -> str:
    since = state.since.get(holding)
    if since is None:
        return ""
    return f" since {utc(since.at)}" if since.exact else f" since before {utc(since.at)}"


def _name(holder: Holder) -> str:
    uid = f", uid {holder.pod_uid}" if holder.pod_uid else ""
    return f"{holder.namespace}/{holder.pod} (container {holder.container}{uid})"


def _allocatable(facts: DeviceFacts) -> Iterator[str]:
    health, plugin = facts.health, facts.plugin
    if health is None:
        return
    not_so = "It is not allocatable"
    claimed = facts.device is not None and facts.device.claimed is not None
    if facts.subject is Subject.PARENT or claimed or health.source == BY_STATUS:
        yield _health(health)
    elif health.kind == "unknown":
        yield "This kubelet does not report whether it is allocatable."
    elif health.kind == "healthy":
        yield "It is allocatable: its plugin is registered with the kubelet and reports it healthy."
    elif health.words == NOT_OFFERED and health.since is not None:
        yield (
            f"The kubelet has not offered this device since {utc(health.since)}: its plugin is gone, no "
            "longer lists it, or reports it unhealthy."
        )
    elif plugin is not None and not plugin.report.answers:
        yield f"{not_so}, and its plugin does not answer: {health.reason}."
    elif health.words == "unhealthy":
        yield f"{not_so}: its plugin reports it unhealthy: {health.reason or 'without a reason'}."
    elif plugin is not None and not plugin.resource.served:
        yield f"{not_so}: the kubelet does not watch its plugin."
    else:
        yield f"{not_so}: its plugin reports it unhealthy, or is gone."


def _health(health: DeviceHealth) -> str:
    """`Health: 1 of 2 parts unhealthy since …: GPU-7::0: XID 79 (its plugin, at …).`"""
    since = "" if health.since is None else f" since {utc(health.since)}"
    reason = f": {health.reason}" if health.reason else ""
    source = f" ({health.source})" if health.source else ""
    return f"Health: {health.words.removeprefix('health ')}{since}{reason}{source}."


def _numa(facts: DeviceFacts) -> Iterator[str]:
    device = facts.device
    if device is None:
        return
    if not device.numa_nodes:
        yield "Its NUMA node is unknown."
        return
    nodes = (
        f"NUMA node{'s' if len(device.numa_nodes) > 1 else ''} {listed(list(map(str, device.numa_nodes)))}"
    )
    yield f"It is on {nodes}, {numa_source(facts)}."


def numa_source(facts: DeviceFacts) -> str:
    """Who reports the NUMA nodes of the device."""
    if facts.device is not None and facts.device.claimed is not None:
        return "published by its driver"
    return f"reported by {'its plugin' if facts.numa_by_plugin else 'the kubelet'}"


def _plugin(facts: DeviceFacts, state: State) -> Iterator[str]:
    reported, plugin = facts.plugin_device, facts.plugin
    if facts.device is None or (reported is None and facts.device.claimed is not None):
        return
    if reported is None:
        if not state.advertised.reports:
            yield NO_PLUGIN
        elif plugin is None:
            queried = listed([report.source for report in state.advertised.reports])
            yield f"None of the queried plugins ({queried}) reports its resource."
        else:
            yield f"Its plugin ({plugin.report.source}) does not report it."
        return
    report = None if plugin is None else plugin.report
    state_word = "Healthy" if reported.healthy else "Unhealthy"
    since = "" if reported.since is None else f" since {utc(reported.since)}"
    source = "" if report is None else f" ({report.source})"
    if report is None or report.answers:
        yield f"Its plugin{source} reports it {state_word}{since}."
    else:
        silent = "" if report.silent_since is None else f" since {utc(report.silent_since)}"
        yield (
            f"Its plugin{source} does not answer{silent}: {report.problem}; its last report was "
            f"{state_word}{since}."
        )


def _anomalies(facts: DeviceFacts) -> Iterator[str]:
    alike: dict[tuple[str, str, str], list[Anomaly]] = {}
    for anomaly in facts.anomalies:
        # A device has a sentence for each holder; its parent one for all parts with the same evidence.
        holder = "" if facts.subject is Subject.PARENT or anomaly.holder is None else _name(anomaly.holder)
        alike.setdefault((anomaly.kind, anomaly.evidence, holder), []).append(anomaly)
    for (kind, evidence, holder), group in alike.items():
        first = min((anomaly.since for anomaly in group if anomaly.since is not None), default=None)
        since = "" if first is None else f" since {utc(first)}"
        devices = dict.fromkeys(anomaly.device for anomaly in group if anomaly.device)
        about = holder if facts.subject is not Subject.PARENT else listed(devices)
        yield f"Anomaly{since}: {kind}{f' ({about})' if about else ''}: {evidence}."


def _freshness(state: State, now: float, stale_after: float) -> str:
    if state.taken_at is None:
        return "The kubelet has not answered yet."
    taken = f"The mapping is of {utc(state.taken_at)}, {now - state.taken_at:.0f} s ago"
    failure = state.failure
    why = (
        ""
        if failure is None
        else f": {failure.method} has failed since {utc(failure.since)}: {failure.code}: {failure.message}"
    )
    match state.freshness(now, stale_after):
        case Freshness.STALE:
            return f"{taken}, and stale{why}."
        case Freshness.AGEING:
            return f"{taken}; it is the last good answer{why}."
        case _:
            return f"{taken}, and fresh."
