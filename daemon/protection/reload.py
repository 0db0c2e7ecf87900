"""The rules kept to what the files say: read again when they change, when it is asked for, and now and then.

A file that is broken changes nothing: what was in force stays, and it is told. What is half written is not
believed: two reads a moment apart have to be the same.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from daemon.directory import DirectoryWatcher, Kind
from daemon.errors import ConfigError
from daemon.log import Episode, Log
from daemon.process import Fatal
from daemon.protection.language import WebConfig
from daemon.protection.material import Material, gather
from daemon.protection.passwords import Hashing
from daemon.protection.rules import OPEN, Rules, enforce, weakened

READ_INTERVAL: Final = 30.0
"""Seconds between looks that nothing calls for: a link may lead to a file in any directory."""
SETTLE: Final = 0.1
"""Seconds between two reads that have to be the same, and in which a pair of files becomes one."""
TRIES: Final = 20
"""How often that is tried of a file that is written again and again."""
FAILURES: Final = 5
"""How often in a row what is read must be wrong to be held for what is meant."""

_log = Log("protection")


@dataclass(frozen=True, slots=True)
class Status:
    """How the files were last read. `succeeded_at`: unix time of the last success; `problem`: "" for none."""

    succeeded_at: float
    problem: str = ""


class Protection:
    """What `--web.config.file FILE` asks for; with None, nothing. Run `run()` as an actor."""

    def __init__(
        self,
        file: Path | None,
        *,
        wall: Callable[[], float],
        steady: Callable[[], float] = time.monotonic,
        hashing: Hashing | None = None,
        settle: float = SETTLE,
    ) -> None:
        """`wall` tells unix time in seconds, `steady` a clock that is never set."""
        self._file = file
        self._wall = wall
        self._steady = steady
        self._settle = settle
        self._hashing = hashing
        self._rules = OPEN
        self._material: Material | None = None
        self._succeeded_at = 0.0
        self._asked = asyncio.Event()
        self._refused = Episode(_log, "web configuration refused, the last one stays in force")

    @property
    def rules(self) -> Rules:
        """What is in force now."""
        return self._rules

    @property
    def status(self) -> Status | None:
        """How the file was last read; None where there is none to read."""
        return None if self._file is None else Status(self._succeeded_at, self._refused.reason or "")

    def ask(self) -> None:
        """Read again soon (SIGHUP)."""
        self._asked.set()

    async def begin(self) -> None:
        """Read for the first time. Raises Fatal: nothing is served that is not protected as asked."""
        if self._file is None:
            return
        for left in reversed(range(FAILURES)):
            try:
                self._accept(gather(self._file))
            except ConfigError as error:
                # A certificate and its key are two files, and may be under way.
                if not left:
                    raise Fatal(f"--web.config.file: {error}") from error
                await asyncio.sleep(self._settle)
            else:
                return

    async def run(self, watcher: DirectoryWatcher) -> None:
        """Read again whenever something changes, until cancelled."""
        try:
            if self._file is not None:
                await self._run(self._file, watcher)
            else:
                await asyncio.Event().wait()
        finally:
            if self._hashing is not None:
                self._hashing.close()

    async def _run(self, file: Path, watcher: DirectoryWatcher) -> None:
        async with asyncio.TaskGroup() as group:
            following: dict[Path, asyncio.Task[None]] = {}
            while True:
                wanted = self._directories(file)
                for directory in following.keys() - wanted:
                    following.pop(directory).cancel()
                for directory in wanted - following.keys():
                    following[directory] = group.create_task(self._follow(directory, watcher))
                await self._wait()
                await self._reload(file)

    def _directories(self, file: Path) -> set[Path]:
        named = self._material.paths if self._material is not None else frozenset[Path]()
        return {path.parent for path in {file, *named}}

    async def _follow(self, directory: Path, watcher: DirectoryWatcher) -> None:
        async for change in watcher.follow(directory):
            material = self._material
            named = material.paths if material is not None else frozenset[Path]()
            # Files of a ConfigMap or a Secret are links through `..data`, which is replaced as a whole.
            names = {"..data", *(path.name for path in {self._file, *named} if path is not None)}
            if change.kind is not Kind.ATTRIBUTES and (change.kind is Kind.RESCAN or change.name in names):
                self._asked.set()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_INTERVAL):
                await self._asked.wait()
        self._asked.clear()

    async def _reload(self, file: Path) -> None:
        try:
            material = await self._settled(file)
            if material == self._material:
                self._succeed()
                return
            self._accept(material)
        except ConfigError as error:
            self._refused.failed(str(error), level="error")
            return
        self._succeed()
        _log.info("web configuration read", **_words(material.config))

    def _succeed(self) -> None:
        self._refused.recovered()
        self._succeeded_at = self._wall()

    async def _settled(self, file: Path) -> Material:
        """What the files say once they have said so twice, and agree with each other. Raises ConfigError."""
        last: Material | None = None
        failures = 0
        for _ in range(TRIES):
            try:
                material = await asyncio.to_thread(gather, file)
                if material == self._material:
                    return material
                if material == last:
                    # A certificate whose key is under way is found out here.
                    enforce(material, self._hasher(), self._steady)
                    return material
                last, failures = material, 0
            except ConfigError:
                failures += 1
                if failures == FAILURES:
                    raise
            await asyncio.sleep(self._settle)
        raise ConfigError(
            str(file), None, (), f"it is written again and again, {TRIES} times while it was read"
        )

    def _accept(self, material: Material) -> None:
        """Put it in force. Raises ConfigError."""
        before = None if self._material is None else (self._material.config, self._rules)
        if before is not None:
            lost = weakened(before[0], material.config)
            if lost:
                raise ConfigError(
                    str(self._file),
                    None,
                    (),
                    f"{lost}, which a running process does not do: restart it for that",
                )
        self._rules = enforce(material, self._hasher(), self._steady, before)
        self._material = material
        self._succeeded_at = self._wall()

    def _hasher(self) -> Hashing:
        if self._hashing is None:
            self._hashing = Hashing()
        return self._hashing


def _words(config: WebConfig) -> dict[str, object]:
    return {"tls": config.tls is not None, "users": len(config.users)}
