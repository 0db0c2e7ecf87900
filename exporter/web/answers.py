"""HTTP answers: content negotiation, gzip, ETag and 304.

Negotiation follows RFC 9110, sections 12.5.1, 12.5.3 and 13.1.2. A tag is always weak: ages in an answer
advance while its content stays the same, and so one tag is right for the plain and for the gzip form (section
8.8.3.3).
"""

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import ETag, hdrs, web

from runtime.blocks import LEVEL
from runtime.exposition import accepts_gzip
from runtime.http.bodies import LARGE, Body, BodyResponse

_QUALITY: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
GZIP_FROM: Final = 1024
"""Bytes from which gzip is worth its time."""

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
