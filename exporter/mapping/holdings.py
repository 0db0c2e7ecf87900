"""What changed between two snapshots: who was given what, who gave what back, of whom more is known now.

A pod's uid may be learned after its holding was seen, and a source of identity may fall silent: a holding
whose uid is unknown on one side is the same holding. Two uids are two pods, whatever their name.

HeldSince when each holder holds what it holds, devices and claimed devices alike.

What history remembers of the present: since when something that is held now was held before a restart.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from exporter.mapping.model import ClaimDevice, Device, HeldKey, Holder, PodKey, Snapshot
from exporter.mapping.restart_guard import DISTRUST


class Holding(NamedTuple):
    """One holder of one device, whether a device plugin's or through a claim (DRA). A shared device has
    several holdings, a free one none.
    """

    key: HeldKey
    holder: Holder

    def unnamed(self) -> "Holding":
        """The same without the pod's uid: what the kubelet's List alone tells."""
        holder = self.holder
        return self if not holder.pod_uid else Holding(self.key, holder._replace(pod_uid=""))


class Renamed(NamedTuple):
    """One holding before and after its pod's uid was learned, or was in doubt again."""

    old: Holding
    new: Holding


@dataclass(frozen=True, slots=True)
class Diff:
    """Holdings that began, that ended, and that went on under another name; each sorted."""

    began: tuple[Holding, ...] = ()
    ended: tuple[Holding, ...] = ()
    renamed: tuple[Renamed, ...] = ()


def holdings(snapshot: Snapshot) -> frozenset[Holding]:
    """Every present holding of `snapshot`'s devices and claimed devices."""
    return of_devices(snapshot.devices) | of_claims(snapshot.claims)


def of_devices(devices: Iterable[Device]) -> frozenset[Holding]:
    """Every holding of `devices`."""
    return frozenset([Holding(device.key, holder) for device in devices for holder in device.holders])


def of_claims(claimed: Iterable[ClaimDevice]) -> frozenset[Holding]:
    """Every holding of `claimed` devices: one for each container and claim."""
    return frozenset(
        [Holding(one.held(through), through.holder) for one in claimed for through in one.holders]
    )


def diff(old: Snapshot, new: Snapshot) -> Diff:
    """What makes `new` of `old`: holdings(old) without `ended` and each `renamed.old`, and with `began` and
    each `renamed.new`, are holdings(new).
    """
    changed = new.changed_since(old)
    if changed is None:
        before, after = of_devices(old.devices), of_devices(new.devices)
    else:
        before, after = of_devices([was for was, _ in changed]), of_devices([now for _, now in changed])
    if new.claims is not old.claims:
        before, after = before | of_claims(old.claims), after | of_claims(new.claims)
    return compare(before, after)


def compare(before: frozenset[Holding], after: frozenset[Holding]) -> Diff:
    """The same of two sets of holdings."""
    began, ended = set(after - before), set(before - after)
    renamed: list[Renamed] = []
    if began and ended:
        went = _by_name(ended)
        for unnamed, came in _by_name(began).items():
            renamed.extend(_renamed(went.get(unnamed, []), came))
    for pair in renamed:
        ended.discard(pair.old)
        began.discard(pair.new)
    return Diff(tuple(sorted(began)), tuple(sorted(ended)), tuple(sorted(renamed)))


def _by_name(found: Iterable[Holding]) -> dict[Holding, list[Holding]]:
    grouped: dict[Holding, list[Holding]] = {}
    for holding in found:
        grouped.setdefault(holding.unnamed(), []).append(holding)
    return grouped


def _renamed(went: list[Holding], came: list[Holding]) -> list[Renamed]:
    """The one holding that goes on. With several of one name on a side nothing tells which is which."""
    if len(went) == len(came) == 1 and not (went[0].holder.pod_uid and came[0].holder.pod_uid):
        return [Renamed(went[0], came[0])]
    return []


def pods_gone(old: Snapshot, new: Snapshot) -> frozenset[PodKey]:
    """Namespace and name of each pod that held something in `old` and holds nothing in `new`."""
    return _holding_pods(old) - _holding_pods(new)


def _holding_pods(snapshot: Snapshot) -> frozenset[PodKey]:
    return frozenset((found.holder.namespace, found.holder.pod) for found in snapshot.containers)


class OpenHolding(NamedTuple):
    """A holding that history still has open: since when (unix time), whether that is when it was first seen,
    and the pod's uid, "" if unknown.
    """

    at: float
    exact: bool
    uid: str


class OpenHoldings(Protocol):
    """What history has open from before this process, or before it could read its file."""

    def take(self, holding: Holding) -> OpenHolding | None:
        """The record of `holding`, once: what begins again is another holding."""
        ...


@dataclass(frozen=True, slots=True)
class HeldSince:
    """When a holder was first seen: unix time in seconds.

    `exact` is False for what was held already when the exporter first looked: it is held since then
    or longer.
    """

    at: float
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """A holding that ended, and how long it lasted as far as it was seen, in seconds."""

    holding: Holding
    seconds: float


@dataclass(frozen=True, slots=True)
class HoldingChanges:
    """What one snapshot brought: what changed, how long what ended had lasted, and since when the rest is
    held.

    `change` is told by the uids that are known: what ended has the uid that it was last known by, also
    where the snapshot before had it in doubt.
    """

    change: Diff
    released: tuple[Release, ...]
    since: Mapping[Holding, HeldSince]


_EMPTY: Mapping[Holding, HeldSince] = MappingProxyType({})


@dataclass(slots=True)
class HoldingTracker:
    """Follows holdings from snapshot to snapshot.

    What history remembers from before a restart goes on: what the first snapshot shows, and what a kubelet
    that has just come up shows a little later.

    A uid is remembered while it is in doubt: if another one is learned then, the holding was a
    successor's, and ended for the pod that was known.
    """

    _last: Snapshot | None = None
    _since: Mapping[Holding, HeldSince] = field(default_factory=lambda: _EMPTY)
    _doubted: dict[Holding, Holding] = field(default_factory=dict[Holding, Holding])
    """Present holdings without a uid → the same with the uid that was known before."""
    _recollection: OpenHoldings | None = None
    _recalled_until: float = math.inf

    @property
    def since(self) -> Mapping[Holding, HeldSince]:
        """Since when each present holding is known."""
        return self._since

    def remember(self, recollection: OpenHoldings) -> None:
        """Take over what history knows: of what is older than the first snapshot, since when it is held."""
        self._recollection = recollection
        older = {holding: since for holding, since in self._since.items() if not since.exact}
        recalled = {holding: self._first_seen(holding, since) for holding, since in older.items()}
        if recalled != older:
            self._since = MappingProxyType({**self._since, **recalled})

    def _first_seen(self, holding: Holding, seen: HeldSince) -> HeldSince:
        memory = None if self._recollection is None else self._recollection.take(holding)
        if memory is None:
            return seen
        if memory.uid and not holding.holder.pod_uid:
            known = holding.holder._replace(pod_uid=memory.uid)
            self._doubted[holding] = Holding(holding.key, known)
        return HeldSince(min(memory.at, seen.at), exact=memory.exact)

    def advance(self, snapshot: Snapshot, now: float) -> HoldingChanges:
        """Take in the snapshot of unix time `now`. The first one begins nothing: what it holds is older."""
        last, self._last = self._last, snapshot
        if last is None:
            present = holdings(snapshot)
            seen = HeldSince(now, exact=False)
            self._since = MappingProxyType({holding: self._first_seen(holding, seen) for holding in present})
            self._recalled_until = now + DISTRUST
            return HoldingChanges(Diff(), (), self._since)
        change = diff(last, snapshot)
        if not (change.began or change.ended or change.renamed):
            return HoldingChanges(change, (), self._since)
        since = dict(self._since)
        went_on: list[Renamed] = []
        successors: list[Holding] = []
        ended: list[Holding] = []
        released: list[Release] = []

        def end(shown: Holding) -> None:
            known = self._doubted.pop(shown, shown)
            ended.append(known)
            released.append(Release(known, max(0.0, now - since.pop(shown).at)))

        for holding in change.ended:
            end(holding)
        for pair in change.renamed:
            known = self._doubted.get(pair.old, pair.old)
            if known.holder.pod_uid and pair.new.holder.pod_uid not in {"", known.holder.pod_uid}:
                end(pair.old)
                successors.append(pair.new)
                continue
            self._doubted.pop(pair.old, None)
            if not pair.new.holder.pod_uid:
                self._doubted[pair.new] = known
            since[pair.new] = since.pop(pair.old)
            went_on.append(pair)
        began = tuple(sorted((*change.began, *successors)))
        if now > self._recalled_until:
            self._recollection = None
        since |= {holding: self._first_seen(holding, HeldSince(now)) for holding in began}
        self._since = MappingProxyType(since)
        return HoldingChanges(
            Diff(began, tuple(sorted(ended)), tuple(went_on)),
            tuple(sorted(released, key=lambda one: one.holding)),
            self._since,
        )
