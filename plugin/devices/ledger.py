"""What the ids that pods may hold stand for: physical devices, by resource and advertised id.

The kubelet remembers the ids that pods hold and nothing else of them. A process that calls a resource or
its devices otherwise knows by this which device an id of before was. It is kept in a file that the
processes of a node share: each writes what it serves, and leaves what is another's. No I/O in here.

What pods hold under another name: a device that is held is not to be given again as something else.

Claims are the process's own, and end with it or with a resource's configuration; what a pod holds does
not. No I/O and no clock in here; time is handed in: steady, in seconds.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kubelet.holders import Held
from plugin.devices.claims import claim_of
from plugin.devices.device import Device, Sharing

Holding = tuple[str, str]
"""A resource's name and an advertised id of it."""
Entries = Mapping[str, Mapping[str, str]]
"""Claims by resource and advertised id."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a process has to write. `served`: of resources that it serves, for which it alone speaks.

    `others`: what it knows besides; there the file is believed. `dropped`: what nobody holds any more.
    `given`: of all that the holdings that matter most.
    """

    served: Entries
    others: Entries
    dropped: frozenset[Holding]
    given: frozenset[Holding]

    def merged(self, found: Entries) -> Entries:
        """What is to be in the file instead of what was found there."""
        after = {name: dict(claims) for name, claims in found.items()}
        for name, device_id in self.dropped:
            after.get(name, {}).pop(device_id, None)
        for name, claims in self.others.items():
            after[name] = {**claims, **after.get(name, {})}
        for name, claims in self.served.items():
            after[name] = dict(claims)
        return {name: claims for name, claims in after.items() if claims}

    def shortened(self, entries: Entries) -> Entries:
        """Without what is offered and was never given, where everything is too much."""
        return {
            name: {i: claim for i, claim in claims.items() if (name, i) in self.given}
            if name in self.served
            else claims
            for name, claims in entries.items()
        }


class Ledger:
    """What a process knows of that. A device without a claim has no entry."""

    def __init__(self) -> None:
        self._claims: dict[str, dict[str, str]] = {}
        self._served: set[str] = set()
        self._given: set[Holding] = set()
        self._dropped: set[Holding] = set()
        self._unwritten: set[Holding] = set()

    def find(self, holding: Holding) -> str:
        """The claim of what the id stands for; empty where that is not known."""
        return self._claims.get(holding[0], {}).get(holding[1], "")

    def recall(self, entries: Entries) -> None:
        """Take in what former processes wrote."""
        for name, claims in entries.items():
            self._claims[name] = {i: claim for i, claim in claims.items() if claim}

    def offer(self, resource: str, claims: Mapping[str, str], held: Collection[str] | None) -> bool:
        """These ids are advertised now, and no others; whether that is to be written.

        What is recorded of an id stays until it is given anew: a pod may hold what it stood for. So does
        what is `held` and not advertised; None: that is not known, and nothing is dropped.
        """
        before = self._claims.get(resource, {})
        after = {i: before.get(i) or claim for i, claim in claims.items()}
        after |= before if held is None else {i: before[i] for i in held if i in before}
        return self._put(resource, after, served=True)

    def give(self, resource: str, claims: Mapping[str, str]) -> bool:
        """These ids are about to be given, for these devices; whether one of them stood for another."""
        before = self._claims.get(resource, {})
        other = any(before.get(i, claim) != claim for i, claim in claims.items())
        self._given |= {(resource, i) for i in claims}
        # Nearly always they are known already: then nothing is done that would take longer with more devices.
        if resource not in self._served or any(before.get(i, "") != claim for i, claim in claims.items()):
            self._put(resource, {**before, **claims}, served=True)
        return other

    def leave(self, resource: str, claims: Mapping[str, str], held: Collection[str]) -> None:
        """`resource` is served no more: what of it may be held stays, and what of it is `held`."""
        before = self._claims.get(resource, {})
        after = {i: before.get(i) or claim for i, claim in claims.items()}
        after |= {i: before[i] for i in held if i in before}
        if resource in self._served:
            self._dropped |= {(resource, i) for i in before.keys() - after.keys()}
        self._put(resource, after, served=False)

    def believe(self, holding: Holding, claim: str) -> None:
        """Something else has told what a held id stands for."""
        name, device_id = holding
        if claim and not self.find(holding):
            self._put(name, {**self._claims.get(name, {}), device_id: claim}, served=name in self._served)

    def forget(self, holdings: Collection[Holding]) -> None:
        """Nobody holds these any more; those of a resource that is served are looked after by `offer`."""
        for name, device_id in holdings:
            self._given.discard((name, device_id))
            if name not in self._served and self._claims.get(name, {}).pop(device_id, None) is not None:
                self._unwritten.discard((name, device_id))
                self._dropped.add((name, device_id))

    def of(self, resource: str) -> Mapping[str, str]:
        """The claims of `resource`'s ids."""
        return self._claims.get(resource, {})

    @property
    def resources(self) -> tuple[str, ...]:
        """Of which anything is known."""
        return tuple(self._claims)

    def unwritten(self, resource: str, ids: Collection[str]) -> bool:
        """Whether any of `ids` is not in the file as it is known here."""
        return not self._unwritten.isdisjoint((resource, i) for i in ids)

    def page(self) -> Page:
        """What there is to write now."""
        claims = {name: dict(of) for name, of in self._claims.items()}
        return Page(
            {name: claims.get(name, {}) for name in self._served},
            {name: of for name, of in claims.items() if name not in self._served},
            frozenset(self._dropped),
            frozenset(self._given),
        )

    def written(self, page: Page, entries: Entries) -> None:
        """`page` has been written, and `entries` are in the file."""
        self._dropped -= page.dropped
        self._unwritten -= {
            (name, i) for name, i in self._unwritten if entries.get(name, {}).get(i) == self.find((name, i))
        }

    def _put(self, resource: str, after: Mapping[str, str], *, served: bool) -> bool:
        before = self._claims.get(resource, {})
        known = {i: claim for i, claim in after.items() if claim}
        was_served = resource in self._served
        if served:
            self._served.add(resource)
        else:
            self._served.discard(resource)
        if known == before:
            return was_served != served
        gone = {(resource, i) for i in before.keys() - known.keys()}
        new = {(resource, i) for i, claim in known.items() if before.get(i) != claim}
        self._unwritten = (self._unwritten - gone) | new
        self._given -= gone
        self._dropped -= new
        if known:
            self._claims[resource] = known
        else:
            self._claims.pop(resource, None)
        return True


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
