"""A device's page: who has it, since when, and is it well; what it is, and who had it before. Pure."""

from dataclasses import dataclass
from typing import Final, TypedDict

from exporter.core.explain import AmbiguousDevice, UnknownDevice, explain
from exporter.core.explain import Findings as Explained
from exporter.core.explain_words import sentences, why_nobody
from exporter.core.history import Row, bounded
from exporter.core.ids import Reader
from exporter.core.model import DeviceKey
from exporter.core.state import State
from exporter.web.api.documents import Moment
from exporter.web.links import device_link, history_link
from exporter.web.pages import told
from exporter.web.pages.device_facts import (
    HOLDERS,
    ID,
    Fact,
    Family,
    Health,
    HolderFact,
    claim_fact,
    facts_of,
    families_of,
    health_of,
    holders_of,
    reading_words,
)
from exporter.web.pages.findings import Findings, findings
from exporter.web.pages.fresh import Fresh, fresh
from exporter.web.pages.past import Range, by_pod, of_device
from exporter.web.pages.rows import row_key
from exporter.web.pages.section import Answer, Section, section
from exporter.web.pages.timeline import Named
from exporter.web.query import TEXT_LIMIT, Filters, address
from exporter.web.words import Text, counted, spelled, text

_SENTENCE: Final = 700


@dataclass(frozen=True, slots=True)
class DevicePage:
    """Everything that the template shows. `present` is false for what history alone knows,
    `divided` true for what the kubelet knows by its parts alone: they come first then.
    """

    node: str
    title: str
    now: float
    tag: str
    path: str
    fresh: Fresh
    name: Text
    whole: str
    resource: Text
    resource_href: str
    present: bool
    headline: str
    kind: str
    nobody: str
    holders: tuple[HolderFact, ...]
    more_holders: int
    claims: tuple[Fact, ...]
    health: Health | None
    facts: tuple[Fact, ...]
    findings: Findings
    family: tuple[Family, ...]
    divided: bool
    sentences: tuple[str, ...]
    past: Section


class _Frame(TypedDict):
    """What every page of a device has."""

    node: str
    title: str
    now: float
    tag: str
    path: str
    fresh: Fresh
    name: Text
    whole: str
    resource: Text
    resource_href: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that may have been meant."""

    name: Text
    resource: Text
    href: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is no such device: in words, and which may have been meant."""

    words: str
    candidates: tuple[Candidate, ...]


def device_page(
    moment: Moment,
    key: DeviceKey,
    span: Range,
    answer: Answer,
    *,
    tag: str,
    reader: Reader,
) -> DevicePage | Unknown:
    """The page of the device `key` at `moment`; `answer` is history's, of all that bears its id."""
    try:
        found = _explained(moment.state, key, reader)
    except (UnknownDevice, AmbiguousDevice) as error:
        rows = () if answer.found is None else tuple(answer.found.rows)
        own = tuple(row for row in rows if row.key.resource == bounded(key.resource) or not row.key.resource)
        if not own:
            return _unknown(error)
        return _gone(moment, key, span, answer, own, tag=tag, reader=reader)
    return _present(moment, found, key, span, answer, tag=tag)


def _explained(state: State, key: DeviceKey, reader: Reader) -> Explained:
    """What is known of the device of that very name. Raises UnknownDevice and AmbiguousDevice."""
    asked = _named(state, key)
    found = explain(state, asked.device, asked.resource, reader=reader)
    if asked.device not in {found.key.device, spelled(found.key.device)}:
        # What was found by a part of its id alone has a page of its own.
        name, resource = text(asked.device, limit=ID).shown, text(asked.resource).shown
        nearest = (found.key,) if found.key.resource else tuple(part.key for part in found.parts[:5])
        raise UnknownDevice(f"no device '{name}' of {resource} is known on this node", nearest)
    return found


def _named(state: State, key: DeviceKey) -> DeviceKey:
    """History cuts what is very long: a link from there leads to the same device."""
    devices = state.snapshot.devices
    if any(device.key == key for device in devices):
        return key
    cut = (d.key for d in devices if d.key.resource == key.resource and bounded(d.key.device) == key.device)
    return next(cut, key)


def _unknown(error: UnknownDevice | AmbiguousDevice) -> Unknown:
    keys = error.nearest if isinstance(error, UnknownDevice) else error.devices
    words = text(str(error), limit=_SENTENCE).shown
    return Unknown(
        f"{words[:1].upper()}{words[1:]}.",
        tuple(
            Candidate(text(key.device, limit=ID), text(key.resource), device_link(key.resource, key.device))
            for key in keys
        ),
    )


def _gone(
    moment: Moment,
    key: DeviceKey,
    span: Range,
    answer: Answer,
    own: tuple[Row, ...],
    *,
    tag: str,
    reader: Reader,
) -> DevicePage:
    """The page of a device that history alone knows: `own` are its holdings, the newest first."""
    now, state = moment.now, moment.state
    newest = own[0]
    who = f"{spelled(newest.key.namespace)}/{spelled(newest.key.pod)}"
    end = told.ended(newest, now)
    until = "when it was last looked" if end is None else told.in_words(end)
    absent = "is not on this node now" if state.taken_at is not None else "is not known of at present"
    parent = newest.facts.parent
    facts = [
        Fact("Resource", text(key.resource), address(Filters(resource=spelled(key.resource)[:TEXT_LIMIT])))
    ]
    if parent:
        facts.append(
            Fact("Part of", text(parent, limit=ID), device_link(key.resource, parent), "history remembers")
        )
    else:
        facts.append(Fact("Read as", Text(reading_words(reader(key.device, key.resource)))))
    return DevicePage(
        **_frame(moment, key, tag),
        present=False,
        headline=f"It {absent}; last seen in the hands of {text(who, limit=120).shown}, until {until}.",
        kind="gone",
        nobody="",
        holders=(),
        more_holders=0,
        claims=(),
        health=None,
        facts=tuple(facts),
        findings=Findings(),
        family=(),
        divided=False,
        sentences=(),
        past=_past(key, answer, span, now),
    )


def _present(
    moment: Moment, found: Explained, asked: DeviceKey, span: Range, answer: Answer, *, tag: str
) -> DevicePage:
    state, now = moment.state, moment.now
    key = DeviceKey(found.key.resource or asked.resource, found.key.device)
    device = found.device
    holders = () if device is None else holders_of(device, state, now)
    health = None if device is None else health_of(found, state, now)
    return DevicePage(
        **_frame(moment, key, tag),
        present=True,
        headline=_headline(found, health),
        kind=_kind(found, health),
        nobody=_sentence(why_nobody(found, state)),
        holders=holders,
        more_holders=0 if device is None else max(0, len(device.holders) - HOLDERS),
        claims=tuple(map(claim_fact, found.claimed[:HOLDERS])),
        health=health,
        facts=tuple(facts_of(found, key, now)),
        findings=findings(found.anomalies, now),
        family=tuple(families_of(found, state, now)),
        divided=device is None and bool(found.parts),
        sentences=tuple(
            text(one, limit=_SENTENCE).shown
            for one in sentences(found, state, now=now, stale_after=moment.stale_after)
        ),
        past=_past(key, answer, span, now),
    )


def _frame(moment: Moment, key: DeviceKey, tag: str) -> "_Frame":
    name = text(key.device, limit=ID)
    return {
        "node": spelled(moment.node),
        "title": f"{text(key.device, limit=40).shown} · {text(moment.node).shown} · devicelens",
        "now": moment.now,
        "tag": tag,
        "path": device_link(key.resource, key.device),
        "fresh": fresh(moment),
        "name": name,
        "whole": spelled(key.device),
        "resource": text(key.resource),
        "resource_href": address(Filters(resource=spelled(key.resource)[:TEXT_LIMIT])),
    }


def _headline(found: Explained, health: Health | None) -> str:
    device = found.device
    ill = ", and is unhealthy" if health is not None and health.kind == "ill" else ""
    if device is None:
        if found.parts:
            held = sum(bool(part.holders) for part in found.parts)
            count = "all" if held == len(found.parts) > 1 else held or "none"
            some = f"{count} {'is' if held < 2 else 'are'} held"
            return f"It is divided into {counted(len(found.parts), 'device')}, of which {some}."
        pods = {through.holder[:2] for claimed in found.claimed for through in claimed.holders}
        return f"It is held through claims by {counted(len(pods), 'pod')}."
    pods = {holder[:2] for holder in device.holders}
    if not pods:
        return f"Nobody holds it{ill}."
    return f"Held by {counted(len(pods), 'pod')}{ill}."


def _kind(found: Explained, health: Health | None) -> str:
    """held, free or unhealthy, as the status page marks it."""
    if health is not None and health.kind == "ill":
        return "unhealthy"
    holders = bool(found.claimed) if found.device is None else bool(found.device.holders)
    return "held" if holders or any(part.holders for part in found.parts) else "free"


def _past(key: DeviceKey, answer: Answer, span: Range, now: float) -> Section:
    own = row_key("own", bounded(key.resource), bounded(key.device))

    def group(row: Row) -> Named:
        if row.key.resource == bounded(key.resource) and row.key.device == bounded(key.device):
            return Named(own, "")
        return of_device(row)

    more = history_link(device=spelled(key.device)[:TEXT_LIMIT])
    return section(answer, span, now, group=group, named=by_pod, more=more)


def _sentence(words: str) -> str:
    shown = text(words, limit=_SENTENCE).shown
    return f"{shown[0].upper()}{shown[1:]}." if shown else ""
