"""The PodResources API on pod-resources/kubelet.sock: v1 and v1alpha1, with rate limit, faults, and replay.

The kubelet's state as messages: devices in changing order, one entry for each device and NUMA node, claims
repeated for each pod that shares them. `odd_list` and `odd_allocatable` make answers that the API allows and
that monitors rarely expect.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message
from grpc import StatusCode

from kubelet.pb.podresources.v1 import api_pb2 as v1
from kubelet.pb.podresources.v1alpha1 import api_pb2 as v1alpha1
from simulator import dra_claims
from simulator.checkpoint import NO_NODE
from simulator.devices import Allocation, DeviceState
from simulator.dra_claims import ClaimInfos
from simulator.faults import Faults
from simulator.model import Claims, ContainerSpec, Holding, Pod
from simulator.node import Node
from simulator.pinning import Pinning
from simulator.pods_api import ApiServerSync
from simulator.rpc import Context, RawService, UnaryMethod, decoded


class TokenBucket:
    """Lets `rate` calls a second through, `burst` of them at once; full at first.

    kubelet: 100 a second, burst 10, for List, GetAllocatableResources and Get together.
    """

    def __init__(self, clock: Callable[[], float], *, rate: float = 100.0, burst: int = 10) -> None:
        """`clock`: seconds, never going back."""
        self._clock = clock
        self._rate = rate
        self._burst = float(burst)
        self._tokens = self._burst
        self._last = clock()

    def allow(self) -> bool:
        """Take a token if there is one."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._last) * self._rate)
        self._last = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


T = TypeVar("T")


class Shuffle(Protocol):
    """Puts things in an order of its own: the kubelet's answers are never twice in the same order."""

    def __call__(self, things: Iterable[T], /) -> list[T]:
        """All of them."""
        ...


class Answers:
    """Answers from one kubelet's state.

    `keeps_topology`: whether devices that were read back from the checkpoint keep their NUMA nodes in
    List before their plugin registers again.
    """

    def __init__(
        self,
        devices: DeviceState,
        pinning: Pinning,
        claims: Claims,
        prepared: ClaimInfos,
        shuffle: Shuffle,
        *,
        keeps_topology: bool,
    ) -> None:
        self._devices = devices
        self._pinning = pinning
        self._claims = claims
        self._prepared = prepared
        self._shuffle = shuffle
        self._keeps_topology = keeps_topology

    def listed(self, pods: Iterable[Pod]) -> v1.ListPodResourcesResponse:
        """List, for the active ones of `pods`."""
        active = self._shuffle(pod for pod in pods if pod.active)
        return v1.ListPodResourcesResponse(pod_resources=[self.pod(pod) for pod in active])

    def pod(self, pod: Pod) -> v1.PodResources:
        """One pod's part of List."""
        return v1.PodResources(
            name=pod.spec.name,
            namespace=pod.spec.namespace,
            containers=[self._container(pod, container) for container in pod.spec.listed_containers()],
        )

    def listed_v1alpha1(self, pods: Iterable[Pod]) -> v1alpha1.ListPodResourcesResponse:
        """List as old kubelets give it: app containers and devices alone."""
        answer = v1alpha1.ListPodResourcesResponse()
        for pod in self._shuffle(pod for pod in pods if pod.active):
            resources = answer.pod_resources.add(name=pod.spec.name, namespace=pod.spec.namespace)
            for container in pod.spec.containers:
                listed = resources.containers.add(name=container.name)
                for entry in self._held(pod.uid, container.name):
                    listed.devices.add(resource_name=entry.resource_name, device_ids=entry.device_ids)
        return answer

    def allocatable(self) -> v1.AllocatableResourcesResponse:
        """GetAllocatableResources: healthy devices, one entry for each NUMA node of each."""
        devices = self._devices
        entries = [
            entry
            for resource in self._shuffle(devices.resources())
            for i in self._shuffle(devices.healthy(resource))
            for entry in _entries(resource, i, devices.devices[resource][i].numa)
        ]
        return v1.AllocatableResourcesResponse(
            devices=entries,
            cpu_ids=self._shuffle(cpu for ids in self._pinning.cpus.values() for cpu in ids),
            memory=self._shuffle(
                _memory(kind, size, (node,))
                for kind, nodes in self._pinning.memory.items()
                for node, size in nodes.items()
            ),
        )

    def _container(self, pod: Pod, container: ContainerSpec) -> v1.ContainerResources:
        pinned = self._pinning.of(pod.uid, container.name)
        return v1.ContainerResources(
            name=container.name,
            devices=self._held(pod.uid, container.name),
            cpu_ids=pinned.cpus,
            memory=[_memory(block.type, block.size, block.nodes) for block in pinned.memory],
            dynamic_resources=[
                v1.DynamicResource(
                    claim_name=claim.name,
                    claim_namespace=claim.namespace or pod.spec.namespace,
                    claim_resources=[
                        v1.ClaimResource(
                            cdi_devices=[v1.CDIDevice(name=name) for name in cdi],
                            driver_name=device.driver,
                            pool_name=device.pool,
                            device_name=device.device,
                            share_id=device.share_id,
                        )
                        for device, cdi in self._claims.listed(claim, pod.spec)
                    ],
                )
                for claim in container.claims
            ]
            + dra_claims.listed(self._prepared, pod, container),
        )

    def _held(self, pod_uid: str, container: str) -> list[v1.ContainerDevices]:
        return [
            entry
            for resource, allocation in self._shuffle(self._devices.held(pod_uid, container).items())
            for i, numa in self._shuffle(self._placed(resource, allocation).items())
            for entry in _entries(resource, i, numa)
        ]

    def _placed(self, resource: str, allocation: Allocation) -> Mapping[str, Sequence[int] | None]:
        hidden = allocation.restored and not self._keeps_topology and resource not in self._devices.devices
        placed: dict[str, list[int] | None] = {}
        for node, ids in allocation.devices.items():
            for i in ids:
                if node == NO_NODE or hidden:
                    placed.setdefault(i, None)
                else:
                    placed[i] = [*(placed.get(i) or ()), node]
        return placed


def _entries(resource: str, i: str, numa: Sequence[int] | None) -> list[v1.ContainerDevices]:
    """A device's entries: one for each NUMA node it is on, none if its topology names no node."""
    if numa is None:
        return [v1.ContainerDevices(resource_name=resource, device_ids=[i])]
    return [
        v1.ContainerDevices(
            resource_name=resource, device_ids=[i], topology=v1.TopologyInfo(nodes=[v1.NUMANode(ID=node)])
        )
        for node in numa
    ]


def _memory(kind: str, size: int, nodes: Sequence[int]) -> v1.ContainerMemory:
    topology = v1.TopologyInfo(nodes=[v1.NUMANode(ID=node) for node in nodes])
    return v1.ContainerMemory(memory_type=kind, size=size, topology=topology)


def holdings(answer: v1.ListPodResourcesResponse) -> frozenset[Holding]:
    """Who holds what, by a List answer: devices alone, each once."""
    return frozenset(
        Holding(pod.namespace, pod.name, container.name, entry.resource_name, i)
        for pod in answer.pod_resources
        for container in pod.containers
        for entry in container.devices
        for i in entry.device_ids
    )


Listed = TypeVar("Listed", v1.ListPodResourcesResponse, v1alpha1.ListPodResourcesResponse)


def odd_list(answer: Listed, faults: Faults) -> Listed:
    """List as `faults` want it: without the pods that are forgotten, and with every device twice."""
    pods: Any = answer.pod_resources  # of either API: what is done to them is the same
    if faults.forgets:
        kept = [pod for pod in pods if f"{pod.namespace}/{pod.name}" not in faults.forgets]
        del pods[:]
        pods.extend(kept)
    if faults.twice:
        for pod in pods:
            for container in pod.containers:
                container.devices.extend(list(container.devices))
    return answer


def odd_allocatable(
    answer: v1.AllocatableResourcesResponse, faults: Faults
) -> v1.AllocatableResourcesResponse:
    """GetAllocatableResources likewise."""
    if faults.twice:
        answer.devices.extend(list(answer.devices))
    return answer


M = TypeVar("M", bound=Message)


class _NotFoundError(Exception):
    """Get for a pod that is not there."""


class PodResources:
    """The API of one kubelet's life, new or old (kubelet: PodResources)."""

    def __init__(self, node: Node, state: DeviceState, answers: Answers, api_sync: ApiServerSync) -> None:
        self._node = node
        self._state = state
        self._answers = answers
        self._api_sync = api_sync
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
        listed = self._answers.listed(self._api_sync.pods())
        return odd_list(listed, self._node.gate.of("List")).SerializeToString()

    def _listed_v1alpha1(self, _request: v1alpha1.ListPodResourcesRequest) -> bytes:
        self._state.reclaim(self._node.active())
        listed = self._answers.listed_v1alpha1(self._api_sync.pods())
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
        # kubelet: Get finds ended pods too, with their devices until a List or an allocation frees them.
        pod = self._api_sync.pod(namespace, name)
        if pod is None:
            raise _NotFoundError(f"pod {name} in namespace {namespace} not found")
        return self._answers.pod(pod)
