"""The OpenAPI document: whole, valid, committed, and of the same words as the code."""

import gzip
import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from exporter.history.coverage import GapReason
from exporter.history.record import Certainty
from exporter.mapping.device_ids import DeviceKind
from exporter.mapping.state import Freshness
from exporter.views import links, matching, query
from exporter.views.explain import Subject
from exporter.views.query import DeviceState
from exporter.views.schema import KINDS
from exporter.web import api, openapi
from exporter.web.app import build
from harness import openapi_reference

Client = TestClient[web.Request, web.Application]


@pytest.fixture(scope="module")
def document() -> Any:
    # As a client sees it: through JSON.
    return json.loads(openapi_reference.text())


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set[str]()
        return own.union(*map(_references, node.values()))
    return set[str]().union(*map(_references, node)) if isinstance(node, list) else set()


def test_it_is_valid(document: Any) -> None:
    OPENAPI_31_VALIDATOR.validate(document)
    broken = json.loads(json.dumps(document))
    broken["paths"]["/metrics"]["get"]["responses"]["200"].pop("description")
    assert not OPENAPI_31_VALIDATOR.is_valid(broken)


def test_the_committed_copy_is_of_this_code() -> None:
    told = "cd tests && python -m harness.openapi_reference"
    assert openapi_reference.DOCUMENT.read_text() == openapi_reference.text(), told


def test_every_address_for_programs_is_in_it_and_no_other(document: Any, world: SimpleNamespace) -> None:
    served = {
        resource.canonical
        for resource in build(world.site).router.resources()
        if resource.canonical.startswith(("/api", "/-/", "/metrics"))
    }
    assert set(document["paths"]) == served - {"/api/v1/"}


def test_nothing_in_it_leads_nowhere_and_nothing_is_left_over(document: Any) -> None:
    there = {
        f"#/components/{kind}/{name}"
        for kind, found in document["components"].items()
        for name in found
        if kind != "securitySchemes"
    }
    assert _references(document) == there


def test_everything_is_described(document: Any) -> None:
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name
    for path, item in document["paths"].items():
        operation = item["get"]
        assert operation["summary"], path
        assert operation["description"].endswith("."), path
        for parameter in operation.get("parameters", ()):
            assert "$ref" in parameter or (parameter["description"] and "example" in parameter), path


def _words(document: Any, schema: str, member: str) -> set[str | None]:
    property_ = document["components"]["schemas"][schema]["properties"][member]
    return set(property_["enum"])


def test_its_words_are_those_of_the_code(document: Any) -> None:
    assert _words(document, "DevicesDocument", "freshness") == {f.value for f in Freshness}
    assert _words(document, "BoundEntry", "certainty") == {c.value for c in Certainty}
    assert _words(document, "UnseenEntry", "why") == {gap.value for gap in GapReason}
    assert _words(document, "ReadingEntry", "kind") == {kind.value for kind in DeviceKind}
    assert _words(document, "ExplainDocument", "subject") == {subject.value for subject in Subject}
    assert _words(document, "AnomalyEntry", "kind") == set(KINDS)


KNOWN = {
    "/api/v1/devices": ("q", "resource", "namespace", "pod", "device", "state"),
    "/api/v1/pods": ("q", "resource", "namespace", "pod", "device", "state"),
    "/api/v1/claims": matching.CLAIMS,
    "/api/v1/resources": matching.RESOURCES,
    "/api/v1/anomalies": matching.ANOMALIES,
    "/api/v1/explain": ("device", "resource"),
    "/api/v1/history": query.KNOWN,
}


def test_its_parameters_are_those_that_are_known() -> None:
    told = {o.path: {p.name for p in o.parameters} for o in openapi.OPERATIONS if o.parameters}
    assert told == {path: set(names) for path, names in KNOWN.items()}


@pytest.mark.parametrize("operation", [o for o in openapi.OPERATIONS if o.path.startswith("/api/")])
async def test_what_is_told_of_parameters_is_so(
    client: Client, world: SimpleNamespace, operation: openapi.Operation
) -> None:
    world.publish()
    refused = await client.get(f"{operation.path}?no_such=1")
    assert refused.status == 400
    expected = (await refused.json(content_type=None))["expected"]
    known = [parameter.name for parameter in operation.parameters]
    assert expected == (f"one of {', '.join(known)}" if known else "no parameters here")


def test_a_state_is_one_of_those_that_there_are(document: Any) -> None:
    (state,) = (p for p in document["paths"]["/api/v1/pods"]["get"]["parameters"] if p.get("name") == "state")
    assert state["schema"]["enum"] == [*DeviceState]


async def test_it_is_served_with_a_tag_and_small(client: Client, document: Any) -> None:
    answer = await client.get("/api/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert int(answer.headers["Content-Length"]) < 20_000
    assert await answer.json() == document
    tag = answer.headers["ETag"]
    again = await client.get("/api/openapi.json", headers={"If-None-Match": tag})
    assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", tag)
    assert again.headers["Vary"] == answer.headers["Vary"]
    assert len(gzip.compress(openapi_reference.text().encode())) < 20_000


async def test_the_index_leads_to_everything(client: Client, world: SimpleNamespace) -> None:
    """Before there is a mapping too."""
    told: Any = None
    for path in ("/api/v1", "/api/v1/"):
        answer = await client.get(path)
        told = await answer.json()
        assert (told["node"], told["version"]) == ("worker-3", "1.2.3")
        assert [entry["href"] for entry in told["endpoints"]] == [o.path for o in openapi.OPERATIONS]
        assert (await client.get(told["openapi"])).status == 200
    world.publish()
    for entry in told["endpoints"]:
        if entry["href"] not in {"/api/v1/explain", "/api/v1/history"}:
            async with client.get(entry["href"]) as found:
                assert found.status == 200, entry


def test_its_pages_are_where_the_pages_are() -> None:
    pages = api.document("n", "1").pages
    names = {"resource": "nvidia.com/gpu", "device": "GPU-1", "namespace": "ml", "name": "llama-0"}
    names |= {"driver": "gpu.example.com", "pool": "worker-3"}
    made = {kind: re.sub(r"\{\+?(\w+)\}", lambda m: names[m[1]], pages[kind]) for kind in pages}
    assert made["device"] == links.device_link(names["resource"], names["device"])
    assert made["pod"] == links.pod_link(names["namespace"], names["name"])
    assert made["claim"] == links.claim_link(names["driver"], names["pool"], names["device"])
    assert made["history"].partition("{")[0] == links.history_link()
    assert made["status"].partition("{")[0] == "/"


def test_an_exporter_that_is_not_asked_for_it_does_not_have_it() -> None:
    program = "import sys, exporter.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    mine = {name for name in done.stdout.split() if name.startswith("exporter.web.api.")}
    assert "exporter.web.api" in mine
    parts = ("index", "openapi", "openapi_serving", "operations", "parameters", "responses", "about_schema")
    assert not mine & {f"exporter.web.api.{part}" for part in parts}


def test_it_says_of_what_version_it_is() -> None:
    assert openapi.document("9.8.7")["info"]["version"] == "9.8.7"
