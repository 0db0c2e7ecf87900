"""All that the exporter knows at one moment: the last good snapshot, and how far it can be trusted.

Where the present state hangs: written by the refresh loop, read by everyone else.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from exporter.mapping.anomalies import Anomaly
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import NO_REPORTS, PluginReports, PodKey, Snapshot


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the last refresh failed: the kubelet's method, the gRPC code's name, and words for a person.

    `since` is the unix time of the first failure in a row.
    """

    method: str
    code: str
    message: str
    since: float


class Freshness(Enum):
    """How far the mapping can be trusted."""

    FRESH = "fresh"
    """The last refresh succeeded."""
    AGEING = "ageing"
    """The last refresh failed; the mapping is younger than --stale-after."""
    STALE = "stale"
    """Older than --stale-after: no longer told to Prometheus."""
    UNKNOWN = "unknown"
    """The kubelet has not answered yet."""


_NOBODY: Mapping[Holding, HeldSince] = MappingProxyType({})
_NO_PODS: Mapping[PodKey, PodIdentity] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class State:
    """One moment. Replaced as a whole, never changed.

    `generation` grows by one each time the snapshot's content changes, or what else is known of its pods
    and devices. `taken_at` is the unix time at which the kubelet was asked for the last good snapshot,
    `changed_at` that of the last change. `since` tells from when on each present holding is known. `pods`
    tells who those are that hold something, as far as it is known: their uid is their holders'.
    `advertised` is what plugins told by then. `api_version` is the PodResources API in use, "" before the
    first answer; `notes` say what this kubelet cannot tell.
    """

    generation: int = 0
    snapshot: Snapshot = field(default_factory=Snapshot)
    taken_at: float | None = None
    changed_at: float | None = None
    since: Mapping[Holding, HeldSince] = field(default_factory=lambda: _NOBODY)
    pods: Mapping[PodKey, PodIdentity] = field(default_factory=lambda: _NO_PODS)
    anomalies: tuple[Anomaly, ...] = ()
    advertised: PluginReports = NO_REPORTS
    failure: Failure | None = None
    api_version: str = ""
    notes: tuple[str, ...] = ()

    def age(self, now: float) -> float | None:
        """Seconds since the kubelet was asked for the last good snapshot; None if there is none."""
        return None if self.taken_at is None else max(0.0, now - self.taken_at)

    def freshness(self, now: float, stale_after: float) -> Freshness:
        """How far the mapping can be trusted at unix time `now`."""
        age = self.age(now)
        if age is None:
            return Freshness.UNKNOWN
        if age > stale_after:
            return Freshness.STALE
        return Freshness.FRESH if self.failure is None else Freshness.AGEING


class StateStore:
    """Holds the present State, and wakes those who wait for another one."""

    def __init__(self) -> None:
        self._state = State()
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        """The state at this moment."""
        return self._state

    def publish(self, state: State) -> None:
        """Replace the state; everyone who follows is woken."""
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[State]:
        """The present state, then each later one that is still present when its turn comes."""
        seen: State | None = None
        while True:
            changed = self._changed
            if self._state is not seen:
                seen = self._state
                yield seen
            else:
                await changed.wait()
