"""Follows the CDI specifications in directories of the node.

Writers rename a finished file into place, others write it in place. A file that cannot be used keeps the
devices of its last good content until it can be used or vanishes.
"""

import asyncio
import errno
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from exporter.dra import CDI_DIRECTORIES
from exporter.mapping.cdi_spec import MAX_BYTES, CdiSpecError, combined, read_spec
from exporter.mapping.dra import CdiDevice, SourceStatus
from runtime.directory import DirectoryWatcher, Kind
from runtime.log import Episode, Log
from runtime.text import named, visible

MAX_FILES: Final = 4096
"""Specifications of one directory that are read, the first by name."""

_ENTRIES: Final = 65_536
_SUFFIXES: Final = (".json", ".yaml")
_CALM: Final = 60.0
_NONE: Final[Mapping[str, CdiDevice]] = MappingProxyType({})
_log = Log("cdi")


class _File(NamedTuple):
    """One specification: the digest of its content, its devices, and why they are not current."""

    digest: bytes
    devices: Mapping[str, CdiDevice]
    problem: str = ""


class _Directory(NamedTuple):
    """One directory: its specifications by file name. `problem`: why they cannot be listed."""

    files: Mapping[str, _File]
    problem: str = ""
    missing: bool = False


class CdiSpecifications:
    """The CDI specifications of the node; a CdiSource. `bind` it, then `run` it as an actor."""

    def __init__(self, watcher: DirectoryWatcher, directories: Sequence[Path] = CDI_DIRECTORIES) -> None:
        """A device in a later one of the `directories` overrides an earlier one's."""
        self._watcher = watcher
        self._directories = {path: _Directory({}, missing=True) for path in directories}
        self._pending: dict[Path, set[str] | None] = {}
        self._wake = asyncio.Event()
        self._devices = _NONE
        self._status = SourceStatus("cdi", up=False, problem="CDI specifications are not read yet")
        self._changed: Callable[[], None] = _nothing
        self._failing = Episode(_log, "not all CDI specifications can be used", calm=_CALM)

    @property
    def devices(self) -> Mapping[str, CdiDevice]:
        """By CDI device name; the same object until a specification changes."""
        return self._devices

    @property
    def status(self) -> SourceStatus:
        """Whether all specifications can be used."""
        return self._status

    def bind(self, changed: Callable[[], None]) -> None:
        """Set what is called after `devices` or `status` changed."""
        self._changed = changed

    async def run(self) -> None:
        """Follow the directories until cancelled."""
        async with asyncio.TaskGroup() as group:
            for path in self._directories:
                group.create_task(self._follow(path))
            while True:
                await self._wake.wait()
                self._wake.clear()
                pending, self._pending = self._pending, {}
                self._publish(*await asyncio.to_thread(self._read, pending))

    async def _follow(self, path: Path) -> None:
        async for change in self._watcher.follow(path):
            names = self._pending.setdefault(path, set())
            if change.kind is Kind.RESCAN:
                self._pending[path] = None
            elif names is not None and change.name.endswith(_SUFFIXES):
                names.add(change.name)
            self._wake.set()

    def _read(
        self, pending: Mapping[Path, Collection[str] | None]
    ) -> tuple[Mapping[Path, _Directory], Mapping[str, CdiDevice]]:
        """The directories after changes of the `pending` files, None: of any; and all devices."""
        now = dict(self._directories)
        for path, names in pending.items():
            now[path] = _changed(path, now[path], names)
        return now, combined([file.devices for file in one.files.values()] for one in now.values())

    def _publish(self, directories: Mapping[Path, _Directory], devices: Mapping[str, CdiDevice]) -> None:
        self._directories = dict(directories)
        problem = _problem(self._directories)
        status = SourceStatus("cdi", up=not problem, problem=problem)
        if problem:
            self._failing.failed(problem)
        else:
            self._failing.recovered()
        if devices != self._devices:
            self._devices = devices
        elif status == self._status:
            return
        self._status = status
        self._changed()


def _nothing() -> None:
    """Until the source is bound."""


def _changed(path: Path, before: _Directory, names: Collection[str] | None) -> _Directory:
    """The directory after changes of the files `names`, None: of any."""
    if names is None or before.problem or before.missing:
        try:
            listed = _listed(path)
        except (FileNotFoundError, NotADirectoryError):
            return _Directory({}, missing=True)
        except OSError as error:
            return _Directory(before.files, _unreadable(path, error))
        names, kept, left_out = listed[:MAX_FILES], {}, len(listed) > MAX_FILES
    else:
        kept, left_out = {name: file for name, file in before.files.items() if name not in names}, False
    for name in names:
        file = _read(path / name, before.files.get(name))
        if file is not None and len(kept) < MAX_FILES:
            kept[name] = file
        else:
            left_out |= file is not None
    return _Directory(kept, f"{path}: more than {MAX_FILES} specifications" if left_out else "")


def _listed(path: Path) -> list[str]:
    with os.scandir(path) as scanned:
        return sorted([one.name for one in islice(scanned, _ENTRIES) if one.name.endswith(_SUFFIXES)])


def _read(path: Path, last: _File | None) -> _File | None:
    """The specification at `path`; `last` while its content is the same; None if there is no such file."""
    devices = _NONE if last is None else last.devices
    try:
        content = content_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _File(b"", devices, _unreadable(path, error))
    digest = blake2b(content, digest_size=16).digest()
    if last is not None and last.digest == digest:
        return last
    try:
        return _File(digest, read_spec(content, str(path)))
    except CdiSpecError as error:
        return _File(digest, devices, str(error))


def content_of(path: Path) -> bytes:
    """The first MAX_BYTES and one of the file at `path`. Raises OSError."""
    # Not blocked by a pipe of that name.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(MAX_BYTES + 1)


def _unreadable(path: Path, error: OSError) -> str:
    return (
        f"{visible(str(path))} cannot be read ({error.strerror}): mount its directory read-only, and run the "
        "exporter as a user that may read it"
    )


def _problem(directories: Mapping[Path, _Directory]) -> str:
    """Why not all specifications can be used, and what helps; "" if they can."""
    if all(one.missing for one in directories.values()):
        paths = named([str(path) for path in directories], " and ")
        return f"{paths} are not there: mount the node's CDI directories read-only"
    problems = [one.problem for one in directories.values() if one.problem]
    problems += [file.problem for one in directories.values() for file in one.files.values() if file.problem]
    return named(problems, "; ", 3)
