"""The device manager of one kubelet process: Registration, connections, streams, checkpoint."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from grpc import StatusCode

from kubelet.pb.deviceplugin.v1beta1 import api_pb2
from simulator import checkpoint
from simulator.devices import Device, DeviceState, is_extended_resource
from simulator.endpoint import DialError, PluginClient, plugin_path
from simulator.node import Node
from simulator.rpc import Context, RawService, RpcError, Tasks, decoded

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
        self._clients: dict[str, PluginClient] = {}
        self._live: set[PluginClient] = set()

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

        kubelet: its books have one client for each resource, the newest, which takes the place of an older
        one while that is still followed. Raises RefusedError when it cannot be reached or does not say its
        options.
        """
        client = PluginClient(resource, path, self._count)
        self._clients[resource] = client
        self._live.add(client)
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
                # kubelet: the current owner of the resource is removed, and the endpoint that it replaced
                # does not return: when its stream ends later, its devices do not become unhealthy.
                self._clients.pop(resource, None)
                await self._close(client)
        self.state.connected(resource, client, options)
        self._event("plugin registered", resource=resource, socket=path)
        self._changed()
        self._tasks.spawn(self._follow(client))

    async def deregister(self, resource: str) -> None:
        """A plugin's socket left plugins_registry. kubelet: the current endpoint of the resource is cut."""
        await self._disconnect(resource)

    def streams(self, resource: str) -> int:
        """Open connections to plugins of a resource."""
        return sum(1 for client in self._live if client.resource == resource)

    async def close(self) -> None:
        """Cut every connection."""
        self._clients.clear()
        for client in tuple(self._live):
            await self._close(client)

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
        await self._close(client)
        # kubelet: whichever stream of a resource ends, it is the newest client that is cut. Without one in
        # the books it ends without a trace.
        if client.resource in self._clients:
            self._event("plugin's stream ended", resource=client.resource, reason=reason)
            await self._disconnect(client.resource)

    async def _disconnect(self, resource: str) -> None:
        client = self._clients.pop(resource, None)
        if client is not None:
            self.state.disconnected(resource)
            self._changed()
            await self._close(client)

    async def _close(self, client: PluginClient) -> None:
        self._live.discard(client)
        await client.close()


def response(content: bytes) -> api_pb2.ContainerAllocateResponse:
    """A ContainerAllocateResponse as it is kept in the checkpoint."""
    return api_pb2.ContainerAllocateResponse.FromString(content)


def registration_service(node: Node, manager: DeviceManager) -> RawService:
    """The service: validates, dials the plugin back, and only then answers (kubelet: Register)."""

    async def register(content: bytes, context: Context) -> bytes:
        request = await decoded(api_pb2.RegisterRequest, content, context)
        node.count("Register")
        failure = await node.gate.registration()
        if failure is not None:
            await context.abort(failure, "simulated failure")
        path = plugin_path(node.settings.device_plugins, request.endpoint)
        try:
            manager.validate(request.resource_name, (request.version,))
            await manager.register(request.resource_name, path)
        except RefusedError as error:
            node.event("registration refused", resource=request.resource_name, reason=str(error))
            await context.abort(StatusCode.UNKNOWN, str(error))
        return api_pb2.Empty().SerializeToString()

    return RawService("v1beta1.Registration", {"Register": register})
