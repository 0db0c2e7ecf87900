"""Client certificates' names and users: who has access, and how much hashing that costs at most."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.certificates import hashed
from harness.waiting import until
from runtime.http.access import CACHED, AccessPolicy, UserGate, Verdict, certificate_names, credentials

USERS = {
    "alice": hashed("swordfish"),
    "zoë": hashed("пароль"),
    "dear": hashed("dear", 6),
    "colons": hashed("b:c:"),
    "long": hashed("y" * 72),
}


def basic(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"


async def judge(gate: UserGate, name: str, password: str, client: str = "10.0.0.1") -> Verdict:
    return await gate.judge(basic(name, password), client)


class Bcrypt:
    """Keeps its calls, and waits while `may_go` is not set."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.right = b"right"

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.calls.append((password, hashed))
        self.may_go.wait(20)
        return password == self.right


@asynccontextmanager
async def counted(**limits: int) -> AsyncGenerator[tuple[Bcrypt, UserGate]]:
    bcrypt = Bcrypt()
    try:
        yield bcrypt, UserGate(USERS, bcrypt, **limits)
    finally:
        bcrypt.may_go.set()


@pytest.mark.parametrize(
    ("name", "password", "verdict"),
    [
        ("alice", "swordfish", Verdict.ADMITTED),
        ("colons", "b:c:", Verdict.ADMITTED),
        ("long", "y" * 72, Verdict.ADMITTED),
        ("long", "y" * 73, Verdict.WRONG),
        ("zoë", "пароль", Verdict.ADMITTED),
        ("alice", "Swordfish", Verdict.WRONG),
        ("alice", "", Verdict.WRONG),
        ("alice", "swordfish\0", Verdict.WRONG),
        ("alice", "пароль", Verdict.WRONG),
        ("Alice", "swordfish", Verdict.WRONG),
        ("nobody", "swordfish", Verdict.WRONG),
        ("", "", Verdict.WRONG),
    ],
)
async def test_a_name_with_its_password_is_admitted(name: str, password: str, verdict: Verdict) -> None:
    gate = UserGate(USERS)
    assert await judge(gate, name, password) is verdict
    # From the cache.
    assert await judge(gate, name, password) is verdict


@pytest.mark.parametrize(
    "authorization",
    [
        *(None, "", "Basic", "Basic ", "Bearer YTpi", "Basic YWxpY2U=", "Basic ****", "Basic é"),
        *("Basic YTpi YTpi", "YTpi"),
    ],
)
async def test_a_header_without_a_name_and_a_password_is_missing_one(authorization: str | None) -> None:
    assert await UserGate(USERS).judge(authorization, "") is Verdict.MISSING


@settings(max_examples=40)
@given(st.binary(max_size=40), st.binary(max_size=40), st.text(max_size=60))
def test_credentials_are_read_as_they_were_written(name: bytes, password: bytes, text: str) -> None:
    found = credentials(f"bAsIc {b64encode(name + b':' + password).decode()}")
    before, _, after = (name + b":" + password).partition(b":")
    assert found == (before, after)
    for header in (text, f"Basic {text}"):
        found = credentials(header)
        assert found is None or len(found) == 2


async def test_a_password_longer_than_bcrypt_reads_is_wrong_and_hashed_all_the_same() -> None:
    async with counted() as (bcrypt, gate):
        bcrypt.right = b"x" * 72
        assert await judge(gate, "alice", "x" * 72) is Verdict.ADMITTED
        assert await judge(gate, "alice", "x" * 8000) is Verdict.WRONG
        assert bcrypt.calls[1] == (b"x" * 72, USERS["alice"].encode())


async def test_an_unknown_name_is_hashed_once_by_a_hash_as_expensive_as_a_users() -> None:
    async with counted() as (bcrypt, gate):
        names = [f"nobody-{n}" for n in range(24)]
        for name in names:
            assert await judge(gate, name, "right") is Verdict.WRONG
        assert len(bcrypt.calls) == 24
        assert {hashed[:7] for _, hashed in bcrypt.calls} == {b"$2b$04$", b"$2b$06$"}
        # Always the same hash for the same name: a second request shows nothing either.
        hashes = dict(zip(names, [h for _, h in bcrypt.calls], strict=True))
        assert await judge(gate, "nobody-3", "other") is Verdict.WRONG
        assert bcrypt.calls[-1] == (b"other", hashes["nobody-3"])


async def test_a_verdict_is_not_hashed_again() -> None:
    async with counted() as (bcrypt, gate):
        for _ in range(5):
            assert await judge(gate, "alice", "right") is Verdict.ADMITTED
            assert await judge(gate, "alice", "wrong") is Verdict.WRONG
            # The name of nobody, with a password that its decoy would take.
            assert await judge(gate, "nobody", "right") is Verdict.WRONG
        assert len(bcrypt.calls) == 3


async def test_requests_at_once_share_one_check_although_one_leaves() -> None:
    async with counted(per_client=1) as (bcrypt, gate):
        bcrypt.may_go.clear()
        requests = [asyncio.create_task(judge(gate, "alice", "right", f"10.0.0.{n}")) for n in range(20)]

        async def begun() -> bool:
            return bool(bcrypt.calls)

        await until("hashing has begun, off the event loop", begun)
        requests[0].cancel()
        bcrypt.may_go.set()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert outcomes[1:] == [Verdict.ADMITTED] * 19
        assert len(bcrypt.calls) == 1


async def test_checks_are_bounded_by_client_and_in_all_and_cached_verdicts_are_given() -> None:
    async with counted(most=6, per_client=2) as (bcrypt, gate):
        assert await judge(gate, "alice", "right", "10.0.0.9") is Verdict.ADMITTED
        bcrypt.may_go.clear()
        flood = [
            asyncio.create_task(judge(gate, "alice", f"{client}-{n}", client))
            for client in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
            for n in range(4)
        ]
        refused = await asyncio.gather(*[task for task in flood if flood.index(task) % 4 > 1])
        assert refused == [Verdict.BUSY] * 6 + [Verdict.FULL] * 2
        assert await flood[12] is Verdict.FULL
        assert await judge(gate, "alice", "right", "10.0.0.1") is Verdict.ADMITTED
        bcrypt.may_go.set()
        assert await asyncio.gather(*flood[:2]) == [Verdict.WRONG] * 2
        await asyncio.gather(*flood)
        # There is room again.
        assert await judge(gate, "alice", "another", "10.0.0.1") is Verdict.WRONG


async def test_the_cache_is_bounded_and_wrong_passwords_do_not_push_right_ones_out() -> None:
    async with counted() as (bcrypt, gate):
        await judge(gate, "alice", "right")
        for n in range(CACHED + 10):
            await judge(gate, "alice", f"wrong-{n}")
        before = len(bcrypt.calls)
        assert await judge(gate, "alice", "right") is Verdict.ADMITTED
        assert await judge(gate, "alice", f"wrong-{CACHED + 9}") is Verdict.WRONG
        assert len(bcrypt.calls) == before
        await judge(gate, "alice", "wrong-0")
        assert len(bcrypt.calls) == before + 1


async def test_a_check_that_fails_admits_nobody_and_is_not_cached() -> None:
    failing = [True]

    def check(_password: bytes, _hashed: bytes) -> bool:
        if failing:
            raise ValueError("no such salt")
        return True

    gate = UserGate(USERS, check)
    with pytest.raises(ValueError, match="no such salt"):
        await judge(gate, "alice", "x")
    failing.clear()
    assert await judge(gate, "alice", "x") is Verdict.ADMITTED


CERTIFICATE = {
    "subject": ((("commonName", "not-a-san.example"),),),
    "subjectAltName": (
        ("DNS", "a.example"),
        ("DNS", "*.wild.example"),
        ("IP Address", "10.0.0.1"),
        ("IP Address", "2001:DB8:0:0:0:0:0:1\n"),
        ("email", "me@example.com"),
        ("URI", "spiffe://cluster/ns/monitoring"),
        ("DirName", "elsewhere"),
    ),
}


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, True),
        ({"a.example"}, True),
        ({"b.example", "10.0.0.1"}, True),
        ({"2001:db8::1"}, True),
        ({"2001:0DB8:0:0::0001"}, True),
        ({"me@example.com"}, True),
        ({"spiffe://cluster/ns/monitoring"}, True),
        ({"A.example"}, False),
        ({"*.example"}, False),
        ({"*.wild.example"}, True),
        ({"x.wild.example"}, False),
        ({"example"}, False),
        ({"not-a-san.example"}, False),
        ({"elsewhere"}, False),
        ({"10.0.0.10"}, False),
    ],
)
def test_a_name_must_be_exactly_one_of_those_allowed(allowed: set[str] | None, expected: bool) -> None:
    policy = AccessPolicy(allowed_names=None if allowed is None else frozenset(allowed))
    assert policy.allows_certificate(CERTIFICATE) is expected


@pytest.mark.parametrize("certificate", [None, {}, {"subjectAltName": ()}])
def test_a_certificate_without_a_name_is_not_allowed(certificate: dict[str, object] | None) -> None:
    assert certificate_names(certificate) == ()
    assert not AccessPolicy(allowed_names=frozenset({"a.example"})).allows_certificate(certificate)
