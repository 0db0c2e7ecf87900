"""A real Prometheus scrapes an exporter and answers who holds a device; promtool reads the demo's metrics."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from harness import owners
from harness.node import Node, Pod
from harness.processes import Process
from harness.prometheus import Prometheus, promtool
from harness.stack import Stack
from harness.waiting import until
from simulator.scenario import WORKLOADS

pytestmark = pytest.mark.timeout(300)

CONFIGURATION = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: honoured
    honor_labels: true
    static_configs: [{{targets: ["{target}"], labels: {labels}}}]
  - job_name: renamed
    honor_labels: false
    static_configs: [{{targets: ["{target}"], labels: {labels}}}]
"""
LABELS = "{namespace: obs, pod: x, container: exporter}"


@pytest.fixture
async def stack(node: Node) -> AsyncGenerator[Stack]:
    """Three devices; the pods `one` and `two` hold one each."""
    async with Stack(node) as running:
        running.add_devices("cherry", "classic", "zero")
        await running.allocatable_is(3)
        for name in ("one", "two"):
            await node.add_pod(Pod(name, {"main": {running.resource: 1}}))
        await running.everyone_says(await running.held())
        yield running


@pytest.fixture
async def prometheus(stack: Stack, tmp_path: Path) -> AsyncGenerator[Prometheus]:
    """A Prometheus that scrapes the exporter twice: with honor_labels on and off."""
    text = CONFIGURATION.format(target=stack.url.removeprefix("http://"), labels=LABELS)
    async with Prometheus(tmp_path, text) as running:
        yield running


async def test_prometheus_knows_who_holds_a_device(stack: Stack, prometheus: Prometheus) -> None:
    devices = (await owners.get_json(stack.url, "/api/v1/devices"))["devices"]
    expected = {
        (device["resource"], device["device"], holder["namespace"], holder["pod"], holder["container"])
        for device in devices
        for holder in device["holders"]
    }
    assert len(expected) == 2

    async def scraped() -> bool:
        results = await prometheus.query("count by (job) (devicelens_device_owner_info)")
        return {r["metric"]["job"] for r in results} == {"honoured", "renamed"}

    await until("Prometheus has scraped both jobs", scraped, limit=60)
    for job, prefix in (("honoured", ""), ("renamed", "exported_")):
        found = await prometheus.query(f'devicelens_device_owner_info{{job="{job}"}}')
        owners_seen = {
            (
                sample["metric"]["resource"],
                sample["metric"]["device"],
                *(sample["metric"][f"{prefix}{label}"] for label in ("namespace", "pod", "container")),
            )
            for sample in found
        }
        assert owners_seen == expected
        assert {sample["metric"]["node"] for sample in found} == {stack.node.name}
        assert all(sample["value"][1] == "1" for sample in found)
    # Health has no holder: the free devices are those without an owner.
    owned = 'on (node, resource, device) devicelens_device_owner_info{job="honoured"}'
    free = await prometheus.query(f'devicelens_device_healthy{{job="honoured"}} unless {owned}')
    assert {sample["metric"]["device"] for sample in free} == {
        device["device"] for device in devices if not device["holders"]
    }

    device = next(iter(expected))
    selector = f'job="honoured", resource="{device[0]}", device="{device[1]}", pod="{device[3]}"'
    (answer,) = await prometheus.query(f"devicelens_device_owner_info{{{selector}}}")
    assert answer["metric"]["namespace"] == device[2]
    up = await prometheus.query("up")
    assert {sample["value"][1] for sample in up} == {"1"}


@pytest.fixture
async def demo() -> AsyncGenerator[str]:
    """The demo's address, with pods that stay."""
    flags = ("--web.listen-address", "127.0.0.1:0", "--pace", "1h", "--seed", "1", "--log.level", "debug")
    async with Process("demo", *flags) as process:
        line = await process.line("  status page ", limit=40)
        url = line.split()[-1].rstrip("/")
        opening = sum(
            sum(wish.values()) + bool(work.claim) for work in WORKLOADS for wish in work.containers.values()
        )

        async def populated() -> bool:
            return len((await owners.scrape(url)).of("devicelens_device_owner_info")) == opening

        await until("the demo's pods are there", populated)
        yield url


@pytest.mark.simulated
async def test_promtool_finds_nothing_to_say(demo: str) -> None:
    for accept in ("text/plain", "application/openmetrics-text"):
        _, text = await owners.get(demo, "/metrics", headers={"Accept": accept})
        assert "devicelens_device_owner_info{" in text
        if accept != "text/plain":
            assert text.endswith("# EOF\n")
            continue
        assert await promtool("check", "metrics", text=text) == (0, "")
