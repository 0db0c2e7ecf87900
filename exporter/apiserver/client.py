"""Lists and watches objects of one kind at the API server, over one connection, resuming where a watch ended.

A small client instead of a library: a client library brings a second HTTP stack and the models of every kind
into each node's memory.

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
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import aiohttp
import msgspec
from msgspec import Struct, field

from exporter.apiserver.kubeconfig import ApiServerAccess, ApiServerAccessError
from runtime.http.client import TooLargeError, read_body

SILENCE: Final = 150.0
"""Seconds without any event after which a watch is restarted: its connection may be dead. Bookmarks come
about once a minute.
"""
DENIED: Final = frozenset({"401", "403"})
"""ApiServerError.code: the request was not authorized."""
DENIED_AT_FIRST: Final = 4.0
"""`seldom` of a first denial: an API server that has just started denies what it allows a moment later."""
ANSWER_LIMIT: Final = 64 * 1024 * 1024
LINE_LIMIT: Final = 16 * 1024 * 1024
PAGE: Final = 500
"""Objects of one page."""
NOT_SERVED: Final = "NOT_SERVED"
"""ApiServerError.code: the API server does not serve this version of the kind."""

_LASTING: Final = DENIED | {NOT_SERVED}
_FIRST_RETRY: Final = 0.1
_LAST_RETRY: Final = 30.0
_MESSAGE_LIMIT: Final = 400
_LONGEST_WAIT: Final = 120.0
_CONNECT: Final = 10.0
_ANSWER: Final = 30.0
_SOON: Final = 5.0
_LIST: Final = 60.0
_WATCH: Final = (240.0, 420.0)
"""Seconds after which the API server ends a watch; random, so that nodes do not all return at once."""
_IN_THREAD: Final = 256 * 1024
"""Bytes of an answer above which reading would block the event loop for milliseconds."""


class ApiServerError(Exception):
    """A request failed: `code` is an HTTP status or a word; `message` is for a person. `wait`: seconds for
    which the API server asked not to be called.
    """

    def __init__(self, code: str, message: str, *, wait: float = 0.0) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.wait = wait


def pause_after(error: ApiServerError, failures: int, *, seldom: float) -> float:
    """Seconds to the next attempt after so many `failures` in a row, with jitter: more and more of them, and
    about `seldom` where only a change of the cluster helps. Never less than the API server asks for.
    """
    if error.code in _LASTING:
        ceiling = seldom * 1.5
    else:
        ceiling = min(_LAST_RETRY, _FIRST_RETRY * 2.0 ** min(failures - 1, 10))
    return error.wait + ceiling * random.uniform(2 / 3, 1.0)  # noqa: S311 -- jitter


class _Expired(Exception):  # noqa: N818 -- handled, not a failure
    """The resourceVersion is too old: the objects must be listed again."""


class _HasVersion(Protocol):
    @property
    def resource_version(self) -> str: ...


class ApiObject(Protocol):
    """An object of the Kubernetes API."""

    @property
    def metadata(self) -> _HasVersion:
        """Its metadata."""
        ...


class _ListMeta(Struct):
    """Metadata of a list: the version from which a watch resumes, and the token of the next page."""

    resource_version: str = field(default="", name="resourceVersion")
    next: str = field(default="", name="continue")


T = TypeVar("T", bound=ApiObject)
R = TypeVar("R")


class ObjectList(Struct, Generic[T]):
    """One page of a list."""

    metadata: _ListMeta = field(default_factory=_ListMeta)
    items: list[T] = field(default_factory=list[T])


class Kind(NamedTuple, Generic[T, R]):
    """A kind of object: its path at the API server, its decoders, and what is kept of an object (None:
    nothing; `read` may run in a thread). `denied` says which right is missing, for the message of a 403.
    """

    path: str
    page: msgspec.json.Decoder[ObjectList[T]]
    one: msgspec.json.Decoder[T]
    read: Callable[[T], R | None]
    denied: str


class Listed(Struct, Generic[R], frozen=True):
    """All objects, requested at `begun` (the event loop's time). `exact`: no older than the request."""

    items: tuple[R, ...]
    begun: float
    exact: bool


class Opened(Struct, frozen=True):
    """The watch is open."""


class Changed(Struct, Generic[R], frozen=True):
    """An object appeared or changed; `gone`: it was deleted."""

    item: R
    gone: bool


class _Event(Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class _BookmarkMeta(Struct):
    resource_version: str = field(default="", name="resourceVersion")


class _Bookmark(Struct):
    metadata: _BookmarkMeta


class _Status(Struct):
    """A Status of the API server; `kind` is empty for an answer that is none."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


_EVENT: Final = msgspec.json.Decoder(_Event)
_BOOKMARK: Final = msgspec.json.Decoder(_Bookmark)
_STATUS: Final = msgspec.json.Decoder(_Status)


class ApiClient:
    """Sends GET requests to the API server. `denied` says which right is missing, for the message of a 403.

    `session` opens the connections; use it within `problems`, which turns all failures into ApiServerError.
    """

    def __init__(self, access: ApiServerAccess, denied: str, *, connections: int = 1) -> None:
        self.server = access.server
        self._access = access
        self._denied = denied
        self._connections = connections

    def session(self) -> aiohttp.ClientSession:
        """A session with the present certificates. Raises ApiServerAccessError."""
        tls = self._access.tls() if self.server.startswith("https:") else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, ssl=tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT),
            headers={"Accept": "application/json", "User-Agent": "devicelens-exporter"},
            trust_env=False,
        )

    @contextmanager
    def problems(self) -> Generator[None]:
        """Raise ApiServerError instead of what a request raises."""
        server = self.server
        try:
            yield
        except ApiServerAccessError as error:
            raise ApiServerError("ACCESS", str(error)) from error
        except TooLargeError as error:
            raise ApiServerError(
                "TOO_LARGE", f"{server}: an answer is larger than {ANSWER_LIMIT} bytes"
            ) from error
        except TimeoutError as error:
            raise ApiServerError("TIMEOUT", f"{server} does not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            broken = isinstance(error, aiohttp.ClientPayloadError)
            why = "the connection broke off" if broken else str(error) or type(error).__name__
            raise ApiServerError("UNREACHABLE", f"{server}: {why}") from error
        # msgspec: RecursionError for JSON that is nested too deeply.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiServerError("UNDECODABLE", f"{server}: {error}") from error

    async def get(
        self, session: aiohttp.ClientSession, path: str, query: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """A response with status 200, unread. Raises ApiServerError, and what `problems` turns into it."""
        used = ""
        while True:
            authorization = self._access.authorization()
            response = await session.get(
                f"{self.server}{path}",
                params=query,
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
                raise await self._refusal(response)

    async def _refusal(self, response: aiohttp.ClientResponse) -> Exception:
        """The error of a response with another status than 200."""
        body = await response.content.read(64 * 1024)
        try:
            status = _STATUS.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            status = _Status(message=body[:_MESSAGE_LIMIT].decode(errors="replace"))
        status.code = response.status
        error = self.error(status, self.server)
        if isinstance(error, ApiServerError):
            try:
                wait = float(response.headers.get("Retry-After", "0"))
            except ValueError:
                wait = 0.0
            # The comparison is false for NaN as well.
            error.wait = min(wait, _LONGEST_WAIT) if wait > 0 else 0.0
        return error

    def error(self, status: _Status, server: str) -> Exception:
        """_Expired for 410, else ApiServerError."""
        message = (status.message or status.reason)[:_MESSAGE_LIMIT]
        code = str(status.code)
        match status.code:
            case 410:
                return _Expired()
            case 401:
                advice = "the token is not accepted"
            case 403:
                advice = self._denied
            # The API server answers an unknown path with text, an unknown object with a Status.
            case 404 if status.kind != "Status":
                code, advice = NOT_SERVED, "it does not serve this kind"
            case _:
                advice = "it refuses"
        return ApiServerError(code, f"{server}: {advice}: {message}")


class ListWatch(Generic[T, R]):
    """All objects of `kind` that the field selector `fields` selects. One `follow` runs at a time."""

    def __init__(self, access: ApiServerAccess, kind: Kind[T, R], fields: str) -> None:
        self._client = ApiClient(access, kind.denied)
        self._kind = kind
        self._fields = fields
        self._version = ""
        self._exact = False
        self._stream: aiohttp.ClientResponse | None = None
        self._interrupted = False
        self._expired_at = -math.inf

    @property
    def stream(self) -> object | None:
        """The open watch: another object for each, None without any."""
        return self._stream

    @property
    def version(self) -> str:
        """The resourceVersion from which the next watch resumes, "" if all objects will be listed."""
        return self._version

    async def follow(self) -> AsyncGenerator[Listed[R] | Opened | Changed[R]]:
        """List and watch. Raises ApiServerError."""
        self._interrupted = False
        try:
            with self._client.problems():
                async with self._client.session() as session:
                    while True:
                        try:
                            if not self._version:
                                yield await self._list(session)
                            async with aclosing(self._watch(session)) as watch:
                                async for event in watch:
                                    yield event
                        except _Expired as error:
                            self._expire(error)
        except ApiServerError as error:
            if error.code == "UNDECODABLE":
                self._version = ""
            raise

    def relist(self) -> None:
        """Have `follow` list all objects again, exactly."""
        self._version, self._exact = "", True
        self.interrupt()

    def interrupt(self) -> None:
        """End the watch; `follow` continues with another one."""
        if self._stream is not None:
            self._interrupted = True
            self._stream.close()

    def _expire(self, error: Exception) -> None:
        """Have all objects listed again; exactly, because the cache's version may be too old as well."""
        self._version, self._exact = "", True
        last, self._expired_at = self._expired_at, asyncio.get_running_loop().time()
        if self._expired_at - last < _SOON:
            raise ApiServerError(
                "410", f"{self._client.server}: the version of its list is too old to be watched"
            ) from error

    async def _get(self, session: aiohttp.ClientSession, query: dict[str, str]) -> aiohttp.ClientResponse:
        return await self._client.get(session, self._kind.path, {"fieldSelector": self._fields} | query)

    async def _list(self, session: aiohttp.ClientSession) -> Listed[R]:
        loop = asyncio.get_running_loop()
        begun, exact = loop.time(), self._exact
        items: list[R] = []
        query = {"limit": str(PAGE)} | ({} if exact else {"resourceVersion": "0"})

        def read(body: bytes) -> tuple[_ListMeta, list[R]]:
            page = self._kind.page.decode(body)
            return page.metadata, [item for item in map(self._kind.read, page.items) if item is not None]

        async with asyncio.timeout(_LIST):
            while True:
                async with await self._get(session, query) as response:
                    body = await read_body(response, ANSWER_LIMIT)
                if len(body) < _IN_THREAD:
                    metadata, found = read(body)
                else:
                    metadata, found = await loop.run_in_executor(None, read, body)
                items += found
                if not metadata.next:
                    break
                query = {"limit": str(PAGE), "continue": metadata.next}
        self._version, self._exact = metadata.resource_version, False
        return Listed(tuple(items), begun, exact)

    async def _watch(self, session: aiohttp.ClientSession) -> AsyncGenerator[Opened | Changed[R]]:
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
                yield Opened()
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

    def _event(self, line: bytes) -> Changed[R] | None:
        event = _EVENT.decode(line)
        match event.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                found = self._kind.one.decode(event.object)
                self._version = found.metadata.resource_version or self._version
                item = self._kind.read(found)
                return None if item is None else Changed(item, event.type == "DELETED")
            case "BOOKMARK":
                metadata = _BOOKMARK.decode(event.object).metadata
                self._version = metadata.resource_version or self._version
                return None
            case "ERROR":
                raise self._client.error(_STATUS.decode(event.object), "the API server")
            case _:
                return None


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
            raise ApiServerError("TOO_LARGE", f"an event of the API server is larger than {LINE_LIMIT} bytes")
        for other in others:
            if pending.strip():
                yield bytes(pending)
            pending = bytearray(other)
