"""Random answers of a kubelet, as messages: few names, so that they meet, and some that nobody would give."""

import random
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message
from hypothesis import strategies as st

from kubelet.pb.podresources.v1 import api_pb2

M = TypeVar("M", bound=Message)

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

_resources = st.sampled_from(["example.com/gpu", "example.com/gpu-shared", "other.example/nic", *HOSTILE[:4]])
_ids = st.sampled_from(
    [
        "gpu-0",
        "gpu-1",
        "gpu-2",
        "gpu-0::0",
        "gpu-0::1",
        "nvidia0/gi1",
        "nvidia0/gi1/vgpu0",
        "0000:3b:02.0",
        *HOSTILE,
    ]
)
_namespaces = st.sampled_from(["default", "kube-system", *HOSTILE[1:3]])
_pods = st.sampled_from(["a", "b", "c-0", "c-1", *HOSTILE[1:5]])
_containers = st.sampled_from(["main", "side", *HOSTILE[5:7]])


@st.composite
def topologies(draw: st.DrawFn) -> api_pb2.TopologyInfo | None:
    """None, or nodes: 0 reads as an empty NUMANode, a negative one is no node, and some repeat."""
    nodes = draw(st.none() | st.lists(st.sampled_from([0, 0, 1, 2, -1]), max_size=3))
    return (
        None if nodes is None else api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=node) for node in nodes])
    )


@st.composite
def devices(draw: st.DrawFn) -> api_pb2.ContainerDevices:
    """One entry of a resource, of which there may be several."""
    ids = draw(st.lists(_ids, max_size=4))
    return api_pb2.ContainerDevices(
        resource_name=draw(_resources), device_ids=ids, topology=draw(topologies())
    )


@st.composite
def memory(draw: st.DrawFn) -> api_pb2.ContainerMemory:
    """A block of pinned memory, up to the largest that the message can say."""
    return api_pb2.ContainerMemory(
        memory_type=draw(st.sampled_from(["memory", "hugepages-2Mi"])),
        size=draw(st.sampled_from([0, 1, 209715200, 2**64 - 1])),
        topology=draw(topologies()),
    )


@st.composite
def claims(draw: st.DrawFn) -> api_pb2.DynamicResource:
    """A claim; its devices repeat, and their CDI names inside."""
    names = st.sampled_from(["d0", "d1", *HOSTILE[:3]])
    claimed = st.builds(
        api_pb2.ClaimResource,
        cdi_devices=st.lists(st.builds(api_pb2.CDIDevice, name=names), max_size=3),
        driver_name=st.sampled_from(["driver.example", "other.example"]),
        pool_name=st.sampled_from(["node", "pool"]),
        device_name=names,
        share_id=st.none() | st.sampled_from(["", "share-1"]),
    )
    return api_pb2.DynamicResource(
        claim_name=draw(st.sampled_from(["shared", "inline"])),
        claim_namespace=draw(_namespaces),
        claim_resources=draw(st.lists(claimed, max_size=3)),
    )


@st.composite
def containers(draw: st.DrawFn) -> api_pb2.ContainerResources:
    """A container, perhaps without anything."""
    return api_pb2.ContainerResources(
        name=draw(_containers),
        devices=draw(st.lists(devices(), max_size=3)),
        cpu_ids=draw(st.lists(st.integers(0, 7), max_size=4)),
        memory=draw(st.lists(memory(), max_size=2)),
        dynamic_resources=draw(st.lists(claims(), max_size=2)),
    )


@st.composite
def pods(draw: st.DrawFn) -> api_pb2.PodResources:
    """A pod, perhaps with the pod-level values that overlap its containers'."""
    return api_pb2.PodResources(
        name=draw(_pods),
        namespace=draw(_namespaces),
        containers=draw(st.lists(containers(), max_size=3)),
        cpu_ids=draw(st.lists(st.integers(0, 7), max_size=3)),
        memory=draw(st.lists(memory(), max_size=2)),
    )


def listings() -> st.SearchStrategy[api_pb2.ListPodResourcesResponse]:
    """Answers to List; a pod's name may come twice."""
    return st.lists(pods(), max_size=5).map(
        lambda found: api_pb2.ListPodResourcesResponse(pod_resources=found)
    )


def allocatables() -> st.SearchStrategy[api_pb2.AllocatableResourcesResponse]:
    """Answers to GetAllocatableResources."""
    return st.lists(devices(), max_size=6).map(
        lambda found: api_pb2.AllocatableResourcesResponse(devices=found, cpu_ids=[0, 1])
    )


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
