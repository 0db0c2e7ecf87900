"""The OpenAPI document: valid, generated from the code, and equal to the routes and their parameters."""

import gzip
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from exporter.history.coverage import GapReason
from exporter.history.record import Certainty
from exporter.mapping.device_ids import DeviceKind
from exporter.mapping.state import Freshness
from exporter.views import query
from exporter.views.explain import Subject
from exporter.views.query import StateFilter
from exporter.views.schema import KINDS
from exporter.web import api
from exporter.web.app import build
from harness.openapi_reference import DOCUMENT
from harness.page_reader import Client
from runtime import __version__

TEXT = DOCUMENT.read_text()
PATHS = json.loads(TEXT)["paths"]
PARAMETERS = {
    "/api/v1/devices": (*query.DEVICE_FILTERS, *query.PAGING),
    "/api/v1/pods": (*query.DEVICE_FILTERS, *query.PAGING),
    "/api/v1/claims": (*query.CLAIM_FILTERS, *query.PAGING),
    "/api/v1/resources": (*query.RESOURCE_FILTERS, *query.PAGING),
    "/api/v1/anomalies": (*query.ANOMALY_FILTERS, *query.PAGING),
    "/api/v1/explain": ("device", "resource"),
    "/api/v1/history": query.HISTORY_PARAMETERS,
}


@pytest.fixture
def document() -> Any:
    return json.loads(TEXT)


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set[str]()
        return own.union(*map(_references, node.values()))
    return set[str]().union(*map(_references, node)) if isinstance(node, list) else set()


def test_the_document_is_valid(document: Any) -> None:
    OPENAPI_31_VALIDATOR.validate(document)
    document["paths"]["/metrics"]["get"]["responses"]["200"].pop("description")
    assert not OPENAPI_31_VALIDATOR.is_valid(document)


def test_the_committed_document_is_generated_from_this_code(document: Any) -> None:
    made = runpy.run_path(str(Path(__file__).parents[4] / "docs" / "make_openapi.py"))["text"]()
    assert made == TEXT, "make openapi"
    assert document["info"]["version"] == __version__


def test_the_document_has_every_route_for_programs_and_no_other(
    document: Any, world: SimpleNamespace
) -> None:
    served = {
        resource.canonical
        for resource in build(world.site).router.resources()
        if resource.canonical.startswith(("/api", "/-/", "/metrics"))
    }
    assert set(document["paths"]) == served - {"/api/v1/"}


def test_every_reference_has_a_component_and_every_component_a_reference(document: Any) -> None:
    there = {
        f"#/components/{kind}/{name}"
        for kind, found in document["components"].items()
        for name in found
        if kind != "securitySchemes"
    }
    assert _references(document) == there


def test_every_schema_and_operation_has_a_description(document: Any) -> None:
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name
    for path, item in document["paths"].items():
        operation = item["get"]
        assert operation["summary"], path
        assert operation["description"].endswith("."), path
        for parameter in operation.get("parameters", ()):
            assert "$ref" in parameter or (parameter["description"] and "example" in parameter), path


def test_enumerations_are_those_of_the_code(document: Any) -> None:
    def words(schema: str, member: str) -> set[str | None]:
        return set(document["components"]["schemas"][schema]["properties"][member]["enum"])

    assert words("DevicesDocument", "freshness") == {f.value for f in Freshness}
    assert words("BoundEntry", "certainty") == {c.value for c in Certainty}
    assert words("UnseenEntry", "why") == {gap.value for gap in GapReason}
    assert words("ReadingEntry", "kind") == {kind.value for kind in DeviceKind}
    assert words("ExplainDocument", "subject") == {subject.value for subject in Subject}
    assert words("AnomalyEntry", "kind") == set(KINDS)
    (state,) = (p for p in document["paths"]["/api/v1/pods"]["get"]["parameters"] if p.get("name") == "state")
    assert state["schema"]["enum"] == [*StateFilter]


@pytest.mark.parametrize("path", [path for path in PATHS if path.startswith("/api/")])
async def test_parameters_are_those_that_are_accepted(client: Client, path: str) -> None:
    named = [p["name"] for p in PATHS[path]["get"].get("parameters", ()) if "name" in p]
    assert set(named) == set(PARAMETERS.get(path, ()))
    refused = await client.get(f"{path}?no_such=1")
    assert refused.status == 400
    expected = (await refused.json(content_type=None))["expected"]
    assert expected == (f"one of {', '.join(named)}" if named else "no parameters here")


async def test_the_document_is_served_and_small(client: Client, document: Any) -> None:
    answer = await client.get("/api/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.headers["Content-Encoding"] == "gzip"
    assert int(answer.headers["Content-Length"]) < 20_000
    assert await answer.json() == document
    assert len(gzip.compress(TEXT.encode())) < 20_000


async def test_the_index_has_every_address(client: Client, world: SimpleNamespace) -> None:
    """Before there is a mapping too."""
    index: Any = None
    for path in ("/api/v1", "/api/v1/"):
        index = await (await client.get(path)).json()
        assert (index["node"], index["version"]) == ("worker-3", "1.2.3")
        assert [entry["href"] for entry in index["endpoints"]] == [*PATHS]
        assert (await client.get(index["openapi"])).status == 200
    world.publish()
    for entry in index["endpoints"]:
        assert set(entry["parameters"]) == set(PARAMETERS.get(entry["href"], ()))
        if entry["href"] not in {"/api/v1/explain", "/api/v1/history"}:
            async with client.get(entry["href"]) as found:
                assert found.status == 200, entry


def test_addresses_of_pages_in_the_index() -> None:
    names = {"resource": "nvidia.com/gpu", "device": "GPU-1", "namespace": "ml", "name": "llama-0"}
    names |= {"driver": "gpu.example.com", "pool": "worker-3"}
    made = {kind: re.sub(r"\{\+?(\w+)\}", lambda m: names[m[1]], page) for kind, page in api.PAGES.items()}
    assert made["device"] == query.device_link(names["resource"], names["device"])
    assert made["pod"] == query.pod_link(names["namespace"], names["name"])
    assert made["claim"] == query.claim_link(names["driver"], names["pool"], names["device"])
    assert made["history"].partition("{")[0] == query.history_link()
    assert made["status"].partition("{")[0] == "/"
