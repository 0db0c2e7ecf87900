"""Answers kept small: gzip where it is welcome, and 304 where nothing changed."""

import asyncio
import gzip
from typing import Final

from aiohttp import ETag, hdrs, web
from aiohttp.helpers import ETAG_ANY

from daemon.exposition import accepts_gzip

_WORTH_GZIP: Final = 1024
_IN_THREAD: Final = 256 * 1024
"""Bytes from which compressing would hold up the loop for milliseconds."""


def wants_gzip(request: web.Request) -> bool:
    """Whether the client takes gzip."""
    return accepts_gzip(request.headers.get(hdrs.ACCEPT_ENCODING))


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
    gzipped = len(body) >= _WORTH_GZIP and wants_gzip(request)
    return answer(await squeeze(body) if gzipped else body, content_type, gzipped=gzipped)


def is_known(request: web.Request, tag: str) -> bool:
    """Whether the client has the answer of `tag` already (If-None-Match, compared weakly)."""
    known = request.if_none_match or ()
    return any(etag.value in {tag, ETAG_ANY} for etag in known)


def tagged(response: web.Response, tag: str) -> web.Response:
    """`response` with `tag` as its weak ETag: ages in it move on, what it says stays the same."""
    response.etag = ETag(value=tag, is_weak=True)
    return response


def not_modified(tag: str) -> web.Response:
    """What the client has is still so."""
    response = web.Response(status=304)
    response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
    response.headers[hdrs.CACHE_CONTROL] = "no-cache"
    return tagged(response, tag)
