"""Files written for a container at Allocate, there for as long as a pod may hold the devices."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from plugin.core.inventory import RELEASE_AFTER
from plugin.core.rendering import File
from plugin.discovery import host_files
from plugin.discovery.host import HostRoot
from plugin.services.belongings import Belongings, FileRecord
from plugin.services.clock import Clock
from plugin.services.trying import try_each

KEPT_FOR: Final = RELEASE_AFTER
"""Seconds for which a file stays at least: Allocate answers before the kubelet tells who holds what."""


class SideFiles:
    """The files of one resource, by what is remembered of them. Blocking; every method may raise OSError."""

    def __init__(self, host: HostRoot, belongings: Belongings, clock: Clock) -> None:
        self._host = host
        self._belongings = belongings
        self._clock = clock
        self._begun = clock.steady()
        self._named: dict[str, float] = {}

    def any(self) -> bool:
        """Whether there is any."""
        return bool(self._belongings.record.files)

    def write(self, files: Sequence[File], owners: Mapping[str, str]) -> None:
        """Write what a container needs; `owners`: its devices' ids, by the ids it was given for them."""
        if not files:
            return
        with self._belongings.guard:
            known = dict(self._belongings.record.files)
            for file in files:
                before = known.get(file.host)
                ids = (i for i, device in owners.items() if file.device in {"", device})
                holders = {*ids, *(before.ids if before is not None else ())}
                made = before.made if before is not None else ()
                known[file.host] = FileRecord(file.content, file.mode, tuple(sorted(holders)), made)
            self._belongings.put(files=known)
            for file in files:
                self._named[file.host] = self._clock.steady()
                self._bring(file.host, known[file.host])

    def restore(self) -> None:
        """Write anew what is not there any more: after a reboot /run is empty, and pods start again."""
        with self._belongings.guard:
            files = self._belongings.record.files
            try_each(files, lambda path: self._bring(path, files[path]))

    def release(self, held: Collection[str]) -> tuple[str, ...]:
        """Remove the files of devices that nobody holds; `held`: every id that is held."""
        now = self._clock.steady()
        with self._belongings.guard:
            gone = tuple(
                path
                for path, record in self._belongings.record.files.items()
                if now - self._named.get(path, self._begun) >= KEPT_FOR and not set(record.ids) & set(held)
            )
            self._remove(gone)
        return gone

    def remove_all(self) -> None:
        """Remove every file: the resource is no more."""
        with self._belongings.guard:
            self._remove(tuple(self._belongings.record.files))

    def _remove(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        known = dict(self._belongings.record.files)

        def remove(path: str) -> None:
            host_files.remove(self._host, path, known[path].made)
            del known[path]
            self._named.pop(path, None)

        try:
            try_each(paths, remove)
        finally:
            self._belongings.put(files=known)

    def _bring(self, path: str, record: FileRecord) -> None:
        content = record.content.encode()
        if host_files.read(self._host, path) == (content, record.mode):
            return
        made = host_files.write(self._host, path, content, record.mode)
        if made:
            files = self._belongings.record.files
            whole = msgspec.structs.replace(record, made=tuple(dict.fromkeys((*record.made, *made))))
            self._belongings.put(files={**files, path: whole})
