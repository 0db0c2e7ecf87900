"""What is different between two answers of one source. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from exporter.cli.select import CPU, Answer, Pod, Told, of_claim, of_pod
from exporter.views.schema import ClaimHolderEntry, HolderEntry


class Event(StrEnum):
    """What happened."""

    HELD = "held"
    """It was held when the watching began."""
    ALLOCATED = "allocated"
    RELEASED = "released"
    UNHEALTHY = "unhealthy"
    HEALTHY = "healthy"
    LOST = "lost"
    """Nothing is known of a node any more: what was held there may be given back unseen."""
    BACK = "back"


class Key(NamedTuple):
    """A holding's names: device and container."""

    resource: str
    device: str
    namespace: str
    pod: str
    container: str


class Proof(NamedTuple):
    """What tells a pod from its successor of the same name: its uid, and when it began to hold, "" where it
    is not known.
    """

    uid: str = ""
    since: str = ""


class Where(NamedTuple):
    """A node, with the labels that tell it from others of its name."""

    node: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that happened, at `time` as its exporter tells it (RFC 3339, "" where it does not).

    `resource` and `device` are "" for what concerns a node; `pod` for what concerns no holder.
    """

    event: Event
    where: Where
    time: str = ""
    resource: str = ""
    device: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as it was seen: who holds what, and which devices are not well. `known` is False where the
    source does not know at present.
    """

    held: Mapping[Key, Proof]
    ill: frozenset[tuple[str, str]]
    time: str
    known: bool = True


_NOTHING: Final = Seen({}, frozenset(), "")
_UNKNOWN: Final = frozenset({"stale", "unknown"})


def seen(told: Told, pod: Pod | None, *, fleet: bool) -> Seen:
    """A node as an answer tells of it; `pod`: only what that holds."""
    document = told.document
    held: dict[Key, Proof] = {}
    ill: set[tuple[str, str]] = set()
    for device in document.devices:
        if device.healthy is False:
            ill.add((device.resource, device.device))
        for h in device.holders:
            if pod is None or of_pod(h.namespace, h.pod, pod):
                key = Key(device.resource, device.device, h.namespace, h.pod, h.container)
                held[key] = Proof(h.pod_uid or "", _proving(h, fleet=fleet))
    for claim in document.claims:
        for c in claim.holders:
            if pod is None or of_pod(c.namespace, c.pod, pod):
                key = Key(claim.driver, of_claim(claim), c.namespace, c.pod, c.container)
                held[key] = Proof(c.pod_uid or "", _proving(c, fleet=fleet))
    for cpus in document.cpus if pod is not None else ():
        which = str(cpus.count) if cpus.cpu_ids is None else ",".join(map(str, cpus.cpu_ids))
        held[Key(CPU, which, cpus.namespace, cpus.pod, cpus.container)] = Proof(cpus.pod_uid or "")
    # A fleet's node whose mapping is stale has nothing in it, which says nothing.
    known = not (fleet and document.freshness in _UNKNOWN)
    return Seen(held, frozenset(ill), document.taken_at or "", known)


def _proving(holder: HolderEntry | ClaimHolderEntry, *, fleet: bool) -> str:
    """Since when it is held, "" where that proves nothing: when it was first seen is another time after each
    restart of an exporter without a file.
    """
    return holder.since or "" if holder.since_exact and not fleet else ""


@dataclass(slots=True)
class Memory:
    """Follows answers, one after another."""

    pod: Pod | None = None
    _nodes: dict[Where, Seen] = field(default_factory=dict[Where, Seen])
    _lost: set[Where] = field(default_factory=set[Where])
    _begun: bool = False

    def advance(self, answer: Answer) -> list[Change]:
        """What happened since the last answer; of the first one, what it tells."""
        found: list[Change] = []
        present: dict[Where, Seen] = {}
        for told in answer.told:
            where = Where(told.document.node, tuple(sorted(told.labels.items())))
            present[where] = seen(told, self.pod, fleet=answer.fleet)
        for where in self._nodes.keys() - present.keys():
            found += self._lose(where)
        for where, now in present.items():
            before = self._nodes.get(where)
            if not now.known:
                found += self._lose(where) if before is not None else ()
                continue
            if where in self._lost:
                self._lost.discard(where)
                found.append(Change(Event.BACK, where, now.time))
            began = Event.ALLOCATED if self._begun and before is not None else Event.HELD
            found += _differences(where, before or _NOTHING, now, began)
            self._nodes[where] = now
        self._begun = True
        return sorted(found, key=_order)

    def _lose(self, where: Where) -> list[Change]:
        if where in self._lost:
            return []
        self._lost.add(where)
        return [Change(Event.LOST, where)]


_ORDER: Final = {event: i for i, event in enumerate((Event.LOST, Event.BACK, Event.RELEASED))}


def _order(change: Change) -> tuple[Where, int, str, str]:
    """By node; what is given back comes before what is taken."""
    return change.where, _ORDER.get(change.event, len(_ORDER)), change.resource, change.device


def _differences(where: Where, before: Seen, now: Seen, began: Event) -> Iterator[Change]:
    for key, proof in before.held.items():
        after = now.held.get(key)
        if after is None or _another(proof, after):
            yield Change(Event.RELEASED, where, now.time, *key, uid=proof.uid)
    for key, proof in now.held.items():
        earlier = before.held.get(key)
        if earlier is None or _another(earlier, proof):
            yield Change(began, where, now.time, *key, uid=proof.uid)
    for resource, device in now.ill - before.ill:
        yield _of_health(Event.UNHEALTHY, where, now, resource, device)
    for resource, device in before.ill - now.ill:
        yield _of_health(Event.HEALTHY, where, now, resource, device)


def _of_health(event: Event, where: Where, now: Seen, resource: str, device: str) -> Change:
    """With its holder, where it has just one."""
    holders = [key for key in now.held if key.resource == resource and key.device == device]
    names = holders[0][2:] if len(holders) == 1 else ("", "", "")
    return Change(event, where, now.time, resource, device, *names)


def _another(before: Proof, now: Proof) -> bool:
    """Whether it is surely another pod, or the same that gave it back and got it again."""
    if before.uid and now.uid:
        return before.uid != now.uid
    return bool(before.since and now.since and before.since != now.since)
