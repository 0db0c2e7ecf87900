"""List's answer pod by pod: what a pod's part says, recognised when it comes again.

Most of an answer is what the one before was, so a pod's bytes are decoded once and looked up after that.
kubelet: the order of a container's entries and ids differs from call to call; a part that says the same in
another order is the same part.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from exporter.mapping.model import PodKey
from kubelet.pb.podresources.v1 import api_pb2

LARGE: Final = 4 << 20
"""Bytes of an answer whose parts are kept; of a larger one memory is worth more than time."""
_TAG: Final = 0x0A
"""ListPodResourcesResponse.pod_resources (podresources v1): field 1, length-delimited."""
_MORE: Final = 0x80

Nodes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PodPart:
    """One pod's part: the message, and what it says, to be compared. Told apart by being another object."""

    key: PodKey
    message: api_pb2.PodResources
    says: tuple[object, ...]
    claims: bool


@dataclass(frozen=True, slots=True)
class ListedPods:
    """A List's pods. `parts` are by name; None where they cannot be told apart by it, or are too large to be
    kept.
    """

    pod_resources: tuple[api_pb2.PodResources, ...]
    parts: Mapping[PodKey, PodPart] | None = None

    def names(self) -> frozenset[PodKey]:
        """Every pod that is listed, also those that hold nothing."""
        if self.parts is not None:
            return frozenset(self.parts)
        return frozenset((pod.namespace, pod.name) for pod in self.pod_resources)


class _Other(Exception):  # noqa: N818 -- no error
    """A message of another form."""


@dataclass(slots=True)
class ListReader:
    """Reads one answer after the other."""

    _by_bytes: dict[bytes, PodPart] = field(default_factory=dict[bytes, PodPart])
    _by_name: Mapping[PodKey, PodPart] = field(default_factory=dict[PodKey, PodPart])

    def read(self, data: bytes) -> ListedPods:
        """A List answer. Raises google.protobuf.message.DecodeError for bytes that are none."""
        try:
            cuts = list(_cut(data)) if len(data) <= LARGE else None
        except _Other:
            cuts = None
        if cuts is None:
            whole = api_pb2.ListPodResourcesResponse.FromString(data)
            self._by_bytes, self._by_name = {}, {}
            return ListedPods(tuple(whole.pod_resources))
        known, before = self._by_bytes, self._by_name
        by_bytes: dict[bytes, PodPart] = {}
        parts: dict[PodKey, PodPart] = {}
        pods: list[api_pb2.PodResources] = []
        for cut in cuts:
            part = known.get(cut)
            if part is None:
                part = _part(api_pb2.PodResources.FromString(cut))
                same = before.get(part.key)
                if same is not None and same.says == part.says:
                    part = same
            by_bytes[cut] = part
            parts[part.key] = part
            pods.append(part.message)
        if len(parts) < len(pods):
            self._by_bytes, self._by_name = {}, {}
            return ListedPods(tuple(pods))
        self._by_bytes, self._by_name = by_bytes, parts
        return ListedPods(tuple(pods), parts)


def _cut(data: bytes) -> Iterator[bytes]:
    """The bytes of each pod. Raises _Other for anything else, which protobuf itself may judge."""
    at, end = 0, len(data)
    while at < end:
        if data[at] != _TAG:
            raise _Other
        at, size, shift = at + 1, 0, 0
        while True:
            if at >= end or shift > 28:
                raise _Other
            byte = data[at]
            at, size, shift = at + 1, size | (byte & ~_MORE) << shift, shift + 7
            if not byte & _MORE:
                break
        if at + size > end:
            raise _Other
        yield data[at : at + size]
        at += size


def _part(pod: api_pb2.PodResources) -> PodPart:
    says: list[object] = []
    claims = False
    for container in pod.containers:
        entries = frozenset(
            [
                (entry.resource_name, nodes_of(entry.topology), frozenset(entry.device_ids))
                for entry in container.devices
            ]
        )
        rest: tuple[object, ...] = ()
        claimed = container.dynamic_resources
        if container.cpu_ids or container.memory or claimed:
            claims = claims or bool(claimed)
            rest = (
                frozenset(container.cpu_ids),
                tuple(block.SerializeToString(deterministic=True) for block in container.memory),
                tuple(resource.SerializeToString(deterministic=True) for resource in claimed),
            )
        says.append((container.name, entries, rest))
    return PodPart((pod.namespace, pod.name), pod, tuple(says), claims)


def nodes_of(topology: api_pb2.TopologyInfo) -> Nodes:
    """The NUMA nodes, sorted. kubelet: node 0 is a NUMANode with no field set; a negative one is none."""
    nodes = topology.nodes
    if not nodes:
        return ()
    if len(nodes) == 1:
        node = nodes[0].ID
        return (node,) if node >= 0 else ()
    return tuple(sorted({node.ID for node in nodes if node.ID >= 0}))
