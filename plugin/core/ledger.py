"""What the ids that pods may hold stand for: physical devices, by resource and advertised id.

The kubelet remembers the ids that pods hold and nothing else of them. A process that calls a resource or
its devices otherwise knows by this which device an id of before was. It is kept in a file that the
processes of a node share: each writes what it serves, and leaves what is another's. No I/O in here.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
