"""An application over real sockets: headers, refusals, errors, bounded answers, addresses, and the end."""

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from harness.certificates import Certificates
from harness.waiting import until_holds
from harness.web_clients import GET, LARGE, LIMIT, Served, answer, close, rest, serving
from runtime.flags import ListenAddress
from runtime.http.app import CONTENT_SECURITY_POLICY, application, problem
from runtime.http.bodies import AnswerBudget, AnswerWorker, Body
from runtime.http.server import serve
from runtime.process import Fatal

EXPECTED_HEADERS = {
    "Server": "devicelens",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

TEXT = "text/plain"
PROBLEM = "application/problem+json"


@pytest.fixture
def path(sockets: Path) -> Path:
    return sockets / "http.sock"


@pytest.fixture
async def served() -> AsyncGenerator[Served]:
    async with serving() as it:
        yield it


def _request(target: str, method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize(
    ("target", "status", "kind", "detail"),
    [
        ("/", 200, TEXT, "well"),
        ("/api/v1", 200, "application/json", "{}"),
        ("/elsewhere", 302, TEXT, "302: Found"),
        ("/missing", 404, TEXT, "404: Not Found\n"),
        ("/api/missing", 404, PROBLEM, '"title":"Not Found","status":404,"detail":"404: Not Found"}'),
        ("/broken", 500, TEXT, "the request could not be answered; the log says why\n"),
        ("/api/broken", 500, PROBLEM, '"detail":"the request could not be answered; the log says why"}'),
        ("/api/busy", 503, PROBLEM, '"detail":"too many listen already"}'),
    ],
)
async def test_every_answer_has_its_status_form_and_headers(
    method: str, target: str, status: int, *, kind: str, detail: str, served: Served
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, served.url + target, allow_redirects=False) as got,
    ):
        if method not in {"GET", "HEAD"}:
            status, detail = 405, f"{method} is not served: nothing changes state over HTTP"
            kind = PROBLEM if target.startswith("/api/") else TEXT
            assert got.headers["Allow"] == "GET, HEAD"
        text = await got.text()
        assert (got.status, got.content_type) == (status, kind)
        assert method == "HEAD" or detail in text
        assert {name: got.headers.get(name) for name in EXPECTED_HEADERS} == EXPECTED_HEADERS
        if status == 503:
            assert got.headers["Retry-After"] == "7"
        if status == 500:
            served.warned = "request failed"


async def test_a_handler_that_fails_is_logged(served: Served) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{served.url}/broken") as got:
        assert got.status == 500
    served.warned = "request failed"
    assert getattr(served.warnings[0], "devicelens_fields", {}) == {
        "path": "/broken",
        "error": "ValueError: secret of the process",
    }


async def test_a_stream_that_fails_is_cut(served: Served) -> None:
    received = await served.exchange(_request("/broken-stream"))
    for name, value in EXPECTED_HEADERS.items():
        assert f"\r\n{name}: {value}\r\n".encode() in received
    assert received.endswith(b"\r\n\r\n6\r\nfirst\n\r\n")
    assert received.count(b"HTTP/1.1") == 1
    served.warned = "request failed"


def _handlers() -> list["asyncio.Task[Any]"]:
    return [task for task in asyncio.all_tasks() if "RequestHandler.start" in repr(task.get_coro())]


async def _no_handler_is_left() -> None:
    async with asyncio.timeout(LIMIT):
        while _handlers():
            await asyncio.sleep(0.001)


async def test_a_client_that_leaves_a_stream_is_no_error(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(_request("/endless"))
    await reader.readuntil(b"first\n")
    await close(writer)
    await _no_handler_is_left()


async def _ask(path: Path, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A client that reads only the status line."""
    reader, writer = await asyncio.open_unix_connection(path, limit=1024)
    writer.write(_request(target))
    async with asyncio.timeout(LIMIT):
        return reader, writer, await reader.readline()


async def test_a_client_that_does_not_read_is_cut_off(path: Path) -> None:
    async with serving(path=path, answers={"send_within": 0.05}):
        reader, writer, status = await _ask(path, "/large")
        assert status == b"HTTP/1.1 200 OK\r\n"
        await _no_handler_is_left()
        assert len(await rest(reader)) < LARGE
        await close(writer)


async def test_an_answer_under_way_is_not_made_again() -> None:
    answers, made = AnswerBudget(1 << 20), list[bytes]()
    worker = AnswerWorker(answers)

    def make() -> Body:
        made.append(b"x" * 100)
        return Body((made[-1],))

    async def client(*, stays: bool) -> bytes:
        request: Any = SimpleNamespace(transport=SimpleNamespace(is_closing=lambda: not stays))
        body = await worker.body(request, "key", make)
        with answers.sending(body) as admitted:
            assert admitted
            sending.append(body)
            await taken.wait()
            return body.pieces[0]

    taken, sending = asyncio.Event(), list[Body]()
    clients = [asyncio.create_task(client(stays=True)) for _ in range(8)]
    await until_holds(lambda: len(sending) == len(clients))
    taken.set()
    assert len(set(map(id, await asyncio.gather(*clients)))) == 1
    assert len(made) == 1
    with pytest.raises(ConnectionError):
        await client(stays=False)
    assert len(made) == 1
    await client(stays=True)
    assert len(made) == 2, "what was sent is not kept: its age would be wrong"


def test_a_piece_that_answers_share_counts_once_for_the_budget() -> None:
    budget, shared, more = AnswerBudget(250), bytes(200), [bytes(30) + b"1", bytes(30) + b"2"]
    with budget.sending(Body((shared, more[0]))) as first, budget.sending(Body((shared,))) as second:
        assert first
        assert second
        with budget.sending(Body((shared, more[1]))) as third:
            assert not third, "the pieces of both are 262 bytes"
    with budget.sending(Body((shared, more[1]))) as third:
        assert third
    with budget.sending(Body((bytes(1000),))) as alone:
        assert alone, "one answer is always sent"


async def test_large_answers_have_a_budget_that_equal_ones_share(path: Path) -> None:
    async with serving(path=path, answers={"budget": 2 * LARGE}):
        slow = [await _ask(path, target) for target in ("/large", "/large?a=1", "/large?a=1", "/large?a=1")]
        assert [status for _, _, status in slow] == [b"HTTP/1.1 200 OK\r\n"] * 4
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession("http://devicelens", connector=connector) as session:
            async with session.get("/large?a=2") as got:
                assert (got.status, got.headers["Retry-After"]) == (503, "5")
                assert got.headers["X-Content-Type-Options"] == "nosniff"
            async with session.head("/large") as got:
                assert got.status == 200
            async with session.get("/") as got:
                assert await got.text() == "well"
            # A client that reads gets the whole body, and gives its part of the budget back.
            received = await slow[1][0].readexactly(LARGE)
            assert b"\r\n\r\n" in received
            for _, writer, _ in slow:
                await close(writer)
            async with asyncio.timeout(LIMIT):
                while True:
                    async with session.get("/large") as got:
                        if got.status == 200:
                            assert len(await got.read()) == LARGE
                            break


def test_a_problem_may_carry_more_members() -> None:
    made = problem(400, "no", parameter="state", expected=["held", "free"])
    assert made.content_type == PROBLEM
    assert made.body == (
        b'{"type":"about:blank","title":"Bad Request","status":400,"detail":"no",'
        b'"parameter":"state","expected":["held","free"]}'
    )


async def test_an_address_without_a_host_is_both_families_on_one_port() -> None:
    async with serving(address=ListenAddress()) as served, aiohttp.ClientSession() as session:
        for host in ("127.0.0.1", "[::1]") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            async with session.get(f"http://{host}:{served.port}/") as got:
                assert await got.text() == "well"


async def test_an_address_without_a_host_is_ipv4_where_the_kernel_has_ipv6_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Without6(socket.socket):
        def bind(self, address: Any) -> None:
            if self.family is socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Without6)
    async with serving(address=ListenAddress()) as served:
        assert served.listening[0].startswith("http://0.0.0.0:")


async def _refusal(address: ListenAddress) -> str:
    with pytest.raises(Fatal) as caught:
        async with asyncio.timeout(LIMIT):
            await serve(application(), address, purpose="tests")
    text = str(caught.value)
    assert text.startswith(f"--web.listen-address {address}: ")
    assert "\n" not in text
    return text.removeprefix(f"--web.listen-address {address}: ")


async def test_an_address_that_cannot_be_used_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = await _refusal(ListenAddress("127.0.0.1", taken.getsockname()[1]))
        assert message.lower().endswith("address already in use")
    assert (await _refusal(ListenAddress("192.0.2.1", 9))).startswith("cannot listen: ")
    assert (await _refusal(ListenAddress("a" * 64, 9))).startswith("cannot listen: no host's name: ")

    def unknown(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    # A resolver may take its time over a name that nobody has.
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert (
        await _refusal(ListenAddress("no-such-host.invalid", 9)) == "cannot listen: Name or service not known"
    )


NO_SOCKETS: dict[str, Callable[[Path], object]] = {
    "file": lambda path: path.write_text("precious"),
    "link": lambda path: path.symlink_to("/dev/null"),
    "directory": Path.mkdir,
}


@pytest.mark.parametrize("make", NO_SOCKETS.values(), ids=NO_SOCKETS)
async def test_a_path_that_is_no_socket_is_left_alone(make: Callable[[Path], object], path: Path) -> None:
    make(path)
    before = path.lstat()
    assert await _refusal(ListenAddress(path=path)) == "there is a file that is not a socket"
    assert path.lstat() == before


async def test_a_path_that_cannot_be_a_socket_is_refused(sockets: Path) -> None:
    missing = ListenAddress(path=sockets / "missing" / "http.sock")
    assert await _refusal(missing) == "cannot listen: No such file or directory"
    assert "too long" in await _refusal(ListenAddress(path=sockets / ("x" * 120)))


async def test_a_socket_is_replaced_unless_it_is_served_and_removed_in_the_end(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    async with serving(path=path) as served:
        assert await _refusal(ListenAddress(path=path)) == "another process serves it already"
        reader, writer = await served.connect()
        writer.write(GET)
        assert (await answer(reader))[2] == b"well"
        await close(writer)
    assert not path.exists()


async def test_a_socket_that_another_process_has_put_there_is_left_in_the_end(path: Path) -> None:
    async with serving(path=path):
        path.rename(path.with_suffix(".old"))
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("sent", ["", "\x16\x03\x01", "/", "/stream", "/endless", "/hanging"])
async def test_the_end_does_not_wait_for_clients(sent: str, tls: bool, tmp_path: Path) -> None:
    """aiohttp itself would wait for a minute, which is longer than LIMIT."""
    made = Certificates(tmp_path)
    async with serving(made.configuration() if tls else None) as served:
        reader, writer = await served.connect(made.context() if tls and sent.startswith("/") else None)
        writer.write(_request(sent) if sent.startswith("/") else sent.encode())
        if sent not in {"", "\x16\x03\x01", "/hanging"}:
            await reader.readuntil(b"\r\n\r\n")
        served.task.cancel()
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(served.task, return_exceptions=True)
        assert served.traffic.connections == 0
        with suppress(ConnectionError):
            await rest(reader)
        await close(writer)
