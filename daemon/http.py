"""Serving an aiohttp application: on TCP or a unix socket, with safe headers, and ending quickly."""

import asyncio
import errno
import logging
import socket
import stat
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from daemon.flags import ListenAddress
from daemon.log import Log
from daemon.process import Fatal

_log = Log("http")


class _NoRequest(logging.Filter):
    """Lets what is no HTTP pass at level debug alone: whoever reaches the port could fill the log with it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is to be told."""
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError) or _clients.isEnabledFor(logging.DEBUG)


_clients = logging.getLogger("devicelens.http.server")
_clients.addFilter(_NoRequest())

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing inline and nothing from elsewhere."""

_HEADERS: Final = {
    "Server": "devicelens",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

KEEP_ALIVE: Final = 75.0
"""Seconds for which a connection without a request is kept open."""

SEND_WITHIN: Final = 30.0
"""Seconds in which a client must have taken an answer that is whole when it is begun."""

LARGE: Final = 64 * 1024
"""Bytes from which an answer waits in this process for a client that does not read."""

LARGE_AT_ONCE: Final = 32
"""Large answers that may wait for their clients at the same time."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(*, send_within: float = SEND_WITHIN, large_at_once: int = LARGE_AT_ONCE) -> web.Application:
    """An application with this project's middlewares and limits, and no routes yet.

    Clients that do not read cost little: an answer is cut off after `send_within` seconds, and while
    `large_at_once` large ones are under way a further one is 503.
    """
    middlewares = [_outgoing(send_within, large_at_once), _guard]
    app = web.Application(middlewares=middlewares, client_max_size=64 * 1024)
    app.on_response_prepare.append(_add_headers)
    return app


def json_response(
    document: object, *, status: int = 200, content_type: str = "application/json"
) -> web.Response:
    """`document` (anything msgspec encodes) as a JSON answer."""
    return web.Response(body=msgspec.json.encode(document), status=status, content_type=content_type)


def problem(status: int, detail: str, **members: object) -> web.Response:
    """An error as application/problem+json (RFC 9457)."""
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return json_response(document | members, status=status, content_type="application/problem+json")


def _outgoing(send_within: float, large_at_once: int) -> Middleware:
    """A middleware that sees an answer out of the process, within bounds of time and number."""
    waiting = 0

    @web.middleware
    async def outgoing(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal waiting
        answer = await handler(request)
        if not isinstance(answer, web.Response) or answer.prepared:
            return answer
        large = request.method != hdrs.METH_HEAD and (answer.content_length or 0) >= LARGE
        if large and waiting >= large_at_once:
            refusal = _refusal(request, 503, f"{waiting} clients have not taken their answers yet")
            refusal.headers[hdrs.RETRY_AFTER] = "5"
            return refusal
        waiting += large
        try:
            async with asyncio.timeout(send_within):
                await answer.prepare(request)
                await answer.write_eof()
            # A connection that is kept open keeps its last answer, whose text would be kept with it.
            answer.body = None
        except ConnectionError:
            pass  # the client went, which aiohttp finds out for itself
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            waiting -= large
        return answer

    return outgoing


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read only; an error under /api/ is a problem document, elsewhere a line of text."""
    if request.method not in {"GET", "HEAD"}:
        refusal = _refusal(request, 405, f"{request.method} is not served: nothing changes state over HTTP")
        refusal.headers["Allow"] = "GET, HEAD"
        return refusal
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        detail = error.text if error.text and error.content_type == "text/plain" else error.reason
        answer = _refusal(request, error.status, detail)
        for name, value in error.headers.items():
            answer.headers.setdefault(name, value)
        return answer
    except Exception as error:  # noqa: BLE001 -- one bad request must not end a process
        return _failure(request, error)


def _refusal(request: web.Request, status: int, detail: str) -> web.Response:
    if request.path.startswith("/api/"):
        return problem(status, detail)
    return web.Response(text=f"{detail}\n", status=status)


def _failure(request: web.Request, error: Exception) -> web.Response:
    transport = request.transport
    if transport is None or transport.is_closing():
        return web.Response()  # the client left, and with it the reason to say anything
    _log.error("request failed", path=request.path, error=f"{type(error).__name__}: {error}")
    if request.writer.output_size > 0:
        # A part of an answer is out: nothing honest can follow it but an early end.
        transport.close()
    return _refusal(request, 500, "the request could not be answered; the log says why")


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers[name] = value


async def serve(app: web.Application, address: ListenAddress, *, purpose: str) -> None:
    """Serve `app` at `address` until cancelled; then close within a second, cutting streams short.

    Raises Fatal when the address cannot be listened on, saying which and why.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_clients,
        handle_signals=False,
        keepalive_timeout=KEEP_ALIVE,
        shutdown_timeout=0.5,
    )
    await runner.setup()
    try:
        try:
            site = _site(runner, address)
            await site.start()
        except OSError as error:
            reason = error.strerror or str(error)
            raise Fatal(f"--web.listen-address {address}: cannot listen: {reason}") from error
        made = _identity(address.path)
        for url in _urls(runner, address):
            _log.info("listening", purpose=purpose, url=url)
        try:
            await asyncio.Event().wait()
        finally:
            # Only our own: by now another process may serve at this path.
            if address.path is not None and made is not None and _identity(address.path) == made:
                address.path.unlink(missing_ok=True)
    finally:
        await runner.cleanup()


def _identity(path: Path | None) -> tuple[int, int] | None:
    """What tells one socket from another at the same path."""
    if path is None:
        return None
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _site(runner: web.AppRunner, address: ListenAddress) -> web.BaseSite:
    if address.path is None and address.host is None:
        return web.SockSite(runner, _everywhere(address.port))
    if address.path is None:
        return web.TCPSite(runner, address.host, address.port)
    _remove_stale_socket(address.path)
    return web.UnixSite(runner, address.path)


def _everywhere(port: int) -> socket.socket:
    """A socket that listens on all addresses of both families, or of IPv4 where the node has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port), backlog=128)


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


def _urls(runner: web.AppRunner, address: ListenAddress) -> list[str]:
    if address.path is not None:
        return [f"unix:{address.path}"]
    urls: list[str] = []
    for name in runner.addresses:
        host, port = name[0], name[1]
        urls.append(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    return urls
