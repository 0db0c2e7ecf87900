"""exporter.plugins.client: one plugin, asked, whatever answers there."""

import asyncio
import gzip
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from exporter.plugins.client import PluginClient, PluginError
from runtime.flags import parse_address

DOCUMENT = b'{"version":1,"resources":[{"name":"r","registered":true,"streams":1,"devices":[{"id":"d"}]}]}'
OTHER = DOCUMENT.replace(b'"d"', b'"e"')

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[str]:
    """A server that answers at the document's path; its address."""
    app = web.Application()
    app.router.add_get("/api/v1/devices", handler)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


def client(url: str, **limits: float) -> PluginClient:
    return PluginClient(
        parse_address(url), within=limits.get("within", 5.0), limit=int(limits.get("limit", 4096))
    )


def answering(body: bytes, **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers=headers)

    return answer


async def problem(asked: PluginClient) -> str:
    with pytest.raises(PluginError) as caught:
        await asked.fetch()
    return str(caught.value)


@pytest.fixture
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="dl", dir="/tmp"))
    yield made
    shutil.rmtree(made)


async def test_a_document_is_told_once() -> None:
    bodies = [DOCUMENT, DOCUMENT, OTHER]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=bodies.pop(0))

    async with serving(answer) as url:
        asked = client(url)
        told = await asked.fetch()
        assert told is not None
        assert list(told.resources["r"].devices) == ["d"]
        assert await asked.fetch(told.digest) is None
        other = await asked.fetch(told.digest)
        assert other is not None
        assert list(other.resources["r"].devices) == ["e"]


async def test_a_plugin_that_knows_etags_need_not_send_it_again() -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("If-None-Match"))
        if seen[-1] == '"one"':
            return web.Response(status=304)
        return web.Response(body=DOCUMENT, headers={"ETag": '"one"'})

    async with serving(answer) as url:
        asked = client(url)
        told = await asked.fetch()
        assert told is not None
        assert await asked.fetch(told.digest) is None
        # Who has forgotten the document needs it whole.
        assert await asked.fetch() is not None
    assert seen == [None, '"one"', None]


async def test_a_document_that_cannot_be_read_is_not_taken_for_known() -> None:
    bodies = [DOCUMENT, b"nonsense", b"nonsense"]

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("If-None-Match") == '"bad"':
            return web.Response(status=304)
        body = bodies.pop(0)
        return web.Response(body=body, headers={"ETag": '"good"' if body == DOCUMENT else '"bad"'})

    async with serving(answer) as url:
        asked = client(url)
        told = await asked.fetch()
        assert told is not None
        for _ in range(2):
            with pytest.raises(PluginError, match="expected the devices of a devicelens plugin"):
                await asked.fetch(told.digest)


async def test_a_unix_socket_and_what_comes_after_it_at_the_same_path(directory: Path) -> None:
    asked = client(f"unix:{directory}/p.sock")
    assert await problem(asked) == "there is no such socket"
    for body in (DOCUMENT, OTHER):
        app = web.Application()
        app.router.add_get("/api/v1/devices", answering(body))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, directory / "p.sock").start()
        assert await asked.fetch() is not None
        await runner.cleanup()
        (directory / "p.sock").unlink(missing_ok=True)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(directory / "p.sock"))
    left.close()
    assert await problem(asked) == "connection refused: nothing listens there"


async def test_who_refuses_and_who_is_somebody_else_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert await problem(client(f"http://127.0.0.1:{free.getsockname()[1]}")) == (
            "connection refused: nothing listens there"
        )
    async with serving(answering(b"<html>")) as url:
        assert (await problem(client(url))).startswith(
            "/api/v1/devices: expected the devices of a devicelens"
        )
        assert await problem(client(url + "elsewhere")) == "/api/v1/devices: 404 Not Found"

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/")

    async with serving(elsewhere) as url:
        assert await problem(client(url)) == "/api/v1/devices: 302 Found"


async def test_a_password_is_sent_and_never_shown() -> None:
    async def answer(request: web.Request) -> web.Response:
        known = request.headers.get("Authorization") == "Basic bmFtZTpzZWNyZXQ="
        return web.Response(body=DOCUMENT) if known else web.Response(status=401)

    async with serving(answer) as url:
        asked = client(url.replace("http://", "http://name:secret@"))
        assert await asked.fetch() is not None
        assert "secret" not in asked.source
        assert (
            await problem(client(url))
            == "/api/v1/devices: 401 Unauthorized: it requires a name and a password (--plugin.password-file)"
        )


@pytest.mark.parametrize("chunked", [False, True])
async def test_what_is_too_large_is_given_up(chunked: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if not chunked:
            return web.Response(body=b" " * 5000)
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 1000)

    async with serving(answer) as url:
        assert (await problem(client(url, limit=4096))).startswith("/api/v1/devices: found more than ")


async def test_what_is_compressed_is_not_opened() -> None:
    body = gzip.compress(b" " * 1_000_000)
    async with serving(answering(body, **{"Content-Encoding": "gzip"})) as url:
        assert "expected the devices of a devicelens plugin" in await problem(client(url))


async def test_who_is_slow_is_given_up() -> None:
    over = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        await over.wait()
        return web.Response()

    async def drips(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while not over.is_set():
            await response.write(b" ")
            await asyncio.sleep(0.01)
        return response

    for handler in (silent, drips):
        async with serving(handler) as url:
            assert await problem(client(url, within=0.2)) == "no answer within 0.2 s"
            over.set()
        over.clear()


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"]
)
async def test_what_is_no_http_is_said(answer: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert (await problem(client(url))).startswith("its answer is invalid: ")
