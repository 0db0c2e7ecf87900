"""A clock that tells unix time and does not jump while it matters.

Ages decide whether the mapping may still be told, so they must not follow a wall clock that somebody
sets an hour back. This clock runs steadily and is set right only when the kubelet has just answered.

Time, handed in.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: `wall` in seconds since 1970 for people, `steady` for measuring."""

    wall: float
    steady: float


class SteadyClock:
    """Unix time in seconds that runs with the monotonic clock between two calls of `set_right`."""

    __slots__ = ("_offset", "_steady", "_wall")

    def __init__(
        self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._offset = 0.0
        self.set_right()

    def wall(self) -> float:
        """The wall clock's own time, jumps and all."""
        return self._wall()

    def set_right(self) -> None:
        """Take the wall clock's time."""
        self._offset = self._wall() - self._steady()

    def now(self) -> float:
        """Unix time, as of the last `set_right` and the time that has passed since."""
        return self._offset + self._steady()


@dataclass(frozen=True, slots=True)
class Clock:
    """`wall`: seconds since 1970; `steady`: seconds that only grow, as the event loop counts them."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic

    def now(self) -> Moment:
        """This moment by both."""
        return Moment(self.wall(), self.steady())
