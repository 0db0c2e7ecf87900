"""docs/http-api.md says what the exporter answers."""

import json
import re
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from exporter.history.query import LIMIT, MAX_LIMIT
from exporter.views import query, schema
from exporter.web import events
from harness import openapi_reference
from harness.http_api_reference import DOCUMENT, EXAMPLE, answers, application, renewed

TEXT = DOCUMENT.read_text()
OPENAPI = json.loads(openapi_reference.DOCUMENT.read_text())
EXAMPLES = {match["path"]: json.loads(match["answer"]) for match in EXAMPLE.finditer(TEXT)}


def _shape(value: Any) -> Any:
    """What is there, without what it says."""
    match value:
        case dict():
            return {name: _shape(inner) for name, inner in value.items()}
        case list():
            return [_shape(inner) for inner in value]
        case bool() | None:
            return value
        case int() | float():
            return "a number"
        case _:
            return "a text"


async def test_its_examples_are_what_is_answered() -> None:
    found = await answers(list(EXAMPLES))
    command = "cd tests && python -m harness.http_api_reference"
    assert EXAMPLES
    for path, answer in EXAMPLES.items():
        assert _shape(answer) == _shape(found[path]), f"{path}: {command}"
    assert renewed(TEXT, lambda path: EXAMPLES[path]) == TEXT, command


def test_every_address_is_documented() -> None:
    assert [path for path in OPENAPI["paths"] if path not in TEXT] == []


def test_every_member_of_the_envelope_is_documented() -> None:
    section = TEXT.split("## How old an answer is")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == set(schema.Envelope.__struct_fields__)
    for word in ("fresh", "ageing", "stale", "unknown"):
        assert f"`{word}`" in section


def test_every_filter_is_documented_where_it_applies() -> None:
    section = TEXT.split("\n## Filters")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|[^|]*\| ([a-z, ]+) \|$", section, re.MULTILINE)
    documented = {
        (place.strip(), name)
        for names, places in rows
        for name in re.findall(r"`(\w+)`", names)
        for place in places.split(",")
    }
    known = {
        (path.rpartition("/")[2], parameter["name"])
        for path, methods in OPENAPI["paths"].items()
        for parameter in methods["get"].get("parameters", ())
        if "name" in parameter and path not in {"/api/v1/explain", "/api/v1/history"}
    }
    assert documented == known


def test_its_numbers_are_those_of_the_code() -> None:
    assert f"`limit` ({LIMIT}, up to {MAX_LIMIT})" in TEXT
    assert f"A value has {query.TEXT_LIMIT} characters at most" in TEXT
    assert f"most {events.LIMIT} may follow at once" in TEXT
    assert 1 / events.SPACING == 4
    assert all(f"`{name}`" in TEXT for name in query.HISTORY_PARAMETERS)


def test_every_status_is_documented() -> None:
    statuses = {s for item in OPENAPI["paths"].values() for s in item["get"]["responses"]}
    rows = set(re.findall(r"^\| (\d{3}) \|", TEXT, re.MULTILINE))
    assert statuses - {"200", "304"} <= rows
    assert rows - statuses == {"405"}


Client = TestClient[web.Request, web.Application]


async def test_what_it_says_of_errors_is_so() -> None:
    async with TestClient(TestServer(application())) as client:
        for path, status, members in (
            ("/api/v1/devices?x=1", 400, {"parameter", "found", "expected"}),
            ("/api/v1/explain?device=GPU", 400, {"parameter", "devices"}),
            ("/api/v1/explain?device=GPU-9", 404, {"nearest", "node"}),
        ):
            answer = await client.get(path)
            problem = msgspec.json.decode(await answer.read())
            assert (answer.status, problem["type"]) == (status, "about:blank")
            assert problem.keys() - {"type", "title", "status", "detail"} == members
        refused = await client.post("/api/v1/devices")
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


async def test_its_example_of_events_is_what_a_stream_begins_with() -> None:
    example = TEXT.split("```text\nevent: generation")[1].split("\n\n")[0].splitlines()[1:]
    async with TestClient(TestServer(application())) as client, client.get("/api/v1/events") as stream:
        lines = [(await stream.content.readline()).decode().rstrip() for _ in range(4)]
    documented = {line.partition(":")[0] for line in ["event", *example]}
    assert {line.partition(":")[0] for line in lines} == documented
    assert "data: 17" in lines
