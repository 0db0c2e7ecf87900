"""Decides which pod, by uid, a listed holder is.

The kubelet's List names pods without uids, so a pod and its successor of the same name (of a StatefulSet, a
static pod) are indistinguishable. A pod source (the kubelet's Pods API or the API server) knows uids, but
runs at its own pace: it may be ahead of List or behind. A holder gets a uid by one of these rules:

- **Proof.** The kubelet had the pod before List was called and still has it after List returned. Uids never
  return, and a kubelet has one pod of a name at a time (kubelet: the pod manager removes before it adds), so
  it had that pod throughout.
- **Continuity.** A proven pod keeps its uid while List names it without interruption and it holds nothing
  new, unless the source reports that it ended or that a successor came. A source that goes silent therefore
  takes no uid away.
- **Doubt.** Otherwise the uid stays empty: a pod gets devices at its admission, so a new device under an old
  name may be a successor's.

All times are of one monotonic clock, in seconds.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.mapping.dra import NO_DEVICES, ClaimName, PodDevices
from exporter.mapping.model import Device, PodKey, Snapshot

NEVER: Final = math.inf
"""A time that has not come."""

API_SYNC: Final = 1.0
"""Seconds after the first pod of the API server until a restarted kubelet has all of them."""

_KEPT: Final = 60.0
"""Seconds for which an ended pod is kept: longer than any refresh."""
_LIMIT: Final = 8192
"""Names kept: many times what a node can run."""


class Workload(NamedTuple):
    """What manages a pod, by the name that people use: a Deployment, a CronJob, the Node of a static pod."""

    kind: str
    name: str


UNKNOWN: Final = Workload("", "")


class PodIdentity(Struct, frozen=True):
    """One pod as a source reports it. `labels` are the allowed ones, sorted. `created` is unix time.

    The `uid` of a static pod is the kubelet's own (the hash of its manifest), under which it allocates
    devices, and not that of the mirror pod: it stays when the mirror is recreated and changes with the file.
    `devices` is what the pod's object says about its devices.
    """

    namespace: str
    pod: str
    uid: str
    phase: str = ""
    workload: Workload = UNKNOWN
    priority_class: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    created: float = 0.0
    static: bool = False
    devices: PodDevices = NO_DEVICES

    @property
    def key(self) -> PodKey:
        """Namespace and name."""
        return self.namespace, self.pod

    def succeeded_by(self, later: "PodIdentity") -> "PodIdentity":
        """A later report of the same pod; this same object if nothing changed."""
        devices = later.devices.keeping(self.devices)
        if devices is not later.devices:
            later = replace(later, devices=devices)
        return self if later == self else later

    @property
    def ended(self) -> bool:
        """Whether its containers have terminated for good."""
        return self.phase in {"Succeeded", "Failed"}


class PodRecord(NamedTuple):
    """One pod, and when the source reported what of it. Each list of a source makes all records anew: a named
    tuple, for its speed.

    `first_seen`: first reported. `known`: the kubelet had it by then. `present`: the kubelet still had it
    then. `running`: its phase was Running by then. `over`: the kubelet was done with it by then.
    """

    identity: PodIdentity
    first_seen: float
    known: float = NEVER
    present: float = -NEVER
    running: float = NEVER
    over: float = NEVER

    @property
    def active(self) -> bool:
        """Whether it may still hold devices."""
        return self.over == NEVER and not self.identity.ended


class PodView(Struct, frozen=True):
    """All that a source has reported, at one moment.

    `connected`: the source is being watched. `synced_at`: when the first pod of the API server arrived at the
    kubelet, or at a source that is the API server; NEVER if none has.
    """

    records: Mapping[PodKey, tuple[PodRecord, ...]] = field(
        default_factory=lambda: MappingProxyType(dict[PodKey, tuple[PodRecord, ...]]())
    )
    connected: bool = False
    synced_at: float = NEVER

    def of(self, key: PodKey) -> tuple[PodRecord, ...]:
        """All pods of one name, in the order in which they came."""
        return self.records.get(key, ())

    def claims(self) -> frozenset[ClaimName]:
        """The claims of pods that may hold devices."""
        return frozenset(
            ClaimName(key[0], claim)
            for key, records in self.records.items()
            for record in records
            if record.identity.devices is not NO_DEVICES and record.active
            for claim in record.identity.devices.claim_names()
        )

    def complete(self, now: float) -> bool:
        """Whether a pod that is missing here is not on the node."""
        return self.connected and now >= self.synced_at + API_SYNC


EMPTY_VIEW: Final = PodView()
"""The view of an exporter without a pod source."""


class Poll(Struct, frozen=True):
    """When List was called and when its answer arrived."""

    asked: float
    answered: float


_Records = Sequence[PodRecord]


def proven(records: _Records, poll: Poll) -> PodIdentity | None:
    """The pod that List named, if proven, of the `records` of that name."""
    found = [r.identity for r in records if r.known <= poll.asked and r.present >= poll.answered]
    return found[0] if len(found) == 1 else None


def contradicted(records: _Records, uid: str, poll: Poll) -> bool:
    """Whether the source had reported, when List was called, that the name is no longer the pod `uid`."""
    mine = next((record for record in records if record.identity.uid == uid), None)
    if mine is not None and mine.over <= poll.asked:
        return True
    first = -NEVER if mine is None else mine.known
    others = [record for record in records if record.identity.uid != uid]
    return any(first < other.known <= poll.asked and other.over == NEVER for other in others)


def identify(
    keys: Iterable[PodKey], before: Mapping[PodKey, PodIdentity], view: PodView, poll: Poll
) -> tuple[dict[PodKey, PodIdentity], frozenset[PodKey]]:
    """Identify the listed pods `keys`, by proof or by continuity with `before`. Also returns those that are
    identified by continuity alone: their uid is in doubt if they hold something new.
    """
    found: dict[PodKey, PodIdentity] = {}
    continued: set[PodKey] = set()
    for key in keys:
        records, known = view.of(key), before.get(key)
        if len(records) == 1 and known is not None:
            (record,) = records
            if record.identity.uid == known.uid and record.over == NEVER:
                # Nearly every pod, and nothing can contradict it: the rules below, made short.
                found[key] = record.identity
                if record.known > poll.asked or record.present < poll.answered:
                    continued.add(key)
                continue
        identity = proven(records, poll)
        if identity is None:
            if known is None or contradicted(records, known.uid, poll):
                continue
            continued.add(key)
            identity = _latest(records, known)
        found[key] = identity
    return found, frozenset(continued)


def _latest(records: _Records, identity: PodIdentity) -> PodIdentity:
    """The latest report of the same pod."""
    for record in records:
        if record.identity.uid == identity.uid:
            return record.identity
    return identity


def pods_with_new_holdings(old: Snapshot, new: Snapshot) -> frozenset[PodKey]:
    """The pods that hold something in `new` that no pod of their name held in `old`. Compares names: a uid
    may have been proven in between.
    """
    found: set[PodKey] = set()
    changed = new.changed_since(old)
    if changed is None:
        devices = {device.key: device for device in old.devices}
        candidates: Iterable[Device] = new.devices
    else:
        devices = {was.key: was for was, _ in changed}
        candidates = [now for _, now in changed]
    for device in candidates:
        was = devices.get(device.key)
        if was is None or was.holders != device.holders or was.claimed != device.claimed:
            before = set() if was is None else _held_by_names(was)
            found.update((name[0], name[1]) for name in _held_by_names(device) - before)
    cpus = {container.holder[:3]: container.cpu_ids for container in old.containers}
    for container in new.containers:
        if container.cpu_ids and not set(container.cpu_ids) <= set(cpus.get(container.holder[:3], ())):
            found.add(container.holder[:2])
    return frozenset(found)


def _held_by_names(device: Device) -> set[tuple[str, ...]]:
    """The names of the containers that hold a device, and of the claims through which they do."""
    names: set[tuple[str, ...]] = {holder[:3] for holder in device.holders}
    through = () if device.claimed is None else device.claimed.through
    names.update((*one.holder[:3], one.claim_namespace, one.claim, one.share_id) for one in through)
    return names


class PodRegistry:
    """Collects a source's reports into views."""

    def __init__(self) -> None:
        self._by_name: dict[PodKey, dict[str, PodRecord]] = {}
        self._connected = False
        self._synced_at = NEVER
        self._view: PodView | None = EMPTY_VIEW

    @property
    def view(self) -> PodView:
        """The present view; the same object until something changes."""
        if self._view is None:
            records = {key: tuple(found.values()) for key, found in self._by_name.items()}
            self._view = PodView(MappingProxyType(records), self._connected, self._synced_at)
        return self._view

    def clear(self) -> None:
        """Drop all records: the source begins anew."""
        self._by_name.clear()
        self._connected, self._synced_at, self._view = False, NEVER, EMPTY_VIEW

    def connect(self, *, connected: bool = True) -> None:
        """Record that the source is watched from now on, or no longer."""
        if connected is not self._connected:
            self._connected, self._view = connected, None

    def sync(self, now: float) -> None:
        """Record that the API server's pods have begun to arrive."""
        if self._synced_at == NEVER:
            self._synced_at, self._view = now, None

    def see(self, identity: PodIdentity, now: float, *, known: bool = True) -> PodRecord | None:
        """Record a report of a pod; `known`: the kubelet has it. Returns the record before."""
        if identity.key not in self._by_name and len(self._by_name) >= _LIMIT:
            return None
        by_uid = self._by_name.setdefault(identity.key, {})
        before = by_uid.get(identity.uid)
        if before is not None:
            identity = before.identity.succeeded_by(identity)
        found = before or PodRecord(identity, now)
        found = found._replace(
            identity=identity,
            known=min(found.known, now) if known else found.known,
            running=min(found.running, now) if identity.phase == "Running" else found.running,
        )
        if found != before:
            by_uid[identity.uid] = found
            self._view = None
        return before

    def end(self, key: PodKey, uid: str, now: float) -> PodRecord | None:
        """Record that the kubelet is done with a pod. Returns the record before."""
        by_uid = self._by_name.get(key, {})
        before = by_uid.get(uid)
        if before is not None and before.over == NEVER:
            by_uid[uid] = before._replace(over=now)
            self._view = None
            self._drop(lambda record: record.over < now - _KEPT)
        return before

    def prune(self, uids: Iterable[str], begun: float) -> list[PodRecord]:
        """Drop the pods that were seen before `begun` and are not among `uids`, all pods of a list that was
        requested then. Returns the dropped records.
        """
        present = frozenset(uids)
        return self._drop(lambda one: one.identity.uid not in present and one.first_seen <= begun)

    def confirm(self, asked: float, uids: Iterable[str] | None = None) -> None:
        """Record that a list requested at `asked` contains these pods; None: all that are not over."""
        chosen = None if uids is None else frozenset(uids)
        for by_uid in self._by_name.values():
            for uid, record in by_uid.items():
                if uid in chosen if chosen is not None else record.over == NEVER:
                    by_uid[uid] = record._replace(present=max(record.present, asked))
        self._view = None

    def _drop(self, obsolete: Callable[[PodRecord], bool]) -> list[PodRecord]:
        found: list[PodRecord] = []
        for key, by_uid in list(self._by_name.items()):
            for record in [record for record in by_uid.values() if obsolete(record)]:
                found.append(by_uid.pop(record.identity.uid))
                self._view = None
            if not by_uid:
                del self._by_name[key]
        return found
