"""Sockets that listen, made and taken away again."""

import asyncio
import errno
import socket
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from runtime.flags import ListenAddress
from runtime.process import Fatal

BACKLOG: Final = 128
"""Connections that the kernel keeps until they are accepted."""


@contextmanager
def owned(address: ListenAddress) -> Generator[None]:
    """Until the end; then a unix socket's path is free again, unless another process serves there by now."""
    made = _identity(address.path)
    try:
        yield
    finally:
        if address.path is not None and made is not None and _identity(address.path) == made:
            address.path.unlink(missing_ok=True)


async def listen(address: ListenAddress) -> list[socket.socket]:
    """The sockets that listen at `address`. Raises Fatal, saying which and why."""
    if address.path is not None:
        _remove_stale_socket(address.path)
    try:
        if address.path is not None:
            made = [_unix(address.path)]
        elif address.host is None:
            made = [_everywhere(address.port)]
        else:
            made = await _at(address.host, address.port)
    except OSError as error:
        raise Fatal(f"--web.listen-address {address}: cannot listen: {error.strerror or error}") from error
    except UnicodeError as error:
        raise Fatal(f"--web.listen-address {address}: cannot listen: no host's name: {error}") from error
    for listening in made:
        listening.settimeout(0.0)
    return made


def urls(sockets: Sequence[socket.socket], address: ListenAddress, scheme: str) -> list[str]:
    """Where they are asked."""
    if address.path is not None:
        return [f"unix:{address.path}"]
    names = [listening.getsockname()[:2] for listening in sockets]
    return [
        f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}" for host, port in names
    ]


def _identity(path: Path | None) -> tuple[int, int] | None:
    """What tells one socket from another at the same path."""
    if path is None:
        return None
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _unix(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(str(path))
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


async def _at(host: str, port: int) -> list[socket.socket]:
    """At every address that `host` has."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    made: list[socket.socket] = []
    try:
        made.extend(
            socket.create_server(name, family=family, backlog=BACKLOG)
            for family, _, _, _, name in dict.fromkeys(found)
        )
    except BaseException:
        for listening in made:
            listening.close()
        raise
    return made


def _everywhere(port: int) -> socket.socket:
    """A socket that listens on all addresses of both families, or of IPv4 where the node has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
            )
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port), backlog=BACKLOG)


def _remove_stale_socket(path: Path) -> None:
    """Make way for a new socket where a process that was killed left its own.

    Raises Fatal for anything else at `path`: a file that is not a socket, or one that is served.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Fatal(f"--web.listen-address unix:{path}: there is a file that is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0.5)
            probe.connect(str(path))
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ECONNREFUSED:
            raise Fatal(f"--web.listen-address unix:{path}: {error.strerror or error}") from error
        path.unlink(missing_ok=True)
        return
    raise Fatal(f"--web.listen-address unix:{path}: another process serves it already")
