"""What this node's plugin processes serve, remembered beside their sockets for the next one.

A resource, or its devices, may be called otherwise after an upgrade, while pods hold devices by former
names. The kubelet tells those names and, where there were any, the device nodes that were given. So it is
written down which resources were exclusive, whose devices nobody else may have, and which device each id
stands for: before that id is given. Processes that run at the same time share the file.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from daemon.directory import DirectoryWatcher, Kind
from daemon.log import Episode, Log
from plugin.core.ledger import Page
from plugin.discovery.offload import Offload, StuckError
from plugin.discovery.survey import os_problem
from plugin.services.ownership import Ownership
from plugin.services.sockets import PREFIX

NAME: Final = f".{PREFIX}served"
MOST: Final = 1000
MAX_BYTES: Final = 16 << 20
"""The kubelet takes lists of 4 MiB, of some hundred thousand ids."""
LIMIT: Final = 5.0
AGAIN: Final = 30.0
"""Seconds after which what could not be written is tried again."""
PAUSE: Final = 0.1
"""Seconds between two writes that nobody waits for."""

_log = Log("predecessors")

_Name = Annotated[str, msgspec.Meta(max_length=512)]


class Served(msgspec.Struct, frozen=True):
    """What is in the file. `claims`: by resource and advertised id; older versions know nothing of it."""

    version: Literal[1] = 1
    resources: Annotated[list[_Name], msgspec.Meta(max_length=MOST)] = []
    claims: dict[_Name, dict[_Name, str]] = {}


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder(Served)


class DamagedError(ValueError):
    """The file is there, and is none that a plugin wrote."""


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
        self._ownership.written_down = True
        try:
            found = read(self._path)
        except DamagedError as error:
            _log.warn("cannot read which resources were served", path=self._path, reason=str(error))
            self._ownership.remember((), damaged=True)
        else:
            self._ownership.remember(found.resources, found.claims)

    async def run(self, watcher: DirectoryWatcher) -> None:
        """Write down whatever is served, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(watcher))
            while True:
                await self._write()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE):
                        await self._ownership.urgent.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self.failing is None else AGAIN):
                        await self._ownership.changed.wait()

    @property
    def failing(self) -> str | None:
        """Why it cannot be written, in words; None while it can."""
        return self._failing.reason

    def end(self) -> None:
        """Keep only what pods may hold of, or nothing at all: after everything has ended. Blocking."""
        self._ownership.written_down = False
        page, tried = self._ownership.page()
        try:
            held = self._ownership.held_names
            own = self._ownership.names | self._ownership.forgotten
            exchange(self._path, _merge(page, held, own - held))
        except OSError as error:
            self._failing.failed(os_problem(error))
        finally:
            tried()

    async def _follow(self, watcher: DirectoryWatcher) -> None:
        """kubelet: it may empty its directory when it starts. And another process may have written it."""
        async for change in watcher.follow(self._directory, contents=False):
            if change.kind is Kind.RESCAN or change.name == NAME:
                self._ownership.changed.set()

    async def _write(self) -> None:
        page, tried = self._ownership.page()
        names, forgotten = self._ownership.names, self._ownership.forgotten
        try:
            there = await self._offload.run(
                lambda: exchange(self._path, _merge(page, names, forgotten)), limit=LIMIT
            )
        except OSError as error:
            self._failing.failed(os_problem(error))
        except StuckError as error:
            self._failing.failed(str(error))
        else:
            if there is not None:
                self._ownership.written(page, there.claims, forgotten)
            self._failing.recovered()
        finally:
            tried()


def _merge(page: Page, names: Collection[str], forgotten: Collection[str]) -> Callable[[Served], Served]:
    def merge(found: Served) -> Served:
        others = [name for name in found.resources if name not in forgotten]
        # Where there are too many, those of this process count first.
        every = list(dict.fromkeys((*sorted(names), *others)))[:MOST]
        claims = {name: dict(of) for name, of in page.merged(found.claims).items()}
        merged = Served(1, sorted(every), claims)
        if len(_ENCODER.encode(merged)) <= MAX_BYTES:
            return merged
        return Served(1, merged.resources, {name: dict(of) for name, of in page.shortened(claims).items()})

    return merge


def read(path: Path) -> Served:
    """What is written at `path`; nothing where there is no such file. Blocking. Raises DamagedError."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as stream:  # noqa: PTH123 -- a descriptor
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise DamagedError(f"it has more than {MAX_BYTES} bytes")
        return _DECODER.decode(content)
    except FileNotFoundError:
        return Served()
    except OSError as error:
        raise DamagedError(os_problem(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(str(error)) from None


def exchange(path: Path, change: Callable[[Served], Served]) -> Served | None:
    """Put there what `change` makes of what is there, whole or not at all; returns what is there then.

    None where there is no directory yet: nobody can be served. What is damaged counts for nothing, and
    what says nothing is removed. Blocking. Raises OSError.
    """
    try:
        with _alone(path.parent) as directory:
            damaged = False
            try:
                before = read(path)
            except DamagedError:
                before, damaged = Served(), True
            after = change(before)
            if after == Served():
                path.unlink(missing_ok=True)
            elif damaged or after != before:
                _replace(path, _ENCODER.encode(after))
                # Some file systems have no such thing for directories.
                with suppress(OSError):
                    os.fsync(directory)
            return after
    except FileNotFoundError:
        return None


@contextmanager
def _alone(directory: Path) -> Generator[int]:
    """No other process that does so writes meanwhile."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems have no locks: what two processes write is then put right by either that follows.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _replace(path: Path, content: bytes) -> None:
    if len(content) > MAX_BYTES:
        raise OSError(f"more than {MAX_BYTES} bytes are to be remembered")
    new = path.with_name(f"{path.name}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as stream:  # noqa: PTH123 -- a descriptor
            stream.write(content)
            stream.flush()
            os.fsync(file)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
