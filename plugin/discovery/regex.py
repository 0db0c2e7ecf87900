"""The source `regex`: every entry of a directory whose path matches a regular expression is a device."""

import errno
import stat
from collections.abc import Iterable, Iterator
from glob import escape
from typing import Annotated, ClassVar, Final

from msgspec import Meta
from msgspec.structs import replace

from plugin.discovery.glob import MAX_FOUND, NODE_ATTRIBUTES, found_at, path_now
from plugin.discovery.host import DirectoryEntry, HostRoot
from plugin.discovery.source import Findings, Found, SourceConfig
from plugin.fields import HostPath
from plugin.fields import Regex as RegexText
from plugin.names import natural
from runtime.patterns import Match, compiled, fullmatch

MAX_DIRECTORIES: Final = 4096
"""Directories that one scan reads."""


class Regex(SourceConfig, frozen=True):
    """Every entry of a directory whose path below the directory matches is a device, named by that path.

    Directories and dangling links are no devices.

    Attributes: one for each named group of the pattern; `type`, `major` and `minor` of a device node;
    `target` of a link.

    Nodes: the path, if it is a device node.
    """

    checks_paths: ClassVar[bool] = True

    pattern: RegexText
    """A regular expression in RE2's syntax for the whole path below the directory."""
    directory: HostPath = "/dev"
    """Absolute path on the host."""
    depth: Annotated[int, Meta(ge=1, le=8)] = 1
    """Levels of directories to scan; 1: the directory itself."""

    def attributes(self) -> frozenset[str]:
        return NODE_ATTRIBUTES | frozenset(compiled(self.pattern).groupindex)

    def host_paths(self) -> Iterable[str]:
        return (self.directory,)

    def scan(self, host: HostRoot) -> Findings:
        """The matching entries. A missing directory has none."""
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
        """The device at that path, if the name matches."""
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
        """(path below the base, entry) of everything that is no directory, level by level."""
        level = [""]
        directories = 0
        for depth in range(1, self.depth + 1):
            below: list[str] = []
            for directory in level:
                directories += 1
                if directories > MAX_DIRECTORIES:
                    raise OSError(errno.EFBIG, f"more than {MAX_DIRECTORIES} directories", self.directory)
                path = f"{base}/{directory}".rstrip("/") or "/"
                follow.append((path, f"{escape(compiled(self.pattern).prefix)}*" if self.depth == 1 else "*"))
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
        """The device at the same path: the target of a link or the numbers of a node may be others."""
        now = path_now(host, found.path)
        match = fullmatch(self.pattern, found.name)
        if now is None or match is None:
            return None
        now = _named(now, found.name, match)
        return found if now == found else now


def _named(item: Found, name: str, match: Match) -> Found:
    """The device with its matched name, and the named groups as attributes."""
    return replace(
        item, name=name, attrs={**item.attrs, **{k: v or "" for k, v in match.groupdict().items()}}
    )
