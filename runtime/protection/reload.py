"""The rules kept to what the files say: read again when they change, when it is asked for, and now and then.

A file that is broken changes nothing: what was in force stays, and it is told. What is half written is not
believed: two reads a moment apart have to be the same.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from runtime.config_file import ConfigError
from runtime.directory import DirectoryWatcher, Kind
from runtime.log import Episode, Log
from runtime.process import Fatal
from runtime.protection.enforcing import enforce, weakened
from runtime.protection.material import Material, gather
from runtime.protection.passwords import Hashing
from runtime.protection.rules import OPEN, Rules

READ_INTERVAL: Final = 30.0
"""Seconds between looks that nothing calls for: a link may lead to a file in any directory."""
SETTLE: Final = 0.1
"""Seconds between two reads that have to be the same, and in which a pair of files becomes one."""
TRIES: Final = 20
"""How often that is tried of a file that is written again and again."""
FAILURES: Final = 5
"""How often in a row what is read must be wrong to be held for what is meant."""

_log = Log("protection")


class Protection:
    """What `--web.config.file FILE` asks for: `begin()` before anything is served, then `run()`, an actor."""

    def __init__(
        self,
        file: Path,
        *,
        steady: Callable[[], float] = time.monotonic,
        hashing: Hashing | None = None,
        settle: float = SETTLE,
    ) -> None:
        """`steady` tells seconds of a clock that is never set; `settle`: seconds between two reads."""
        self._file = file
        self._steady = steady
        self._settle = settle
        self._hashing = hashing or Hashing()
        self._rules = OPEN
        self._material: Material | None = None
        self._asked = asyncio.Event()
        self._refused = Episode(_log, "web configuration refused, the last one stays in force")

    @property
    def rules(self) -> Rules:
        """What is in force now."""
        return self._rules

    @property
    def problem(self) -> str:
        """Why the files were refused when they were last read; "" if they were not."""
        return self._refused.reason or ""

    def ask(self) -> None:
        """Read again soon (SIGHUP)."""
        self._asked.set()

    async def begin(self) -> None:
        """Read for the first time. Raises Fatal: nothing is served that is not protected as asked."""
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
            async with asyncio.TaskGroup() as group:
                following: dict[Path, asyncio.Task[None]] = {}
                while True:
                    wanted = {path.parent for path in self._paths()}
                    for directory in following.keys() - wanted:
                        following.pop(directory).cancel()
                    for directory in wanted - following.keys():
                        following[directory] = group.create_task(self._follow(directory, watcher))
                    await self._wait()
                    await self.reload()
        finally:
            self.end()

    def end(self) -> None:
        """Hash no more passwords."""
        self._hashing.close()

    def _paths(self) -> frozenset[Path]:
        """The files that are read."""
        named = self._material.paths if self._material is not None else frozenset[Path]()
        return named | {self._file}

    async def _follow(self, directory: Path, watcher: DirectoryWatcher) -> None:
        async for change in watcher.follow(directory):
            # Files of a ConfigMap or a Secret are links through `..data`, which is replaced as a whole.
            names = {"..data", *(path.name for path in self._paths())}
            if change.kind is Kind.RESCAN or change.name in names:
                self._asked.set()

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_INTERVAL):
                await self._asked.wait()
        self._asked.clear()

    async def reload(self) -> None:
        """Read again now."""
        try:
            material = await self._settled()
            if material != self._material:
                self._accept(material)
                _log.info("web configuration read", asks_for=material.config.words())
        except ConfigError as error:
            self._refused.failed(str(error), level="error")
        else:
            self._refused.recovered()

    async def _settled(self) -> Material:
        """What the files say once they have said so twice, and agree with each other. Raises ConfigError."""
        last: Material | None = None
        failures = 0
        for _ in range(TRIES):
            try:
                material = await asyncio.to_thread(gather, self._file)
                if material == self._material:
                    return material
                if material == last:
                    # A certificate whose key is under way is found out here.
                    enforce(material, self._hashing, self._steady)
                    return material
                last, failures = material, 0
            except ConfigError:
                failures += 1
                if failures == FAILURES:
                    raise
            await asyncio.sleep(self._settle)
        raise self._error(f"it was written again each time that it was read, {TRIES} times")

    def _accept(self, material: Material) -> None:
        """Put it in force. Raises ConfigError."""
        before = None if self._material is None else (self._material.config, self._rules)
        lost = "" if before is None else weakened(before[0], material.config)
        if lost:
            raise self._error(f"{lost}, which a running process does not do: restart it for that")
        self._rules = enforce(material, self._hashing, self._steady, before)
        self._material = material

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(str(self._file), None, (), problem)
