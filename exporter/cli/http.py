"""HTTP to one server: a request within a time, whatever the server does, or a stream that goes on.

Why a server could not be asked, or would not answer, in words to act upon. Pure.

How to be let in: a token, TLS with certificates of one's own. Reads the files that flags name.

An exporter's documents, over HTTP.
"""

import http.client
import queue
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from runtime.flags import Address
from runtime.text import visible


class AskError(Exception):
    """It could not be asked; the message says what of, and why, in one line."""


class NobodyError(AskError):
    """It was asked, and knows nothing at all of what was asked for."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever its status. `media` is its content type without parameters."""

    status: int
    reason: str
    media: str
    location: str
    body: bytes


def refusal(address: Address, path: str, reply: Reply, *, what: str) -> str:
    """Why an answer that is none was given, in words to act upon. `what` is expected at the address."""
    said = visible(f"{reply.status} {reply.reason}", limit=100)
    match reply.status:
        case 400 if b"HTTPS server" in reply.body[:1000]:
            hint = f": it serves https, ask {visible(str(address).replace('http://', 'https://', 1))}"
        case 401 if address.authorization:
            hint = ": it does not take this name and password"
        case 401:
            hint = ": it wants a name and a password, https://NAME:PASSWORD@HOST:PORT, or --token-file"
        case 403:
            hint = ": who asks is known, and may not"
        case 404 | 405:
            hint = f": this is not {what}, or there is another path before {path}"
        case 301 | 302 | 303 | 307 | 308:
            hint = f": it sends on to {reply.location}"
        case 502 | 504:
            hint = ": something before it answers, and does not reach it"
        case _:
            hint = ""
    return f"{address}: {said}{hint}"


_PLAIN: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ConnectionRefusedError, "connection refused: nothing listens there"),
    (FileNotFoundError, "there is no such socket"),
    (PermissionError, "no permission to connect to this socket"),
    (http.client.IncompleteRead, "it broke off in the middle of its answer"),
    (zlib.error, "its answer is not gzip, though it says so"),
)
_CLOSED: Final[Mapping[str, str]] = {
    "http": ": does it serve https?",
    "https": ": does it want a client's certificate (--cert-file)?",
}
_TLS: Final[Mapping[str, str]] = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client's certificate: --cert-file and --key-file",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate of --cert-file",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it wants another client's certificate: --cert-file and --key-file",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it wants a client's certificate, or another version of TLS",
}


def why(address: Address, error: BaseException, timeout: float) -> str:  # noqa: PLR0911 -- a reason each
    """Why asking failed, in words to act upon."""
    for kind, words in _PLAIN:
        if isinstance(error, kind):
            return words
    match error:
        case TimeoutError():
            return f"no answer within {timeout:g} s"
        case socket.gaierror():
            return f"the host's name is not known: {error.strerror}"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate is not trusted: {visible(error.verify_message)} (--ca-file: whom to trust)"
            )
        case ssl.SSLError():
            known = _TLS.get(error.reason or "")
            if known is not None:
                return known
            return f"TLS fails ({visible(error.reason or str(error))}): does it serve https at all?"
        case ConnectionResetError() | BrokenPipeError():
            # With TLS 1.3 a server may turn a client away after the handshake, and be gone at once.
            hint = _CLOSED.get(address.scheme, "")
            return f"it closed the connection without an answer{hint}"
        case http.client.HTTPException():
            return f"it does not speak HTTP: {visible(repr(error), limit=200)}"
        case _:
            return visible(getattr(error, "strerror", None) or repr(error), limit=200)


_TOKEN_BYTES: Final = 64 * 1024


class AccessError(ValueError):
    """A file that cannot be used; `flag` named it."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(message)
        self.flag = flag


@dataclass(frozen=True, slots=True)
class Access:
    """What servers may want to see, and whom to believe. `insecure`: no certificate is checked."""

    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure: bool = False

    @property
    def of_tls(self) -> str:
        """The first flag that only https can honour, "" for none."""
        given = {
            "--ca-file": self.ca_file,
            "--cert-file": self.cert_file,
            "--key-file": self.key_file,
            "--insecure-skip-verify": self.insecure,
        }
        return next((flag for flag, value in given.items() if value), "")

    def bearer(self) -> str:
        """The header for the token, "" without one. Read anew each time: tokens are rotated.

        Raises AccessError.
        """
        if self.token_file is None:
            return ""
        try:
            with self.token_file.open("rb") as file:
                raw = file.read(_TOKEN_BYTES + 1)
        except OSError as error:
            raise AccessError("--token-file", _unreadable(self.token_file, error)) from error
        token = raw.strip()
        if not token or len(raw) > _TOKEN_BYTES or not all(0x21 <= byte < 0x7F for byte in token):
            found = "nothing" if not token else "something else"
            raise AccessError(
                "--token-file", f"{visible(str(self.token_file))}: found {found}, expected one line, a token"
            )
        return f"Bearer {token.decode('ascii')}"

    def context(self) -> ssl.SSLContext:
        """How https is spoken. Raises AccessError."""
        context = ssl.create_default_context()
        if self.ca_file is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            try:
                context.load_verify_locations(self.ca_file)
            except (OSError, ValueError) as error:
                raise AccessError("--ca-file", _unreadable(self.ca_file, error)) from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.key_file is not None and self.cert_file is None:
            raise AccessError("--key-file", "expected the certificate, --cert-file, beside it")
        if self.cert_file is not None:
            try:
                # An encrypted key would be asked about on the terminal.
                context.load_cert_chain(self.cert_file, self.key_file, password="")
            except (OSError, ValueError) as error:
                flag = "--cert-file" if self.key_file is None else "--cert-file and --key-file"
                raise AccessError(flag, _unreadable(self.cert_file, error)) from error
        return context


NO_ACCESS: Final = Access()
"""Of a server that lets everybody in."""


def _unreadable(path: Path, error: OSError | ValueError) -> str:
    shown = visible(str(path))
    if isinstance(error, ssl.SSLError):
        words = {
            "KEY_VALUES_MISMATCH": "the key is another certificate's",
            "NO_CERTIFICATE_OR_CRL_FOUND": "found no certificate in it, expected PEM",
        }
        other = f"found no PEM that can be used ({error.reason or error})"
        return f"{shown}: {words.get(error.reason or '', other)}"
    return f"{shown}: {getattr(error, 'strerror', None) or error}"


__all__ = [
    "AskError",
    "Deadline",
    "Door",
    "NoStreamError",
    "NobodyError",
    "Reply",
    "refusal",
]

LIMIT: Final = 64 * 1024 * 1024
"""Bytes of an answer that are read: ten times what the fullest node has."""
_LINE: Final = 64 * 1024
"""Bytes of a line of a stream."""

T = TypeVar("T")


class NoStreamError(AskError):
    """The server answered, and with something else than a stream."""

    def __init__(self, message: str, reply: Reply) -> None:
        super().__init__(message)
        self.reply = reply


class Deadline:
    """When an answer must be there that may take so many `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, not less than none."""
        return max(0.0, self._end - time.monotonic())


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, *, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Door:
    """One server, and how to be let in."""

    def __init__(self, address: Address, access: Access) -> None:
        """Raises AccessError: the files for TLS are read now."""
        self.address = address
        self._access = access
        flag = access.of_tls
        if flag and address.scheme != "https":
            raise AccessError(flag, f"found with {address}, expected https://")
        if access.token_file is not None and address.authorization:
            raise AccessError("--token-file", f"found beside a name and a password for {address}")
        self._context = access.context() if address.scheme == "https" else None

    def ask(self, where: str, deadline: Deadline, *, form: str | None = None) -> Reply:
        """The answer for the path `where`, of POST with a `form` and of GET without. Raises AskError."""
        return self._within(deadline, lambda: self._ask(where, form, deadline.left))

    def stream(self, where: str, deadline: Deadline, *, silence: float) -> Iterator[bytes]:
        """The lines of an answer that goes on, once it has begun by the `deadline`; it may be silent for
        `silence` seconds. Ends when the server ends it. Raises AskError.
        """
        connection, response = self._within(deadline, lambda: self._begin(where, deadline.left, silence))
        with closing(connection), closing(response):
            while True:
                try:
                    line = response.readline(_LINE)
                except TimeoutError:
                    raise AskError(f"{self.address}: silent for {silence:g} s") from None
                except (OSError, http.client.HTTPException, ValueError) as error:
                    raise AskError(f"{self.address}: {why(self.address, error, silence)}") from error
                if not line:
                    return
                yield line

    def _begin(
        self, where: str, seconds: float, silence: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connection(seconds)
        try:
            response = self._request(connection, where, None, accept="text/event-stream")
            self._check_stream(response)
            _settimeout(connection, response, silence)
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _check_stream(self, response: http.client.HTTPResponse) -> None:
        media = response.headers.get_content_type()
        if response.status == http.client.OK and media == "text/event-stream":
            return
        reply = _read(self.address, response)
        raise NoStreamError(f"{self.address}: {visible(f'{reply.status} {reply.reason}', 100)}", reply)

    def _ask(self, where: str, form: str | None, seconds: float) -> Reply:
        with closing(self._connection(seconds)) as connection:
            return _read(self.address, self._request(connection, where, form))

    def _request(
        self,
        connection: http.client.HTTPConnection,
        where: str,
        form: str | None,
        *,
        accept: str = "application/json",
    ) -> http.client.HTTPResponse:
        headers = {"Accept": accept, "User-Agent": "devicelens-who"}
        if accept == "application/json":
            headers["Accept-Encoding"] = "gzip"
        authorization = self.address.authorization or self._access.bearer()
        if authorization:
            headers["Authorization"] = authorization
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        prefix = "" if self.address.scheme == "unix" else self.address.path
        body = None if form is None else form.encode("ascii")
        connection.request("GET" if form is None else "POST", prefix + where, body, headers)
        return connection.getresponse()

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        address = self.address
        # A time-out of nothing would mean that a socket does not block at all.
        timeout = max(seconds, 0.001)
        if address.scheme == "unix":
            return _UnixConnection(address.path, timeout=timeout)
        if address.scheme == "https":
            return http.client.HTTPSConnection(
                address.host, address.port, timeout=timeout, context=self._context
            )
        return http.client.HTTPConnection(address.host, address.port, timeout=timeout)

    def _within(self, deadline: Deadline, work: Callable[[], T]) -> T:
        """`work` in a thread, for neither the resolver nor a server that answers a byte at a time keeps to a
        socket's time-out. It does not hold up the process's end.
        """
        outcome: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()

        def run() -> None:
            try:
                outcome.put((work(),))
            except BaseException as error:  # noqa: BLE001 -- told to the one who waits
                outcome.put(error)

        threading.Thread(target=run, name="ask", daemon=True).start()
        try:
            result = outcome.get(timeout=deadline.left)
        except queue.Empty:
            raise AskError(f"{self.address}: no answer within {deadline.seconds:g} s") from None
        if isinstance(result, tuple):
            return result[0]
        if isinstance(result, AskError):
            raise result
        if isinstance(result, AccessError):
            raise AskError(f"{result.flag}: {result}") from result
        raise AskError(f"{self.address}: {why(self.address, result, deadline.seconds)}") from result


def _settimeout(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, seconds: float
) -> None:
    """Of the socket, which a response takes over where the server closes it after its answer."""
    sock: object = connection.sock
    if sock is None:
        sock = getattr(getattr(getattr(response, "fp", None), "raw", None), "_sock", None)
    if isinstance(sock, socket.socket):
        sock.settimeout(seconds)


def _read(address: Address, response: http.client.HTTPResponse) -> Reply:
    raw = response.read(LIMIT + 1)
    if response.length and len(raw) <= LIMIT:
        raise http.client.IncompleteRead(raw, response.length)
    if response.headers.get("Content-Encoding", "").strip().lower() == "gzip":
        raw = zlib.decompressobj(wbits=31).decompress(raw, LIMIT + 1)
    if len(raw) > LIMIT:
        raise AskError(f"{address}: the answer is larger than {LIMIT >> 20} MiB")
    return Reply(
        status=response.status,
        reason=response.reason,
        media=visible(response.headers.get_content_type(), limit=60),
        location=visible(response.headers.get("Location", "?"), limit=200),
        body=raw,
    )


__all__ = ["AskError", "RefusedError", "UnknownError", "fetch", "trouble"]

D = TypeVar("D", bound=msgspec.Struct)

_WHAT = "a devicelens exporter"


class _Problem(msgspec.Struct):
    """What is needed of application/problem+json."""

    detail: str
    nearest: list[dict[str, str]] | None = None


class UnknownError(AskError):
    """There is no such thing (404); `detail` is the exporter's own word."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


class RefusedError(AskError):
    """What was asked for cannot be honoured (400); `detail` is the exporter's own word."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


class MissingError(AskError):
    """There is nothing at the path (404): it is no exporter, or one that does not know it yet."""


def fetch(door: Door, where: str, kind: type[D], deadline: Deadline) -> D:
    """The exporter's document at the path `where`, by the `deadline` whatever it does.

    Fields that are not known are passed over: a newer exporter tells more. Raises AskError.
    """
    reply = door.ask(where, deadline)
    if reply.status != http.client.OK:
        raise trouble(door.address, where, reply)
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        found = f"{_path(where)} is {reply.media}: {visible(str(error), limit=200)}"
        raise AskError(f"{door.address}: this is not {_WHAT}, or not of this version; {found}") from None


def _path(where: str) -> str:
    return where.partition("?")[0]


def trouble(address: Address, where: str, reply: Reply) -> AskError:
    """What an answer that is none says."""
    plain = refusal(address, _path(where), reply, what=_WHAT)
    if reply.media != "application/problem+json":
        return MissingError(plain) if reply.status == http.client.NOT_FOUND else AskError(plain)
    said = f"{address}: {visible(f'{reply.status} {reply.reason}', limit=100)}"
    try:
        problem = msgspec.json.decode(reply.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return AskError(said)
    detail = visible(problem.detail)
    message = f"{said}: {detail}"
    if reply.status == http.client.UNAUTHORIZED:
        return AskError(plain)
    if reply.status == http.client.BAD_REQUEST:
        return RefusedError(message, detail)
    if reply.status == http.client.NOT_FOUND:
        # An exporter that does not know the path tells of nothing near.
        return MissingError(message) if problem.nearest is None else UnknownError(message, detail)
    return AskError(message)
