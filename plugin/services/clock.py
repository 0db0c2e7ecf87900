"""Time, handed in."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from plugin.core.inventory import Moment


@dataclass(frozen=True, slots=True)
class Clock:
    """`wall`: seconds since 1970; `steady`: seconds that only grow, as the event loop counts them."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic

    def now(self) -> Moment:
        """This moment by both."""
        return Moment(self.wall(), self.steady())
