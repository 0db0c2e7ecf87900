"""The device manager of one kubelet's life: plugins' connections, their streams, the checkpoint."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from plugin.pb.deviceplugin.v1beta1 import api_pb2
from simulator import checkpoint
from simulator.devices import Device, DeviceState
from simulator.endpoint import DialError, PluginClient
from simulator.names import is_extended_resource
from simulator.rpc import RpcError
from simulator.tasks import Tasks

VERSION: Final = "v1beta1"
DIAL_TIMEOUT: Final = 10.0


class RefusedError(Exception):
    """A registration that the kubelet does not take; says it in the kubelet's words."""


class DeviceManager:
    """Registers plugins and follows them. Its tasks live in the set it is given."""

    def __init__(
        self,
        state: DeviceState,
        path: Path,
        *,
        tasks: Tasks,
        changed: Callable[[], None],
        event: Callable[..., None],
        count: Callable[[str], None],
        dial_timeout: float = DIAL_TIMEOUT,
    ) -> None:
        """`path`: the checkpoint's. `changed` is called after each change of state."""
        self.state = state
        self._path = path
        self._tasks = tasks
        self._changed = changed
        self._event = event
        self._count = count
        self._dial_timeout = dial_timeout
        self._clients: dict[str, list[PluginClient]] = {}

    def validate(self, resource: str, versions: Collection[str]) -> None:
        """Raises RefusedError unless one version is ours and the name may be served."""
        if VERSION not in versions:
            found = " ".join(versions)
            raise RefusedError(
                f'requested API version "{found}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]'
            )
        if not is_extended_resource(resource):
            raise RefusedError(f'the ResourceName "{resource}" is invalid')

    async def register(self, resource: str, path: str) -> None:
        """Dial a plugin back and start to follow it.

        Raises RefusedError when it cannot be reached or does not say its options.
        """
        client = PluginClient(resource, path, self._count)
        self._clients.setdefault(resource, []).append(client)
        connected = False
        try:
            options = await client.connect(self._dial_timeout)
            connected = True
        except DialError as error:
            raise RefusedError(str(error)) from error
        except RpcError as error:
            raise RefusedError(f"failed to get device plugin options: {error}") from error
        finally:
            if not connected:
                # kubelet: the first connection of that path is dropped from the books, whichever it is.
                self._deregister(resource, path)
                await client.close()
        self.state.connected(resource, client, options)
        self._event("plugin registered", resource=resource, socket=path)
        self._changed()
        self._tasks.spawn(self._follow(client))

    async def deregister(self, resource: str, path: str) -> None:
        """A plugin's socket left plugins_registry."""
        client = self._find(resource, path)
        if client is not None:
            await self._disconnect(client)

    def streams(self, resource: str) -> int:
        """Open connections to plugins of a resource."""
        return len(self._clients.get(resource, ()))

    async def close(self) -> None:
        """Cut every connection."""
        clients = [client for clients in self._clients.values() for client in clients]
        self._clients.clear()
        for client in clients:
            await client.close()

    def save(self) -> None:
        """Write the checkpoint."""
        try:
            checkpoint.write(self._path, self.state.checkpoint())
        except OSError as error:
            self._event("cannot write the checkpoint", path=self._path, reason=error.strerror or str(error))

    async def _follow(self, client: PluginClient) -> None:
        def listed(devices: Sequence[Device]) -> None:
            self.state.listed(client.resource, devices)
            self.save()
            self._event("devices listed", resource=client.resource, devices=len(devices))
            self._changed()

        reason = await client.follow(listed)
        # kubelet: it looks the connection up by its path and cuts the first it finds; one that is not in
        # the books any more ends without a trace.
        found = self._find(client.resource, client.path)
        if found is None:
            return
        self._event("plugin's stream ended", resource=client.resource, reason=reason)
        await self._disconnect(found)

    async def _disconnect(self, client: PluginClient) -> None:
        self._deregister(client.resource, client.path)
        self.state.disconnected(client.resource)
        self._changed()
        await client.close()

    def _find(self, resource: str, path: str) -> PluginClient | None:
        return next((c for c in self._clients.get(resource, ()) if c.path == path), None)

    def _deregister(self, resource: str, path: str) -> None:
        client = self._find(resource, path)
        if client is not None:
            self._clients[resource].remove(client)


def response(content: bytes) -> api_pb2.ContainerAllocateResponse:
    """A ContainerAllocateResponse as it is kept in the checkpoint."""
    return api_pb2.ContainerAllocateResponse.FromString(content)
