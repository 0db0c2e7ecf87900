"""Who the pods on this node are, and which of them a holding belongs to.

The kubelet's List names pods without their uid, so a pod and its successor of the same name (a
StatefulSet's, a static pod's) look alike. A source of identity, the kubelet's Pods API or the API server,
tells of uids, but at its own pace: what List said may be older or newer. A uid is only believed to be the
holder's where that can be shown:

- **Proof.** The kubelet had the pod before List was asked, and has it still after List was answered. Uids
  do not come back, and a kubelet knows one pod of a name at a time (kubelet: what is removed from its pod
  manager goes before what is added), so it had that pod all the while.
- **Continuity.** A pod that was proven stays itself while List names it without interruption and without
  anything new in its hands, and nothing says that it is over or that another has come in its place. So a
  source that falls silent takes nothing away.
- **Doubt.** Everything else has no uid until it is proven: a pod gets what it holds at its admission, so
  something new in the hands of an old name may be a successor's.

Times are of one monotonic clock, in seconds.

A pod's owner, shortened to what people name.

A pod names its controller alone: a ReplicaSet rather than the Deployment that a person knows, a Job rather
than its CronJob. Both controllers name what they make after themselves, and the pod tells enough to see
it without asking anybody:

- Deployment controller: a ReplicaSet is called <deployment>-<hash>, and its pods carry the hash in the
  label pod-template-hash (Argo Rollouts does the same with its own label);
- CronJob controller: a Job is called <cronjob>-<minutes>, the scheduled time in minutes since 1970
  (before Kubernetes 1.21 in seconds).

Where that does not fit, the owner is told as it is.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from exporter.mapping.model import Device, PodKey, Snapshot

NAME_LIMIT: Final = 253
"""Characters of an object's name. The Deployment controller cuts its own name to fit its ReplicaSet's."""

_MINUTE: Final = 60.0
_LATE: Final = 365 * 86400.0
"""Seconds for which a Job may go on making pods. Dates such as 20261121 read as minutes of 2008."""
_EARLY: Final = 3600.0
"""Seconds by which the clocks of the control plane may differ, amply."""

_TEMPLATE_HASHES: Final = (
    ("pod-template-hash", "Deployment"),
    ("rollouts-pod-template-hash", "Rollout"),
)


class Owner(NamedTuple):
    """One of a pod's owner references. `controller`: the one that manages it; there is one at most."""

    api_version: str
    kind: str
    name: str
    controller: bool = True


class Workload(NamedTuple):
    """What people call it: a Deployment, a StatefulSet, a CronJob, the Node of a static pod, or the pod."""

    kind: str
    name: str


UNKNOWN: Final = Workload("", "")
"""Of a pod of which nothing is known."""


def workload(
    pod: str,
    owners: Sequence[Owner],
    labels: Mapping[str, str],
    *,
    created: float = 0.0,
    static_on: str = "",
) -> Workload:
    """The workload of the pod called `pod`.

    `created` is the pod's creationTimestamp in unix time, 0 where it is not known; `static_on` the node's
    name for a pod that its kubelet took from a file, which names no owner to the kubelet itself.
    """
    if static_on:
        return Workload("Node", static_on)
    owner = _controller(owners)
    if owner is None:
        return Workload("Pod", pod)
    group = owner.api_version.rpartition("/")[0]
    if owner.kind == "ReplicaSet" and group in {"apps", "extensions"}:
        return _of_replica_set(owner, labels)
    if owner.kind == "Job" and group == "batch":
        return _of_job(owner, created)
    return Workload(owner.kind, owner.name)


def _controller(owners: Sequence[Owner]) -> Owner | None:
    """The controller, or the only owner where none is said to be."""
    for owner in owners:
        if owner.controller:
            return owner
    return owners[0] if len(owners) == 1 else None


def _of_replica_set(owner: Owner, labels: Mapping[str, str]) -> Workload:
    name, dash, suffix = owner.name.rpartition("-")
    if name and dash and suffix and len(owner.name) < NAME_LIMIT:
        for label, kind in _TEMPLATE_HASHES:
            if labels.get(label) == suffix:
                return Workload(kind, name)
    return Workload(owner.kind, owner.name)


def _of_job(owner: Owner, created: float) -> Workload:
    name, dash, suffix = owner.name.rpartition("-")
    if name and dash and created > 0 and suffix.isascii() and suffix.isdigit() and suffix[0] != "0":
        for length, unit in ((8, _MINUTE), (10, 1.0)):
            if len(suffix) == length and -_EARLY <= created - int(suffix) * unit <= _LATE:
                return Workload("CronJob", name)
    return Workload(owner.kind, owner.name)


NEVER: Final = math.inf
"""A time that has not come."""

API_SYNC: Final = 1.0
"""Seconds after its first pod of the API server within which a kubelet that came up has not told of all."""

_KEPT: Final = 60.0
"""Seconds for which a pod that is over is remembered: nothing that is under way lasts longer."""
_LIMIT: Final = 8192
"""Names kept: many times what a node can have."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """What a source tells of one pod. `labels` are the allowed ones, sorted. `created` is unix time.

    A static pod's `uid` is the kubelet's own for it (the hash of its file), under which it keeps devices
    and cgroups, and not that of the mirror in the API server: it stays when the mirror is made anew, and
    changes with the file.
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

    @property
    def key(self) -> PodKey:
        """Namespace and name."""
        return self.namespace, self.pod

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod, and when it was seen.

    It was first `told` of at that time. The kubelet had it already at `known`, and had it still at
    `present`; it was `running` already at that time. From `over` on the kubelet has done with it.
    """

    identity: PodIdentity
    told: float
    known: float = NEVER
    present: float = -NEVER
    running: float = NEVER
    over: float = NEVER

    @property
    def standing(self) -> bool:
        """Whether it may still hold anything."""
        return self.over == NEVER and not self.identity.ended


_NOBODY: Mapping[PodKey, tuple[PodRecord, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PodView:
    """All that a source has told, at one moment.

    `connected`: whether it tells anything at present. `heard`: since when the kubelet, or the source
    itself, is known to have heard of the API server's pods (NEVER: not yet).
    """

    sightings: Mapping[PodKey, tuple[PodRecord, ...]] = field(default_factory=lambda: _NOBODY)
    connected: bool = False
    heard: float = NEVER

    def of(self, key: PodKey) -> tuple[PodRecord, ...]:
        """All pods of one name, the one that was seen first before the others."""
        return self.sightings.get(key, ())

    def complete(self, now: float) -> bool:
        """Whether a pod that is not in it is not on the node."""
        return self.connected and now >= self.heard + API_SYNC


EMPTY_VIEW: Final = PodView()
"""Of a node without a source of identity."""


@dataclass(frozen=True, slots=True)
class Poll:
    """When List was `asked` and `answered`."""

    asked: float
    answered: float


def proven(view: PodView, key: PodKey, look: Poll) -> PodIdentity | None:
    """The pod that List called `key`, where that is beyond doubt."""
    found = [s.identity for s in view.of(key) if s.known <= look.asked and s.present >= look.answered]
    return found[0] if len(found) == 1 else None


def contradicted(view: PodView, key: PodKey, uid: str, look: Poll) -> bool:
    """Whether something was known when List was asked by which `key` was no longer `uid`."""
    mine = next((s for s in view.of(key) if s.identity.uid == uid), None)
    if mine is not None and mine.over <= look.asked:
        return True
    first = -NEVER if mine is None else mine.known
    return any(
        first < s.known <= look.asked and s.over == NEVER for s in view.of(key) if s.identity.uid != uid
    )


def identify(
    keys: Iterable[PodKey], before: Mapping[PodKey, PodIdentity], view: PodView, look: Poll
) -> tuple[dict[PodKey, PodIdentity], frozenset[PodKey]]:
    """Who the listed pods `keys` are, by proof or else by continuity with `before`; and which of them are by
    continuity alone: they are doubtful if they hold something new.
    """
    found: dict[PodKey, PodIdentity] = {}
    continued: set[PodKey] = set()
    for key in keys:
        identity = proven(view, key, look)
        if identity is None:
            identity = before.get(key)
            if identity is None or contradicted(view, key, identity.uid, look):
                continue
            continued.add(key)
            identity = latest(view, identity)
        found[key] = identity
    return found, frozenset(continued)


def latest(view: PodView, identity: PodIdentity) -> PodIdentity:
    """What is known of the same pod by now."""
    for sighting in view.of(identity.key):
        if sighting.identity.uid == identity.uid:
            return sighting.identity
    return identity


def pods_with_new_holdings(old: Snapshot, new: Snapshot) -> frozenset[PodKey]:
    """The pods that hold something in `new` that a pod of their name did not hold in `old`.

    Who is a holder is compared by name: uids may have been learned in between.
    """
    found: set[PodKey] = set()
    changed = new.changed_since(old)
    if changed is None:
        devices = {device.key: device.holders for device in old.devices}
        candidates: Iterable[Device] = new.devices
    else:
        devices = {was.key: was.holders for was, _ in changed}
        candidates = [now for _, now in changed]
    for device in candidates:
        held = devices.get(device.key, ())
        if held != device.holders:
            before = {holder[:3] for holder in held}
            found.update(holder[:2] for holder in device.holders if holder[:3] not in before)
    claims = {claim.key: claim.holders for claim in old.claims}
    for claim in new.claims:
        through = claims.get(claim.key, ())
        if through != claim.holders:
            names = {one.holder[:3] for one in through}
            found.update(one.holder[:2] for one in claim.holders if one.holder[:3] not in names)
    cpus = {container.holder[:3]: container.cpu_ids for container in old.containers}
    for container in new.containers:
        if container.cpu_ids and not set(container.cpu_ids) <= set(cpus.get(container.holder[:3], ())):
            found.add(container.holder[:2])
    return frozenset(found)


def still_on_node(view: PodView, missing: Iterable[PodKey], uid: str = "") -> frozenset[PodKey]:
    """Which of the pods that List leaves out are on the node all the same, by what the source tells; with
    `uid`, none but that very pod counts.
    """
    return frozenset(
        key for key in missing if any(s.standing and (not uid or s.identity.uid == uid) for s in view.of(key))
    )


class PodRegistry:
    """Gathers what one source tells into views."""

    def __init__(self) -> None:
        self._by_name: dict[PodKey, dict[str, PodRecord]] = {}
        self._connected = False
        self._heard = NEVER
        self._view: PodView | None = EMPTY_VIEW

    @property
    def view(self) -> PodView:
        """All of it, at this moment; the same object until something changes."""
        if self._view is None:
            sightings = {key: tuple(found.values()) for key, found in self._by_name.items()}
            self._view = PodView(MappingProxyType(sightings), self._connected, self._heard)
        return self._view

    def clear(self) -> None:
        """What the source said is of the past."""
        self._by_name.clear()
        self._connected, self._heard, self._view = False, NEVER, EMPTY_VIEW

    def connect(self, *, connected: bool = True) -> None:
        """The source tells something from here on, or nothing for a while."""
        if connected is not self._connected:
            self._connected, self._view = connected, None

    def hear(self, now: float) -> None:
        """The API server's pods are known to have been heard of."""
        if self._heard == NEVER:
            self._heard, self._view = now, None

    def see(self, identity: PodIdentity, now: float, *, known: bool = True) -> PodRecord | None:
        """A pod as it is told of at `now`; `known`: the kubelet had it then, too. What was told before."""
        if identity.key not in self._by_name and len(self._by_name) >= _LIMIT:
            return None
        by_uid = self._by_name.setdefault(identity.key, {})
        before = by_uid.get(identity.uid)
        found = before or PodRecord(identity, now)
        found = replace(
            found,
            identity=identity,
            known=min(found.known, now) if known else found.known,
            running=min(found.running, now) if identity.phase == "Running" else found.running,
        )
        if found != before:
            by_uid[identity.uid] = found
            self._view = None
        return before

    def end(self, key: PodKey, uid: str, now: float) -> PodRecord | None:
        """The kubelet has done with a pod since `now`. What was told of it before."""
        by_uid = self._by_name.get(key, {})
        before = by_uid.get(uid)
        if before is not None and before.over == NEVER:
            by_uid[uid] = replace(before, over=now)
            self._view = None
            self._forget(lambda sighting: sighting.over < now - _KEPT)
        return before

    def prune(self, uids: Iterable[str], begun: float) -> list[PodRecord]:
        """The source told of all pods there are, `uids`: others that were told of before `begun` are gone.
        Those are returned.
        """
        present = frozenset(uids)
        return self._forget(lambda sighting: sighting.identity.uid not in present and sighting.told <= begun)

    def confirm(self, asked: float, uids: Iterable[str] | None = None) -> None:
        """The source was asked at `asked`, and has these pods still; None: all that are not over."""
        chosen = None if uids is None else frozenset(uids)
        for by_uid in self._by_name.values():
            for uid, sighting in by_uid.items():
                if uid in chosen if chosen is not None else sighting.over == NEVER:
                    by_uid[uid] = replace(sighting, present=max(sighting.present, asked))
        self._view = None

    def _forget(self, forgotten: Callable[[PodRecord], bool]) -> list[PodRecord]:
        found: list[PodRecord] = []
        for key, by_uid in list(self._by_name.items()):
            for sighting in [sighting for sighting in by_uid.values() if forgotten(sighting)]:
                found.append(by_uid.pop(sighting.identity.uid))
                self._view = None
            if not by_uid:
                del self._by_name[key]
        return found
