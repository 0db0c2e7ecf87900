"""The kubelet's process: it starts, dies, comes back, and ends; one life after another."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from simulator.life import Life
from simulator.node import Node
from simulator.sockets import is_served

T = TypeVar("T")


class RootInUseError(Exception):
    """The directory is a live kubelet's, simulated or real."""


class KubeletProcess:
    """Owns the present life, and the directory against other simulated kubelets."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.life = Life(node)
        self._up = asyncio.Event()
        self._stopped = asyncio.Event()
        self._lock: int | None = None
        self._changing = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def is_up(self) -> bool:
        """Whether it serves at present."""
        return self._up.is_set()

    async def start(self) -> None:
        """Serve. Raises RootInUseError where another kubelet does already."""
        settings = self._node.settings
        for path in settings.sockets().values():
            if is_served(path):
                raise RootInUseError(f"{settings.root}: a kubelet serves {path} already")
        self._lock = _locked(settings.private)
        try:
            await self.life.begin()
        except BaseException:
            await self.life.end(remove=True)
            self._unlock()
            raise
        self._up.set()

    async def stop(self) -> None:
        """End, and remove the sockets; the checkpoint stays. Raises what failed inside meanwhile."""
        self._stopped.set()
        async with self._changing:
            if self._lock is None:
                return
            try:
                await self.life.end(remove=True)
            finally:
                # One that was down has left sockets that no life owns.
                for path in self._node.settings.sockets().values():
                    path.unlink(missing_ok=True)
                self._unlock()
                self._up.set()
                self._node.changed()

    async def restart(self, down_for: float) -> None:
        """Die, stay away for `down_for` seconds, start again; to its end even if its caller goes."""
        await self._shielded(self._restart(down_for))

    async def apply_faults(self) -> None:
        """Let sockets come or go as the present faults say."""
        await self._shielded(self._apply_faults())

    def apply_faults_soon(self) -> None:
        """The same, without waiting."""
        self._spawn(self._apply_faults())

    async def running(self) -> Life:
        """The present life, as soon as there is one. Raises RuntimeError when there will be none."""
        await self._up.wait()
        self._check()
        return self.life

    async def in_life(self, work: Callable[[Life], Coroutine[Any, Any, T]]) -> T:
        """Do it within the kubelet's life; if that ends first, do it again in the next."""
        while True:
            life = await self.running()
            task = life.tasks.spawn(work(life), awaited=True)
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                task.cancel()
                await asyncio.wait((task,))
                raise
            if not task.cancelled():
                return task.result()

    async def _restart(self, down_for: float) -> None:
        async with self._changing:
            self._check()
            self._up.clear()
            await self.life.end(remove=False)
            self._node.event("kubelet down", seconds=down_for)
            with suppress(TimeoutError):
                async with asyncio.timeout(down_for):
                    await self._stopped.wait()
            self._check()
            self.life = Life(self._node, sync_delay=self._node.settings.sync_delay)
            await self.life.begin()
            self._up.set()
            self._node.event("kubelet up")
            self._node.changed()

    async def _apply_faults(self) -> None:
        async with self._changing:
            if self._up.is_set() and not self._stopped.is_set():
                await self.life.apply_faults()

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.shield(self._spawn(work))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _check(self) -> None:
        if self._stopped.is_set() or self._lock is None:
            raise RuntimeError("the simulated kubelet does not run")

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(directory: Path) -> int:
    """The directory, held as long as the descriptor is open. Raises RootInUseError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise RootInUseError(f"{directory.parent}: another simulated kubelet runs here") from error
    return lock
