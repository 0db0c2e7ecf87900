"""Reloads the configuration when its file changes, on SIGHUP, and periodically.

A configuration with an error is logged and changes nothing: the last valid one stays in force.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from plugin.config.plan import ResourcePlan
from plugin.discovery.host import os_problem
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.metrics import ConfigStatus
from runtime.clock import Clock, wait_within
from runtime.config_file import MAX_BYTES, ConfigError
from runtime.directory import DirectoryWatcher, Kind
from runtime.log import Episode, Log

READ_LIMIT: Final = 10.0
READ_INTERVAL: Final = 30.0
"""Seconds between checks without a trigger: a symbolic link may lead to a file in any directory."""

_log = Log("config")

_Content = tuple[tuple[str, bytes], ...]
"""(source, bytes) of each file."""


LoadPlans = Callable[[Sequence[tuple[str, bytes]]], tuple[ResourcePlan, ...]]
"""Makes the resources of all files, given as (name in messages, content). Raises ConfigError."""


class ConfigRefusedError(Exception):
    """The configuration cannot be read or has an error; the message says where and why, in one line."""


class Reloader:
    """Applies the configuration."""

    def __init__(
        self,
        files: Sequence[tuple[str, Path]],
        load: LoadPlans,
        *,
        apply: Callable[[Sequence[ResourcePlan]], None],
        clock: Clock,
    ) -> None:
        """`files`: (name in messages, path) of the configuration file and of each preset; `apply` serves the
        resources from now on.
        """
        self._files = files
        self._load = load
        self._apply = apply
        self._clock = clock
        self._offload = Offload(1)
        self._content: _Content | None = None
        self._succeeded_at = 0.0
        self._asked = asyncio.Event()
        self._refused = Episode(_log, "configuration refused, the last one stays in force")

    def begin(self) -> tuple[ResourcePlan, ...]:
        """Load the configuration for the first time. Raises ConfigRefusedError."""
        content = _read(self._files)
        plans = self._parse(content)
        self._accept(content, plans)
        return plans

    @property
    def status(self) -> ConfigStatus:
        """The result of the last reload."""
        return ConfigStatus(self._refused.reason is None, self._succeeded_at, self._refused.reason or "")

    def ask(self) -> None:
        """Reload soon."""
        self._asked.set()

    async def run(self, file: Path | None, watcher: DirectoryWatcher) -> None:
        """Reload until cancelled. `file` is watched; None for a configuration of presets alone."""
        async with asyncio.TaskGroup() as group:
            if file is not None:
                group.create_task(self._follow(file, watcher))
            while True:
                asked = await wait_within(self._asked, READ_INTERVAL)
                self._asked.clear()
                await self._reload(asked=asked)

    async def _follow(self, file: Path, watcher: DirectoryWatcher) -> None:
        # The files of a ConfigMap are links through `..data`, which the kubelet replaces.
        names = {file.name, "..data"}
        async for change in watcher.follow(file.parent):
            if change.kind is not Kind.ATTRIBUTES and (change.kind is Kind.RESCAN or change.name in names):
                self._asked.set()

    async def _reload(self, *, asked: bool) -> None:
        try:
            content = await self._offload.run(lambda: _read(self._files), limit=READ_LIMIT)
            if content == self._content:
                if asked:
                    _log.debug("configuration unchanged")
                self._refused.recovered()
                return
            plans = self._parse(content)
        except (ConfigRefusedError, StuckError) as error:
            self._refused.failed(str(error), level="error")
            return
        except Exception as error:  # noqa: BLE001 -- an unforeseen error must not end what is served
            self._refused.failed(f"{type(error).__name__}: {error}", level="error")
            return
        self._refused.recovered()
        self._accept(content, plans)
        _log.info("configuration read", resources=",".join(plan.name for plan in plans))

    def _parse(self, content: _Content) -> tuple[ResourcePlan, ...]:
        try:
            return self._load(content)
        except ConfigError as error:
            raise ConfigRefusedError(str(error)) from error

    def _accept(self, content: _Content, plans: tuple[ResourcePlan, ...]) -> None:
        self._content = content
        self._succeeded_at = self._clock.wall()
        self._apply(plans)


def _read(files: Sequence[tuple[str, Path]]) -> _Content:
    contents: list[tuple[str, bytes]] = []
    for source, path in files:
        try:
            with path.open("rb") as file:
                contents.append((source, file.read(MAX_BYTES + 1)))
        except OSError as error:
            raise ConfigRefusedError(f"cannot read the configuration: {os_problem(error)}") from error
    return tuple(contents)
