"""Which exclusive resources this node's plugin processes have served, remembered beside their sockets.

A resource may be called otherwise after an upgrade, while pods hold devices by its former name. What the
kubelet says of such pods (the device nodes that they were given) is only believed of resources whose
devices nobody else may have; and that the new process cannot know of names that are not its own.
"""

import asyncio
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from daemon.directory import DirectoryWatcher, Kind
from daemon.log import Episode, Log
from plugin.discovery.offload import Offload, StuckError
from plugin.discovery.survey import os_problem
from plugin.services.ownership import Ownership
from plugin.services.sockets import PREFIX

NAME: Final = f".{PREFIX}served"
MOST: Final = 1000
MAX_BYTES: Final = 1 << 20
LIMIT: Final = 5.0
AGAIN: Final = 30.0
"""Seconds after which what could not be written is tried again."""

_log = Log("predecessors")


class _Served(msgspec.Struct, frozen=True):
    version: Literal[1]
    resources: Annotated[list[Annotated[str, msgspec.Meta(max_length=512)]], msgspec.Meta(max_length=MOST)]


class Predecessors:
    """Tells `ownership` what was served before, and the next process what is now. Run `run()`."""

    def __init__(self, directory: Path, ownership: Ownership) -> None:
        self._directory = directory
        self._path = directory / NAME
        self._ownership = ownership
        self._offload = Offload(1)
        self._failing = Episode(_log, "cannot remember which resources are served")

    def recall(self) -> None:
        """Tell of those before. Blocking, once, before anything is served."""
        self._ownership.remember(read(self._path))

    async def run(self, watcher: DirectoryWatcher) -> None:
        """Write down whatever is served, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(watcher))
            while True:
                self._ownership.renamed.clear()
                await self._write()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self.failing is None else AGAIN):
                        await self._ownership.renamed.wait()

    @property
    def failing(self) -> str | None:
        """Why it cannot be written, in words; None while it can."""
        return self._failing.reason

    def end(self) -> None:
        """Keep only what pods may hold of, or nothing at all: after everything has ended. Blocking."""
        try:
            if self._ownership.held_names:
                write(self._path, self._ownership.held_names)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            self._failing.failed(os_problem(error))

    async def _follow(self, watcher: DirectoryWatcher) -> None:
        """kubelet: it may empty its directory when it starts."""
        async for change in watcher.follow(self._directory, contents=False):
            # Not when it is written: two processes, of which one stands by, would answer each other.
            if change.kind is Kind.RESCAN or (change.kind is Kind.VANISHED and change.name == NAME):
                self._ownership.renamed.set()

    async def _write(self) -> None:
        names = sorted(self._ownership.names)[:MOST]
        try:
            await self._offload.run(lambda: write(self._path, names), limit=LIMIT)
        except OSError as error:
            self._failing.failed(os_problem(error))
        except StuckError as error:
            self._failing.failed(str(error))
        else:
            self._failing.recovered()


def read(path: Path) -> tuple[str, ...]:
    """The names at `path`; none where there is no such file, or nothing that can be read. Blocking."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as stream:  # noqa: PTH123 -- a descriptor
            return tuple(msgspec.json.decode(stream.read(MAX_BYTES), type=_Served).resources)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        # What is not known is not believed: as it was before there was such a file.
        return ()


def write(path: Path, names: Collection[str]) -> None:
    """Put `names` there, whole or not at all, where there are others. Blocking. Raises OSError."""
    wanted = msgspec.json.encode(_Served(1, sorted(names)))
    if read(path) == tuple(sorted(names)) and path.exists():
        return
    new = path.with_name(f"{path.name}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as stream:  # noqa: PTH123 -- a descriptor
            stream.write(wanted)
        new.replace(path)
    except FileNotFoundError:
        return  # there is no directory yet: nobody can be served
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
