"""HTTP answers: content negotiation, gzip, ETag and 304, JSON encoding, and the API's errors.

Negotiation follows RFC 9110, sections 12.5.1, 12.5.3 and 13.1.2. A tag is always weak: ages in an answer
advance while its content stays the same, and so one tag is right for the plain and for the gzip form (section
8.8.3.3).
"""

import asyncio
import gzip
import re
import zlib
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final, TypeVar

import msgspec
from aiohttp import ETag, hdrs, web

from exporter.mapping.state import Moment
from exporter.views.encoding import pieces
from exporter.views.query import QueryError
from exporter.views.wording import rfc3339
from runtime.blocks import LEVEL
from runtime.exposition import accepts_gzip
from runtime.http.app import problem
from runtime.http.bodies import ANSWER_WORKER, LARGE, Body, BodyResponse
from runtime.text import visible

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TAKEN_AT: Final = "Devicelens-Taken-At"
"""Header: when the exporter requested the mapping from the kubelet. A 304 has it too."""

_QUALITY: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
GZIP_FROM: Final = 1024
"""Bytes from which gzip is worth its time."""
LARGE_FROM: Final = 200
"""Devices or rows from which making a document or a page would block the event loop for milliseconds."""

T = TypeVar("T")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def accepts(accept: str | None, media: str) -> bool:
    """Whether an Accept header allows `media` (type/subtype, lower case); without the header all is allowed.

    The most specific matching range decides: `application/json;q=0, */*` refuses JSON. Invalid ranges are
    ignored; a header without a valid range allows all.
    """
    ranges = ("*/*", f"{media.partition('/')[0]}/*", media)
    best, allowed, valid = -1, False, False
    for clause in (accept or "").split(","):
        name, *parameters = (part.strip().lower() for part in clause.split(";"))
        quality = next((p[2:].strip() for p in parameters if p.startswith("q=")), "1")
        if "/" not in name or not _QUALITY.fullmatch(quality):
            continue
        valid = True
        if name in ranges and ranges.index(name) >= best:
            rank, wanted = ranges.index(name), float(quality) > 0
            allowed = wanted or (allowed and rank == best)
            best = rank
    return allowed or not valid


def header_list(request: web.Request, name: str) -> str | None:
    """The value of a list header, its lines joined; None without it."""
    lines = request.headers.getall(name, ())
    return ", ".join(lines) if lines else None


def wants_gzip(request: web.Request) -> bool:
    """Whether the client accepts gzip."""
    return accepts_gzip(header_list(request, hdrs.ACCEPT_ENCODING))


async def compressed(body: bytes) -> bytes:
    """`body` as gzip; equal for equal bytes."""
    if len(body) >= LARGE:
        return await asyncio.to_thread(gzip.compress, body, LEVEL, mtime=0)
    return gzip.compress(body, LEVEL, mtime=0)


def answer(
    body: bytes | Body, content_type: str, *, gzipped: bool = False, status: int = 200
) -> web.Response:
    """An answer that caches revalidate each time."""
    headers = {
        hdrs.CONTENT_TYPE: content_type,
        hdrs.VARY: hdrs.ACCEPT_ENCODING,
        hdrs.CACHE_CONTROL: "no-cache",
    }
    if gzipped or (isinstance(body, Body) and body.gzipped):
        headers[hdrs.CONTENT_ENCODING] = "gzip"
    if isinstance(body, Body):
        return BodyResponse(body, status=status, headers=headers)
    return web.Response(body=body, status=status, headers=headers)


async def negotiated(request: web.Request, body: bytes, content_type: str) -> web.Response:
    """`body`, compressed where the client accepts gzip and the size is worth it."""
    gzipped = len(body) >= GZIP_FROM and wants_gzip(request)
    return answer(await compressed(body) if gzipped else body, content_type, gzipped=gzipped)


def is_current(request: web.Request, tag: str) -> bool:
    """Whether the client already has the answer of `tag` (If-None-Match, compared weakly)."""
    if request.headers.get(hdrs.IF_NONE_MATCH) == "*":
        return True
    return any(known.value == tag for known in request.if_none_match or ())


def tagged(response: web.Response, tag: str) -> web.Response:
    """`response` with `tag` as its weak ETag."""
    response.etag = ETag(value=tag, is_weak=True)
    return response


def not_modified(tag: str) -> web.Response:
    """304: the client's copy is current."""
    response = web.Response(status=304)
    response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    response.headers[hdrs.CACHE_CONTROL] = "no-cache"
    return tagged(response, tag)


def endpoint(handler: Handler, media: str = JSON) -> Handler:
    """An API handler that answers with `media`: 406 where Accept refuses that, 400 for a QueryError."""

    @wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        accept = header_list(request, hdrs.ACCEPT)
        if not accepts(accept, media):
            found = visible(accept or "", limit=80)
            return problem(406, f"Accept: found {found!r}, expected {media} among it", available=[media])
        try:
            return await handler(request)
        except QueryError as error:
            return problem(
                400, str(error), parameter=error.parameter, found=error.found, expected=error.expected
            )

    return answered


async def made(request: web.Request, size: int, make: Callable[[], T]) -> T:
    """What `make` returns; made in a thread where `size`, a number of devices or rows, is large."""
    if size < LARGE_FROM:
        return make()
    return await request.config_dict[ANSWER_WORKER].made(request, make)


async def made_body(request: web.Request, tag: str, size: int, make: Callable[[], msgspec.Struct]) -> Body:
    """The document of `make` as JSON, compressed where the client accepts gzip; where it is large made in a
    thread, and shared with clients that are being sent the same.
    """
    gzipped = wants_gzip(request)

    def written() -> Body:
        return body_of(pieces(make()), gzipped=gzipped)

    if size < LARGE_FROM:
        return written()
    return await request.config_dict[ANSWER_WORKER].body(request, (request.path_qs, tag, gzipped), written)


def body_of(texts: list[bytes], *, gzipped: bool) -> Body:
    """A text, compressed if `gzipped` and the size is worth it."""
    if not gzipped or sum(map(len, texts)) < GZIP_FROM:
        return Body(tuple(texts))
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return Body((b"".join([*map(compressor.compress, texts), compressor.flush()]),), gzipped=True)


def mapping_answer(moment: Moment, tag: str, body: Body | None) -> web.Response:
    """The JSON `body` about the mapping; 304 for None."""
    response = not_modified(tag) if body is None else tagged(answer(body, JSON), tag)
    if moment.state.taken_at is not None:
        response.headers[TAKEN_AT] = rfc3339(moment.state.taken_at)
    return response
