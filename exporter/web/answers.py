"""Answers kept small: gzip where it is welcome, and 304 where nothing changed.

A tag is always weak: ages in an answer move on while what it says stays the same, and so one tag is right
for the answer as it is and as gzip (RFC 9110, section 8.8.3.3).

What a client says it takes and has: Accept, Accept-Encoding and If-None-Match (RFC 9110, 12.5.1, 12.5.3
and 13.1.2). Pure.
"""

import asyncio
import gzip
import re
from typing import Final

from aiohttp import ETag, hdrs, web

from runtime.exposition import accepts_gzip

_ETAG: Final = re.compile(r'[ \t,]*(?:W/)?"([^"]*)"[ \t]*(?=,|$)')
_QUALITY: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")


def accepts(accept: str | None, media: str) -> bool:
    """Whether an Accept header's value allows `media` (type/subtype, lower case); without one all is allowed.

    The most specific range that covers it decides, so that `application/json;q=0, */*` refuses JSON. A part
    that cannot be read counts as not said; of a header in which nothing can be read, so does the whole.
    """
    kind = media.partition("/")[0]
    ranges = ("*/*", f"{kind}/*", media)
    best, allowed, read = -1, False, False
    for clause in (accept or "").split(","):
        name, *parameters = (part.strip().lower() for part in clause.split(";"))
        quality = next((p[2:].strip() for p in parameters if p.startswith("q=")), "1")
        if "/" not in name or not _QUALITY.fullmatch(quality):
            continue
        read = True
        if name in ranges and ranges.index(name) >= best:
            rank, wanted = ranges.index(name), float(quality) > 0
            allowed = wanted or (allowed and rank == best)
            best = rank
    return allowed if read else True


def refuses_plain(accept_encoding: str | None) -> bool:
    """Whether an Accept-Encoding header's value refuses an answer as it is: by `identity;q=0`, or by `*;q=0`
    where identity is not named.
    """
    said: dict[str, bool] = {}
    for clause in (accept_encoding or "").lower().split(","):
        coding, _, parameter = (part.strip() for part in clause.partition(";"))
        quality = parameter.removeprefix("q=").strip() if parameter.startswith("q=") else "1"
        if _QUALITY.fullmatch(quality):
            said[coding] = float(quality) == 0
    return said.get("identity", said.get("*", False))


def names(if_none_match: str | None, tag: str) -> bool:
    """Whether an If-None-Match header's value names `tag`, compared weakly, or is `*`.

    Reading ends where the list is broken: what comes after cannot be told apart.
    """
    text = (if_none_match or "").strip(" \t")
    if text == "*":
        return True
    position = 0
    while (match := _ETAG.match(text, position)) is not None:
        if match[1] == tag:
            return True
        position = match.end()
    return False


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
