"""One process serves a resource on a node; a second one stands by until the first has gone.

kubelet: when a new plugin registers while the old one's stream is open, and the old one then leaves,
the kubelet stops the new endpoint and cuts its stream (1.36; others are said to tell nobody). So the
new one waits for the old to end: on a lock that the kernel gives up with the process that holds it,
however that process ends.
"""

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class Lease:
    """An exclusive lock on the file `path`, which is there only while it is held or waited for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    async def acquire(self, on_wait: Callable[[], None]) -> None:
        """Hold the lease; `on_wait` is called if another process has it.

        Raises OSError where there can be no such lock: the directory is missing or read-only.
        """
        if self._file is not None and not self._is_current(self._file):
            # Its directory was replaced, or somebody removed it: by now another may hold a new one.
            self.release()
        while self._file is None:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                await _wait_for_lock(file)
            except OSError:
                os.close(file)
                raise
            if self._is_current(file):
                self._file = file
            else:
                os.close(file)

    def release(self) -> None:
        """Give it up, if it is held. Removed while it is held: who waits looks for a new file."""
        if self._file is not None:
            if self._is_current(self._file):
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._file)
            self._file = None

    def _is_current(self, file: int) -> bool:
        return is_at(file, self._path)


def is_at(file: int, path: Path) -> bool:
    """Whether the open `file` is what is at `path` now: a lock on any other is nobody's."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except OSError:
        return False


async def _wait_for_lock(file: int) -> None:
    """Lock `file`, in a thread, because it may take for ever; cancelled, the thread closes it."""
    waiter = _Waiter(file)
    try:
        waiter.start()
    except RuntimeError:
        # No thread is to be had; whoever begins anew opens the file again.
        os.close(file)
        raise
    try:
        await waiter.done.wait()
    except asyncio.CancelledError:
        waiter.abandon()
        raise
    if waiter.error is not None:
        os.close(file)
        raise waiter.error


class _Waiter(threading.Thread):
    def __init__(self, file: int) -> None:
        super().__init__(name="lease", daemon=True)
        self.done = asyncio.Event()
        self.error: OSError | None = None
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._abandoned = False
        self._finished = False

    def run(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            self.error = error
        with self._guard:
            self._finished = True
            if self._abandoned:
                os.close(self._file)
                return
        # RuntimeError: the loop has ended, and the process with it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.done.set)

    def abandon(self) -> None:
        """Whoever comes last, the thread or its owner, closes the file."""
        with self._guard:
            self._abandoned = True
            if self._finished:
                os.close(self._file)
