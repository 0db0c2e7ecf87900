"""Serves one resource's DevicePlugin API on a socket whose name is never used again."""

# ruff: noqa: ARG002, N802 -- the names and parameters of the servicer's methods are the API's

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import Message

from kubelet.paths import socket_target
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from kubelet.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from plugin.devices.allocation import AllocationError, ContainerAllocation
from plugin.devices.inventory import ListEntry
from plugin.serving.sockets import SocketIdentity, socket_identity
from runtime.text import visible

STOP_GRACE: Final = 0.5
"""Seconds for calls under way when the endpoint closes."""

_SERVICE: Final = "v1beta1.DevicePlugin"
_Context = grpc.aio.ServicerContext[Any, Any]


class DeviceListPublisher:
    """Holds the newest device list, serialized once for all streams.

    A slow stream skips to the newest list, and never gets an older one.
    """

    def __init__(self, on_send: Callable[[], None]) -> None:
        """`on_send` is called whenever a list is about to go to a kubelet."""
        self.message = b""
        """The list as a serialized ListAndWatchResponse."""
        self.version = 0
        self.on_send = on_send
        self._entries: Sequence[ListEntry] = ()
        self._encoded: Sequence[bytes] = ()
        self._streams: set[DeviceListStream] = set()

    def publish(self, advertised: Sequence[ListEntry]) -> None:
        """Send this list to every stream, unless it equals the last one.

        Entries that are the same objects as before are not encoded again.
        """
        known = dict(zip(map(id, self._entries), self._encoded, strict=True))
        message = pb.ListAndWatchResponse(devices=[pb.Device()])
        self._encoded = [known.get(id(entry)) or _encode(entry, message) for entry in advertised]
        self._entries = advertised
        joined = b"".join(self._encoded)
        if joined != self.message:
            self.message = joined
            self.version += 1
            for stream in self._streams:
                stream.wake()

    @contextmanager
    def follow(self) -> Generator["DeviceListStream"]:
        """A stream of the present list and each later one."""
        stream = DeviceListStream(self)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)


class DeviceListStream:
    """The lists that one ListAndWatch stream still needs."""

    def __init__(self, publisher: DeviceListPublisher) -> None:
        self._publisher = publisher
        self._sent: int | None = None
        self._wake = asyncio.Event()
        self._ended = False

    async def next(self) -> bytes | None:
        """Wait for a list that this stream has not sent yet; None once the stream has ended."""
        while not self._ended:
            if self._sent != self._publisher.version:
                self._sent = self._publisher.version
                self._publisher.on_send()
                return self._publisher.message
            self._wake.clear()
            await self._wake.wait()
        return None

    def wake(self) -> None:
        """Announce a newer list."""
        self._wake.set()

    def end(self) -> None:
        """End the stream."""
        self._ended = True
        self._wake.set()


def _encode(entry: ListEntry, message: pb.ListAndWatchResponse) -> bytes:
    """One device as a list of its own: serialized lists can be joined end to end. `message`, a list of one
    device, is filled in: to make one takes longer than to serialize it.

    The kubelet takes a present but empty topology for one; without NUMA nodes the field is left out.
    """
    device = message.devices[0]
    device.Clear()
    device.ID = entry.id
    device.health = "Healthy" if entry.known.healthy else "Unhealthy"
    for node in entry.known.device.numa_nodes:
        if node >= 0:
            device.topology.nodes.add(ID=node)
    return message.SerializeToString()


class DeviceAllocator(Protocol):
    """Answers the calls of the kubelet. Its coroutines raise AllocationError."""

    @property
    def options(self) -> pb.DevicePluginOptions:
        """The optional calls that the kubelet should make."""
        ...

    async def allocate(self, containers: Sequence[Sequence[str]]) -> Sequence[ContainerAllocation]:
        """What each container gets for its advertised ids."""
        ...

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """The ids of `available` that a container should get."""
        ...

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Prepare the devices of a container that starts."""
        ...


class Endpoint:
    """Serves one resource on `path`. Raises OSError from `open` where that is impossible.

    grpc.aio removes the path of its socket when it stops, whoever has that path by then: `path` must be a
    name that is never used again.
    """

    def __init__(
        self,
        path: Path,
        *,
        publisher: DeviceListPublisher,
        allocator: DeviceAllocator,
        on_streams: Callable[[], None],
    ) -> None:
        """`on_streams` is called when a ListAndWatch stream opens or ends."""
        self.path = path
        self.options = allocator.options
        self._publisher = publisher
        self._on_streams = on_streams
        self._closing = False
        self._open: set[DeviceListStream] = set()
        self._identity: SocketIdentity | None = None
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_handlers(_Servicer(self, allocator)),))

    def add_service(self, add: Callable[[grpc.aio.Server], None]) -> None:
        """Serve another service on the same socket. To be called before `open`."""
        add(self._server)

    async def open(self) -> None:
        """Start serving."""
        try:
            self._server.add_insecure_port(socket_target(self.path))
        except RuntimeError as error:
            reason = "it is not there" if not self.path.parent.is_dir() else "cannot listen there"
            raise OSError(f"{self.path.parent}: {reason}") from error
        # grpc.aio cannot stop a server whose start was cancelled: stop() raises, and the socket stays.
        start = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(start)
        except asyncio.CancelledError:
            await asyncio.wait({start})
            raise
        self.path.chmod(0o600)
        self._identity = socket_identity(self.path)

    def rename(self, path: Path) -> None:
        """Move the socket to `path`, replacing what is there. Raises OSError.

        grpc.aio removes only the former name when it stops.
        """
        self.path.replace(path)
        self.path = path
        self._identity = socket_identity(path)

    @property
    def is_there(self) -> bool:
        """Whether the socket is still at its path: a kubelet that restarts removes it."""
        return self._identity is not None and socket_identity(self.path) == self._identity

    async def close(self) -> None:
        """End every stream, stop the server and remove the socket."""
        self._closing = True
        for stream in self._open:
            stream.end()
        # asyncio.wait rather than await: on Python 3.11 grpc.aio's wait_for swallows a cancellation that
        # comes as the server has stopped.
        stop = asyncio.ensure_future(self._server.stop(STOP_GRACE))
        try:
            await asyncio.wait({stop})
        except asyncio.CancelledError:
            await asyncio.wait({stop})
            raise
        finally:
            if self._identity is None or self.is_there:
                self.path.unlink(missing_ok=True)
        stop.result()

    @property
    def streams(self) -> int:
        """How many ListAndWatch streams are open."""
        return len(self._open)

    @contextmanager
    def stream(self) -> Generator[DeviceListStream]:
        """One ListAndWatch stream, counted while it is open."""
        with self._publisher.follow() as stream:
            if self._closing:
                stream.end()
            self._open.add(stream)
            self._on_streams()
            try:
                yield stream
            finally:
                self._open.discard(stream)
                self._on_streams()


class _Servicer(pb_grpc.DevicePluginServicer):
    """The DevicePlugin service."""

    def __init__(self, endpoint: Endpoint, allocator: DeviceAllocator) -> None:
        self._endpoint = endpoint
        self._allocator = allocator

    async def GetDevicePluginOptions(self, request: pb.Empty, context: _Context) -> pb.DevicePluginOptions:
        return self._endpoint.options

    # Writes to the context rather than yield: a generator learns late that its stream has ended.
    async def ListAndWatch(self, request: pb.Empty, context: _Context) -> None:  # type: ignore[override]
        with self._endpoint.stream() as stream:
            while (message := await stream.next()) is not None:
                await context.write(message)

    async def Allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        containers = [list(container.devices_ids) for container in request.container_requests]
        try:
            allocations = await self._allocator.allocate(containers)
        except AllocationError as error:
            await context.abort(grpc.StatusCode[error.refusal.name], visible(str(error), 2048))
        response = pb.AllocateResponse()
        for each in allocations:
            _write(response.container_responses.add(), each)
        return response

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: _Context
    ) -> pb.PreferredAllocationResponse:
        return pb.PreferredAllocationResponse(
            container_responses=[
                pb.ContainerPreferredAllocationResponse(
                    deviceIDs=self._allocator.preferred(
                        container.available_deviceIDs,
                        container.must_include_deviceIDs,
                        container.allocation_size,
                    )
                )
                for container in request.container_requests
            ]
        )

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: _Context
    ) -> pb.PreStartContainerResponse:
        try:
            await self._allocator.pre_start(request.devices_ids)
        except AllocationError as error:
            await context.abort(grpc.StatusCode[error.refusal.name], visible(str(error), 4096))
        return pb.PreStartContainerResponse()


def _handlers(servicer: _Servicer) -> grpc.GenericRpcHandler:
    """The methods as in the generated code, except that ListAndWatch sends serialized lists."""

    def unary(method: Any, request: type[Message], response: type[Message]) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    lists: Any = grpc.unary_stream_rpc_method_handler(
        servicer.ListAndWatch, request_deserializer=pb.Empty.FromString
    )
    calls: tuple[tuple[Any, type[Message], type[Message]], ...] = (
        (servicer.GetDevicePluginOptions, pb.Empty, pb.DevicePluginOptions),
        (servicer.Allocate, pb.AllocateRequest, pb.AllocateResponse),
        (servicer.GetPreferredAllocation, pb.PreferredAllocationRequest, pb.PreferredAllocationResponse),
        (servicer.PreStartContainer, pb.PreStartContainerRequest, pb.PreStartContainerResponse),
    )
    methods = {method.__name__: unary(method, request, response) for method, request, response in calls}
    return grpc.method_handlers_generic_handler(_SERVICE, {"ListAndWatch": lists, **methods})


def _write(response: pb.ContainerAllocateResponse, made: ContainerAllocation) -> None:
    """Fill a container's response, field by field: the constructor takes three times as long."""
    for name, value in made.env.items():
        response.envs[name] = value
    for mount in made.mounts:
        response.mounts.add(container_path=mount.container, host_path=mount.host, read_only=mount.read_only)
    for file in made.files:
        response.mounts.add(container_path=file.container, host_path=file.host, read_only=True)
    for node in made.devices:
        response.devices.add(container_path=node.container, host_path=node.host, permissions=node.permissions)
    for key, value in made.annotations.items():
        response.annotations[key] = value
    for name in made.cdi:
        response.cdi_devices.add(name=name)
