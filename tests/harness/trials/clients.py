"""Misbehaving HTTP clients: too many, silent, incomplete, slow to read, too long."""

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

LIMIT = 30.0
"""Seconds for a connection, and for an answer that comes."""


class Crowd:
    """Connections to one address, all kept until they are let go."""

    def __init__(self, url: str) -> None:
        """`url`: as the process's log tells it, over TCP."""
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._all: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._numbers = itertools.count()
        self.refused = 0

    def __len__(self) -> int:
        """How many were made."""
        return len(self._all)

    async def say(self, words: bytes, number: int, *, ends: bool = False) -> None:
        """So many more connections, each of which says `words` and no more; some may be refused. `ends`: each
        closes its own half then, and goes on listening.
        """
        outcomes = await asyncio.gather(
            *(self._say(words, ends=ends) for _ in range(number)), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, OSError | TimeoutError):
                self.refused += 1
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _say(self, words: bytes, *, ends: bool) -> None:
        made = socket.socket()
        # Eight addresses: one alone may have half of the connections.
        made.bind((f"127.0.0.{2 + next(self._numbers) % 8}", 0))
        # Small, so that who does not read is noticed soon.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        async with asyncio.timeout(LIMIT):
            await asyncio.get_running_loop().sock_connect(made, self._address)
            # Nothing is read unless it is asked for.
            reader, writer = await asyncio.open_connection(sock=made, limit=2)
            writer.write(words)
            await writer.drain()
            if ends:
                writer.write_eof()
        self._all.append((reader, writer))

    async def statuses(self) -> Counter[str]:
        """What each is answered: the status, "closed" for an end without one."""
        return Counter(await asyncio.gather(*(_status(reader) for reader, _ in self._all)))

    def leave(self) -> None:
        """Hang up, all at once."""
        for _, writer in self._all:
            writer.transport.abort()
        self._all.clear()


async def _status(reader: asyncio.StreamReader) -> str:
    try:
        async with asyncio.timeout(LIMIT):
            head = await reader.read(12)
    except (OSError, TimeoutError) as error:
        return "silence" if isinstance(error, TimeoutError) else "closed"
    return head[9:12].decode(errors="replace") if head.startswith(b"HTTP/1.1 ") else "closed"


@asynccontextmanager
async def crowd(url: str) -> AsyncGenerator[Crowd]:
    """Connections that end with the context."""
    made = Crowd(url)
    try:
        yield made
    finally:
        made.leave()


def request(path: str, *headers: str) -> bytes:
    """One request, whole."""
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()


def too_long() -> Iterable[bytes]:
    """What no server should take in."""
    yield request("/" + "a" * (1 << 20))
    yield request("/api/v1/devices?" + "&".join(f"a{number}=b" for number in range(50_000)))
    yield request("/", "X-Long: " + "a" * (1 << 20))
    yield request("/", *(f"X-Many-{number}: a" for number in range(20_000)))
    yield request("/metrics", "Accept: " + ", ".join(f"text/x{number}" for number in range(20_000)))
    yield request("/", "Content-Length: 99999999999999999999999999")
    yield b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"
    yield bytes(range(256)) * 4096
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512)
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(4096)
