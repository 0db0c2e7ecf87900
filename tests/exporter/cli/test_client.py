"""exporter.cli.client: tokens, passwords and TLS."""

import base64
import gzip
import json
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from harness.certificates import Certificates
from harness.commands import devicelens
from harness.raw_server import raw_server

DEVICES = {
    "node": "worker-3",
    "generation": 1,
    "taken_at": "2026-10-28T22:41:03.250Z",
    "age_seconds": 1.0,
    "freshness": "fresh",
    "error": None,
    "devices": [],
    "claims": [],
    "pods": [],
    "something_new": {"of": "a newer exporter"},
}


@asynccontextmanager
async def serving(
    authorization: str = "", context: ssl.SSLContext | None = None
) -> AsyncGenerator[tuple[str, list[str]]]:
    """A server that requires `authorization`; its address, and the headers it received."""
    told: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        told.append(request.headers.get("Authorization", ""))
        if authorization and told[-1] != authorization:
            return web.Response(status=401)
        return web.json_response(DEVICES)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    server = TestServer(app, scheme="https" if context is not None else "http")
    await server.start_server(ssl=context)
    try:
        yield str(server.make_url("/")).rstrip("/"), told
    finally:
        await server.close()


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "web")


def context_of(made: Certificates, *, wants_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.path("tls.crt"), made.path("tls.key"))
    if wants_client:
        context.load_verify_locations(made.path("ca.crt"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_token_is_sent_and_read_anew_each_time(tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with serving("Bearer one") as (url, told):
        token.write_text("one\n")
        assert (await devicelens("who", "--url", url, "--token-file", str(token))).exit_code == 0
        token.write_text("two")
        refused = await devicelens("who", "--url", url, "--token-file", str(token))
        assert (refused.exit_code, told[-1]) == (1, "Bearer two")
        assert "one" not in refused.output
        bare = await devicelens("who", "--url", url)
    assert bare.stderr == (
        f"devicelens: {url}: 401 Unauthorized: it requires a name and a password, "
        "https://NAME:PASSWORD@HOST:PORT, or --token-file\n"
    )


async def test_a_name_and_a_password_are_sent_and_never_shown() -> None:
    right = f"Basic {base64.b64encode(b'me:s3cret').decode()}"
    async with serving(right) as (url, _):
        address = url.replace("http://", "http://me:s3cret@")
        assert (await devicelens("who", DEVICELENS_URL=address)).exit_code == 0
        refused = await devicelens("who", "--url", url.replace("http://", "http://me:wr0ng@"))
    assert refused.stderr == (
        f"devicelens: {url}: 401 Unauthorized: it does not accept this name and password\n"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        (b"", "found nothing, expected one line, a token"),
        (b"one\ntwo", "found something else, expected one line, a token"),
        (b"caf\xc3\xa9", "found something else, expected one line, a token"),
        (b"x" * 70_000, "larger than 65536 bytes"),
    ],
)
async def test_a_malformed_token_is_reported(tmp_path: Path, content: bytes | None, words: str) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    async with serving() as (url, told):
        result = await devicelens("who", "--url", url, "--token-file", str(token))
    assert (result.exit_code, told) == (1, [])
    assert result.stderr == f"devicelens: --token-file: {token}: {words}\n"


async def test_no_token_of_the_environment_goes_in_clear_to_another_machine(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    async with serving() as (url, told):
        here = await devicelens("who", "--url", url, DEVICELENS_TOKEN_FILE=str(token))
        assert (here.exit_code, told[-1]) == (0, "Bearer one")
    elsewhere = await devicelens("who", "--url", "http://name.invalid:1", DEVICELENS_TOKEN_FILE=str(token))
    assert "DEVICELENS_TOKEN_FILE is not sent unencrypted to http://name.invalid:1" in elsewhere.stderr


async def test_certificates_are_checked_by_whom_one_trusts(made: Certificates) -> None:
    ca_file = str(made.path("ca.crt"))
    async with serving(context=context_of(made)) as (url, _):
        assert (await devicelens("who", "--url", url, "--ca-file", ca_file)).exit_code == 0
        assert (await devicelens("who", "--url", url, DEVICELENS_CA_FILE=ca_file)).exit_code == 0
        assert (await devicelens("who", "--url", url, "--insecure-skip-verify")).exit_code == 0
        result = await devicelens("who", "--url", url)
        clear = await devicelens("who", "--url", url.replace("https", "http"))
    assert result.exit_code == 1
    assert f"{url}: its certificate is not trusted: " in result.stderr
    assert "--ca-file" in result.stderr
    assert clear.exit_code == 1
    assert "does it serve https?" in clear.stderr


async def test_a_client_s_certificate(made: Certificates) -> None:
    mine, other = str(made.client("me@example.com")), str(made.path("tls.key"))
    async with serving(context=context_of(made, wants_client=True)) as (url, _):
        common = ("--url", url, "--ca-file", str(made.path("ca.crt")))
        let_in = await devicelens("who", *common, "--cert-file", mine, "--key-file", mine)
        without = await devicelens("who", *common)
        mixed = await devicelens("who", *common, "--cert-file", mine, "--key-file", other)
        alone = await devicelens("who", *common, "--key-file", mine)
    assert let_in.exit_code == 0, let_in.output
    assert without.exit_code == 1
    # By the server's alert, or, where it is gone before that is read, by its going.
    assert "require" in without.stderr
    assert "a client certificate" in without.stderr
    assert "--cert-file" in without.stderr
    assert mixed.exit_code == 2
    assert "the key belongs to another certificate" in mixed.stderr
    assert alone.exit_code == 2
    assert "expected the certificate, --cert-file, beside it" in alone.stderr


async def test_unusable_files_are_reported(tmp_path: Path) -> None:
    nonsense = tmp_path / "ca.pem"
    nonsense.write_text("hello")
    for path, words in ((nonsense, "found no certificate in it"), (tmp_path / "none", "No such file")):
        result = await devicelens("who", "--url", "https://127.0.0.1:1", "--ca-file", str(path))
        assert result.exit_code == 2
        assert words in " ".join(result.stderr.split())
    clear = await devicelens("who", "--url", "http://127.0.0.1:1", "--ca-file", str(nonsense))
    assert clear.exit_code == 2
    assert "expected https://" in clear.stderr
    # One that is there for another address is no mistake.
    kept = await devicelens("who", "--url", "http://127.0.0.1:1", DEVICELENS_CA_FILE=str(nonsense))
    assert "connection refused" in kept.stderr


async def test_a_token_and_a_password_are_not_both_taken(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    result = await devicelens("who", "--url", "http://me:x@127.0.0.1:1", "--token-file", str(token))
    assert result.exit_code == 2
    assert "found beside a name and a password for http://127.0.0.1:1" in result.stderr


def answer_of(body: bytes, *headers: bytes) -> bytes:
    head = [b"HTTP/1.1 200 OK", b"Content-Type: application/json", *headers]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (answer_of(b" " * ((1 << 20) + 1)), "the answer is larger than 1 MiB"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * ((1 << 20) + 1), "the answer is larger than 1 MiB"),
        (
            answer_of(gzip.compress(b" " * (64 << 20), 1), b"Content-Encoding: gzip"),
            "the answer is larger than 1 MiB",
        ),
        (
            answer_of(gzip.compress(json.dumps(DEVICES).encode())[:-9], b"Content-Encoding: gzip"),
            "its answer is cut off",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal", "its answer is cut off"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000, "it does not speak HTTP: got more than 100 headers"),
        (b"HTTP/1.1 200 " + b"x" * 70_000, "it does not speak HTTP: got more than 65536 bytes"),
    ],
)
async def test_an_answer_is_of_limited_size_and_whole(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
) -> None:
    monkeypatch.setattr("exporter.cli.client.LIMIT", 1 << 20)
    async with raw_server(answer) as url:
        result = await devicelens("who", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"devicelens: {url}: {words}" in result.stderr


async def test_a_connection_that_the_server_has_closed_is_opened_again() -> None:
    # The server offers to keep each connection, and closes it.
    async with raw_server(answer_of(json.dumps(DEVICES).encode())) as url:
        result = await devicelens("who", "--url", url)
    assert (result.exit_code, result.stderr) == (0, "devicelens: worker-3 has no devices\n")


async def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (url, told):
        port = int(url.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", 0)) as closed:
            refused = closed.getsockname()
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        found = [(*kind, refused), (*kind, ("127.0.0.1", port))]

        def resolved(*_: object, **__: object) -> list[tuple[object, ...]]:
            return list(found)

        monkeypatch.setattr("exporter.cli.client.socket.getaddrinfo", resolved)
        result = await devicelens("who", "--url", f"http://name.invalid:{port}")
    assert (result.exit_code, len(told)) == (0, 3)


async def test_a_path_and_a_query_are_quoted() -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/caf\u00e9%20x"))
        await devicelens("explain", "a b&c=\u00e9", "--url", url)
    assert seen[0] == "/caf%C3%A9%20x/api/v1/explain?device=a+b%26c%3D%C3%A9"
