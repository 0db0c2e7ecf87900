"""An application served by runtime.http, and raw clients of it."""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from runtime.flags import ListenAddress
from runtime.http.access import OPEN, AllowedHosts
from runtime.http.app import application, json_response
from runtime.http.bodies import ANSWER_WORKER, Body, BodyResponse
from runtime.http.connection import ServerLimits, Traffic
from runtime.http.server import serve
from runtime.http.web_config import WebConfigReloader

LIMIT = 20.0

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LARGE = 8 * 1024 * 1024
"""Bytes of `/large`."""


class _Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        record.message = record.getMessage()
        self.records.append(record)


@dataclass
class Served:
    """What is served, where, and what was counted and logged."""

    port: int
    traffic: Traffic
    config: WebConfigReloader | None
    task: "asyncio.Task[None]"
    release: asyncio.Event
    """What `/hanging` waits for."""
    records: list[logging.LogRecord]
    path: Path | None = None
    warned: str = ""
    """The only warning that may be logged, once; any other fails the test."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def listening(self) -> list[str]:
        """Where the server listens, by the log."""
        found = [record for record in self.records if record.message == "listening"]
        return [getattr(record, "devicelens_fields", {})["url"] for record in found]

    @property
    def warnings(self) -> list[logging.LogRecord]:
        """Warnings and errors of devicelens: asyncio writes errors of its own without descriptors."""
        found = (record for record in self.records if record.levelno >= logging.WARNING)
        return [record for record in found if record.name.startswith("devicelens.")]

    async def connect(
        self, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection, kept open until the test ends it."""
        if self.path is not None:
            return await asyncio.open_unix_connection(
                self.path, ssl=tls, server_hostname="localhost" if tls is not None else None
            )
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
    return json_response({})


async def _devices(_: web.Request) -> web.Response:
    """The document of a plugin."""
    return web.Response(
        body=b'{"version":1,"resources":[{"name":"r","registered":true,"streams":1,"devices":[{"id":"d"}]}]}'
    )


async def _broken(_: web.Request) -> web.Response:
    raise ValueError("secret of the process")


async def _elsewhere(_: web.Request) -> web.Response:
    raise web.HTTPFound("/")


async def _busy(_: web.Request) -> web.Response:
    raise web.HTTPServiceUnavailable(text="too many listen already", headers={"Retry-After": "7"})


async def _stream(request: web.Request) -> web.StreamResponse:
    """`/stream` waits after its first line, `/endless` sends on, `/broken-stream` fails."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first\n")
    if request.path == "/stream":
        await asyncio.Event().wait()
    while request.path == "/endless":
        await response.write(b"x" * 65536)
    raise ValueError("secret of the process")


async def _large(request: web.Request) -> web.Response:
    """`/large?…` is made once for all that are being sent it."""

    def make() -> Body:
        return Body((bytes(LARGE),))

    if not request.query:
        return web.Response(body=bytes(LARGE))
    return BodyResponse(await request.config_dict[ANSWER_WORKER].body(request, request.path_qs, make))


ROUTES = {
    "/": _well,
    "/api/v1": _api,
    "/api/v1/devices": _devices,
    "/broken": _broken,
    "/api/broken": _broken,
    "/elsewhere": _elsewhere,
    "/api/busy": _busy,
    "/stream": _stream,
    "/endless": _stream,
    "/broken-stream": _stream,
    "/large": _large,
}


@asynccontextmanager
async def serving(
    file: Path | None = None,
    *,
    path: Path | None = None,
    address: ListenAddress | None = None,
    answers: dict[str, Any] | None = None,
    hosts: AllowedHosts | None = None,
    access_log: bool = False,
    **limits: Any,
) -> AsyncGenerator[Served]:
    """Serves, by a web configuration if there is one, within limits of connections and of `answers`."""
    logger, kept = logging.getLogger("devicelens"), _Records()
    level = logger.level
    logger.setLevel(logging.INFO)
    logging.getLogger().addHandler(kept)
    config = None
    if file is not None:
        config = WebConfigReloader(file, settle=0.005)
        await config.start()
    traffic, release = Traffic(), asyncio.Event()

    async def hanging(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response(text="at last")

    app = application(**(answers or {}))
    for target, handler in (ROUTES | {"/hanging": hanging}).items():
        app.router.add_get(target, handler)
    if address is None:
        address = ListenAddress("127.0.0.1") if path is None else ListenAddress(path=path)
    task = asyncio.create_task(
        serve(
            app,
            address,
            purpose="tests",
            policy=lambda: OPEN if config is None else config.policy,
            traffic=traffic,
            limits=ServerLimits(**limits),
            hosts=hosts,
            access_log=access_log,
        )
    )
    served = Served(0, traffic, config, task, release, kept.records, path)
    try:
        async with asyncio.timeout(LIMIT):
            while not served.listening and not task.done():
                await asyncio.sleep(0.001)
        if task.done():
            await task
        if path is None:
            served.port = int(served.listening[-1].rpartition(":")[2])
        yield served
    finally:
        release.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        logging.getLogger().removeHandler(kept)
        logger.setLevel(level)
    assert [record.message for record in served.warnings] == ([served.warned] if served.warned else [])
