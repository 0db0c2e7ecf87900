"""The token bucket that all callers of PodResources share."""

from collections.abc import Callable


class TokenBucket:
    """Lets `rate` calls a second through, `burst` of them at once; full at first.

    kubelet: 100 a second, burst 10, for List, GetAllocatableResources and Get together.
    """

    def __init__(self, clock: Callable[[], float], *, rate: float = 100.0, burst: int = 10) -> None:
        """`clock`: seconds, never going back."""
        self._clock = clock
        self._rate = rate
        self._burst = float(burst)
        self._tokens = self._burst
        self._last = clock()

    def allow(self) -> bool:
        """Take a token if there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._last) * self._rate)
        self._last = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
