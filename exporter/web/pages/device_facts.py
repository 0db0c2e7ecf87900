"""What is known of a device: its holders, its health, its facts, its relatives. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from exporter.core.diff import Holding
from exporter.core.explain import Findings as Explained
from exporter.core.ids import Kind, Reading
from exporter.core.model import ClaimDevice, Device, DeviceKey, Holder
from exporter.core.state import State
from exporter.web.links import claim_link, device_link
from exporter.web.pages import told
from exporter.web.pages.past import in_order, life_link
from exporter.web.pages.rows import UNHEALTHY_HELD, row_key, workload
from exporter.web.pages.told import Stamp
from exporter.web.query import TEXT_LIMIT, Filters, address
from exporter.web.words import Text, counted, ranges, spelled, text

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
        since=None if since is None else told.stamp(since.at, now),
        exact=since is not None and since.exact,
    )


def health_of(found: Explained, state: State, now: float) -> Health:
    """How it is, by the kubelet's word and by its plugin's."""
    device, word, said = found.device, found.word, found.told
    source = "" if word is None else spelled(word.telling.source)
    if not state.snapshot.complete or device is None:
        return Health("unknown", "not told", None, None, "this kubelet does not tell what is allocatable")
    since = None if said is None else told.optional(said.since, now)
    if device.allocatable:
        return Health("well", "healthy", None, since, "the kubelet offers it")
    if word is not None and not word.telling.answers:
        problem = text(word.telling.problem, limit=300)
        silent = told.optional(word.telling.silent_since, now)
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
    return Health("ill", words, why, told.optional(hit, now), "the kubelet does not offer it")


def facts_of(found: Explained, key: DeviceKey, now: float) -> Iterator[Fact]:
    """What else is known of it, and who says so."""
    device, said, word = found.device, found.told, found.word
    by_resource = address(Filters(resource=spelled(key.resource)[:TEXT_LIMIT]))
    yield Fact("Resource", text(key.resource), by_resource)
    if found.parent:
        reading = found.reading
        by = "as its plugin says" if reading.kind is Kind.WHOLE else f"{reading_words(reading)}"
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
        last = told.stamp(said.last_allocated, now)
        yield Fact("Last given out", Text(f"{last.clock} UTC"), "", f"{last.ago} ago, as its plugin says")
    if word is not None:
        yield Fact("Plugin", text(word.telling.source, limit=120))
    for other in found.elsewhere[:10]:
        yield Fact("Same id in", text(other), device_link(other, key.device))


def reading_words(reading: Reading) -> str:
    """How an id was read: `share 0 (id rule …)`."""
    rule = f"id rule {spelled(reading.rule)}"
    match reading.kind:
        case Kind.WHOLE:
            return "a whole device" if reading.rule == "whole" else f"a whole device ({rule})"
        case Kind.REPLICA:
            number = f"share {spelled(reading.replica)}" if reading.replica else "a share"
            return f"{number} ({rule})"
        case Kind.PARTITION:
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
