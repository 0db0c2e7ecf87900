"""Directories followed between two surveys: which ones follows from what the last survey said."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from re import Pattern

from daemon.directory import Change, DirectoryWatcher, Kind
from plugin.discovery.glob import compiled
from plugin.discovery.host import HostRoot

_COMES_OR_GOES = frozenset({Kind.APPEARED, Kind.VANISHED})

Touched = Callable[[str, str | None], None]
"""Called with a host directory and the name of the entry that changed, or None: more may have."""

_Wanted = frozenset[tuple[str, str, bool]]
"""(host directory, pattern, contents) of one directory as this process sees it."""


class Following:
    """Tells whenever an entry that matters comes or goes in one of the followed directories."""

    def __init__(self, watcher: DirectoryWatcher, host: HostRoot, touched: Touched) -> None:
        self._watcher = watcher
        self._host = host
        self._touched = touched
        self._tasks: dict[Path, tuple[_Wanted, asyncio.Task[None]]] = {}

    @property
    def followed(self) -> frozenset[Path]:
        """The directories that are followed now, as this process sees them."""
        return frozenset(self._tasks)

    def follow(
        self,
        wanted: Iterable[tuple[str, str]],
        group: asyncio.TaskGroup,
        contents: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Follow these (directory, pattern) pairs from now on, and nothing else. Tasks go to `group`.

        Of `contents` it is also told when an entry was written.
        """
        patterns: dict[Path, _Wanted] = {}
        places: dict[str, Path] = {}
        for pairs, written in ((wanted, False), (contents, True)):
            for directory, pattern in pairs:
                if directory not in places:
                    places[directory] = self._place(directory)
                path = places[directory]
                patterns[path] = patterns.get(path, frozenset()) | {(directory, pattern, written)}
        for path in [p for p, (known, _) in self._tasks.items() if patterns.get(p) != known]:
            self._tasks.pop(path)[1].cancel()
        for path, what in patterns.items():
            if path not in self._tasks:
                self._tasks[path] = what, group.create_task(self._follow(path, what))

    def _place(self, directory: str) -> Path:
        """Where a directory is for this process: below the host's root, its links followed."""
        try:
            return self._host.here(self._host.real(directory))
        except OSError:
            return self._host.here(directory)

    async def _follow(self, path: Path, wanted: _Wanted) -> None:
        # `files` takes every name, hidden ones too: `*` alone stands for all of them.
        what = [(d, None if p == "*" else compiled(p), contents) for d, p, contents in sorted(wanted)]
        contents = any(written for _, _, written in what)
        async for change in self._watcher.follow(path, contents=contents):
            for directory in self._meant(change, what):
                self._touched(directory, None if change.kind is Kind.RESCAN else change.name)

    def _meant(self, change: Change, what: Iterable[tuple[str, Pattern[str] | None, bool]]) -> set[str]:
        """The host directories for which a change matters."""
        return {
            directory
            for directory, pattern, contents in what
            if change.kind is Kind.RESCAN
            or (
                (change.kind in _COMES_OR_GOES or (contents and change.kind is Kind.WRITTEN))
                and (pattern is None or pattern.match(change.name))
            )
        }
