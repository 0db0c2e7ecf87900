"""Client connections: how many there may be, and aiohttp's handler of one with TLS and bounds to a head.

aiohttp bounds the line, the fields and their number. It does not bound the time in which a head arrives, nor
the bytes of the whole head.
"""

import asyncio
import logging
import socket
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Iterable
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong
from msgspec import Struct, field

from runtime.exposition import Family, counter, gauge
from runtime.http.access import AccessPolicy
from runtime.log import Episode, Log

MAX_CONNECTIONS: Final = 512
"""Connections at once. Each is a descriptor and some tens of kilobytes."""
MAX_PER_ADDRESS: Final = 256
"""Connections of one address: half, so that one address never has all of them."""
HANDSHAKE_WITHIN: Final = 10.0
"""Seconds for a TLS handshake."""
KEEP_ALIVE: Final = 75.0
"""Seconds for which a connection without a request stays open."""
HEAD_WITHIN: Final = 10.0
"""Seconds in which a request's head must arrive, from its first byte or from the connection's start."""
HEAD_BYTES: Final = 32 * 1024
"""Bytes of a request's head."""
LINE_BYTES: Final = 8190
"""Bytes of a request's first line."""
FIELD_BYTES: Final = LINE_BYTES + 1
"""Bytes of a header field: another number, because aiohttp reports the exceeded limit by its value."""
FIELDS: Final = 100
"""Header fields of a request."""
LINGER: Final = 1.0
"""Seconds for which the body of a refused request is discarded, so that the client reads the refusal."""
SEND_BUFFER: Final = 128 * 1024
"""Bytes for SO_SNDBUF, which the kernel doubles: without it a send buffer grows to megabytes."""
_CLOSE_TLS_WITHIN: Final = 2.0
"""Seconds for the client to answer the end of TLS."""
_TLS_BUFFER: Final = 16 * 1024 + 256
"""Bytes: the largest TLS record."""

HEAD_END: Final = b"\r\n\r\n"
REFUSAL_HEADERS: Final = {
    hdrs.SERVER: "devicelens",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    hdrs.CACHE_CONTROL: "no-store",
}
"""Headers of an answer to bytes that are not an HTTP request."""

ENDED: Final = ("certificate", "crowded", "handshake", "head_large", "head_late")
"""Why the server ended a connection: the client's certificate has no allowed name; a newer connection needed
room; the TLS handshake failed or took too long; the request's head was too large, or arrived too late."""

REFUSED: Final = ("host", "missing", "wrong", "busy", "full")
"""Why the server refused a request: its host is not allowed; no password, or a wrong one; too many passwords
of its client, or of all clients, were being verified."""

_log = Log("http")
server_log = logging.getLogger("devicelens.http.server")

# asyncio reads TLS through a buffer of 256 KiB for each connection: 128 MiB for 512 idle clients.
if getattr(sslproto.SSLProtocol, "max_size", 0) > _TLS_BUFFER:
    sslproto.SSLProtocol.max_size = _TLS_BUFFER


class ServerLimits(Struct, frozen=True):
    """What clients may take; times in seconds."""

    connections: int = MAX_CONNECTIONS
    per_address: int = MAX_PER_ADDRESS
    handshake_within: float = HANDSHAKE_WITHIN
    head_within: float = HEAD_WITHIN
    keep_alive: float = KEEP_ALIVE


LIMITS: Final = ServerLimits()


class Traffic(Struct):
    """Counts since the process started; `connections` are those open now."""

    connections: int = 0
    ended: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])


class WebFamilies:
    """The server's metric families, whose names begin with `prefix`."""

    def __init__(
        self, prefix: str, traffic: Traffic, config_refused: Callable[[], bool] = lambda: False
    ) -> None:
        """`config_refused`: whether the web configuration was refused when it was last read."""
        self._prefix = prefix
        self._traffic = traffic
        self._config_refused = config_refused

    def condition(self) -> object:
        """All that the families depend on."""
        traffic = self._traffic
        return (traffic.connections, dict(traffic.ended), dict(traffic.refused), self._config_refused())

    def families(self) -> Iterable[Family]:
        """The families at this moment."""
        yield gauge(
            f"{self._prefix}_web_connections",
            "Open connections of clients. [ALPHA]",
            value=self._traffic.connections,
        )
        for name, text, reasons, counts in (
            (
                "connections_ended",
                "Connections that the server ended, by reason.",
                ENDED,
                self._traffic.ended,
            ),
            ("requests_refused", "Requests without access, by reason.", REFUSED, self._traffic.refused),
        ):
            family = counter(f"{self._prefix}_web_{name}", f"{text} [ALPHA]", ["reason"])
            for reason in reasons:
                family.add([reason], counts[reason])
            yield family
        yield gauge(
            f"{self._prefix}_web_config_last_reload_successful",
            "0 if the web configuration was refused when it was last read and the previous one stays in "
            "force, else 1. [ALPHA]",
            value=int(not self._config_refused()),
        )


class ConnectionTable:
    """The open connections: at most `most`, and `per_address` of one address.

    A new connection is always admitted. Where there is no room, the connection that was used longest ago is
    aborted: one of the same address if that address has its share, otherwise one of the address that has the
    most. So no address keeps out others, or the kubelet's probes from the same address.

    A connection is used when it opens, and when a request arrives behind no other. Requests that a client
    queues do not count: one turn of the event loop would make hundreds of its connections newer than a probe.
    """

    def __init__(self, traffic: Traffic, most: int, per_address: int) -> None:
        self._traffic = traffic
        self._most = most
        self._per_address = min(per_address, most)
        self._open: dict[Connection, None] = {}
        """The least recently used first."""
        self._full = Episode(_log, "connection limit reached, the least recently used are closed")
        self._starved = Episode(_log, "connections cannot be accepted")

    def add(self, connection: "Connection") -> None:
        """Admit a connection, and abort another one if there is no room for both."""
        self._starved.recovered(quiet=60.0)
        if sum(other.address == connection.address for other in self._open) >= self._per_address:
            self._evict(connection.address)
        elif len(self._open) >= self._most:
            self._evict()
        elif len(self._open) < self._most // 2:
            self._full.recovered(quiet=60.0)
        self._open[connection] = None
        self._traffic.connections = len(self._open)

    def used(self, connection: "Connection") -> None:
        """This connection is the most recently used one."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def remove(self, connection: "Connection") -> None:
        """The connection ended."""
        self._open.pop(connection, None)
        self._traffic.connections = len(self._open)

    def not_accepted(self, reason: str) -> None:
        """A connection cannot be accepted, as for want of a descriptor."""
        self._starved.failed(reason)

    def abort(self) -> None:
        """Abort all connections: the server ends."""
        for connection in self._open:
            connection.abort()

    def _evict(self, address: str | None = None) -> None:
        """Abort the least recently used connection of `address`, by default of the address with the most."""
        counts = Counter(connection.address for connection in self._open)
        if address is None:
            address = counts.most_common(1)[0][0]
        # The same words each time: one line an episode, whatever the clients do.
        self._full.failed(f"more than {self._most}, or {self._per_address} of one address")
        self._traffic.ended["crowded"] += 1
        connection = next(found for found in self._open if found.address == address)
        self.remove(connection)
        connection.abort()


class Connection(web.RequestHandler):
    """aiohttp's handler of one connection, fed with one request's head at a time, after the TLS handshake.

    Further bytes wait here until the answer is out: no client can queue requests in memory.
    """

    def __init__(
        self,
        server: web.Server,
        *,
        traffic: Traffic,
        policy: Callable[[], AccessPolicy],
        table: ConnectionTable,
        limits: ServerLimits = LIMITS,
    ) -> None:
        """`policy` returns what the connection must meet."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.keep_alive,
            logger=server_log,
            access_log=None,  # type: ignore[arg-type] # None switches it off, as web.AppRunner has it
            max_line_size=LINE_BYTES,
            max_field_size=FIELD_BYTES,
            max_headers=FIELDS,
            lingering_time=LINGER,
        )
        self.address = ""
        """The client's IP address, "" at a unix socket."""
        self._traffic = traffic
        self._policy = policy()
        self._table = table
        self._limits = limits
        self._tcp: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = b""
        self._busy = True
        self._discard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is connected; TLS is not established yet."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a connection of a stream socket has a stream transport")
        self._tcp = transport
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._table.add(self)
        tls = self._policy.tls
        if tls is None:
            self._begin(transport)
        else:
            transport.pause_reading()
            self._handshake = asyncio.get_running_loop().create_task(self._start_tls(transport, tls))

    async def _start_tls(self, tcp: asyncio.Transport, tls: SSLContext) -> None:
        secured: asyncio.Transport | None = None
        try:
            secured = await asyncio.get_running_loop().start_tls(
                tcp,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._limits.handshake_within,
                ssl_shutdown_timeout=_CLOSE_TLS_WITHIN,
            )
        except OSError as error:
            # Not a warning: any client could fill the log.
            self._traffic.ended["handshake"] += 1
            _log.debug("connection not established", error=f"{type(error).__name__}: {error}")
        if secured is None or secured.is_closing():
            tcp.abort()
            self._table.remove(self)
        else:
            self._begin(secured)

    def _begin(self, transport: asyncio.Transport) -> None:
        """Serve requests from now on."""
        super().connection_made(transport)
        if not self._policy.allows_certificate(transport.get_extra_info("peercert")):
            self._traffic.ended["certificate"] += 1
            self.force_close()
            return
        self._start_timer()
        self.request_done()

    def abort(self) -> None:
        """End the connection at once."""
        if self._tcp is not None:
            self._tcp.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone."""
        self._stop_timer()
        self._table.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of one or several requests."""
        if self._discard or self._force_close:
            return
        self._buffer += data
        if not self._busy:
            self._feed()
        elif len(self._buffer) > HEAD_BYTES and self.transport is not None:
            self.transport.pause_reading()

    def _feed(self, *, queued: bool = False) -> None:
        """Hand the next whole head to aiohttp. `queued`: the client sent it behind another request."""
        self._buffer = self._buffer.lstrip(b"\r\n")  # RFC 9112, section 2.2: empty lines before a request
        end = self._buffer.find(HEAD_END)
        if end < 0 and len(self._buffer) <= HEAD_BYTES:
            if self._buffer and self._timer is None:
                self._start_timer()
            return
        self._stop_timer()
        if not 0 <= end <= HEAD_BYTES:
            self._refuse("head_large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large")
            return
        head, self._buffer = self._buffer[: end + len(HEAD_END)], self._buffer[end + len(HEAD_END) :]
        self._busy = True
        if not queued:
            self._table.used(self)
        requests = self._request_count
        super().data_received(head)
        if self._request_count == requests:
            # The parser wants more, as after the preface of HTTP/2.
            self._refuse("head_late", HTTPStatus.BAD_REQUEST, "only HTTP/1.1 is supported")

    def discard_body(self) -> None:
        """The present request is the last one: ignore whatever follows its head."""
        self._discard = True
        self._buffer = b""

    def request_done(self) -> None:
        """The answer is out: go on with the next request."""
        self._busy = False
        if self.transport is not None:
            self.transport.resume_reading()
        if self._buffer:
            # Not at once: a client with hundreds of requests in the queue must not keep others waiting.
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if not (self._busy or self._discard or self._force_close) and self.transport is not None:
            self._feed(queued=True)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 -- aiohttp's text quotes the client
    ) -> web.StreamResponse:
        """The answer to bytes that are no request, or to a request that failed outside of the application."""
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
        else:
            # Not a warning: any client could fill the log.
            server_log.debug("not a request, from %s", request.remote, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer is out: only an early end can follow")
        if isinstance(exc, LineTooLong):
            line = exc.args[1] == LINE_BYTES
            status = HTTPStatus.REQUEST_URI_TOO_LONG if line else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._traffic.ended["head_large"] += 1
        response = web.Response(status=status, text=f"{HTTPStatus(status).phrase}\n", headers=REFUSAL_HEADERS)
        response.force_close()
        return response

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._limits.head_within, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._buffer:
            text = f"no request within {self._limits.head_within:g} s"
            self._refuse("head_late", HTTPStatus.REQUEST_TIMEOUT, text)
        else:
            # Browsers open connections that they may need later: there is no request to answer.
            self._traffic.ended["head_late"] += 1
            self.force_close()

    def _refuse(self, reason: str, status: HTTPStatus, text: str) -> None:
        self._traffic.ended[reason] += 1
        self._discard = True
        body = f"{text}\n"
        headers = REFUSAL_HEADERS | {
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        lines = (f"{name}: {value}" for name, value in headers.items())
        head = "\r\n".join((f"HTTP/1.1 {status.value} {status.phrase}", *lines, "", ""))
        if self.transport is not None:
            self.transport.write(f"{head}{body}".encode())
        self.force_close()


def connection_of(request: web.BaseRequest) -> Connection | None:
    """The connection of a request; None where a test serves the application by aiohttp's own server."""
    protocol: Any = request.protocol
    return protocol if isinstance(protocol, Connection) else None
