"""HTTP requests to one server, with a limit on time and size. Errors say what the user can do.

The client is the standard library's: aiohttp takes longer to import than a command takes otherwise.
"""

import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import click
import msgspec

from exporter.cli.common import AskError
from exporter.cli.sources import ChosenSource, SourceFlags
from runtime.flags import Address
from runtime.http.client import (
    CredentialError,
    TooLargeError,
    connection_problem,
    read_credential,
    tls_context,
)
from runtime.text import visible

LIMIT: Final = 64 * 1024 * 1024
"""Bytes of an answer: ten times the documents of the fullest node."""
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


class _UndecodableError(Exception):
    """A body is not gzip, although its header says so."""


class _Connection(HTTPConnection):
    """A connection to an address over TCP, TLS (with `context`) or a unix socket."""

    def __init__(self, address: Address, timeout: float, context: ssl.SSLContext | None) -> None:
        super().__init__(address.host or "localhost", address.port or None, timeout=timeout)
        self._address = address
        self._within = timeout
        self._context = context
        self.opened: socket.socket | None = None
        """The socket, also where only the response still reads from it."""

    def connect(self) -> None:
        """Open the socket. Raises OSError."""
        if self._address.scheme == "unix":
            opened = _connected(socket.AF_UNIX, self._address.path, self._within)
        else:
            opened = _connected_by_name(self._address, self._within)
        opened.settimeout(self._within)
        if self._context is not None:
            opened = self._context.wrap_socket(opened, server_hostname=self._address.host)
        self.sock = self.opened = opened


def _connected(family: int, place: Any, timeout: float) -> socket.socket:
    opened = socket.socket(family)
    try:
        opened.settimeout(timeout)
        opened.connect(place)
    except OSError:
        opened.close()
        raise
    return opened


def _connected_by_name(address: Address, timeout: float) -> socket.socket:
    """A connection to the first address of the host that answers, each within its share of the time left."""
    deadline = time.monotonic() + timeout
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    while True:
        family, *_, place = found.pop(0)
        share = (deadline - time.monotonic()) / (len(found) + 1)
        try:
            opened = _connected(family, place, max(share, 0.001))
        except OSError:
            if not found:
                raise
        else:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return opened


class ServerClient:
    """Requests to one server, one after another. `product` names what is expected at the address."""

    def __init__(self, source: ChosenSource) -> None:
        """Raises BadParameter for credentials that cannot be used."""
        address, flags = source.address, source.flags
        if flags.tls_flag and address.scheme != "https":
            raise click.BadParameter(f"found with {address}, expected https://", param_hint=flags.tls_flag)
        if flags.token_file is not None and address.authorization:
            message = f"found beside a name and a password for {address}"
            raise click.BadParameter(message, param_hint="--token-file")
        context = _tls_context(flags) if address.scheme == "https" else None
        self._connection = _Connection(address, source.timeout, context)
        self._source = source
        self.address = address
        self.timeout = source.timeout
        self.product = "a Prometheus" if source.kind == "prometheus" else "a devicelens exporter"

    def document(self, path: str, kind: type[D], query: Mapping[str, str] | None = None) -> D:
        """The JSON document at `path`. Unknown members are ignored: a newer exporter has more of them.

        Raises StatusError and AskError.
        """
        try:
            response = self._request(path, query, "application/json")
            body = _body(response)
        except TooLargeError:
            raise self._too_large() from None
        except _FAILURES as error:
            raise self._failed(error) from error
        if response.status != 200:
            raise self._refused(path, response, body)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            found = f"{path} is {visible(_content_type(response), 60)}: {visible(str(error), limit=200)}"
            message = f"{self.address}: this is not {self.product}, or not of this version; {found}"
            raise AskError(message) from None

    def generations(self) -> Iterator[int]:
        """The numbers in the exporter's events `generation`, until it ends the stream. Other events are left
        out. Raises StatusError and AskError.

        https://html.spec.whatwg.org/multipage/server-sent-events.html
        """
        path, silence = "/api/v1/events", self.timeout
        try:
            response = self._request(path, None, "text/event-stream")
            if response.status != 200 or _content_type(response) != "text/event-stream":
                raise self._refused(path, response, _body(response))
            silence = _EVENT_SILENCE
            if self._connection.opened is not None:
                self._connection.opened.settimeout(silence)
            name = b""
            with response:
                while line := response.readline(LIMIT):
                    field, _, value = line.partition(b":")
                    if field == b"event":
                        name = value.strip()
                    elif field == b"data" and name == b"generation":
                        yield int(value[:18])
        except TooLargeError:
            raise self._too_large() from None
        except TimeoutError as error:
            raise AskError(f"{self.address}: no answer within {silence:g} s") from error
        except _FAILURES as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the connection. A thread that waits for an answer gets an error."""
        opened = self._connection.opened
        if opened is not None:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _refused(self, path: str, response: HTTPResponse, body: bytes) -> StatusError:
        status = f"{self.address}: {visible(f'{response.status} {response.reason}', limit=100)}"
        problem = None
        if _content_type(response) == "application/problem+json" and response.status != 401:
            try:
                problem = msgspec.json.decode(body, type=_Problem)
                return StatusError(f"{status}: {visible(problem.detail)}", response.status, body, problem)
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        return StatusError(f"{status}{self._hint(path, response, body)}", response.status, body)

    def _hint(self, path: str, response: HTTPResponse, body: bytes) -> str:
        if response.status == 400 and b"HTTPS server" in body[:1000]:
            return f": it serves https, ask {str(self.address).replace('http://', 'https://', 1)}"
        if response.status == 401 and self.address.authorization:
            return ": it does not accept this name and password"
        hint = _STATUS_HINTS.get(response.status, "")
        location = response.getheader("Location")
        if location is not None and 300 <= response.status < 400:
            hint = ": it redirects to {location}"
        return hint.format(product=self.product, path=path, location=visible(location or "", limit=200))

    def _request(self, path: str, query: Mapping[str, str] | None, accept: str) -> HTTPResponse:
        """The answer's head. Redirects are not followed. Raises AskError, OSError and HTTPException."""
        headers = {"Accept": accept, "Accept-Encoding": "gzip", "User-Agent": "devicelens-who"}
        authorization = self.address.authorization or _bearer(self._source.flags.token_file)
        if authorization:
            headers["Authorization"] = authorization
        prefix = "" if self.address.scheme == "unix" else quote(self.address.path, safe=_PATH_CHARACTERS)
        target = f"{prefix}{path}?{urlencode(query)}" if query else f"{prefix}{path}"
        if self._connection.sock is not None:
            try:
                self._connection.request("GET", target, headers=headers)
                return self._connection.getresponse()
            except (ConnectionResetError, BrokenPipeError):
                # The server closes a connection that it has not used for some time.
                self._connection.close()
        self._connection.request("GET", target, headers=headers)
        return self._connection.getresponse()

    def _too_large(self) -> AskError:
        return AskError(f"{self.address}: the answer is larger than {LIMIT >> 20} MiB")

    def _failed(self, error: Exception) -> AskError:
        if isinstance(error, TimeoutError):
            return _no_answer(self._source)
        return AskError(f"{self.address}: {_reason(self.address, error)}")


_FAILURES: Final = (HTTPException, OSError, ValueError, _UndecodableError)
_PATH_CHARACTERS: Final = "/%:@!$&'()*+,;=~"


def ask(source: ChosenSource, work: Callable[[ServerClient], T]) -> T:
    """The result of `work`, which queries an exporter or a Prometheus, within `source.timeout` seconds.

    A daemon thread does the work: nothing else ends a name lookup that hangs or an answer that comes byte by
    byte. Raises AskError, what `work` raises, and BadParameter for credentials that cannot be used.
    """
    client = ServerClient(source)
    results: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(work(client))
        except BaseException as error:  # noqa: BLE001 -- the caller gets it
            errors.append(error)

    thread = Thread(target=call, name="query", daemon=True)
    thread.start()
    thread.join(source.timeout)
    finished = not thread.is_alive()
    client.close()
    if not finished:
        raise _no_answer(source)
    for error in errors:
        raise error
    return results[0]


def _no_answer(source: ChosenSource) -> AskError:
    return AskError(f"{source.address}: no answer within {source.timeout:g} s")


def _body(response: HTTPResponse) -> bytes:
    """The body of at most LIMIT bytes, before and after decompression.

    Raises TooLargeError, _UndecodableError, OSError and HTTPException.
    """
    with response:
        body = response.read(LIMIT + 1)
    if response.length and len(body) <= LIMIT:
        raise IncompleteRead(body, response.length)
    if response.getheader("Content-Encoding", "").lower() == "gzip":
        decoder = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            body = decoder.decompress(body, LIMIT + 1)
        except zlib.error as error:
            raise _UndecodableError from error
        if not decoder.eof and len(body) <= LIMIT:
            raise IncompleteRead(body)
    if len(body) > LIMIT:
        raise TooLargeError
    return body


def _content_type(response: HTTPResponse) -> str:
    """The media type of the body, in lower case."""
    return response.headers.get_content_type() if "Content-Type" in response.headers else ""


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
        case ssl.SSLCertVerificationError():
            words = error.verify_message or str(error)
            return f"its certificate is not trusted: {visible(words)} (--ca-file: the authority to trust)"
        case socket.gaierror():
            return f"the host name cannot be resolved: {visible(error.strerror or str(error))}"
        case _UndecodableError():
            return "its answer is not gzip, although its header says so"
        case IncompleteRead():
            return "its answer is cut off"
        case OSError():
            return _connection_reason(address, error)
        case _:
            hint = _CLOSED.get(address.scheme, "")
            return f"it does not speak HTTP: {visible(str(error), limit=200)}{hint}"


def _connection_reason(address: Address, error: OSError) -> str:
    alerts = [words for name, words in _TLS_ALERTS.items() if name in str(error).upper()]
    match error:
        case ssl.SSLError():
            return (
                *alerts,
                f"TLS fails ({visible(error.reason or str(error))}): does it serve https at all?",
            )[0]
        case ConnectionResetError() | BrokenPipeError():
            # A TLS 1.3 server may reject a client after the handshake and close the connection at once.
            closed = f"it closed the connection without an answer{_CLOSED.get(address.scheme, '')}"
            return (*alerts, closed)[0]
        case _:
            return (*alerts, connection_problem(error))[0]
