"""Pods end and come while the kubelet restarts, and nothing but List names their devices' holders."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from harness import owners
from harness.node import Node, Pod, Refused
from harness.stack import Stack
from harness.waiting import until, until_equal

pytestmark = pytest.mark.timeout(600)

TAKEN = "devicelens_last_refresh_success_timestamp_seconds"
CLOCKS = 0.1
"""Seconds by which the exporter's clock and the test's may differ."""


@pytest.fixture
async def stack(node: Node) -> AsyncGenerator[Stack]:
    """An exporter that learns of a pod's end from List alone, and calls it on events alone."""
    flags = ("--pods.source", "none", "--poll.interval", "10m", "--stale-after", "1h")
    async with Stack(node, *flags) as running:
        yield running


@dataclass
class Watched:
    """What /metrics named, scrape after scrape."""

    stack: Stack
    listed_at: float = float("inf")
    """When the test's own List named the new holder."""
    unconfirmed: set[str] = field(default_factory=set[str])
    """The pods that were unconfirmed at any time."""

    async def scrape(self) -> dict[str, list[str]]:
        """The pods that hold each device. Nobody is named beside another, nor a former holder for sure."""
        samples = await owners.scrape(self.stack.url)
        named: dict[str, list[str]] = {}
        for labels, _ in samples.of("devicelens_device_owner_info", resource=self.stack.resource):
            named.setdefault(labels["device"], []).append(labels["pod"])
        doubtful = {
            (labels["device"], labels["pod"])
            for labels, _ in samples.of("devicelens_device_owner_unconfirmed", resource=self.stack.resource)
        }
        self.unconfirmed |= {pod for _, pod in doubtful}
        assert all(len(pods) == 1 for pods in named.values()), named
        assert doubtful <= {(device, pod) for device, (pod,) in named.items()}
        taken = samples.value(TAKEN)
        assert taken is not None
        if taken > self.listed_at + CLOCKS:
            assert "first" not in {pod for (pod,) in named.values()}, named
        return named


@asynccontextmanager
async def _watched(stack: Stack) -> AsyncGenerator[Watched]:
    """Scrape in a loop while in the context."""
    watched = Watched(stack)

    async def watch() -> None:
        while True:
            await watched.scrape()
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        yield watched
        watching.cancel()


async def _add(stack: Stack, name: str) -> None:
    """Add a pod that asks for one device. A kubelet refuses it before the plugin has registered again."""

    async def admitted() -> bool:
        try:
            await stack.node.add_pod(Pod(name, {"main": {stack.resource: 1}}))
        except Refused as error:
            await stack.node.delete_pod(name)
            raise AssertionError(str(error)) from error
        return True

    await until(f"{name} is admitted", admitted, limit=stack.node.limit)


async def _rejected(stack: Stack) -> float:
    """Refreshes whose List was not believed."""
    errors = (await owners.scrape(stack.url)).of("devicelens_refresh_errors_total", code="UNSETTLED")
    return sum(value for _, value in errors)


async def test_device_that_changes_hands_during_a_restart_has_its_new_holder_at_once(stack: Stack) -> None:
    stack.add_devices("cherry")
    await stack.allocatable_is(1)
    await stack.ready()
    await _add(stack, "first")
    await stack.everyone_says(await stack.held())
    rejected = await _rejected(stack)
    async with _watched(stack) as watched:
        await stack.node.delete_pod("first")
        await stack.node.restart_kubelet()
        await _add(stack, "second")
        (held,) = await stack.held()
        watched.listed_at = time.time()
        assert held.pod == "second"
        await until_equal("the holder", watched.scrape, {"cherry": ["second"]}, limit=stack.node.limit)
    await stack.everyone_says({held})
    await stack.ready()
    # No List was rejected, which would leave the former holder there.
    assert await _rejected(stack) == rejected


async def test_pod_that_is_gone_after_a_restart_is_unconfirmed_and_then_gone(stack: Stack) -> None:
    stack.add_devices("cherry", "classic")
    await stack.allocatable_is(2)
    await stack.ready()
    for name in ("first", "steady"):
        await _add(stack, name)
    both = await stack.held()
    await stack.everyone_says(both)
    async with _watched(stack) as watched:
        # The exporter stands still: a List just before the restart would show the end to it.
        os.kill(stack.exporter.pid, signal.SIGSTOP)
        try:
            await stack.node.delete_pod("first")
            ended = time.time()
            await stack.node.restart_kubelet()
        finally:
            os.kill(stack.exporter.pid, signal.SIGCONT)
        await stack.allocatable_is(2)
        steady = {holding for holding in both if holding.pod == "steady"}
        named = {holding.device: [holding.pod] for holding in steady}
        await until_equal("the holders", watched.scrape, named, limit=stack.node.limit)
    assert "first" in watched.unconfirmed
    await stack.everyone_says(steady)
    await stack.ready()
    assert await stack.metric("devicelens_allocations_total") == 2
    assert await stack.metric("devicelens_releases_total") == 1
    rows = (await owners.get_json(stack.url, f"/api/v1/history?resource={stack.resource}"))["holdings"]
    ends = {row["pod"]: row["end"] for row in rows}
    assert ends.keys() == {"first", "steady"}
    assert ends["steady"] is None
    first, last = (
        datetime.fromisoformat(ends["first"][name]).timestamp() for name in ("not_before", "not_after")
    )
    assert first - CLOCKS <= ended
    assert last >= ended - CLOCKS
