"""The whole path, followed as a device takes it: file, kubelet, pod, label, person."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from harness import owners
from harness.node import Holding, Node, Pod
from harness.stack import Stack
from harness.waiting import until
from plugin.devices.ended_pods import SETTLED
from plugin.devices.inventory import RELEASE_AFTER

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
async def stack(node: Node) -> AsyncGenerator[Stack]:
    async with Stack(node) as running:
        yield running


async def _pod_with(stack: Stack, name: str, count: int) -> frozenset[Holding]:
    """Add a pod of one container that asks for `count` devices; what it then holds."""
    await stack.node.add_pod(Pod(name, {"main": {stack.resource: count}}))
    held = frozenset(holding for holding in await stack.held() if holding.pod == name)
    assert len(held) == count
    return held


async def test_a_device_is_followed_from_its_file_to_the_person_who_asks(stack: Stack) -> None:
    stack.add_devices("cherry", "classic", "zero")
    await stack.capacity_is(3)
    await stack.metric_is(3, "devicelens_resource_allocatable_devices")
    await stack.metric_is(1, "devicelens_device_info", device="cherry")

    before = time.time()
    held = await _pod_with(stack, "thirsty", 2)
    await stack.everyone_says(held)
    after = time.time()

    await stack.metric_is(2, "devicelens_resource_allocated_devices")
    for holding in held:
        labels = {"device": holding.device, "pod": "thirsty", "namespace": stack.node.namespace}
        assert await stack.metric("devicelens_device_healthy", device=holding.device) == 1
        since = await stack.metric("devicelens_device_held_since_timestamp_seconds", **labels)
        assert since is not None
        assert before - 1 <= since <= after + 1

    devices = (await owners.get_json(stack.url, f"/api/v1/devices?resource={stack.resource}"))["devices"]
    free = [device for device in devices if not device["holders"]]
    assert len(devices) == 3
    assert len(free) == 1
    assert all(device["healthy"] for device in devices)
    for device in devices:
        for holder in device["holders"]:
            since = datetime.fromisoformat(holder["since"]).astimezone(UTC).timestamp()
            assert before - 1 <= since <= after + 1

    await stack.node.delete_pod("thirsty")
    await stack.everyone_says(())
    await stack.metric_is(0, "devicelens_resource_allocated_devices")
    await stack.metric_is(2, "devicelens_allocations_total")
    await stack.metric_is(2, "devicelens_releases_total")


async def test_an_allocation_shows_without_waiting_for_the_timer(node: Node) -> None:
    """The timer is set to ten minutes: only the kubelet's checkpoint can have told."""
    async with Stack(node, "--poll.interval", "10m", "--stale-after", "1h") as stack:
        stack.add_devices("cherry")
        await stack.allocatable_is(1)
        held = await _pod_with(stack, "impatient", 1)
        await stack.everyone_says(held)
        await node.delete_pod("impatient")


async def test_each_container_and_each_sidecar_holds_its_own(stack: Stack) -> None:
    stack.add_devices(*(f"bottle-{n}" for n in range(6)))
    await stack.capacity_is(6)
    wish = {stack.resource: 1}
    await stack.node.add_pod(Pod("party", {"one": {stack.resource: 2}, "two": wish}, sidecars={"side": wish}))
    held = await stack.held()
    assert sorted(holding.container for holding in held) == ["one", "one", "side", "two"]
    assert len({holding.device for holding in held}) == 4
    await stack.everyone_says(held)
    counts = {
        labels["container"]: value
        for labels, value in (await owners.scrape(stack.url)).of(
            "devicelens_container_devices", pod="party", resource=stack.resource
        )
    }
    assert counts == {"one": 2, "two": 1, "side": 1}


async def test_pods_that_come_at_once_are_all_seen(stack: Stack) -> None:
    stack.add_devices(*(f"bottle-{n:02}" for n in range(10)))
    await stack.capacity_is(10)
    names = [f"crowd-{n}" for n in range(8)]
    await asyncio.gather(*(stack.node.add_pod(Pod(name, {"main": {stack.resource: 1}})) for name in names))
    held = await stack.held()
    assert sorted(holding.pod for holding in held) == names
    await stack.everyone_says(held)
    await asyncio.gather(*(stack.node.delete_pod(name) for name in names))
    await stack.everyone_says(())


async def test_a_kubelet_restart_loses_nothing(stack: Stack) -> None:
    stack.add_devices("cherry", "classic", "zero")
    await stack.capacity_is(3)
    await stack.ready()  # what an exporter finds when it first believes its kubelet counts as older
    held = await _pod_with(stack, "steady", 2)
    await stack.everyone_says(held)

    (since, *_) = await _since(stack)
    registrations = await _registrations(stack)
    async with _always_these_owners(stack, held):
        await stack.node.restart_kubelet()

        async def registered_again() -> bool:
            return await _registrations(stack) > registrations

        await until("the plugin registered again", registered_again, limit=stack.node.limit)
        await stack.capacity_is(3)
        await stack.allocatable_is(3)
        await stack.everyone_says(held)
        await stack.ready()
    # Held without a break, as far as anyone can see.
    assert await _since(stack) == [since, since]
    await stack.metric_is(2, "devicelens_allocations_total")
    await stack.metric_is(0, "devicelens_releases_total")

    # What is free can be given out again, and is seen.
    await stack.everyone_says(held | await _pod_with(stack, "newcomer", 1))
    await stack.node.delete_pod("newcomer")
    await stack.everyone_says(held)


async def _registrations(stack: Stack) -> float:
    metrics = await owners.scrape(f"unix:{stack.plugin_socket}")
    return metrics.value("devicelens_plugin_registrations_total", resource=stack.resource) or 0


async def _since(stack: Stack) -> list[float]:
    found = (await owners.scrape(stack.url)).of(
        "devicelens_device_held_since_timestamp_seconds", resource=stack.resource
    )
    return [value for _, value in found]


@asynccontextmanager
async def _always_these_owners(stack: Stack, right: frozenset[Holding]) -> AsyncGenerator[None]:
    """Scrape in a loop, while the kubelet comes and goes: nobody else is named, and nobody is forgotten."""

    async def watch() -> None:
        while True:
            assert await owners.from_metrics(stack.url, stack.resource) == right
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        yield
        watching.cancel()


async def test_a_plugin_that_is_killed_comes_back_and_takes_nothing_away(stack: Stack) -> None:
    stack.add_devices("cherry", "classic")
    await stack.allocatable_is(2)
    held = await _pod_with(stack, "steady", 1)

    await stack.plugin.kill()
    await stack.allocatable_is(0)
    (holding,) = held
    await stack.metric_is(0, "devicelens_device_healthy", device=holding.device)
    await stack.everyone_says(held)
    anomalies = (await owners.get_json(stack.url, "/api/v1/anomalies"))["anomalies"]
    assert ("plugin_gone", stack.resource) in {(found["kind"], found["resource"]) for found in anomalies}

    await stack.plugin.start()
    await stack.allocatable_is(2)
    await stack.metric_is(1, "devicelens_device_healthy", device=holding.device)
    await stack.everyone_says(held)


async def test_a_device_that_fails_is_still_its_holders_and_recovers(stack: Stack) -> None:
    stack.add_devices("cherry", "classic")
    await stack.allocatable_is(2)
    held = await _pod_with(stack, "steady", 1)
    (holding,) = held

    stack.remove_devices(holding.device)
    await stack.allocatable_is(1)
    await stack.capacity_is(2)
    await stack.metric_is(0, "devicelens_device_healthy", device=holding.device)
    await stack.metric_is(1, "devicelens_anomaly_info", kind="unhealthy_held", device=holding.device)
    await stack.everyone_says(held)

    stack.add_devices(holding.device)
    await stack.allocatable_is(2)
    await stack.metric_is(1, "devicelens_device_healthy", device=holding.device)
    await stack.metric_is(None, "devicelens_anomaly_info", kind="unhealthy_held", device=holding.device)


async def test_a_vanished_device_goes_after_its_pod(stack: Stack) -> None:
    """Nothing is allocated after the pod ends: the kubelet's checkpoint keeps the pod's entry."""
    stack.add_devices("cherry", "classic")
    await stack.allocatable_is(2)
    (holding,) = await _pod_with(stack, "steady", 1)

    stack.remove_devices(holding.device)
    await stack.allocatable_is(1)
    await stack.metric_is(0, "devicelens_device_healthy", device=holding.device)
    # The plugin drops no vanished device before a minute has passed.
    for _ in range(2):
        await asyncio.sleep(RELEASE_AFTER / 2)
        await stack.metric_is(1, "devicelens_anomaly_info", kind="unhealthy_held", device=holding.device)
    assert await stack.node.capacity(stack.resource) == 2
    await stack.node.delete_pod("steady")

    async def gone() -> bool:
        return await stack.node.capacity(stack.resource) == 1

    await until("the vanished device is dropped", gone, limit=stack.node.limit + 2 * SETTLED)


async def test_an_exporter_that_is_killed_knows_everything_again(stack: Stack) -> None:
    stack.add_devices("cherry", "classic")
    await stack.allocatable_is(2)
    held = await _pod_with(stack, "steady", 2)
    await stack.everyone_says(held)
    await stack.exporter.kill()
    stack.exporter.lines.clear()
    await stack.exporter.start()
    stack.url = await stack.exporter.url()
    await stack.everyone_says(held)


async def test_both_processes_end_within_two_seconds_and_leave_nothing(stack: Stack) -> None:
    stack.add_devices("cherry")
    await stack.allocatable_is(1)
    sockets = set((stack.node.root / "device-plugins").glob("*.sock"))
    for process in (stack.exporter, stack.plugin):
        # What hangs makes it end with another status before two seconds are over.
        assert await process.stop(signal.SIGTERM) == 0
    assert not stack.plugin_socket.exists()
    left = {path for path in sockets if path.exists()}
    assert all("devicelens" not in path.name for path in left), left
