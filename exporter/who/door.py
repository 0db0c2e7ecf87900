"""HTTP to one server: a request within a time, whatever the server does, or a stream that goes on."""

import http.client
import queue
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final, TypeVar

from daemon.text import visible
from exporter.core.address import Address
from exporter.who.access import Access, AccessError
from exporter.who.door_words import AskError, NobodyError, Reply, refusal, why

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
