"""Devices that a plugin gave out and that no pod lists.

A plugin tells when it last gave a device out; the kubelet lists a pod's devices from that moment on [seen:
1 ms after Allocate]. A device that nobody has listed AFTER seconds later is held by an init container
(whose devices the kubelet never lists), was given to a pod that was then refused, or has leaked.

A pod that came and went must not be taken for one of these. So it is only said where the kubelet was asked
within WITHIN seconds of the allocation, and no look from then on has shown the device in anybody's hands.
Both times are of the host's wall clock; should that be set back, what was under suspicion is let go.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exporter.core.advertised import NOTHING, Advertised
from exporter.core.model import DeviceKey

AFTER: Final = 30.0
WITHIN: Final = 0.5
"""Seconds in which no pod begins, does anything, and ends."""

_KEPT: Final = 60.0
"""Seconds for which looks are remembered: an older allocation cannot be judged any more."""
_ROUNDED: Final = 0.05
"""Seconds by which a plugin's time may be off the exporter's, by rounding."""
_JUMP: Final = 1.0
"""Seconds by which the clock may go back without anybody having set it."""


@dataclass(frozen=True, slots=True)
class Unattributed:
    """A device that was given out at unix time `at`, and that no pod lists."""

    key: DeviceKey
    at: float


class Attribution:
    """Follows what plugins gave out. All times are unix times."""

    def __init__(self) -> None:
        self._looks: deque[float] = deque(maxlen=2048)
        self._released: dict[DeviceKey, float] = {}
        self._suspects: dict[DeviceKey, float] = {}
        self._seen_free: set[DeviceKey] = set()
        """Suspects that a look WITHIN the time showed in nobody's hands."""
        self._advertised = NOTHING

    def look(
        self,
        held: frozenset[DeviceKey],
        advertised: Advertised,
        *,
        released: Iterable[DeviceKey] = (),
        asked: float,
        now: float,
    ) -> tuple[Unattributed, ...]:
        """What is unattributed by the good answer that was `asked` for and came `now`, sorted.

        `held` are the devices that anybody holds by it; `released` those that somebody held by the answer
        before, and nobody by this one.
        """
        if self._looks and asked < self._looks[-1] - _JUMP:
            self._looks.clear()
            self._released.clear()
            self._suspects.clear()
            self._seen_free.clear()
        self._looks.append(asked)
        while self._looks[0] < now - _KEPT:
            self._looks.popleft()
        self._released |= dict.fromkeys(released, asked)
        if advertised is not self._advertised:
            self._advertised = advertised
            self._suspect(now)
        self._forget(now)
        self._suspects = {
            key: at for key, at in self._suspects.items() if key not in held and self._stands(key, at, now)
        }
        self._seen_free &= self._suspects.keys()
        due = (Unattributed(key, at) for key, at in self._suspects.items() if asked >= at + AFTER)
        return tuple(sorted(due, key=lambda found: found.key))

    def _suspect(self, now: float) -> None:
        """Whatever was given out lately, and what was under suspicion if its plugin still says the same."""
        before = self._suspects
        self._suspects = {
            key: told.last_allocated
            for key, told in self._advertised.devices.items()
            if told.last_allocated is not None
            and (now - told.last_allocated <= _KEPT or before.get(key) == told.last_allocated)
        }
        self._seen_free = {key for key in self._seen_free if self._suspects.get(key) == before[key]}

    def _stands(self, key: DeviceKey, at: float, now: float) -> bool:
        if self._released.get(key, 0.0) >= at - _ROUNDED:
            return False
        if key not in self._seen_free:
            if not any(at <= look <= at + WITHIN for look in self._looks):
                return now <= at + WITHIN
            self._seen_free.add(key)
        return True

    def _forget(self, now: float) -> None:
        """What was released before anything that can still come under suspicion."""
        if self._released and min(self._released.values()) < now - 2 * _KEPT:
            self._released = {key: at for key, at in self._released.items() if at >= now - _KEPT}
