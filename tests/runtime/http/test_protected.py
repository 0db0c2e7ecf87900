"""A server with a web configuration: TLS, renewed certificates, passwords, headers."""

import asyncio
import ssl
import threading
from base64 import b64encode
from contextlib import suppress
from pathlib import Path

import bcrypt
import pytest

from harness.certificates import Certificates, hashed
from harness.waiting import until, until_equal
from harness.web_clients import GET, LAST, answer, close, rest, serving
from runtime.http.connection import ENDED, REFUSED, Traffic, WebFamilies

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


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "web.yaml"
    file.write_text(USERS)
    return file


async def test_tls_is_served(made: Certificates) -> None:
    async with serving(made.configuration(), head_within=0.5) as served:
        assert served.listening == [f"https://127.0.0.1:{served.port}"]
        reader, writer = await served.connect(made.context())
        writer.write(GET)
        assert (await answer(reader))[2] == b"well"
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        await close(writer)
        # A head over TLS has its time as well.
        assert (await served.exchange(GET[:9], made.context())).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01\x00",
        GET,
        b"\x16" + b"\xff" * 200,
        b"\x16\x03\x01\xff\xff" + b"\0" * 500,
    ],
)
async def test_a_handshake_that_fails_or_takes_too_long_is_ended_without_a_warning(
    part: bytes, made: Certificates
) -> None:
    async with serving(made.configuration(), handshake_within=0.1) as served:
        received = await served.exchange(part)
        assert b"HTTP" not in received
        assert served.traffic.ended == {"handshake": 1}

        async def connections() -> int:
            return served.traffic.connections

        await until_equal("no connection is left", connections, 0)


async def test_a_connection_without_a_handshake_makes_room_too(made: Certificates) -> None:
    async with serving(made.configuration(), connections=5) as served:
        silent = [await served.connect() for _ in range(20)]
        assert (await served.exchange(LAST, made.context())).endswith(b"well")
        assert served.traffic.ended["crowded"] >= 16
        assert served.traffic.connections <= 5
        served.warned = "connection limit reached, the least recently used are closed"
        for _, writer in silent:
            await close(writer)


async def test_idle_tls_connections_take_little_memory(made: Certificates) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    async with serving(made.configuration()) as served:
        context = made.context()
        kept = [await served.connect(context)]
        before = resident()
        kept += [await served.connect(context) for _ in range(40)]
        # Both ends are in this process. asyncio's own buffer alone would be 256 KiB of each.
        assert (resident() - before) / 40 < 300 * 1024
        for _, writer in kept:
            await close(writer)


async def test_clients_need_a_certificate_with_an_allowed_name(made: Certificates, tmp_path: Path) -> None:
    file = made.configuration(**REQUIRED, client_allowed_sans="[prometheus.example, 10.9.8.7]")
    stranger = Certificates(tmp_path / "other").client("prometheus.example")
    async with serving(file) as served:
        for name in ("prometheus.example", "10.9.8.7"):
            assert (await served.exchange(LAST, made.context(made.client(name)))).endswith(b"well")
        assert await served.exchange(LAST, made.context(made.client("grafana.example"))) == b""
        assert served.traffic.ended == {"certificate": 1}
        for context in (made.context(), made.context(stranger)):
            with suppress(ssl.SSLError):
                assert await served.exchange(LAST, context) == b""
        assert served.traffic.ended == {"certificate": 1, "handshake": 2}
        served.warned = "client certificates without an allowed name"
        assert getattr(served.warnings[0], "devicelens_fields", {}) == {"reason": "names: grafana.example"}


async def test_renewed_certificates_are_for_new_connections(made: Certificates) -> None:
    async with serving(made.configuration()) as served:
        assert served.config is not None
        shown: list[bytes] = []
        for _ in range(2):
            reader, writer = await served.connect(made.context())
            shown.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
            made.renew()
            await served.config.reload()
            writer.write(GET)
            assert (await answer(reader))[0] == 200, "an open connection goes on"
            await close(writer)
        assert shown[0] != shown[1]


@pytest.mark.parametrize("target", [b"/", b"/missing", b"/api/v1", b"/stream"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST"])
async def test_nothing_is_answered_without_a_password(
    target: bytes, method: bytes, users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(users) as served:
        for line in (b"", login(password="Swordfish"), login("bob"), b"Authorization: Bearer swordfish\r\n"):
            received = await served.exchange(by(line, method + b" " + target + LAST[5:]))
            assert received.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
            assert b'\r\nWWW-Authenticate: Basic realm="devicelens", charset="UTF-8"\r\n' in received
            kind = b"application/problem+json" if target.startswith(b"/api") else b"text/plain"
            assert b"\r\nContent-Type: " + kind in received
            assert b"\r\nReferrer-Policy: no-referrer\r\n" in received
        assert served.traffic.refused == {"missing": 2, "wrong": 2}
    assert "swordfish" not in caplog.text.lower()


async def test_users_change_under_open_connections(users: Path) -> None:
    async with serving(users) as served:
        assert served.config is not None
        assert served.listening == [f"http://127.0.0.1:{served.port}"]
        reader, writer = await served.connect()

        async def status(line: bytes, request: bytes = GET) -> int:
            writer.write(by(line, request))
            return (await answer(reader))[0]

        assert await status(login()) == 200
        assert await status(login(), GET.replace(b"/ ", b"/missing ")) == 404
        assert await status(login(), GET.replace(b"GET", b"POST")) == 405
        assert served.traffic.refused == {}
        users.write_text(f"basic_auth_users: {{bob: {hashed('b')}}}")
        await served.config.reload()
        assert await status(login()) == 401
        assert await status(login("bob", "b")) == 200
        await close(writer)


async def test_verified_passwords_are_admitted_during_a_flood_of_wrong_ones(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = threading.Event()
    slow.set()

    def check(password: bytes, _hashed: bytes) -> bool:
        slow.wait(60)
        return password == b"swordfish"

    monkeypatch.setattr(bcrypt, "checkpw", check)
    async with serving(users) as served:
        assert (await served.exchange(by(login()))).endswith(b"well")
        slow.clear()
        flood = [asyncio.create_task(served.exchange(by(login(password=f"wrong-{n}")))) for n in range(6)]

        async def is_busy() -> bool:
            return served.traffic.refused["busy"] == 2

        await until("the flood is refused", is_busy)
        assert (await served.exchange(by(login()))).endswith(b"well")
        slow.set()
        answers = sorted(await asyncio.gather(*flood))
        assert [received.split(b" ")[1] for received in answers] == [b"401"] * 4 + [b"429"] * 2
        assert all(b"\r\nRetry-After: 1\r\n" in received for received in answers[4:])


async def test_configured_headers_replace_the_default_ones_on_every_answer(users: Path) -> None:
    users.write_text(
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
    async with serving(users) as served:
        assert served.config is not None
        for request in (by(login()), LAST, by(login(), LAST.replace(b"/ ", b"/nowhere "))):
            received = await served.exchange(request)
            assert received.count(b"\r\nContent-Security-Policy: default-src 'self'\r\n") == 1
            assert received.count(b"\r\nX-Frame-Options: sameorigin\r\n") == 1
            assert b"\r\nX-XSS-Protection: 1; mode=block\r\n" in received
            assert b"\r\nStrict-Transport-Security: max-age=31536000\r\n" in received
            assert b"\r\nX-Content-Type-Options: nosniff\r\n" in received
            assert b"\r\nReferrer-Policy: no-referrer\r\n" in received
        users.write_text(USERS + '\nhttp_server_config: {headers: {Content-Security-Policy: ""}}')
        await served.config.reload()
        received = await served.exchange(by(login()))
        assert b"Content-Security-Policy" not in received
        assert b"Strict-Transport-Security" not in received
        assert b"\r\nX-Frame-Options: DENY\r\n" in received


async def test_a_unix_socket_is_protected_as_well(made: Certificates, sockets: Path) -> None:
    async with serving(made.configuration(USERS), path=sockets / "x.sock") as served:
        reader, writer = await served.connect(made.context())
        writer.write(GET)
        assert (await answer(reader))[0] == 401
        writer.write(by(login()))
        assert (await rest(reader)).endswith(b"well")
        await close(writer)
        assert await served.exchange(GET) == b""


def test_every_reason_is_counted_from_the_beginning() -> None:
    traffic = Traffic()
    web = WebFamilies("x", traffic)
    families = {family.name: family.lines() for family in web.families()}
    for name, reasons in (("x_web_connections_ended", ENDED), ("x_web_requests_refused", REFUSED)):
        samples = [f'{name}_total{{reason="{reason}"}} 0.0\n' for reason in reasons]
        assert families[name] == "".join(samples)
    before = web.condition()
    assert web.condition() == before
    traffic.ended["crowded"] += 1
    assert web.condition() != before
