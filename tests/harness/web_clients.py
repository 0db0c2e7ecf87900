"""An application served by runtime.http, and raw clients of it."""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from runtime.flags import ListenAddress
from runtime.http.access import OPEN
from runtime.http.app import application
from runtime.http.connection import ServerLimits, Traffic
from runtime.http.server import serve
from runtime.http.web_config import WebConfigReloader

LIMIT = 20.0


@dataclass
class Served:
    """What is served, where, and what was counted."""

    port: int
    traffic: Traffic
    config: WebConfigReloader | None
    task: "asyncio.Task[None]"
    release: asyncio.Event
    """What `/hanging` waits for."""

    async def connect(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, kept open until the test ends it."""
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname="localhost" if tls is not None else None
        )

    async def exchange(self, request: bytes, tls: ssl.SSLContext | None = None) -> bytes:
        """All that comes for `request`, until the server ends it."""
        reader, writer = await self.connect(tls)
        try:
            writer.write(request)
            return await rest(reader)
        finally:
            await close(writer)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the end, which may be a reset."""
    received = b""
    async with asyncio.timeout(LIMIT):
        try:
            while part := await reader.read(65536):
                received += part
        except OSError:
            pass
    return received


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """One answer of a connection that may stay open: status, headers in lower case, body."""
    async with asyncio.timeout(LIMIT):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split()[1]), headers, body


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def _well(_: web.Request) -> web.Response:
    return web.Response(text="well")


async def _api(_: web.Request) -> web.Response:
    return web.json_response({})


async def _devices(_: web.Request) -> web.Response:
    """What a plugin tells."""
    return web.Response(
        body=b'{"version":1,"resources":[{"name":"r","registered":true,"streams":1,"devices":[{"id":"d"}]}]}'
    )


async def _stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first\n")
    await asyncio.Event().wait()
    return response


@asynccontextmanager
async def serving(
    caplog: pytest.LogCaptureFixture, file: Path | None = None, *, path: Path | None = None, **limits: Any
) -> AsyncGenerator[Served]:
    """Serves, by a web configuration if there is one, within limits."""
    caplog.set_level(logging.INFO, "devicelens")
    config = None
    if file is not None:
        config = WebConfigReloader(file, settle=0.005)
        await config.start()
    traffic, release = Traffic(), asyncio.Event()

    async def hanging(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response(text="at last")

    app = application()
    app.router.add_get("/", _well)
    app.router.add_get("/api/v1", _api)
    app.router.add_get("/api/v1/devices", _devices)
    app.router.add_get("/hanging", hanging)
    app.router.add_get("/stream", _stream)
    address = ListenAddress("127.0.0.1") if path is None else ListenAddress(path=path)
    task = asyncio.create_task(
        serve(
            app,
            address,
            purpose="tests",
            policy=lambda: OPEN if config is None else config.policy,
            traffic=traffic,
            limits=ServerLimits(**limits),
        )
    )
    served = Served(0, traffic, config, task, release)
    try:
        async with asyncio.timeout(LIMIT):
            while not (urls := _urls(caplog)) and not task.done():
                await asyncio.sleep(0.001)
        if task.done():
            await task
        if path is None:
            served.port = int(urls[-1].rpartition(":")[2])
        yield served
    finally:
        release.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _urls(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        getattr(record, "devicelens_fields", {})["url"]
        for record in caplog.records
        if record.message == "listening"
    ]
