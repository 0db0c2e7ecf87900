"""Names of a resource's sockets in a directory of the kubelet's, of its lease and of its record.

One process serves a resource on a node; a second one stands by until the first has gone.

kubelet: when a new plugin registers while the old one's stream is open, and the old one then leaves,
the kubelet stops the new endpoint and cuts its stream (1.36; others are said to tell nobody). So the
new one waits for the old to end: on a lock that the kernel gives up with the process that holds it,
however that process ends.
"""

import asyncio
import fcntl
import os
import re
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from runtime.flags import UNIX_PATH_BYTES

PREFIX: Final = "devicelens-"
"""What every socket of this plugin begins with; people look into that directory."""

LEASE_ENDING: Final = ".lock"
RECORD_ENDING: Final = ".json"
_TOKEN_BYTES: Final = 8
_HASH_BYTES: Final = 6
_READABLE: Final = 40


class SocketNames:
    """The names for one resource in `directory`.

    A resource's name is put into them as far as it fits, with a hash for what does not. Raises
    ValueError where not even the hash fits into the path of a unix socket.
    """

    def __init__(
        self, directory: Path, resource: str, token: Callable[[], str], *, hidden: bool = False
    ) -> None:
        """`token` gives eight characters that it never gave. `hidden`: fresh names begin with a dot."""
        fixed = len(PREFIX) + _HASH_BYTES + 1 + _TOKEN_BYTES + len(".sock")
        room = UNIX_PATH_BYTES - len(bytes(directory)) - 1 - hidden - fixed - 1
        if room < -1:
            longest = UNIX_PATH_BYTES - fixed - 1 - hidden
            raise ValueError(
                f"{directory}: expected a path of at most {longest} bytes, for sockets are made in it"
            )
        readable = re.sub(r"[^A-Za-z0-9.-]", "_", resource)[: max(0, min(room, _READABLE))]
        digest = sha256(resource.encode()).hexdigest()[:_HASH_BYTES]
        self.directory = directory
        self._dot = "." if hidden else ""
        self._stem = PREFIX + (f"{readable}-" if readable else "") + digest
        self._token = token

    def fresh(self) -> Path:
        """A socket path that was never used before: grpc.aio may remove one of its name at any later time."""
        return self.directory / f"{self._dot}{self._stem}-{self._token()}.sock"

    @property
    def standing(self) -> Path:
        """The one name under which a kubelet that follows the directory finds the resource's socket."""
        return self.directory / f"{self._stem}.sock"

    @property
    def lease(self) -> Path:
        """The lock file that says which process serves the resource."""
        return self.directory / f".{self._stem}{LEASE_ENDING}"

    @property
    def record(self) -> Path:
        """The file that remembers what the resource has on the host."""
        return self.directory / f".{self._stem}{RECORD_ENDING}"

    def remove_stale(self) -> list[Path]:
        """Remove what a process that was killed left behind; returns what was removed.

        Only to be called by who holds the lease: then every other socket of the resource is nobody's.
        One that somebody listens on stays all the same.
        """
        shape = re.compile(rf"\.?{re.escape(self._stem)}(-[0-9A-Za-z]{{{_TOKEN_BYTES}}})?\.sock")
        stale = [
            path
            for path in self.directory.iterdir()
            if shape.fullmatch(path.name) and _is_socket(path) and not _is_served(path)
        ]
        for path in stale:
            path.unlink(missing_ok=True)
        return stale


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        # kubelet: one that starts removes every socket there, perhaps just now.
        return False


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


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
