"""The exporter beside the plugin that it asks: reasons, devices that nobody holds, and what no pod lists."""

import json
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from harness import owners
from harness.node import Node, Pod
from harness.nodes import running_node
from harness.stack import Stack
from harness.waiting import until

pytestmark = pytest.mark.timeout(300)


class Asking(Stack):
    """A stack whose exporter asks the plugin."""

    def __init__(self, node: Node, *flags: str) -> None:
        super().__init__(node, *flags)
        self.exporter.arguments += ("--plugin.url", f"unix:{self.plugin_socket}")

    async def device(self, name: str) -> Any:
        """One device as the API tells it; None where it is not told."""
        document = await owners.get_json(self.url, f"/api/v1/devices?resource={self.resource}")
        return next((device for device in document["devices"] if device["device"] == name), None)

    async def anomalies(self, kind: str) -> list[Any]:
        found = (await owners.get_json(self.url, "/api/v1/anomalies"))["anomalies"]
        return [one for one in found if one["kind"] == kind and one["resource"] == self.resource]

    async def explained(self, *arguments: str) -> tuple[int, str, str]:
        return await owners.devicelens_again("explain", *arguments, "--url", self.url)


@pytest.fixture
async def stack(node: Node) -> AsyncGenerator[Asking]:
    async with Asking(node) as running:
        yield running


async def test_a_free_device_that_fails_stays_known_with_its_plugins_reason(stack: Asking) -> None:
    stack.add_devices("cherry", "classic")
    await stack.allocatable_is(2)

    async def told() -> Any:
        device = await stack.device("cherry")
        return device is not None and device["healthy"] and device["plugin"]

    word = await until("the plugin's word on cherry", told, limit=stack.node.limit)
    assert (word["health"], word["reason"], word["answers"]) == ("Healthy", None, True)
    assert word["attributes"]["path"] == "/etc/colas/cherry"

    stack.remove_devices("cherry")

    async def ill() -> Any:
        device = await stack.device("cherry")
        return device is not None and not device["healthy"] and device["plugin"]["reason"]

    assert "not found" in await until("why cherry is ill", ill, limit=stack.node.limit)
    await stack.metric_is(0, "devicelens_device_healthy", device="cherry")
    await stack.metric_is(1, "devicelens_resource_unhealthy_devices")
    await stack.metric_is(2, "devicelens_resource_devices")
    status, page = await owners.get(stack.url, "/?device=cherry")
    assert status == 200
    assert "not found any more" in page
    code, words, errors = await stack.explained("cherry")
    assert code == 0, errors
    assert "It is not allocatable: its plugin reports it unhealthy: not found" in words
    assert "No pod holds it, and the kubelet does not allocate it." in words

    stack.add_devices("cherry")
    await stack.metric_is(1, "devicelens_device_healthy", device="cherry")
    await stack.metric_is(0, "devicelens_resource_unhealthy_devices")


async def test_a_held_device_that_fails_says_why_and_since_when(stack: Asking) -> None:
    stack.add_devices("cherry")
    await stack.allocatable_is(1)
    before = time.time()
    await stack.node.add_pod(Pod("steady", {"main": {stack.resource: 1}}))
    stack.remove_devices("cherry")

    async def found() -> Any:
        return [one for one in await stack.anomalies("unhealthy_held") if "why: " in one["evidence"]]

    (anomaly,) = await until("the anomaly with its reason", found, limit=stack.node.limit)
    assert anomaly["evidence"].endswith("its plugin says why: not found any more")
    assert anomaly["pods"] == [{"namespace": stack.node.namespace, "pod": "steady"}]
    since = anomaly["since"]
    # It was the only one: the plugin answers, so it is not called gone.
    assert await stack.anomalies("plugin_gone") == []
    (again,) = await stack.anomalies("unhealthy_held")
    assert again["since"] == since
    assert before < time.time()


async def test_a_plugin_that_is_killed_is_said_to_be_silent_and_comes_back(stack: Asking) -> None:
    stack.add_devices("cherry", "classic")
    await stack.allocatable_is(2)
    await stack.node.add_pod(Pod("steady", {"main": {stack.resource: 1}}))

    async def told() -> bool:
        devices = [await stack.device(name) for name in ("cherry", "classic")]
        return all(device and device["plugin"] for device in devices)

    await until("the plugin's word", told, limit=stack.node.limit)
    await stack.plugin.kill()

    async def gone() -> Any:
        return [one for one in await stack.anomalies("plugin_gone") if "does not answer" in one["evidence"]]

    await until("plugin_gone", gone, limit=stack.node.limit)
    for name in ("cherry", "classic"):
        device = await stack.device(name)
        assert device["healthy"] is False
        assert device["plugin"]["answers"] is False
    (plugin,) = (await owners.get_json(stack.url, "/api/v1/status"))["plugins"]
    assert plugin["problem"] == "connection refused: nothing listens there"
    silent = [
        line for line in stack.exporter.lines if "does not tell of its devices" in line and "warn" in line
    ]
    assert len(silent) <= 2, "once at the start at most, and once now"

    await stack.plugin.start()

    async def well() -> bool:
        devices = [await stack.device(name) for name in ("cherry", "classic")]
        # For a moment the new one has not found its devices yet.
        return all(d and d["healthy"] and d["plugin"] and d["plugin"]["answers"] for d in devices)

    await until("everything well", well, limit=stack.node.limit)
    assert await stack.anomalies("plugin_gone") == []


async def _init_container_and_a_short_pod(node: Node, *flags: str, seen: bool) -> list[Any]:
    """What is unattributed when an init container holds a device, and a pod came and went before it; `seen`:
    the exporter had time to see that one.
    """
    async with Asking(node, *flags) as stack:
        stack.add_devices("cherry", "classic")
        await stack.allocatable_is(2)

        async def told() -> Any:
            device = await stack.device("cherry")
            return device and device["plugin"]

        await until("the plugin's word", told, limit=node.limit)
        await node.add_pod(Pod("short", {"main": {stack.resource: 1}}))
        if seen:
            await stack.metric_is(1, "devicelens_resource_allocated_devices")
        await node.delete_pod("short")
        gone = time.time()
        # Within the rounding of times a look may still have shown it; a pod is let go after 10 s.
        still = 1.0 if seen else 11.0

        async def past() -> bool:
            return time.time() > gone + still

        await until("it cannot be meant any more", past, limit=30.0)
        before = time.time()
        await node.add_pod(Pod("with-init", {"main": {}}, inits={"setup": {stack.resource: 1}}))

        async def found() -> Any:
            return await stack.anomalies("unattributed")

        (anomaly,) = await until("unattributed", found, limit=max(60.0, node.limit))
        assert time.time() - before >= 28
        assert (await stack.device(anomaly["device"]))["holders"] == []
        await stack.metric_is(1, "devicelens_anomaly_info", kind="unattributed", device=anomaly["device"])
        code, words, _ = await stack.explained(anomaly["device"], "-o", "json")
        assert code == 0
        document = json.loads(words)
        assert document["attributed"] is False
        assert document["why_nobody"].startswith("its plugin allocated it, and List names no holder")
        pods: list[Any] = anomaly["pods"]
        await node.delete_pod("with-init")
        if pods:

            async def over() -> bool:
                return not await stack.anomalies("unattributed")

            await until("its end with its pod", over, limit=node.limit)
        return pods


@pytest.mark.parametrize("source", ["none", "pods-api"])
async def test_a_device_of_an_init_container_is_unattributed_after_half_a_minute(source: str) -> None:
    """With the Pods API its pod is named, and a pod too short to be seen is not."""
    async with running_node(*(("--pods-api",) if source == "pods-api" else ())) as node:
        pods = await _init_container_and_a_short_pod(node, *node.source_flags(source), seen=source == "none")
        named = [{"namespace": node.namespace, "pod": "with-init"}]
        assert pods == (named if source == "pods-api" else [])


async def test_rules_of_the_users_own_divide_ids(node: Node, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "version: 1\nrules:\n  - name: bottle\n    pattern: (?P<parent>crate\\d+)-(?P<replica>\\d+)\n"
    )
    async with Asking(node, "--id-rules", str(rules)) as stack:
        stack.add_devices("crate1-1", "crate1-2")
        await stack.allocatable_is(2)
        await stack.metric_is(1, "devicelens_device_info", device="crate1-1", parent="crate1")
        code, words, _ = await stack.explained("crate1")
        assert code == 0
        assert "crate1 is a physical device. The kubelet lists 2 devices that are its parts." in words


async def test_rules_that_cannot_be_used_end_the_exporter_with_one_clear_line(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules:\n  - name: ahead\n    pattern: (?=a)b\n")
    code, out, errors = await owners.devicelens("exporter", "--id-rules", str(rules))
    assert (code, out) == (1, "")
    assert errors.splitlines()[-1] == (
        f"devicelens: --id-rules: {rules}:4: rules[0].pattern: found '(?=a)b', expected a regular expression "
        "in RE2's syntax: invalid perl operator: (?="
    )
    code, _, errors = await owners.devicelens("exporter", "--id-rules", str(tmp_path / "none.yaml"))
    assert code == 1
    assert "No such file or directory" in errors
    code, _, errors = await owners.devicelens("exporter", "--plugin.url", "ftp://x")
    assert code == 2
    assert "expected http://HOST:PORT, https://HOST:PORT or unix:PATH" in " ".join(errors.split())
