"""Holdings: which holder has which device, what changed between two snapshots, and since when each lasts.

A pod's uid may be proven after its holding was first seen, and a pod source may go silent: a holding whose
uid is unknown on one side is the same holding. Two known uids are two pods, whatever their name.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from msgspec import Struct, field

from exporter.mapping.dra import ClaimName
from exporter.mapping.model import Device, DeviceKey, Holder, Snapshot

RESTORE_FOR: Final = 10.0
"""Seconds after the first snapshot in which a restarted kubelet may list pods late: their starts are taken
over from history, and history ends no holding that is missing.
"""


class Holding(NamedTuple):
    """One holder of one device, of a device plugin or through claims (DRA). A shared device has several."""

    key: DeviceKey
    holder: Holder

    def unnamed(self) -> "Holding":
        """The same without the pod's uid."""
        holder = self.holder
        return self if not holder.pod_uid else Holding(self.key, holder._replace(pod_uid=""))


class Renamed(NamedTuple):
    """One holding before and after its pod's uid was proven or came into doubt."""

    old: Holding
    new: Holding


class Diff(Struct, frozen=True):
    """Holdings that began, that ended, and that continue with another uid; each sorted."""

    began: tuple[Holding, ...] = ()
    ended: tuple[Holding, ...] = ()
    renamed: tuple[Renamed, ...] = ()


def holdings(snapshot: Snapshot) -> frozenset[Holding]:
    """All holdings of a snapshot."""
    return _of_devices(snapshot.devices)


def _of_devices(devices: Iterable[Device]) -> frozenset[Holding]:
    return frozenset([Holding(device.key, holder) for device in devices for holder in device.holders])


def diff(old: Snapshot, new: Snapshot) -> Diff:
    """Compare two snapshots: holdings(old) without `ended` and each `renamed.old`, plus `began` and each
    `renamed.new`, are holdings(new). A holding through other claims than before has ended and begun.
    """
    pairs = _changed(old, new)
    before, after = _of_devices([was for was, _ in pairs]), _of_devices([now for _, now in pairs])
    began, ended = set(after - before), set(before - after)
    renamed = _renamed(ended, began) if began and ended else []
    ended.difference_update(pair.old for pair in renamed)
    began.difference_update(pair.new for pair in renamed)
    replaced = [one for was, now in pairs if was.claimed and now.claimed for one in _through_others(was, now)]
    return Diff(
        tuple(sorted((*began, *replaced))), tuple(sorted((*ended, *replaced))), tuple(sorted(renamed))
    )


def _changed(old: Snapshot, new: Snapshot) -> Sequence[tuple[Device, Device]]:
    """The devices that may differ, before and after; free where a snapshot does not have one."""
    changed = new.changed_since(old)
    if changed is not None:
        return changed
    before, after = ({device.key: device for device in one.devices} for one in (old, new))
    return [
        (before.get(key) or Device(key), after.get(key) or Device(key))
        for key in before.keys() | after.keys()
    ]


def _through_others(was: Device, now: Device) -> Iterable[Holding]:
    """Holdings of holders that have `now` through other claims: a pod's successor has claims of its own."""
    if was.claimed is None or now.claimed is None or was.claimed.through is now.claimed.through:
        return
    for holder in set(was.holders) & set(now.holders):
        claims = [
            {one[1:3] for one in claimed.through if one.holder == holder}
            for claimed in (was.claimed, now.claimed)
        ]
        if claims[0] and claims[1] and claims[0].isdisjoint(claims[1]):
            yield Holding(now.key, holder)


def _renamed(ended: Iterable[Holding], began: Iterable[Holding]) -> list[Renamed]:
    """Pair holdings that differ in the uid alone. Several of one name on a side cannot be paired."""
    went, came = _by_name(ended), _by_name(began)
    pairs = [(went[name], came[name]) for name in went.keys() & came.keys()]
    return [
        Renamed(old[0], new[0])
        for old, new in pairs
        if len(old) == len(new) == 1 and not (old[0].holder.pod_uid and new[0].holder.pod_uid)
    ]


def _by_name(found: Iterable[Holding]) -> dict[Holding, list[Holding]]:
    grouped: dict[Holding, list[Holding]] = {}
    for holding in found:
        grouped.setdefault(holding.unnamed(), []).append(holding)
    return grouped


_Claims = Mapping[Holding, Collection[ClaimName]]


def _claims(snapshot: Snapshot) -> _Claims:
    """The claims of the holdings of claimed devices."""
    found: dict[Holding, set[ClaimName]] = {}
    for device in snapshot.devices:
        for one in () if device.claimed is None else device.claimed.through:
            name = ClaimName(one.claim_namespace, one.claim)
            found.setdefault(Holding(device.key, one.holder), set()).add(name)
    return found


class OpenHolding(NamedTuple):
    """A holding that history has open: since when (unix time), whether that is when it was first seen, and
    the pod's uid, "" if unknown.
    """

    at: float
    exact: bool
    uid: str


class OpenHoldings(Protocol):
    """The open holdings of history, from before this process started or before its file was readable."""

    def take(self, holding: Holding, claims: Collection[ClaimName] = ()) -> OpenHolding | None:
        """Return the record of `holding` through `claims` (DRA), once: what begins again is another one."""
        ...


class HeldSince(Struct, frozen=True):
    """When a holding was first seen, in unix time. `exact` is False if it began before the exporter's first
    List: it lasts since then or longer.
    """

    at: float
    exact: bool = True


class Release(Struct, frozen=True):
    """A holding that ended, and for how many seconds it was seen."""

    holding: Holding
    seconds: float


class HoldingChanges(Struct, frozen=True):
    """Changes by one snapshot: the diff, the releases, and since when each present holding lasts.

    `change` uses known uids: a holding that ended has its last known uid, even if the snapshot before had it
    in doubt.
    """

    change: Diff
    released: tuple[Release, ...]
    since: Mapping[Holding, HeldSince]


class HoldingTracker(Struct):
    """Tracks holdings from snapshot to snapshot.

    Starts from before a restart are taken over from history: for the first snapshot, and for RESTORE_FOR
    seconds longer, in which a restarted kubelet may list pods late.

    A uid is remembered while it is in doubt. If another uid is proven then, the holding belongs to a
    successor, and the known pod's holding has ended.
    """

    _last: Snapshot | None = None
    _since: MappingProxyType[Holding, HeldSince] = field(
        default_factory=lambda: MappingProxyType(dict[Holding, HeldSince]())
    )
    _known: dict[Holding, Holding] = field(default_factory=dict[Holding, Holding])
    """Present holdings whose uid is in doubt → the same with the uid that was known."""
    _open: OpenHoldings | None = None
    _restore_until: float = math.inf

    @property
    def since(self) -> Mapping[Holding, HeldSince]:
        """Since when each present holding lasts."""
        return self._since

    def restore(self, recorded: OpenHoldings) -> None:
        """Take over starts from history, for holdings that are older than the first snapshot."""
        self._open = recorded
        older = {holding: since for holding, since in self._since.items() if not since.exact}
        claims = {} if self._last is None else _claims(self._last)
        restored = {holding: self._start(holding, since, claims) for holding, since in older.items()}
        if restored != older:
            self._since = MappingProxyType({**self._since, **restored})

    def _start(self, holding: Holding, seen: HeldSince, claims: _Claims) -> HeldSince:
        recorded = None if self._open is None else self._open.take(holding, claims.get(holding, ()))
        if recorded is None:
            return seen
        if recorded.uid and not holding.holder.pod_uid:
            self._known[holding] = Holding(holding.key, holding.holder._replace(pod_uid=recorded.uid))
        return HeldSince(min(recorded.at, seen.at), exact=recorded.exact)

    def advance(self, snapshot: Snapshot, now: float) -> HoldingChanges:
        """Take in the snapshot of unix time `now`. Nothing begins in the first one."""
        last, self._last = self._last, snapshot
        if last is None:
            seen, claims = HeldSince(now, exact=False), {} if self._open is None else _claims(snapshot)
            self._since = MappingProxyType(
                {one: self._start(one, seen, claims) for one in holdings(snapshot)}
            )
            self._restore_until = now + RESTORE_FOR
            return HoldingChanges(Diff(), (), self._since)
        change = diff(last, snapshot)
        if not (change.began or change.ended or change.renamed):
            return HoldingChanges(change, (), self._since)
        since = self._since.copy()
        ended, began = list(change.ended), list(change.began)
        continued: list[Renamed] = []
        for pair in change.renamed:
            known = self._known.get(pair.old, pair.old)
            if known.holder.pod_uid and pair.new.holder.pod_uid not in {"", known.holder.pod_uid}:
                ended.append(pair.old)
                began.append(pair.new)
                continue
            self._known.pop(pair.old, None)
            if not pair.new.holder.pod_uid:
                self._known[pair.new] = known
            since[pair.new] = since.pop(pair.old)
            continued.append(pair)
        released = sorted(
            [Release(self._known.pop(one, one), max(0.0, now - since.pop(one).at)) for one in ended],
            key=lambda release: release.holding,
        )
        if now > self._restore_until:
            self._open = None
        began.sort()
        claims = {} if self._open is None else _claims(snapshot)
        since |= {holding: self._start(holding, HeldSince(now), claims) for holding in began}
        self._since = MappingProxyType(since)
        change = Diff(tuple(began), tuple([release.holding for release in released]), tuple(continued))
        return HoldingChanges(change, tuple(released), self._since)
