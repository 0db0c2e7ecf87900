"""Answers kept small: gzip where it is welcome, and 304 where nothing changed.

A tag is always weak: ages in an answer move on while what it says stays the same, and so one tag is right
for the answer as it is and as gzip (RFC 9110, section 8.8.3.3).
"""

import asyncio
import gzip
from typing import Final

from aiohttp import ETag, hdrs, web

from daemon.exposition import accepts_gzip
from exporter.web.negotiation import names, refuses_plain

_WORTH_GZIP: Final = 1024
_IN_THREAD: Final = 256 * 1024
"""Bytes from which compressing would hold up the loop for milliseconds."""


def field(request: web.Request, name: str) -> str | None:
    """A header that is a list, its lines joined; None without it."""
    lines = request.headers.getall(name, ())
    return ", ".join(lines) if lines else None


def wants_gzip(request: web.Request) -> bool:
    """Whether the client takes gzip."""
    return accepts_gzip(field(request, hdrs.ACCEPT_ENCODING))


async def squeeze(body: bytes) -> bytes:
    """`body` as gzip, the same for the same bytes."""
    if len(body) >= _IN_THREAD:
        return await asyncio.to_thread(gzip.compress, body, 1, mtime=0)
    return gzip.compress(body, 1, mtime=0)


def answer(body: bytes, content_type: str, *, gzipped: bool = False, status: int = 200) -> web.Response:
    """An answer that may be kept but must be asked for again each time."""
    response = web.Response(body=body, status=status, headers={hdrs.CONTENT_TYPE: content_type})
    response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    response.headers[hdrs.CACHE_CONTROL] = "no-cache"
    if gzipped:
        response.headers[hdrs.CONTENT_ENCODING] = "gzip"
    return response


async def fitting(request: web.Request, body: bytes, content_type: str) -> web.Response:
    """`body`, compressed if the client takes it and it is worth it."""
    worth = len(body) >= _WORTH_GZIP or refuses_plain(field(request, hdrs.ACCEPT_ENCODING))
    gzipped = worth and wants_gzip(request)
    return answer(await squeeze(body) if gzipped else body, content_type, gzipped=gzipped)


def is_known(request: web.Request, tag: str) -> bool:
    """Whether the client has the answer of `tag` already (If-None-Match, compared weakly)."""
    return names(field(request, hdrs.IF_NONE_MATCH), tag)


def tagged(response: web.Response, tag: str) -> web.Response:
    """`response` with `tag` as its weak ETag."""
    response.etag = ETag(value=tag, is_weak=True)
    return response


def not_modified(tag: str) -> web.Response:
    """What the client has is still so."""
    response = web.Response(status=304)
    response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    response.headers[hdrs.CACHE_CONTROL] = "no-cache"
    return tagged(response, tag)
