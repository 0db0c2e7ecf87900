"""Answers of a kubelet as they should be, and made wrong: field by field, byte by byte, part by part.

Everything is chosen by one random.Random, so a seed names a message.
"""

import random
from collections.abc import Sequence

from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.podresources.v1 import api_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2 as pods_pb2

_NAMES = ("a", "b", "c-0", "c-1", "ü", "x\ny", '"', "\\", "\u202e", "")
_RESOURCES = ("example.com/gpu", "example.com/nic", "other.example/x", "")
_DEVICES = ("gpu-0", "gpu-1", "gpu-0::0", "gpu-0::1", "nvidia0/gi1", "MIG-1::2", "nic-0", "\\n", '"}', "")
_BYTES = (b"\x00", b"\xff", b"\x80", b"\x0a", b"\x12", b"\x1a", b"\x0b", b"\x0c", b"\xff\xff\xff\xff\x0f")
_LARGEST = 1 << 15


def entry(order: random.Random) -> api_pb2.ContainerDevices:
    """Devices of one resource, on some NUMA nodes or none."""
    made = api_pb2.ContainerDevices(
        resource_name=order.choice(_RESOURCES),
        device_ids=[order.choice(_DEVICES) for _ in range(order.choice((0, 1, 1, 2, 3)))],
    )
    if order.random() < 0.5:
        made.topology.SetInParent()
        for _ in range(order.choice((0, 1, 1, 2))):
            made.topology.nodes.add(ID=order.choice((0, 0, 1, 2, -1, 2**62)))
    return made


def pod(order: random.Random) -> api_pb2.PodResources:
    """A pod with some containers."""
    made = api_pb2.PodResources(name=order.choice(_NAMES), namespace=order.choice(_NAMES[:3]))
    for _ in range(order.choice((0, 1, 1, 2))):
        container = made.containers.add(name=order.choice(_NAMES))
        container.devices.extend(entry(order) for _ in range(order.choice((0, 1, 1, 2, 3))))
        if order.random() < 0.2:
            container.cpu_ids.extend(order.choice((0, 1, 5, -1, 2**40)) for _ in range(2))
        if order.random() < 0.2:
            block = container.memory.add(memory_type="memory", size=order.choice((0, 1 << 30, 2**64 - 1)))
            block.topology.nodes.add(ID=order.choice((0, 1)))
        if order.random() < 0.3:
            claim = container.dynamic_resources.add(
                claim_name=order.choice(_NAMES), claim_namespace=order.choice(_NAMES)
            )
            for _ in range(order.choice((1, 1, 2))):
                claim.claim_resources.add(
                    driver_name="driver.example",
                    pool_name=order.choice(("pool", "")),
                    device_name=order.choice(_DEVICES),
                    share_id=order.choice(("", "s")),
                )
    return made


def listed(order: random.Random) -> bytes:
    """A List answer."""
    pods = [pod(order) for _ in range(order.choice((0, 1, 2, 3, 5)))]
    return api_pb2.ListPodResourcesResponse(pod_resources=pods).SerializeToString()


def allocatable(order: random.Random) -> bytes:
    """A GetAllocatableResources answer."""
    entries = [entry(order) for _ in range(order.choice((0, 1, 3, 6)))]
    return api_pb2.AllocatableResourcesResponse(devices=entries, cpu_ids=[0, 1]).SerializeToString()


def event(order: random.Random) -> bytes:
    """A message of WatchPods."""
    made = pod_pb2.Pod()
    made.metadata.name, made.metadata.namespace = order.choice(_NAMES), order.choice(_NAMES)
    made.metadata.uid = order.choice(("u1", "u2", "u3", ""))
    made.metadata.labels["app"] = order.choice(_NAMES)
    made.metadata.creationTimestamp.seconds = order.choice((0, 1_700_000_000, -1, 2**62))
    made.metadata.ownerReferences.add(
        kind=order.choice(("ReplicaSet", "Job", "")), name=order.choice(_NAMES), apiVersion="apps/v1"
    )
    made.status.phase = order.choice(("Pending", "Running", "Failed", "?"))
    kind = order.choice((pods_pb2.ADDED, *pods_pb2.EventType.values()))
    return pods_pb2.WatchPodsEvent(type=kind, pod=made.SerializeToString()).SerializeToString()


def mutated(data: bytes, others: Sequence[bytes], order: random.Random) -> bytes:
    """The same with one to three things done to it."""
    for _ in range(order.choice((1, 1, 2, 3))):
        data = _once(data, others, order)
    return data[:_LARGEST]


def _once(  # noqa: PLR0911 -- one for each thing that can be done
    data: bytes, others: Sequence[bytes], order: random.Random
) -> bytes:
    at = order.randint(0, len(data))
    end = min(len(data), at + order.choice((1, 2, 4, 16, 64)))
    match order.randrange(9):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + order.choice(_BYTES) + data[at:]
        case 3:
            return data[:at] + order.randbytes(end - at) + data[end:]
        case 4:
            return data[:at] + data[at:end] * order.choice((2, 3)) + data[end:]
        case 5:
            other = order.choice(others) if others else b""
            return data[:at] + other[order.randint(0, len(other)) :]
        case 6:
            # Messages one after another are one message.
            return data + (order.choice(others) if others else data)
        case 7 if data and at < len(data):
            return data[:at] + bytes([data[at] ^ (1 << order.randrange(8))]) + data[at + 1 :]
        case _:
            # A field that nobody knows, of any type, a group among them.
            unknown = (b"\xf8\x07\x01", b"\xfa\x07\x02hi", b"\xfb\x07\x08\x01\xfc\x07", b"\xfd\x07abcd")
            return data + order.choice(unknown)
