"""An application over real sockets: headers, refusals, errors, addresses, and a quick end."""

import asyncio
import errno
import logging
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from harness.stopwatch import Stopwatch
from runtime.flags import ListenAddress
from runtime.http.app import CONTENT_SECURITY_POLICY, application, json_response, problem
from runtime.http.server import serve
from runtime.process import Fatal

LIMIT = 20.0

URL = "http://devicelens"

EXPECTED_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def _text(_: web.Request) -> web.Response:
    return web.Response(text="well")


async def _document(_: web.Request) -> web.Response:
    return json_response({"b": [1, None], "a": "é"})


async def _broken(_: web.Request) -> web.Response:
    raise ValueError("secret of the process")


async def _elsewhere(_: web.Request) -> web.Response:
    raise web.HTTPFound("/text")


async def _busy(_: web.Request) -> web.Response:
    raise web.HTTPServiceUnavailable(text="too many listen already", headers={"Retry-After": "7"})


async def _stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first\n")
    await asyncio.Event().wait()
    return response


async def _broken_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first\n")
    raise ValueError("secret of the process")


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


async def _hanging(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    return web.Response()


LARGE = 8 * 1024 * 1024


async def _large(request: web.Request) -> web.Response:
    headers = {"ETag": '"1"'} if request.query else None
    return web.Response(body=bytes(LARGE), headers=headers)


def _app(**limits: Any) -> web.Application:
    app = application(**limits)
    for path, handler in {
        "/text": _text,
        "/api/document": _document,
        "/broken": _broken,
        "/api/broken": _broken,
        "/elsewhere": _elsewhere,
        "/api/busy": _busy,
        "/stream": _stream,
        "/broken-stream": _broken_stream,
        "/endless": _endless,
        "/hanging": _hanging,
        "/large": _large,
    }.items():
        app.router.add_get(path, handler)
    return app


@asynccontextmanager
async def serving(
    address: ListenAddress, caplog: pytest.LogCaptureFixture, **limits: Any
) -> AsyncGenerator[asyncio.Task[None]]:
    """Serve in a task, from the moment at which it listens."""
    caplog.set_level(logging.INFO, "devicelens")
    task = asyncio.create_task(serve(_app(**limits), address, purpose="tests"))
    try:
        async with asyncio.timeout(LIMIT):
            while not _urls(caplog) and not task.done():
                await asyncio.sleep(0.001)
        if task.done():
            await task
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _urls(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.devicelens_fields["url"] for record in caplog.records if record.message == "listening"]  # type: ignore[attr-defined]  # set by Log


@pytest.fixture
def path(sockets: Path) -> Path:
    return sockets / "http.sock"


@pytest.fixture
async def client(path: Path, caplog: pytest.LogCaptureFixture) -> AsyncGenerator[aiohttp.ClientSession]:
    async with (
        serving(ListenAddress(path=path), caplog),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
    ):
        yield session


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/text", 200),
        ("/api/document", 200),
        ("/elsewhere", 302),
        ("/missing", 404),
        ("/api/missing", 404),
        ("/broken", 500),
        ("/api/broken", 500),
        ("/api/busy", 503),
    ],
)
async def test_every_answer_has_the_safe_headers(
    method: str, target: str, status: int, client: aiohttp.ClientSession
) -> None:
    async with client.request(method, URL + target, allow_redirects=False) as answer:
        assert answer.status == status
        assert {name: answer.headers.get(name) for name in EXPECTED_HEADERS} == EXPECTED_HEADERS
        assert "aiohttp" not in answer.headers.get("Server", "")


async def test_a_stream_has_the_safe_headers_too(client: aiohttp.ClientSession) -> None:
    async with client.get(f"{URL}/stream") as answer:
        assert {name: answer.headers.get(name) for name in EXPECTED_HEADERS} == EXPECTED_HEADERS
        assert await answer.content.readline() == b"first\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize("target", ["/text", "/api/document", "/missing"])
async def test_nothing_but_get_and_head_is_served(
    method: str, target: str, client: aiohttp.ClientSession
) -> None:
    async with client.request(method, URL + target, data=b"x") as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        kind = "application/problem+json" if target.startswith("/api/") else "text/plain"
        assert answer.content_type == kind
        assert f"{method} is not served" in await answer.text()


async def test_an_error_under_api_is_a_problem_document(client: aiohttp.ClientSession) -> None:
    async with client.get(f"{URL}/api/missing") as answer:
        assert answer.content_type == "application/problem+json"
        document = await answer.json()
    assert document == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "404: Not Found",
    }


async def test_an_error_elsewhere_is_a_line_of_text(client: aiohttp.ClientSession) -> None:
    async with client.get(f"{URL}/missing") as answer:
        assert answer.content_type == "text/plain"
        assert await answer.text() == "404: Not Found\n"


async def test_an_error_keeps_the_headers_that_belong_to_it(client: aiohttp.ClientSession) -> None:
    async with client.get(f"{URL}/api/busy") as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "7"
        assert answer.content_type == "application/problem+json"
        assert (await answer.json())["detail"] == "too many listen already"


@pytest.mark.parametrize(
    ("target", "kind"), [("/broken", "text/plain"), ("/api/broken", "application/problem+json")]
)
async def test_a_handler_that_fails_is_logged_and_tells_the_client_nothing_of_it(
    target: str, kind: str, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.get(URL + target) as answer:
        assert answer.status == 500
        assert answer.content_type == kind
        assert "secret" not in await answer.text()
    (record,) = [record for record in caplog.records if record.message == "request failed"]
    fields: dict[str, str] = record.devicelens_fields  # type: ignore[attr-defined]  # set by Log
    assert fields["path"] == target
    assert "secret of the process" in fields["error"]
    async with client.get(f"{URL}/text") as answer:
        assert await answer.text() == "well"


async def test_a_stream_that_fails_is_cut_not_followed_by_another_answer(
    path: Path, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /broken-stream HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(LIMIT):
        received = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert received.endswith(b"\r\n\r\n6\r\nfirst\n\r\n")
    assert received.count(b"HTTP/1.1") == 1
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "request failed"
    ]


async def test_a_client_that_leaves_a_stream_is_no_error(
    path: Path, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
    await writer.drain()
    handlers = [task for task in asyncio.all_tasks() if "RequestHandler.start" in repr(task.get_coro())]
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(LIMIT):
        while any(not task.done() for task in handlers):
            await asyncio.sleep(0.001)
    async with client.get(f"{URL}/text") as answer:
        assert answer.status == 200
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET <script> HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: <script>\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 20_000 + b"\r\n\r\n",
        b"\r\n\r\n\x00\x00\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_without_markup_and_without_a_line_in_the_log(
    request_: bytes, path: Path, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request_)
    writer.write_eof()
    async with asyncio.timeout(LIMIT):
        received = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert received == b"" or re.match(rb"HTTP/1\.[01] (400|431) ", received)
    assert b"text/html" not in received
    async with client.get(f"{URL}/text") as answer:
        assert answer.status == 200
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def _ask(path: Path, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(path, limit=1024)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


async def test_a_client_that_does_not_read_is_cut_off(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ListenAddress(path=path), caplog, send_within=0.05):
        reader, writer = await _ask(path, "/large")
        async with asyncio.timeout(LIMIT):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            while [task for task in asyncio.all_tasks() if "RequestHandler.start" in repr(task.get_coro())]:
                await asyncio.sleep(0.001)
            with suppress(ConnectionResetError):
                assert len(await reader.read()) < 8 * 1024 * 1024
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_clients_that_do_not_read_leave_room_for_the_others(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(ListenAddress(path=path), caplog, budget=2 * LARGE),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
    ):
        slow = [await _ask(path, "/large") for _ in range(2)]
        for reader, _ in slow:
            async with asyncio.timeout(LIMIT):
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        async with session.get(f"{URL}/large") as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "5"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with session.head(f"{URL}/large") as answer:
            assert answer.status == 200
        async with session.get(f"{URL}/text") as answer:
            assert await answer.text() == "well"
        for _, writer in slow:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(LIMIT):
            while True:
                async with session.get(f"{URL}/large") as answer:
                    if answer.status == 200:
                        assert len(await answer.read()) == 8 * 1024 * 1024
                        break
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_equal_answers_share_one_body_of_the_budget(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ListenAddress(path=path), caplog, budget=LARGE):
        slow = [await _ask(path, "/large?a=1") for _ in range(3)]
        for reader, _ in slow:
            async with asyncio.timeout(LIMIT):
                assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        other, writer = await _ask(path, "/large?a=2")
        async with asyncio.timeout(LIMIT):
            assert await other.readline() == b"HTTP/1.1 503 Service Unavailable\r\n"
            received = await slow[0][0].readexactly(LARGE)
        assert received.startswith(b"Server: devicelens\r\n") or b"\r\n\r\n" in received
        for _, client in (*slow, (other, writer)):
            client.transport.abort()


def test_a_problem_may_carry_more_members() -> None:
    answer = problem(400, "no", parameter="state", expected=["held", "free"])
    assert answer.content_type == "application/problem+json"
    assert answer.body == (
        b'{"type":"about:blank","title":"Bad Request","status":400,"detail":"no",'
        b'"parameter":"state","expected":["held","free"]}'
    )


async def test_everywhere_is_both_families_on_one_port(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ListenAddress(), caplog), aiohttp.ClientSession() as session:
        (url,) = _urls(caplog)
        port = url.rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            async with session.get(f"http://{host}:{port}/text") as answer:
                assert await answer.text() == "well"


async def test_everywhere_is_ipv4_where_the_kernel_has_ipv6_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Without6(socket.socket):
        def bind(self, address: Any) -> None:
            if self.family is socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Without6)
    async with serving(ListenAddress(), caplog):
        (url,) = _urls(caplog)
        assert url.startswith("http://0.0.0.0:")


async def _refusal(address: ListenAddress) -> str:
    with pytest.raises(Fatal) as caught:
        async with asyncio.timeout(LIMIT):
            await serve(_app(), address, purpose="tests")
    return str(caught.value)


async def test_an_address_in_use_is_told_in_one_clear_line(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = ListenAddress("127.0.0.1", taken.getsockname()[1])
        message = await _refusal(address)
    assert message.startswith(f"--web.listen-address {address}: cannot listen: ")
    assert "address already in use" in message.lower()
    assert "\n" not in message


async def test_a_host_that_is_not_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await _refusal(ListenAddress("192.0.2.1", 9))).startswith(
        "--web.listen-address 192.0.2.1:9: cannot listen: "
    )
    long = "a" * 64
    assert f"--web.listen-address {long}:9: cannot listen: " in await _refusal(ListenAddress(long, 9))

    def unknown(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    # A resolver may take its time over a name that nobody has.
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert await _refusal(ListenAddress("no-such-host.invalid", 9)) == (
        "--web.listen-address no-such-host.invalid:9: cannot listen: Name or service not known"
    )


async def test_a_socket_that_nobody_serves_any_more_is_replaced(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    assert path.is_socket()
    async with (
        serving(ListenAddress(path=path), caplog),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.get(f"{URL}/text") as answer,
    ):
        assert await answer.text() == "well"


async def test_a_socket_that_is_served_is_left_alone(client: aiohttp.ClientSession, path: Path) -> None:
    assert await _refusal(ListenAddress(path=path)) == (
        f"--web.listen-address unix:{path}: another process serves it already"
    )
    async with client.get(f"{URL}/text") as answer:
        assert await answer.text() == "well"


async def test_a_file_in_the_way_is_left_alone(path: Path) -> None:
    path.write_text("precious", encoding="ascii")
    assert await _refusal(ListenAddress(path=path)) == (
        f"--web.listen-address unix:{path}: there is a file that is not a socket"
    )
    assert path.read_text(encoding="ascii") == "precious"


async def test_a_link_or_a_directory_in_the_way_is_left_alone(path: Path) -> None:
    path.symlink_to("/dev/null")
    assert "not a socket" in await _refusal(ListenAddress(path=path))
    assert path.is_symlink()
    path.unlink()
    path.mkdir()
    assert "not a socket" in await _refusal(ListenAddress(path=path))
    assert path.is_dir()


async def test_a_path_that_cannot_be_is_told(sockets: Path) -> None:
    missing = sockets / "missing" / "http.sock"
    assert await _refusal(ListenAddress(path=missing)) == (
        f"--web.listen-address unix:{missing}: cannot listen: No such file or directory"
    )
    assert "too long" in await _refusal(ListenAddress(path=sockets / ("x" * 120)))


async def test_the_socket_is_gone_after_the_end(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ListenAddress(path=path), caplog):
        assert path.is_socket()
    assert not path.exists()


async def test_the_end_leaves_a_socket_that_another_made_there_meanwhile(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ListenAddress(path=path), caplog):
        path.rename(path.with_suffix(".old"))
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


@pytest.mark.parametrize("target", ["/stream", "/endless", "/hanging", "/text"])
async def test_it_ends_quickly_whatever_its_clients_do(
    target: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ListenAddress(path=path), caplog) as task:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await writer.drain()
        if target != "/hanging":
            await reader.readuntil(b"\r\n\r\n")
        took = Stopwatch()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert took.seconds < 1.2
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
