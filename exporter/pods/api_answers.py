"""The API server's answers: what is needed of them, how they fail, and a stream's lines, within bounds."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct, field

from exporter.pods.decode import ApiMeta, ApiPod
from exporter.pods.told import SourceError

SILENCE: Final = 150.0
"""Seconds without a word, not even a bookmark, after which a watch is made anew: it may have been cut off
without a word. Bookmarks come about once a minute.
"""
ANSWER_LIMIT: Final = 64 * 1024 * 1024
LINE_LIMIT: Final = 16 * 1024 * 1024

_WORDS: Final = 400
"""Characters of an API server's words about a failure that are told."""
_LONGEST_WAIT: Final = 120.0


class ListMeta(Struct):
    """Of a list: where a watch may go on from, and where the next page is."""

    resourceVersion: str = ""  # noqa: N815 -- the API's names
    next: str = field(default="", name="continue")


class PodList(Struct):
    """One page of pods."""

    metadata: ListMeta = field(default_factory=ListMeta)
    items: list[ApiPod] = field(default_factory=list[ApiPod])


class Event(Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Bookmark(Struct):
    """What a BOOKMARK has."""

    metadata: ApiMeta


class Status(Struct):
    """Why it refuses."""

    code: int = 0
    reason: str = ""
    message: str = ""


pod_list: Final = msgspec.json.Decoder(PodList)
event_of: Final = msgspec.json.Decoder(Event)
pod_of: Final = msgspec.json.Decoder(ApiPod)
bookmark_of: Final = msgspec.json.Decoder(Bookmark)
status_of: Final = msgspec.json.Decoder(Status)


class Expired(Exception):  # noqa: N818 -- it is no failure
    """The resourceVersion is too old: everything must be listed anew."""


async def refused(response: aiohttp.ClientResponse, server: str) -> Exception:
    """What an answer that is none says."""
    body = await response.content.read(64 * 1024)
    try:
        status = status_of.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = Status(message=body[:_WORDS].decode(errors="replace"))
    status.code = response.status
    error = failed(status, server)
    if isinstance(error, SourceError):
        try:
            wait = float(response.headers.get("Retry-After", "0"))
        except ValueError:
            wait = 0.0
        # NaN is no wait either.
        error.wait = min(wait, _LONGEST_WAIT) if wait > 0 else 0.0
    return error


def failed(status: Status, server: str = "the API server") -> Exception:
    """The error that a status stands for: Expired for 410, else a SourceError."""
    words = (status.message or status.reason)[:_WORDS]
    match status.code:
        case 410:
            return Expired()
        case 401:
            advice = "the token is not accepted"
        case 403:
            advice = "it may not list and watch pods: see deploy/overlays/apiserver"
        case _:
            advice = "it refuses"
    return SourceError(str(status.code), f"{server}: {advice}: {words}")


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """An answer's body. Raises SourceError where it is too large."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_LIMIT:
            raise SourceError("TOO_LARGE", f"the API server's answer is larger than {ANSWER_LIMIT} bytes")
    return bytes(body)


async def lines_of(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The stream's lines. Ends with it, and after a silence."""
    pending = bytearray()
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                chunk = await response.content.readany()
        except TimeoutError:
            return
        if not chunk:
            return
        first, *others = chunk.split(b"\n")
        pending += first
        if len(pending) > LINE_LIMIT:
            raise SourceError("TOO_LARGE", f"an event of the API server is larger than {LINE_LIMIT} bytes")
        for other in others:
            if pending.strip():
                yield bytes(pending)
            pending = bytearray(other)
