"""One Register call to the kubelet."""

from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from kubelet.paths import socket_target
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from kubelet.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc

REGISTER_LIMIT: Final = 15.0
"""Seconds; the kubelet itself takes up to 10 to dial back before it answers."""


class RegisterFailedError(Exception):
    """Register did not succeed. `refused`: the kubelet answered, and said no."""

    def __init__(self, reason: str, *, refused: bool) -> None:
        super().__init__(reason)
        self.refused = refused


async def register(kubelet: Path, resource: str, endpoint: str, options: pb.DevicePluginOptions) -> None:
    """Register `resource`, served on the socket file named `endpoint`. Raises RegisterFailedError.

    Each call has a channel of its own: grpc would hold a new attempt back for as long as it thinks
    fit after one that nobody listened to.
    """
    request = pb.RegisterRequest(
        version="v1beta1", endpoint=endpoint, resource_name=resource, options=options
    )
    settings = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        # Else the socket's path goes into :authority, which not every server takes.
        ("grpc.default_authority", "localhost"),
    ]
    async with grpc.aio.insecure_channel(socket_target(kubelet), options=settings) as channel:
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_LIMIT)
        except grpc.aio.AioRpcError as error:
            refused = error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
            raise RegisterFailedError(f"{error.code().name}: {error.details()}", refused=refused) from None
