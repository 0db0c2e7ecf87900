"""The plugin's HTTP API, for Prometheus, the exporter and probes."""

import gzip
import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from harness.scripted import pod
from harness.served import Serve, Served
from harness.tools import required
from plugin.serving.metrics import ConfigStatus
from plugin.serving.web import PluginSite, build
from simulator import SimulatedKubelet

COLA, EMPTY = "myway5.com/cola", "a.b/empty"
CONFIGURATION = f"""\
version: 1
resources:
  - name: {COLA}
    discover:
      - glob: {{paths: [/etc/colas/*]}}
      - static: {{devices: [{{name: "x\\"<b>\\\\", numa: 1, attrs: {{model: C9}}}}]}}
    share: {{replicas: 2}}
  - name: {EMPTY}
    discover: [{{files: {{directory: /etc/none}}}}]
"""
STAMP = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

Client = TestClient[Any, Any]


@pytest.fixture
async def served(kubelet: SimulatedKubelet, serve: Serve, colas: Path) -> AsyncIterator[Served]:
    async with serve(CONFIGURATION) as running:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 4)
        await running.until(lambda: all(status.ready for status in running.fleet.statuses()))
        yield running


def site(served: Served, problem: str = "") -> Client:
    config = ConfigStatus(successful=not problem, succeeded_at=1.5, problem=problem)
    return TestClient(TestServer(build(PluginSite(served.fleet, lambda: config))))


@pytest.fixture
async def client(served: Served) -> AsyncIterator[Client]:
    async with site(served) as made:
        yield made


async def test_the_device_document(client: Client, kubelet: SimulatedKubelet, colas: Path) -> None:
    await kubelet.add_pod(pod("p", COLA, 4))
    (colas / "a").unlink()
    await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
    answer = await client.get("/api/v1/devices")
    assert answer.content_type == "application/json"
    document = await answer.json()
    assert list(document) == ["version", "resources"]
    assert document["version"] == 1
    cola, empty = document["resources"]
    assert (cola["name"], cola["registered"], cola["streams"]) == (COLA, True, 1)
    assert list(cola) == ["name", "registered", "streams", "devices"]
    assert empty == {"name": EMPTY, "registered": False, "streams": 0, "devices": []}
    gone, _, strange, _ = cola["devices"]
    assert STAMP.fullmatch(gone.pop("since"))
    assert STAMP.fullmatch(gone.pop("last_allocated"))
    assert gone == {
        "id": "a::0",
        "health": "Unhealthy",
        "reason": "not found any more",
        "numa_nodes": [],
        "attributes": {"path": "/etc/colas/a", "parent": "a"},
    }
    assert (strange["id"], strange["numa_nodes"]) == ('x"<b>\\::0', [1])
    assert strange["attributes"] == {"model": "C9", "parent": 'x"<b>\\'}


async def test_ready_says_of_each_resource_how_it_stands(client: Client) -> None:
    answer = await client.get("/-/ready")
    assert answer.status == 200
    assert await answer.text() == (
        f"ready {COLA}: registered, streams open: 1, devices healthy: 2 of 2\n"
        f"ready {EMPTY}: waiting for devices: /etc/none is not there\n"
    )


async def test_without_a_kubelet_it_is_not_ready(serve: Serve, colas: Path, root: Path) -> None:
    async with serve(CONFIGURATION) as served:
        await served.until(lambda: "is not there" in served.status(COLA).state)
        async with site(served) as client:
            answer = await client.get("/-/ready")
            assert answer.status == 503
            assert f"not ready {COLA}: {root}/k/device-plugins is not there" in await answer.text()
            assert (await client.get("/-/healthy")).status == 200


async def test_a_refused_configuration_shows_in_readiness_and_metrics(served: Served) -> None:
    async with site(served, problem="plugin.yaml:1: \x1b") as client:
        ready = await client.get("/-/ready")
        assert ready.status == 200
        refused = "configuration refused, the last one stays in force: plugin.yaml:1: \\x1b\n"
        assert (await ready.text()).endswith(refused)
        metrics = await (await client.get("/metrics")).text()
        assert "devicelens_plugin_config_last_reload_successful 0.0" in metrics


async def test_every_family_of_the_contract_is_reported(client: Client, kubelet: SimulatedKubelet) -> None:
    await kubelet.add_pod(pod("p", COLA))
    text = await (await client.get("/metrics")).text()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }

    expected = {
        ("devices", ("health", "Healthy")): 4,
        ("devices", ("health", "Unhealthy")): 0,
        ("device_healthy", ("device", 'x"<b>\\::1'), ("reason", "")): 1,
        ("registered",): 1,
        ("streams",): 1,
        ("registrations_total",): 1,
        ("registration_errors_total",): 0,
        ("allocations_total",): 1,
        ("allocation_errors_total",): 0,
        ("allocation_duration_seconds_count",): 1,
        ("allocation_duration_seconds_bucket", ("le", "+Inf")): 1,
        ("discovery_errors_total",): 0,
        ("health_transitions_total", ("to", "unhealthy")): 0,
    }
    for (name, *labels), value in expected.items():
        found = samples[f"devicelens_plugin_{name}", *sorted([*labels, ("resource", COLA)])]
        assert found == value, name
    assert samples["devicelens_plugin_discoveries_total", ("resource", COLA)] >= 1
    assert samples["devicelens_plugin_registered", ("resource", EMPTY)] == 0
    assert samples[("devicelens_plugin_config_last_reload_success_timestamp_seconds",)] == 1.5
    assert samples[("devicelens_plugin_config_last_reload_successful",)] == 1


async def test_metrics_follow_what_changes(client: Client, kubelet: SimulatedKubelet, colas: Path) -> None:
    assert 'device="b::0"' not in await (await client.get("/metrics")).text()
    (colas / "b").touch()
    await kubelet.wait_until(lambda k: k.allocatable(COLA) == 6)
    assert 'device="b::0",reason="",' in await (await client.get("/metrics")).text()
    (colas / "b").unlink()
    await kubelet.wait_until(lambda k: k.allocatable(COLA) == 4)
    text = await (await client.get("/metrics")).text()
    assert 'device="b::0",reason="not found any more",' in text
    assert f'devicelens_plugin_health_transitions_total{{resource="{COLA}",to="unhealthy"}} 1.0' in text


async def test_openmetrics_and_compression_are_served_where_they_are_asked_for(client: Client) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = await client.get("/metrics", headers=accept)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    text = await answer.text()
    assert text.endswith("# EOF\n")
    # prometheus_client leaves this parser without types.
    assert list(parse_openmetrics(text))  # type: ignore[no-untyped-call]
    url = client.make_url("/metrics")
    async with ClientSession(auto_decompress=False) as session:
        async with session.get(url, headers={"Accept-Encoding": "gzip"}) as packed:
            assert packed.headers["Content-Encoding"] == "gzip"
            assert b"devicelens_plugin_registered" in gzip.decompress(await packed.read())
        async with session.get(url, headers={"Accept-Encoding": "identity"}) as plain:
            assert "Content-Encoding" not in plain.headers


async def test_promtool_finds_nothing(client: Client) -> None:
    promtool = required("promtool", "prometheus")
    text = await (await client.get("/metrics")).text()
    checked = subprocess.run(  # noqa: ASYNC221 -- milliseconds
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


async def test_nothing_can_be_written(client: Client) -> None:
    for path in ("/metrics", "/api/v1/devices", "/-/ready"):
        assert (await client.post(path)).status == 405
    missing = await client.get("/api/v1/nothing")
    assert (missing.status, json.loads(await missing.text())["status"]) == (404, 404)
