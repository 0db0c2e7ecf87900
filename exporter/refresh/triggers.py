"""When the kubelet is called: triggers from its directories, and the pace of calls and retries.

The kubelet sends no events, but it writes files: a checkpoint after each allocation, a socket for each plugin
and for itself. Directories are watched, never sockets, which come and go.

The kubelet's limit of 100 calls a second is shared by all its clients. List is called at most every SPACING
seconds on average; a few calls may follow closely, as when a pod appears and then gets its devices.

All times are the event loop's, in seconds.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from exporter.refresh.protocols import Trigger
from kubelet.paths import CHECKPOINT, KUBELET_SOCKET, KubeletPaths
from runtime.directory import Change, DirectoryWatcher, Kind

Request = Callable[[Trigger], None]


def of_device_plugins(change: Change) -> Trigger | None:
    """The trigger for a change in device-plugins.

    The device manager writes `.<number>` and renames it to the checkpoint; List shows the allocation from the
    first of the two on. Every other file there is a socket.
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
    """The trigger for a change in pod-resources: the socket is created under another name and renamed."""
    if change.kind is Kind.RESCAN:
        return Trigger.SOCKET
    if change.name == KUBELET_SOCKET and change.kind in {Kind.APPEARED, Kind.VANISHED}:
        return Trigger.SOCKET
    return None


async def follow_device_plugins(watcher: DirectoryWatcher, paths: KubeletPaths, request: Request) -> None:
    """Request a refresh for each allocation and registration in the device-plugins directory."""
    async for change in watcher.follow(paths.device_plugins):
        trigger = of_device_plugins(change)
        if trigger is not None:
            request(trigger)


async def follow_pod_resources(watcher: DirectoryWatcher, paths: KubeletPaths, request: Request) -> None:
    """Request a refresh over a new connection whenever the PodResources socket appears or vanishes."""
    async for change in watcher.follow(paths.pod_resources):
        trigger = of_pod_resources(change)
        if trigger is not None:
            request(trigger)


async def follow_pods_api(watcher: DirectoryWatcher, paths: KubeletPaths, retry: Callable[[], None]) -> None:
    """Call `retry` whenever the Pods API's socket may have appeared."""
    async for change in watcher.follow(paths.pods_api):
        if change.kind is Kind.RESCAN or (
            change.kind is Kind.APPEARED and change.name == paths.pods_api_socket.name
        ):
            retry()


SPACING: Final = 0.05
"""Seconds for each call of List: at most 20 in any second."""
_BURST: Final = 4
"""Calls that may follow closely after a pause of _BURST * SPACING. kubelet: its own burst is 10."""
_CLOSELY: Final = 0.1
"""Distance of two calls in a burst, as a fraction of SPACING."""

SETTLING: Final = (0.2, 1.0)
"""Seconds after a registration at which GetAllocatableResources is called again: the kubelet adds a new
plugin's devices when their first list has arrived, without any file event.
"""

_FIRST_RETRY: Final = 0.1
UNSETTLED_RETRY: Final = 0.2
"""Seconds between calls while a List is not believed, or pods are missing since a kubelet restart."""
UNSETTLED_RETRY_LATER: Final = 2.0
"""The same after RETRY_LATER_AFTER seconds: the API server may be away for an hour."""
RETRY_LATER_AFTER: Final = 10.0


class RefreshTiming(Struct, frozen=True):
    """Times of the loop, in seconds: `interval` is the longest time between full refreshes, `stale_after` the
    age at which the mapping is withdrawn from /metrics.
    """

    interval: float
    stale_after: float
    spacing: float = SPACING
    settling: tuple[float, ...] = SETTLING


class CallPacer:
    """Decides when the next call may be made, and when it must be, from past calls and failures."""

    def __init__(self, timing: RefreshTiming) -> None:
        self._timing = timing
        self._listed_at: deque[float] = deque(maxlen=_BURST)
        self._hold_off_until = 0.0
        self.failures = 0
        """Failed refreshes in a row."""
        self._allocatable_failures = 0
        # Answers of a restarted kubelet that leave something open. Counted apart: after an hour of failures a
        # restarted kubelet is still called again at once.
        self._unsettled = 0
        self.refusals = 0
        """Answers in a row that the kubelet's rate limit refused."""

    def listed(self, now: float) -> None:
        """Record a call of List."""
        self._listed_at.append(now)

    def wait(self, now: float) -> float:
        """Seconds until List may be called again."""
        calls, spacing = self._listed_at, self._timing.spacing
        due = calls[-1] + _CLOSELY * spacing if calls else 0.0
        if len(calls) == _BURST:
            due = max(due, calls[0] + _BURST * spacing)
        return max(0.0, due - now)

    def succeeded(self, *, unconfirmed: bool = False) -> None:
        """Record a successful refresh. `unconfirmed`: pods are missing since the kubelet restarted."""
        self.failures = 0
        self._unsettled = self._unsettled + 1 if unconfirmed else 0

    def failed(self, now: float, *, limited: bool = False, unsettled: bool = False) -> None:
        """Record a failed refresh. `limited`: the kubelet's rate limit was reached. `unsettled`: List was
        answered but is not believed.
        """
        self.failures += 1
        if not limited:
            self._unsettled = self._unsettled + 1 if unsettled else 0
        self._answered(now, limited=limited)

    def allocatable_succeeded(self, now: float) -> None:
        """Record an answer of GetAllocatableResources."""
        self._allocatable_failures = 0
        self._answered(now, limited=False)

    def allocatable_failed(self, now: float, *, limited: bool = False) -> None:
        """Record a failure of GetAllocatableResources alone; `limited` as above."""
        self._allocatable_failures += 1
        self._answered(now, limited=limited)

    def _answered(self, now: float, *, limited: bool) -> None:
        """At the rate limit every call waits for a pause that grows with each refusal."""
        self.refusals = self.refusals + 1 if limited else 0
        if limited:
            self._hold_off_until = now + self._pause(self.refusals)

    def held_off(self, now: float) -> float:
        """Remaining seconds of the pause at the rate limit."""
        return max(0.0, self._hold_off_until - now)

    def due(self, now: float, full_at: float) -> tuple[float, Trigger]:
        """When to call without a trigger, and the cause. The last full refresh began at `full_at`."""
        if self._unsettled:
            soon = self._unsettled * UNSETTLED_RETRY < RETRY_LATER_AFTER
            return now + (UNSETTLED_RETRY if soon else UNSETTLED_RETRY_LATER), Trigger.RETRY
        if self.failures:
            return now + self._pause(self.failures), Trigger.RETRY
        if self._allocatable_failures:
            return full_at + self._pause(self._allocatable_failures), Trigger.RETRY
        return full_at + self._timing.interval, Trigger.TIMER

    def _pause(self, failures: int) -> float:
        ceiling = min(self._timing.interval, _FIRST_RETRY * 2.0 ** min(failures - 1, 10))
        return ceiling * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter
