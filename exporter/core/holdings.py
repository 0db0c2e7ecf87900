"""Since when each holder holds what it holds, and how many allocations and releases there were."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from exporter.core.diff import Diff, Holding, diff, holdings
from exporter.core.model import Snapshot


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
    """

    change: Diff
    released: tuple[Released, ...]
    since: Mapping[Holding, Since]


_EMPTY: Mapping[Holding, Since] = MappingProxyType({})


@dataclass(slots=True)
class Ledger:
    """Follows holdings from snapshot to snapshot."""

    _last: Snapshot | None = None
    _since: Mapping[Holding, Since] = field(default_factory=lambda: _EMPTY)

    def advance(self, snapshot: Snapshot, now: float) -> Step:
        """Take in the snapshot of unix time `now`. The first one begins nothing: what it holds is older."""
        if self._last is None:
            self._last = snapshot
            first = Since(now, exact=False)
            self._since = MappingProxyType(dict.fromkeys(holdings(snapshot), first))
            return Step(Diff(), (), self._since)
        change = diff(self._last, snapshot)
        self._last = snapshot
        released = tuple(Released(ended, max(0.0, now - self._since[ended].at)) for ended in change.ended)
        if change.began or change.ended:
            since = dict(self._since)
            for ended in change.ended:
                del since[ended]
            since |= dict.fromkeys(change.began, Since(now))
            self._since = MappingProxyType(since)
        return Step(change, released, self._since)
