"""Measures elapsed time without the time that the thread waits for a processor."""

import time
from contextlib import suppress
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def _waited() -> float:
    """Seconds that this thread has been ready and had no processor; 0 where the kernel does not say."""
    with suppress(OSError, IndexError, ValueError):
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    return 0.0


class Stopwatch:
    """Starts when created. Measures one thread: an event loop and what it awaits."""

    def __init__(self) -> None:
        self._began, self._waited = time.monotonic(), _waited()

    @property
    def seconds(self) -> float:
        """Seconds until now, less those in which this thread waited for a processor."""
        return time.monotonic() - self._began - (_waited() - self._waited)
