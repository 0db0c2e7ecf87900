"""What every address of the API has in common: headers, HEAD, tags, negotiation, errors, schemas."""

import json
from types import SimpleNamespace
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.history.record import HoldingFacts
from exporter.mapping.state import Failure
from exporter.views.encoding import encode
from exporter.views.schema import ErrorEntry, Problem
from exporter.web.answers import accepts
from harness import openapi_reference
from harness.lives import key
from harness.page_reader import Client
from harness.past import Past
from harness.scene import START

TAKEN_AT = "Devicelens-Taken-At"
DEVICES = "/api/v1/devices"
EXPLAIN = "/api/v1/explain?device=GPU-0"
MAPPED = [*(f"/api/v1/{n}" for n in ("devices", "pods", "claims", "resources", "anomalies")), EXPLAIN]
HISTORY = f"/api/v1/history?from={START - 3600}&to={START - 3585}"
OPEN_HISTORY = f"/api/v1/history?from={START - 3600}&to={START + 3600}"
TAGGED = [*MAPPED, "/api/v1/status", HISTORY, "/api/openapi.json"]
JSON = [*TAGGED, "/api/v1", "/api/v1/history"]
DOCUMENT = json.loads(openapi_reference.DOCUMENT.read_text())


@pytest.fixture(autouse=True)
def polled(past: Past) -> Past:
    """A history of four polls."""
    for held in ((), ((key("gpu-0", "train-0"), HoldingFacts("uid-1")),), (), ()):
        past.look(*held)
    return past


def _headers(answer: Any) -> dict[str, str]:
    """The headers that do not depend on the body and the time."""
    left_out = {"Content-Length", "Content-Type", "Content-Encoding", "Date"}
    return {name: value for name, value in answer.headers.items() if name not in left_out}


@pytest.mark.parametrize("path", [*JSON, "/api/v1/nothing", "/api/v1/devices?x=1", "/-/ready", "/metrics"])
async def test_head_has_the_headers_of_get(client: Client, path: str) -> None:
    for encoding in ("identity", "gzip"):
        headers = {"Accept-Encoding": encoding}
        get, head = await client.get(path, headers=headers), await client.head(path, headers=headers)
        assert head.status == get.status
        assert {**head.headers, "Date": ""} == {**get.headers, "Date": ""}
        assert await head.read() == b""


async def test_a_list_that_a_client_asks_for_is_made_before_the_next_state_is_published(
    client: Client, world: SimpleNamespace
) -> None:
    assert world.site.preparers == []
    assert (await client.get("/api/v1/devices")).status == 200
    (bodies,) = world.site.preparers
    state = world.publish()
    bodies.prepare(state)
    assert bodies.find("devices").ready(state) is not None
    assert bodies.find("pods").ready(state) is None


@pytest.mark.parametrize("path", [*MAPPED, "/api/v1/status"])
async def test_documents_of_many_devices_are_made_in_a_thread_and_are_the_same(
    client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = await client.get(path, headers={"Accept-Encoding": "identity"})
    expected = await plain.read()
    monkeypatch.setattr("exporter.web.api.LARGE_FROM", 0)
    for encoding in ("identity", "gzip"):
        answers = [await client.get(path, headers={"Accept-Encoding": encoding}) for _ in range(2)]
        assert [await one.read() for one in answers] == [expected, expected]
        assert {_same(one) for one in answers} == {_same(plain)}
        head = await client.head(path, headers={"Accept-Encoding": encoding})
        assert head.headers["Content-Length"] == answers[0].headers["Content-Length"]
    assert (await client.get(path, headers={"If-None-Match": plain.headers["ETag"]})).status == 304


def _same(answer: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(_headers(answer).items()))


async def test_other_origins_cannot_read_answers(client: Client) -> None:
    for path in JSON:
        answer = await client.get(path, headers={"Origin": "https://elsewhere.example"})
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


# --- tags -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TAGGED)
async def test_a_304_has_the_headers_of_the_200(client: Client, path: str) -> None:
    first = await client.get(path, headers={"Accept-Encoding": "identity"})
    tag = first.headers["ETag"]
    assert tag.startswith('W/"')
    assert first.headers["Cache-Control"] == "no-cache"
    assert (TAKEN_AT in first.headers) is (path != "/api/openapi.json")
    assert (await client.get(path, headers={"Accept-Encoding": "gzip"})).headers["ETag"] == tag
    for known in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
        for method in ("GET", "HEAD"):
            again = await client.request(method, path, headers={"If-None-Match": known})
            assert (again.status, await again.read()) == (304, b"")
            assert _headers(again) == _headers(first)
    for unknown in ('"x"', '"*"', "nonsense", f'"{tag}"', ""):
        assert (await client.get(path, headers={"If-None-Match": unknown})).status == 200


async def test_a_304_has_the_time_of_the_last_refresh(client: Client, world: SimpleNamespace) -> None:
    first = await client.get(DEVICES)
    assert first.headers[TAKEN_AT] == (await first.json())["taken_at"]
    world.now += 20
    world.states.publish(replace(world.states.state, taken_at=world.now))
    again = await client.get(DEVICES, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.headers[TAKEN_AT]) == (304, "2026-10-28T22:41:23.250Z")


@pytest.mark.parametrize("path", [*MAPPED, "/api/v1/status"])
async def test_a_tag_changes_with_the_content_but_not_with_ages(
    client: Client, world: SimpleNamespace, path: str
) -> None:
    tag = (await client.get(path)).headers["ETag"]
    world.now += 5
    assert (await client.get(path, headers={"If-None-Match": tag})).status == 304
    failure = Failure("List", "UNAVAILABLE", "gone", world.now)
    world.states.publish(replace(world.states.state, failure=failure))
    assert (await client.get(path, headers={"If-None-Match": tag})).status == 200
    other = replace(world.site, run="another")
    assert world.site.tag(world.site.moment()) != other.tag(other.moment()), "generations restart"


def test_a_tag_is_that_of_the_state_the_freshness_and_the_triggers(world: SimpleNamespace) -> None:
    def tag() -> str:
        return str(world.site.tag(world.site.moment()))

    first, began, triggers = tag(), world.now, world.triggers
    tags = [first]
    world.now += world.site.stale_after + 1
    tags.append(tag())
    world.now, world.triggers = began, ("timer",)
    tags.append(tag())
    world.triggers = triggers
    assert tag() == first
    state = world.states.state
    for changes in ({"generation": 9}, {"notes": ("a note",)}, {"api_version": "v1alpha1"}):
        world.states.publish(replace(state, **changes))
        tags.append(tag())
    assert len(set(tags)) == len(tags)
    world.states.publish(replace(state, taken_at=began + 1))
    assert tag() == first, "an unchanged poll"


async def test_a_tag_of_history_lasts_while_its_range_is_over(
    client: Client, past: Past, world: SimpleNamespace
) -> None:
    async def tag(path: str) -> str:
        answer = await client.get(path)
        assert answer.status == 200
        return answer.headers["ETag"]

    over, latest, ahead = await tag(HISTORY), await tag("/api/v1/history"), await tag(OPEN_HISTORY)
    assert len({over, latest, ahead}) == 3
    past.look()
    world.now += 5
    assert await tag(HISTORY) == over, "another poll says nothing of that time"
    assert await tag("/api/v1/history") != latest
    assert await tag(OPEN_HISTORY) != ahead
    assert await tag("/api/v1/history?from=-1h") != await tag("/api/v1/history?from=-2h")
    world.publish()
    assert await tag(HISTORY) != over, "the envelope has the mapping's generation"


# --- negotiation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "allowed"),
    [
        (None, True),
        ("", True),
        ("*/*", True),
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/*;q=0.1", True),
        ("text/html, application/json;q=0.001", True),
        ("text/html,*/*;q=0.8", True),
        ("application/json;q=0, */*", False),
        ("*/*, application/json;q=0", False),
        ("application/*;q=0, */*", False),
        ("application/*;q=0, application/json", True),
        ("*/*;q=0", False),
        ("*/*;q=0.000", False),
        ("text/html", False),
        ("application/problem+json", False),
        ("text/html, application/xml", False),
        ("application/json;q=0;version=1, application/json", True),
        # Invalid ranges are ignored.
        ("nonsense", True),
        (";;,,", True),
        ("application/json;q=high", True),
        ("text/html;q=2", True),
        ("nonsense, text/html", False),
    ],
)
def test_the_most_specific_range_decides(accept: str | None, allowed: bool) -> None:
    assert accepts(accept, "application/json") is allowed


@given(st.text())
def test_any_accept_header_is_read(header: str) -> None:
    assert accepts(header, "application/json") in {True, False}


@pytest.mark.parametrize("path", JSON)
async def test_a_client_that_refuses_json_gets_406(client: Client, path: str) -> None:
    answer = await client.get(path, headers={"Accept": "text/html"})
    problem = await answer.json(content_type="application/problem+json")
    assert (answer.status, problem["status"], problem["available"]) == (406, 406, ["application/json"])
    assert answer.headers["Cache-Control"] == "no-store"
    several = [("Accept", "text/html"), ("Accept", "application/json;q=0.1")]
    assert (await client.get(path, headers=several)).status == 200


async def test_large_answers_are_compressed(client: Client) -> None:
    plain = await client.get(DEVICES, headers={"Accept-Encoding": "identity"})
    squeezed = await client.get(DEVICES, headers=[("Accept-Encoding", "br"), ("Accept-Encoding", "gzip")])
    small = await client.get("/api/v1/resources", headers={"Accept-Encoding": "gzip"})
    codings = [answer.headers.get("Content-Encoding") for answer in (plain, squeezed, small)]
    assert codings == [None, "gzip", None]
    assert squeezed.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert await plain.json() == await squeezed.json()


async def test_events_negotiate_and_refuse_as_other_addresses(client: Client) -> None:
    assert (await client.get("/api/v1/events", headers={"Accept": "application/json"})).status == 406
    assert (await client.get("/api/v1/events?since=1")).status == 400
    head = await client.head("/api/v1/events")
    assert (head.status, head.content_type, await head.read()) == (200, "text/event-stream", b"")
    async with client.get("/api/v1/events", headers={"Accept": "text/event-stream"}) as stream:
        assert _headers(stream).keys() >= _headers(head).keys()
        assert stream.headers["Cache-Control"] == head.headers["Cache-Control"] == "no-cache"


# --- errors and schemas ---------------------------------------------------------------------------------


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
async def test_an_error_is_a_problem_without_tag_or_cache(client: Client, path: str, status: int) -> None:
    answer = await client.get(path, headers={"If-None-Match": "*"})
    assert (answer.status, answer.content_type) == (status, "application/problem+json")
    problem = msgspec.json.decode(await answer.read(), type=Problem)
    assert (problem.type, problem.status) == ("about:blank", status)
    assert answer.headers["Cache-Control"] == "no-store"
    assert "ETag" not in answer.headers


def _strict(node: Any) -> Any:
    """The schema without further members."""
    if isinstance(node, list):
        return [_strict(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    found = {name: _strict(value) for name, value in node.items()}
    return found | {"additionalProperties": False} if "properties" in found else found


@pytest.mark.parametrize("path", [*JSON, "/api/v1/devices?x=1", "/api/v1/explain?device=GPU", EXPLAIN + "x"])
async def test_every_answer_has_the_members_of_its_schema_alone(client: Client, path: str) -> None:
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


@given(st.text(st.characters(), max_size=20))
def test_any_text_can_be_encoded(text: str) -> None:
    read = json.loads(encode([text]))
    assert read == [text] or any(0xD800 <= ord(c) <= 0xDFFF for c in text)


def test_lone_surrogates_become_replacement_characters() -> None:
    entry = ErrorEntry("List", "UNAVAILABLE", "/caf\udce9/\ud83d\ude00", "x")
    assert json.loads(encode({"a": [entry], "b\ud800": 1.5})) == {
        "a": [{"method": "List", "code": "UNAVAILABLE", "message": "/caf\ufffd/\U0001f600", "since": "x"}],
        "b\ufffd": 1.5,
    }
