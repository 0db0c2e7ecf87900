"""Who the pods are, told by whole processes, from each source: uids, workloads, labels, releases at once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness import owners
from harness.node import Node, Pod
from harness.nodes import running_node
from harness.processes import Process
from harness.simulated import SimulatedNode
from harness.stack import Stack
from harness.waiting import until, until_equal
from simulator.model import ContainerSpec, Owner, PodSpec

SOURCES = ["pods-api", "apiserver"]
SLOW = ("--poll.interval", "10m", "--stale-after", "1h")
"""Nothing is seen by the timer."""


@asynccontextmanager
async def _running(source: str, *flags: str) -> AsyncGenerator[tuple[Node, Stack]]:
    async with (
        running_node("--pods-api", "--api-server", "0", "--sync-delay", "300ms") as node,
        Stack(node, *node.source_flags(source), *flags) as stack,
    ):
        # A node is never empty: a kubelet that lists no pod at all may not have synced yet.
        await node.add_pod(Pod("bystander", {"main": {}}))
        stack.add_devices("cherry", "classic", "zero")
        await stack.allocatable_is(3)
        await stack.ready()
        yield node, stack
        await node.delete_pod("bystander")


def _pod(stack: Stack, name: str, count: int = 1, **more: Any) -> Pod:
    return Pod(name, {"main": {stack.resource: count}}, **more)


async def _uids(stack: Stack) -> set[tuple[str, str]]:
    samples = await owners.scrape(stack.url)
    return {
        (labels["pod"], labels["pod_uid"])
        for labels, _ in samples.of("devicelens_device_owner_info", resource=stack.resource)
    }


async def _uids_are(stack: Stack, *expected: tuple[str, str]) -> None:
    async def seen() -> set[tuple[str, str]]:
        return await _uids(stack)

    await until_equal("uids in /metrics", seen, set(expected), limit=stack.node.limit)


@pytest.mark.parametrize("source", SOURCES)
async def test_a_pod_has_its_uid_and_labels(source: str) -> None:
    async with _running(source, "--pod-labels", r"team|app\.kubernetes\.io/.*") as (node, stack):
        labels = {"team": "ml", "app.kubernetes.io/name": "web", "pod-template-hash": "abc", "secret": "x"}
        uid = await node.add_pod(_pod(stack, "web-abc-1", labels=labels))
        await _uids_are(stack, ("web-abc-1", uid))

        async def running() -> bool:
            samples = await owners.scrape(stack.url)
            ((info, _),) = samples.of("devicelens_pod_info", pod="web-abc-1")
            return (info["node"], info["uid"], info["phase"]) == (node.name, uid, "Running")

        await until("devicelens_pod_info has the uid and the phase", running, limit=node.limit)
        found = (await owners.scrape(stack.url)).of("devicelens_pod_labels", pod="web-abc-1")
        assert [labels for labels, _ in found] == [
            {
                "node": node.name,
                "namespace": node.namespace,
                "pod": "web-abc-1",
                "label_team": "ml",
                "label_app_kubernetes_io_name": "web",
            }
        ]
        (pod,) = (await owners.get_json(stack.url, "/api/v1/pods?pod=web-abc-1"))["pods"]
        assert pod["uid"] == uid
        await node.delete_pod("web-abc-1")


@pytest.mark.simulated  # a real cluster deletes a pod whose owner is not there
@pytest.mark.parametrize("source", SOURCES)
async def test_a_pod_has_its_workload_and_priority(source: str) -> None:
    async with _running(source) as (node, stack):
        assert isinstance(node, SimulatedNode)
        container = ContainerSpec("main", resources={stack.resource: 1})
        more: dict[str, Any] = {
            "labels": {"pod-template-hash": "abc"},
            "owner": Owner("ReplicaSet", "web-abc"),
            "priority_class": "high",
        }
        uid = await node.control.add_pod(PodSpec("web-abc-1", containers=(container,), **more))

        async def info() -> list[dict[str, str]]:
            return [found for found, _ in (await owners.scrape(stack.url)).of("devicelens_pod_info")]

        whole = {
            "node": node.name,
            "namespace": "default",
            "pod": "web-abc-1",
            "uid": uid,
            "workload_kind": "Deployment",
            "workload": "web",
            "phase": "Running",
            "priority_class": "high",
        }
        await until_equal("devicelens_pod_info", info, [whole])
        (pod,) = (await owners.get_json(stack.url, "/api/v1/pods"))["pods"]
        assert (pod["uid"], pod["workload"]) == (uid, {"kind": "Deployment", "name": "web"})
        (device,) = (await owners.get_json(stack.url, "/api/v1/devices?state=held"))["devices"]
        (holder,) = device["holders"]
        assert (holder["pod_uid"], holder["workload"]) == (uid, {"kind": "Deployment", "name": "web"})
        assert "Deployment web" in (await owners.get(stack.url, "/"))[1]


@pytest.mark.parametrize("source", SOURCES)
async def test_a_release_shows_without_waiting_for_the_timer(source: str) -> None:
    async with _running(source, *SLOW) as (node, stack):
        for name in ("deleted", "completed"):
            await node.add_pod(_pod(stack, name))
        await stack.everyone_says(await stack.held())
        await node.delete_pod("deleted")
        await stack.everyone_says({held for held in await stack.held() if held.pod == "completed"})
        await node.end_pod("completed")
        await stack.everyone_says(())
        await stack.metric_is(2, "devicelens_releases_total")


@pytest.mark.parametrize("source", SOURCES)
async def test_a_pod_that_comes_under_the_name_of_another_is_another(source: str) -> None:
    async with _running(source, *SLOW) as (node, stack):
        first = await node.add_pod(_pod(stack, "db-0", 3))
        await _uids_are(stack, ("db-0", first))
        for number in range(1, 4):
            await node.delete_pod("db-0")
            later = await node.add_pod(_pod(stack, "db-0", 3))
            assert later != first
            await _uids_are(stack, ("db-0", later))
            await stack.metric_is(3.0 * (number + 1), "devicelens_allocations_total")
            await stack.metric_is(3.0 * number, "devicelens_releases_total")


@pytest.mark.parametrize("source", SOURCES)
async def test_a_kubelet_restart_takes_nobodys_uid_and_what_ended_meanwhile_is_soon_released(
    source: str,
) -> None:
    async with _running(source, *SLOW) as (node, stack):
        stays = await node.add_pod(_pod(stack, "stays"))
        await node.add_pod(_pod(stack, "goes"))
        await until("both are known", lambda: _both_known(stack), limit=node.limit)
        before = await _uids(stack)
        seen: list[set[tuple[str, str]]] = []

        async def watch() -> None:
            while True:
                seen.append(await _uids(stack))
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            await node.restart_kubelet()
            await stack.ready()
            await _registered(stack)
            watching.cancel()
        assert all(held == before for held in seen)
        await node.delete_pod("goes")
        await _uids_are(stack, ("stays", stays))
        await stack.metric_is(1, "devicelens_releases_total")


async def _both_known(stack: Stack) -> bool:
    found = await _uids(stack)
    return len(found) == 2 and all(uid for _, uid in found)


async def _registered(stack: Stack) -> None:
    await stack.allocatable_is(3)


@pytest.mark.simulated
async def test_pods_api_that_the_kubelet_does_not_serve_is_logged_once_until_it_does() -> None:
    async with SimulatedNode() as node, Stack(node) as stack:
        stack.add_devices("cherry")
        await stack.allocatable_is(1)
        await node.add_pod(_pod(stack, "p"))
        await stack.everyone_says(await stack.held())
        await node.process.stop()
        gated = Process("kubelet", "--kubelet.root", str(node.root), "--node-name", node.name, "--pods-api")
        async with gated:
            line = await stack.exporter.line("pods' uids, labels and owners are known from now on")
            assert "level=info" in line
        told = [line for line in stack.exporter.lines if "component=identities" in line]
        assert [line for line in told if "not known" in line] == told[:1]
        assert "the kubelet is not up" not in told[0]


async def test_nobody_is_asked_where_nobody_is_to_be() -> None:
    async with _running("none") as (node, stack):
        await node.add_pod(_pod(stack, "p"))
        await stack.everyone_says(await stack.held())
        assert {uid for _, uid in await _uids(stack)} == {""}
        if isinstance(node, SimulatedNode):
            calls = await node.control.calls()
            assert not {"WatchPods", "ListPods"} & calls.keys()
        assert (await owners.scrape(stack.url)).of("devicelens_pods_source_up") == []


async def test_an_exporter_that_does_not_know_the_way_to_the_api_server_ends_with_one_line() -> None:
    status, _, errors = await owners.devicelens(
        "exporter", "--pods.source", "apiserver", "--web.listen-address", "127.0.0.1:0"
    )
    assert status == 1
    assert errors.strip().splitlines()[-1].startswith("devicelens: --pods.source apiserver: this is no pod")


@pytest.mark.parametrize("source", ["none", "pods-api"])
async def test_an_exporter_that_starts_with_its_kubelet_never_says_that_nobody_holds_anything(
    source: str,
) -> None:
    async with (
        running_node("--pods-api", "--sync-delay", "1s") as node,
        Stack(node, *node.source_flags(source)) as stack,
    ):
        stack.add_devices("cherry")
        await stack.allocatable_is(1)
        await node.add_pod(_pod(stack, "steady"))
        held = await stack.held()
        await stack.everyone_says(held)
        await stack.exporter.kill()
        stack.exporter.lines.clear()
        await stack.exporter.start()
        await node.restart_kubelet()
        stack.url = await stack.exporter.url()
        said: list[bool] = []

        async def right() -> bool:
            samples = await owners.scrape(stack.url)
            if samples.value("devicelens_up") == 1:
                said.append(bool(samples.of("devicelens_device_owner_info", pod="steady")))
            return bool(said)

        await until("it has a mapping", right, limit=node.limit)
        assert said == [True]
        await stack.everyone_says(held)
