"""HTTP requests to one server, with a limit on time and size. Errors say what the user can do."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar

import aiohttp
import click
import msgspec

from exporter.cli.common import AskError
from exporter.cli.sources import ChosenSource, SourceFlags
from runtime.flags import Address
from runtime.http.client import (
    CredentialError,
    TooLargeError,
    connection_problem,
    read_body,
    read_credential,
    tls_context,
)
from runtime.text import visible

LIMIT: Final = 64 * 1024 * 1024
"""Bytes of an answer: ten times the documents of the fullest node."""
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=None)
"""`connect` limits the time of everything."""
_TOKEN_BYTES: Final = 64 * 1024
_EVENT_SILENCE: Final = 40.0
"""Seconds without data after which an event stream counts as lost: the exporter sends one every 15 s."""

T = TypeVar("T")
D = TypeVar("D", bound=msgspec.Struct)


class StatusError(AskError):
    """The server answered with another status than 200, and with `body`. `detail` is the explanation of an
    exporter, "" if the answer has none. `nothing_found`: the exporter has no such device; otherwise a 404
    means that the path does not exist.
    """

    def __init__(self, message: str, status: int, body: bytes, problem: "_Problem | None" = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = body
        self.detail = "" if problem is None else visible(problem.detail)
        self.nothing_found = status == 404 and problem is not None and problem.nearest is not None


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

    async def document(self, path: str, kind: type[D], query: Mapping[str, str] | None = None) -> D:
        """The JSON document at `path`. Unknown members are ignored: a newer exporter has more of them.

        Raises StatusError and AskError.
        """
        try:
            async with self._request(path, query, "application/json") as response:
                body = await read_body(response, LIMIT)
        except TooLargeError:
            raise self._too_large() from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(error) from error
        if response.status != 200:
            raise self._refused(path, response, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = f"{path} is {visible(response.content_type, 60)}: {visible(str(error), limit=200)}"
            message = f"{self.address}: this is not {self.product}, or not of this version; {found}"
            raise AskError(message) from None

    async def generations(self) -> AsyncIterator[int]:
        """The numbers in the exporter's events `generation`, until it ends the stream. Other events are left
        out. Raises StatusError and AskError.

        https://html.spec.whatwg.org/multipage/server-sent-events.html
        """
        path = "/api/v1/events"
        wait = aiohttp.ClientTimeout(total=None, connect=self.timeout, sock_read=_EVENT_SILENCE)
        try:
            async with self._request(path, None, "text/event-stream", wait) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise self._refused(path, response, await read_body(response, LIMIT))
                name = b""
                async for line in response.content:
                    field, _, value = line.partition(b":")
                    if field == b"event":
                        name = value.strip()
                    elif field == b"data" and name == b"generation":
                        yield int(value[:18])
        except TooLargeError:
            raise self._too_large() from None
        except TimeoutError as error:
            raise AskError(f"{self.address}: no answer: {visible(str(error))}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(error) from error

    def _refused(self, path: str, response: aiohttp.ClientResponse, body: bytes) -> StatusError:
        status = f"{self.address}: {visible(f'{response.status} {response.reason}', limit=100)}"
        problem = None
        if response.content_type == "application/problem+json" and response.status != 401:
            try:
                problem = msgspec.json.decode(body, type=_Problem)
                return StatusError(f"{status}: {visible(problem.detail)}", response.status, body, problem)
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        return StatusError(f"{status}{self._hint(path, response, body)}", response.status, body)

    def _hint(self, path: str, response: aiohttp.ClientResponse, body: bytes) -> str:
        if response.status == 400 and b"HTTPS server" in body[:1000]:
            return f": it serves https, ask {str(self.address).replace('http://', 'https://', 1)}"
        if response.status == 401 and self.address.authorization:
            return ": it does not accept this name and password"
        hint = _STATUS_HINTS.get(response.status, "")
        if "Location" in response.headers and 300 <= response.status < 400:
            hint = ": it redirects to {location}"
        location = visible(response.headers.get("Location", ""), limit=200)
        return hint.format(product=self.product, path=path, location=location)

    def _request(
        self,
        path: str,
        query: Mapping[str, str] | None,
        accept: str,
        wait: aiohttp.ClientTimeout = _NO_TIMEOUT,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        authorization = self.address.authorization or _bearer(self._source.flags.token_file)
        if authorization:
            headers["Authorization"] = authorization
        return self._session.get(
            self.address.url + path,
            params=query,
            headers=headers,
            timeout=wait,
            allow_redirects=False,
            ssl=self._context or True,
        )

    def _too_large(self) -> AskError:
        return AskError(f"{self.address}: the answer is larger than {LIMIT >> 20} MiB")

    def _failed(self, error: Exception) -> AskError:
        return AskError(f"{self.address}: {_reason(self.address, error)}")


@asynccontextmanager
async def connect(source: ChosenSource, *, limited: bool = True) -> AsyncGenerator[ServerClient]:
    """A client for an exporter or a Prometheus. Everything within ends in `source.timeout` seconds, unless
    `limited` is False, as for event streams.

    Raises AskError, and BadParameter for credentials that cannot be used.
    """
    address, flags = source.address, source.flags
    if flags.tls_flag and address.scheme != "https":
        raise click.BadParameter(f"found with {address}, expected https://", param_hint=flags.tls_flag)
    if flags.token_file is not None and address.authorization:
        message = f"found beside a name and a password for {address}"
        raise click.BadParameter(message, param_hint="--token-file")
    context = _tls_context(flags) if address.scheme == "https" else None
    connector = aiohttp.UnixConnector(address.path) if address.scheme == "unix" else None
    session = aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), headers={"User-Agent": "devicelens-who"}
    )
    try:
        async with asyncio.timeout(source.timeout if limited else None), session:
            yield ServerClient(session, source, context)
    except TimeoutError:
        raise AskError(f"{address}: no answer within {source.timeout:g} s") from None


def _bearer(path: Path | None) -> str:
    """The Authorization header for the token, "" without one. The file is read for each request, because
    tokens are rotated.
    """
    if path is None:
        return ""
    try:
        token = read_credential(path, _TOKEN_BYTES).strip()
    except CredentialError as error:
        raise AskError(f"--token-file: {error}") from error
    if not token or not all(0x21 <= byte < 0x7F for byte in token):
        found = "nothing" if not token else "something else"
        raise AskError(f"--token-file: {visible(str(path))}: found {found}, expected one line, a token")
    return f"Bearer {token.decode('ascii')}"


def _tls_context(flags: SourceFlags) -> ssl.SSLContext:
    """Raises BadParameter for a file that cannot be used."""
    if flags.key_file is not None and flags.cert_file is None:
        raise click.BadParameter("expected the certificate, --cert-file, beside it", param_hint="--key-file")
    try:
        context = tls_context(flags.ca_file, flags.cert_file, flags.key_file)
    except CredentialError as error:
        both = " and --key-file" if error.part == "cert" and flags.key_file is not None else ""
        raise click.BadParameter(str(error), param_hint=f"--{error.part}-file{both}") from error
    if flags.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


_STATUS_HINTS: Final[Mapping[int, str]] = {
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
            reason = "not gzip, although its header says so" if undecodable else "cut off"
            return f"its answer is {reason}"
        case aiohttp.ClientResponseError():
            hint = _CLOSED.get(address.scheme, "")
            return f"it does not speak HTTP: {visible(error.message, limit=200)}{hint}"
        case _:
            return _connection_reason(address, getattr(error, "os_error", error))


def _connection_reason(address: Address, error: BaseException) -> str:
    alerts = [words for name, words in _TLS_ALERTS.items() if name in str(error).upper()]
    match error:
        case ssl.SSLError():
            return (
                *alerts,
                f"TLS fails ({visible(error.reason or str(error))}): does it serve https at all?",
            )[0]
        case aiohttp.ServerDisconnectedError() | ConnectionResetError() | BrokenPipeError():
            # A TLS 1.3 server may reject a client after the handshake and close the connection at once.
            closed = f"it closed the connection without an answer{_CLOSED.get(address.scheme, '')}"
            return (*alerts, closed)[0]
        case _:
            return (*alerts, connection_problem(error))[0]
