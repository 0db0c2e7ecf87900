"""Random answers of a kubelet, as messages: few names, so that they meet, and some that nobody would give."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message
from hypothesis import strategies as st

from kubelet.pb.podresources.v1 import api_pb2

M = TypeVar("M", bound=Message)
T = TypeVar("T")

HOSTILE = (
    "",
    '"',
    "\\",
    "a\nb",
    "x\x1b[31m",
    "\u202eleft",
    "é東\U0001f600",
    "{}",
    ",",
    "a" * 300,
    "<b>&amp;",
)

_RESOURCES = ("example.com/gpu", "example.com/gpu-shared", "other.example/nic", *HOSTILE[:4])
_IDS = (
    *("gpu-0", "gpu-1", "gpu-2", "gpu-0::0", "gpu-0::1", "nvidia0/gi1", "nvidia0/gi1/vgpu0", "0000:3b:02.0"),
    *HOSTILE,
)
_NAMESPACES = ("default", "kube-system", *HOSTILE[:3])
_PODS = ("a", "b", "c-0", "c-1", *HOSTILE[:6])
_CONTAINERS = ("main", "side", *HOSTILE[5:7])
_CLAIMED = ("d0", "d1", *HOSTILE[:3])


R = "r"
"""The resource of answers that are made by hand."""


def entry(*ids: str, resource: str = R, nodes: Sequence[int] | None = None) -> api_pb2.ContainerDevices:
    """Devices of one resource; `nodes` None: without topology."""
    numa = None if nodes is None else api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=one) for one in nodes])
    return api_pb2.ContainerDevices(resource_name=resource, device_ids=ids, topology=numa)


def container(*entries: api_pb2.ContainerDevices, name: str = "c") -> api_pb2.ContainerResources:
    """A container with devices."""
    return api_pb2.ContainerResources(name=name, devices=entries)


def pod(name: str, *held: str | api_pb2.ContainerResources) -> api_pb2.PodResources:
    """A pod with these containers, or with one container that holds devices of R."""
    ids = [one for one in held if isinstance(one, str)]
    containers = [one for one in held if not isinstance(one, str)]
    if ids or not containers:
        containers.append(container(*([entry(*ids)] if ids else [])))
    return api_pb2.PodResources(namespace="n", name=name, containers=containers)


def listed(*pods: api_pb2.PodResources) -> api_pb2.ListPodResourcesResponse:
    """An answer to List."""
    return api_pb2.ListPodResourcesResponse(pod_resources=pods)


def offered(*devices: str | api_pb2.ContainerDevices) -> api_pb2.AllocatableResourcesResponse:
    """An answer to GetAllocatableResources: devices of R, or entries."""
    ids = [one for one in devices if isinstance(one, str)]
    entries = [one for one in devices if not isinstance(one, str)]
    return api_pb2.AllocatableResourcesResponse(devices=[*entries, *([entry(*ids)] if ids else [])])


class Answers:
    """Makes random parts of answers. Everything is chosen by `order`."""

    def __init__(self, order: random.Random) -> None:
        self._random = order
        self._one = order.choice

    def _several(self, make: Callable[[], T], most: int) -> list[T]:
        return [make() for _ in range(self._random.randint(0, most))]

    def topology(self) -> api_pb2.TopologyInfo | None:
        """None, or nodes: 0 reads as an empty NUMANode, a negative one is no node, and some repeat."""
        if self._one((True, False)):
            return None
        nodes = self._several(lambda: api_pb2.NUMANode(ID=self._one((0, 0, 1, 2, -1, 2**62))), 3)
        return api_pb2.TopologyInfo(nodes=nodes)

    def devices(self) -> api_pb2.ContainerDevices:
        """One entry of a resource, of which there may be several."""
        ids = self._several(lambda: self._one(_IDS), 4)
        return api_pb2.ContainerDevices(
            resource_name=self._one(_RESOURCES), device_ids=ids, topology=self.topology()
        )

    def memory(self) -> api_pb2.ContainerMemory:
        """A block of pinned memory, up to the largest that the message can say."""
        return api_pb2.ContainerMemory(
            memory_type=self._one(("memory", "hugepages-2Mi")),
            size=self._one((0, 1, 209715200, 2**64 - 1)),
            topology=self.topology(),
        )

    def claimed(self) -> api_pb2.ClaimResource:
        """A claimed device."""
        return api_pb2.ClaimResource(
            cdi_devices=self._several(lambda: api_pb2.CDIDevice(name=self._one(_CLAIMED)), 3),
            driver_name=self._one(("driver.example", "other.example")),
            pool_name=self._one(("node", "pool")),
            device_name=self._one(_CLAIMED),
            share_id=self._one((None, "", "share-1")),
        )

    def claim(self) -> api_pb2.DynamicResource:
        """A claim; its devices repeat, and their CDI names inside."""
        return api_pb2.DynamicResource(
            claim_name=self._one(("shared", "inline")),
            claim_namespace=self._one(_NAMESPACES),
            claim_resources=self._several(self.claimed, 3),
        )

    def cpus(self) -> list[int]:
        """Numbers of CPUs."""
        return self._several(lambda: self._one((*range(8), -1, 2**40)), 4)

    def container(self) -> api_pb2.ContainerResources:
        """A container, perhaps without anything."""
        return api_pb2.ContainerResources(
            name=self._one(_CONTAINERS),
            devices=self._several(self.devices, 3),
            cpu_ids=self.cpus(),
            memory=self._several(self.memory, 2),
            dynamic_resources=self._several(self.claim, 2),
        )

    def pod(self) -> api_pb2.PodResources:
        """A pod, perhaps with the pod-level values that overlap its containers'."""
        return api_pb2.PodResources(
            name=self._one(_PODS),
            namespace=self._one(_NAMESPACES),
            containers=self._several(self.container, 3),
            cpu_ids=self.cpus(),
            memory=self._several(self.memory, 2),
        )

    def listing(self) -> api_pb2.ListPodResourcesResponse:
        """An answer to List; a pod's name may come twice."""
        return api_pb2.ListPodResourcesResponse(pod_resources=self._several(self.pod, 5))

    def allocatable(self) -> api_pb2.AllocatableResourcesResponse:
        """An answer to GetAllocatableResources."""
        return api_pb2.AllocatableResourcesResponse(devices=self._several(self.devices, 6), cpu_ids=[0, 1])


# One number for each answer: a strategy for each field takes ten times as long.
_ANSWERS = st.integers(0, 2**32 - 1).map(lambda seed: Answers(random.Random(seed)))


def pods() -> st.SearchStrategy[api_pb2.PodResources]:
    """Pods of answers."""
    return _ANSWERS.map(Answers.pod)


def listings() -> st.SearchStrategy[api_pb2.ListPodResourcesResponse]:
    """Answers to List; a pod's name may come twice."""
    return _ANSWERS.map(Answers.listing)


def allocatables() -> st.SearchStrategy[api_pb2.AllocatableResourcesResponse]:
    """Answers to GetAllocatableResources."""
    return _ANSWERS.map(Answers.allocatable)


def shuffled(message: M, order: random.Random) -> M:
    """The same message with everything that is repeated in another order."""
    other = type(message)()
    other.CopyFrom(message)
    _shuffle(other, order)
    return other


def _shuffle(message: Message, order: random.Random) -> None:
    for field, value in message.ListFields():
        if not field.is_repeated:
            if field.message_type is not None:
                _shuffle(value, order)
            continue
        values: Sequence[object] = list(value)
        parts = order.sample(values, len(values))
        for part in parts:
            if isinstance(part, Message):
                _shuffle(part, order)
        copies = [_copy(part) for part in parts]
        message.ClearField(field.name)
        getattr(message, field.name).extend(copies)


def _copy(part: object) -> object:
    if not isinstance(part, Message):
        return part
    copy = type(part)()
    copy.CopyFrom(part)
    return copy
