"""How every address of the API answers: what a client must accept, how long an answer is good, its errors."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from exporter.views.documents import Moment
from exporter.views.query import QueryError
from exporter.views.wording import judge, rfc3339
from exporter.web.answers import accepts, field, fitting, is_known, not_modified, tagged
from exporter.web.site import Site
from runtime.http import problem
from runtime.text import visible

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TAKEN_AT: Final = "Devicelens-Taken-At"
"""Header: when the kubelet was asked for the mapping. A 304 has it too, whose kept answer may be older."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def endpoint(handler: Handler, media: str = JSON) -> Handler:
    """`handler`, which answers with `media`: 406 to a client that does not take it, 400 for a QueryError."""

    @wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        accept = field(request, hdrs.ACCEPT)
        if not accepts(accept, media):
            found = visible(accept or "", limit=80)
            return problem(406, f"Accept: found {found!r}, expected {media} among it", available=[media])
        try:
            return await handler(request)
        except QueryError as error:
            return refusal(error)

    return answered


async def tell(
    request: web.Request, moment: Moment, tag: str, document: Callable[[], msgspec.Struct]
) -> web.Response:
    """The document, made unless the client has the one of `tag`."""
    if is_known(request, tag):
        response = not_modified(tag)
    else:
        response = tagged(await fitting(request, encode(document()), JSON), tag)
    if moment.state.taken_at is not None:
        response.headers[TAKEN_AT] = rfc3339(moment.state.taken_at)
    return response


def no_mapping(site: Site, moment: Moment) -> web.Response:
    """503: the kubelet has not answered yet, and why."""
    standing = judge(moment.state, moment.now, moment.stale_after)
    response = problem(503, standing.line, freshness=standing.freshness.value, node=moment.node)
    response.headers[hdrs.RETRY_AFTER] = str(max(1, round(site.poll_interval)))
    return response


def refusal(error: QueryError) -> web.Response:
    """400: which parameter, what was found, what was expected."""
    return problem(400, str(error), parameter=error.parameter, found=error.found, expected=error.expected)


def encode(document: object) -> bytes:
    """`document` as JSON. Half characters, which a path or an error may have, become U+FFFD."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_whole(msgspec.to_builtins(document)))


def _whole(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_whole(key): _whole(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_whole(inner) for inner in value]
        case _:
            return value
