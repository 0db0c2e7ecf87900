"""Devices that fail while no pod holds them, as beside another vendor's plugin: the exporter knows them from
the kubelet alone, which then no longer names them.
"""

from typing import Any

from exporter.mapping.anomaly_tracker import NOT_OFFERED_FOR
from harness import owners
from harness.node import Node, Pod
from harness.stack import Stack
from harness.waiting import until_equal


async def _device(stack: Stack, name: str) -> dict[str, Any] | None:
    document = await owners.get_json(stack.url, f"/api/v1/devices?resource={stack.resource}")
    return next((one for one in document["devices"] if one["device"] == name), None)


async def _counts(stack: Stack) -> tuple[int, ...]:
    """known, held, free and unavailable devices."""
    document = await owners.get_json(stack.url, f"/api/v1/resources?resource={stack.resource}")
    (found,) = document["resources"]
    return tuple(found[name] for name in ("known", "allocated", "free", "unavailable"))


async def test_a_free_device_that_fails_stays_until_it_is_offered_again(node: Node) -> None:
    async with Stack(node) as stack:
        stack.add_devices("cherry", "classic", "lemon", "zero")
        await stack.allocatable_is(4)
        await stack.metric_is(4, "devicelens_resource_devices")
        await node.add_pod(Pod("steady", {"main": {stack.resource: 1}}))
        held = await stack.held()
        await stack.everyone_says(held)
        failing = min({"cherry", "classic", "lemon", "zero"} - {one.device for one in held})

        stack.remove_devices(failing)
        await stack.allocatable_is(3)
        await stack.metric_is(0, "devicelens_device_healthy", device=failing)
        await stack.metric_is(4, "devicelens_resource_devices")
        await stack.metric_is(1, "devicelens_resource_unhealthy_devices")
        assert await stack.metric("devicelens_device_info", device=failing) == 1
        assert await _counts(stack) == (4, 1, 2, 1)
        await stack.everyone_says(held)
        found = await _device(stack, failing)
        assert found is not None
        assert (found["healthy"], found["holders"]) == (False, [])
        assert found["no_longer_offered_since"]
        asked = f"{stack.resource}={failing}", "--url", stack.url
        status, out, _ = await owners.devicelens_again("who", *asked)
        assert (status, "unhealthy" in out) == (0, True), out
        status, out, _ = await owners.devicelens_again("explain", *asked)
        assert "The kubelet has not offered this device since" in out
        _, page = await owners.get(stack.url, f"/?resource={stack.resource}")
        assert "no longer offered" in page

        async def anomaly() -> float | None:
            return await stack.metric("devicelens_anomaly_info", kind="no_longer_offered", device=failing)

        await until_equal("the anomaly", anomaly, 1, limit=NOT_OFFERED_FOR + node.limit)

        stack.add_devices(failing)
        await stack.allocatable_is(4)
        await stack.metric_is(1, "devicelens_device_healthy", device=failing)
        await stack.metric_is(None, "devicelens_anomaly_info", kind="no_longer_offered", device=failing)
        assert await _counts(stack) == (4, 1, 3, 0)
        await node.delete_pod("steady")


async def test_devices_of_a_plugin_that_ends_stay_and_are_forgotten_in_time(node: Node) -> None:
    async with Stack(node, "--forget-after", "15s") as stack:
        stack.add_devices("cherry", "classic")
        await stack.allocatable_is(2)
        await stack.metric_is(2, "devicelens_resource_allocatable_devices")
        await stack.plugin.kill()
        await stack.metric_is(2, "devicelens_resource_unhealthy_devices")
        assert await _counts(stack) == (2, 0, 0, 2)
        await stack.metric_is(None, "devicelens_resource_devices")
        assert await _device(stack, "cherry") is None
        await stack.plugin.start()
        await stack.metric_is(2, "devicelens_resource_allocatable_devices")


async def test_a_kubelet_that_restarts_keeps_its_free_devices_known(node: Node) -> None:
    async with Stack(node) as stack:
        stack.add_devices("cherry", "classic")
        await stack.allocatable_is(2)
        await stack.metric_is(2, "devicelens_resource_allocatable_devices")
        await node.restart_kubelet()
        await stack.allocatable_is(2)
        await stack.metric_is(2, "devicelens_resource_allocatable_devices")
        assert await _counts(stack) == (2, 0, 2, 0)
        document = await owners.get_json(stack.url, f"/api/v1/anomalies?resource={stack.resource}")
        assert document["anomalies"] == []
