"""/api/v1/explain: one device, for programs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from exporter.mapping.device_ids import BUILT_IN_RULES, IdReader, rule
from exporter.mapping.state import State
from exporter.views import schema
from exporter.views.schema import ExplainDocument
from exporter.web.app import build

Client = TestClient[web.Request, web.Application]


async def get(client: Client, path: str, status: int = 200) -> Any:
    answer = await client.get(path)
    assert answer.status == status, await answer.text()
    expected = "application/json" if status == 200 else "application/problem+json"
    assert answer.content_type == expected
    return await answer.json(content_type=None)


async def test_a_device_is_explained_in_sentences_and_in_facts(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish()
    world.now += 2
    found = await get(client, "/api/v1/explain?device=GPU-7::0&resource=nvidia.com/gpu.shared")
    assert found["sentences"][0] == "GPU-7::0 of nvidia.com/gpu.shared is share 0 of GPU-7 (id rule replica)."
    assert found["sentences"][-1].endswith("2 s ago, and fresh.")
    assert (found["subject"], found["device"], found["resource"]) == (
        "device",
        "GPU-7::0",
        "nvidia.com/gpu.shared",
    )
    assert found["reading"] == {
        "rule": "replica",
        "kind": "replica",
        "parent": "GPU-7",
        "replica": "0",
        "partition": None,
    }
    assert found["parent_reading"]["kind"] == "whole"
    assert (found["parent"], found["attributed"], found["why_nobody"]) == ("GPU-7", True, None)
    assert found["numa"] == {"nodes": [1], "told_by": "kubelet"}
    devices = {d["device"]: d for d in (await get(client, "/api/v1/devices"))["devices"]}
    assert found["entry"] == devices["GPU-7::0"]
    assert found["siblings"] == [devices["GPU-7::1"]]
    assert (found["age_seconds"], found["freshness"], found["generation"]) == (2.0, "fresh", 1)


async def test_what_is_behind_shares_a_claimed_device_and_one_with_something_wrong(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish()
    parent = await get(client, "/api/v1/explain?device=GPU-7")
    assert (parent["subject"], parent["entry"], parent["resource"]) == ("parent", None, None)
    assert [part["device"] for part in parent["parts"]] == ["GPU-7::0", "GPU-7::1"]
    claimed = await get(client, "/api/v1/explain?device=gpu-0")
    assert (claimed["subject"], claimed["attributed"]) == ("claimed", True)
    assert [claim["driver"] for claim in claimed["claims"]] == ["gpu.example.com"]
    ill = await get(client, "/api/v1/explain?device=GPU-2")
    assert [anomaly["kind"] for anomaly in ill["anomalies"]] == ["unhealthy_held"]
    free = await get(client, "/api/v1/explain?device=GPU-3")
    assert (free["attributed"], free["why_nobody"]) == (False, "free: no pod holds it")


async def test_one_that_is_not_known_is_404_with_those_most_like_it(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish()
    unknown = await get(client, "/api/v1/explain?device=GPU-77", 404)
    start = "no device 'GPU-77' is known on this node; the most similar ids are GPU-"
    assert unknown["detail"].startswith(start)
    assert {"resource": "nvidia.com/gpu.shared", "device": "GPU-7::0"} in unknown["nearest"]
    assert (await get(client, "/api/v1/explain?device=x&resource=tpu", 404))["nearest"] == []


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("", "device"),
        ("?device=", "device"),
        ("?device=GPU", "device"),
        ("?device=a&device=b", "device"),
        ("?id=a", "id"),
        ("?device=" + "x" * 513, "device"),
    ],
)
async def test_what_is_asked_wrongly_is_said(
    client: Client, world: SimpleNamespace, query: str, parameter: str
) -> None:
    world.publish()
    assert (await get(client, f"/api/v1/explain{query}", 400))["parameter"] == parameter


async def test_where_several_are_meant_they_are_named(client: Client, world: SimpleNamespace) -> None:
    world.publish()
    refused = await get(client, "/api/v1/explain?device=PU-7::", 400)
    assert [key["device"] for key in refused["devices"]] == ["GPU-7::0", "GPU-7::1"]


async def test_before_the_kubelet_has_answered_nothing_is_said_not_to_be_there(client: Client) -> None:
    assert (await get(client, "/api/v1/explain?device=GPU-0", 503))["freshness"] == "unknown"


async def test_the_users_rules_are_used(world: SimpleNamespace) -> None:
    world.publish()
    mine = rule("mine", r"(?P<parent>GPU)-(?P<replica>\d)", resource="nvidia.com/gpu")
    site = replace(world.site, reader=IdReader([mine, *BUILT_IN_RULES]))
    from aiohttp.test_utils import TestServer  # noqa: PLC0415

    async with TestClient(TestServer(build(site))) as client:
        found = await get(client, "/api/v1/explain?device=GPU-0")
    assert found["reading"]["rule"] == "mine"


async def test_the_document_is_the_one_that_the_command_reads(client: Client, world: SimpleNamespace) -> None:
    world.publish()
    body = await (await client.get("/api/v1/explain?device=GPU-0")).read()
    read = msgspec.json.decode(body, type=ExplainDocument)
    assert isinstance(read.entry, schema.DeviceEntry)
    assert msgspec.json.encode(read) == body
    world.states.publish(State())
