"""All that the exporter knows at one moment: the last good snapshot, and how far it can be trusted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from exporter.core.advertised import NOTHING, Advertised
from exporter.core.anomalies import Anomaly
from exporter.core.diff import Holding
from exporter.core.holdings import Since
from exporter.core.identity import Identity
from exporter.core.model import PodKey, Snapshot


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


_NOBODY: Mapping[Holding, Since] = MappingProxyType({})
_NO_PODS: Mapping[PodKey, Identity] = MappingProxyType({})


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
    since: Mapping[Holding, Since] = field(default_factory=lambda: _NOBODY)
    pods: Mapping[PodKey, Identity] = field(default_factory=lambda: _NO_PODS)
    anomalies: tuple[Anomaly, ...] = ()
    advertised: Advertised = NOTHING
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
