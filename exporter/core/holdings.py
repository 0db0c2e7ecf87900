"""Since when each holder holds what it holds, devices and claimed devices alike."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from exporter.core.diff import Diff, Holding, Renamed, diff, holdings
from exporter.core.model import Snapshot
from exporter.core.recollection import Recollection
from exporter.core.settling import DOUBT


@dataclass(frozen=True, slots=True)
class Since:
    """When a holder was first seen: unix time in seconds.

    `exact` is False for what was held already when the exporter first looked: it is held since then
    or longer.
    """

    at: float
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """A holding that ended, and how long it lasted as far as it was seen, in seconds."""

    holding: Holding
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """What one snapshot brought: what changed, how long what ended had lasted, and since when the rest is
    held.

    `change` is told by the uids that are known: what ended has the uid that it was last known by, also
    where the snapshot before had it in doubt.
    """

    change: Diff
    released: tuple[Released, ...]
    since: Mapping[Holding, Since]


_EMPTY: Mapping[Holding, Since] = MappingProxyType({})


@dataclass(slots=True)
class Ledger:
    """Follows holdings from snapshot to snapshot.

    What history remembers from before a restart goes on: what the first snapshot shows, and what a kubelet
    that has just come up shows a little later.

    A uid is remembered while it is in doubt: if another one is learned then, the holding was a
    successor's, and ended for the pod that was known.
    """

    _last: Snapshot | None = None
    _since: Mapping[Holding, Since] = field(default_factory=lambda: _EMPTY)
    _doubted: dict[Holding, Holding] = field(default_factory=dict[Holding, Holding])
    """Present holdings without a uid → the same with the uid that was known before."""
    _recollection: Recollection = field(default_factory=Recollection)
    _recalled_until: float = math.inf

    @property
    def since(self) -> Mapping[Holding, Since]:
        """Since when each present holding is known."""
        return self._since

    def remember(self, recollection: Recollection) -> None:
        """Take over what history knows: of what is older than the first snapshot, since when it is held."""
        self._recollection = recollection
        older = {holding: since for holding, since in self._since.items() if not since.exact}
        recalled = {holding: self._first_seen(holding, since) for holding, since in older.items()}
        if recalled != older:
            self._since = MappingProxyType({**self._since, **recalled})

    def _first_seen(self, holding: Holding, seen: Since) -> Since:
        memory = self._recollection.take(holding)
        if memory is None:
            return seen
        if memory.uid and not holding.holder.pod_uid:
            known = holding.holder._replace(pod_uid=memory.uid)
            self._doubted[holding] = Holding(holding.key, known)
        return Since(min(memory.at, seen.at), exact=memory.exact)

    def advance(self, snapshot: Snapshot, now: float) -> Step:
        """Take in the snapshot of unix time `now`. The first one begins nothing: what it holds is older."""
        last, self._last = self._last, snapshot
        if last is None:
            present = holdings(snapshot)
            seen = Since(now, exact=False)
            self._since = MappingProxyType({holding: self._first_seen(holding, seen) for holding in present})
            self._recalled_until = now + DOUBT
            return Step(Diff(), (), self._since)
        change = diff(last, snapshot)
        if not (change.began or change.ended or change.renamed):
            return Step(change, (), self._since)
        since = dict(self._since)
        went_on: list[Renamed] = []
        successors: list[Holding] = []
        ended: list[Holding] = []
        released: list[Released] = []

        def end(shown: Holding) -> None:
            known = self._doubted.pop(shown, shown)
            ended.append(known)
            released.append(Released(known, max(0.0, now - since.pop(shown).at)))

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
            self._recollection = Recollection()
        since |= {holding: self._first_seen(holding, Since(now)) for holding in began}
        self._since = MappingProxyType(since)
        return Step(
            Diff(began, tuple(sorted(ended)), tuple(went_on)),
            tuple(sorted(released, key=lambda one: one.holding)),
            self._since,
        )
