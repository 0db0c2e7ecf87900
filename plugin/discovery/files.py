"""The source `files`: every regular file of a directory is a device."""

import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings, Found, RescanNeededError, SourceConfig
from plugin.fields import HostPath
from plugin.names import natural


class Files(SourceConfig, frozen=True):
    """Every regular file of a directory is a device, named after the file. Links to files count."""

    checks_paths: ClassVar[bool] = True

    directory: HostPath
    """Absolute path on the host."""

    def attributes(self) -> frozenset[str]:
        return frozenset()

    def host_paths(self) -> Iterable[str]:
        return (self.directory,)

    def scan(self, host: HostRoot) -> Findings:
        """The files of the directory. A missing directory has none."""
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
        """The file `name`, if it is a regular file."""
        path = f"{directory.rstrip('/')}/{name}"
        with suppress(FileNotFoundError, NotADirectoryError):
            if host.is_link(path):
                # The files of a ConfigMap are links through `..data`; replacing that changes all of them.
                raise RescanNeededError
            return Found(name, path) if stat.S_ISREG(host.stat(path).st_mode) else None
        return None
