"""Serves an application at a TCP address or a unix socket, with TLS and limits, until it is cancelled.

asyncio's own server keeps one SSLContext for good and has no hook before the TLS handshake, so `_Server`
accepts: limits count from the first moment, and the next connection has a renewed certificate.
"""

import asyncio
import errno
import logging
import resource
import socket
import stat
from asyncio import sslproto
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from runtime.directory import DirectoryWatcher
from runtime.flags import ListenAddress
from runtime.http.access import OPEN, AccessPolicy
from runtime.http.app import protect
from runtime.http.connection import (
    HEAD_WITHIN,
    KEEP_ALIVE,
    MAX_CONNECTIONS,
    MAX_PER_ADDRESS,
    Connection,
    ConnectionTable,
    Traffic,
    WebFamilies,
    server_log,
)
from runtime.log import Episode, Log
from runtime.process import Fatal

if TYPE_CHECKING:
    from runtime.http.web_config import WebConfigReloader

BACKLOG: Final = 128
"""Connections that the kernel holds until they are accepted."""
HANDSHAKE_WITHIN: Final = 10.0
"""Seconds for a TLS handshake."""
SEND_BUFFER: Final = 128 * 1024
"""Bytes for SO_SNDBUF, which the kernel doubles: without it a send buffer grows to megabytes."""
_RETRY: Final = 0.25
"""Seconds until the next attempt to accept where there is no descriptor."""
_CLOSE_TLS_WITHIN: Final = 2.0
"""Seconds for the client to answer the end of TLS."""
_END_WITHIN: Final = 0.5
"""Seconds that requests have left when the server ends."""
_TLS_BUFFER: Final = 16 * 1024 + 256
"""Bytes: the largest TLS record."""
_CLIENT_GONE: Final = frozenset({errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO})

_log = Log("http")

# asyncio reads TLS through a buffer of 256 KiB for each connection: 128 MiB for 512 idle clients.
if getattr(sslproto.SSLProtocol, "max_size", 0) > _TLS_BUFFER:
    sslproto.SSLProtocol.max_size = _TLS_BUFFER


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What clients may take; times in seconds."""

    connections: int = MAX_CONNECTIONS
    per_address: int = MAX_PER_ADDRESS
    handshake_within: float = HANDSHAKE_WITHIN
    head_within: float = HEAD_WITHIN
    keep_alive: float = KEEP_ALIVE


LIMITS: Final = ServerLimits()


class WebServer:
    """The HTTP server of a process: its address, its web configuration, and its metric families.

    Call `start` before anything is served, then run `run` as an actor.
    """

    def __init__(self, address: ListenAddress, config_file: Path | None, *, prefix: str) -> None:
        """`prefix`: what the names of the families begin with."""
        self._address = address
        self._config_file = config_file
        self._config: WebConfigReloader | None = None
        self._traffic = Traffic()
        self.families = WebFamilies(
            prefix, self._traffic, lambda: self._config is not None and self._config.problem != ""
        )

    async def start(self) -> None:
        """Read the web configuration. Raises Fatal where it cannot be used."""
        if self._config_file is not None:
            # Imported where it is given: few processes need YAML and TLS.
            from runtime.http.web_config import WebConfigReloader  # noqa: PLC0415

            self._config = WebConfigReloader(self._config_file)
            await self._config.start()

    def reload(self) -> None:
        """Reload the web configuration soon (SIGHUP)."""
        if self._config is not None:
            self._config.ask()

    async def run(self, app: web.Application, watcher: DirectoryWatcher, *, purpose: str) -> None:
        """Serve `app` until cancelled, and follow the files of the web configuration by `watcher`."""
        config = self._config
        if config is None:
            await serve(app, self._address, purpose=purpose, traffic=self._traffic)
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(config.run(watcher))
            await serve(
                app, self._address, purpose=purpose, policy=lambda: config.policy, traffic=self._traffic
            )


class _NotARequest(logging.Filter):
    """Lets lines about bytes that are no HTTP pass at level debug alone: any client could fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError) or server_log.isEnabledFor(logging.DEBUG)


server_log.addFilter(_NotARequest())


async def serve(
    app: web.Application,
    address: ListenAddress,
    *,
    purpose: str,
    policy: Callable[[], AccessPolicy] = lambda: OPEN,
    traffic: Traffic | None = None,
    limits: ServerLimits = LIMITS,
) -> None:
    """Serve `app` at `address` until cancelled; then close within a second, cutting streams short.

    `policy` returns what new connections and requests must meet; `traffic` takes the counts. Raises Fatal
    when the address cannot be listened on.
    """
    traffic = traffic or Traffic()
    protect(app, policy, traffic)
    runner = web.AppRunner(
        app, access_log=None, logger=server_log, handle_signals=False, shutdown_timeout=_END_WITHIN
    )
    sockets = await _listen(address)
    with _remove_at_end(address.path):
        await runner.setup()
        server = _Server(sockets, runner, policy, traffic, limits)
        server.start()
        scheme = "http" if policy().tls is None else "https"
        for url in _urls(sockets, address, scheme):
            _log.info("listening", purpose=purpose, url=url)
        try:
            await asyncio.Event().wait()
        finally:
            server.stop()
            await runner.cleanup()
            await server.end()


class _Server:
    """The connections of one running server."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        runner: web.AppRunner,
        policy: Callable[[], AccessPolicy],
        traffic: Traffic,
        limits: ServerLimits,
    ) -> None:
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._runner = runner
        self._policy = policy
        self._traffic = traffic
        self._limits = limits
        # Half of the descriptors are for the kubelet's sockets, the database and devices.
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = limits.connections if descriptors < 0 else max(1, min(limits.connections, descriptors // 2))
        self._table = ConnectionTable(traffic, most, limits.per_address)
        self._tasks: set[asyncio.Task[None]] = set()
        self._starved = Episode(_log, "connections cannot be accepted")

    def start(self) -> None:
        """Accept connections from now on."""
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, peer = listening.accept()
        except OSError as error:
            if error.errno not in _CLIENT_GONE:
                # The socket stays readable, so wait before the next attempt.
                self._starved.failed(error.strerror or str(error))
                self._table.evict()
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_RETRY, self._accept_again, listening)
            return
        self._starved.recovered(quiet=60.0)
        accepted.setblocking(False)  # noqa: FBT003 -- socket's signature
        task = self._loop.create_task(self._handle(accepted, str(peer[0]) if peer else ""))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    async def _handle(self, accepted: socket.socket, address: str) -> None:
        """One connection from the TLS handshake to its end. Cancelled, it is aborted."""
        task = asyncio.current_task()
        server = self._runner.server
        if task is None or server is None:
            raise TypeError("a connection runs in a task, beside a runner that was set up")
        policy = self._policy()
        connection = Connection(
            server,
            traffic=self._traffic,
            policy=policy,
            on_request=lambda: self._table.used(address, task),
            keep_alive=self._limits.keep_alive,
            head_within=self._limits.head_within,
        )
        transport: asyncio.Transport | None = None
        self._table.add(address, task)
        try:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=policy.tls,
                ssl_handshake_timeout=self._limits.handshake_within if policy.tls else None,
                ssl_shutdown_timeout=_CLOSE_TLS_WITHIN if policy.tls else None,
            )
            await connection.closed.wait()
        except (OSError, TimeoutError) as error:
            # Not a warning: any client could fill the log.
            self._traffic.ended["handshake"] += 1
            _log.debug("connection not established", error=f"{type(error).__name__}: {error}")
        finally:
            if transport is not None:
                transport.abort()
            self._table.remove(address, task)

    def stop(self) -> None:
        """Accept no more, and close the sockets."""
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()

    async def end(self) -> None:
        """Abort the connections that are left."""
        await asyncio.sleep(0)  # a task that has not begun yet would not close its socket
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _listen(address: ListenAddress) -> list[socket.socket]:
    """The sockets that listen at `address`. Raises Fatal, saying which and why."""
    if address.path is not None:
        _remove_stale_socket(address.path)
    try:
        if address.path is not None:
            sockets = [_unix(address.path)]
        elif address.host is None:
            sockets = [_all_addresses(address.port)]
        else:
            sockets = await _addresses_of(address.host, address.port)
    except OSError as error:
        raise Fatal(f"--web.listen-address {address}: cannot listen: {error.strerror or error}") from error
    except UnicodeError as error:
        raise Fatal(f"--web.listen-address {address}: cannot listen: no host's name: {error}") from error
    for listening in sockets:
        listening.setblocking(False)  # noqa: FBT003 -- socket's signature
    return sockets


def _unix(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(path))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _all_addresses(port: int) -> socket.socket:
    """A socket for all addresses of both families, or of IPv4 where the node has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
            )
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port), backlog=BACKLOG)


async def _addresses_of(host: str, port: int) -> list[socket.socket]:
    """Sockets for all addresses of `host`."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, name in dict.fromkeys(found):
            sockets.append(socket.create_server(name, family=family, backlog=BACKLOG))
    except BaseException:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _urls(sockets: Sequence[socket.socket], address: ListenAddress, scheme: str) -> list[str]:
    if address.path is not None:
        return [f"unix:{address.path}"]
    names = [listening.getsockname()[:2] for listening in sockets]
    return [
        f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}" for host, port in names
    ]


@contextmanager
def _remove_at_end(path: Path | None) -> Generator[None]:
    """Remove the unix socket at `path` at the end, unless another process listens there by then."""
    made = _identity(path)
    try:
        yield
    finally:
        if path is not None and made is not None and _identity(path) == made:
            path.unlink(missing_ok=True)


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Device and inode of the file at `path`."""
    try:
        status = path.lstat() if path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


def _remove_stale_socket(path: Path) -> None:
    """Remove the socket that a killed process left at `path`.

    Raises Fatal for a file that is not a socket, and for a socket that is served.
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
