"""`devicelens healthy`: it finds the process by its own flags, and is right about what it answers."""

import asyncio
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import pytest
import trustme
from aiohttp import web
from click.testing import CliRunner

from harness.raw_server import raw_server
from runtime import healthy as module
from runtime.flags import ListenAddress, parse_listen_address
from runtime.healthy import ProbeTarget, Unhealthy, command_line_of_process_1, healthy, probe, target_of


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("python /opt/devicelens/bin/devicelens exporter", ProbeTarget(ListenAddress(port=10190))),
        ("devicelens plugin --preset cola", ProbeTarget(ListenAddress(port=10191))),
        (
            "devicelens exporter --plugin.url=http://127.0.0.1:10191 --web.listen-address :9",
            ProbeTarget(ListenAddress(port=9)),
        ),
        (
            "devicelens plugin --config c.yaml --web.config.file=w.yaml --web.listen-address=unix:/run/x",
            ProbeTarget(ListenAddress(path=Path("/run/x")), configured=True),
        ),
        ("sleep infinity", None),
        ("devicelens demo", None),
        ("", None),
    ],
)
def test_the_address_is_read_from_the_process_s_own_command_line(
    line: str, place: ProbeTarget | None
) -> None:
    assert target_of(line.split(" ")) == place


def test_the_environment_counts_as_it_does_for_the_process_and_a_flag_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEVICELENS_WEB_LISTEN_ADDRESS", "127.0.0.1:7")
    monkeypatch.setenv("DEVICELENS_WEB_CONFIG_FILE", "/etc/web.yaml")
    assert target_of(["devicelens", "exporter"]) == ProbeTarget(
        ListenAddress("127.0.0.1", 7), configured=True
    )
    flagged = target_of(["devicelens", "exporter", "--web.listen-address", ":8"])
    assert flagged == ProbeTarget(ListenAddress(port=8), configured=True)


def test_an_address_that_the_process_cannot_have_taken_is_an_error() -> None:
    with pytest.raises(click.UsageError):
        target_of(["devicelens", "exporter", "--web.listen-address", "nonsense"])


def test_the_command_line_of_process_1_is_read(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cmdline").write_bytes(b"devicelens\0plugin\0--x=\xff\0")
    assert command_line_of_process_1(tmp_path)[:2] == ["devicelens", "plugin"]
    assert command_line_of_process_1(tmp_path / "gone") == []


@asynccontextmanager
async def server(
    status: int, context: ssl.SSLContext | None = None, path: Path | None = None
) -> AsyncGenerator[ListenAddress]:
    async def answered(request: web.Request) -> web.Response:
        admitted = request.headers.get("Authorization") == "Basic dTpw"
        return web.Response(status=200 if admitted else status)

    app = web.Application()
    app.router.add_get("/-/{what}", answered)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        if path is not None:
            await web.UnixSite(runner, path).start()
            yield ListenAddress(path=path)
        else:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            yield ListenAddress("127.0.0.1", runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def verdict(place: ProbeTarget, *, ready: bool = False, login: str | None = None) -> str:
    """The reason; empty where it is healthy."""
    try:
        await asyncio.to_thread(probe, place, ready=ready, login=login, timeout=5.0)
    except Unhealthy as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("status", "live", "ready"),
    [
        (200, "", ""),
        (503, "/-/healthy: it answers 503", "/-/ready: it answers 503"),
        (401, "", "/-/ready: it wants a password: say --login-file"),
        (404, "/-/healthy: it answers 404", "/-/ready: it answers 404"),
    ],
)
async def test_the_answer_decides(status: int, live: str, ready: str) -> None:
    async with server(status) as address:
        # A web configuration without TLS: found out by asking.
        for configured in (False, True):
            place = ProbeTarget(address, configured=configured)
            assert await verdict(place) == live
            assert await verdict(place, ready=True) == ready
            assert await verdict(place, ready=True, login="u:p") == ""


async def test_a_unix_socket_is_probed_as_well() -> None:
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        async with server(200, path=Path(directory) / "s") as address:
            assert await verdict(ProbeTarget(address)) == ""
            assert address.path is not None
            address.path.rename(address.path.with_name("kept"))
        # Python 3.13 and newer remove the socket of a server that ends; a killed one's stays.
        left = address._replace(path=address.path.with_name("kept"))
        assert "Connection refused" in await verdict(ProbeTarget(left))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def tls(authority: trustme.CA, *, client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("somebody.example").configure_cert(context)
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return context


async def test_tls_is_used_whatever_the_certificate_says(authority: trustme.CA) -> None:
    async with server(200, tls(authority)) as address:
        assert await verdict(ProbeTarget(address, configured=True)) == ""
        assert await verdict(ProbeTarget(address, configured=True), ready=True) == ""
        # Without a web configuration there is no TLS: another server answers.
        assert await verdict(ProbeTarget(address)) != ""
    async with server(200, tls(authority, client=True)) as address:
        place = ProbeTarget(address, configured=True)
        assert await verdict(place) == ""
        assert "client's certificate" in await verdict(place, ready=True)


@pytest.mark.parametrize("content", [b"", b"hello\r\n", b"HTTP/9 200\r\n", b"x" * 100_000])
async def test_an_answer_that_is_no_http_is_not_healthy(content: bytes) -> None:
    async with raw_server(content) as url:
        address = parse_listen_address(url.removeprefix("http://"))
        assert "no HTTP" in await verdict(ProbeTarget(address))


@pytest.mark.parametrize("configured", [False, True])
def test_a_process_that_hangs_is_not_healthy(configured: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = ListenAddress("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(Unhealthy, match="timed out"):
            probe(ProbeTarget(address, configured=configured), ready=False, timeout=0.2)


async def test_the_command_says_it_in_one_line_and_by_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    login = tmp_path / "login"
    login.write_text("u:p\n")

    async def run(*arguments: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, healthy, arguments)
        return result.exit_code, result.output

    async with server(401) as address:
        at = ("--web.listen-address", str(address))
        assert await run(*at) == (0, "healthy\n")
        assert await run(*at, "--ready") == (1, "/-/ready: it wants a password: say --login-file\n")
        assert await run(*at, "--ready", "--login-file", str(login)) == (0, "ready\n")
        line = ["devicelens", "exporter", *at]
        monkeypatch.setattr(module, "command_line_of_process_1", lambda: line)
        assert await run() == (0, "healthy\n")
    assert (await run(*at))[0] == 1
    login.write_text("nonsense")
    assert await run(*at, "--login-file", str(login)) == (
        1,
        f"--login-file {login}: expected one line USER:PASSWORD\n",
    )
    monkeypatch.setattr(module, "command_line_of_process_1", lambda: ["sleep"])
    status, output = await run()
    assert status == 2
    assert "say --web.listen-address" in output


def test_it_imports_nothing_that_is_slow() -> None:
    code = "import sys, runtime.healthy; print(*(m for m in sys.argv[1:] if m in sys.modules))"
    slow = ["asyncio", "aiohttp", "grpc", "ssl", "yaml", "msgspec", "exporter", "plugin", "rich"]
    ran = subprocess.run([sys.executable, "-c", code, *slow], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
