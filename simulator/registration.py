"""Registration on device-plugins/kubelet.sock."""

from grpc import StatusCode

from kubelet.pb.deviceplugin.v1beta1 import api_pb2
from simulator.endpoint import plugin_path
from simulator.manager import DeviceManager, RefusedError
from simulator.node import Node
from simulator.rpc import Context, RawService, decoded


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
