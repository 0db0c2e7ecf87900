"""A TCP server that answers every connection with the same bytes, whatever they are."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def raw_server(answer: bytes, *, close: bool = True, drip: float = 0.0) -> AsyncGenerator[str]:
    """Serve `answer`, and give the server's http:// address.

    `close` False: the connection stays open after the answer. `drip`: seconds between two bytes.
    """
    over = asyncio.Event()
    connections: set[asyncio.Task[None] | None] = set()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        with suppress(OSError):  # the client is gone
            await reader.read(65536)
            for part in [bytes([byte]) for byte in answer] if drip else [answer]:
                if over.is_set():
                    break
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(drip)
            if not close:
                await over.wait()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        server.close()
        await asyncio.gather(*filter(None, connections))
