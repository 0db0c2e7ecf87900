"""Socket names of a resource, and the lease by which one process on a node serves it.

When a new plugin registers while the old one's stream is open and the old one then ends, the kubelet stops
the new endpoint and cuts its stream. So a second process stands by until the first has ended: it waits for
a lock that the kernel releases when the process that holds it ends, also when that process is killed.
"""

import asyncio
import fcntl
import os
import re
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct

from runtime.flags import UNIX_PATH_BYTES

PREFIX: Final = "devicelens-"
"""What every file of this plugin in the kubelet's directories begins with."""

LEASE_ENDING: Final = ".lock"
RECORD_ENDING: Final = ".json"
LEASE_RETRY: Final = 0.1
"""Seconds between attempts to acquire a lease that another process holds."""
_TOKEN_BYTES: Final = 8
_HASH_BYTES: Final = 6
_READABLE: Final = 40


class SocketIdentity(Struct, frozen=True):
    """Identifies a socket file: a new socket at the same path has another identity."""

    device: int
    inode: int
    modified_ns: int


def socket_identity(path: Path) -> SocketIdentity | None:
    """The identity of the socket at `path`, None where there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return SocketIdentity(status.st_dev, status.st_ino, status.st_mtime_ns)


class SocketNames:
    """The names for one resource in `directory`: the resource's name as far as it fits, and a hash of it.

    Raises ValueError where not even the hash fits into the path of a unix socket.
    """

    def __init__(
        self, directory: Path, resource: str, token: Callable[[], str], *, hidden: bool = False
    ) -> None:
        """`token` returns eight new characters at each call. `hidden`: fresh names begin with a dot."""
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
        """A socket path that was never used: grpc.aio may remove the path of a stopped server at any time."""
        return self.directory / f"{self._dot}{self._stem}-{self._token()}.sock"

    @property
    def standing(self) -> Path:
        """The one path under which the kubelet finds the socket in plugins_registry."""
        return self.directory / f"{self._stem}.sock"

    @property
    def lease(self) -> Path:
        """The lock file of the resource's lease."""
        return self.directory / f".{self._stem}{LEASE_ENDING}"

    @property
    def record(self) -> Path:
        """The record of the resource's files on the host."""
        return self.directory / f".{self._stem}{RECORD_ENDING}"

    def remove_stale(self) -> list[Path]:
        """Remove the sockets of a process that was killed; returns their paths.

        To be called by the holder of the lease. A socket that a process still serves stays.
        """
        shape = re.compile(rf"\.?{re.escape(self._stem)}(-[0-9A-Za-z]{{{_TOKEN_BYTES}}})?\.sock")
        stale = [
            path
            for path in self.directory.iterdir()
            if shape.fullmatch(path.name) and _is_socket(path) and not is_served(path)
        ]
        for path in stale:
            path.unlink(missing_ok=True)
        return stale


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        # A kubelet that starts removes every socket there.
        return False


def is_served(path: Path) -> bool:
    """Whether a process listens on the socket at `path`."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(0)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # such as for a queue that is full
    return True


class Lease:
    """An exclusive lock on the file `path`, which exists only while the lease is held or waited for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    async def acquire(self, on_wait: Callable[[], None]) -> None:
        """Acquire the lease; `on_wait` is called once if another process has it.

        Raises OSError where no lock is possible, such as in a missing or read-only directory.
        """
        if self._file is not None and not is_at(self._file, self._path):
            # The file was removed or its directory replaced: another process may hold a new one.
            self.release()
        if self._file is not None or self.try_acquire():
            return
        on_wait()
        while not self.try_acquire():  # noqa: ASYNC110 -- the kernel signals no release of a lock
            await asyncio.sleep(LEASE_RETRY)

    def try_acquire(self) -> bool:
        """Acquire the lease unless another process has it; returns whether it is held. Raises OSError."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(file, self._path):
                self._file = file
        except BlockingIOError:
            return False
        finally:
            if self._file != file:
                os.close(file)
        return self._file is not None

    def release(self) -> None:
        """Release the lease, if held. The file is removed first, so that waiting processes open a new one."""
        if self._file is not None:
            if is_at(self._file, self._path):
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._file)
            self._file = None


def is_at(file: int, path: Path) -> bool:
    """Whether the open `file` is the one at `path`. A lock on a removed file excludes no process."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except OSError:
        return False
