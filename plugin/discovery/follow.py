"""Directories followed between two surveys: which ones follows from what the last survey said."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from daemon.directory import DirectoryWatcher, Kind
from plugin.discovery.glob import compiled
from plugin.discovery.host import HostRoot

_WORTH_A_LOOK = frozenset({Kind.APPEARED, Kind.VANISHED})


class Following:
    """Sets `changed` whenever an entry that matters comes or goes in one of the followed directories."""

    def __init__(self, watcher: DirectoryWatcher, host: HostRoot, changed: asyncio.Event) -> None:
        self._watcher = watcher
        self._host = host
        self._changed = changed
        self._tasks: dict[Path, tuple[frozenset[str], asyncio.Task[None]]] = {}

    @property
    def followed(self) -> frozenset[Path]:
        """The directories that are followed now, as this process sees them."""
        return frozenset(self._tasks)

    def follow(self, wanted: Iterable[tuple[str, str]], group: asyncio.TaskGroup) -> None:
        """Follow these (directory, pattern) pairs from now on, and nothing else. Tasks go to `group`."""
        patterns: dict[Path, frozenset[str]] = {}
        for directory, pattern in wanted:
            path = self._place(directory)
            patterns[path] = patterns.get(path, frozenset()) | {pattern}
        for path in [p for p, (known, _) in self._tasks.items() if patterns.get(p) != known]:
            self._tasks.pop(path)[1].cancel()
        for path, names in patterns.items():
            if path not in self._tasks:
                self._tasks[path] = names, group.create_task(self._follow(path, names))

    def _place(self, directory: str) -> Path:
        """Where a directory is for this process: below the host's root, its links followed."""
        try:
            return self._host.here(self._host.real(directory))
        except OSError:
            return self._host.here(directory)

    async def _follow(self, directory: Path, patterns: frozenset[str]) -> None:
        # `files` takes every name, hidden ones too: `*` alone stands for all of them.
        compiled_patterns = None if "*" in patterns else [compiled(p) for p in patterns]
        async for change in self._watcher.follow(directory, contents=False):
            matters = compiled_patterns is None or any(p.match(change.name) for p in compiled_patterns)
            if change.kind is Kind.RESCAN or (change.kind in _WORTH_A_LOOK and matters):
                self._changed.set()
