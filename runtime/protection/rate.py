"""A token bucket: some requests at once, and one more each interval. Pure."""

from collections.abc import Callable
from typing import Final

_LOST: Final = 1e-6


class Bucket:
    """`burst` tokens at most, one more each `interval` seconds of `clock`."""

    __slots__ = ("_burst", "_clock", "_full_at", "_interval")

    def __init__(self, interval: float, burst: int, clock: Callable[[], float]) -> None:
        self._interval = interval
        self._burst = burst
        self._clock = clock
        self._full_at = clock()

    def take(self) -> float:
        """Take a token: 0.0 where there was one, else seconds until there will be."""
        now = self._clock()
        full_at = max(self._full_at, now) + self._interval
        wait = full_at - now - self._burst * self._interval
        # What a sum of floats loses must not cost a request.
        if wait > _LOST:
            return wait
        self._full_at = full_at
        return 0.0
