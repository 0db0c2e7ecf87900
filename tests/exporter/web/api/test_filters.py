"""Which claims, resources and anomalies a query keeps."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from hypothesis import given
from hypothesis import strategies as st

import exporter.mapping
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import Anomaly, ClaimDevice, ClaimDeviceKey, ClaimHolder, Holder
from exporter.views.matching import ItemMatcher
from exporter.views.query import CLAIM_FILTERS, Filters, QueryError, parse_filters
from exporter.views.schema import KINDS
from exporter.views.wording import spelled

Client = TestClient[web.Request, web.Application]

A, B = Holder("ml", "train-0", "main", "uid-a"), Holder("web", "serve-1", "server")
CLAIMS = (
    ClaimDevice(
        ClaimDeviceKey("gpu.nvidia.com", "worker-3", "gpu-0"),
        (ClaimHolder(A, "ml", "mine"), ClaimHolder(B, "web", "ours")),
    ),
    ClaimDevice(
        ClaimDeviceKey("nic.example.com", "pool-b", "Eth-1", "share-7"), (ClaimHolder(B, "web", "ours"),)
    ),
    ClaimDevice(ClaimDeviceKey("nic.example.com", "pool-b", "eth-2"), ()),
)
ANOMALIES = (
    Anomaly(
        "double_held", "nvidia.com/gpu", "GPU-1", None, "held twice", pods=(("ml", "train-0"), ("web", "x"))
    ),
    Anomaly("plugin_gone", "example.com/nic", evidence="no plugin", devices=("nic-1", "nic-2")),
    Anomaly("unhealthy_held", "nvidia.com/gpu", "GPU-2", B, "XID 79"),
)


async def kept(client: Client, what: str, query: str) -> list[Any]:
    answer = await client.get(f"/api/v1/{what}?{query}")
    assert answer.status == 200, await answer.text()
    return list((await answer.json())[what])


@pytest.mark.parametrize(
    ("query", "devices"),
    [
        ("", ["gpu-0", "Eth-1", "eth-2"]),
        ("driver=nic.example.com", ["Eth-1", "eth-2"]),
        ("driver=nic", []),
        ("pool=worker-3", ["gpu-0"]),
        ("device=ETH", ["Eth-1", "eth-2"]),
        ("claim=ours", ["gpu-0", "Eth-1"]),
        ("claim=our", []),
        ("namespace=ml", ["gpu-0"]),
        ("pod=serve", ["gpu-0", "Eth-1"]),
        # One holder must have all of it.
        ("namespace=ml&pod=serve", []),
        ("claim=mine&namespace=web", []),
        ("claim=ours&namespace=web&driver=nic.example.com", ["Eth-1"]),
        ("q=SHARE-7", ["Eth-1"]),
        ("q=web/ours", ["gpu-0", "Eth-1"]),
        ("q=uid-a", ["gpu-0"]),
        ("q=nothing", []),
    ],
)
async def test_claims(client: Client, world: SimpleNamespace, query: str, devices: list[str]) -> None:
    world.publish(replace(world.snapshot, claims=CLAIMS))
    found = await kept(client, "claims", query)
    assert [claim["device"] for claim in found] == devices
    if query == "namespace=ml":
        assert len(found[0]["holders"]) == 2, "it is kept whole"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("resource=nvidia.com/gpu", ["nvidia.com/gpu"]),
        ("resource=gpu", []),
        ("q=GPU.SHARED", ["nvidia.com/gpu.shared"]),
        ("q=gpu&resource=nvidia.com/gpu.shared", ["nvidia.com/gpu.shared"]),
    ],
)
async def test_resources(client: Client, world: SimpleNamespace, query: str, names: list[str]) -> None:
    world.publish()
    assert [entry["resource"] for entry in await kept(client, "resources", query)] == names


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("", ["double_held", "plugin_gone", "unhealthy_held"]),
        ("kind=plugin_gone", ["plugin_gone"]),
        ("resource=nvidia.com/gpu", ["double_held", "unhealthy_held"]),
        ("device=NIC-2", ["plugin_gone"]),
        ("device=gpu", ["double_held", "unhealthy_held"]),
        ("namespace=web", ["double_held", "unhealthy_held"]),
        ("namespace=ml&pod=train", ["double_held"]),
        ("namespace=ml&pod=x", []),
        ("q=xid", ["unhealthy_held"]),
        ("q=serve-1", ["unhealthy_held"]),
    ],
)
async def test_anomalies(client: Client, world: SimpleNamespace, query: str, kinds: list[str]) -> None:
    world.publish(anomalies=ANOMALIES)
    assert [anomaly["kind"] for anomaly in await kept(client, "anomalies", query)] == kinds


async def test_a_stale_mapping_is_filtered_and_sorted_with_the_others(
    client: Client, world: SimpleNamespace
) -> None:
    world.publish(anomalies=ANOMALIES)
    world.now += 100
    kinds = [anomaly["kind"] for anomaly in await kept(client, "anomalies", "")]
    assert kinds == ["double_held", "plugin_gone", "stale", "unhealthy_held"]
    assert [anomaly["kind"] for anomaly in await kept(client, "anomalies", "kind=stale")] == ["stale"]
    assert "stale" not in [a["kind"] for a in await kept(client, "anomalies", "resource=nvidia.com/gpu")]


async def test_the_nearest_right_word_is_told(client: Client, world: SimpleNamespace) -> None:
    world.publish()

    async def expected(path: str) -> str:
        answer = await client.get(f"/api/v1/{path}")
        assert answer.status == 400
        return str((await answer.json(content_type=None))["expected"])

    assert (await expected("devices?ressource=x")).endswith("state, did you mean 'resource'?")
    assert (await expected("history?untill=now")).startswith("one of resource, driver")
    assert (await expected("anomalies?namespaces=ml")).endswith("did you mean 'namespace'?")
    assert await expected("anomalies?kind=unhealthy") == f"one of {', '.join(KINDS)}"
    assert await expected("status?verbose=1") == "no parameters here"
    assert len(await expected("devices?" + "x" * 4000 + "=1")) < 200


def test_the_kinds_are_those_that_the_code_makes() -> None:
    package = Path(exporter.mapping.__file__).parents[1]
    paths = [*package.glob("mapping/*.py"), package / "views" / "documents.py"]
    source = "\n".join(path.read_text() for path in paths)
    made = set(re.findall(r'\bAnomaly\(\s*(?:\*\()?"(\w+)"', source))
    assert len(made) >= 4
    assert made <= set(KINDS)
    assert all(f'"{kind}"' in source for kind in KINDS)


@given(st.text(max_size=40), st.text(max_size=40))
def test_what_is_shown_finds_its_own(name: str, other: str) -> None:
    shown = spelled(name).strip()
    matcher = ItemMatcher(Filters(driver=spelled(name), device=shown, q=shown))
    claim = ClaimDevice(ClaimDeviceKey(name, other, name), ())
    assert matcher.claim(claim)
    try:
        parse_filters([("driver", name), ("q", other)], CLAIM_FILTERS)
    except QueryError:
        assert len(name) > 512 or len(other) > 512


async def test_what_is_known_besides_the_snapshot_is_searched_too(
    client: Client, world: SimpleNamespace
) -> None:
    identity = PodIdentity("ml", "llama-0", "uid-1", "Running", workload=Workload("StatefulSet", "llama-big"))
    world.publish(pods={identity.key: identity})
    assert [device["device"] for device in await kept(client, "devices", "q=llama-BIG")] == ["GPU-0", "GPU-1"]
    assert [pod["name"] for pod in await kept(client, "pods", "q=llama-big")] == ["llama-0"]
    assert [pod["name"] for pod in await kept(client, "pods", "resource=gpu.example.com")] == [
        "shared-1",
        "shared-2",
    ]
