"""Which resource has which physical device: the first that finds one keeps it.

Two resources that give away the same device would give it to two pods. A device is known across
resources by its claim: `pci:` and the address of its function, or its path.

Ids across resources: the kubelet looks a device's health up by its id alone.

CDI names across resources: a runtime that finds one in two specifications gives the device to nobody.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from plugin.discovery.source import Found


def claim_of(found: Found) -> str:
    """What the physical thing is called for all resources; empty for one that nobody else can find."""
    return found.claim or found.path


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a claim. `refused`: what another resource has, and which one.

    `wake`: resources that were refused something which nobody has any more.
    """

    refused: Mapping[str, str] = field(default_factory=dict)
    wake: frozenset[str] = frozenset()


class Claims:
    """The claims of a process's exclusive resources. No I/O and no clock in here."""

    def __init__(self) -> None:
        self._order: tuple[str, ...] = ()
        self._looked: set[str] = set()
        self._staked: set[str] = set()
        self._holders: dict[str, str] = {}
        self._held: dict[str, frozenset[str]] = {}
        self._refused: dict[str, frozenset[str]] = {}

    def configure(self, order: Sequence[str]) -> None:
        """The exclusive resources that there are, in the order of the configuration."""
        self._order = tuple(order)

    def awaited(self, resource: str, holders: Collection[str] = ()) -> tuple[str, ...]:
        """The earlier resources that have not looked yet: what they find is theirs.

        And whichever of `holders` has not staked yet: what pods hold of it is its own, however late it comes.
        """
        if resource not in self._order:
            return ()
        place = self._order.index(resource)
        return tuple(
            name
            for at, name in enumerate(self._order)
            if name not in self._looked
            and (at < place or (at > place and name in holders and name not in self._staked))
        )

    def stake(self, resource: str, claims: Collection[str]) -> None:
        """What pods hold of `resource` already: claimed before its turn comes."""
        if resource not in self._held:
            self.claim(resource, claims)
        self._staked.add(resource)

    def looked(self, resource: str) -> None:
        """`resource` has looked for the first time, and claimed what it found."""
        self._looked.add(resource)

    def claim(self, resource: str, claims: Collection[str]) -> Claimed:
        """Say everything that `resource` would have from now on; what it had besides is given back."""
        wanted = frozenset(claims)
        before = self._held.get(resource, frozenset())
        refused: dict[str, str] = {}
        for claim in wanted - before:
            holder = self._holders.setdefault(claim, resource)
            if holder != resource:
                refused[claim] = holder
        freed = before - wanted
        for claim in freed:
            del self._holders[claim]
        self._held[resource] = wanted - refused.keys()
        self._refused[resource] = frozenset(refused)
        return Claimed(refused, self._waiting_for(freed))

    def release(self, resource: str) -> frozenset[str]:
        """`resource` is gone; returns those who were refused what it had."""
        freed = self._held.pop(resource, frozenset())
        for claim in freed:
            del self._holders[claim]
        self._refused.pop(resource, None)
        self._looked.discard(resource)
        self._staked.discard(resource)
        return self._waiting_for(freed)

    def _waiting_for(self, freed: frozenset[str]) -> frozenset[str]:
        return (
            frozenset(name for name, refused in self._refused.items() if refused & freed) if freed else freed
        )


class Identities:
    """Which resource advertises which ids."""

    def __init__(self) -> None:
        self._ids: dict[str, frozenset[str]] = {}

    def claim(self, resource: str, ids: Collection[str]) -> dict[str, str]:
        """Say what `resource` advertises from now on; returns the ids that another has too, with its name."""
        own = frozenset(ids)
        self._ids[resource] = own
        return {i: other for other, theirs in self._ids.items() if other != resource for i in own & theirs}

    def release(self, resource: str) -> None:
        """`resource` advertises nothing any more."""
        self._ids.pop(resource, None)


class CdiNames:
    """Which resource's specification has which qualified names. Asked by several threads.

    Of several that would have one it is the first by the resource's name that has it, whenever each of
    them came: a pod that starts again after this process did must get what it had.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def claim(self, resource: str, names: Collection[str]) -> Mapping[str, str]:
        """Say what `resource` would have from now on; returns what another has, and which one."""
        with self._lock:
            self._wanted[resource] = frozenset(names)
            return self._taken(resource, self._wanted[resource])

    def taken(self, resource: str, names: Collection[str]) -> Mapping[str, str]:
        """What of `names` another has, if `resource` would have them, and which one."""
        with self._lock:
            return self._taken(resource, frozenset(names))

    def release(self, resource: str) -> None:
        """`resource` has no specification any more."""
        with self._lock:
            self._wanted.pop(resource, None)

    def _taken(self, resource: str, names: frozenset[str]) -> dict[str, str]:
        earlier = sorted(other for other in self._wanted if other < resource)
        return {name: other for other in reversed(earlier) for name in names & self._wanted[other]}
