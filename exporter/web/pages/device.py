"""The page of one device: holders, health, facts, relatives, and past. Pure."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from exporter.history.record import HoldingRow, bounded
from exporter.mapping.device_health import DeviceHealth, named
from exporter.mapping.device_identity import DeviceIdentity
from exporter.mapping.device_ids import DeviceKind, IdReader, IdReading
from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.model import Claimed, DeviceKey
from exporter.mapping.state import Moment, State
from exporter.views.explain import (
    AmbiguousDevice,
    DeviceFacts,
    NotKnownYet,
    UnknownDevice,
    explain,
    numa_source,
    statements,
)
from exporter.views.query import TEXT_LIMIT, device_link, history_link
from exporter.views.verdict import Severity, Verdict, device_verdict
from exporter.views.wording import Text, ranges, spelled, text
from exporter.web.pages import parts, times
from exporter.web.pages.parts import ID_LENGTH, Fact, HolderLine, Suggestion
from exporter.web.pages.past import (
    HistoryAnswer,
    PastSection,
    TimeRange,
    by_pod,
    lane_of_device,
    past_section,
)
from exporter.web.pages.timeline import Lane
from exporter.web.pages.times import Stamp

HOLDERS: Final = 100
"""Holders, siblings and parts on a page, of each; the API has all."""
_FACTS: Final = 40
"""CDI names, capacities, and attributes of a page, of each."""
_SENTENCE: Final = 700
"""Characters of a sentence."""


class DeviceFamily(Struct, frozen=True):
    """Devices of one physical device, and `more` that are left out."""

    heading: str
    members: tuple[DeviceStatus, ...]
    more: int


class DevicePage(Struct, frozen=True):
    """What device.html shows, of all `lines` of holders at most HOLDERS. `what` says what it is. `divided`:
    the kubelet lists only its parts, which come first then. A device that only history has is `kind` gone.
    `asked` are the hidden fields of the form that queries history.
    """

    frame: parts.Frame
    key: DeviceKey
    what: str
    verdict: Verdict
    kind: str
    past: PastSection
    facts: tuple[Fact, ...]
    asked: tuple[tuple[str, str], ...]
    nobody: str = ""
    lines: tuple[HolderLine, ...] = ()
    health: DeviceHealth | None = None
    findings: parts.FindingList = parts.NO_FINDINGS
    family: tuple[DeviceFamily, ...] = ()
    divided: bool = False
    sentences: tuple[tuple[str | Stamp, ...], ...] = ()


def device_page(
    moment: Moment,
    key: DeviceKey,
    span: TimeRange,
    answer: HistoryAnswer,
    *,
    tag: str,
    reader: IdReader,
) -> DevicePage | parts.NotFound:
    """The page of the device `key`; `answer` is history's for its id."""
    try:
        facts = _facts_of(moment.state, key, reader)
    except (NotKnownYet, UnknownDevice, AmbiguousDevice) as error:
        rows = () if answer.found is None else tuple(answer.found.rows)
        own = tuple(row for row in rows if row.key.resource in {bounded(key.resource), ""})
        if not own:
            if isinstance(error, NotKnownYet):
                return parts.not_known_yet(key.device)
            return _not_found(error, key)
        return _gone(moment, key, span, answer, own[0], tag=tag, reader=reader)
    return _present(moment, facts, key, span, answer, tag=tag)


def claimed_key(moment: Moment, name: tuple[str, str, str]) -> DeviceKey:
    """The key of the device with this driver, pool and name, which history may have cut."""
    for one in moment.state.snapshot.devices:
        if one.claimed is not None and name in {one.claimed.name, tuple(map(bounded, one.claimed.name))}:
            return one.key
    driver, pool, device = name
    return DeviceKey(driver, device if pool == moment.node else f"{pool}/{device}")


def _facts_of(state: State, key: DeviceKey, reader: IdReader) -> DeviceFacts:
    """The facts about the device of exactly this id. Raises as `explain`."""
    keys = [device.key for device in state.snapshot.devices if device.key.resource == key.resource]
    if key not in keys:
        # History cuts very long ids: its links lead to the device with this beginning.
        key = next((one for one in keys if bounded(one.device) == key.device), key)
    found = explain(state, key.device, key.resource, reader=reader)
    if key.device not in {found.key.device, spelled(found.key.device)}:
        # The id is only a part of another device's id, which has its own page.
        name, resource = text(key.device, limit=ID_LENGTH).shown, text(key.resource).shown
        nearest = (found.key,) if found.key.resource else tuple(part.key for part in found.parts[:5])
        raise UnknownDevice(f"no device '{name}' of {resource} is known on this node", nearest)
    return found


def _not_found(error: UnknownDevice | AmbiguousDevice, key: DeviceKey) -> parts.NotFound:
    keys = error.nearest if isinstance(error, UnknownDevice) else error.devices
    others = (
        Suggestion(text(k.device, limit=ID_LENGTH), device_link(*k), text(k.resource).shown) for k in keys
    )
    name = text(key.device, limit=ID_LENGTH)
    return parts.NotFound("No such device", name, _sentence(str(error)), tuple(others))


def _gone(
    moment: Moment,
    key: DeviceKey,
    span: TimeRange,
    answer: HistoryAnswer,
    newest: HoldingRow,
    *,
    tag: str,
    reader: IdReader,
) -> DevicePage:
    """The page of a device that only history has; `newest` is its last holding."""
    who = text(f"{spelled(newest.key.namespace)}/{spelled(newest.key.pod)}", limit=120).shown
    end = times.ended(newest, moment.now)
    absent, severity = "It is not on this node now", Severity.OK
    if moment.state.taken_at is None:
        absent, severity = parts.NOT_YET, Severity.UNKNOWN
    parent = newest.facts.parent
    if parent:
        part = Fact("Part of", text(parent, limit=ID_LENGTH), device_link(key.resource, parent), "by history")
    else:
        part = Fact("Read as", Text(reading_words(reader(key.device, key.resource))))
    return DevicePage(
        frame=parts.frame(moment, key.device, tag=tag, path=device_link(*key)),
        key=key,
        what=f"of {text(key.resource).shown}",
        verdict=Verdict(
            severity, f"{absent}; last held by {who}, until {'the last refresh' if end is None else end}."
        ),
        kind="gone",
        past=_past(key, answer, span, moment.now),
        facts=(Fact("Resource", text(key.resource), parts.resource_address(key.resource)), part),
        asked=_asked(key, divided=False),
    )


def _present(
    moment: Moment, found: DeviceFacts, asked: DeviceKey, span: TimeRange, answer: HistoryAnswer, *, tag: str
) -> DevicePage:
    state, now, device = moment.state, moment.now, found.device
    key = DeviceKey(found.key.resource or asked.resource, found.key.device)
    return DevicePage(
        frame=parts.frame(moment, key.device, tag=tag, path=device_link(*key)),
        key=key,
        what=_what(found, key),
        verdict=device_verdict(found, moment.freshness),
        kind=_kind(found),
        past=_past(key, answer, span, now),
        facts=tuple(_facts(found, key, now, None if device is None else state.status_of(device).identity)),
        nobody=_sentence(found.why_nobody),
        lines=() if device is None else tuple(parts.holder_lines(device, device.holders)),
        health=found.health,
        findings=parts.findings(found.anomalies, now),
        family=tuple(_families(found, state)),
        divided=device is None and bool(found.parts),
        asked=_asked(key, divided=device is None),
        sentences=tuple(
            times.with_times(text(line, limit=_SENTENCE).shown, now) for line in statements(found, state)
        ),
    )


def _what(found: DeviceFacts, key: DeviceKey) -> str:
    """`share 0 of GPU-7, of nvidia.com/gpu.shared`"""
    resource, parent = text(key.resource).shown, text(found.parent, limit=ID_LENGTH).shown
    if found.device is None:
        return f"a physical device of {resource}"
    if found.device.claimed is not None:
        driver = text(found.device.claimed.name.driver).shown
        own = (
            f"a device of the DRA driver {driver}" if not parent else f"a partition of {parent}, by {driver}"
        )
        return own if driver == resource else f"{own}, resource {resource}"
    if not found.parent:
        return f"{reading_words(found.reading).partition(' (')[0]} of {resource}"
    whole = found.reading.kind is DeviceKind.WHOLE
    part = "a share" if whole else reading_words(found.reading).partition(" (")[0]
    return f"{part} of {parent}, resource {resource}"


def _asked(key: DeviceKey, *, divided: bool) -> tuple[tuple[str, str], ...]:
    """The hidden fields of the form; a physical device is found by its id alone."""
    device = ("device", spelled(key.device)[:TEXT_LIMIT])
    return (device,) if divided else (("resource", spelled(key.resource)[:TEXT_LIMIT]), device)


def _kind(found: DeviceFacts) -> str:
    """held, free or unhealthy, as the status page marks it."""
    if found.health is not None and found.health.kind == "unhealthy":
        return "unhealthy"
    own = () if found.device is None else (found.device,)
    return "held" if any(one.holders for one in (*own, *found.parts)) else "free"


def _facts(found: DeviceFacts, key: DeviceKey, now: float, identity: DeviceIdentity | None) -> Iterator[Fact]:
    device, reported, plugin = found.device, found.plugin_device, found.plugin
    yield Fact("Resource", text(key.resource), parts.resource_address(key.resource))
    claimed = None if device is None else device.claimed
    if claimed is not None:
        yield from _claimed(claimed, identity)
        if found.parent:
            yield Fact(
                "Part of", text(found.parent, limit=ID_LENGTH), device_link(key.resource, found.parent)
            )
    elif found.parent:
        whole = found.reading.kind is DeviceKind.WHOLE
        source = "reported by its plugin" if whole else reading_words(found.reading)
        yield Fact(
            "Part of",
            text(found.parent, limit=ID_LENGTH),
            device_link(key.resource, found.parent),
            source,
        )
    elif device is not None or found.reading.kind is not DeviceKind.WHOLE:
        yield Fact("Read as", Text(reading_words(found.reading)))
    if device is not None:
        nodes = ranges(device.numa_nodes)
        yield Fact("NUMA node", Text(nodes or "unknown"), "", numa_source(found) if nodes else "")
    for name, value in reported.attributes[:_FACTS] if reported is not None else ():
        yield Fact(text(name, limit=40).shown, text(value, limit=ID_LENGTH), copied=spelled(value))
    if reported is not None and reported.last_allocated is not None:
        last = times.stamp(reported.last_allocated, now)
        yield Fact("Last allocated", Text(""), "", "reported by its plugin", at=last)
    if plugin is not None:
        yield Fact("Plugin", text(plugin.report.source, limit=120))
    for other in found.elsewhere[:10]:
        yield Fact("Same id in", text(other), device_link(other, key.device))


def reading_words(reading: IdReading) -> str:
    """How an id is read: `share 0 (id rule …)`."""
    rule = f"id rule {spelled(reading.rule)}"
    match reading.kind:
        case DeviceKind.WHOLE:
            return "a whole device" if reading.rule == "whole" else f"a whole device ({rule})"
        case DeviceKind.REPLICA:
            return f"{f'share {text(reading.replica).shown}' if reading.replica else 'a share'} ({rule})"
        case DeviceKind.PARTITION:
            part = f"slice {text(reading.partition).shown}" if reading.partition else "a slice"
            return f"{part} ({rule})"


def _claimed(claimed: Claimed, identity: DeviceIdentity | None) -> Iterator[Fact]:
    """What DRA says about a device."""
    if identity is not None:
        values = (("Model", identity.model), ("UUID", identity.uuid), ("PCI address", identity.pci_address))
        yield from [
            Fact(name, text(value, limit=ID_LENGTH), copied=spelled(value)) for name, value in values if value
        ]
    yield Fact("Driver", text(claimed.name.driver))
    yield Fact("Pool", text(claimed.name.pool))
    yield Fact("Name in the pool", text(claimed.name.device), copied=spelled(claimed.name.device))
    for name in claimed.cdi_devices[:_FACTS]:
        yield Fact("CDI", text(name, limit=ID_LENGTH), copied=spelled(name))
    published = claimed.published
    if published is None:
        return
    for name, value in published.capacity[:_FACTS]:
        yield Fact("Capacity", text(f"{name} {value}", limit=ID_LENGTH))
    for taint in published.taints:
        yield Fact("Taint", text(named([taint]).partition(" ")[2], limit=ID_LENGTH))
    for name, value in published.attributes[:_FACTS]:
        yield Fact(text(name, limit=60).shown, text(value, limit=ID_LENGTH), copied=spelled(value))


def _families(found: DeviceFacts, state: State) -> Iterator[DeviceFamily]:
    named = f"Others of {text(found.parent, limit=60).shown}"
    for heading, devices in ((named, found.siblings), ("Its shares and parts", found.parts)):
        if devices:
            shown = sorted(devices, key=parts.device_order)[:HOLDERS]
            yield DeviceFamily(heading, tuple(map(state.status_of, shown)), max(0, len(devices) - HOLDERS))


def _past(key: DeviceKey, answer: HistoryAnswer, span: TimeRange, now: float) -> PastSection:
    own = (bounded(key.resource), bounded(key.device))

    def lane(row: HoldingRow) -> Lane:
        if (row.key.resource, row.key.device) == own:
            return Lane(parts.row_key("own", *own))
        return lane_of_device(row)

    more = history_link({"device": spelled(key.device)[:TEXT_LIMIT]})
    return past_section(answer, span, now, lane=lane, named=by_pod, more=more)


def _sentence(words: str) -> str:
    shown = text(words, limit=_SENTENCE).shown
    return f"{shown[0].upper()}{shown[1:]}." if shown else ""
