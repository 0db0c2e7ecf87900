"""Finds devices that a plugin allocated and that no pod lists (the anomaly `unattributed`).

A plugin reports when it last allocated a device; List shows the device's pod from that moment on [measured:
1 ms after Allocate]. A device that no pod lists AFTER seconds later belongs to an init container (whose
devices List never shows), was allocated for a pod that was then rejected, or has leaked.

A short-lived pod must not cause a finding. So a device is a suspect only if List was called within WITHIN
seconds of the allocation and no List since then has shown a holder. Suspects are dropped if the wall clock,
which both times come from, is set back.

With a pod source, the device can only belong to a pod that came shortly before the allocation. The suspect is
dropped as soon as one of these pods ends: it was rejected, or ended before a List showed it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from exporter.mapping.identity import EMPTY_VIEW, PodView
from exporter.mapping.model import NO_REPORTS, DeviceKey, PluginReports, PodKey

AFTER: Final = 30.0
WITHIN: Final = 0.5
"""Longest time, in seconds, from Allocate to a List without a holder, for the device to become a suspect."""

_KEPT: Final = 60.0
"""Seconds for which polls are kept: older allocations cannot be judged."""
_ROUNDED: Final = 0.05
"""Seconds by which a plugin's time may differ through rounding."""
_CLOCK_STEP: Final = 1.0
"""Seconds by which the wall clock may go back without having been set."""
_WAITING: Final = 10.0
"""Seconds for which a pod may wait for its admission after the source reported it."""
_LATE: Final = 2.0
"""Seconds by which a source may report a pod after its admission."""


class UnattributedDevice(Struct, frozen=True):
    """A device that was allocated at unix time `at` and that no pod lists. `pods` may have it, by the pod
    source.
    """

    key: DeviceKey
    at: float
    pods: tuple[PodKey, ...] = ()


class _Suspect(Struct):
    """A device that was allocated at `at`. `seen_free`: a List within WITHIN seconds showed no holder.
    `pods`: the pods that may have it, by uid.
    """

    at: float
    seen_free: bool = False
    pods: dict[str, PodKey] = field(default_factory=dict[str, PodKey])


class PodsSeen(Struct, frozen=True):
    """The pod source's view; adding `offset` to its times gives unix time."""

    view: PodView = EMPTY_VIEW
    offset: float = 0.0


class UnattributedTracker:
    """Tracks allocations that plugins report. All times are unix times."""

    def __init__(self, after: float = AFTER) -> None:
        """`after`: seconds after the allocation from which an unlisted device is reported."""
        self._after = after
        self._polls: deque[float] = deque(maxlen=2048)
        self._answered = 0.0
        self._released: dict[DeviceKey, float] = {}
        """When each device was last seen with a holder."""
        self._suspects: dict[DeviceKey, _Suspect] = {}
        self._advertised = NO_REPORTS

    def advance(
        self,
        held: frozenset[DeviceKey],
        advertised: PluginReports,
        *,
        asked: float,
        now: float,
        released: Iterable[DeviceKey] = (),
        pods: PodsSeen | None = None,
    ) -> tuple[UnattributedDevice, ...]:
        """The unattributed devices by the answer requested at `asked` and received at `now`, sorted.

        `held` are the devices with holders; `released` had holders in the answer before and have none now.
        """
        if self._polls and asked < self._polls[-1] - _CLOCK_STEP:
            self._polls.clear()
            self._released.clear()
            self._suspects.clear()
        # Their last holder is proven by the answer before, not by this one.
        self._released |= dict.fromkeys(released, self._answered)
        if not self._polls or asked != self._polls[-1]:
            self._polls.append(asked)
            self._answered = now
        while len(self._polls) > 1 and self._polls[0] < now - _KEPT:
            self._polls.popleft()
        if advertised is not self._advertised:
            self._advertised = advertised
            self._suspects = dict(self._suspected(now))
        if self._released and min(self._released.values()) < now - 2 * _KEPT:
            self._released = {key: at for key, at in self._released.items() if at >= now - _KEPT}
        for key, suspect in tuple(self._suspects.items()):
            if key in held or not self._plausible(key, suspect, now, pods or PodsSeen()):
                del self._suspects[key]
        due = (
            UnattributedDevice(key, suspect.at, tuple(sorted(suspect.pods.values())))
            for key, suspect in self._suspects.items()
            if asked >= suspect.at + self._after
        )
        return tuple(sorted(due, key=lambda found: found.key))

    def _suspected(self, now: float) -> Iterable[tuple[DeviceKey, _Suspect]]:
        """Recent allocations, and suspects whose plugin still reports the same allocation."""
        for key, device in self._advertised.devices.items():
            at, known = device.last_allocated, self._suspects.get(key)
            if at is None:
                continue
            if known is not None and known.at == at:
                yield key, known
            elif now - at <= _KEPT:
                yield key, _Suspect(at)

    def _plausible(self, key: DeviceKey, suspect: _Suspect, now: float, pods: PodsSeen) -> bool:
        at = suspect.at
        if self._released.get(key, 0.0) >= at - _ROUNDED:
            return False
        if not suspect.seen_free:
            suspect.seen_free = any(at <= poll <= at + WITHIN for poll in self._polls)
            if not suspect.seen_free and now > at + WITHIN:
                return False
        return not pods.view.connected or _may_belong_to_pod(suspect, now, pods)


def _may_belong_to_pod(suspect: _Suspect, now: float, pods: PodsSeen) -> bool:
    """Whether pods came around the allocation and none of them has ended."""
    active: set[str] = set()
    at = suspect.at - pods.offset
    for key, records in pods.view.records.items():
        for record in records:
            if at - _WAITING <= record.first_seen <= at + _LATE and record.over > at:
                suspect.pods[record.identity.uid] = key
            if record.active:
                active.add(record.identity.uid)
    if not suspect.pods:
        return now <= suspect.at + _LATE or not pods.view.complete(now - pods.offset)
    return suspect.pods.keys() <= active
