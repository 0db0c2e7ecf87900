"""An aiohttp application with security headers, JSON answers, problem documents, and bounded answers.

A request passes `log_requests`, `_outgoing` (time and bytes of its answer), `protect` (host, password), and
`_guard` (method, errors).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from runtime.http.access import AccessPolicy, AllowedHosts, Verdict
from runtime.http.bodies import (
    ANSWER_WORKER,
    BUDGET,
    LARGE,
    AnswerBudget,
    AnswerWorker,
    Body,
    BodyResponse,
    portions,
)
from runtime.http.connection import Traffic, connection_of
from runtime.log import Log
from runtime.text import quoted, shortened

_log = Log("http")

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing inline and nothing from other origins."""

SECURITY_HEADERS: Final = {
    "Server": "devicelens",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

SEND_WITHIN: Final = 30.0
"""Seconds in which a client must take an answer."""
_TURN: Final = 8
"""Portions of an answer after which others have a turn: half a MiB is sent in about a millisecond."""
_LOGGED_PATH: Final = 256
"""Characters of a path in the log."""
CHALLENGE: Final = 'Basic realm="devicelens", charset="UTF-8"'

_REFUSALS: Final = {
    Verdict.MISSING: (HTTPStatus.UNAUTHORIZED, "a name and a password are needed"),
    Verdict.WRONG: (HTTPStatus.UNAUTHORIZED, "the name or the password is wrong"),
    Verdict.BUSY: (HTTPStatus.TOO_MANY_REQUESTS, "other passwords of this client are being verified"),
    Verdict.FULL: (HTTPStatus.SERVICE_UNAVAILABLE, "too many passwords are being verified"),
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(*, send_within: float = SEND_WITHIN, budget: int = BUDGET) -> web.Application:
    """An application with this project's middlewares and limits, and no routes yet.

    Clients that do not read cost little: their connection is aborted after `send_within` seconds, and a large
    answer is refused (503) while answers of `budget` bytes are being sent.
    """
    answers = AnswerBudget(budget)
    app = web.Application(middlewares=[_outgoing(send_within, answers), _guard], client_max_size=64 * 1024)
    app[ANSWER_WORKER] = AnswerWorker(answers)
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


def refusal(
    request: web.Request, status: int, detail: str, *, retry_after: int | None = None
) -> web.Response:
    """An error in the form of its address: a problem document under /api/, elsewhere a line of text."""
    if request.path.startswith("/api/"):
        answer = problem(status, detail)
    else:
        answer = web.Response(text=f"{detail}\n", status=status)
    if retry_after is not None:
        answer.headers[hdrs.RETRY_AFTER] = str(retry_after)
    return answer


def protect(
    app: web.Application,
    policy: Callable[[], AccessPolicy],
    traffic: Traffic,
    hosts: AllowedHosts | None = None,
) -> None:
    """Make every request of `app` meet the access policy of its moment, before the application sees it.
    `hosts` does not bind clients of a unix socket.

    Call it when all of the application's own middlewares and signals are there.
    """

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        present = policy()
        host = request.headers.get(hdrs.HOST, "")
        if hosts is not None and request.remote and not hosts.allow(host, present):
            traffic.refused["host"] += 1
            detail = f"the host {quoted(host)} is not allowed: list it in --web.allowed-hosts"
            return _without_body(request, refusal(request, HTTPStatus.MISDIRECTED_REQUEST, detail))
        users = present.users
        if users is None:
            return await handler(request)
        verdict = await users.judge(request.headers.get(hdrs.AUTHORIZATION), request.remote or "")
        if verdict is Verdict.ADMITTED:
            return await handler(request)
        traffic.refused[verdict.value] += 1
        status, detail = _REFUSALS[verdict]
        if status is HTTPStatus.UNAUTHORIZED:
            answer = refusal(request, status, detail)
            answer.headers[hdrs.WWW_AUTHENTICATE] = CHALLENGE
        else:
            answer = refusal(request, status, detail, retry_after=1)
        answer.headers[hdrs.CACHE_CONTROL] = "no-store"
        return _without_body(request, answer)

    async def headers(_request: web.Request, response: web.StreamResponse) -> None:
        for name, value in policy().headers.items():
            if value:
                response.headers[name] = value
            else:
                response.headers.pop(name, None)

    # Behind `_outgoing`, which refusals need as well.
    app.middlewares.insert(1, authenticate)
    app.on_response_prepare.append(headers)


def log_requests(app: web.Application) -> None:
    """Log each request of `app` when its answer is out, without its query and its credentials."""

    @web.middleware
    async def logged(request: web.Request, handler: Handler) -> web.StreamResponse:
        started, answer = time.monotonic(), None
        try:
            answer = await handler(request)
            return answer
        finally:
            _log.info(
                "request",
                remote=request.remote or "unix",
                method=request.method,
                path=shortened(request.path, _LOGGED_PATH),
                status=None if answer is None else answer.status,
                bytes=request.writer.output_size,
                seconds=round(time.monotonic() - started, 4),
            )

    app.middlewares.insert(0, logged)


def _outgoing(send_within: float, budget: AnswerBudget) -> Middleware:
    """A middleware that sends the answer, within bounds of time and bytes."""

    @web.middleware
    async def outgoing(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = connection_of(request)
        try:
            answer = await handler(request)
            if isinstance(answer, web.Response) and not answer.prepared:
                answer = await _send(request, answer, send_within, budget)
        finally:
            if connection is not None:
                connection.request_done()
        return answer

    return outgoing


async def _send(
    request: web.Request, answer: web.Response, within: float, budget: AnswerBudget
) -> web.StreamResponse:
    """Send the answer; abort the connection of a client that does not read it in time."""
    body = _body(answer)
    try:
        async with asyncio.timeout(within):
            if body.size < LARGE:
                if isinstance(answer, BodyResponse):
                    answer.body = b"".join(body.pieces)
                await answer.prepare(request)
                await answer.write_eof()
                return answer
            answer.body = None
            if request.method == hdrs.METH_HEAD:
                return await _send_in_pieces(request, answer, body)
            with budget.sending(body) as admitted:
                if admitted:
                    return await _send_in_pieces(request, answer, body)
            answer = refusal(request, 503, "too many large answers are being sent", retry_after=5)
            await answer.prepare(request)
            await answer.write_eof()
    except ConnectionError:
        pass  # the client went; aiohttp notices
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return answer


def _body(answer: web.Response) -> Body:
    if isinstance(answer, BodyResponse):
        return answer.made
    return Body((answer.body,) if isinstance(answer.body, bytes) else ())


async def _send_in_pieces(request: web.Request, answer: web.Response, body: Body) -> web.StreamResponse:
    """Send the pieces, cut or joined to LARGE: what a client does not read stays in shared pieces alone."""
    headers = answer.headers.copy()
    stream = web.StreamResponse(status=answer.status, headers=headers)
    stream.content_length = body.size
    if answer.keep_alive is False:
        stream.force_close()
    await stream.prepare(request)
    if request.method != hdrs.METH_HEAD:
        for count, portion in enumerate(portions(body.pieces), 1):
            await stream.write(portion)
            if not count % _TURN:
                await asyncio.sleep(0)  # a client that reads fast must not keep others waiting
    await stream.write_eof()
    return stream


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read only. An error becomes a problem document under /api/, elsewhere a line of text."""
    if request.method not in {"GET", "HEAD"}:
        refused = refusal(request, 405, f"{request.method} is not served: nothing changes state over HTTP")
        refused.headers["Allow"] = "GET, HEAD"
        return _without_body(request, refused)
    if request.body_exists:
        return _without_body(request, refusal(request, 413, f"{request.method} is served without a body"))
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


def _without_body(request: web.Request, refused: web.Response) -> web.Response:
    """Make it the last answer of its connection if the request has a body, which is not read."""
    if request.body_exists:
        refused.force_close()
        connection = connection_of(request)
        if connection is not None:
            connection.discard_body()
    return refused


def _failure(request: web.Request, error: Exception) -> web.Response:
    transport = request.transport
    if transport is None or transport.is_closing():
        return web.Response()  # the client left
    _log.error("request failed", path=request.path, error=f"{type(error).__name__}: {error}")
    if request.writer.output_size > 0:
        # Part of an answer is out: only an early end can follow.
        transport.close()
    return refusal(request, 500, "the request could not be answered; the log says why")


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in SECURITY_HEADERS.items():
        response.headers[name] = value
