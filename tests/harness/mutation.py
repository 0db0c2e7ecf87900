"""Messages of a kubelet made wrong, byte by byte and part by part, and events of pods to begin with.

Everything is chosen by one random.Random, so a seed names a message.
"""

import random
from collections.abc import Sequence

from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2 as pods_pb2

_NAMES = ("a", "b", "c-0", "c-1", "ü", "x\ny", '"', "\\", "\u202e", "")
_BYTES = (b"\x00", b"\xff", b"\x80", b"\x0a", b"\x12", b"\x1a", b"\x0b", b"\x0c", b"\xff\xff\xff\xff\x0f")
_LARGEST = 1 << 15


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
