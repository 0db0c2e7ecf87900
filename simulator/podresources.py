"""PodResourcesLister on pod-resources/kubelet.sock: v1, v1alpha1, rate limit, faults, replay."""

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message
from grpc import StatusCode

from kubelet.pb.podresources.v1 import api_pb2 as v1
from kubelet.pb.podresources.v1alpha1 import api_pb2 as v1alpha1
from simulator.answers import Answers
from simulator.devices import DeviceState
from simulator.heard import Heard
from simulator.node import Node
from simulator.oddities import odd_allocatable, odd_list
from simulator.ratelimit import TokenBucket
from simulator.rpc import Context, RawService, UnaryMethod, decoded

M = TypeVar("M", bound=Message)


class _NotFoundError(Exception):
    """Get for a pod that is not there."""


class PodResources:
    """The API of one kubelet's life, new or old (kubelet: PodResources)."""

    def __init__(self, node: Node, state: DeviceState, answers: Answers, heard: Heard) -> None:
        self._node = node
        self._state = state
        self._answers = answers
        self._heard = heard
        self._replay = node.settings.replay
        self._limiter = TokenBucket(node.monotonic)

    def services(self) -> tuple[RawService, ...]:
        """What this kubelet serves."""
        alpha = {
            "List": self._method("v1alpha1.List", v1alpha1.ListPodResourcesRequest, self._listed_v1alpha1)
        }
        methods = {
            "List": self._method("List", v1.ListPodResourcesRequest, self._listed),
            "GetAllocatableResources": self._method(
                "GetAllocatableResources", v1.AllocatableResourcesRequest, self._allocatable
            ),
            "Get": self._method("Get", v1.GetPodResourcesRequest, self._get),
        }
        match self._node.settings.older:
            case "no-get":
                del methods["Get"]
            case "no-allocatable":
                del methods["Get"], methods["GetAllocatableResources"]
            case "v1alpha1":
                return (RawService("v1alpha1.PodResourcesLister", alpha),)
            case None:
                pass
        return (
            RawService("v1.PodResourcesLister", methods),
            RawService("v1alpha1.PodResourcesLister", alpha),
        )

    def _method(self, name: str, kind: type[M], produce: Callable[[M], bytes]) -> UnaryMethod:
        """`produce` behind the limit that all callers share, and behind the present faults."""

        async def serve(content: bytes, context: Context) -> bytes:
            # kubelet: before the limit, which a request that does not decode does not touch.
            request = await decoded(kind, content, context)
            self._node.count(name)
            if not self._limiter.allow() or self._node.gate.used_up(name):
                await context.abort(StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            instead = await self._node.gate.answer(name)
            if isinstance(instead, StatusCode):
                await context.abort(instead, "simulated failure")
            if isinstance(instead, bytes):
                return instead
            try:
                return produce(request)
            except _NotFoundError as error:
                await context.abort(StatusCode.UNKNOWN, str(error))

        return serve

    def _listed(self, _request: v1.ListPodResourcesRequest) -> bytes:
        if self._replay is not None:
            return self._replay.listed
        self._state.reclaim(self._node.active())
        listed = self._answers.listed(self._heard.pods())
        return odd_list(listed, self._node.gate.of("List")).SerializeToString()

    def _listed_v1alpha1(self, _request: v1alpha1.ListPodResourcesRequest) -> bytes:
        self._state.reclaim(self._node.active())
        listed = self._answers.listed_v1alpha1(self._heard.pods())
        return odd_list(listed, self._node.gate.of("v1alpha1.List")).SerializeToString()

    def _allocatable(self, _request: v1.AllocatableResourcesRequest) -> bytes:
        if self._replay is not None and self._replay.allocatable is not None:
            return self._replay.allocatable
        offered = self._answers.allocatable()
        return odd_allocatable(offered, self._node.gate.of("GetAllocatableResources")).SerializeToString()

    def _get(self, request: v1.GetPodResourcesRequest) -> bytes:
        found = self._find(request.pod_namespace, request.pod_name)
        return v1.GetPodResourcesResponse(pod_resources=found).SerializeToString()

    def _find(self, namespace: str, name: str) -> v1.PodResources:
        if self._replay is not None:
            for recorded in v1.ListPodResourcesResponse.FromString(self._replay.listed).pod_resources:
                if (recorded.namespace, recorded.name) == (namespace, name):
                    return recorded
        # kubelet: Get knows ended pods too, with their devices until a List or an allocation frees them.
        pod = self._heard.pod(namespace, name)
        if pod is None:
            raise _NotFoundError(f"pod {name} in namespace {namespace} not found")
        return self._answers.pod(pod)
