"""Scripted plugins whose devices a simulated kubelet has already, and pods that request them."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from simulator import SimulatedKubelet
from simulator.devices import Device
from simulator.model import ContainerSpec, PodSpec
from simulator.scripted import ScriptedPlugin

R = "example.com/camera"


def pod(name: str = "p", resource: str = R, count: int = 1) -> PodSpec:
    """A pod with one container, `c`, that requests devices of one resource."""
    return PodSpec(name, containers=(ContainerSpec("c", {resource: count}),))


@asynccontextmanager
async def registered(
    kubelet: SimulatedKubelet, resource: str, devices: Iterable[Device], **script: Any
) -> AsyncGenerator[ScriptedPlugin]:
    """A scripted plugin that is registered, and whose healthy devices are allocatable."""
    async with ScriptedPlugin(kubelet.root, resource, devices, **script) as plugin:
        await plugin.register()
        healthy = sum(device.health == "Healthy" for device in plugin.devices)
        await kubelet.wait_until(lambda k: k.allocatable(resource) == healthy)
        yield plugin
