"""Flapping damped: a device that fails again and again is held unhealthy until it has been well for a while.

A device that comes and goes is worse than one that is gone: each time it looks well, a pod is sent to it.
"""

from collections import deque
from typing import Final

FALLS: Final = 5
"""Failures within WINDOW that make it flapping."""
WINDOW: Final = 300.0
SHORTEST_QUIET: Final = 10.0
LONGEST_QUIET: Final = 300.0
"""Seconds: it must have been well for as long as its last FALLS failures took, within these bounds."""


class Damper:
    """One device's memory of when it failed. Times are steady, in seconds, and never go back."""

    __slots__ = ("_falls", "_well", "held", "release_at")

    def __init__(self) -> None:
        self._falls: deque[float] = deque(maxlen=FALLS)
        self._well = True
        self.held = False
        """Whether it is held unhealthy, whatever its probes say."""
        self.release_at: float | None = None
        """When `advance` lets it go, if nothing happens before; None while it is failing or not held."""

    @property
    def span(self) -> float:
        """Seconds between the first and the last failure that count."""
        return self._falls[-1] - self._falls[0] if self._falls else 0.0

    def fall(self, now: float) -> bool:
        """It failed. Whether it is held from now on, and was not before."""
        if not self._well:
            return False
        self._well = False
        self._falls.append(now)
        self.release_at = None
        begins = not self.held and len(self._falls) == FALLS and self.span <= WINDOW
        self.held = self.held or begins
        return begins

    def rise(self, now: float) -> None:
        """It is well again."""
        if self._well:
            return
        self._well = True
        if self.held:
            self.release_at = now + min(max(self.span, SHORTEST_QUIET), LONGEST_QUIET)

    def advance(self, now: float) -> bool:
        """Let it go if it has been well for long enough; whether it was let go just now.

        What it did before is not forgotten: within WINDOW one more failure is enough to hold it again.
        """
        if self.release_at is None or now < self.release_at:
            return False
        self.held = False
        self.release_at = None
        return True

    def idle(self, now: float) -> bool:
        """Whether there is nothing worth remembering."""
        return self.forget_at is None or (not self.held and now >= self.forget_at)

    @property
    def forget_at(self) -> float | None:
        """When its last failure is too old to count; None where there was none."""
        return self._falls[-1] + WINDOW if self._falls else None
