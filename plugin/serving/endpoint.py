"""One incarnation of a resource's DevicePlugin server, on a socket that no other ever had.

The advertised list, as every open ListAndWatch stream gets it: the whole list whenever it changes.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message

from kubelet.paths import socket_target
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from kubelet.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from plugin.devices.allocation import ContainerAnswer, RefusedError
from plugin.devices.inventory import Advertised
from plugin.serving.allocate import Allocator
from plugin.serving.lifecycle import SocketIdentity
from runtime.log import Log
from runtime.text import visible


class Board:
    """Holds the newest list. A stream that is slow skips to the newest, never to an older one."""

    def __init__(self, on_shown: Callable[[], None]) -> None:
        """`on_shown` is called whenever a list is about to go to a kubelet."""
        self.message = b""
        """The list as a serialized ListAndWatchResponse."""
        self.version = 0
        self.on_shown = on_shown
        self._encoded: dict[str, tuple[Advertised, bytes]] = {}
        self._streams: set[Stream] = set()

    def publish(self, advertised: Iterable[Advertised]) -> None:
        """Send this list to every stream, unless it is what they have."""
        encoded: dict[str, tuple[Advertised, bytes]] = {}
        for entry in advertised:
            known = self._encoded.get(entry.id)
            encoded[entry.id] = known if known is not None and known[0] is entry else (entry, _piece(entry))
        self._encoded = encoded
        message = b"".join([piece for _, piece in encoded.values()])
        if message != self.message:
            self.message = message
            self.version += 1
            for stream in self._streams:
                stream.wake()

    @contextmanager
    def follow(self) -> Generator["Stream"]:
        """A new stream's view: the list as it is now, then each change."""
        stream = Stream(self)
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)


class Stream:
    """What one ListAndWatch stream has been given and still needs."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._sent: int | None = None
        self._wake = asyncio.Event()
        self._ended = False

    async def next(self) -> bytes | None:
        """The newest list that this stream has not had yet, serialized, waited for; None at its end."""
        while not self._ended:
            if self._sent != self._board.version:
                self._sent = self._board.version
                self._board.on_shown()
                return self._board.message
            self._wake.clear()
            await self._wake.wait()
        return None

    def wake(self) -> None:
        """There is a newer list."""
        self._wake.set()

    def end(self) -> None:
        """Let `next` say that it is over."""
        self._ended = True
        self._wake.set()


def _piece(entry: Advertised) -> bytes:
    """One entry of the list, as a list of it alone: serialized lists are joined end to end.

    kubelet: without NUMA nodes, topology is left out altogether.
    """
    device = pb.Device(ID=entry.id, health="Healthy" if entry.known.healthy else "Unhealthy")
    nodes = [node for node in entry.known.device.numa_nodes if node >= 0]
    if nodes:
        device.topology.CopyFrom(pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes]))
    return pb.ListAndWatchResponse(devices=[device]).SerializeToString()


# ruff: noqa: ARG002, N802 -- the names and parameters of the methods are the API's


END_WITHIN: Final = 0.5
"""Seconds for calls under way when an incarnation ends."""

_SERVICE: Final = "v1beta1.DevicePlugin"

_log = Log("endpoint")
_Context = grpc.aio.ServicerContext[Any, Any]


class Endpoint:
    """Serves one resource on `path`. Raises OSError from `open` where it cannot.

    grpc.aio removes its socket's path when it stops, whoever has that path by then: so `path` must be
    a name that is never used again.
    """

    def __init__(
        self, path: Path, *, board: Board, allocator: Allocator, on_streams: Callable[[], None]
    ) -> None:
        self.path = path
        self._board = board
        self._on_streams = on_streams
        self._closing = False
        self._open: set[Stream] = set()
        self._identity: SocketIdentity | None = None
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_handlers(_Servicer(self, allocator)),))

    def serve(self, add: Callable[[grpc.aio.Server], None]) -> None:
        """Serve something more on the same socket; to be said before `open`."""
        add(self._server)

    async def open(self) -> None:
        """Start serving."""
        try:
            self._server.add_insecure_port(socket_target(self.path))
        except RuntimeError as error:
            reason = "it is not there" if not self.path.parent.is_dir() else "cannot listen there"
            raise OSError(f"{self.path.parent}: {reason}") from error
        # grpc.aio cannot stop a server whose start was cut off: it raises instead, and the end is lost.
        start = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(start)
        except asyncio.CancelledError:
            await asyncio.wait({start})
            raise
        self.path.chmod(0o600)
        self._identity = socket_identity(self.path)

    def publish(self, path: Path) -> None:
        """Give the socket this name, whoever had it. Raises OSError.

        Its name is not the one any more that grpc.aio removes when it stops.
        """
        self.path.replace(path)
        self.path = path
        self._identity = socket_identity(path)

    @property
    def is_there(self) -> bool:
        """Whether the socket is where it was made: a kubelet that restarts removes it."""
        return self._identity is not None and socket_identity(self.path) == self._identity

    async def close(self) -> None:
        """End every stream, then the server, then remove the socket."""
        self._closing = True
        for stream in self._open:
            stream.end()
        # Not awaited itself: grpc.aio's wait_for, on Python 3.11, takes a cancellation for its own that comes
        # as the server has ended, and whoever was to end goes on.
        stop = asyncio.ensure_future(self._server.stop(END_WITHIN))
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
    def stream(self) -> Generator[Stream]:
        """One ListAndWatch stream, counted while it is open."""
        with self._board.follow() as stream:
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
    """The DevicePlugin service; every method's name and shape is the API's."""

    def __init__(self, endpoint: Endpoint, allocator: Allocator) -> None:
        self._endpoint = endpoint
        self._allocator = allocator

    async def GetDevicePluginOptions(self, request: pb.Empty, context: _Context) -> pb.DevicePluginOptions:
        return options(self._allocator)

    # Written to the context rather than yielded: a generator would learn late that its stream has ended.
    # A list is serialized once for all streams.
    async def ListAndWatch(self, request: pb.Empty, context: _Context) -> None:  # type: ignore[override]
        with self._endpoint.stream() as stream:
            while (message := await stream.next()) is not None:
                await context.write(message)

    async def Allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        containers = [list(container.devices_ids) for container in request.container_requests]
        try:
            answers = await self._allocator.allocate(containers)
        except RefusedError as error:
            await context.abort(grpc.StatusCode[error.refusal.name], visible(str(error), 2048))
        return pb.AllocateResponse(container_responses=[_response(made) for made in answers])

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
        except RefusedError as error:
            await context.abort(grpc.StatusCode[error.refusal.name], visible(str(error), 4096))
        return pb.PreStartContainerResponse()


def options(allocator: Allocator) -> pb.DevicePluginOptions:
    """What the kubelet is told that it should ask for."""
    return pb.DevicePluginOptions(
        pre_start_required=allocator.pre_starts, get_preferred_allocation_available=allocator.prefers
    )


def _handlers(servicer: _Servicer) -> grpc.GenericRpcHandler:
    """The service's methods, as the generated code has them but for one: lists come serialized."""

    def unary(method: Any, request: type[Message], response: type[Message]) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    allocate = unary(servicer.Allocate, pb.AllocateRequest, pb.AllocateResponse)
    options = unary(servicer.GetDevicePluginOptions, pb.Empty, pb.DevicePluginOptions)
    pre_start = unary(servicer.PreStartContainer, pb.PreStartContainerRequest, pb.PreStartContainerResponse)
    preferred = unary(
        servicer.GetPreferredAllocation, pb.PreferredAllocationRequest, pb.PreferredAllocationResponse
    )
    lists: Any = grpc.unary_stream_rpc_method_handler(
        servicer.ListAndWatch, request_deserializer=pb.Empty.FromString
    )
    methods = {
        "Allocate": allocate,
        "GetDevicePluginOptions": options,
        "GetPreferredAllocation": preferred,
        "ListAndWatch": lists,
        "PreStartContainer": pre_start,
    }
    return grpc.method_handlers_generic_handler(_SERVICE, methods)


def socket_identity(path: Path) -> SocketIdentity | None:
    """Which socket is at `path` now; None where there is none, or something else."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISSOCK(status.st_mode):
        return None
    return SocketIdentity(status.st_dev, status.st_ino, status.st_mtime_ns)


def _response(made: ContainerAnswer) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=made.env,
        mounts=[
            *(
                pb.Mount(container_path=m.container, host_path=m.host, read_only=m.read_only)
                for m in made.mounts
            ),
            *(pb.Mount(container_path=f.container, host_path=f.host, read_only=True) for f in made.files),
        ],
        devices=[
            pb.DeviceSpec(container_path=d.container, host_path=d.host, permissions=d.permissions)
            for d in made.devices
        ],
        annotations=made.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in made.cdi],
    )
