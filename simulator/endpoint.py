"""The kubelet's end of a device plugin: it dials, asks, and follows ListAndWatch."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from kubelet.pb.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc
from simulator.allocation import Offer
from simulator.devices import Device, Options
from simulator.rpc import RpcError, call, target, undecodable

PRE_START_TIMEOUT: Final = 30.0

CHANNEL_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    # A plugin that comes back under an old name must not inherit the old connection's back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class DialError(Exception):
    """The plugin could not be reached in time."""


class PluginClient:
    """A connection to one plugin's socket."""

    def __init__(self, resource: str, path: str, count: Callable[[str], None]) -> None:
        """`count` receives the name of each method called."""
        self.resource = resource
        self.path = path
        self._count = count
        self._channel: grpc.aio.Channel | None = None
        self._closed = False

    async def connect(self, timeout: float) -> Options:  # noqa: ASYNC109 -- the kubelet's own limit
        """Dial, for at most `timeout` seconds, then ask for options. Raises DialError, RpcError."""
        self._channel = grpc.aio.insecure_channel(target(self.path), options=CHANNEL_OPTIONS)
        try:
            async with asyncio.timeout(timeout):
                await self._channel.channel_ready()
        except TimeoutError as error:
            await self.close()
            raise DialError("failed to dial device plugin: context deadline exceeded") from error
        self._count("GetDevicePluginOptions")
        answer = await call(self._stub().GetDevicePluginOptions(api_pb2.Empty()))
        return Options(answer.pre_start_required, answer.get_preferred_allocation_available)

    async def follow(self, listed: Callable[[Sequence[Device]], None]) -> str:
        """Tell `listed` every list until the stream ends; returns why it did.

        A message that does not decode, an id that is not UTF-8 among them, ends the stream.
        """
        if self._channel is None or self._closed:
            return "grpc: the client connection is closing"
        self._count("ListAndWatch")
        # Raw, because grpc.aio would turn a message that does not decode into an error of its own.
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch"
        )
        stream = method(api_pb2.Empty().SerializeToString())
        try:
            while True:
                raw: Any = await call(stream.read())
                if not isinstance(raw, bytes):
                    return "EOF"
                listed(_devices(api_pb2.ListAndWatchResponse.FromString(raw)))
        except RpcError as error:
            return str(error)
        except DecodeError as error:
            return (
                "rpc error: code = Internal desc = grpc: failed to unmarshal the received message: "
                + undecodable(error)
            )
        finally:
            stream.cancel()

    async def preferred(self, offer: Offer, order: Callable[[Iterable[str]], list[str]]) -> list[str]:
        """GetPreferredAllocation for one container. Raises RpcError."""
        self._count("GetPreferredAllocation")
        request = api_pb2.ContainerPreferredAllocationRequest(
            available_deviceIDs=order(offer.available),
            must_include_deviceIDs=order(offer.must_include),
            allocation_size=offer.size,
        )
        answer = await call(
            self._stub().GetPreferredAllocation(
                api_pb2.PreferredAllocationRequest(container_requests=[request])
            )
        )
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, ids: Sequence[str]) -> bytes | None:
        """Allocate for one container, without a time limit; None for an answer without containers.

        Raises RpcError.
        """
        self._count("Allocate")
        request = api_pb2.ContainerAllocateRequest(devices_ids=ids)
        answer = await call(self._stub().Allocate(api_pb2.AllocateRequest(container_requests=[request])))
        if not answer.container_responses:
            return None
        response: bytes = answer.container_responses[0].SerializeToString()
        return response

    async def pre_start(self, ids: Sequence[str]) -> None:
        """PreStartContainer, within 30 s. Raises RpcError."""
        self._count("PreStartContainer")
        request = api_pb2.PreStartContainerRequest(devices_ids=ids)
        await call(self._stub().PreStartContainer(request, timeout=PRE_START_TIMEOUT))

    async def close(self) -> None:
        """Cut the connection; may be called again."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close(None)

    def _stub(self) -> "api_pb2_grpc.DevicePluginAsyncStub":
        if self._channel is None or self._closed:
            raise RpcError(grpc.StatusCode.CANCELLED, "grpc: the client connection is closing")
        return api_pb2_grpc.DevicePluginStub(self._channel)


def _devices(message: api_pb2.ListAndWatchResponse) -> list[Device]:
    return [
        Device(
            device.ID,
            device.health,
            tuple(node.ID for node in device.topology.nodes) if device.HasField("topology") else None,
        )
        for device in message.devices
    ]


def plugin_path(directory: Path, endpoint: str) -> str:
    """Where a plugin says it serves: its endpoint below `directory`, as Go's filepath.Join has it."""
    return str(Path(f"{directory}/{endpoint}"))
