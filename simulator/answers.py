"""What PodResources answers: the kubelet's state as messages."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from kubelet.pb.podresources.v1 import api_pb2 as v1
from kubelet.pb.podresources.v1alpha1 import api_pb2 as v1alpha1
from simulator.checkpoint import NO_NODE
from simulator.claims import Claims
from simulator.devices import Allocation, DeviceState
from simulator.model import ContainerSpec, Holding, Pod
from simulator.pinning import Pinning

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
        shuffle: Shuffle,
        *,
        keeps_topology: bool,
    ) -> None:
        self._devices = devices
        self._pinning = pinning
        self._claims = claims
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
            ],
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
