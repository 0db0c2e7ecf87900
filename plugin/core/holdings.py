"""What pods hold under another name: a device that is held is not to be given again as something else.

Claims are the process's own, and end with it or with a resource's configuration; what a pod holds does
not. No I/O and no clock in here; time is handed in: steady, in seconds.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from plugin.core.claims import claim_of
from plugin.core.device import Device
from plugin.core.holders import Held
from plugin.core.sharing import Sharing

Holding = tuple[str, str]
"""A resource's name and an advertised id of it."""
Present = Callable[[str], bool]
"""Whether an advertised id is that of a device which its resource finds: then its claim speaks for it."""

_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class Holdings:
    """What is held of the resources of a node, and by what a device that is held can be known.

    By the claim it had in this process; by the device nodes that its containers were given; by the PCI
    address in its id. Nodes are believed of exclusive resources of the process alone, and nothing of a
    resource that is not exclusive: others may have what it gives.
    """

    def __init__(self) -> None:
        self._exclusive: set[str] = set()
        self._shared: frozenset[str] = frozenset()
        self._claims: dict[Holding, str] = {}
        self._nodes: dict[Holding, frozenset[str]] = {}
        self._missing: dict[Holding, float] = {}
        self._index: dict[tuple[str, str], dict[Holding, None]] | None = {}
        self.generation = 0
        """Grows whenever something else is known."""

    def configure(self, exclusive: Collection[str], shared: Collection[str]) -> None:
        """The resources that there are. One that goes is remembered, for pods may hold what it gave."""
        self._shared = frozenset(shared)
        self._exclusive |= {*exclusive}
        self._changed()

    def own(self, resource: str) -> None:
        """`resource` is one of the exclusive ones: a member of a family is known once it begins."""
        if resource not in self._exclusive:
            self._exclusive.add(resource)
            self._changed()

    def learn(self, held: Held, nodes: Mapping[Holding, frozenset[str]]) -> None:
        """Take in what the kubelet says: who holds what, and the device nodes that were given with it."""
        for resource, ids in held.items():
            for device_id in ids:
                holding = resource, device_id
                self._missing.pop(holding, None)
                before = self._nodes.get(holding)
                after = nodes.get(holding) or before or frozenset()
                if before != after:
                    self._nodes[holding] = after
                    self._changed()

    def leave(self, resource: str, claims: Mapping[str, str]) -> None:
        """`resource` goes: claims of what it gave, and what may be held still, by advertised id."""
        for device_id, claim in claims.items():
            self._claims[resource, device_id] = claim
            self._nodes.setdefault((resource, device_id), frozenset())
        if claims:
            self._changed()

    @property
    def exclusive(self) -> frozenset[str]:
        """Resources that give away what nobody else may have, those that were included."""
        return frozenset(self._exclusive)

    @property
    def resources(self) -> frozenset[str]:
        """Of which something is held."""
        return frozenset(name for name, _ in self._nodes)

    def of(self, resource: str) -> frozenset[str]:
        """The ids of `resource` that are held."""
        return frozenset(device_id for name, device_id in self._nodes if name == resource)

    def review(self, listed: Held, now: float, patience: float) -> frozenset[Holding]:
        """Forget what the kubelet has not listed for `patience` seconds; returns what was forgotten.

        kubelet: a pod's end is not written to the checkpoint; List knows of it, and for a second after
        a restart of nobody.
        """
        forgotten: set[Holding] = set()
        for holding in self._nodes:
            if holding[1] in listed.get(holding[0], ()):
                self._missing.pop(holding, None)
            elif now - self._missing.setdefault(holding, now) >= patience:
                forgotten.add(holding)
        for holding in forgotten:
            del self._nodes[holding]
            del self._missing[holding]
            self._claims.pop(holding, None)
        if forgotten:
            self._changed()
        return frozenset(forgotten)

    def holding(
        self, resource: str, device: Device, sharing: Sharing, present: Mapping[str, Present]
    ) -> Holding | None:
        """As what a pod holds `device` other than by one of the ids that `resource` advertises it by.

        `present`: by resource.
        """
        index = self._indexed()
        if not index:
            return None
        for key in _keys(resource, device):
            for holding in index.get(key, ()):
                name, device_id = holding
                ids = sharing.called(device.id)
                # Of a device that is shared a pod may hold a replica, however that was called.
                shared = sharing.replicas is not None
                if name == resource and (device_id in ids or (shared and device_id != device.id)):
                    continue
                if name in present and present[name](device_id):
                    continue
                return holding
        return None

    def _changed(self) -> None:
        self.generation += 1
        self._index = None

    def _indexed(self) -> Mapping[tuple[str, str], Iterable[Holding]]:
        if self._index is None:
            self._index = {}
            for holding in self._nodes:
                if holding[0] not in self._shared:
                    for key in self._evidence(holding):
                        self._index.setdefault(key, {})[holding] = None
        return self._index

    def _evidence(self, holding: Holding) -> Iterator[tuple[str, str]]:
        resource, device_id = holding
        yield resource, device_id
        yield resource, device_id.partition("::")[0]
        yield from (("pci", address) for address in _PCI.findall(device_id))
        if holding in self._claims:
            yield "claim", self._claims[holding]
        if resource in self._exclusive:
            yield from (("node", path) for path in self._nodes[holding])


def _keys(resource: str, device: Device) -> Iterator[tuple[str, str]]:
    """What `device` may be known by. A resource's name has a slash: it is none of the kinds."""
    yield resource, device.id
    yield resource, device.name
    claim = "" if device.found is None else claim_of(device.found)
    if claim:
        yield "claim", claim
        kind, _, address = claim.partition(":")
        if kind == "pci" and _PCI.fullmatch(address):
            yield "pci", address
        yield from (("node", path) for path in (device.path, *device.nodes) if path)
