"""HTTP requests to one server, with a limit on time and size. Errors say what the user can do."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final, NamedTuple, TypeVar

import aiohttp
import click
import msgspec
from yarl import URL

from exporter.cli.common import AskError
from exporter.cli.sources import ChosenSource, Credentials
from runtime.flags import Address
from runtime.text import visible

LIMIT: Final = 64 * 1024 * 1024
"""Bytes of an answer: ten times the documents of the fullest node."""
_CHUNK: Final = 256 * 1024
_TOKEN_BYTES: Final = 64 * 1024
_EVENT_SILENCE: Final = 40.0
"""Seconds without a line after which an event stream counts as lost: the exporter sends one every 15 s."""

T = TypeVar("T")
D = TypeVar("D", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A complete answer of any status. `media` is its content type without parameters."""

    status: int
    reason: str
    media: str
    location: str
    body: bytes


class ServerEvent(NamedTuple):
    """A server-sent event."""

    name: str
    data: str


class StatusError(AskError):
    """The server answered with another status than 200. `detail` is the explanation of an exporter, "" if the
    answer has none. `nothing_found`: the exporter has no such device; otherwise a 404 means that the path
    does not exist.
    """

    def __init__(self, message: str, status: int, detail: str = "", *, nothing_found: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail
        self.nothing_found = nothing_found


class _Problem(msgspec.Struct):
    """The members of application/problem+json that the command uses."""

    detail: str
    nearest: list[dict[str, str]] | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, in an event loop of its own."""

    async def main() -> T:
        asyncio.get_running_loop().set_default_executor(_DaemonThreads())
        return await work

    return asyncio.run(main())


class _DaemonThreads(ThreadPoolExecutor):
    """Runs each call in a daemon thread: a name lookup that hangs does not delay the exit."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def call() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 -- the caller gets it
                future.set_exception(error)

        Thread(target=call, name="resolve", daemon=True).start()
        return future


class ServerClient:
    """Requests to one server. `product` names what is expected at the address."""

    def __init__(
        self, session: aiohttp.ClientSession, source: ChosenSource, context: ssl.SSLContext | None
    ) -> None:
        self._session = session
        self._source = source
        self._context = context
        self.address = source.address
        self.timeout = source.timeout
        self.product = "a Prometheus" if source.kind == "prometheus" else "a devicelens exporter"

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> ServerReply:
        """The answer for `path`. Raises AskError."""
        try:
            async with self._request(path, query, "application/json") as response:
                return await self._read(response)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(error) from error

    async def document(self, path: str, kind: type[D], query: Mapping[str, str] | None = None) -> D:
        """An exporter's document. Unknown members are ignored, because a newer exporter has more of them.

        Raises StatusError and AskError.
        """
        reply = await self.get(path, query)
        if reply.status != 200:
            raise self.refused(path, reply)
        try:
            return msgspec.json.decode(reply.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = f"{path} is {reply.media}: {visible(str(error), limit=200)}"
            message = f"{self.address}: this is not {self.product}, or not of this version; {found}"
            raise AskError(message) from None

    async def events(self, path: str) -> AsyncIterator[ServerEvent]:
        """The server-sent events of `path` until the server ends the stream. Raises StatusError and AskError.

        https://html.spec.whatwg.org/multipage/server-sent-events.html
        """
        try:
            async with asyncio.timeout(self._source.timeout) as limit:
                async with self._request(path, None, "text/event-stream") as response:
                    if response.status != 200 or response.content_type != "text/event-stream":
                        raise self.refused(path, await self._read(response))
                    limit.reschedule(None)
                    name, data = "", ""
                    async for line in self._lines(response):
                        field, _, value = line.partition(":")
                        value = value.removeprefix(" ")
                        if field == "event":
                            name = value
                        elif field == "data":
                            data = f"{data}\n{value}" if data else value
                        elif not line and (name or data):
                            yield ServerEvent(name, data)
                            name, data = "", ""
        except TimeoutError:
            raise AskError(f"{self.address}: no answer within {self._source.timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(error) from error

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncIterator[str]:
        while True:
            try:
                async with asyncio.timeout(_EVENT_SILENCE):
                    line = await response.content.readline()
            except TimeoutError:
                raise AskError(f"{self.address}: silent for {_EVENT_SILENCE:g} s") from None
            if not line:
                return
            yield line.decode("utf-8", errors="replace").rstrip("\r\n")

    def refused(self, path: str, reply: ServerReply) -> StatusError:
        """The error for an answer with another status than 200."""
        hint = self._hint(path, reply)
        status = f"{self.address}: {visible(f'{reply.status} {reply.reason}', limit=100)}"
        if reply.media != "application/problem+json" or reply.status == 401:
            return StatusError(f"{status}{hint}", reply.status)
        try:
            problem = msgspec.json.decode(reply.body, type=_Problem)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return StatusError(status, reply.status)
        detail = visible(problem.detail)
        found = reply.status == 404 and problem.nearest is not None
        return StatusError(f"{status}: {detail}", reply.status, detail, nothing_found=found)

    def _hint(self, path: str, reply: ServerReply) -> str:
        if reply.status == 400 and b"HTTPS server" in reply.body[:1000]:
            return f": it serves https, ask {str(self.address).replace('http://', 'https://', 1)}"
        if reply.status == 401 and self.address.authorization:
            return ": it does not accept this name and password"
        hint = _STATUS_HINTS.get(reply.status, "")
        return hint.format(product=self.product, path=path, location=reply.location)

    def _request(
        self, path: str, query: Mapping[str, str] | None, accept: str
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        authorization = self.address.authorization or _bearer(self._source.credentials)
        if authorization:
            headers["Authorization"] = authorization
        address = self.address
        if address.scheme == "unix":
            url = URL("http://localhost") / path.removeprefix("/")
        else:
            base = URL.build(scheme=address.scheme, host=address.host, port=address.port)
            url = base.with_path(address.path + path)
        return self._session.get(
            url.with_query(query), headers=headers, allow_redirects=False, ssl=self._context or True
        )

    async def _read(self, response: aiohttp.ClientResponse) -> ServerReply:
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > LIMIT:
                raise AskError(f"{self.address}: the answer is larger than {LIMIT >> 20} MiB")
        return ServerReply(
            status=response.status,
            reason=response.reason or "",
            media=visible(response.content_type, limit=60),
            location=visible(response.headers.get("Location", "?"), limit=200),
            body=bytes(body),
        )

    def _failed(self, error: Exception) -> AskError:
        return AskError(f"{self.address}: {_reason(self.address, error)}")


@asynccontextmanager
async def connect(source: ChosenSource) -> AsyncGenerator[ServerClient]:
    """A client for an exporter or a Prometheus. Everything within must end in `source.timeout` seconds.

    Raises AskError, and BadParameter for credentials that cannot be used.
    """
    try:
        async with asyncio.timeout(source.timeout), open_client(source) as client:
            yield client
    except TimeoutError:
        raise AskError(f"{source.address}: no answer within {source.timeout:g} s") from None


@asynccontextmanager
async def open_client(source: ChosenSource) -> AsyncGenerator[ServerClient]:
    """A client without a limit on time, for event streams. Raises BadParameter."""
    address, credentials = source.address, source.credentials
    if credentials.tls_flag and address.scheme != "https":
        raise click.BadParameter(f"found with {address}, expected https://", param_hint=credentials.tls_flag)
    if credentials.token_file is not None and address.authorization:
        raise click.BadParameter(
            f"found beside a name and a password for {address}", param_hint="--token-file"
        )
    context = _tls_context(credentials) if address.scheme == "https" else None
    connector = aiohttp.UnixConnector(address.path) if address.scheme == "unix" else None
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "devicelens-who"},
    ) as session:
        yield ServerClient(session, source, context)


def _bearer(credentials: Credentials) -> str:
    """The Authorization header for the token, "" without one. The file is read for each request, because
    tokens are rotated.
    """
    path = credentials.token_file
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            raw = file.read(_TOKEN_BYTES + 1)
    except OSError as error:
        raise AskError(f"--token-file: {_unreadable(path, error)}") from error
    token = raw.strip()
    if not token or len(raw) > _TOKEN_BYTES or not all(0x21 <= byte < 0x7F for byte in token):
        found = "nothing" if not token else "something else"
        raise AskError(f"--token-file: {visible(str(path))}: found {found}, expected one line, a token")
    return f"Bearer {token.decode('ascii')}"


def _tls_context(credentials: Credentials) -> ssl.SSLContext:
    """Raises BadParameter for a file that cannot be used."""
    context = ssl.create_default_context()
    if credentials.ca_file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(credentials.ca_file)
        except (OSError, ValueError) as error:
            raise click.BadParameter(
                _unreadable(credentials.ca_file, error), param_hint="--ca-file"
            ) from error
    if credentials.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = credentials.cert_file, credentials.key_file
    if certificate is None:
        if key is not None:
            raise click.BadParameter(
                "expected the certificate, --cert-file, beside it", param_hint="--key-file"
            )
        return context
    try:
        # An empty password: OpenSSL would ask for an encrypted key's password on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        flag = "--cert-file" if key is None else "--cert-file and --key-file"
        raise click.BadParameter(_unreadable(certificate, error), param_hint=flag) from error
    return context


def _unreadable(path: Path, error: OSError | ValueError) -> str:
    shown = visible(str(path))
    if isinstance(error, ssl.SSLError):
        known = {
            "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
            "NO_CERTIFICATE_OR_CRL_FOUND": "found no certificate in it, expected PEM",
        }
        other = f"found no PEM that can be used ({error.reason or error})"
        return f"{shown}: {known.get(error.reason or '', other)}"
    return f"{shown}: {getattr(error, 'strerror', None) or error}"


_REDIRECT: Final = ": it redirects to {location}"
_STATUS_HINTS: Final[Mapping[int, str]] = {
    301: _REDIRECT,
    302: _REDIRECT,
    303: _REDIRECT,
    307: _REDIRECT,
    308: _REDIRECT,
    401: ": it requires a name and a password, https://NAME:PASSWORD@HOST:PORT, or --token-file",
    403: ": authenticated, but not authorized",
    404: ": this is not {product}, or there is another path before {path}",
    405: ": this is not {product}, or there is another path before {path}",
    502: ": a proxy answers, and does not reach it",
    504: ": a proxy answers, and does not reach it",
}
_TLS_ALERTS: Final[Mapping[str, str]] = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate: --cert-file and --key-file",
    "UNKNOWN_CA": "it does not trust the certificate of --cert-file",
    "BAD_CERTIFICATE": "it requires another client certificate: --cert-file and --key-file",
    "HANDSHAKE_FAILURE": "it requires a client certificate, or another version of TLS",
}
"""By words in OpenSSL's names of alerts."""
_CLOSED: Final[Mapping[str, str]] = {
    "http": ": does it serve https?",
    "https": ": does it require a client certificate (--cert-file)?",
}
_OS_ERRORS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ConnectionRefusedError, "connection refused: nothing listens there"),
    (FileNotFoundError, "there is no such socket"),
    (PermissionError, "no permission to connect to this socket"),
)


def _reason(address: Address, error: Exception) -> str:
    """Why a request failed."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            words = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
            return f"its certificate is not trusted: {visible(words)} (--ca-file: the authority to trust)"
        case aiohttp.ClientConnectorDNSError():
            return f"the host name cannot be resolved: {error.os_error.strerror}"
        case aiohttp.ClientPayloadError():
            undecodable = "encoding" in str(error).lower() or "decompress" in str(error).lower()
            return (
                "its answer is not gzip, although its header says so"
                if undecodable
                else "its answer is cut off"
            )
        case aiohttp.ClientResponseError():
            hint = _CLOSED.get(address.scheme, "")
            return f"it does not speak HTTP: {visible(error.message, limit=200)}{hint}"
        case _:
            return _connection_reason(address, getattr(error, "os_error", error))


def _connection_reason(address: Address, error: BaseException) -> str:
    for kind, words in _OS_ERRORS:
        if isinstance(error, kind):
            return words
    alert = next((words for name, words in _TLS_ALERTS.items() if name in str(error).upper()), None)
    if alert is not None:
        return alert
    match error:
        case ssl.SSLError():
            return f"TLS fails ({visible(error.reason or str(error))}): does it serve https at all?"
        case aiohttp.ServerDisconnectedError() | ConnectionResetError() | BrokenPipeError():
            # A TLS 1.3 server may reject a client after the handshake and close the connection at once.
            return f"it closed the connection without an answer{_CLOSED.get(address.scheme, '')}"
        case _:
            return visible(getattr(error, "strerror", None) or repr(error), limit=200)
