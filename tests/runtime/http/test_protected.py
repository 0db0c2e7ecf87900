"""A server with a web configuration: TLS, renewed certificates, passwords, headers."""

import asyncio
import logging
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from harness.certificates import Certificates, hashed
from harness.stopwatch import Stopwatch
from harness.waiting import until, until_equal
from harness.web_clients import answer, close, rest, serving
from runtime.http.app import CONTENT_SECURITY_POLICY
from runtime.http.connection import ENDED, REFUSED, Traffic, WebFamilies

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
USERS = f"basic_auth_users: {{alice: {hashed('swordfish')}}}"
REQUIRED = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": "ca.crt"}


def login(name: str = "alice", password: str = "swordfish") -> bytes:
    return b"Authorization: Basic " + b64encode(f"{name}:{password}".encode()) + b"\r\n"


def by(line: bytes, request: bytes = LAST) -> bytes:
    """A request with a further header."""
    return request.replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n")


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def urls(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(r, "devicelens_fields", {})["url"] for r in caplog.records if r.message == "listening"]


async def test_it_speaks_tls_where_that_is_asked_for(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(caplog, made.configuration()) as served:
        assert urls(caplog) == [f"https://127.0.0.1:{served.port}"]
        reader, writer = await served.connect(made.context())
        writer.write(GET)
        assert (await answer(reader))[2] == b"well"
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        await close(writer)
    assert told(caplog) == []


@pytest.mark.parametrize("part", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00"])
async def test_tls_that_is_not_agreed_in_time_is_ended(
    part: bytes, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(caplog, made.configuration(), handshake_within=0.1) as served:
        assert await served.exchange(part) == b""
        assert served.traffic.ended == {"handshake": 1}

        async def connections() -> int:
            return served.traffic.connections

        await until_equal("nobody is left", connections, 0)
    assert told(caplog) == []


@pytest.mark.parametrize("garbage", [GET, b"\x16" + b"\xff" * 200, b"\x16\x03\x01\xff\xff" + b"\0" * 500])
async def test_garbage_instead_of_tls_is_ended_without_a_line(
    garbage: bytes, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(caplog, made.configuration(), handshake_within=0.2) as served:
        await served.exchange(garbage)
        assert served.traffic.ended == {"handshake": 1}
        assert (await served.exchange(LAST, made.context())).endswith(b"well")
    assert told(caplog) == []


async def test_who_has_not_agreed_on_tls_makes_room_too(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(caplog, made.configuration(), connections=5) as served:
        silent = [await served.connect() for _ in range(20)]
        assert (await served.exchange(LAST, made.context())).endswith(b"well")
        assert served.traffic.ended["crowded"] >= 16
        assert served.traffic.connections <= 5
        for _, writer in silent:
            await close(writer)


async def test_a_head_over_tls_has_its_time_as_well(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(caplog, made.configuration(), head_within=0.1) as served:
        assert (await served.exchange(GET[:9], made.context())).startswith(b"HTTP/1.1 408 ")


async def test_idle_tls_connections_take_little_memory(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    async with serving(caplog, made.configuration()) as served:
        context = made.context()
        kept = [await served.connect(context)]
        before = resident()
        kept += [await served.connect(context) for _ in range(40)]
        # Both ends are in this process. asyncio's own buffer alone would be 256 KiB of each.
        assert (resident() - before) / 40 < 300 * 1024
        for _, writer in kept:
            await close(writer)


async def test_clients_must_show_a_certificate_with_an_allowed_name(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = made.configuration(**REQUIRED, client_allowed_sans="[prometheus.example, 10.9.8.7]")
    stranger = Certificates(tmp_path / "other").client("prometheus.example")
    async with serving(caplog, file) as served:
        for name in ("prometheus.example", "10.9.8.7"):
            assert (await served.exchange(LAST, made.context(made.client(name)))).endswith(b"well")
        assert await served.exchange(LAST, made.context(made.client("grafana.example"))) == b""
        assert served.traffic.ended == {"certificate": 1}
        for context in (made.context(), made.context(stranger)):
            with suppress(ssl.SSLError):
                assert await served.exchange(LAST, context) == b""
        assert served.traffic.ended == {"certificate": 1, "handshake": 2}
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.message == "client certificates without an allowed name"
    assert getattr(record, "devicelens_fields", {}) == {"reason": "names: grafana.example"}


async def test_renewed_certificates_are_for_new_connections_and_no_request_fails(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """Certificates are renewed again and again under load; connections that are open stay."""
    file = made.configuration()
    asked = 0
    stop = asyncio.Event()
    async with serving(caplog, file) as served:
        assert served.config is not None
        url = f"https://localhost:{served.port}/"

        async def ask(*, keep: bool) -> None:
            nonlocal asked
            connector = aiohttp.TCPConnector(
                ssl=made.context(), force_close=not keep, family=socket.AF_INET, limit=1
            )
            async with aiohttp.ClientSession(connector=connector) as session:
                while not stop.is_set():
                    async with session.get(url) as got:
                        assert (got.status, await got.text()) == (200, "well")
                    asked += 1

        reader, writer = await served.connect(made.context())
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        old = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        async with asyncio.TaskGroup() as group:
            for keep in (True, True, False, False):
                group.create_task(ask(keep=keep))
            for _ in range(8):
                before = served.config.policy.tls
                made.renew()
                await served.config.reload()
                assert served.config.policy.tls is not before
                count = asked

                async def more(count: int = count) -> bool:
                    return asked >= count + 8

                await until("requests go on", more)
            stop.set()
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        other_reader, other = await served.connect(made.context())
        assert other.get_extra_info("ssl_object").getpeercert(binary_form=True) != old
        assert old != b""
        for open_ in (writer, other):
            await close(open_)
        del other_reader
    assert asked > 60
    assert told(caplog) == []


async def test_another_authority_of_clients_is_for_new_connections(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Certificates(tmp_path / "other")
    mine, theirs = made.client("a.example"), other.client("a.example")
    trusting_made = made.context(theirs)
    async with serving(caplog, made.configuration(**REQUIRED)) as served:
        assert served.config is not None
        reader, writer = await served.connect(made.context(mine))
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        other.authority.cert_pem.write_to_path(str(made.path("ca.crt")))
        await served.config.reload()
        assert (await served.exchange(LAST, trusting_made)).endswith(b"well")
        context = ssl.create_default_context(cadata=made.authority.cert_pem.bytes().decode())
        context.load_cert_chain(mine)
        with suppress(ssl.SSLError):
            assert await served.exchange(LAST, context) == b""
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        await close(writer)


@pytest.mark.parametrize("target", [b"/", b"/missing", b"/api/v1", b"/stream", b"/-/healthy"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST", b"OPTIONS"])
async def test_nothing_is_answered_without_a_password(
    target: bytes, method: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(USERS)
    async with serving(caplog, file) as served:
        for line in (b"", login(password="Swordfish"), login("bob"), b"Authorization: Bearer swordfish\r\n"):
            request = by(line, method + b" " + target + LAST[5:])
            received = await served.exchange(request)
            assert received.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
            assert b'\r\nWWW-Authenticate: Basic realm="devicelens", charset="UTF-8"\r\n' in received
            kind = b"application/problem+json" if target.startswith(b"/api") else b"text/plain"
            assert b"\r\nContent-Type: " + kind in received
            assert CONTENT_SECURITY_POLICY.encode() in received
        assert served.traffic.refused == {"missing": 2, "wrong": 2}
    assert "swordfish" not in caplog.text.lower()


async def test_with_a_password_all_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(USERS)
    async with serving(caplog, file) as served:
        assert urls(caplog) == [f"http://127.0.0.1:{served.port}"]
        assert (await served.exchange(by(login()))).endswith(b"well")
        assert (await served.exchange(by(login(), LAST.replace(b"/ ", b"/missing ")))).startswith(
            b"HTTP/1.1 404 "
        )
        assert (await served.exchange(by(login(), LAST.replace(b"GET", b"POST")))).startswith(
            b"HTTP/1.1 405 "
        )
        assert served.traffic.refused == {}


async def test_users_change_under_open_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(USERS)
    async with serving(caplog, file) as served:
        assert served.config is not None
        reader, writer = await served.connect()
        writer.write(by(login(), GET))
        assert (await answer(reader))[0] == 200
        file.write_text(f"basic_auth_users: {{bob: {hashed('b')}}}")
        await served.config.reload()
        writer.write(by(login(), GET))
        assert (await answer(reader))[0] == 401
        writer.write(by(login("bob", "b"), GET))
        assert (await answer(reader))[0] == 200
        await close(writer)


async def test_a_flood_of_wrong_passwords_leaves_those_known_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "web.yaml"
    # Dear enough to make the flood wait for it.
    file.write_text(f"basic_auth_users: {{alice: {hashed('swordfish', 10)}}}")
    async with serving(caplog, file) as served:
        assert (await served.exchange(by(login()))).endswith(b"well")
        flood = [asyncio.create_task(served.exchange(by(login(password=f"wrong-{n}")))) for n in range(30)]

        async def is_busy() -> bool:
            return served.traffic.refused["busy"] > 0

        await until("the flood is refused", is_busy)
        took = Stopwatch()
        for _ in range(5):
            assert (await served.exchange(by(login()))).endswith(b"well")
        assert took.seconds < 2
        for received in await asyncio.gather(*flood):
            status = received.split(b" ")[1]
            assert status in {b"401", b"429"}
            if status == b"429":
                assert b"\r\nRetry-After: 1\r\n" in received


async def test_headers_take_the_place_of_ours_on_every_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(
        USERS
        + """
http_server_config:
  headers:
    Content-Security-Policy: "default-src 'self'"
    X-Frame-Options: sameorigin
    X-XSS-Protection: "1; mode=block"
    Strict-Transport-Security: max-age=31536000
"""
    )
    async with serving(caplog, file) as served:
        assert served.config is not None
        for request in (by(login()), LAST, by(login(), LAST.replace(b"/ ", b"/nowhere "))):
            received = await served.exchange(request)
            assert received.count(b"\r\nContent-Security-Policy: default-src 'self'\r\n") == 1
            assert received.count(b"\r\nX-Frame-Options: sameorigin\r\n") == 1
            assert b"\r\nX-XSS-Protection: 1; mode=block\r\n" in received
            assert b"\r\nStrict-Transport-Security: max-age=31536000\r\n" in received
            assert b"\r\nX-Content-Type-Options: nosniff\r\n" in received
            assert b"\r\nReferrer-Policy: no-referrer\r\n" in received
        file.write_text(USERS + '\nhttp_server_config: {headers: {Content-Security-Policy: ""}}')
        await served.config.reload()
        received = await served.exchange(by(login()))
        assert b"Content-Security-Policy" not in received
        assert b"Strict-Transport-Security" not in received
        assert b"\r\nX-Frame-Options: DENY\r\n" in received


async def test_a_unix_socket_is_protected_as_well(
    made: Certificates, sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = sockets / "x.sock"
    async with serving(caplog, made.configuration(USERS), path=path):
        reader, writer = await asyncio.open_unix_connection(
            path, ssl=made.context(), server_hostname="localhost"
        )
        writer.write(GET)
        assert (await answer(reader))[0] == 401
        writer.write(by(login()))
        assert (await rest(reader)).endswith(b"well")
        await close(writer)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        assert await rest(reader) == b""
        await close(writer)


@pytest.mark.parametrize("state", ["silent", "handshake", "idle", "/stream", "/hanging"])
async def test_it_ends_quickly_with_tls_too(
    state: str, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(caplog, made.configuration()) as served:
        tls = None if state in {"silent", "handshake"} else made.context()
        reader, writer = await served.connect(tls)
        match state:
            case "silent":
                pass
            case "handshake":
                writer.write(b"\x16\x03\x01")
            case "idle":
                writer.write(GET)
                await answer(reader)
            case target:
                writer.write(GET.replace(b"/ ", target.encode() + b" "))
                await asyncio.sleep(0.05)
        took = Stopwatch()
        served.task.cancel()
        await asyncio.gather(served.task, return_exceptions=True)
        assert took.seconds < 1.2
        assert served.traffic.connections == 0
        await rest(reader)
        await close(writer)
    assert told(caplog) == []


def test_every_reason_is_counted_from_the_beginning() -> None:
    families = {family.name: family for family in WebFamilies("x", Traffic()).collect()}
    for name, reasons in (("x_web_connections_ended", ENDED), ("x_web_requests_refused", REFUSED)):
        assert [s.labels["reason"] for s in families[name].samples] == list(reasons)
    traffic = Traffic()
    web = WebFamilies("x", traffic)
    before = web.condition()
    assert web.condition() == before
    traffic.ended["crowded"] += 1
    assert web.condition() != before
