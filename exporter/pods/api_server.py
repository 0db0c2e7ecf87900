"""Watches this node's pods at the API server, over one connection, resuming where a watch ended.

A small client instead of a library: one list and one watch of one kind are needed, and a client library
brings a second HTTP stack and the models of every kind into each node's memory.

Rules of the Kubernetes API ("Efficient detection of changes"):

- a list with resourceVersion 0 comes from the API server's cache, which is cheap but may be old; one without
  a resourceVersion is current;
- a watch resumes from a resourceVersion; bookmarks carry later ones; 410 Gone, as a status or as an ERROR
  event in the stream, means that the version is too old;
- 429 and 503 may carry Retry-After.
"""

import asyncio
import math
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct, field

from exporter.pods.kubeconfig import ApiServerAccess, ApiServerAccessError
from exporter.pods.source import (
    ApiMeta,
    ApiPod,
    LabelFilter,
    PodEvent,
    PodGone,
    PodSeen,
    PodsListed,
    PodsUnchanged,
    PodWatchError,
    StreamOpened,
    of_object,
)
from runtime.http.client import TooLargeError, read_body

SILENCE: Final = 150.0
"""Seconds without any event after which a watch is restarted: its connection may be dead. Bookmarks come
about once a minute.
"""
ANSWER_LIMIT: Final = 64 * 1024 * 1024
LINE_LIMIT: Final = 16 * 1024 * 1024
PAGE: Final = 500
"""Pods of one page."""
QUIET: Final = 1.0
"""Seconds without an event of a pod after which its last report counts as current. The kubelet learns of pods
by a watch too, and needs longer to allocate devices for a successor.
"""

_MESSAGE_LIMIT: Final = 400
_LONGEST_WAIT: Final = 120.0
_CONNECT: Final = 10.0
_ANSWER: Final = 30.0
_SOON: Final = 5.0
_LIST: Final = 60.0
_WATCH: Final = (240.0, 420.0)
"""Seconds after which the API server ends a watch; random, so that nodes do not all return at once."""
_IN_THREAD: Final = 256 * 1024
"""Bytes of an answer above which decoding would block the event loop for milliseconds."""


class _ListMeta(Struct):
    """Metadata of a list: the version from which a watch resumes, and the token of the next page."""

    resource_version: str = field(default="", name="resourceVersion")
    next: str = field(default="", name="continue")


class _PodList(Struct):
    metadata: _ListMeta = field(default_factory=_ListMeta)
    items: list[ApiPod] = field(default_factory=list[ApiPod])


class _Event(Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class _Bookmark(Struct):
    metadata: ApiMeta


class _Status(Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


_POD_LIST: Final = msgspec.json.Decoder(_PodList)
_EVENT: Final = msgspec.json.Decoder(_Event)
_POD: Final = msgspec.json.Decoder(ApiPod)
_BOOKMARK: Final = msgspec.json.Decoder(_Bookmark)
_STATUS: Final = msgspec.json.Decoder(_Status)


class _Expired(Exception):  # noqa: N818 -- handled, not a failure
    """The resourceVersion is too old: the pods must be listed again."""


class ApiServer:
    """A PodWatcher: the pods of `node` at the API server."""

    name = "apiserver"
    words = "pods watched at the API server"
    lasting = True

    def __init__(
        self, access: ApiServerAccess, node: str, allowed: LabelFilter, *, quiet: float = QUIET
    ) -> None:
        self._access = access
        self._node = node
        self._allowed = allowed
        self._quiet = quiet
        self._version = ""
        self._exact = False
        self._stream: aiohttp.ClientResponse | None = None
        self._interrupted = False
        self._expired_at = -math.inf

    async def follow(self) -> AsyncGenerator[PodEvent]:
        """List and watch. Raises PodWatchError."""
        self._interrupted = False
        server = self._access.server
        try:
            async with self._session() as session:
                while True:
                    try:
                        if not self._version:
                            yield await self._list(session)
                        async with aclosing(self._watch(session)) as watch:
                            async for event in watch:
                                yield event
                    except _Expired as error:
                        self._expire(error)
        except ApiServerAccessError as error:
            raise PodWatchError("ACCESS", str(error)) from error
        except TooLargeError as error:
            raise PodWatchError(
                "TOO_LARGE", f"{server}: an answer is larger than {ANSWER_LIMIT} bytes"
            ) from error
        except TimeoutError as error:
            raise PodWatchError("TIMEOUT", f"{server} does not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            broken = isinstance(error, aiohttp.ClientPayloadError)
            why = "the connection broke off" if broken else str(error) or type(error).__name__
            raise PodWatchError("UNREACHABLE", f"{server}: {why}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._version = ""
            raise PodWatchError("UNDECODABLE", f"{server}: {error}") from error

    async def confirm(self, *, thorough: bool) -> PodsUnchanged | None:
        """Wait for a quiet moment of the watch; `thorough`: have `follow` list all pods again."""
        if thorough:
            self._version, self._exact = "", True
            self.interrupt()
            return None
        stream, asked = self._stream, asyncio.get_running_loop().time()
        await asyncio.sleep(self._quiet)
        return PodsUnchanged(asked) if stream is not None and stream is self._stream else None

    def interrupt(self) -> None:
        """End the watch; `follow` continues with another one."""
        if self._stream is not None:
            self._interrupted = True
            self._stream.close()

    def _expire(self, error: Exception) -> None:
        """Have all pods listed again; exactly, because the cache's version may be too old as well."""
        self._version, self._exact = "", True
        last, self._expired_at = self._expired_at, asyncio.get_running_loop().time()
        if self._expired_at - last < _SOON:
            raise PodWatchError(
                "410", f"{self._access.server}: the version of its list is too old to be watched"
            ) from error

    def _session(self) -> aiohttp.ClientSession:
        tls = self._access.tls() if self._access.server.startswith("https:") else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT),
            headers={"Accept": "application/json", "User-Agent": "devicelens-exporter"},
            trust_env=False,
        )

    async def _list(self, session: aiohttp.ClientSession) -> PodsListed:
        loop = asyncio.get_running_loop()
        begun, exact = loop.time(), self._exact
        pods: list[PodSeen] = []
        query = {"limit": str(PAGE)} | ({} if exact else {"resourceVersion": "0"})
        async with asyncio.timeout(_LIST):
            while True:
                async with await self._get(session, query) as response:
                    body = await read_body(response, ANSWER_LIMIT)
                if len(body) < _IN_THREAD:
                    answer = _POD_LIST.decode(body)
                else:
                    answer = await loop.run_in_executor(None, _POD_LIST.decode, body)
                pods += filter(None, map(self._seen, answer.items))
                if not answer.metadata.next:
                    break
                query = {"limit": str(PAGE), "continue": answer.metadata.next}
        self._version, self._exact = answer.metadata.resource_version, False
        return PodsListed(tuple(pods), begun=begun, asked=begun if exact else None)

    async def _watch(self, session: aiohttp.ClientSession) -> AsyncGenerator[PodEvent]:
        """One watch, until the API server ends it."""
        query = {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(random.uniform(*_WATCH))),  # noqa: S311 -- jitter
        }
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.timeout(_ANSWER):
            response = await self._get(session, query)
        async with response, aclosing(_lines(response)) as lines:
            self._stream = response
            try:
                yield StreamOpened(anew=False)
                async for line in lines:
                    event = self._event(line)
                    if event is not None:
                        yield event
            except (aiohttp.ClientError, OSError):
                if not self._interrupted:
                    raise
                self._interrupted = False
            finally:
                self._stream = None
        # A server that ends each watch at once must not be called in a tight loop.
        await asyncio.sleep(max(0.0, begun + 1.0 - loop.time()))

    def _event(self, line: bytes) -> PodEvent | None:
        event = _EVENT.decode(line)
        match event.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                pod = _POD.decode(event.object)
                self._version = pod.metadata.resource_version or self._version
                seen = self._seen(pod)
                if seen is None or event.type != "DELETED":
                    return seen
                return PodGone(seen.identity.key, seen.identity.uid)
            case "BOOKMARK":
                metadata = _BOOKMARK.decode(event.object).metadata
                self._version = metadata.resource_version or self._version
                return None
            case "ERROR":
                raise _error(_STATUS.decode(event.object), "the API server")
            case _:
                return None

    def _seen(self, pod: ApiPod) -> PodSeen | None:
        identity = of_object(pod, self._allowed)
        # kubelet: it sets startTime when it accepts a pod; before, the API server alone knows the pod.
        return None if identity is None else PodSeen(identity, known=pod.status.start_time is not None)

    async def _get(self, session: aiohttp.ClientSession, query: dict[str, str]) -> aiohttp.ClientResponse:
        """A response with status 200, unread. Raises PodWatchError, _Expired and aiohttp's errors."""
        used = ""
        while True:
            authorization = self._access.authorization()
            response = await session.get(
                f"{self._access.server}/api/v1/pods",
                params={"fieldSelector": f"spec.nodeName={self._node}"} | query,
                headers={"Authorization": authorization} if authorization else {},
                server_hostname=self._access.server_name,
                allow_redirects=False,
            )
            if response.status == 200:
                return response
            async with response:
                # The token is replaced while the process runs, perhaps just now.
                if response.status == 401 and authorization != used:
                    used = authorization or ""
                    if self._access.authorization() != authorization:
                        continue
                raise await _refusal(response, self._access.server)


async def _refusal(response: aiohttp.ClientResponse, server: str) -> Exception:
    """The error of a response with another status than 200."""
    body = await response.content.read(64 * 1024)
    try:
        status = _STATUS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status(message=body[:_MESSAGE_LIMIT].decode(errors="replace"))
    status.code = response.status
    error = _error(status, server)
    if isinstance(error, PodWatchError):
        try:
            wait = float(response.headers.get("Retry-After", "0"))
        except ValueError:
            wait = 0.0
        # The comparison is false for NaN as well.
        error.wait = min(wait, _LONGEST_WAIT) if wait > 0 else 0.0
    return error


def _error(status: _Status, server: str) -> Exception:
    """_Expired for 410, else PodWatchError."""
    message = (status.message or status.reason)[:_MESSAGE_LIMIT]
    match status.code:
        case 410:
            return _Expired()
        case 401:
            advice = "the token is not accepted"
        case 403:
            advice = "it may not list and watch pods: see deploy/overlays/apiserver"
        case _:
            advice = "it refuses"
    return PodWatchError(str(status.code), f"{server}: {advice}: {message}")


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The lines of a stream, until it ends or is silent for SILENCE seconds."""
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
            raise PodWatchError("TOO_LARGE", f"an event of the API server is larger than {LINE_LIMIT} bytes")
        for other in others:
            if pending.strip():
                yield bytes(pending)
            pending = bytearray(other)
