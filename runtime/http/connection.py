"""One client's connection: aiohttp's, with bounds to how long and how large a request's head may be.

aiohttp bounds lines, fields, their number, and the time for which a connection is idle; it does not bound the
time that a head takes, nor what it is in all.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong

KEEP_ALIVE: Final = 75.0
"""Seconds for which a connection without a request is kept open."""
HEAD_WITHIN: Final = 10.0
"""Seconds in which a request's head must have come, from its first byte or the connection's begin on."""
HEAD_BYTES: Final = 32 * 1024
"""Bytes of a request's head."""
LINE_BYTES: Final = 8190
"""Bytes of a request's first line."""
FIELD_BYTES: Final = LINE_BYTES + 1
"""Bytes of a header: another number, for aiohttp tells which was exceeded by its number alone."""
FIELDS: Final = 100
"""Headers of a request."""
_LINGER: Final = 1.0
"""Seconds for which what comes behind a refused request is thrown away, so that the refusal is read."""

SAFE: Final = {
    hdrs.SERVER: "devicelens",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    hdrs.CACHE_CONTROL: "no-store",
}
"""Headers of answers to what is no request."""

clients_log = logging.getLogger("devicelens.http.server")


def refusal(status: HTTPStatus, text: str, *further: str) -> bytes:
    """An answer for those that aiohttp is not to be bothered with."""
    body = f"{text}\n".encode()
    fields = (f"{name}: {value}" for name, value in SAFE.items())
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        *fields,
        *further,
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a connection tells of itself. `admit`: whether a client is let in, now that TLS is agreed."""

    admit: Callable[[asyncio.BaseTransport], bool]
    busy: Callable[[], None]
    idle: Callable[[], None]
    lost: Callable[[], None]
    ended: Callable[[str], None]


class Connection(web.RequestHandler):
    """aiohttp's handler of a connection, watched."""

    __slots__ = ("_begun", "_head_within", "_hooks", "_is_refused", "_size", "_tail", "_timer")

    def __init__(
        self,
        server: web.Server,
        hooks: Hooks,
        *,
        keep_alive: float = KEEP_ALIVE,
        head_within: float = HEAD_WITHIN,
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=keep_alive,
            logger=clients_log,
            access_log=None,  # type: ignore[arg-type] # None switches it off, as web.AppRunner has it
            max_line_size=LINE_BYTES,
            max_field_size=FIELD_BYTES,
            max_headers=FIELDS,
            lingering_time=_LINGER,
        )
        self._hooks = hooks
        self._head_within = head_within
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False
        self._is_refused = False
        self._size = 0
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there, and TLS agreed."""
        if not self._hooks.admit(transport):
            self._is_refused = True
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            return
        self._wait()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is gone."""
        self._done_waiting()
        self._hooks.lost()
        if not self._is_refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something of a request, or several."""
        if self._is_refused:
            return
        if data:
            self._tail = (self._tail + data[-4:])[-4:]
            if not self._begun:
                if self._size > HEAD_BYTES:
                    self._refuse(
                        "head_large", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too large"
                    )
                    return
                if self._timer is None:
                    self._wait()
                self._size += len(data)
        super().data_received(data)

    def begin(self) -> None:
        """A request's head has come, whole."""
        self._done_waiting()
        self._begun = True
        self._hooks.busy()

    def end(self) -> None:
        """Its answer is out."""
        self._begun = False
        self._hooks.idle()
        if self._has_more:
            self._wait()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 -- aiohttp's words quote the client
    ) -> web.StreamResponse:
        """The answer to what is no request, or to a request that failed where no handler saw it."""
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            self.log_exception("Error handling request from %s", request.remote, exc_info=exc)
        else:
            clients_log.debug("no request from %s", request.remote, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun, and nothing honest can follow it but its end")
        if isinstance(exc, LineTooLong):
            in_line = exc.args[1] == LINE_BYTES
            status = (
                HTTPStatus.REQUEST_URI_TOO_LONG if in_line else HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            )
            self._hooks.ended("head_large")
        response = web.Response(status=status, text=f"{HTTPStatus(status).phrase}\n", headers=SAFE)
        response.force_close()
        return response

    @property
    def _has_more(self) -> bool:
        """Whether something came behind the last request: a part of a head does not end as heads end."""
        return self._tail not in {b"", b"\r\n\r\n"}

    def _wait(self) -> None:
        self._done_waiting()
        self._timer = asyncio.get_running_loop().call_later(self._head_within, self._late)

    def _done_waiting(self) -> None:
        self._size = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._size or self._has_more:
            self._refuse(
                "head_late", HTTPStatus.REQUEST_TIMEOUT, f"no request within {self._head_within:g} s"
            )
        else:
            self._hooks.ended("head_late")
            self.force_close()

    def _refuse(self, reason: str, status: HTTPStatus, text: str) -> None:
        self._hooks.ended(reason)
        if self.transport is not None:
            self.transport.write(refusal(status, text))
        self.force_close()


def connection_of(request: web.BaseRequest) -> Connection | None:
    """The connection of a request, where it is one of these (tests of applications have aiohttp's own)."""
    protocol: Any = request.protocol
    return protocol if isinstance(protocol, Connection) else None
