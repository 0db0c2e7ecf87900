"""What every address of the API has in common: headers, HEAD, tags, what is accepted, errors, shapes."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st

from exporter.history.archive import QueryMoment
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.mapping.state import Failure, State
from exporter.views.schema import ErrorEntry, Problem
from exporter.web.answers import encode
from exporter.web.app import build
from harness import openapi_reference
from harness.lives import PATIENCE, Life, key

Client = TestClient[web.Request, web.Application]

START = 1_793_227_263.25
TAKEN_AT = "Devicelens-Taken-At"
EXPLAIN = "/api/v1/explain?device=GPU-0"
MAPPED = [*(f"/api/v1/{n}" for n in ("devices", "pods", "claims", "resources", "anomalies")), EXPLAIN]
HISTORY = f"/api/v1/history?from={START - 60}&to={START - 45}"
TAGGED = [*MAPPED, "/api/v1/status", HISTORY, "/api/openapi.json"]
JSON = [*TAGGED, "/api/v1", "/api/v1/history"]
DOCUMENT = json.loads(openapi_reference.DOCUMENT.read_text())


class Past:
    """A HistorySource over a life that looked up to `life.wall`."""

    def __init__(self) -> None:
        self.life = Life(None, wall=START - 60.0).start()
        for keys in ((), (key("gpu-0", "train-0"),), (), ()):
            self.life.look(*keys, uid="uid-1")

    async def find(self, question: HistoryQuery) -> HistoryResult:
        now = QueryMoment(self.life.sight.last, self.life.sight.failing, self.life.wall, PATIENCE)
        return self.life.archive.find(question, now)


@pytest.fixture
def past() -> Past:
    return Past()


@pytest.fixture
async def client(world: SimpleNamespace, past: Past) -> AsyncGenerator[Client]:
    world.publish()
    async with TestClient(TestServer(build(replace(world.site, history=past)))) as found:
        yield found


def _headers(answer: Any) -> dict[str, str]:
    """All but those that say how long the body is, and when it was."""
    left_out = {"Content-Length", "Content-Type", "Content-Encoding", "Date"}
    return {name: value for name, value in answer.headers.items() if name not in left_out}


@pytest.mark.parametrize("path", [*JSON, "/api/v1/nothing", "/api/v1/devices?x=1", "/-/ready", "/metrics"])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_head_answers_as_get_does_without_the_body(client: Client, path: str, encoding: str) -> None:
    headers = {"Accept-Encoding": encoding}
    get = await client.get(path, headers=headers)
    head = await client.head(path, headers=headers)
    assert head.status == get.status
    assert {**head.headers, "Date": ""} == {**get.headers, "Date": ""}
    assert await head.read() == b""


@pytest.mark.parametrize("path", TAGGED)
async def test_a_304_has_the_headers_of_the_200(client: Client, path: str) -> None:
    first = await client.get(path)
    tag = first.headers["ETag"]
    assert tag.startswith('W/"')
    assert first.headers["Cache-Control"] == "no-cache"
    assert (TAKEN_AT in first.headers) is (path != "/api/openapi.json")
    for method in ("GET", "HEAD"):
        for known in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
            again = await client.request(method, path, headers={"If-None-Match": known})
            assert (again.status, await again.read()) == (304, b"")
            assert _headers(again) == _headers(first)
    for unknown in ('"x"', '"*"', "nonsense", f'"{tag}"'):
        assert (await client.get(path, headers={"If-None-Match": unknown})).status == 200


@pytest.mark.parametrize("path", TAGGED)
async def test_one_tag_is_for_the_answer_in_every_coding(client: Client, path: str) -> None:
    tags = {
        (await client.get(path, headers={"Accept-Encoding": coding})).headers["ETag"]
        for coding in ("identity", "gzip")
    }
    assert len(tags) == 1


async def test_lists_may_come_in_several_lines(client: Client) -> None:
    tag = (await client.get("/api/v1/devices")).headers["ETag"]
    known = [("If-None-Match", '"x"'), ("If-None-Match", tag)]
    assert (await client.get("/api/v1/devices", headers=known)).status == 304
    taken = [("Accept-Encoding", "br"), ("Accept-Encoding", "gzip")]
    assert (await client.get("/api/v1/devices", headers=taken)).headers["Content-Encoding"] == "gzip"
    accepted = [("Accept", "text/html"), ("Accept", "application/json")]
    assert (await client.get("/api/v1/devices", headers=accepted)).status == 200


async def test_a_small_answer_is_compressed_only_for_who_takes_no_other(client: Client) -> None:
    path = "/api/v1/resources"
    for taken, coding in (("gzip", None), ("gzip, identity;q=0", "gzip"), ("identity;q=0", None)):
        answer = await client.get(path, headers={"Accept-Encoding": taken})
        assert (answer.status, answer.headers.get("Content-Encoding")) == (200, coding)


async def test_a_304_says_when_the_mapping_was_taken_though_the_kept_answer_cannot(
    client: Client, world: SimpleNamespace
) -> None:
    first = await client.get("/api/v1/devices")
    kept = await first.json()
    assert first.headers[TAKEN_AT] == kept["taken_at"]
    world.now += 20
    world.states.publish(replace(world.states.state, taken_at=world.now))
    again = await client.get("/api/v1/devices", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.headers[TAKEN_AT]) == (304, "2026-10-28T22:41:23.250Z")


@pytest.mark.parametrize("path", [*MAPPED, "/api/v1/status"])
async def test_a_tag_goes_with_what_is_told(client: Client, world: SimpleNamespace, path: str) -> None:
    tag = (await client.get(path)).headers["ETag"]

    async def again() -> int:
        return (await client.get(path, headers={"If-None-Match": tag})).status

    world.now += 5
    assert await again() == 304, "only ages are others"
    failure = Failure("List", "UNAVAILABLE", "gone", world.now)
    world.states.publish(replace(world.states.state, failure=failure))
    assert await again() == 200


async def test_the_past_keeps_its_tag_while_it_is_the_same(
    client: Client, past: Past, world: SimpleNamespace
) -> None:
    async def tag(path: str) -> str:
        answer = await client.get(path)
        assert answer.status == 200
        return answer.headers["ETag"]

    over, open_end = await tag(HISTORY), await tag("/api/v1/history")
    ahead = await tag(f"/api/v1/history?from={START - 60}&to={START + 3600}")
    assert len({over, open_end, ahead}) == 3
    past.life.look()
    world.now += 5
    assert await tag(HISTORY) == over, "that time was over, and another look says nothing of it"
    assert await tag("/api/v1/history") != open_end, "it is known for longer now"
    assert await tag(f"/api/v1/history?from={START - 60}&to={START + 3600}") != ahead
    assert await tag("/api/v1/history?from=-1h") != await tag("/api/v1/history?from=-2h")
    changed = await tag(HISTORY)
    world.publish()
    assert await tag(HISTORY) != changed, "the answer tells the mapping's generation too"


@pytest.mark.parametrize("path", JSON)
async def test_who_takes_no_json_is_told_what_there_is(client: Client, path: str) -> None:
    for accept in ("text/html", "application/json;q=0, */*", "text/*"):
        answer = await client.get(path, headers={"Accept": accept})
        problem = await answer.json(content_type="application/problem+json")
        assert (answer.status, problem["status"], problem["available"]) == (406, 406, ["application/json"])
        assert answer.headers["Cache-Control"] == "no-store"
    for accept in ("*/*", "application/json;q=0.1, text/html", "application/*"):
        assert (await client.get(path, headers={"Accept": accept})).status == 200


async def test_events_are_refused_and_headed_as_everything_else(client: Client) -> None:
    assert (await client.get("/api/v1/events", headers={"Accept": "application/json"})).status == 406
    assert (await client.get("/api/v1/events?since=1")).status == 400
    head = await client.head("/api/v1/events")
    assert (head.status, head.content_type, await head.read()) == (200, "text/event-stream", b"")
    async with client.get("/api/v1/events", headers={"Accept": "text/event-stream"}) as stream:
        assert _headers(stream).keys() >= _headers(head).keys()
        assert stream.headers["Cache-Control"] == head.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/devices?x=1", 400),
        ("/api/v1/history?at=x", 400),
        ("/api/v1/explain?device=unknown", 404),
        ("/api/v1/nothing", 404),
        ("/api/v2/devices", 404),
        ("/api/", 404),
        ("/api/v1/devices/", 404),
        ("/api/v1//devices", 404),
        ("/api/openapi.json?pretty=1", 400),
    ],
)
async def test_an_error_is_a_problem_that_nobody_keeps_and_no_tag_hides(
    client: Client, path: str, status: int
) -> None:
    answer = await client.get(path, headers={"If-None-Match": "*"})
    assert answer.status == status
    assert answer.content_type == "application/problem+json"
    problem = msgspec.json.decode(await answer.read(), type=Problem)
    assert (problem.type, problem.status) == ("about:blank", status)
    assert answer.headers["Cache-Control"] == "no-store"
    assert "ETag" not in answer.headers


async def test_before_there_is_a_mapping_no_tag_is_good(client: Client, world: SimpleNamespace) -> None:
    world.states.publish(State())
    for path in MAPPED:
        answer = await client.get(path, headers={"If-None-Match": "*"})
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert TAKEN_AT not in answer.headers
    status = await client.get("/api/v1/status")
    assert (status.status, TAKEN_AT in status.headers) == (200, False)


async def test_nobody_else_s_page_may_read_it(client: Client) -> None:
    for path in JSON:
        answer = await client.get(path, headers={"Origin": "https://elsewhere.example"})
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    preflight = {"Origin": "https://x.example", "Access-Control-Request-Method": "GET"}
    assert (await client.options("/api/v1/devices", headers=preflight)).status == 405


def _strict(node: Any) -> Any:
    """A schema by which nothing may be there that it does not name."""
    if isinstance(node, list):
        return [_strict(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    found = {name: _strict(value) for name, value in node.items()}
    return found | {"additionalProperties": False} if "properties" in found else found


@pytest.mark.parametrize("path", [*JSON, "/api/v1/devices?x=1", "/api/v1/explain?device=GPU", EXPLAIN + "x"])
async def test_nothing_is_answered_that_the_document_does_not_name(client: Client, path: str) -> None:
    answer = await client.get(path)
    operation = DOCUMENT["paths"][path.partition("?")[0]]["get"]
    response = operation["responses"][str(answer.status)]
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    schema = response["content"][answer.content_type]["schema"]
    components = {"schemas": _strict(DOCUMENT["components"]["schemas"])}
    validator = jsonschema.Draft202012Validator(schema | {"components": components})
    document = await answer.json(content_type=None)
    assert list(validator.iter_errors(document)) == []
    if "$ref" in schema:
        assert list(validator.iter_errors(document | {"further": 1})) != []


def test_half_characters_do_not_stop_an_answer() -> None:
    entry = ErrorEntry("List", "UNAVAILABLE", "/caf\udce9/\ud83d\ude00", "x")
    assert json.loads(encode({"a": [entry], "b\ud800": 1.5})) == {
        "a": [{"method": "List", "code": "UNAVAILABLE", "message": "/caf\ufffd/\U0001f600", "since": "x"}],
        "b\ufffd": 1.5,
    }


@given(st.text(st.characters(), max_size=20))
def test_whatever_is_said_can_be_read(text: str) -> None:
    read = json.loads(encode([text]))
    assert read == [text] or any(0xD800 <= ord(c) <= 0xDFFF for c in text)
