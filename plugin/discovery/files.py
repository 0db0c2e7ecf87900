"""The source `files`: every regular file of a directory is a device, named like the file."""

import stat
from contextlib import suppress
from dataclasses import dataclass

from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings, Found, RescanNeededError, same_path
from plugin.names import natural


@dataclass(frozen=True, slots=True)
class FilesSource:
    """The regular files of `directory`, links to regular files among them (a ConfigMap has only such)."""

    directory: str

    def scan(self, host: HostRoot) -> Findings:
        """The files as they are now; a directory that is missing has none."""
        base = self.directory.rstrip("/")
        follow = ((self.directory, "*"),)
        try:
            found = [
                Found(entry.name, f"{base}/{entry.name}")
                for entry in host.entries(self.directory)
                if entry.status is not None and stat.S_ISREG(entry.status.st_mode)
            ]
        except FileNotFoundError:
            return Findings((), follow, (f"{self.directory} is not there",))
        found.sort(key=lambda item: natural(item.name))
        notes = () if found else (f"{self.directory} has no regular file",)
        return Findings(tuple(found), follow, notes, entrywise=frozenset({self.directory}))

    def scan_entry(self, host: HostRoot, directory: str, name: str) -> Found | None:
        """The file of that name, if it is one."""
        path = f"{directory.rstrip('/')}/{name}"
        with suppress(FileNotFoundError, NotADirectoryError):
            if host.is_link(path):
                # A ConfigMap's files are links through `..data`, which is replaced: then all are others.
                raise RescanNeededError
            return Found(name, path) if stat.S_ISREG(host.stat(path).st_mode) else None
        return None

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """As it was found, while its path is there."""
        return same_path(host, found)
