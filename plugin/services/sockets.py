"""Names of a resource's sockets in a directory of the kubelet's, of its lease and of its record."""

import re
import socket
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

from daemon.paths import UNIX_PATH_BYTES

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
