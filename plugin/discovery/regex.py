"""The source `regex`: every entry of a directory whose path below it matches an expression is a device."""

import errno
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import escape
from typing import Final

from plugin.discovery.glob import MAX_FOUND, found_at, path_now
from plugin.discovery.host import DirectoryEntry, HostRoot
from plugin.discovery.source import Findings, Found
from plugin.names import natural
from plugin.patterns import fullmatch, prefix

MAX_DIRECTORIES: Final = 4096
"""Directories that one look goes through."""


@dataclass(frozen=True, slots=True)
class RegexSource:
    """What is below `directory`, `depth` levels deep at most, and matches `pattern`."""

    pattern: str
    directory: str
    depth: int = 1

    def scan(self, host: HostRoot) -> Findings:
        """The matching entries as they are now; a directory that is missing has none."""
        base = self.directory.rstrip("/")
        follow: list[tuple[str, str]] = []
        found: list[Found] = []
        try:
            for name, entry in self._entries(host, base, follow):
                match = fullmatch(self.pattern, name)
                if match is None or entry.status is None:
                    continue
                found.append(_named(found_at(host, f"{base}/{name}", entry.status), name, match))
                if len(found) > MAX_FOUND:
                    raise OSError(errno.EFBIG, f"more than {MAX_FOUND} entries match", self.directory)
        except FileNotFoundError:
            return Findings((), tuple(follow), (f"{self.directory} is not there",))
        found.sort(key=lambda item: natural(item.name))
        notes = () if found else (f"nothing in {self.directory} matches {self.pattern}",)
        entrywise = frozenset({base or "/"} if self.depth == 1 else ())
        return Findings(tuple(found), tuple(follow), notes, entrywise=entrywise)

    def scan_entry(self, host: HostRoot, directory: str, name: str) -> Found | None:
        """What is at that path, where it is one that matches."""
        match = fullmatch(self.pattern, name)
        path = f"{directory.rstrip('/')}/{name}"
        try:
            status = host.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if match is None or stat.S_ISDIR(status.st_mode):
            return None
        return _named(found_at(host, path, status), name, match)

    def _entries(
        self, host: HostRoot, base: str, follow: list[tuple[str, str]]
    ) -> Iterator[tuple[str, DirectoryEntry]]:
        """What is no directory, by its path below the base, level by level."""
        level = [""]
        directories = 0
        for depth in range(1, self.depth + 1):
            below: list[str] = []
            for directory in level:
                directories += 1
                if directories > MAX_DIRECTORIES:
                    raise OSError(errno.EFBIG, f"more than {MAX_DIRECTORIES} directories", self.directory)
                path = f"{base}/{directory}".rstrip("/") or "/"
                follow.append((path, f"{escape(prefix(self.pattern))}*" if self.depth == 1 else "*"))
                try:
                    for entry in host.entries(path):
                        name = f"{directory}{entry.name}"
                        if entry.status is None:
                            continue
                        if not stat.S_ISDIR(entry.status.st_mode):
                            yield name, entry
                        elif depth < self.depth and not entry.is_link:
                            below.append(f"{name}/")
                except (FileNotFoundError, NotADirectoryError):
                    if directory == "":
                        raise
            level = below

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """What is at its path now: a link may lead elsewhere, a node have other numbers."""
        now = path_now(host, found.path)
        match = fullmatch(self.pattern, found.name)
        if now is None or match is None:
            return None
        now = _named(now, found.name, match)
        return found if now == found else now


def _named(item: Found, name: str, match: re.Match[str]) -> Found:
    """What was found, called as it matched, with what was captured."""
    return replace(
        item, name=name, attrs={**item.attrs, **{k: v or "" for k, v in match.groupdict().items()}}
    )
