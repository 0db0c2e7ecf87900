"""Devices that a plugin gave out and that no pod lists.

A plugin tells when it last gave a device out; the kubelet lists a pod's devices from that moment on [seen:
1 ms after Allocate]. A device that nobody has listed AFTER seconds later is held by an init container
(whose devices the kubelet never lists), was given to a pod that was then refused, or has leaked.

A pod that came and went must not be taken for one of these. So it is only said where the kubelet was asked
within WITHIN seconds of the allocation, and no look from then on has shown the device in anybody's hands.
Both times are of the host's wall clock; should that be set back, what was under suspicion is let go.

Where a source of identity tells of the pods, the device can only be with one that came shortly before it was
given out. It is let go as soon as one of these has ended: a pod that was refused, or had no time to be seen.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from exporter.mapping.identity import EMPTY_VIEW, PodView
from exporter.mapping.model import NO_REPORTS, DeviceKey, PluginReports, PodKey

AFTER: Final = 30.0
WITHIN: Final = 0.5
"""Seconds in which no pod begins, does anything, and ends."""

_KEPT: Final = 60.0
"""Seconds for which looks are remembered: an older allocation cannot be judged any more."""
_ROUNDED: Final = 0.05
"""Seconds by which a plugin's time may be off the exporter's, by rounding."""
_JUMP: Final = 1.0
"""Seconds by which the clock may go back without anybody having set it."""


_BEFORE: Final = 10.0
"""Seconds for which a pod that was told of may wait for its admission."""
_LATE: Final = 2.0
"""Seconds by which a pod may be told of after it was admitted."""


@dataclass(frozen=True, slots=True)
class UnattributedDevice:
    """A device that was given out at unix time `at`, and that no pod lists; `pods` may have it, none where
    no source of identity tells.
    """

    key: DeviceKey
    at: float
    pods: tuple[PodKey, ...] = ()


@dataclass(slots=True)
class _Suspect:
    """A device that was given out `at` a time. `seen_free`: a look WITHIN the time showed it in nobody's
    hands. `pods`: uids of those that may have it, with their names.
    """

    at: float
    seen_free: bool = False
    pods: dict[str, PodKey] = field(default_factory=dict[str, PodKey])


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """What is known of the node's pods; `offset` makes unix time of the view's."""

    view: PodView = EMPTY_VIEW
    offset: float = 0.0


class UnattributedTracker:
    """Follows what plugins gave out. All times are unix times."""

    def __init__(self) -> None:
        self._looks: deque[float] = deque(maxlen=2048)
        self._answered = 0.0
        self._released: dict[DeviceKey, float] = {}
        """When devices were last seen in somebody's hands."""
        self._suspects: dict[DeviceKey, _Suspect] = {}
        self._advertised = NO_REPORTS

    def look(
        self,
        held: frozenset[DeviceKey],
        advertised: PluginReports,
        *,
        asked: float,
        now: float,
        released: Iterable[DeviceKey] = (),
        pods: PodsSeen | None = None,
    ) -> tuple[UnattributedDevice, ...]:
        """What is unattributed by the good answer that was `asked` for and came `now`, sorted.

        `held` are the devices that anybody holds by it; `released` those that somebody held by the answer
        before, and nobody by this one.
        """
        if self._looks and asked < self._looks[-1] - _JUMP:
            self._looks.clear()
            self._released.clear()
            self._suspects.clear()
        # They were held by the answer before: by whom it was given then, and not later.
        self._released |= dict.fromkeys(released, self._answered)
        if not self._looks or asked != self._looks[-1]:
            self._looks.append(asked)
            self._answered = now
        while len(self._looks) > 1 and self._looks[0] < now - _KEPT:
            self._looks.popleft()
        if advertised is not self._advertised:
            self._advertised = advertised
            self._suspect(now)
        self._forget(now)
        for key, suspect in tuple(self._suspects.items()):
            if key in held or not self._stands(key, suspect, now, pods or PodsSeen()):
                del self._suspects[key]
        due = (
            UnattributedDevice(key, suspect.at, tuple(sorted(suspect.pods.values())))
            for key, suspect in self._suspects.items()
            if asked >= suspect.at + AFTER
        )
        return tuple(sorted(due, key=lambda found: found.key))

    def _suspect(self, now: float) -> None:
        """Whatever was given out lately, and what was under suspicion if its plugin still says the same."""
        before, self._suspects = self._suspects, {}
        for key, told in self._advertised.devices.items():
            at, known = told.last_allocated, before.get(key)
            if at is None:
                continue
            if known is not None and known.at == at:
                self._suspects[key] = known
            elif now - at <= _KEPT:
                self._suspects[key] = _Suspect(at)

    def _stands(self, key: DeviceKey, suspect: _Suspect, now: float, pods: PodsSeen) -> bool:
        at = suspect.at
        if self._released.get(key, 0.0) >= at - _ROUNDED:
            return False
        if not suspect.seen_free:
            suspect.seen_free = any(at <= look <= at + WITHIN for look in self._looks)
            if not suspect.seen_free and now > at + WITHIN:
                return False
        return not pods.view.connected or _may_have(suspect, now, pods)

    def _forget(self, now: float) -> None:
        """What was released before anything that can still come under suspicion."""
        if self._released and min(self._released.values()) < now - 2 * _KEPT:
            self._released = {key: at for key, at in self._released.items() if at >= now - _KEPT}


def _may_have(suspect: _Suspect, now: float, pods: PodsSeen) -> bool:
    """Whether a pod may have it that came in time and is still there; and none that came has ended."""
    standing: set[str] = set()
    at = suspect.at - pods.offset
    for key, sightings in pods.view.sightings.items():
        for sighting in sightings:
            if at - _BEFORE <= sighting.told <= at + _LATE and sighting.over > at:
                suspect.pods[sighting.identity.uid] = key
            if sighting.standing:
                standing.add(sighting.identity.uid)
    if not suspect.pods:
        return now <= suspect.at + _LATE or not pods.view.complete(now - pods.offset)
    return suspect.pods.keys() <= standing
