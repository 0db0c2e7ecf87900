"""When to look at the host: at once, whenever something changes, and now and then."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from plugin.serving.context import Surroundings
from plugin.serving.scan import DirectoryFollower

MOST_ENTRIES: Final = 256
"""Entries that are looked at singly; more that changed at once, and everything is looked at."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be looked at: single (directory, name) entries; None: everything.

    `since`: steady time since which it is wished for: a look that began later will do.
    """

    entries: frozenset[tuple[str, str]] | None
    since: float


@dataclass(frozen=True, slots=True)
class Follow:
    """What calls for a look: entries of directories that come or go, `contents` that are written, and
    uevents of `subsystems`.
    """

    entries: tuple[tuple[str, str], ...] = ()
    contents: tuple[tuple[str, str], ...] = ()
    subsystems: frozenset[str] = frozenset()


Look = Callable[[Wish], Awaitable[Follow | None]]
"""Does what is wished for, and says what to follow from now on; None: it failed."""


class Looks:
    """Calls for looks, one at a time, and while they are quick never more than half of the time."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._pace = surroundings.pace
        self._entries: set[tuple[str, str]] = set()
        self._everything = True
        self._since = 0.0
        self._called = asyncio.Event()
        self._settling: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """How many entries wait to be looked at singly."""
        return len(self._entries)

    def everything(self) -> None:
        """Something changed, and may be anything."""
        self._begin()
        self._everything = True
        self._called.set()

    def touched(self, directory: str, name: str | None) -> None:
        """An entry of a followed directory changed; None: any of it may have."""
        if name is None or len(self._entries) >= MOST_ENTRIES:
            self.everything()
            return
        self._begin()
        self._entries.add((directory, name))
        self._called.set()

    def uevent(self) -> None:
        """The kernel said something. What udev makes of it, such as links in /dev, comes a little later."""
        self.everything()
        if self._settling is not None:
            self._settling.cancel()
        loop = asyncio.get_running_loop()
        self._settling = loop.call_later(self._pace.settle, self.everything)

    async def run(self, look: Look, group: asyncio.TaskGroup) -> None:
        """Look until cancelled. What is followed runs in `group`."""
        following = DirectoryFollower(self._surroundings.watcher, self._surroundings.host, self.touched)
        subsystems: frozenset[str] = frozenset()
        whole = self._clock.monotonic()
        self.everything()
        with ExitStack() as uevents:
            try:
                while True:
                    wish = self._take()
                    started = self._clock.monotonic()
                    if wish.entries is None:
                        whole = started
                    follow = await look(wish)
                    if follow is not None:
                        following.follow(follow.entries, group, follow.contents)
                        if follow.subsystems != subsystems:
                            uevents.close()
                            subsystems = follow.subsystems
                            if subsystems:
                                uevents.enter_context(
                                    self._surroundings.uevents.following(subsystems, self.uevent)
                                )
                    # A look also waits for others: that, or a clock that jumps, is no reason to wait long.
                    took = min(self._clock.monotonic() - started, self._pace.retry)
                    await asyncio.sleep(max(self._pace.look_pause, took))
                    await self._wait(whole, self._pace.retry if follow is None else self._pace.rescan)
            finally:
                if self._settling is not None:
                    self._settling.cancel()

    def _begin(self) -> None:
        if not self._called.is_set():
            self._since = self._clock.monotonic()

    def _take(self) -> Wish:
        wish = Wish(None if self._everything else frozenset(self._entries), self._since)
        self._entries.clear()
        self._everything = False
        self._called.clear()
        return wish

    async def _wait(self, whole: float, limit: float) -> None:
        """Wait until something calls for a look, or the last whole look is `limit` seconds old."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, whole + limit - self._clock.monotonic())):
                await self._called.wait()
        if self._clock.monotonic() - whole >= limit:
            self.everything()
