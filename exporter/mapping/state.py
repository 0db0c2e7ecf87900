"""The exporter's state: the last good snapshot, its freshness, and the store that everything reads."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from exporter.mapping.chosen_devices import NO_CHOICES, Choices
from exporter.mapping.device_health import NO_HEALTH, DeviceHealth
from exporter.mapping.device_status import DeviceStatus, DeviceStatuses, device_statuses
from exporter.mapping.dra import SourceStatus
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    NO_REPORTS,
    Anomaly,
    Device,
    PluginReports,
    PodKey,
    ResourceCounts,
    Snapshot,
)

UNSETTLED: Final = "UNSETTLED"
"""Stands for a gRPC code: a List that a kubelet returned just after a restart is not believed."""


class Failure(Struct, frozen=True):
    """Why the last refresh failed: the kubelet's method, the gRPC code's name, and a message.

    `since` is the unix time of the first failure in a row.
    """

    method: str
    code: str
    message: str
    since: float

    @property
    def unsettled(self) -> bool:
        """Whether the kubelet answered, and its List is not believed (restart_guard)."""
        return self.code == UNSETTLED


class Freshness(Enum):
    """How fresh the mapping is."""

    FRESH = "fresh"
    """The last refresh succeeded."""
    AGEING = "ageing"
    """The last refresh failed; the mapping is younger than --stale-after."""
    STALE = "stale"
    """Older than --stale-after: withdrawn from /metrics."""
    UNKNOWN = "unknown"
    """The kubelet has not answered yet."""


class State(Struct, frozen=True, eq=False):
    """The state at one moment. Immutable: the refresh loop publishes a new one.

    `generation` grows by one whenever the snapshot, pods, starts, anomalies or plugin reports change.
    `taken_at` is the unix time at which the last good snapshot was requested, `changed_at` that of the last
    change. `since` maps each holding to its start. `pods` are the identities of holders with a proven uid.
    `api_version` is the PodResources API in use, "" before the first answer; `notes` list what this kubelet
    does not serve. `sources` are those of DRA facts.
    """

    generation: int = 0
    snapshot: Snapshot = field(default_factory=Snapshot)
    taken_at: float | None = None
    changed_at: float | None = None
    since: Mapping[Holding, HeldSince] = field(
        default_factory=lambda: MappingProxyType(dict[Holding, HeldSince]())
    )
    pods: Mapping[PodKey, PodIdentity] = field(
        default_factory=lambda: MappingProxyType(dict[PodKey, PodIdentity]())
    )
    anomalies: tuple[Anomaly, ...] = ()
    advertised: PluginReports = NO_REPORTS
    failure: Failure | None = None
    api_version: str = ""
    notes: tuple[str, ...] = ()
    sources: tuple[SourceStatus, ...] = ()
    statuses: DeviceStatuses | None = None

    def __post_init__(self) -> None:
        parts = (self.snapshot, self.since, self.pods, self.advertised)
        if self.statuses is None or not self.statuses.is_of(*parts):
            # The refresh loop brings them; a state that is put together by hand has none yet.
            force_setattr(self, "statuses", device_statuses(*parts))

    @property
    def devices(self) -> tuple[DeviceStatus, ...]:
        """All that is known of each device of the snapshot, in its order. An entry is the same object as in
        the state before while nothing of it changes.
        """
        return () if self.statuses is None else self.statuses.devices

    def resources(self) -> Mapping[str, ResourceCounts]:
        """Counts of each resource, by name."""
        return self.snapshot.resources() if self.statuses is None else self.statuses.resources()

    def health_of(self, device: Device) -> DeviceHealth:
        """The health of one device of the snapshot."""
        return NO_HEALTH if self.statuses is None else self.statuses.health(device)

    @property
    def choices(self) -> Choices:
        """The physical devices that other schedulers chose for holders."""
        return NO_CHOICES if self.statuses is None else self.statuses.choices

    def status_of(self, device: Device) -> DeviceStatus:
        """All that is known of one device of the snapshot."""
        return DeviceStatus(device) if self.statuses is None else self.statuses.made(device)

    def same_mapping(self, other: "State") -> bool:
        """Whether devices, pods, and anomalies are those of `other`, by identity."""
        return self.statuses is other.statuses and self.anomalies is other.anomalies

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not known about claims and their devices, and which right would tell it."""
        return tuple([one.problem for one in self.sources if one.problem])

    def age(self, now: float) -> float | None:
        """Seconds since the last good snapshot was requested; None if there is none."""
        return None if self.taken_at is None else max(0.0, now - self.taken_at)

    def freshness(self, now: float, stale_after: float) -> Freshness:
        """The freshness at unix time `now`."""
        age = self.age(now)
        if age is None:
            return Freshness.UNKNOWN
        if age > stale_after:
            return Freshness.STALE
        return Freshness.FRESH if self.failure is None else Freshness.AGEING


class Moment(Struct, frozen=True):
    """A state at unix time `now`, on `node`; stale when older than `stale_after` seconds."""

    state: State
    node: str
    now: float
    stale_after: float

    @property
    def freshness(self) -> Freshness:
        """The freshness of the mapping."""
        return self.state.freshness(self.now, self.stale_after)


class StateStore:
    """Holds the present state and wakes its followers when a new one is published."""

    def __init__(self) -> None:
        self._state = State()
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    def publish(self, state: State) -> None:
        """Replace the state and wake all followers."""
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncIterator[State]:
        """Yield the present state, then each later one; a slow follower skips states."""
        seen: State | None = None
        while True:
            changed = self._changed
            if self._state is not seen:
                seen = self._state
                yield seen
            else:
                await changed.wait()
