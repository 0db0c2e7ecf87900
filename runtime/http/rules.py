"""What `--web.config.file` asks of each request: a rate, a password; and which headers answers have."""

import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from runtime.http.application import refusal
from runtime.http.traffic import Traffic
from runtime.protection.passwords import Verdict
from runtime.protection.rules import Rules

CHALLENGE: Final = 'Basic realm="devicelens", charset="UTF-8"'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_WORDS: Final = {
    Verdict.MISSING: (HTTPStatus.UNAUTHORIZED, "a name and a password are needed"),
    Verdict.WRONG: (HTTPStatus.UNAUTHORIZED, "the name or the password is wrong"),
    Verdict.BUSY: (HTTPStatus.TOO_MANY_REQUESTS, "other passwords from here are being looked at"),
    Verdict.FULL: (HTTPStatus.SERVICE_UNAVAILABLE, "too many passwords are being looked at"),
}


def protect(app: web.Application, rules: Callable[[], Rules], traffic: Traffic) -> None:
    """Have every request of `app` meet the rules of its moment, before anything else looks at it.

    To be called when all of the application's own middlewares and signals are there.
    """
    # Behind the one that sees answers out, which refusals need as well.
    app.middlewares.insert(1, _met(rules, traffic))

    async def headers(_request: web.Request, response: web.StreamResponse) -> None:
        for name, value in rules().headers.items():
            if value:
                response.headers[name] = value
            else:
                response.headers.pop(name, None)

    app.on_response_prepare.append(headers)


def _met(rules: Callable[[], Rules], traffic: Traffic) -> Middleware:
    @web.middleware
    async def met(request: web.Request, handler: Handler) -> web.StreamResponse:
        now = rules()
        if now.bucket is not None:
            wait = now.bucket.take()
            if wait:
                traffic.refused["rate"] += 1
                return _later(request, HTTPStatus.TOO_MANY_REQUESTS, "the rate limit is exceeded", wait)
        if now.gate is None:
            return await handler(request)
        verdict = await now.gate.judge(request.headers.get(hdrs.AUTHORIZATION), request.remote or "")
        if verdict is Verdict.ADMITTED:
            return await handler(request)
        traffic.refused[verdict.value] += 1
        status, words = _WORDS[verdict]
        if status is not HTTPStatus.UNAUTHORIZED:
            return _later(request, status, words, 1.0)
        answer = refusal(request, status, words)
        answer.headers[hdrs.WWW_AUTHENTICATE] = CHALLENGE
        answer.headers[hdrs.CACHE_CONTROL] = "no-store"
        return answer

    return met


def _later(request: web.Request, status: HTTPStatus, words: str, seconds: float) -> web.Response:
    answer = refusal(request, status, words)
    answer.headers[hdrs.RETRY_AFTER] = str(max(1, math.ceil(seconds)))
    answer.headers[hdrs.CACHE_CONTROL] = "no-store"
    return answer
