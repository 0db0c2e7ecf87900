"""Client certificates' names and users: who has access, and how much hashing that costs at most."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.certificates import hashed
from harness.waiting import until
from runtime.http.access import CACHED, AccessPolicy, UserGate, Verdict, certificate_names, credentials

USERS = {"alice": hashed("swordfish"), "zoë": hashed("пароль"), "dear": hashed("dear", 6)}


def basic(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"


async def judge(gate: UserGate, name: str, password: str, client: str = "10.0.0.1") -> Verdict:
    return await gate.judge(basic(name, password), client)


class Bcrypt:
    """Takes as long as it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []
        self.may_go = threading.Event()
        self.right = b"right"

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.asked.append((password, hashed))
        self.may_go.wait(20)
        return password == self.right


@asynccontextmanager
async def slow(**limits: int) -> AsyncGenerator[tuple[Bcrypt, UserGate]]:
    bcrypt = Bcrypt()
    try:
        yield bcrypt, UserGate(USERS, bcrypt, **limits)
    finally:
        bcrypt.may_go.set()


@pytest.mark.parametrize(
    ("name", "password", "verdict"),
    [
        ("alice", "swordfish", Verdict.ADMITTED),
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
async def test_who_has_a_name_and_its_password_is_let_in(
    name: str,
    password: str,
    verdict: Verdict,
) -> None:
    gate = UserGate(USERS)
    assert await judge(gate, name, password) is verdict
    # From memory.
    assert await judge(gate, name, password) is verdict


async def test_a_password_with_a_colon_is_one() -> None:
    assert await judge(UserGate({"a": hashed("b:c:")}), "a", "b:c:") is Verdict.ADMITTED


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic ",
        "Bearer YTpi",
        "Basic YWxpY2U=",
        "Basic ****",
        "Basic é",
        "Basic YTpi YTpi",
        "YTpi",
    ],
)
async def test_what_is_no_name_and_password_is_asked_for_one(
    authorization: str | None,
) -> None:
    assert await UserGate(USERS).judge(authorization, "") is Verdict.MISSING


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_credentials_are_read_as_they_were_written(name: bytes, password: bytes) -> None:
    found = credentials(f"bAsIc {b64encode(name + b':' + password).decode()}")
    before, _, after = (name + b":" + password).partition(b":")
    assert found == (before, after)


@given(st.text(max_size=60))
def test_whatever_the_header_says_is_read_without_an_error(text: str) -> None:
    for header in (text, f"Basic {text}"):
        found = credentials(header)
        assert found is None or len(found) == 2


@pytest.mark.parametrize("length", [73, 200, 8000])
async def test_a_password_longer_than_bcrypt_takes_is_wrong_and_hashed_all_the_same(length: int) -> None:
    bcrypt = Bcrypt()
    bcrypt.may_go.set()
    bcrypt.right = b"x" * 72
    gate = UserGate(USERS, bcrypt)
    assert await judge(gate, "alice", "x" * 72) is Verdict.ADMITTED
    assert await judge(gate, "alice", "x" * length) is Verdict.WRONG
    assert bcrypt.asked[1] == (b"x" * 72, USERS["alice"].encode())


async def test_the_real_bcrypt_refuses_no_length() -> None:
    gate = UserGate({"a": hashed("y" * 72)})
    assert await judge(gate, "a", "y" * 72) is Verdict.ADMITTED
    assert await judge(gate, "a", "y" * 73) is Verdict.WRONG


async def test_an_unknown_name_is_hashed_once_by_a_hash_as_expensive_as_a_users() -> None:
    async with slow() as (bcrypt, gate):
        bcrypt.may_go.set()
        names = [f"nobody-{n}" for n in range(24)]
        for name in names:
            assert await judge(gate, name, "right") is Verdict.WRONG
        assert len(bcrypt.asked) == 24
        assert {hashed[:7] for _, hashed in bcrypt.asked} == {b"$2b$04$", b"$2b$06$"}
        # Always the same hash for the same name: a second request shows nothing either.
        hashes = dict(zip(names, [h for _, h in bcrypt.asked], strict=True))
        assert await judge(gate, "nobody-3", "other") is Verdict.WRONG
        assert bcrypt.asked[-1] == (b"other", hashes["nobody-3"])


async def test_what_was_found_is_not_hashed_again() -> None:
    async with slow() as (bcrypt, gate):
        bcrypt.may_go.set()
        for _ in range(5):
            assert await judge(gate, "alice", "right") is Verdict.ADMITTED
            assert await judge(gate, "alice", "wrong") is Verdict.WRONG
            # The name of nobody, with a password that its decoy would take.
            assert await judge(gate, "nobody", "right") is Verdict.WRONG
        assert len(bcrypt.asked) == 3


async def test_the_same_question_asked_at_once_is_hashed_once() -> None:
    async with slow(per_client=1) as (bcrypt, gate):
        asking = [asyncio.create_task(judge(gate, "alice", "right", f"10.0.0.{n}")) for n in range(20)]
        await asyncio.sleep(0)
        bcrypt.may_go.set()
        assert set(await asyncio.gather(*asking)) == {Verdict.ADMITTED}
        assert len(bcrypt.asked) == 1


async def test_whoever_goes_leaves_the_answer_to_the_others() -> None:
    async with slow() as (bcrypt, gate):
        first, second = (asyncio.create_task(judge(gate, "alice", "right")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        bcrypt.may_go.set()
        assert await second is Verdict.ADMITTED


async def test_a_flood_is_bounded_by_client_and_in_all_and_those_known_come_in_all_the_same() -> None:
    async with slow(most=6, per_client=2) as (bcrypt, gate):
        bcrypt.may_go.set()
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


async def test_what_is_kept_is_bounded_and_wrong_ones_do_not_push_right_ones_out() -> None:
    async with slow() as (bcrypt, gate):
        bcrypt.may_go.set()
        await judge(gate, "alice", "right")
        for n in range(CACHED + 10):
            await judge(gate, "alice", f"wrong-{n}")
        asked = len(bcrypt.asked)
        assert await judge(gate, "alice", "right") is Verdict.ADMITTED
        assert await judge(gate, "alice", f"wrong-{CACHED + 9}") is Verdict.WRONG
        assert len(bcrypt.asked) == asked
        await judge(gate, "alice", "wrong-0")
        assert len(bcrypt.asked) == asked + 1


async def test_hashing_does_not_hold_up_the_event_loop() -> None:
    async with slow() as (bcrypt, gate):
        asking = asyncio.create_task(judge(gate, "alice", "right"))

        async def begun() -> bool:
            return bool(bcrypt.asked)

        await until("hashing has begun", begun)
        assert not asking.done()
        bcrypt.may_go.set()
        assert await asking is Verdict.ADMITTED


async def test_a_check_that_fails_lets_nobody_in_and_is_not_kept() -> None:
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
        ({"example"}, False),
        ({"not-a-san.example"}, False),
        ({"elsewhere"}, False),
        ({"10.0.0.10"}, False),
    ],
)
def test_a_name_must_be_exactly_one_of_those_allowed(allowed: set[str] | None, expected: bool) -> None:
    policy = AccessPolicy(allowed_names=None if allowed is None else frozenset(allowed))
    assert policy.allows_certificate(CERTIFICATE) is expected


def test_a_wildcard_certificate_is_taken_by_its_name_alone() -> None:
    certificate = {"subjectAltName": (("DNS", "*.example"),)}
    assert AccessPolicy(allowed_names=frozenset({"*.example"})).allows_certificate(certificate)
    assert not AccessPolicy(allowed_names=frozenset({"a.example"})).allows_certificate(certificate)


@pytest.mark.parametrize("certificate", [None, {}, {"subjectAltName": ()}])
def test_who_has_no_name_is_none_of_those_allowed(certificate: dict[str, object] | None) -> None:
    assert certificate_names(certificate) == ()
    assert not AccessPolicy(allowed_names=frozenset({"a.example"})).allows_certificate(certificate)
