"""Accepting connections: as many as there is room for, each by the rules of the moment, TLS before HTTP.

asyncio's own servers keep one SSLContext for good, do not count who has not agreed on TLS yet, and write a
line of log for each second without descriptors.
"""

import asyncio
import errno
import socket
from asyncio import sslproto
from collections.abc import Callable, Sequence
from http import HTTPStatus
from ssl import SSLContext
from typing import Final

from runtime.http.connection import Connection, Hooks, refusal
from runtime.http.crowd import Crowd, Visitor
from runtime.http.traffic import Traffic
from runtime.log import Episode, Log
from runtime.protection import names
from runtime.protection.rules import Rules

HANDSHAKE_WITHIN: Final = 10.0
"""Seconds in which TLS must be agreed."""
RETRY: Final = 0.25
"""Seconds until one is tried again that could not be accepted."""
_FAREWELL: Final = 2.0
"""Seconds in which a client must have agreed that TLS ends."""
CALM: Final = 60.0
"""Seconds without a trouble after which it is over: one that comes and goes must not fill the log."""
_TLS_RECORD: Final = 0x16
_TLS_BUFFER: Final = 16 * 1024 + 256
"""Bytes: what one record of TLS has at most."""

_GONE: Final = frozenset({errno.EAGAIN, errno.ECONNABORTED, errno.EINTR, errno.EPROTO})

_log = Log("http")

# asyncio reads TLS through a buffer of 256 KiB for each connection: 128 MiB for 512 idle clients.
if getattr(sslproto.SSLProtocol, "max_size", 0) > _TLS_BUFFER:
    sslproto.SSLProtocol.max_size = _TLS_BUFFER

Make = Callable[[Hooks], Connection]


class _Trouble:
    """An episode that is over when it has not come again for `calm` seconds."""

    def __init__(self, episode: Episode, calm: float) -> None:
        self._episode = episode
        self._calm = calm
        self._loop = asyncio.get_running_loop()
        self._last = 0.0

    def failed(self, reason: str) -> None:
        self._last = self._loop.time()
        self._episode.failed(reason)

    def over(self) -> None:
        if self._episode.reason is not None and self._loop.time() - self._last >= self._calm:
            self._episode.recovered()


class Listener:
    """Accepts on `sockets`, which are its own from now on, and has `make` handle what comes."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make: Make,
        *,
        rules: Callable[[], Rules],
        traffic: Traffic,
        most: int,
        handshake_within: float = HANDSHAKE_WITHIN,
        calm: float = CALM,
    ) -> None:
        self._sockets = sockets
        self._make = make
        self._rules = rules
        self._traffic = traffic
        self._crowd = Crowd(most)
        self._handshake_within = handshake_within
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        full = Episode(_log, "no room for more connections, those idle for longest are ended", calm=calm)
        starved = Episode(_log, "connections cannot be accepted", calm=calm)
        self._full, self._starved = _Trouble(full, calm), _Trouble(starved, calm)
        self._strangers = Episode(_log, "clients whose certificates have no allowed name", calm=calm)

    def start(self) -> None:
        """Accept from now on."""
        for listening in self._sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def stop(self) -> None:
        """Accept no more, and give the sockets back."""
        for listening in self._sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        for timer in self._retries.values():
            timer.cancel()

    async def end(self) -> None:
        """End every connection that is left."""
        self._crowd.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        # One at a time: without descriptors the kernel refuses before it looks whether anybody is there.
        try:
            accepted, _address = listening.accept()
        except OSError as error:
            if error.errno not in _GONE:
                self._later(listening, error)
            return
        self._starved.over()
        self._welcome(accepted)

    def _later(self, listening: socket.socket, error: OSError) -> None:
        """The socket stays readable for as long as nothing is accepted: look away for a while."""
        self._starved.failed(error.strerror or str(error))
        if self._crowd.evict():
            self._count("idle_evicted")
        self._loop.remove_reader(listening.fileno())
        self._retries[listening] = self._loop.call_later(
            RETRY, lambda: self._loop.add_reader(listening.fileno(), self._accept, listening)
        )

    def _welcome(self, accepted: socket.socket) -> None:
        accepted.settimeout(0.0)
        if self._crowd.is_full:
            self._full.failed(f"{self._crowd.most} are open")
            if not self._crowd.evict():
                self._count("crowded")
                self._turn_away(accepted)
                return
            self._count("idle_evicted")
        elif len(self._crowd) < self._crowd.most * 3 // 4:
            self._full.over()
        task = self._loop.create_task(self._connect(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _turn_away(self, accepted: socket.socket) -> None:
        if self._rules().tls is None:
            text = "too many clients are connected"
            _say(accepted, refusal(HTTPStatus.SERVICE_UNAVAILABLE, text, "Retry-After: 5"))
        accepted.close()

    async def _connect(self, accepted: socket.socket) -> None:
        """Agree on TLS where it is asked for, and leave the rest to the connection."""
        visitor = Visitor(asyncio.current_task())
        self._enter(visitor)
        rules = self._rules()
        handed_over = False
        try:
            if rules.tls is not None and not await self._speaks_tls(accepted):
                return
            connection = self._make(self._hooks(visitor, rules))
            handed_over = True
            transport = await self._transport(accepted, connection, rules.tls)
            visitor.transport = transport
        except (OSError, TimeoutError) as error:
            # What a client does wrong is worth no line: whoever reaches the port could fill the log with it.
            self._count("handshake")
            _log.debug("connection not established", error=f"{type(error).__name__}: {error}")
            self._leave(visitor)
        finally:
            if not handed_over:
                self._leave(visitor)
                accepted.close()

    async def _transport(
        self, accepted: socket.socket, connection: Connection, tls: SSLContext | None
    ) -> asyncio.Transport:
        if tls is None:
            transport, _ = await self._loop.connect_accepted_socket(lambda: connection, accepted)
        else:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_within,
                ssl_shutdown_timeout=_FAREWELL,
            )
        return transport

    async def _speaks_tls(self, accepted: socket.socket) -> bool:
        """Whether the first byte is TLS's; who speaks HTTP instead is told. Raises OSError, TimeoutError."""
        async with asyncio.timeout(self._handshake_within):
            await self._readable(accepted)
        first = accepted.recv(1, socket.MSG_PEEK)
        if not first or first[0] == _TLS_RECORD:
            return bool(first)
        self._count("plain_http")
        _say(accepted, refusal(HTTPStatus.BAD_REQUEST, "this is an HTTPS server: ask it by https://"))
        return False

    async def _readable(self, accepted: socket.socket) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(accepted.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(accepted.fileno())

    def _hooks(self, visitor: Visitor, rules: Rules) -> Hooks:
        def admit(transport: asyncio.BaseTransport) -> bool:
            certificate = transport.get_extra_info("peercert")
            if names.is_allowed(certificate, rules.allowed_sans):
                return True
            self._count("certificate")
            self._strangers.failed(f"names: {names.told(certificate)}")
            return False

        return Hooks(
            admit=admit,
            busy=lambda: self._crowd.busy(visitor),
            idle=lambda: self._crowd.idle(visitor),
            lost=lambda: self._leave(visitor),
            ended=self._count,
        )

    def _enter(self, visitor: Visitor) -> None:
        self._crowd.enter(visitor)
        self._traffic.connections = len(self._crowd)

    def _leave(self, visitor: Visitor) -> None:
        self._crowd.leave(visitor)
        self._traffic.connections = len(self._crowd)

    def _count(self, reason: str) -> None:
        self._traffic.ended[reason] += 1


def _say(accepted: socket.socket, answer: bytes) -> None:
    """As much of an answer as there is room for, which is all of it; what was sent is not read by anybody."""
    try:
        accepted.send(answer)
        accepted.recv(64 * 1024)
        accepted.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it went, or has not sent anything yet: either way it is closed next
