"""A preset, or any configuration, served from a host tree to a simulated kubelet."""
# pyright: reportPrivateUsage=false

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.served import Served, serving
from plugin.presets import PRESETS
from simulator import SimulatedKubelet
from simulator.devices import HEALTHY
from simulator.endpoint import PluginClient
from simulator.manager import response


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


@dataclass
class Serving:
    """What is served, seen from the kubelet."""

    kubelet: SimulatedKubelet
    served: Served

    async def devices(self, resource: str, count: int) -> dict[str, Listed]:
        """The devices of a resource by id, once the kubelet knows `count` of them."""
        await self.kubelet.wait_until(lambda k: k.capacity(resource) == count)
        return self.now(resource)

    def now(self, resource: str) -> dict[str, Listed]:
        """The devices of a resource by id, as they are listed now."""
        listed = self.kubelet._process.life.state.devices.get(resource, {})
        return {
            device.id: Listed(device.numa[0] if device.numa else None, device.health == HEALTHY)
            for device in listed.values()
        }

    async def allocate(self, resource: str, *ids: str) -> Answer:
        """What Allocate answers for one container. Raises the simulator's RpcError."""
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


Serve = Callable[[str], AbstractAsyncContextManager[Serving]]


@asynccontextmanager
async def serving_configuration(root: Path, host: Path, configuration: str) -> AsyncGenerator[Serving]:
    """Serve a preset by its name, or a configuration, from the tree at `host`, to a kubelet below `root`."""
    text = PRESETS[configuration].read_text() if configuration in PRESETS else configuration
    async with SimulatedKubelet(root / "k") as kubelet, serving(root / "k", host, text) as served:
        yield Serving(kubelet, served)
        assert kubelet.violations == ()
