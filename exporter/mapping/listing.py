"""Decodes a List answer pod by pod and recognises pods that did not change.

Most of an answer equals the one before, so the bytes of each pod are decoded once and looked up afterwards.
kubelet: the order of a container's entries and ids differs from call to call. A pod with the same content in
another order counts as unchanged.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from exporter.mapping.dra import ClaimName
from exporter.mapping.model import PodKey
from kubelet.pb.podresources.v1 import api_pb2

LARGE: Final = 4 << 20
"""Bytes of the largest answer that is recognised pod by pod: a larger one would take too much memory."""
_TAG: Final = 0x0A
"""ListPodResourcesResponse.pod_resources (podresources v1): field 1, length-delimited."""
_MORE: Final = 0x80

Nodes = tuple[int, ...]
"""NUMA nodes, sorted."""


class PodPart(Struct, frozen=True, eq=False):
    """One pod of an answer: its message, its content in a comparable form, and the names of its claims. An
    unchanged pod is the same object as in the answer before.
    """

    key: PodKey
    message: api_pb2.PodResources
    content: tuple[object, ...]
    claims: tuple[ClaimName, ...]


class ListedPods(Struct, frozen=True):
    """The pods of a List answer. `parts` are its pods by name, None if two pods have the same name or the
    answer is larger than LARGE.
    """

    pod_resources: tuple[api_pb2.PodResources, ...]
    parts: Mapping[PodKey, PodPart] | None = None

    def names(self) -> frozenset[PodKey]:
        """Every listed pod, including those without devices."""
        if self.parts is not None:
            return frozenset(self.parts)
        return frozenset((pod.namespace, pod.name) for pod in self.pod_resources)

    def with_claims(self) -> list[api_pb2.PodResources]:
        """The messages of the listed pods with claims."""
        if self.parts is not None:
            return [part.message for part in self.parts.values() if part.claims]
        return [pod for pod in self.pod_resources if any(one.dynamic_resources for one in pod.containers)]

    def claimants(self) -> frozenset[PodKey]:
        """The listed pods with claims."""
        return frozenset([(pod.namespace, pod.name) for pod in self.with_claims()])

    def claims(self) -> frozenset[ClaimName]:
        """The claims of all listed pods."""
        if self.parts is not None:
            return frozenset([claim for part in self.parts.values() for claim in part.claims])
        return frozenset(
            ClaimName(one.claim_namespace, one.claim_name)
            for pod in self.pod_resources
            for container in pod.containers
            for one in container.dynamic_resources
        )

    def used_anew(self, before: "ListedPods") -> frozenset[ClaimName]:
        """The claims of pods that are not as they were `before`."""
        was, now = before.parts or {}, self.parts or {}
        changed = [part for key, part in now.items() if was.get(key) is not part]
        return frozenset([claim for part in changed for claim in part.claims])


class _UnexpectedField(Exception):  # noqa: N818 -- internal signal
    """The message has another field than pod_resources."""


class ListReader(Struct):
    """Decodes one answer after the other."""

    _by_bytes: dict[bytes, PodPart] = field(default_factory=dict[bytes, PodPart])
    _by_name: Mapping[PodKey, PodPart] = field(default_factory=dict[PodKey, PodPart])

    def read(self, data: bytes) -> ListedPods:
        """Decode a List answer. Raises google.protobuf.message.DecodeError."""
        try:
            cuts = list(_cut(data)) if len(data) <= LARGE else None
        except _UnexpectedField:
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
                if same is not None and same.content == part.content:
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
    """Yield the bytes of each pod. Raises _UnexpectedField: the protobuf library then decodes the whole."""
    at, end = 0, len(data)
    while at < end:
        if data[at] != _TAG:
            raise _UnexpectedField
        at, size, shift = at + 1, 0, 0
        while True:
            if at >= end or shift > 28:
                raise _UnexpectedField
            byte = data[at]
            at, size, shift = at + 1, size | (byte & ~_MORE) << shift, shift + 7
            if not byte & _MORE:
                break
        if at + size > end:
            raise _UnexpectedField
        yield data[at : at + size]
        at += size


def _part(pod: api_pb2.PodResources) -> PodPart:
    content: list[object] = []
    claims: dict[ClaimName, None] = {}
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
            claims |= dict.fromkeys([ClaimName(one.claim_namespace, one.claim_name) for one in claimed])
            rest = (
                frozenset(container.cpu_ids),
                tuple(block.SerializeToString(deterministic=True) for block in container.memory),
                tuple(resource.SerializeToString(deterministic=True) for resource in claimed),
            )
        content.append((container.name, entries, rest))
    return PodPart((pod.namespace, pod.name), pod, tuple(content), tuple(claims))


def nodes_of(topology: api_pb2.TopologyInfo) -> Nodes:
    """NUMA nodes, sorted. kubelet: node 0 is a NUMANode without fields; a negative id means no node."""
    nodes = topology.nodes
    if not nodes:
        return ()
    if len(nodes) == 1:
        node = nodes[0].ID
        return (node,) if node >= 0 else ()
    return tuple(sorted({node.ID for node in nodes if node.ID >= 0}))
