"""The node around the kubelet: what stays when the kubelet restarts.

Pods as the API server has them, what their containers have pinned, what was seen, and how this node
was configured.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from simulator.cgroups import Cgroups, Driver
from simulator.dra_claims import ClaimInfo, ClaimInfos
from simulator.dra_objects import ObjectStore
from simulator.faults import Gate
from simulator.model import Claims, Pod
from simulator.pinning import Pinning
from simulator.topology import Policy

VIOLATIONS_KEPT: Final = 1000
VIOLATION_LENGTH: Final = 1000
"""Characters kept of each: plugins may call their devices as they like."""

T = TypeVar("T")
Older = Literal["no-get", "no-allocatable", "v1alpha1"]
Event = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded answers, served byte for byte. `allocatable`: None leaves that answer to the simulation."""

    listed: bytes
    allocatable: bytes | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How the kubelet is. Times are seconds; `older`: what an older kubelet lacks."""

    root: Path
    node_name: str
    numa_nodes: tuple[int, ...]
    grace_period: float
    dial_timeout: float
    registry_interval: float
    sync_delay: float
    wipe_delay: float
    status_interval: float
    topology_policy: Policy
    topology_after_restart: bool
    ignore_unknown_resources: bool
    pods_api: bool
    pods_api_waits: bool
    cgroup_driver: Driver | None
    older: Older | None
    replay: Replay | None

    @property
    def device_plugins(self) -> Path:
        """Directory of the Registration socket, the plugins' sockets and the checkpoint."""
        return self.root / "device-plugins"

    @property
    def registration_socket(self) -> Path:
        """Where plugins register."""
        return self.device_plugins / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The device manager's checkpoint."""
        return self.device_plugins / "kubelet_internal_checkpoint"

    @property
    def pod_resources_socket(self) -> Path:
        """Where monitors ask."""
        return self.root / "pod-resources" / "kubelet.sock"

    @property
    def pods_api_socket(self) -> Path:
        """Where the Pods API is served, if it is on."""
        return self.root / "pods-api" / "pods-api.sock"

    def sockets(self) -> dict[str, Path]:
        """Every socket that is served, by what it is for."""
        sockets = {"registration": self.registration_socket, "pod_resources": self.pod_resources_socket}
        return sockets | ({"pods_api": self.pods_api_socket} if self.pods_api else {})

    @property
    def plugins_registry(self) -> Path:
        """Directory of plugins that register by being there."""
        return self.root / "plugins_registry"

    @property
    def cgroups(self) -> Path:
        """Directory of pods' cgroups, if there is a driver."""
        return self.root / "cgroup"

    @property
    def private(self) -> Path:
        """Directory of this simulator's own."""
        return self.root / ".simulator"


@dataclass(slots=True, eq=False)
class Node:
    """What outlives the kubelet's process."""

    settings: Settings
    gate: Gate
    pinning: Pinning
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    random: random.Random
    on_event: Event
    cgroups: Cgroups
    objects: ObjectStore
    uid: str
    claims: Claims = field(default_factory=Claims)
    prepared: ClaimInfos = field(default_factory=dict[tuple[str, str], ClaimInfo])
    """Claims that drivers prepared (kubelet: dra_manager_state)."""
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict[tuple[str, str], Pod])
    calls: Counter[str] = field(default_factory=Counter[str])
    violations: list[str] = field(default_factory=list[str])
    followers: set[Callable[[str, Pod], None]] = field(default_factory=set[Callable[[str, Pod], None]])
    """Receivers of the API server's pod events: ADDED, MODIFIED, DELETED."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def shuffle(self, things: Iterable[T]) -> list[T]:
        """All of `things` in an order of the kubelet's own."""
        shuffled = list(things)
        self.random.shuffle(shuffled)
        return shuffled

    def shuffle_ids(self, ids: Iterable[str]) -> list[str]:
        """As shuffle, and the same for the same seed whatever order a set has in this process."""
        return self.shuffle(sorted(ids))

    def count(self, method: str) -> None:
        """A call was made or served."""
        self.calls[method] += 1

    def violation(self, what: str) -> None:
        """A plugin did what it must not."""
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(what[:VIOLATION_LENGTH])
        self.event("violation", what=what)

    def event(self, event: str, **fields: Any) -> None:
        """Something happened that a person may want to see."""
        self.on_event(event, **fields)

    def notify(self, kind: str, pod: Pod) -> None:
        """Send an event of the API server to the followers."""
        for follower in tuple(self.followers):
            follower(kind, pod)

    def active(self) -> frozenset[str]:
        """Uids of the pods that count."""
        return frozenset(pod.uid for pod in self.pods.values() if pod.active)

    def changed(self) -> None:
        """Wake those who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()
