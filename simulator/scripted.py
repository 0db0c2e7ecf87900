"""A device plugin that a test controls, in correct and incorrect ways."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from kubelet.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from kubelet.pb.pluginregistration.v1 import api_pb2 as registration
from simulator.devices import Device, Options
from simulator.rpc import Context, RawService, target

Allocate = Callable[[Sequence[str]], Awaitable[api_pb2.ContainerAllocateResponse | None]]
Prefer = Callable[[api_pb2.ContainerPreferredAllocationRequest], Awaitable[Sequence[str]]]
PreStart = Callable[[Sequence[str]], Awaitable[None]]


class PluginFailure(Exception):  # noqa: N818 -- an answer that a script gives
    """Raised by a script's hook: the call fails with this code and these words."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class ScriptedPlugin:
    """Serves one resource on one socket below a kubelet's root. An async context manager.

    `devices` are what a new stream starts with, `send` replaces them on every stream. The hooks decide
    the answers; what was asked is kept in `allocated`, `offered`, `started` and `notified`.
    """

    def __init__(
        self,
        root: Path,
        resource: str,
        devices: Iterable[Device] = (),
        *,
        socket: str = "scripted.sock",
        directory: str = "device-plugins",
        options: Options | None = None,
        allocate: Allocate | None = None,
        prefer: Prefer | None = None,
        pre_start: PreStart | None = None,
        info: registration.PluginInfo | None = None,
    ) -> None:
        """`directory`: plugins_registry for a plugin that registers by being there; `info`: what it says."""
        self.path = root / directory / socket
        self.resource = resource
        self.devices = tuple(devices)
        self.options = options or Options()
        self.allocate = allocate or _environment
        self.prefer = prefer
        self.pre_start = pre_start
        self.info = info or registration.PluginInfo(
            type="DevicePlugin", name=resource, supported_versions=["v1beta1"]
        )
        self.allocated: list[tuple[str, ...]] = []
        self.offered: list[api_pb2.ContainerPreferredAllocationRequest] = []
        self.started: list[tuple[str, ...]] = []
        self.notified: list[registration.RegistrationStatus] = []
        self._kubelet = root / "device-plugins" / "kubelet.sock"
        self._streams: dict[asyncio.Queue[bytes | None], None] = {}
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.serve()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def serve(self) -> None:
        """Listen."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (
                RawService(
                    "v1beta1.DevicePlugin",
                    {
                        "GetDevicePluginOptions": self._options,
                        "GetPreferredAllocation": self._prefer,
                        "Allocate": self._allocate,
                        "PreStartContainer": self._pre_start,
                    },
                    {"ListAndWatch": self._list_and_watch},
                ),
                RawService(
                    "pluginregistration.Registration",
                    {"GetInfo": self._info, "NotifyRegistrationStatus": self._notify},
                ),
            )
        )
        server.add_insecure_port(target(self.path))
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Go away; the socket goes too."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def register(self, *, version: str = "v1beta1", endpoint: str | None = None) -> None:
        """Register with the kubelet. Raises AioRpcError when it refuses."""
        async with grpc.aio.insecure_channel(
            target(self._kubelet), options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            stub: api_pb2_grpc.RegistrationAsyncStub = api_pb2_grpc.RegistrationStub(channel)
            await stub.Register(
                api_pb2.RegisterRequest(
                    version=version, endpoint=endpoint or self.path.name, resource_name=self.resource
                )
            )

    @property
    def streams(self) -> int:
        """ListAndWatch streams that are open."""
        return len(self._streams)

    def send(self, devices: Iterable[Device]) -> None:
        """A new list, to every stream and to those to come."""
        self.devices = tuple(devices)
        self.send_raw(_list(self.devices))

    def send_raw(self, message: bytes) -> None:
        """Any bytes as the next list, to every stream."""
        for stream in self._streams:
            stream.put_nowait(message)

    def end_streams(self) -> None:
        """End every stream, as if all were said."""
        for stream in self._streams:
            stream.put_nowait(None)

    def end_oldest_stream(self) -> None:
        """End the one that was opened first, and no other."""
        next(iter(self._streams)).put_nowait(None)

    async def _list_and_watch(self, _content: bytes, _context: Context) -> AsyncIterator[bytes]:
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams[stream] = None
        try:
            yield _list(self.devices)
            while (message := await stream.get()) is not None:
                yield message
        finally:
            self._streams.pop(stream, None)

    async def _options(self, _content: bytes, _context: Context) -> bytes:
        return api_pb2.DevicePluginOptions(
            pre_start_required=self.options.pre_start_required,
            get_preferred_allocation_available=self.options.preferred_allocation,
        ).SerializeToString()

    async def _allocate(self, content: bytes, context: Context) -> bytes:
        answer = api_pb2.AllocateResponse()
        for request in api_pb2.AllocateRequest.FromString(content).container_requests:
            self.allocated.append(tuple(request.devices_ids))
            response = await _hook(self.allocate(tuple(request.devices_ids)), context)
            if response is not None:
                answer.container_responses.append(response)
        return answer.SerializeToString()

    async def _prefer(self, content: bytes, context: Context) -> bytes:
        answer = api_pb2.PreferredAllocationResponse()
        for request in api_pb2.PreferredAllocationRequest.FromString(content).container_requests:
            self.offered.append(request)
            ids = await _hook(self.prefer(request), context) if self.prefer is not None else ()
            answer.container_responses.add(deviceIDs=ids)
        return answer.SerializeToString()

    async def _pre_start(self, content: bytes, context: Context) -> bytes:
        ids = tuple(api_pb2.PreStartContainerRequest.FromString(content).devices_ids)
        self.started.append(ids)
        if self.pre_start is not None:
            await _hook(self.pre_start(ids), context)
        return b""

    async def say_who(self) -> registration.PluginInfo:
        """The answer to GetInfo."""
        return self.info

    async def _info(self, _content: bytes, _context: Context) -> bytes:
        return (await self.say_who()).SerializeToString()

    async def _notify(self, content: bytes, _context: Context) -> bytes:
        self.notified.append(registration.RegistrationStatus.FromString(content))
        return b""


async def _hook(answer: Awaitable[Any], context: Context) -> Any:
    try:
        return await answer
    except PluginFailure as failure:
        await context.abort(failure.code, failure.details)


async def _environment(ids: Sequence[str]) -> api_pb2.ContainerAllocateResponse:
    return api_pb2.ContainerAllocateResponse(envs={"DEVICES": ",".join(sorted(ids))})


def _list(devices: Iterable[Device]) -> bytes:
    answer = api_pb2.ListAndWatchResponse()
    for device in devices:
        listed = answer.devices.add(ID=device.id, health=device.health)
        if device.numa is not None:
            listed.topology.SetInParent()
            for node in device.numa:
                listed.topology.nodes.add(ID=node)
    return answer.SerializeToString()
