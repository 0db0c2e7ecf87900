"""A real Prometheus scrapes the demo and answers who holds a device."""

import asyncio
import json
import socket
import urllib.parse
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from harness import owners
from harness.processes import Process
from harness.tools import required
from harness.waiting import until
from simulator.scenario import WORKLOADS

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(180)]

_CONFIGURATION = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: honoured
    honor_labels: true
    static_configs: [{{targets: ["{target}"], labels: {{namespace: obs, pod: x, container: exporter}}}}]
  - job_name: renamed
    honor_labels: false
    static_configs: [{{targets: ["{target}"], labels: {{namespace: obs, pod: x, container: exporter}}}}]
"""


@pytest.fixture
async def demo() -> AsyncGenerator[str]:
    """The demo's address, with pods that stay."""
    flags = ("--web.listen-address", "127.0.0.1:0", "--pace", "1h", "--seed", "1", "--log.level", "debug")
    async with Process("demo", *flags) as process:
        line = await process.line("  status page ", limit=40)
        url = line.split()[-1].rstrip("/")
        opening = sum(sum(wish.values()) for work in WORKLOADS for wish in work.containers.values())

        async def populated() -> bool:
            return len((await owners.scrape(url)).of("devicelens_device_owner_info")) == opening

        await until("the demo's pods are there", populated)
        yield url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
async def prometheus(demo: str, tmp_path: Path) -> AsyncGenerator[str]:
    """The address of a Prometheus that scrapes the demo twice: with honor_labels on and off."""
    program = required("prometheus", "prometheus")
    target = demo.removeprefix("http://")
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text(_CONFIGURATION.format(target=target))
    port = _free_port()
    log = (tmp_path / "prometheus.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()
        log.close()
        print((tmp_path / "prometheus.log").read_text()[-4000:])


async def _query(prometheus: str, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    status, text = await owners.get(prometheus, f"/api/v1/query?{query}")
    assert status == 200, text
    result: list[dict[str, Any]] = json.loads(text)["data"]["result"]
    return result


async def test_prometheus_knows_who_holds_a_device(demo: str, prometheus: str) -> None:
    devices = (await owners.get_json(demo, "/api/v1/devices"))["devices"]
    expected = {
        (device["resource"], device["device"], holder["namespace"], holder["pod"], holder["container"])
        for device in devices
        for holder in device["holders"]
    }
    assert expected

    async def scraped() -> bool:
        results = await _query(prometheus, "count by (job) (devicelens_device_owner_info)")
        return {r["metric"]["job"] for r in results} == {"honoured", "renamed"}

    await until("Prometheus has scraped both jobs", scraped, limit=60)
    for job, prefix in (("honoured", ""), ("renamed", "exported_")):
        found = await _query(prometheus, f'devicelens_device_owner_info{{job="{job}"}}')
        owners_seen = {
            (
                sample["metric"]["resource"],
                sample["metric"]["device"],
                *(sample["metric"][f"{prefix}{label}"] for label in ("namespace", "pod", "container")),
            )
            for sample in found
        }
        assert owners_seen == expected
        assert {sample["metric"]["node"] for sample in found} == {"demo-node"}
        assert all(sample["value"][1] == "1" for sample in found)
    # Health has no holder: the free devices are those without an owner.
    owned = 'on (node, resource, device) devicelens_device_owner_info{job="honoured"}'
    free = await _query(prometheus, f'devicelens_device_healthy{{job="honoured"}} unless {owned}')
    assert {sample["metric"]["device"] for sample in free} == {
        device["device"] for device in devices if not device["holders"]
    }

    device = next(iter(expected))
    selector = f'job="honoured", resource="{device[0]}", device="{device[1]}", pod="{device[3]}"'
    (answer,) = await _query(prometheus, f"devicelens_device_owner_info{{{selector}}}")
    assert answer["metric"]["namespace"] == device[2]
    up = await _query(prometheus, "up")
    assert {sample["value"][1] for sample in up} == {"1"}


async def test_promtool_finds_nothing_to_say(demo: str) -> None:
    program = required("promtool", "prometheus")
    for accept in ("text/plain", "application/openmetrics-text"):
        _, text = await owners.get(demo, "/metrics", headers={"Accept": accept})
        assert "devicelens_device_owner_info{" in text
        if accept != "text/plain":
            assert text.endswith("# EOF\n")
            continue
        process = await asyncio.create_subprocess_exec(
            program,
            *("check", "metrics"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate(text.encode())
        assert (process.returncode, out.decode()) == (0, "")
