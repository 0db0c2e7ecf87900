"""The API server's watch of this node's pods: one connection, one watch, resumed where it broke off.

A small client rather than a library: what is needed is one list and one watch of one kind, and a client
library brings a second HTTP stack and the models of every kind to each node's memory.

What is built upon (Kubernetes API concepts, "Efficient detection of changes"):

- a list of resourceVersion 0 comes from the API server's cache, which costs it little, but may be old; one
  without a resourceVersion is what there is;
- a watch goes on from a resourceVersion that was seen; bookmarks tell later ones; 410 PodGone, as a status or
  as an ERROR event within the stream, says that it is too old;
- 429 and 503 may say in Retry-After how long to wait.

The API server's answers: what is needed of them, how they fail, and a stream's lines, within bounds.
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

from exporter.mapping.identity import PodIdentity
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


class WatchEvent(Struct):
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
event_of: Final = msgspec.json.Decoder(WatchEvent)
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
    if isinstance(error, PodWatchError):
        try:
            wait = float(response.headers.get("Retry-After", "0"))
        except ValueError:
            wait = 0.0
        # NaN is no wait either.
        error.wait = min(wait, _LONGEST_WAIT) if wait > 0 else 0.0
    return error


def failed(status: Status, server: str = "the API server") -> Exception:
    """The error that a status stands for: Expired for 410, else a PodWatchError."""
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
    return PodWatchError(str(status.code), f"{server}: {advice}: {words}")


async def whole(response: aiohttp.ClientResponse) -> bytes:
    """An answer's body. Raises PodWatchError where it is too large."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_LIMIT:
            raise PodWatchError("TOO_LARGE", f"the API server's answer is larger than {ANSWER_LIMIT} bytes")
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
            raise PodWatchError("TOO_LARGE", f"an event of the API server is larger than {LINE_LIMIT} bytes")
        for other in others:
            if pending.strip():
                yield bytes(pending)
            pending = bytearray(other)


PAGE: Final = 500
"""Pods of one answer."""
QUIET: Final = 1.0
"""Seconds for which the watch must have told nothing else of a pod before it is taken for what it was. The
kubelet learns of pods by such a watch too, and needs longer to give a successor anything.
"""

_CONNECT: Final = 10.0
_ANSWER: Final = 30.0
_SOON: Final = 5.0
_LIST: Final = 60.0
_WATCH: Final = (240.0, 420.0)
"""Seconds after which the API server is to end a watch, so that nodes do not all return at once."""
_IN_THREAD: Final = 256 * 1024


class ApiServer:
    """A source: the pods of `node`, as the API server at the end of `access` has them."""

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
        """What the API server tells. Raises PodWatchError."""
        self._interrupted = False
        try:
            async with self._session() as session:
                while True:
                    try:
                        if not self._version:
                            yield await self._list(session)
                        async with aclosing(self._watch(session)) as watch:
                            async for told in watch:
                                yield told
                    except Expired as error:
                        self._expire(error)
        except ApiServerAccessError as error:
            raise PodWatchError("ACCESS", str(error)) from error
        except TimeoutError as error:
            raise PodWatchError("TIMEOUT", f"{self._access.server} does not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            broken = isinstance(error, aiohttp.ClientPayloadError)
            why = "the connection broke off" if broken else str(error) or type(error).__name__
            raise PodWatchError("UNREACHABLE", f"{self._access.server}: {why}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._version = ""
            raise PodWatchError("UNDECODABLE", f"{self._access.server}: {error}") from error

    async def confirm(self, *, thorough: bool) -> PodsUnchanged | None:
        """That nothing else is told for a while; `thorough`: everything is listed anew, by `follow`."""
        if thorough:
            self._version, self._exact = "", True
            self.interrupt()
            return None
        stream, asked = self._stream, asyncio.get_running_loop().time()
        await asyncio.sleep(self._quiet)
        return PodsUnchanged(asked) if stream is not None and stream is self._stream else None

    def interrupt(self) -> None:
        """Have the watch end; `follow` goes on with another."""
        if self._stream is not None:
            self._interrupted = True
            self._stream.close()

    def _expire(self, error: Exception) -> None:
        """List everything anew; exactly, for what a cache tells may be as old again."""
        self._version, self._exact = "", True
        last, self._expired_at = self._expired_at, asyncio.get_running_loop().time()
        if self._expired_at - last < _SOON:
            raise PodWatchError(
                "410", f"{self._access.server}: what it lists is too old to be watched"
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
                    body = await whole(response)
                if len(body) < _IN_THREAD:
                    answer = pod_list.decode(body)
                else:
                    answer = await loop.run_in_executor(None, pod_list.decode, body)
                pods += filter(None, map(self._seen, answer.items))
                if not answer.metadata.next:
                    break
                query = {"limit": str(PAGE), "continue": answer.metadata.next}
        self._version, self._exact = answer.metadata.resourceVersion, False
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
        async with response, aclosing(lines_of(response)) as lines:
            self._stream = response
            try:
                yield StreamOpened(anew=False)
                async for line in lines:
                    told = self._told(line)
                    if told is not None:
                        yield told
            except (aiohttp.ClientError, OSError):
                if not self._interrupted:
                    raise
                self._interrupted = False
            finally:
                self._stream = None
        # A server that ends each watch at once is not to be asked in a loop.
        await asyncio.sleep(max(0.0, begun + 1.0 - loop.time()))

    def _told(self, line: bytes) -> PodEvent | None:
        event = event_of.decode(line)
        match event.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                pod = pod_of.decode(event.object)
                self._version = pod.metadata.resourceVersion or self._version
                seen = self._seen(pod)
                if seen is None or event.type != "DELETED":
                    return seen
                return PodGone(seen.identity.key, seen.identity.uid)
            case "BOOKMARK":
                self._version = bookmark_of.decode(event.object).metadata.resourceVersion or self._version
                return None
            case "ERROR":
                raise failed(status_of.decode(event.object))
            case _:
                return None

    def _seen(self, pod: ApiPod) -> PodSeen | None:
        identity: PodIdentity | None = of_object(pod, self._allowed)
        # kubelet: it writes down when it took a pod on; until then the API server alone knows the pod.
        return None if identity is None else PodSeen(identity, known=pod.status.startTime is not None)

    async def _get(self, session: aiohttp.ClientSession, query: dict[str, str]) -> aiohttp.ClientResponse:
        """A good answer, of which nothing is read yet. Raises PodWatchError, Expired and aiohttp's errors."""
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
                # The token is replaced while the process runs: perhaps it was, just now.
                if response.status == 401 and authorization != used:
                    used = authorization or ""
                    if self._access.authorization() != authorization:
                        continue
                raise await refused(response, self._access.server)
