"""A plugin without its process: a fleet of resources that a test can inspect, beside a simulated kubelet."""
# pyright: reportPrivateUsage=false

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from msgspec.structs import replace

from harness.waiting import until
from kubelet.paths import KubeletPaths, socket_target
from kubelet.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from plugin.config.load import load
from plugin.discovery.host import HostRoot
from plugin.discovery.registry import fault_source
from plugin.presets import PRESETS
from plugin.serving.context import Pace, Patience, PluginContext, RegistrationMethod
from plugin.serving.fleet import ResourceFleet
from plugin.serving.kubelet_state import KubeletState
from plugin.serving.ownership import DeviceOwnership
from plugin.serving.prober import FaultEvents
from plugin.serving.status import ResourceStatus
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher
from simulator import SimulatedKubelet
from simulator.devices import HEALTHY
from simulator.endpoint import PluginClient
from simulator.manager import response

_TOKENS = itertools.count()


@dataclass
class Hands:
    """A clock whose hands a test can move forward."""

    ahead: float = 0.0

    def clock(self) -> Clock:
        return Clock(lambda: time.time() + self.ahead, lambda: time.monotonic() + self.ahead)


@dataclass
class Served:
    """A fleet that runs."""

    fleet: ResourceFleet
    hands: Hands

    def status(self, name: str) -> ResourceStatus:
        """The status of one resource."""
        return next(status for status in self.fleet.statuses() if status.name == name)

    def reasons(self, name: str) -> dict[str, str]:
        """Why each advertised id of a resource is unhealthy; empty for those that are healthy."""
        return {entry.id: entry.known.reason for entry in self.status(name).advertised}

    def healthy(self, name: str) -> list[str]:
        """The advertised ids of a resource that are healthy."""
        return [device for device, reason in self.reasons(name).items() if not reason]

    def apply(self, configuration: str) -> None:
        """Serve another configuration from now on."""
        self.fleet.apply(load(configuration.encode(), "test"))

    async def registered(self, name: str, times: int = 1) -> None:
        """Wait until the kubelet has said yes so often: it asks for the list before its answer arrives."""
        await self.until(lambda: self.status(name).counters.registrations >= times)

    async def quiet(self, name: str, pause: float = 0.1) -> None:
        """Wait until a resource has not looked for devices for a moment."""
        before = -1
        while before != self.status(name).counters.discoveries:
            before = self.status(name).counters.discoveries
            await asyncio.sleep(pause)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""

        async def holds() -> object:
            return condition()

        await until("the condition", holds, pause=0.005)


@dataclass(frozen=True, slots=True)
class Listed:
    """A device as the kubelet has it. `numa`: None where none was sent."""

    numa: int | None = None
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to Allocate. Nodes: (host, container, permissions); mounts: (host, container, read only)."""

    env: dict[str, str] = field(default_factory=dict[str, str])
    nodes: tuple[tuple[str, str, str], ...] = ()
    mounts: tuple[tuple[str, str, bool], ...] = ()
    annotations: dict[str, str] = field(default_factory=dict[str, str])
    cdi: tuple[str, ...] = ()


def nodes(permissions: str, *paths: str) -> tuple[tuple[str, str, str], ...]:
    """Nodes that have the same path on both sides."""
    return tuple((path, path, permissions) for path in paths)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@dataclass(frozen=True)
class Node:
    """A kubelet, and the plugin that a test serves from a host tree to it."""

    kubelet: SimulatedKubelet
    start: Serve

    @asynccontextmanager
    async def serve(
        self, configuration: str, *, ready: Mapping[str, int] | None = None, **options: Any
    ) -> AsyncGenerator[Served]:
        """Serve a configuration or a preset. `ready`: how many healthy devices to wait for, by resource."""
        async with self.start(configuration, **options) as served:
            await self.offers(ready or {})
            yield served

    async def allocatable(self, resource: str, count: int = 1) -> None:
        """Wait until the kubelet has so many healthy devices of a resource."""
        await self.offers({resource: count})

    async def offers(self, counts: Mapping[str, int]) -> None:
        """Wait until the kubelet has so many healthy devices of each resource."""
        await self.kubelet.wait_until(lambda k: all(k.allocatable(name) == n for name, n in counts.items()))

    async def devices(self, resource: str, count: int) -> dict[str, Listed]:
        """The devices of a resource by id, once the kubelet has `count` of them."""
        await self.kubelet.wait_until(lambda k: k.capacity(resource) == count)
        return self.listed(resource)

    def listed(self, resource: str) -> dict[str, Listed]:
        """The devices of a resource by id, as they are listed now."""
        listed = self.kubelet._process.life.state.devices.get(resource, {})
        return {
            device.id: Listed(device.numa[0] if device.numa else None, device.health == HEALTHY)
            for device in listed.values()
        }

    async def allocate(self, resource: str, *ids: str) -> Answer:
        """The plugin's answer to Allocate for one container. Raises the simulator's RpcError."""
        plugin = self.kubelet._process.life.state.endpoints[resource].plugin
        assert isinstance(plugin, PluginClient)
        content = await plugin.allocate(ids)
        assert content is not None
        message = response(content)
        return Answer(
            env=dict(message.envs),
            nodes=tuple((n.host_path, n.container_path, n.permissions) for n in message.devices),
            mounts=tuple((m.host_path, m.container_path, m.read_only) for m in message.mounts),
            annotations=dict(message.annotations),
            cdi=tuple(c.name for c in message.cdi_devices),
        )


def configuration(*resources: str) -> str:
    """A configuration of these resources, each the text of one item of the list."""
    return "version: 1\nresources:\n" + "".join(resources)


def static(name: str, *devices: str) -> str:
    """A resource with devices that are always there."""
    listed = ", ".join(f"{{name: {device}}}" for device in devices)
    return f"- name: {name}\n  discover: [{{static: {{devices: [{listed}]}}}}]\n"


def glob(name: str, path: str, more: str = "") -> str:
    """A resource whose devices are the paths that match; `more`: its other keys, indented by two."""
    return f"- name: '{name}'\n  discover: [{{glob: {{paths: ['{path}']}}}}]\n{more}"


@asynccontextmanager
async def plugin_stub(kubelet_root: Path) -> AsyncGenerator["pb_grpc.DevicePluginAsyncStub"]:
    """Calls the only socket of a plugin, as a kubelet does."""
    (socket,) = plugin_sockets(kubelet_root)
    async with grpc.aio.insecure_channel(socket_target(socket)) as channel:
        yield pb_grpc.DevicePluginStub(channel)


def plugin_sockets(kubelet_root: Path) -> list[Path]:
    """The sockets of plugins that register by a call."""
    return sorted((kubelet_root / "device-plugins").glob("devicelens-*.sock"))


def plugin_context(
    kubelet_root: Path, host: Path, clock: Clock, *, use_inotify: bool = True
) -> PluginContext:
    """What the resources of a plugin share."""
    paths, root = KubeletPaths(kubelet_root), HostRoot(host)
    kubelet = KubeletState(paths, clock, "sim-node")
    return PluginContext(
        host=root,
        paths=paths,
        watcher=DirectoryWatcher(poll_interval=0.1, use_inotify=use_inotify),
        kubelet=kubelet,
        ownership=DeviceOwnership(kubelet),
        token=lambda: f"{next(_TOKENS):08d}",
        fault_events=FaultEvents(lambda sources: fault_source(root, sources)),
        clock=clock,
    )


@asynccontextmanager
async def serving(
    kubelet_root: Path,
    host: Path,
    configuration: str,
    *,
    pace: Pace | None = None,
    patience: Patience | None = None,
    use_inotify: bool = True,
    method: RegistrationMethod = "socket",
) -> AsyncGenerator[Served]:
    """Serve a configuration, or a preset by its name, from a host tree until the context ends."""
    text = PRESETS[configuration].read_text() if configuration in PRESETS else configuration
    hands = Hands()
    context = plugin_context(kubelet_root, host, hands.clock(), use_inotify=use_inotify)
    context = replace(context, pace=pace or Pace(), patience=patience or Patience(), method=method)
    fleet = ResourceFleet(context)
    fleet.apply(load(text.encode(), "test"))
    async with asyncio.TaskGroup() as group:
        actors = (context.watcher.run(), context.uevents.run(), fleet.run())
        tasks = [group.create_task(actor) for actor in actors]
        served = Served(fleet, hands)
        try:
            await served.until(lambda: fleet.settled)
            yield served
        finally:
            for task in tasks:
                task.cancel()
