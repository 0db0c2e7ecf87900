"""An exporter's answer, over HTTP."""

import http.client
import queue
import socket
import ssl
import threading
from typing import Final, TypeVar

import msgspec

from daemon.text import visible
from exporter.core.address import Address

_LIMIT: Final = 64 * 1024 * 1024
"""Bytes of an answer that are read: ten times what the fullest node has."""


D = TypeVar("D", bound=msgspec.Struct)


class AskError(Exception):
    """It could not be asked; the message says what of, and why, in one line."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, *, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


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


def fetch(address: Address, where: str, kind: type[D], *, timeout: float) -> D:
    """The exporter's document at the path `where`, within `timeout` seconds whatever it does.

    Raises AskError.
    """
    # A thread, for neither the resolver nor a server that answers a byte at a time keeps to a socket's
    # time-out. It does not hold up the process's end.
    outcome: queue.SimpleQueue[D | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put(_fetch(address, where, kind, timeout))
        except BaseException as error:  # noqa: BLE001 -- told to the one who waits
            outcome.put(error)

    threading.Thread(target=work, name="ask", daemon=True).start()
    try:
        result = outcome.get(timeout=timeout)
    except queue.Empty:
        raise AskError(f"{address}: no answer within {timeout:g} s") from None
    if isinstance(result, AskError):
        raise result
    if isinstance(result, BaseException):
        raise AskError(f"{address}: {_why(address, result, timeout)}") from result
    return result


def _fetch(address: Address, where: str, kind: type[D], timeout: float) -> D:
    connection = _connection(address, timeout)
    try:
        headers = {"Accept": "application/json", "User-Agent": "devicelens-who"}
        if address.authorization:
            headers["Authorization"] = address.authorization
        prefix = "" if address.scheme == "unix" else address.path
        connection.request("GET", prefix + where, headers=headers)
        response = connection.getresponse()
        body = response.read(_LIMIT + 1)
        if len(body) > _LIMIT:
            raise AskError(f"{address}: the answer is larger than {_LIMIT >> 20} MiB")
        if response.length:
            raise http.client.IncompleteRead(body, response.length)
        if response.status != http.client.OK:
            raise _refusal(address, where, response, body)
        return _decoded(address, where, kind, response, body)
    finally:
        connection.close()


def _connection(address: Address, timeout: float) -> http.client.HTTPConnection:
    if address.scheme == "unix":
        return _UnixConnection(address.path, timeout=timeout)
    if address.scheme == "https":
        return http.client.HTTPSConnection(
            address.host, address.port, timeout=timeout, context=ssl.create_default_context()
        )
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout)


def _decoded(
    address: Address, where: str, kind: type[D], response: http.client.HTTPResponse, body: bytes
) -> D:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        media = visible(response.headers.get_content_type(), limit=60)
        found = f"{_path(where)} is {media}: {visible(str(error), limit=200)}"
        raise AskError(
            f"{address}: this is not a devicelens exporter, or not of this version; {found}"
        ) from None


def _path(where: str) -> str:
    return where.partition("?")[0]


def _refusal(address: Address, where: str, response: http.client.HTTPResponse, body: bytes) -> AskError:
    """What an answer that is none says."""
    said = visible(f"{response.status} {response.reason}", limit=100)
    if response.headers.get_content_type() == "application/problem+json":
        try:
            problem = msgspec.json.decode(body, type=_Problem)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return AskError(f"{address}: {said}")
        detail = visible(problem.detail)
        message = f"{address}: {said}: {detail}"
        if response.status == http.client.BAD_REQUEST:
            return RefusedError(message, detail)
        # An exporter that does not know the path tells of nothing near.
        known = response.status == http.client.NOT_FOUND and problem.nearest is not None
        return UnknownError(message, detail) if known else AskError(message)
    match response.status:
        case 401:
            said = f"{said}: it wants a name and a password, https://NAME:PASSWORD@HOST:PORT"
        case 404:
            path = _path(where)
            said = f"{said}: this is not a devicelens exporter, or there is another path before {path}"
        case 301 | 302 | 303 | 307 | 308:
            said = f"{said}: it sends on to {visible(response.headers.get('Location', '?'), limit=200)}"
        case _:
            pass
    return AskError(f"{address}: {said}")


_PLAIN: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ConnectionRefusedError, "connection refused: nothing listens there"),
    (FileNotFoundError, "there is no such socket"),
    (PermissionError, "no permission to connect to this socket"),
    (http.client.IncompleteRead, "it broke off in the middle of its answer"),
)


def _why(address: Address, error: BaseException, timeout: float) -> str:  # noqa: PLR0911 -- a reason each
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
            return f"its certificate is not trusted: {visible(error.verify_message)}"
        case ssl.SSLError():
            return f"TLS fails ({visible(error.reason or str(error))}): does it serve https at all?"
        case ConnectionResetError() | BrokenPipeError():
            hint = ": does it serve https?" if address.scheme == "http" else ""
            return f"it closed the connection without an answer{hint}"
        case http.client.HTTPException():
            return f"it does not speak HTTP: {visible(repr(error), limit=200)}"
        case _:
            return visible(getattr(error, "strerror", None) or repr(error), limit=200)
