"""Clients that stream, pipeline, do not read, and come again; and what others get meanwhile."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

WORDS = (
    b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300,
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300,
    b"GET /api/v1/devices HTTP/1.1\r\nHost: localhost\r\n\r\n" * 300,
    b"GET /metrics HTTP/1.1\r\nHost: loc",
)
"""What each kind of client sends; none reads."""
SEARCHES = tuple(
    b"".join(
        f"GET {path}?q={number}-{n} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        for n in range(50)
        for path in ("/", "/api/v1/devices")
    )
    for number in range(200)
)
"""Pages and documents that are all different."""
UNREAD = WORDS[1:4]
"""Those with answers that nobody reads."""


@dataclass
class Flood:
    """`number` clients of `addresses` at `port`; one that is cut off comes again within `again` seconds."""

    port: int
    number: int
    addresses: Sequence[str]
    words: Sequence[bytes] = WORDS
    again: float = 0.25
    connected: int = 0
    _sockets: dict[int, socket.socket] = field(default_factory=dict[int, socket.socket])

    async def run(self) -> None:
        """Attack until cancelled."""
        try:
            while True:
                for number in range(self.number):
                    if self._is_over(number):
                        await self._come(number)
                self.connected = len(self._sockets)
                await asyncio.sleep(self.again)
        finally:
            for made in self._sockets.values():
                made.close()

    def _is_over(self, number: int) -> bool:
        made = self._sockets.get(number)
        if made is None:
            return True
        # Without reading: a reset shows in the error queue.
        if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and _is_established(made):
            return False
        made.close()
        del self._sockets[number]
        return True

    async def _come(self, number: int) -> None:
        # Kept from the start, so that the end of the attack closes it.
        made = self._sockets[number] = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        try:
            made.bind((self.addresses[number % len(self.addresses)], 0))
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self.port))
            with suppress(BlockingIOError):
                made.send(self.words[number % len(self.words)])
        except (OSError, TimeoutError):
            made.close()
            del self._sockets[number]


def _is_established(made: socket.socket) -> bool:
    return made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1


@asynccontextmanager
async def flooded(flood: Flood) -> AsyncGenerator[Flood]:
    """The attack, from when most clients are there."""
    task = asyncio.create_task(flood.run())
    try:
        async with asyncio.timeout(60):
            while flood.connected < flood.number * 0.4:
                if task.done():
                    await task
                await asyncio.sleep(0.05)
        yield flood
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def fetched(port: int, path: str, address: str, within: float) -> tuple[int, float]:
    """Status and seconds of a GET by a new connection of `address`; status 0 for none in time."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            with closing(writer):
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n"
                    "Connection: close\r\n\r\n".encode()
                )
                answer = await reader.read()
    except (OSError, TimeoutError):
        return 0, time.monotonic() - started
    status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
    return status, time.monotonic() - started


def socket_memory() -> int:
    """Bytes that the kernel has for TCP of this machine."""
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            words = line.split()
            return int(words[words.index("mem") + 1]) * 4096
    return 0
