"""/api/v1/history: who held what, when, and what is not known."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from exporter.history.archive import QueryMoment
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.recorder import HistoryUnavailable
from exporter.mapping.state import State
from exporter.views.query import QueryError, parse_history
from exporter.views.schema import HistoryDocument
from exporter.views.wording import parse_moment, rfc3339
from exporter.web.app import build
from harness.lives import PATIENCE, Life, key

Client = TestClient[web.Request, web.Application]
START = 1_793_227_263.25
A, B = key("gpu-0", "train-0"), key("gpu-1", "train-0")
HOSTILE = "x\x1b[31m\u202e<b>"


@dataclass
class Past:
    """A HistorySource over a life."""

    life: Life
    error: str = ""

    async def find(self, question: HistoryQuery) -> HistoryResult:
        if self.error:
            raise HistoryUnavailable(self.error)
        now = QueryMoment(self.life.sight.last, self.life.sight.failing, self.life.wall, PATIENCE)
        return self.life.archive.find(question, now)


@pytest.fixture
def past() -> Past:
    """A minute of history before START, in looks that are 5 s apart: nobody, A, A and B, B, nobody."""
    life = Life(None, wall=START - 60.0).start()
    for keys in ((), (A,), (A, B), (B,), ()):
        life.look(*keys, uid="uid-1")
    return Past(life)


@pytest.fixture
async def client(world: SimpleNamespace, past: Past) -> AsyncGenerator[Client]:
    world.publish()
    world.now = past.life.wall
    site = replace(world.site, history=past)
    async with TestClient(TestServer(build(site))) as found:
        yield found


async def get(client: Client, path: str = "", status: int = 200, **query: str) -> Any:
    answer = await client.get(f"/api/v1/history{path}", params=query)
    assert answer.status == status, await answer.text()
    expected = "application/json" if status == 200 else "application/problem+json"
    assert answer.content_type == expected
    return await answer.json(content_type=None)


async def test_a_holding_is_told_with_its_bounds(client: Client, past: Past) -> None:
    document = await get(client, device="gpu-0")
    (entry,) = document["holdings"]
    first = START - 60.0 + 5.0
    assert entry == {
        "id": 1,
        "node": "",
        "resource": "example.com/gpu",
        "device": "gpu-0",
        "parent": None,
        "driver": None,
        "pool": None,
        "share_id": None,
        "claim_namespace": None,
        "claim": None,
        "namespace": "ns",
        "pod": "train-0",
        "pod_uid": "uid-1",
        "container": "main",
        "workload_kind": None,
        "workload": None,
        "start": {
            "not_before": rfc3339(first),
            "not_after": rfc3339(first + 5),
            "certainty": "between_polls",
        },
        "end": {
            "not_before": rfc3339(first + 10),
            "not_after": rfc3339(first + 15),
            "certainty": "between_polls",
        },
        "assumed": False,
        "certain": None,
    }
    assert document["complete"] is True
    assert document["unseen"] == []
    assert (document["earliest"], document["latest"]) == (rfc3339(first), rfc3339(first + 20))
    assert document["resources"] == ["example.com/gpu"]
    assert (document["kept_in"], document["trouble"], document["next"]) == ("memory", None, None)
    assert msgspec.json.decode(msgspec.json.encode(document), type=HistoryDocument).node == "worker-3"
    assert past.life.archive.condition.written


@pytest.mark.parametrize(
    ("seconds", "held"),
    [
        (5.0, {}),
        (7.0, {"gpu-0": False}),
        (12.0, {"gpu-0": True, "gpu-1": False}),
        (15.0, {"gpu-0": True, "gpu-1": True}),
        (18.0, {"gpu-0": False, "gpu-1": True}),
        (25.0, {}),
    ],
)
async def test_at_a_moment_it_is_told_who_held_surely_and_who_perhaps(
    client: Client, seconds: float, held: dict[str, bool]
) -> None:
    at = START - 60.0 + seconds
    for text in (str(at), rfc3339(at), f"{seconds - 25:g}s" if seconds < 25 else "now"):
        document = await get(client, at=text)
        found = {entry["device"]: entry["certain"] for entry in document["holdings"]}
        assert found == held
        assert (document["at"], document["complete"]) == (rfc3339(at), True)


async def test_of_a_time_nobody_looked_at_nothing_is_claimed(
    client: Client, past: Past, world: SimpleNamespace
) -> None:
    before = await get(client, at=str(START - 3600))
    assert (before["holdings"], before["complete"]) == ([], False)
    assert before["unseen"] == [{"since": None, "until": before["earliest"], "why": "before_history"}]
    for seconds in (1.0, 3600.0):
        later = await get(client, at=str(past.life.wall + seconds))
        assert (later["complete"], later["unseen"][0]["why"]) == (False, "not_yet")
    past.life.sight.fail()
    past.life.pass_time(300.0)
    world.now = past.life.wall
    silent = await get(client, "?from=-1m")
    assert [gap["why"] for gap in silent["unseen"]] == ["kubelet_silent"]
    assert silent["complete"] is False


async def test_what_goes_on_is_certain_only_as_far_as_it_was_looked(client: Client, past: Past) -> None:
    past.life.look(A)
    past.life.look(A)
    last = past.life.wall

    async def certain(at: float) -> bool:
        (entry,) = (await get(client, at=str(at)))["holdings"]
        assert entry["end"] is None
        return bool(entry["certain"])

    assert await certain(last - 1)
    past.life.pass_time(4.0)
    assert await certain(last + 4)
    past.life.sight.fail()
    past.life.pass_time(100.0)
    assert await certain(last)
    assert not await certain(last + 60)


async def test_it_is_answered_page_by_page(client: Client) -> None:
    pages: list[str] = []
    query = {"limit": "1"}
    for _ in range(3):
        document = await get(client, f"?{urlencode(query)}")
        pages.extend(entry["device"] for entry in document["holdings"])
        if document["next"] is None:
            break
        query["cursor"] = document["next"]
    assert pages == ["gpu-1", "gpu-0"]


@pytest.mark.parametrize(
    ("query", "found", "expected"),
    [
        ({"at": "yesterday"}, "yesterday", "a time with its zone"),
        ({"at": "2026-11-20T03:12:00"}, "2026-11-20T03:12:00", "a time with its zone"),
        ({"from": "-5"}, "-5", "a time with its zone"),
        ({"at": "-1h", "to": "now"}, "-1h", "either at, or from and to"),
        ({"from": "now", "to": "-1h"}, "now", "a time before that of to"),
        ({"limit": "0"}, "0", "a number from 1 to 1000"),
        ({"cursor": "x"}, "x", "the next of an earlier answer"),
        ({"container": "main"}, "main", "pod, uid or device beside it"),
        ({"q": "gpu"}, "gpu", "one of resource, driver, device"),
        ({"device": "x" * 513}, "x", "at most 512 characters"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(
    client: Client, query: dict[str, str], found: str, expected: str
) -> None:
    problem = await get(client, status=400, **query)
    assert problem["status"] == 400
    assert problem["found"].startswith(found)
    assert problem["expected"].startswith(expected)
    assert problem["parameter"] in query


async def test_a_history_that_cannot_be_asked_says_why(
    client: Client, past: Past, world: SimpleNamespace
) -> None:
    past.error = "no answer within 5 s: is the disk slow?"
    problem = await get(client, status=503)
    assert problem["detail"] == "history cannot be asked: no answer within 5 s: is the disk slow?"
    assert (await client.get("/api/v1/history")).headers["Retry-After"] == "1"
    async with TestClient(TestServer(build(world.site))) as without:
        assert (await without.get("/api/v1/history")).status == 503


async def test_the_past_does_not_wait_for_the_kubelet(client: Client, world: SimpleNamespace) -> None:
    world.states.publish(State())
    document = await get(client)
    assert (document["freshness"], len(document["holdings"])) == ("unknown", 2)


def test_a_plus_sign_that_was_lost_in_an_address_is_found_again() -> None:
    assert parse_moment("2026-11-20T04:12:00 01:00", 0.0) == parse_moment("2026-11-20T03:12:00Z", 0.0)


@pytest.mark.parametrize(
    "text", ["-1h30m", "1793221863.25", "2026-10-28T21:11:03.25Z", "2026-10-28T22:11:03.250+01:00"]
)
def test_a_moment_is_written_in_several_ways(text: str) -> None:
    assert parse_moment(text, START) == START - 5400


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "-1x",
        "1e9",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "1969-12-31T23:59:59Z",
        "-90000d",
        "٣",
    ],
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_moment(text, START)


@given(
    st.dictionaries(
        st.sampled_from(["at", "from", "to", "cursor", "limit", "device", "pod"]), st.text(max_size=40)
    )
)
def test_any_address_is_a_question_or_refused(query: dict[str, str]) -> None:
    with suppress(QueryError):
        assert parse_history(query.items(), START).question.limit >= 1
