"""Serves an application at a TCP address or a unix socket, with TLS and limits, until it is cancelled.

asyncio listens and accepts. `Connection` starts TLS, so a new connection uses a renewed certificate.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from runtime.directory import identity_of
from runtime.flags import ListenAddress, ProcessSettings
from runtime.http.access import OPEN, AccessPolicy, AllowedHosts
from runtime.http.app import log_requests, protect
from runtime.http.connection import (
    LIMITS,
    Connection,
    ConnectionTable,
    ServerLimits,
    Traffic,
    WebFamilies,
    server_log,
)
from runtime.log import Log
from runtime.process import Fatal

if TYPE_CHECKING:
    from runtime.http.web_config import WebConfigReloader

BACKLOG: Final = 512
"""Connections that the kernel holds until they are accepted. It drops what exceeds them, and a probe whose
first packet is dropped waits for one, three or seven seconds."""
ACCEPTED_AT_ONCE: Final = 16
"""Connections that one turn of the event loop accepts. A probe is answered about six turns later: within
those, a flood must not fill the places of its address and abort it.
"""
_END_WITHIN: Final = 0.5
"""Seconds that requests have left when the server ends."""

_log = Log("http")


class WebServer:
    """The HTTP server of a process: its address, its web configuration, and its metric families.

    Call `start` before anything is served, then run `run` as an actor.
    """

    def __init__(self, settings: ProcessSettings, *, prefix: str) -> None:
        """`prefix`: what the names of the families begin with."""
        self._address = settings.web_listen_address
        self._config_file = settings.web_config_file
        self._access_log = settings.web_access_log
        own = (settings.node_name, socket.gethostname())
        self._hosts = AllowedHosts(settings.web_allowed_hosts, own)
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

    async def run(self, app: web.Application, *, purpose: str) -> None:
        """Serve `app` until cancelled, and follow the files of the web configuration."""
        config = self._config
        async with asyncio.TaskGroup() as group:
            if config is not None:
                group.create_task(config.run())
            await serve(
                app,
                self._address,
                purpose=purpose,
                policy=lambda: OPEN if config is None else config.policy,
                traffic=self._traffic,
                hosts=self._hosts,
                access_log=self._access_log,
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
    hosts: AllowedHosts | None = None,
    access_log: bool = False,
) -> None:
    """Serve `app` at `address` until cancelled; then close within a second, cutting streams short.

    `policy` returns what new connections and requests must meet; `traffic` takes the counts. Raises Fatal
    when the address cannot be listened on.
    """
    traffic = traffic or Traffic()
    protect(app, policy, traffic, hosts)
    if access_log:
        log_requests(app)
    runner = web.AppRunner(
        app, access_log=None, logger=server_log, handle_signals=False, shutdown_timeout=_END_WITHIN
    )
    await runner.setup()
    # Half of the descriptors are for the kubelet's sockets, the database and devices.
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = limits.connections if descriptors < 0 else max(1, min(limits.connections, descriptors // 2))
    table = ConnectionTable(traffic, most, limits.per_address)

    def connection() -> Connection:
        manager = runner.server
        if manager is None:
            raise ConnectionAbortedError("the server ends")
        return Connection(manager, traffic=traffic, policy=policy, table=table, limits=limits)

    try:
        server = await _listen(address, connection)
        with _remove_at_end(address.path), _accept_errors_logged_once(table):
            scheme = "http" if policy().tls is None else "https"
            for url in _urls(server, address, scheme):
                _log.info("listening", purpose=purpose, url=url)
            try:
                await asyncio.Event().wait()
            finally:
                server.close()
    finally:
        await runner.cleanup()
        table.abort()


async def _listen(address: ListenAddress, connection: Callable[[], Connection]) -> asyncio.Server:
    """Listen at `address`. Raises Fatal, saying which and why."""
    loop = asyncio.get_running_loop()
    if address.path is not None:
        _remove_stale_socket(address.path)
    try:
        # asyncio accepts as many at once as it is given as the backlog.
        most = ACCEPTED_AT_ONCE
        if address.path is not None:
            server = await loop.create_unix_server(connection, str(address.path), backlog=most)
        elif address.host is None:
            server = await loop.create_server(connection, sock=_all_addresses(address.port), backlog=most)
        else:
            server = await loop.create_server(connection, address.host, address.port, backlog=most)
        for listening in server.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(BACKLOG)
    except OSError as error:
        raise Fatal(f"--web.listen-address {address}: cannot listen: {error.strerror or error}") from error
    except UnicodeError as error:
        raise Fatal(f"--web.listen-address {address}: cannot listen: no host's name: {error}") from error
    return server


def _all_addresses(port: int) -> socket.socket:
    """A socket for all addresses of both families, or of IPv4 where the node has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port))


def _urls(server: asyncio.Server, address: ListenAddress, scheme: str) -> list[str]:
    if address.path is not None:
        return [f"unix:{address.path}"]
    names = [listening.getsockname()[:2] for listening in server.sockets]
    return [
        f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}" for host, port in names
    ]


@contextmanager
def _accept_errors_logged_once(table: ConnectionTable) -> Generator[None]:
    """Log once that accept() fails for want of a descriptor; asyncio tries again after a second."""
    loop = asyncio.get_running_loop()
    previous = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and str(context.get("message", "")).startswith("socket.accept()"):
            table.not_accepted(error.strerror or str(error))
        elif previous is not None:
            previous(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(previous)


@contextmanager
def _remove_at_end(path: Path | None) -> Generator[None]:
    """Remove the unix socket at `path` at the end, unless another process listens there by then."""
    made = path and identity_of(path)
    try:
        yield
    finally:
        if path is not None and made is not None and identity_of(path) == made:
            path.unlink(missing_ok=True)


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
