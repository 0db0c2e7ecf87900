"""When to scan the host for devices: at start, on changes by inotify or uevents, and periodically."""

import asyncio
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from plugin.serving.context import PluginContext
from plugin.serving.scan import DirectoryFollower

MAX_ENTRIES: Final = 256
"""Directory entries that are scanned one by one; after more changes at once a full scan follows."""


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What to scan: (directory, name) entries, or everything where `entries` is None.

    `since`: monotonic time of the request. A full scan that started later satisfies it.
    """

    entries: frozenset[tuple[str, str]] | None
    since: float


@dataclass(frozen=True, slots=True)
class ScanTriggers:
    """Changes that call for a scan: entries that come or go, `contents` that are written, and uevents.

    Entries and contents are (directory, pattern) pairs; `subsystems` are the kernel's.
    """

    entries: tuple[tuple[str, str], ...] = ()
    contents: tuple[tuple[str, str], ...] = ()
    subsystems: frozenset[str] = frozenset()


class Scan(Protocol):
    """Performs a scan."""

    async def __call__(self, request: ScanRequest, /) -> ScanTriggers | None:
        """Scan; returns the triggers of the next scan, None where this one failed."""
        ...


class ScanSchedule:
    """Calls for one scan at a time, with pauses as long as the scans themselves."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._clock = context.clock
        self._pace = context.pace
        self._entries: set[tuple[str, str]] = set()
        self._everything = True
        self._since = 0.0
        self._requested = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None

    def everything(self) -> None:
        """Request a full scan."""
        self._request()
        self._everything = True

    def touched(self, directory: str, name: str | None) -> None:
        """Request a scan of one entry of a followed directory; None: of everything."""
        if name is None or len(self._entries) >= MAX_ENTRIES:
            self.everything()
        else:
            self._request()
            self._entries.add((directory, name))

    def uevent(self) -> None:
        """Request a full scan now, and another when udev has made its links in /dev."""
        self.everything()
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.get_running_loop().call_later(self._pace.settle, self.everything)

    async def run(self, scan: Scan, group: asyncio.TaskGroup) -> None:
        """Scan until cancelled. Directory watches run in `group`."""
        following = DirectoryFollower(self._context.watcher, self._context.host, self.touched)
        subsystems: frozenset[str] = frozenset()
        last_full = self._clock.monotonic()
        self.everything()
        with ExitStack() as uevents:
            try:
                while True:
                    request = self._take()
                    started = self._clock.monotonic()
                    if request.entries is None:
                        last_full = started
                    triggers = await scan(request)
                    if triggers is not None:
                        following.follow(triggers.entries, group, triggers.contents)
                        if triggers.subsystems != subsystems:
                            uevents.close()
                            subsystems = triggers.subsystems
                            if subsystems:
                                uevents.enter_context(
                                    self._context.uevents.following(subsystems, self.uevent)
                                )
                    # Bounded: a scan also waits for other resources, and a test's clock may jump.
                    took = min(self._clock.monotonic() - started, self._pace.retry)
                    await asyncio.sleep(max(self._pace.scan_pause, took))
                    await self._wait(last_full, self._pace.retry if triggers is None else self._pace.rescan)
            finally:
                if self._settling is not None:
                    self._settling.cancel()

    def _request(self) -> None:
        if not self._requested.is_set():
            self._since = self._clock.monotonic()
            self._requested.set()

    def _take(self) -> ScanRequest:
        request = ScanRequest(None if self._everything else frozenset(self._entries), self._since)
        self._entries.clear()
        self._everything = False
        self._requested.clear()
        return request

    async def _wait(self, last_full: float, interval: float) -> None:
        """Wait for a request, or until the last full scan is `interval` seconds old."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, last_full + interval - self._clock.monotonic())):
                await self._requested.wait()
        if self._clock.monotonic() - last_full >= interval:
            self.everything()
