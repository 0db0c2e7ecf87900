"""The pages of one device and of one claimed device: holders, health, facts, relatives, and past. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from exporter.history.record import HoldingRow, bounded
from exporter.mapping.device_ids import DeviceKind, IdReader, IdReading
from exporter.mapping.model import ClaimDevice, Device, DeviceKey, Holder
from exporter.mapping.names import most_similar
from exporter.mapping.state import Moment, State
from exporter.views.explain import (
    AmbiguousDevice,
    DeviceFacts,
    DeviceHealth,
    UnknownDevice,
    explain,
    sentences,
)
from exporter.views.query import TEXT_LIMIT, claim_link, device_link, history_link
from exporter.views.wording import Text, counted, ranges, spelled, text
from exporter.web.pages import parts, times
from exporter.web.pages.parts import ID_LENGTH, Fact, Suggestion
from exporter.web.pages.past import (
    HistoryAnswer,
    PastSection,
    TimeRange,
    by_pod,
    lane_of_device,
    past_section,
)
from exporter.web.pages.timeline import Lane

HOLDERS: Final = 100
"""Holders, siblings and parts on a page, of each; the API has all."""
_SENTENCE: Final = 700
"""Characters of a sentence."""

ClaimName = tuple[str, str, str]
"""Driver, pool and device."""


@dataclass(frozen=True, slots=True)
class DeviceFamily:
    """Devices of one physical device, and `more` that are left out."""

    heading: str
    members: tuple[Device, ...]
    more: int


@dataclass(frozen=True, slots=True)
class DevicePage:
    """What device.html shows, of all `holders` at most HOLDERS. `divided`: the kubelet knows only its parts,
    which come first then. A device that only history has is `kind` gone.
    """

    frame: parts.Frame
    key: DeviceKey
    headline: str
    kind: str
    past: PastSection
    facts: tuple[Fact, ...]
    nobody: str = ""
    holders: tuple[Holder, ...] = ()
    health: DeviceHealth | None = None
    findings: parts.FindingList = parts.NO_FINDINGS
    family: tuple[DeviceFamily, ...] = ()
    divided: bool = False
    sentences: tuple[str, ...] = ()


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
    except (UnknownDevice, AmbiguousDevice) as error:
        rows = () if answer.found is None else tuple(answer.found.rows)
        own = tuple(row for row in rows if row.key.resource in {bounded(key.resource), ""})
        if not own:
            return _not_found(error, key)
        return _gone(moment, key, span, answer, own[0], tag=tag, reader=reader)
    return _present(moment, facts, key, span, answer, tag=tag)


def _facts_of(state: State, key: DeviceKey, reader: IdReader) -> DeviceFacts:
    """The facts about the device of exactly this id. Raises UnknownDevice and AmbiguousDevice."""
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
    absent = "It is not on this node now"
    if moment.state.taken_at is None:
        absent = "There is no mapping yet"
    parent = newest.facts.parent
    if parent:
        part = Fact("Part of", text(parent, limit=ID_LENGTH), device_link(key.resource, parent), "by history")
    else:
        part = Fact("Read as", Text(reading_words(reader(key.device, key.resource))))
    return DevicePage(
        frame=parts.frame(moment, key.device, tag=tag, path=device_link(*key)),
        key=key,
        headline=f"{absent}; last held by {who}, until {'the last refresh' if end is None else end}.",
        kind="gone",
        past=_past(key, answer, span, moment.now),
        facts=(Fact("Resource", text(key.resource), parts.resource_address(key.resource)), part),
    )


def _present(
    moment: Moment, found: DeviceFacts, asked: DeviceKey, span: TimeRange, answer: HistoryAnswer, *, tag: str
) -> DevicePage:
    state, now, device = moment.state, moment.now, found.device
    key = DeviceKey(found.key.resource or asked.resource, found.key.device)
    lines = sentences(found, state, now=now, stale_after=moment.stale_after)
    return DevicePage(
        frame=parts.frame(moment, key.device, tag=tag, path=device_link(*key)),
        key=key,
        headline=_headline(found),
        kind=_kind(found),
        past=_past(key, answer, span, now),
        facts=(*map(_claim_fact, found.claimed[:HOLDERS]), *_facts(found, key, now)),
        nobody=_sentence(found.why_nobody),
        holders=() if device is None else device.holders,
        health=found.health,
        findings=parts.findings(found.anomalies, now),
        family=tuple(_families(found)),
        divided=device is None and bool(found.parts),
        sentences=tuple(text(line, limit=_SENTENCE).shown for line in lines),
    )


def _headline(found: DeviceFacts) -> str:
    device, health = found.device, found.health
    if device is None and found.parts:
        held, count = sum(bool(part.holders) for part in found.parts), len(found.parts)
        some = "all are" if held == count > 1 else f"{held or 'none'} {'is' if held < 2 else 'are'}"
        return f"Divided into {counted(count, 'device')}; {some} held."
    if device is None:
        pods = {through.holder[:2] for claimed in found.claimed for through in claimed.holders}
        return f"Held through claims by {counted(len(pods), 'pod')}."
    unhealthy = ", and unhealthy" if health is not None and health.kind == "unhealthy" else ""
    pods = {holder[:2] for holder in device.holders}
    return f"Held by {counted(len(pods), 'pod') if pods else 'no pod'}{unhealthy}."


def _kind(found: DeviceFacts) -> str:
    """held, free or unhealthy, as the status page marks it."""
    if found.health is not None and found.health.kind == "unhealthy":
        return "unhealthy"
    holders = bool(found.claimed) if found.device is None else bool(found.device.holders)
    return "held" if holders or any(part.holders for part in found.parts) else "free"


def _facts(found: DeviceFacts, key: DeviceKey, now: float) -> Iterator[Fact]:
    device, reported, plugin = found.device, found.plugin_device, found.plugin
    yield Fact("Resource", text(key.resource), parts.resource_address(key.resource))
    if found.parent:
        whole = found.reading.kind is DeviceKind.WHOLE
        source = "by its plugin" if whole else reading_words(found.reading)
        yield Fact(
            "Part of",
            text(found.parent, limit=ID_LENGTH),
            device_link(key.resource, found.parent),
            source,
        )
    else:
        yield Fact("Read as", Text(reading_words(found.reading)))
    if device is not None:
        nodes = ranges(device.numa_nodes)
        source = "by its plugin" if found.numa_by_plugin else "by the kubelet"
        yield Fact("NUMA node", Text(nodes or "unknown"), "", source if nodes else "")
    for name, value in reported.attributes[:40] if reported is not None else ():
        yield Fact(text(name, limit=40).shown, text(value, limit=ID_LENGTH), copied=spelled(value))
    if reported is not None and reported.last_allocated is not None:
        last = times.stamp(reported.last_allocated, now)
        yield Fact("Last allocated", Text(f"{last.clock} UTC"), "", f"{last.ago} ago, by its plugin")
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


def _claim_fact(claimed: ClaimDevice) -> parts.Fact:
    names = claimed.key[:3]
    shown = text("/".join(names), limit=ID_LENGTH)
    return Fact("Claimed as", shown, claim_link(*names), counted(len(claimed.holders), "holder"))


def _families(found: DeviceFacts) -> Iterator[DeviceFamily]:
    named = f"Others of {text(found.parent, limit=60).shown}"
    for heading, devices in ((named, found.siblings), ("Its shares and parts", found.parts)):
        if devices:
            shown = sorted(devices, key=parts.device_order)[:HOLDERS]
            yield DeviceFamily(heading, tuple(shown), max(0, len(devices) - HOLDERS))


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


# --- claimed devices ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimPage:
    """What claim.html shows: the device's driver, pool and id, and its present shares with their holders."""

    frame: parts.Frame
    name: ClaimName
    headline: str
    claimed: tuple[ClaimDevice, ...]
    past: PastSection


def claim_page(
    moment: Moment, name: ClaimName, span: TimeRange, answer: HistoryAnswer, *, tag: str
) -> ClaimPage | parts.NotFound:
    """The page of a claimed device, with all its shares."""
    now, short = moment.now, tuple(map(bounded, name))
    claims = moment.state.snapshot.claims
    claimed = tuple(c for c in claims if c.key[:3] == name or tuple(map(bounded, c.key[:3])) == name)
    rows = () if answer.found is None else tuple(r for r in answer.found.rows if r.key[1:4] == short)
    device = name[2]
    if not claimed and not rows:
        words = "No pod on this node holds this device through a claim, now or in recorded history."
        shown = text("/".join(name), limit=ID_LENGTH)
        return parts.NotFound("Unknown claimed device", shown, words, _similar_claims(claims, name))
    return ClaimPage(
        frame=parts.frame(moment, device, tag=tag, path=claim_link(*name)),
        name=name,
        headline=_claim_headline(claimed, rows, now),
        claimed=claimed,
        past=past_section(
            *(answer, span, now),
            lane=_lane_of_share,
            named=by_pod,
            more=history_link({"device": spelled(device)[:TEXT_LIMIT]}),
            rows=rows,
        ),
    )


def _similar_claims(claims: tuple[ClaimDevice, ...], name: ClaimName) -> tuple[parts.Suggestion, ...]:
    """The claimed devices with the most similar names."""
    keys = (claimed.key[:3] for claimed in claims)
    best = most_similar("/".join(name), (("/".join(key), key) for key in keys))
    return tuple(Suggestion(text("/".join(key), limit=160), claim_link(*key)) for key in best)


def _claim_headline(claimed: tuple[ClaimDevice, ...], rows: tuple[HoldingRow, ...], now: float) -> str:
    if claimed:
        pods = {through.holder[:2] for one in claimed for through in one.holders}
        claims = {(t.claim_namespace, t.claim) for one in claimed for t in one.holders}
        return f"Held by {counted(len(pods), 'pod')} through {counted(len(claims), 'claim')}."
    end = times.ended(rows[0], now)
    return f"No pod on this node holds it now{'' if end is None else f'; last held until {end}'}."


def _lane_of_share(row: HoldingRow) -> Lane:
    share = row.key.share_id
    return Lane(parts.row_key("share", share), f"share {text(share, limit=60).shown}" if share else "")
