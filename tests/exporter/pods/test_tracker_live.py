"""The refresh loop and the API server's pods together, beside a simulated kubelet and random events.

Once settled, the shown uids are true; at no moment is a uid shown that never held the device. The same with
the Pods API is tests/e2e/test_model.py.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.mapping.state import StateStore
from exporter.pods.api_server import ApiServer
from exporter.pods.kubeconfig import ApiServerAccess
from exporter.pods.source import LabelFilter
from exporter.pods.tracker import PodTracker
from exporter.refresh.loop import Refresher
from exporter.refresh.pipeline import SnapshotPipeline
from exporter.refresh.triggers import (
    RefreshTiming,
    follow_device_plugins,
    follow_pod_resources,
)
from harness.waiting import background, until_holds
from kubelet.paths import KubeletPaths
from kubelet.podresources import KubeletClient
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher
from simulator import SimulatedKubelet
from simulator import apiserver as simulated
from simulator.devices import Device
from simulator.model import ContainerSpec, PodSpec
from simulator.scripted import ScriptedPlugin

R = "example.com/gpu"
Held = tuple[str, str, str]
"""Device, pod and uid."""


@dataclass
class Node:
    """A kubelet with three devices, an API server, and what an exporter has told of them."""

    kubelet: SimulatedKubelet
    plugin: ScriptedPlugin
    api: simulated.ApiServer
    states: StateStore
    ever: set[Held] = field(default_factory=set[Held])
    """Who held what at some time, by the kubelet's truth."""
    told: set[Held] = field(default_factory=set[Held])

    def truth(self) -> set[Held]:
        uids = {(pod.spec.namespace, pod.spec.name): pod.uid for pod in self.kubelet.pods() if pod.active}
        return {(held.device, held.pod, uids[held.namespace, held.pod]) for held in self.kubelet.holdings()}

    def shown(self) -> set[Held]:
        return {
            (device.key.device, holder.pod, holder.pod_uid)
            for device in self.states.state.snapshot.devices
            for holder in device.holders
        }

    async def restore(self) -> None:
        """Keep what is told, and check it against what ever was."""
        async for _ in self.states.follow():
            self.told |= self.shown()

    async def settled(self) -> None:
        await until_holds(lambda: self.shown() == self.truth() and self.states.state.failure is None)


@asynccontextmanager
async def _node(root: Path) -> AsyncGenerator[Node]:
    async with AsyncExitStack() as stack:
        kubelet = await stack.enter_async_context(SimulatedKubelet(root, sync_delay=0.15, cpus=0, memory=0))
        await kubelet.add_pod(PodSpec("bystander"))
        plugin = ScriptedPlugin(root, R, [Device("a"), Device("b"), Device("c")])
        await stack.enter_async_context(plugin)
        await plugin.register()
        await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
        api = simulated.ApiServer(kubelet)
        url = await stack.enter_async_context(api.serve())
        paths, states, clock, watcher = KubeletPaths(root), StateStore(), Clock(), DirectoryWatcher()
        client = await stack.enter_async_context(KubeletClient(paths.pod_resources_socket, timeout=2.0))
        watched = ApiServer(ApiServerAccess(url), kubelet.node_name, LabelFilter(None), quiet=0.1)
        identities = PodTracker(watched, expected=True)
        refresher = Refresher(
            *(client, states, [], SnapshotPipeline(keep_allocatable=60.0)),
            timing=RefreshTiming(interval=1.0, stale_after=60.0),
            clock=clock,
            pods=identities,
        )
        identities.bind(refresher)
        node = Node(kubelet, plugin, api, states)
        for work in (
            watcher.run(),
            refresher.run(),
            identities.run(),
            follow_device_plugins(watcher, paths, refresher.trigger),
            follow_pod_resources(watcher, paths, refresher.trigger),
            node.restore(),
        ):
            await stack.enter_async_context(background(work))
        yield node


async def _step(node: Node, rng: random.Random) -> None:
    """Something happens on the node."""
    kubelet = node.kubelet
    names = sorted(pod.spec.name for pod in kubelet.pods() if pod.active and pod.spec.name != "bystander")
    free = 3 - len(kubelet.holdings())

    async def add(name: str) -> None:
        await kubelet.add_pod(PodSpec(name, containers=(ContainerSpec("c", resources={R: 1}),)))
        node.ever |= node.truth()

    async def recreate(name: str) -> None:
        await kubelet.delete_pod("default", name)
        await add(name)

    match rng.choice([*2 * ("add", "recreate"), "delete", "complete", "restart", "drop", "expire"]):
        case "add" if free:
            # Few names: they come again.
            absent = sorted({"p", "q", "r"} - set(names))
            await add(rng.choice(absent))
        case "recreate" if names:
            await recreate(rng.choice(names))
        case "delete" if names:
            await kubelet.delete_pod("default", rng.choice(names))
        case "complete" if names:
            await kubelet.complete_pod("default", rng.choice(names))
        case "restart":
            await kubelet.restart(down_for=rng.choice([0.0, 0.05]))
            # Its socket went with the old kubelet.
            await node.plugin.stop()
            await node.plugin.serve()
            await node.plugin.register()
            await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
        case "drop":
            node.api.drop_watches()
        case "expire":
            node.api.compact()
            node.api.drop_watches()
        case _:
            pass


@pytest.mark.parametrize("seed", [1, 2])
async def test_shown_uids_are_true_after_any_sequence_of_events(root: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with _node(root) as node:
        for _ in range(8):
            for _ in range(rng.randrange(1, 5)):
                await _step(node, rng)
                await asyncio.sleep(rng.choice([0.0, 0.0, 0.02, 0.1]))
            await node.settled()
        named = {held for held in node.told if held[2]}
        assert named
        assert named <= node.ever
