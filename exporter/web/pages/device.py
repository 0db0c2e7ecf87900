"""A device's page: who has it, since when, and is it well; what it is, and who had it before. Pure.

What is known of a device: its holders, its health, its facts, its relatives. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypedDict

from exporter.history.record import HoldingRow, bounded
from exporter.mapping.device_ids import DeviceKind, IdReader, IdReading
from exporter.mapping.holdings import Holding
from exporter.mapping.model import ClaimDevice, Device, DeviceKey, Holder
from exporter.mapping.state import State
from exporter.views.documents import Moment
from exporter.views.explain import AmbiguousDevice, UnknownDevice, explain, sentences, why_nobody
from exporter.views.explain import Findings as Explained
from exporter.views.links import claim_link, device_link, history_link
from exporter.views.query import TEXT_LIMIT, Filters, address
from exporter.views.wording import Text, counted, ranges, spelled, text
from exporter.web.pages import periods
from exporter.web.pages.findings import Findings, findings
from exporter.web.pages.past import Answer, Range, Section, by_pod, in_order, life_link, of_device, section
from exporter.web.pages.periods import Stamp
from exporter.web.pages.rows import UNHEALTHY_HELD, row_key, workload
from exporter.web.pages.summary import Fresh, fresh
from exporter.web.pages.timeline import Named

HOLDERS: Final = 100
"""Holders, siblings and parts that are shown, of each; the API has all."""
ID: Final = 200
"""Characters of an id that are shown."""


@dataclass(frozen=True, slots=True)
class HolderFact:
    """One present holder. `since` is None where nobody tells, and `exact` false for "or earlier"."""

    key: str
    namespace: Text
    pod: Text
    href: str
    container: Text
    workload: Text | None
    uid: str
    since: Stamp | None
    exact: bool


@dataclass(frozen=True, slots=True)
class Health:
    """Whether it is well: `kind` is well, ill or unknown; in `words`, why, since when, by whom."""

    kind: str
    words: str
    reason: Text | None
    since: Stamp | None
    by: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known: what, its value, where that leads, and who says so."""

    name: str
    value: Text
    href: str = ""
    by: str = ""
    copied: str = ""


@dataclass(frozen=True, slots=True)
class Relative:
    """Another device of the same physical one."""

    key: str
    device: Text
    href: str
    resource: Text
    kind: str
    words: str
    holders: tuple[HolderFact, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Family:
    """Devices that share a physical one, `more` besides those shown."""

    heading: str
    members: tuple[Relative, ...]
    more: int


def holders_of(device: Device, state: State, now: float) -> tuple[HolderFact, ...]:
    """The present holders, as many as are shown."""
    return tuple(holder_of(holder, device.key, state, now) for holder in device.holders[:HOLDERS])


def holder_of(holder: Holder, key: DeviceKey, state: State, now: float) -> HolderFact:
    """One holder of the device `key`."""
    since = state.since.get(Holding(key, holder))
    return HolderFact(
        key=row_key("holder", *key, *holder),
        namespace=text(holder.namespace),
        pod=text(holder.pod),
        href=life_link(holder.namespace, holder.pod, holder.pod_uid),
        container=text(holder.container),
        workload=workload(state.pods, holder),
        uid=spelled(holder.pod_uid),
        since=None if since is None else periods.stamp(since.at, now),
        exact=since is not None and since.exact,
    )


def health_of(found: Explained, state: State, now: float) -> Health:
    """How it is, by the kubelet's word and by its plugin's."""
    device, word, said = found.device, found.word, found.told
    source = "" if word is None else spelled(word.report.source)
    if not state.snapshot.complete or device is None:
        return Health("unknown", "not told", None, None, "this kubelet does not tell what is allocatable")
    since = None if said is None else periods.optional(said.since, now)
    if device.allocatable:
        return Health("well", "healthy", None, since, "the kubelet offers it")
    if word is not None and not word.report.answers:
        problem = text(word.report.problem, limit=300)
        silent = periods.optional(word.report.silent_since, now)
        return Health("ill", "its plugin does not answer", problem, silent, f"plugin at {source}")
    if said is not None and not said.healthy:
        reason = text(said.reason, limit=300) if said.reason else None
        return Health("ill", "unhealthy", reason, since, f"its plugin, at {source}")
    hit = min((a.since for a in found.anomalies if a.since is not None), default=None)
    words = "not allocatable"
    why = None
    if word is not None and not word.resource.served:
        why = Text("the kubelet does not follow its plugin")
    elif said is not None:
        why = Text("its plugin calls it healthy")
    return Health("ill", words, why, periods.optional(hit, now), "the kubelet does not offer it")


def facts_of(found: Explained, key: DeviceKey, now: float) -> Iterator[Fact]:
    """What else is known of it, and who says so."""
    device, said, word = found.device, found.told, found.word
    by_resource = address(Filters(resource=spelled(key.resource)[:TEXT_LIMIT]))
    yield Fact("Resource", text(key.resource), by_resource)
    if found.parent:
        reading = found.reading
        by = "as its plugin says" if reading.kind is DeviceKind.WHOLE else f"{reading_words(reading)}"
        yield Fact("Part of", text(found.parent, limit=ID), device_link(key.resource, found.parent), by)
    else:
        yield Fact("Read as", Text(reading_words(found.reading)))
    if device is not None:
        tells = "its plugin tells" if found.numa_by_plugin else "the kubelet tells"
        nodes = ranges(device.numa_nodes)
        yield Fact("NUMA node", Text(nodes or "not told"), "", tells if nodes else "")
    for name, value in said.attributes[:40] if said is not None else ():
        yield Fact(text(name, limit=40).shown, text(value, limit=ID), "", "", spelled(value))
    if said is not None and said.last_allocated is not None:
        last = periods.stamp(said.last_allocated, now)
        yield Fact("Last given out", Text(f"{last.clock} UTC"), "", f"{last.ago} ago, as its plugin says")
    if word is not None:
        yield Fact("Plugin", text(word.report.source, limit=120))
    for other in found.elsewhere[:10]:
        yield Fact("Same id in", text(other), device_link(other, key.device))


def reading_words(reading: IdReading) -> str:
    """How an id was read: `share 0 (id rule …)`."""
    rule = f"id rule {spelled(reading.rule)}"
    match reading.kind:
        case DeviceKind.WHOLE:
            return "a whole device" if reading.rule == "whole" else f"a whole device ({rule})"
        case DeviceKind.REPLICA:
            number = f"share {spelled(reading.replica)}" if reading.replica else "a share"
            return f"{number} ({rule})"
        case DeviceKind.PARTITION:
            part = f"partition {spelled(reading.partition)}" if reading.partition else "a partition"
            return f"{part} ({rule})"


def claim_fact(claimed: ClaimDevice) -> Fact:
    """A claimed device of the same name."""
    key = claimed.key
    return Fact(
        "Claimed as",
        text(f"{key.driver}/{key.pool}/{key.device}", limit=ID),
        claim_link(key.driver, key.pool, key.device),
        counted(len(claimed.holders), "holder"),
    )


def families_of(found: Explained, state: State, now: float) -> Iterator[Family]:
    """The devices that share a physical one with it, and those that are parts of it."""
    if found.siblings:
        parent = text(found.parent, limit=60).shown
        yield _family(f"Others of {parent}", found.siblings, state, now)
    if found.parts:
        yield _family("Its shares and parts", found.parts, state, now)


def _family(heading: str, devices: tuple[Device, ...], state: State, now: float) -> Family:
    shown = sorted(devices, key=in_order)[:HOLDERS]
    members = tuple(_relative(device, state, now) for device in shown)
    return Family(heading, members, max(0, len(devices) - HOLDERS))


def _relative(device: Device, state: State, now: float) -> Relative:
    key = device.key
    ill = state.snapshot.complete and not device.allocatable
    held = "held" if device.holders else "free"
    return Relative(
        key=row_key("relative", *key),
        device=text(key.device, limit=ID),
        href=device_link(key.resource, key.device),
        resource=text(key.resource),
        kind="unhealthy" if ill else held,
        words=(UNHEALTHY_HELD if device.holders else "unhealthy") if ill else held,
        holders=tuple(holder_of(h, key, state, now) for h in device.holders[:5]),
        more=max(0, len(device.holders) - 5),
    )


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
    reader: IdReader,
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


def _explained(state: State, key: DeviceKey, reader: IdReader) -> Explained:
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
    own: tuple[HoldingRow, ...],
    *,
    tag: str,
    reader: IdReader,
) -> DevicePage:
    """The page of a device that history alone knows: `own` are its holdings, the newest first."""
    now, state = moment.now, moment.state
    newest = own[0]
    who = f"{spelled(newest.key.namespace)}/{spelled(newest.key.pod)}"
    end = periods.ended(newest, now)
    until = "when it was last looked" if end is None else periods.in_words(end)
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

    def group(row: HoldingRow) -> Named:
        if row.key.resource == bounded(key.resource) and row.key.device == bounded(key.device):
            return Named(own, "")
        return of_device(row)

    more = history_link(device=spelled(key.device)[:TEXT_LIMIT])
    return section(answer, span, now, group=group, named=by_pod, more=more)


def _sentence(words: str) -> str:
    shown = text(words, limit=_SENTENCE).shown
    return f"{shown[0].upper()}{shown[1:]}." if shown else ""
