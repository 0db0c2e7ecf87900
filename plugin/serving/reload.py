"""The configuration read again when its file changes, when it is asked for, and now and then.

A file that is broken changes nothing: what was read before is served on, and it is told.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from plugin.config.plan import ResourcePlan
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.fleet import ResourceFleet
from plugin.serving.metrics import ConfigStatus
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher, Kind
from runtime.log import Episode, Log

READ_LIMIT: Final = 10.0
READ_INTERVAL: Final = 30.0
"""Seconds between looks that nothing calls for: a link may lead to a file in any directory."""

_log = Log("config")

Content = tuple[tuple[str, bytes], ...]
"""(source, bytes) of each file."""


class ConfigRefusedError(Exception):
    """The configuration cannot be read or used; the message says where and why, in one line."""


class Reloader:
    """Keeps a fleet to what the files say. `read` and `parse` raise ConfigRefusedError."""

    def __init__(
        self,
        read: Callable[[], Content],
        parse: Callable[[Content], tuple[ResourcePlan, ...]],
        *,
        fleet: ResourceFleet,
        clock: Clock,
    ) -> None:
        self._read = read
        self._parse = parse
        self._fleet = fleet
        self._clock = clock
        self._offload = Offload(1)
        self._content: Content | None = None
        self._succeeded_at = 0.0
        self._asked = asyncio.Event()
        self._refused = Episode(_log, "configuration refused, the last one is served on")

    def begin(self) -> tuple[ResourcePlan, ...]:
        """Read for the first time, and serve that. Raises ConfigRefusedError."""
        content = self._read()
        plans = self._parse(content)
        self._accept(content, plans)
        return plans

    @property
    def status(self) -> ConfigStatus:
        """How it was last read."""
        return ConfigStatus(self._refused.reason is None, self._succeeded_at, self._refused.reason or "")

    def ask(self) -> None:
        """Read again soon (SIGHUP)."""
        self._asked.set()

    async def run(self, file: Path | None, watcher: DirectoryWatcher) -> None:
        """Read `file` (None: there are presets alone) again whenever it changes, until cancelled."""
        async with asyncio.TaskGroup() as group:
            if file is not None:
                group.create_task(self._follow(file, watcher))
            while True:
                asked = await self._wait()
                await self._reload(asked=asked)

    async def _wait(self) -> bool:
        """Wait until something calls for reading; whether that is more than the time gone by."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_INTERVAL):
                await self._asked.wait()
        asked = self._asked.is_set()
        self._asked.clear()
        return asked

    async def _follow(self, file: Path, watcher: DirectoryWatcher) -> None:
        # A ConfigMap's files are links through `..data`, which is replaced as a whole.
        names = {file.name, "..data"}
        async for change in watcher.follow(file.parent):
            if change.kind is not Kind.ATTRIBUTES and (change.kind is Kind.RESCAN or change.name in names):
                self._asked.set()

    async def _reload(self, *, asked: bool) -> None:
        try:
            content = await self._offload.run(self._read, limit=READ_LIMIT)
            if content == self._content:
                if asked:
                    _log.debug("configuration unchanged")
                self._refused.recovered()
                return
            plans = self._parse(content)
        except (ConfigRefusedError, StuckError) as error:
            self._refused.failed(str(error), level="error")
            return
        except Exception as error:  # noqa: BLE001 -- what nobody foresaw in a file must not end what is served
            self._refused.failed(f"{type(error).__name__}: {error}", level="error")
            return
        self._refused.recovered()
        self._accept(content, plans)
        _log.info("configuration read", resources=",".join(plan.name for plan in plans))

    def _accept(self, content: Content, plans: tuple[ResourcePlan, ...]) -> None:
        self._content = content
        self._succeeded_at = self._clock.wall()
        self._fleet.apply(plans)
