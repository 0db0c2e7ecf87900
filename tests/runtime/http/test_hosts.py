"""Hosts by which clients may call, against DNS rebinding, and the access log."""

import json
from pathlib import Path

import pytest

from harness.certificates import hashed
from harness.web_clients import answer, close, serving
from runtime.flags import parse_hosts
from runtime.http.access import OPEN, AccessPolicy, AllowedHosts, UserGate

NODE = ("Worker-3", "worker-3.example.")
ATTACKER = "rebound.example:10190"


@pytest.mark.parametrize(
    ("listed", "host", "allowed"),
    [
        *(("", host, True) for host in ("", "localhost", "LOCALHOST.:80", "a.localhost", "worker-3:10190")),
        *(("", host, True) for host in ("WORKER-3.example", "10.0.0.7:10190", "[::1]:10190", "127.8.8.8")),
        *(("", host, True) for host in ("[fe80::1%25eth0]:1", "worker-3.example.:10190")),
        *(("", host, False) for host in (ATTACKER, "x.worker-3", "localhost.evil.example", "127.0.0.1.evil")),
        *(("", host, False) for host in ("::1:80", "[::1", "[]", ":80", "localhost:80:80", "a b", "\x1b[2J")),
        *(("", host, False) for host in ("1.2.3", "[evil.example]", "evil.example#localhost", "@localhost")),
        ("*", ATTACKER, True),
        ("rebound.example", ATTACKER, True),
        ("other.example", ATTACKER, False),
        ("other.example", "localhost", True),
        (".rebound.example", "a.b.rebound.example", True),
        (".rebound.example", "rebound.example", True),
        (".rebound.example", "xrebound.example", False),
        ("rebound.example", "a.rebound.example", False),
    ],
)
def test_addresses_and_known_names_are_allowed(listed: str, host: str, *, allowed: bool) -> None:
    assert AllowedHosts(parse_hosts(listed), NODE).allow(host, OPEN) is allowed


async def test_a_password_allows_every_host_unless_some_are_listed() -> None:
    policy = AccessPolicy(users=UserGate({}))
    assert AllowedHosts((), NODE).allow(ATTACKER, policy)
    assert not AllowedHosts(("other.example",), NODE).allow(ATTACKER, policy)


@pytest.mark.parametrize("text", ["a.example:80", "http://a.example", "a..b", "*.example", "a b", "a" * 300])
def test_a_list_that_names_no_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected names without ports such as"):
        parse_hosts(text)


def _get(target: str, host: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


async def test_another_host_gets_nothing_and_the_flag_that_helps() -> None:
    async with serving(hosts=AllowedHosts((), NODE)) as served:
        reader, writer = await served.connect()
        detail = "the host 'rebound.example:10190' is not allowed: list it in --web.allowed-hosts"
        writer.write(_get("/", ATTACKER) + _get("/api/v1", ATTACKER) + _get("/", f"localhost:{served.port}"))
        status, _, body = await answer(reader)
        assert (status, body.decode()) == (421, f"{detail}\n")
        status, headers, body = await answer(reader)
        assert (status, headers["content-type"]) == (421, "application/problem+json")
        assert json.loads(body)["detail"] == detail
        assert (await answer(reader))[2] == b"well"
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        assert (await answer(reader))[0] == 200
        await close(writer)
        assert served.traffic.refused == {"host": 2}


async def test_a_unix_socket_has_no_names(sockets: Path) -> None:
    async with serving(path=sockets / "w.sock", hosts=AllowedHosts((), ())) as served:
        reader, writer = await served.connect()
        writer.write(_get("/", ATTACKER))
        assert (await answer(reader))[0] == 200
        await close(writer)


async def test_each_request_is_logged_without_query_and_credentials(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(f"basic_auth_users: {{ops: {hashed('swordfish')}}}\n")
    async with serving(file, access_log=True) as served:
        reader, writer = await served.connect()
        secret = "Authorization: Basic b3BzOnN3b3JkZmlzaA=="
        writer.write(f"GET /a%0Ab?token=secret HTTP/1.1\r\nHost: x\r\n{secret}\r\n\r\n".encode())
        assert (await answer(reader))[0] == 404
        writer.write(_get("/", "x"))
        assert (await answer(reader))[0] == 401
        await close(writer)
        found = [record for record in served.records if record.message == "request"]
    fields = [getattr(record, "devicelens_fields", {}) for record in found]
    assert [(one["method"], one["path"], one["status"]) for one in fields] == [
        ("GET", "/a\nb", 404),
        ("GET", "/", 401),
    ]
    assert all(one["remote"] == "127.0.0.1" and one["bytes"] > 100 and one["seconds"] >= 0 for one in fields)
    assert not any(word in str(fields) for word in ("secret", "swordfish", "b3Bz"))


async def test_requests_are_not_logged_by_default() -> None:
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(_get("/", "x"))
        await answer(reader)
        await close(writer)
        assert not [record for record in served.records if record.message == "request"]
