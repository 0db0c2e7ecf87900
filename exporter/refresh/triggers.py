"""What makes the exporter ask: changes in the kubelet's directories.

The kubelet tells nobody that it allocated, but it writes: a checkpoint after each allocation, a
socket for each plugin and for itself. Directories are followed, never sockets: those come and go.

How often the kubelet is asked, and how soon again after a failure. Pure; times are the event loop's, in
seconds.

The kubelet's limit of 100 calls a second is shared by all its clients, so List is called every SPACING
seconds at most on average, though some calls may follow closely: a pod comes, and then gets its devices.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from exporter.mapping.restart_guard import DISTRUST
from exporter.refresh.protocols import Trigger
from kubelet.paths import CHECKPOINT, KUBELET_SOCKET, KubeletPaths
from runtime.directory import Change, DirectoryWatcher, Kind

Ask = Callable[[Trigger], None]


def of_device_plugins(change: Change) -> Trigger | None:
    """What a change in device-plugins means.

    The device manager writes `.<number>` and renames it to the checkpoint; List shows the allocation
    from the first of the two on. Everything else that comes or goes there is a socket.
    """
    match change.kind:
        case Kind.APPEARED if change.name == CHECKPOINT or change.name.startswith("."):
            return Trigger.ALLOCATION
        case Kind.WRITTEN if change.name == CHECKPOINT:
            return Trigger.ALLOCATION
        case Kind.APPEARED | Kind.RESCAN:
            return Trigger.REGISTRATION
        case Kind.VANISHED if not change.name.startswith("."):
            return Trigger.REGISTRATION
        case _:
            return None


def of_pod_resources(change: Change) -> Trigger | None:
    """What a change in pod-resources means: the socket is made under another name and renamed."""
    if change.kind is Kind.RESCAN:
        return Trigger.SOCKET
    if change.name == KUBELET_SOCKET and change.kind in {Kind.APPEARED, Kind.VANISHED}:
        return Trigger.SOCKET
    return None


async def follow_device_plugins(watcher: DirectoryWatcher, paths: KubeletPaths, ask: Ask) -> None:
    """Ask for a refresh whenever the device manager's directory tells of something."""
    async for change in watcher.follow(paths.device_plugins):
        trigger = of_device_plugins(change)
        if trigger is not None:
            ask(trigger)


async def follow_pod_resources(watcher: DirectoryWatcher, paths: KubeletPaths, ask: Ask) -> None:
    """Ask for a refresh over a new connection whenever the PodResources socket comes or goes."""
    async for change in watcher.follow(paths.pod_resources):
        trigger = of_pod_resources(change)
        if trigger is not None:
            ask(trigger)


async def follow_pods_api(watcher: DirectoryWatcher, paths: KubeletPaths, retry: Callable[[], None]) -> None:
    """Call `retry` whenever the Pods API's socket may have come."""
    async for change in watcher.follow(paths.pods_api):
        if change.kind is Kind.RESCAN or (
            change.kind is Kind.APPEARED and change.name == paths.pods_api_socket.name
        ):
            retry()


SPACING: Final = 0.05
"""Seconds for each call of List: at most 20 in any second."""
_BURST: Final = 4
"""Calls that may follow closely, if none came for as long as they may take. kubelet: its own burst is 10."""
_CLOSELY: Final = 0.1
"""What two calls are apart in a burst, in SPACING."""

SETTLING: Final = (0.2, 1.0)
"""Seconds after a registration at which allocatable is asked again: the kubelet makes room for a new
plugin's devices only when their first list has arrived, and tells nobody.
"""

_FIRST_RETRY: Final = 0.1
_UNSETTLED_RETRY: Final = 0.2


@dataclass(frozen=True, slots=True)
class RefreshTiming:
    """The loop's times, in seconds: `interval` between full refreshes at the latest; `stale_after` is the age
    at which the mapping is no longer told to Prometheus.
    """

    interval: float
    stale_after: float
    spacing: float = SPACING
    settling: tuple[float, ...] = SETTLING


class CallPacer:
    """Counts calls and failures, and says when the next call may be, or must be."""

    def __init__(self, timing: RefreshTiming) -> None:
        self._timing = timing
        self._listed_at: deque[float] = deque(maxlen=_BURST)
        self._hold_off_until = 0.0
        self.failures = 0
        """Refreshes in a row that failed."""
        self._allocatable_failures = 0
        # Apart from the other failures: a kubelet that comes back after an hour is not slow to be asked.
        self._unsettled = 0
        self.refusals = 0
        """Answers in a row that the kubelet's rate limit refused."""

    def listed(self, now: float) -> None:
        """List is called."""
        self._listed_at.append(now)

    def wait(self, now: float) -> float:
        """Seconds until List may be called again."""
        calls, spacing = self._listed_at, self._timing.spacing
        due = calls[-1] + _CLOSELY * spacing if calls else 0.0
        if len(calls) == _BURST:
            due = max(due, calls[0] + _BURST * spacing)
        return max(0.0, due - now)

    def succeeded(self) -> None:
        """A refresh succeeded."""
        self.failures = self._unsettled = 0

    def failed(self, now: float, *, limited: bool = False, unsettled: bool = False) -> None:
        """A refresh failed. `limited`: the kubelet's rate limit was reached. `unsettled`: it answered, but is
        not believed yet.
        """
        self.failures += 1
        if not limited:
            self._unsettled = self._unsettled + 1 if unsettled else 0
        self._answered(now, limited=limited)

    def allocatable_succeeded(self, now: float) -> None:
        """GetAllocatableResources was answered."""
        self._allocatable_failures = 0
        self._answered(now, limited=False)

    def allocatable_failed(self, now: float, *, limited: bool = False) -> None:
        """GetAllocatableResources alone failed; `limited` as above."""
        self._allocatable_failures += 1
        self._answered(now, limited=limited)

    def _answered(self, now: float, *, limited: bool) -> None:
        """At the rate limit no reason is good enough before a pause is over, longer after each refusal."""
        self.refusals = self.refusals + 1 if limited else 0
        if limited:
            self._hold_off_until = now + self._pause(self.refusals)

    def held_off(self, now: float) -> float:
        """Seconds that are left of the pause at the rate limit; 0 where there is none."""
        return max(0.0, self._hold_off_until - now)

    def due(self, now: float, full_at: float) -> tuple[float, Trigger]:
        """When to ask though nothing happens, and why then: the last full refresh began at `full_at`."""
        if self._unsettled:
            # An API server that is away may be so for an hour.
            pause = _UNSETTLED_RETRY * (1 if self._unsettled * _UNSETTLED_RETRY < DISTRUST else 10)
            return now + pause, Trigger.RETRY
        if self.failures:
            return now + self._pause(self.failures), Trigger.RETRY
        if self._allocatable_failures:
            return full_at + self._pause(self._allocatable_failures), Trigger.RETRY
        return full_at + self._timing.interval, Trigger.TIMER

    def _pause(self, failures: int) -> float:
        ceiling = min(self._timing.interval, _FIRST_RETRY * 2.0 ** min(failures - 1, 10))
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter
