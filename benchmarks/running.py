"""Processes to measure: start, HTTP requests, and their CPU and memory from /proc."""

import asyncio
import gzip
import os
import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self

LIMIT: Final = 60.0


def environment(compiled: Path) -> dict[str, str]:
    """As on a node: nothing set for developers, and modules that are compiled once."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DEVICELENS_", "PYTHON"))}
    return kept | {"PYTHONPYCACHEPREFIX": str(compiled), "PYTHONPATH": str(Path(__file__).parents[1])}


@asynccontextmanager
async def process(*command: str, env: dict[str, str]) -> AsyncGenerator[int]:
    """`python COMMAND`; its id."""
    started = await asyncio.create_subprocess_exec(sys.executable, *command, env=env)
    try:
        yield started.pid
    finally:
        with suppress(ProcessLookupError):
            started.terminate()
        try:
            async with asyncio.timeout(10):
                await started.wait()
        except TimeoutError:
            started.kill()
            await started.wait()


def cpu(pid: int) -> float:
    """Seconds of CPU used so far by the threads that there are, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def memory(pid: int, key: str = "VmRSS") -> float:
    """MiB resident, or with VmHWM the most there ever were."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


class Client:
    """A connection that is kept, to an HTTP server on a unix socket. As thin as can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, socket: Path) -> Self:
        """Connect. Raises OSError."""
        return cls(*await asyncio.open_unix_connection(socket, limit=1 << 22))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def get(self, path: str, headers: str = "") -> tuple[int, bytes]:
        """Status and body."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.partition(":")[2])
            for line in head.splitlines()
            if line.lower().startswith("content-length")
        )
        return int(head.split()[1]), await self._reader.readexactly(length)


_LAG: Final = re.compile(rb"^devicelens_(?:plugin_)?event_loop_lag_seconds (\S+)$", re.MULTILINE)


async def lag(client: Client) -> float:
    """Seconds of the longest lag of the process's event loop since the last scrape."""
    _, body = await client.get("/metrics", "Accept-Encoding: gzip\r\n")
    found = _LAG.search(gzip.decompress(body))
    assert found is not None
    return float(found[1])


async def ready(socket: Path, path: str = "/-/ready") -> Client:
    """Wait until `path` answers 200; the connection."""
    end = time.monotonic() + LIMIT
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            client = await Client.to(socket)
            if (await client.get(path))[0] == 200:
                return client
            client.close()
        if time.monotonic() > end:
            raise TimeoutError(f"{socket}: {path} was not 200 within {LIMIT:g} s")
        await asyncio.sleep(0.005)
