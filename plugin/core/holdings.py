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
from plugin.core.ledger import Holding, Ledger
from plugin.core.sharing import Sharing

Present = Callable[[str], str | None]
"""The claim of the device that a resource finds by an advertised id, which speaks for it; None: none."""

_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class Holdings:
    """What is held of the resources of a node, and by what a device that is held can be known.

    By the claim that was written down when it was given; by the device nodes that its containers were
    given; by the PCI address in its id; by its id alone where nothing was written down of a resource that
    is no more. Nodes are believed of exclusive resources of the plugin alone, and nothing of a resource
    that is not exclusive: others may have what it gives.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._exclusive: set[str] = set()
        self._shared: frozenset[str] = frozenset()
        self._configured: frozenset[str] = frozenset()
        self._begun: set[str] = set()
        self._doubted = False
        self._nodes: dict[Holding, frozenset[str]] = {}
        self._missing: dict[Holding, float] = {}
        self._index: dict[tuple[str, str], dict[Holding, None]] | None = {}
        self.generation = 0
        """Grows whenever something else is known."""

    def configure(self, exclusive: Collection[str], shared: Collection[str]) -> None:
        """The resources that there are. One that goes is remembered, for pods may hold what it gave."""
        self._shared = frozenset(shared)
        self._configured = frozenset((*exclusive, *shared))
        self._exclusive |= {*exclusive}
        self.changed()

    def own(self, resource: str) -> None:
        """`resource` is one of the exclusive ones: a member of a family is known once it begins."""
        if resource not in self._exclusive or resource not in self._begun:
            self._exclusive.add(resource)
            self._begun.add(resource)
            self.changed()

    def remember(self, resources: Collection[str], *, doubted: bool) -> None:
        """Exclusive resources of former processes; `doubted`: there may be others, which nobody knows of."""
        self._exclusive |= {*resources}
        self._doubted = doubted
        self.changed()

    def disown(self, resources: Collection[str]) -> None:
        """Forget that there were these."""
        self._exclusive -= {*resources}
        self.changed()

    def is_served(self, resource: str) -> bool:
        """Whether this process is to serve it, or does."""
        return resource in self._configured or resource in self._begun

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
                    self.changed()

    def leave(self, resource: str, ids: Collection[str]) -> None:
        """`resource` goes; `ids`: what may be held of it still."""
        self._begun.discard(resource)
        for device_id in ids:
            self._nodes.setdefault((resource, device_id), frozenset())
        self.changed()

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
        if forgotten:
            self.changed()
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
                given = self._ledger.find(holding)
                here = present[name](device_id) if name in present else None
                if here is not None and given in {"", here}:
                    continue
                # Two parts of one thing, by the same claim, are offered side by side.
                if given and name == resource and any(self._ledger.find((name, i)) == given for i in ids):
                    continue
                return holding
        return None

    def changed(self) -> None:
        """Something else is known, of the ledger as well."""
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
        claim = self._ledger.find(holding)
        if claim:
            yield "claim", claim
            yield from _same(claim)
        elif not self.is_served(resource) and (resource in self._exclusive or self._doubted):
            yield "id", device_id
            yield "id", device_id.partition("::")[0]
        if resource in self._exclusive:
            yield from (("node", path) for path in self._nodes[holding])


def _keys(resource: str, device: Device) -> Iterator[tuple[str, str]]:
    """What `device` may be known by. A resource's name has a slash: it is none of the kinds."""
    yield resource, device.id
    yield resource, device.name
    yield "id", device.id
    yield "id", device.name
    claim = "" if device.found is None else claim_of(device.found)
    if claim:
        yield "claim", claim
        yield from _same(claim)
        yield from (("node", path) for path in (device.path, *device.nodes) if path)


def _same(claim: str) -> Iterator[tuple[str, str]]:
    """What else says the same as a claim."""
    kind, _, address = claim.partition(":")
    if kind == "pci" and _PCI.fullmatch(address):
        yield "pci", address
    if claim.startswith("/"):
        yield "node", claim
