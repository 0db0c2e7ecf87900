"""A kubelet's PodResources API with a node of any size, for benchmarks: `ROOT PODS DEVICES [LENGTH]`.

Answers are made beforehand, so that serving them costs next to nothing. There are two Lists, which differ in
the name of one pod: the second is the answer while ROOT/other is there, and both take turns while
ROOT/changing is there.
"""

from __future__ import annotations  # grpc's classes are generic for type checkers alone

import asyncio
import itertools
import sys
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from kubelet.pb.podresources.v1 import api_pb2

RESOURCE: Final = "example.com/gpu"
_OPTIONS: Final = (("grpc.max_send_message_length", -1),)


def device(number: int, length: int = 40) -> str:
    """An id as GPUs have them, or longer."""
    return f"GPU-{number:08x}-1234-5678-9abc-def012345678".ljust(length, "0")


def listed(pods: int, devices: int, *, other: bool = False, length: int = 40) -> bytes:
    """List: each pod has `devices`, half of them on each NUMA node. `other`: one pod has another name."""
    answer = api_pb2.ListPodResourcesResponse()
    for number in range(pods):
        name = f"trainer-{number}{'-other' if other and number == pods // 2 else ''}"
        container = answer.pod_resources.add(name=name, namespace="ml").containers.add(name="main")
        for node in range(2):
            ids = range(number * devices + node * devices // 2, number * devices + (node + 1) * devices // 2)
            entry = container.devices.add(
                resource_name=RESOURCE, device_ids=[device(one, length) for one in ids]
            )
            entry.topology.nodes.add(ID=node)
    return answer.SerializeToString()


def allocatable(pods: int, devices: int, length: int = 40) -> bytes:
    """GetAllocatableResources: the same devices."""
    answer = api_pb2.AllocatableResourcesResponse()
    for pod in api_pb2.ListPodResourcesResponse.FromString(
        listed(pods, devices, length=length)
    ).pod_resources:
        answer.devices.extend(pod.containers[0].devices)
    return answer.SerializeToString()


class _Service(grpc.GenericRpcHandler):
    def __init__(self, root: Path, lists: tuple[bytes, bytes], offer: bytes) -> None:
        self._changing, self._other = root / "changing", root / "other"
        self._lists = lists
        self._turns = itertools.cycle(lists)
        self._offer = offer

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Either method."""
        match handler_call_details.method:
            case "/v1.PodResourcesLister/List":
                return grpc.unary_unary_rpc_method_handler(self._listed)
            case "/v1.PodResourcesLister/GetAllocatableResources":
                return grpc.unary_unary_rpc_method_handler(self._offered)
            case _:
                return None

    async def _listed(self, _request: bytes, _context: object) -> bytes:
        if self._changing.exists():
            return next(self._turns)
        return self._lists[self._other.exists()]

    async def _offered(self, _request: bytes, _context: object) -> bytes:
        return self._offer


async def main(root: Path, pods: int, devices: int, length: int = 40) -> None:
    """Serve until killed."""
    for name in ("pod-resources", "device-plugins"):
        (root / name).mkdir(parents=True, exist_ok=True)
    lists = (listed(pods, devices, length=length), listed(pods, devices, other=True, length=length))
    server = grpc.aio.server(options=_OPTIONS)
    service = _Service(root, lists, allocatable(pods, devices, length))
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix:{root}/pod-resources/kubelet.sock")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
