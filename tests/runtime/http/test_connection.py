"""Hostile and careless clients: what they may take, and what is left for others."""

import asyncio
import os
import resource
import socket
import struct
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import web

from harness import web_clients
from harness.waiting import background, until_equal
from harness.web_clients import GET, LAST, Served, answer, close, rest, serving
from runtime.http.connection import Connection, ConnectionTable, Traffic

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(served: Served, count: int, sent: bytes = b"") -> AsyncGenerator[list[Client]]:
    """So many connections, each of which has sent something."""
    clients: list[Client] = []
    try:
        for _ in range(count):
            clients.append(await served.connect())
            clients[-1][1].write(sent)
        yield clients
    finally:
        for _, writer in clients:
            await close(writer)


async def open_is(served: Served, count: int) -> None:
    async def seen() -> int:
        return served.traffic.connections

    await until_equal("open connections", seen, count)


@pytest.mark.parametrize(
    "part", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\nX: " + b"y" * 5000]
)
async def test_a_request_that_does_not_arrive_in_time_is_refused(part: bytes) -> None:
    async with serving(head_within=0.5) as served:
        received = await served.exchange(part)
        assert served.traffic.ended == {"head_late": 1}
        if part:
            assert received.startswith(b"HTTP/1.1 408 Request Timeout\r\nServer: devicelens\r\n")
            assert b"\r\nConnection: close\r\n" in received
        else:
            # Browsers open connections that they may need: nothing was asked, nothing is answered.
            assert received == b""
        await open_is(served, 0)


async def _trickle(served: Served, parts: Iterable[bytes], pause: float) -> tuple[int, bytes]:
    """Send `parts` one by one until the server ends the connection: bytes sent, and the answer."""
    reader, writer = await served.connect()
    receiving = asyncio.create_task(rest(reader))
    sent = 0
    with suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            sent += len(part)
            await asyncio.wait([receiving], timeout=pause)
            if receiving.done():
                break
    received = await receiving
    await close(writer)
    return sent, received


async def test_a_byte_now_and_then_gives_no_more_time() -> None:
    async with serving(head_within=0.3) as served:
        sent, received = await _trickle(served, (bytes((byte,)) for byte in GET), 0.04)
        assert received.startswith(b"HTTP/1.1 408 ")
        assert sent < len(GET)


async def test_a_head_is_bounded_in_all_whatever_its_parts_are() -> None:
    async with serving() as served:
        parts = (b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(90))
        sent, received = await _trickle(served, (GET[:-2], *parts), 0.002)
        assert sent < 60_000
        assert received == b"" or received.startswith(b"HTTP/1.1 431 ")
        assert served.traffic.ended == {"head_large": 1}


async def test_time_begins_with_the_first_byte_of_each_request() -> None:
    async with serving(head_within=0.5) as served:
        reader, writer = await served.connect()
        for _ in range(2):
            writer.write(GET)
            assert (await answer(reader))[0] == 200
            # Idle between requests for longer than a head may take.
            idle, other = await served.connect()
            assert await rest(idle) == b""
            await close(other)
        writer.write(GET[:9])
        assert (await rest(reader)).startswith(b"HTTP/1.1 408 ")
        await close(writer)


@pytest.mark.parametrize("second", [b"G", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_the_beginning_of_a_request_behind_another_has_its_time_too(second: bytes) -> None:
    async with serving(head_within=0.5) as served:
        received = await served.exchange(GET + second)
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"wellHTTP/1.1 408 " in received


async def test_an_idle_connection_is_ended() -> None:
    async with serving(keep_alive=0.5) as served:
        received = await served.exchange(GET)
        assert received.endswith(b"well")
        assert served.traffic.ended == {}


async def test_a_long_answer_has_all_the_time() -> None:
    async with serving(head_within=0.5, keep_alive=0.5) as served:
        reader, writer = await served.connect()
        writer.write(GET.replace(b"/ ", b"/hanging "))
        idle, other = await served.connect()
        assert await rest(idle) == b""
        served.release.set()
        assert (await answer(reader))[2] == b"at last"
        await close(writer)
        await close(other)


def _headers(count: int, size: int) -> bytes:
    return b"".join(b"X-%d: %s\r\n" % (n, b"y" * size) for n in range(count))


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"x" * 8000 + b" HTTP/1.1\r\nHost: x\r\n", 404),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + _headers(1, 8000), 200),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + _headers(1, 9000), 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + _headers(80, 10), 200),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + _headers(200, 10), 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET <script>alert(1)</script> HTTP/9.9\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: <script>\r\nContent-Length: -1\r\n", 400),
        (b"\r\n\r\n\x00\x00", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64), 400),
    ],
)
async def test_bytes_that_are_no_request_are_refused_without_an_echo(head: bytes, status: int) -> None:
    async with serving() as served:
        received = await served.exchange(head + b"Connection: close\r\n\r\n")
        assert received.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.0 %d " % status))
        assert b"\r\nServer: devicelens\r\n" in received
        assert b"\r\nX-Content-Type-Options: nosniff\r\n" in received
        assert b"\r\nContent-Security-Policy: default-src 'none'" in received
        assert b"<script>" not in received
        assert b"text/html" not in received
        assert b"aiohttp" not in received.lower()
        assert (await served.exchange(GET * 40 + LAST)).count(b"well") == 41


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nabc", 405),
        (b"POST /api/v1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\nabc", 405),
    ],
)
async def test_bodies_are_refused_and_not_waited_for(request_: bytes, status: int) -> None:
    async with serving() as served:
        # `exchange` waits for the end of the connection, which the body must not delay.
        received = await served.exchange(request_)
        assert received.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nConnection: close\r\n" in received
        await open_is(served, 0)


@pytest.mark.parametrize("sent", [b"", GET, GET[:9], b"/stream", b"/hanging"])
async def test_many_connections_of_one_address_leave_room_for_probes(sent: bytes) -> None:
    request = GET.replace(b"/ ", sent + b" ") if sent.startswith(b"/") else sent
    async with serving(connections=64, per_address=32) as served, connected(served, 64, request):
        for address in ("127.0.0.2", "127.0.0.1") * 4:  # the kubelet's probes may come from the same address
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=(address, 0))
            writer.write(LAST)
            assert (await rest(reader)).endswith(b"well")
            await close(writer)
        assert served.traffic.connections <= 64
        assert served.traffic.ended["crowded"] > 32
        served.warned = "connection limit reached, the least recently used are closed"


async def test_pipelined_requests_are_not_read_before_they_are_answered() -> None:
    async with serving() as served:
        _, writer = await served.connect()
        writer.write(GET.replace(b"/ ", b"/hanging "))
        sent = 0
        with suppress(TimeoutError):
            while True:
                writer.write(GET * 1000)
                sent += 1000 * len(GET)
                async with asyncio.timeout(0.2):
                    await writer.drain()
        # Kernel buffers of both ends, and one head here.
        assert sent < 16 << 20
        assert (await served.exchange(LAST)).endswith(b"well")
        writer.transport.abort()


async def test_a_connection_has_one_request_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, turns = 0, list[int]()

    async def turning() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def noted(_: web.Request) -> web.Response:
        turns.append(turn)
        return web.Response(text="well")

    monkeypatch.setitem(web_clients.ROUTES, "/", noted)
    async with background(turning()), serving() as served:
        assert (await served.exchange(GET * 20 + LAST)).count(b"well") == 21
    assert len(set(turns)) == 21


async def test_requests_that_a_client_queues_do_not_make_its_connection_newer() -> None:
    queued = GET.replace(b"/ ", b"/hanging ") + GET
    async with (
        serving(per_address=2) as served,
        connected(served, 1, queued) as [(first, _)],
        connected(served, 1, GET) as [(second, writer)],
    ):
        assert (await answer(second))[0] == 200
        served.release.set()
        for _ in range(2):
            assert (await answer(first))[0] == 200
        assert (await served.exchange(LAST)).endswith(b"well")
        assert await rest(first) == b""
        writer.write(GET)
        assert (await answer(second))[0] == 200
        served.warned = "connection limit reached, the least recently used are closed"


async def test_clients_that_reset_leave_nothing() -> None:
    async with serving() as served:
        for sent in (b"", GET, GET[:9], GET * 20):
            sock = socket.create_connection(("127.0.0.1", served.port))
            sock.sendall(sent)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        await open_is(served, 0)


@pytest.fixture
def few_descriptors() -> Iterator[list[int]]:
    """A limit near what is open now; the list takes what is to be closed in the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    yield taken
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for descriptor in taken:
        os.close(descriptor)


async def test_without_descriptors_connections_wait_and_one_line_is_logged(
    few_descriptors: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    failures: list[float] = []
    not_accepted = ConnectionTable.not_accepted

    def counted(table: ConnectionTable, reason: str) -> None:
        failures.append(loop.time())
        not_accepted(table, reason)

    monkeypatch.setattr(ConnectionTable, "not_accepted", counted)
    async with serving() as served:
        # A client of this same process needs a descriptor too: it has it already.
        waiting = socket.socket()
        waiting.setblocking(False)
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 16, hard))
        with suppress(OSError):
            while True:
                few_descriptors.append(os.dup(0))
        await loop.sock_connect(waiting, ("127.0.0.1", served.port))
        await loop.sock_sendall(waiting, LAST)
        async with asyncio.timeout(20):
            while not failures or failures[-1] < failures[0] + 0.5:  # asyncio tries again after a second
                await asyncio.sleep(0.01)
        os.close(few_descriptors.pop())
        os.close(few_descriptors.pop())
        async with asyncio.timeout(20):
            assert (await loop.sock_recv(waiting, 65536)).endswith(b"well")
        waiting.close()
        served.warned = "connections cannot be accepted"


def test_room_is_made_by_the_least_recently_used_of_the_address_with_the_most() -> None:
    traffic = Traffic()
    table = ConnectionTable(traffic, 6, 4)
    connections = {name: Mock(Connection, address="two" if name in "fgh" else "one") for name in "abcdefgh"}

    def aborted() -> str:
        return "".join(name for name, connection in connections.items() if connection.abort.called)

    for name in "abcd":
        table.add(connections[name])
    table.used(connections["a"])
    table.add(connections["e"])
    assert aborted() == "b"
    table.add(connections["f"])
    table.add(connections["g"])
    assert (aborted(), traffic.connections) == ("b", 6)
    table.add(connections["h"])
    assert aborted() == "bc"
    table.remove(connections["c"])  # its own end comes later
    assert traffic.connections == 6
    for name in "adefgh":
        table.remove(connections[name])
    assert traffic.connections == 0
    assert traffic.ended == {"crowded": 2}
