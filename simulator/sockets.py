"""gRPC servers on unix sockets that come and go as a kubelet's do.

A gRPC server unlinks its socket when it stops, and makes it before anybody could choose how. A kubelet
that dies leaves its socket behind, and its successor removes it and makes a new one in a way that
watchers see. So each server listens on a name of its own in a private directory, and the name that
clients know is a hard link to it, made and removed here.
"""

import os
import random
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

PATH_BYTES: Final = 107
"""The longest path of a unix socket on Linux."""

_OPTIONS: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_pings_without_data", 0),
)


def target(path: str | Path) -> str:
    """The gRPC target of a unix socket, whatever characters are in its path."""
    return f"unix:{quote(str(path))}"


class ServedSocket:
    """One server behind one public path; may be opened and closed any number of times."""

    def __init__(self, public: Path, private: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """`private`: where the server really listens, on the same file system."""
        self._public = public
        self._private = private
        self._handlers = tuple(handlers)
        self._server: grpc.aio.Server | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is being served."""
        return self._server is not None

    async def open(self, *, renamed: bool) -> None:
        """Serve. `renamed`: the public name comes by a rename (MOVED_TO), else by itself (CREATE)."""
        if self._server is not None:
            return
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(self._handlers)
        self._private.unlink(missing_ok=True)
        server.add_insecure_port(target(self._private))
        await server.start()
        self._server = server
        if renamed:
            self._publish_renamed()
        else:
            os.link(self._private, self._public)

    async def close(self, *, remove: bool) -> None:
        """Stop serving, cutting calls short. `remove`: the public name too; else it stays, refusing."""
        server, self._server = self._server, None
        if remove and server is not None:
            # First, so that nobody finds a name behind which nothing listens.
            self._public.unlink(missing_ok=True)
        if server is not None:
            await server.stop(None)
        self._private.unlink(missing_ok=True)

    def _publish_renamed(self) -> None:
        # kubelet: a temporary file is made for its name, removed, and the socket made under that name;
        # it is still open when the socket is renamed (the recorded events show each of these steps).
        temporary = self._public.with_name(str(random.randrange(10**8, 10**10)))  # noqa: S311 -- a name
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            temporary.unlink()
            os.link(self._private, temporary)
            temporary.rename(self._public)
        finally:
            os.close(descriptor)


def is_socket(path: Path) -> bool:
    """Whether there is a socket at `path` (a link counts as what it leads to, as for the kubelet)."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def is_served(path: Path) -> bool:
    """Whether somebody listens on the unix socket at `path`."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True
        except OSError:
            return False
    return True
