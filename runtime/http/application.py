"""An aiohttp application with safe headers, answers that are documents, and errors that are problems."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from runtime.http.connection import connection_of
from runtime.log import Log

_log = Log("http")

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
        connection = connection_of(request)
        if connection is None:
            return await answered(request, handler)
        connection.begin()
        try:
            return await answered(request, handler)
        finally:
            connection.end()

    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal waiting
        answer = await handler(request)
        if not isinstance(answer, web.Response) or answer.prepared:
            return answer
        large = request.method != hdrs.METH_HEAD and (answer.content_length or 0) >= LARGE
        if large and waiting >= large_at_once:
            refused = refusal(request, 503, f"{waiting} clients have not taken their answers yet")
            refused.headers[hdrs.RETRY_AFTER] = "5"
            return refused
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
        refused = refusal(request, 405, f"{request.method} is not served: nothing changes state over HTTP")
        refused.headers["Allow"] = "GET, HEAD"
        return _last(request, refused)
    if request.body_exists:
        return _last(request, refusal(request, 413, f"{request.method} is asked without a body"))
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < HTTPStatus.BAD_REQUEST:
            raise
        detail = error.text if error.text and error.content_type == "text/plain" else error.reason
        answer = refusal(request, error.status, detail)
        for name, value in error.headers.items():
            answer.headers.setdefault(name, value)
        return answer
    except Exception as error:  # noqa: BLE001 -- one bad request must not end a process
        return _failure(request, error)


def refusal(request: web.Request, status: int, detail: str) -> web.Response:
    """An error as its client expects it: a problem document under /api/, elsewhere a line of text."""
    if request.path.startswith("/api/"):
        return problem(status, detail)
    return web.Response(text=f"{detail}\n", status=status)


def _last(request: web.Request, refused: web.Response) -> web.Response:
    """The last answer of a connection whose request has a body, which nobody is going to read."""
    if request.body_exists:
        refused.force_close()
    return refused


def _failure(request: web.Request, error: Exception) -> web.Response:
    transport = request.transport
    if transport is None or transport.is_closing():
        return web.Response()  # the client left, and with it the reason to say anything
    _log.error("request failed", path=request.path, error=f"{type(error).__name__}: {error}")
    if request.writer.output_size > 0:
        # A part of an answer is out: nothing honest can follow it but an early end.
        transport.close()
    return refusal(request, 500, "the request could not be answered; the log says why")


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in _HEADERS.items():
        response.headers[name] = value
