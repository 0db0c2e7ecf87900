"""Registration of a device plugin, by a call to the kubelet or by a socket that the kubelet finds."""

# ruff: noqa: ARG002, N802 -- the names and parameters of the servicer's methods are the API's

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from kubelet.paths import socket_target
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from kubelet.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from kubelet.pb.pluginregistration.v1 import api_pb2 as watcher_pb
from kubelet.pb.pluginregistration.v1 import api_pb2_grpc as watcher_grpc

REGISTER_TIMEOUT: Final = 15.0
"""Seconds; the kubelet itself takes up to 10 to connect back before it answers."""
PLUGIN_TYPE: Final = "DevicePlugin"
VERSION: Final = "v1beta1"

_Context = grpc.aio.ServicerContext[Any, Any]


class RegisterFailedError(Exception):
    """Register failed. `refused`: the kubelet answered with an error."""

    def __init__(self, reason: str, *, refused: bool) -> None:
        super().__init__(reason)
        self.refused = refused


async def register(kubelet: Path, resource: str, endpoint: str, options: pb.DevicePluginOptions) -> None:
    """Register `resource`, served on the socket file named `endpoint`. Raises RegisterFailedError.

    Each call uses a new channel: gRPC would delay an attempt that follows a failed connection.
    """
    request = pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
    settings = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        # By default gRPC puts the socket's path into :authority, which not every server accepts.
        ("grpc.default_authority", "localhost"),
    ]
    async with grpc.aio.insecure_channel(socket_target(kubelet), options=settings) as channel:
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            refused = error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
            raise RegisterFailedError(f"{error.code().name}: {error.details()}", refused=refused) from None


class PluginWatcherServicer(watcher_grpc.RegistrationServicer):
    """The service that the kubelet calls on sockets in plugins_registry."""

    def __init__(self, resource: str, notified: Callable[[str | None], None]) -> None:
        """`notified` gets the kubelet's verdict: None for a registration, the reason for a refusal."""
        self._resource = resource
        self._notified = notified

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve on `server`."""
        watcher_grpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(self, request: watcher_pb.InfoRequest, context: _Context) -> watcher_pb.PluginInfo:
        """Describe the plugin. Without an endpoint the kubelet uses the socket that it called."""
        return watcher_pb.PluginInfo(type=PLUGIN_TYPE, name=self._resource, supported_versions=[VERSION])

    async def NotifyRegistrationStatus(
        self, request: watcher_pb.RegistrationStatus, context: _Context
    ) -> watcher_pb.RegistrationStatusResponse:
        """Receive the result of the registration."""
        accepted = request.plugin_registered
        self._notified(None if accepted else request.error or "the kubelet refused it without a reason")
        return watcher_pb.RegistrationStatusResponse()
