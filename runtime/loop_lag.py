"""How long the event loop keeps its events waiting, measured where the loop itself waits: in its selector.

Two reads of the clock for each turn of the loop, and no timer: a process at rest stays at rest.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Iterable

from runtime.exposition import Family, gauge


class LagSelector(selectors.DefaultSelector):
    """A selector that keeps the longest lag of its event loop.

    The lag of a turn lasts from the end of one wait, or from when that was due, to the next wait: callbacks
    hold the loop, or another thread holds the GIL, or the process gets no CPU time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds. With `time.thread_time` a lag is CPU time of the loop's own thread."""
        super().__init__()
        self._clock = clock
        self._turn_due = clock()
        self._longest = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As `BaseSelector.select`."""
        called = self._clock()
        self._longest = max(self._longest, called - self._turn_due)
        ready = super().select(timeout)
        returned = self._clock()
        self._turn_due = returned if timeout is None else min(returned, called + max(timeout, 0.0))
        return ready

    def take(self) -> float:
        """The longest lag of the turns that ended since the last call, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest


class MeasuredLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop, with its lag."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` as of LagSelector."""
        self._lag = LagSelector(clock)
        super().__init__(self._lag)

    def take_lag(self) -> float:
        """As `LagSelector.take`."""
        return self._lag.take()


def take_lag() -> float:
    """The longest lag of the running loop since the last call, in seconds; 0 for one that is not measured."""
    loop = asyncio.get_running_loop()
    return loop.take_lag() if isinstance(loop, MeasuredLoop) else 0.0


class LagFamily:
    """The collector of the running loop's lag, whose name begins with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._name = f"{prefix}_event_loop_lag_seconds"
        self._lag = 0.0

    def condition(self) -> object:
        """The longest lag since the last call, to the millisecond: at rest it is the same each time."""
        self._lag = round(take_lag(), 3)
        return self._lag

    def families(self) -> Iterable[Family]:
        """The lag of the last call of `condition`."""
        text = "Longest time for which events waited for the event loop since the last scrape by anybody."
        yield gauge(self._name, f"{text} [ALPHA]", value=self._lag)
