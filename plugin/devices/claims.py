"""Which resource may offer a physical device. No I/O and no clock; callers pass the time in steady seconds.

- `DeviceClaims`: of the exclusive resources of this process the first that claims a device keeps it.
- `HeldDevices`: a device that a pod holds under another resource or id is not offered again until then.
- `NamesInUse`: names that only one resource may use. The kubelet finds a device's health by its id alone, and
  a runtime takes no CDI name from two specifications.
"""

import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from plugin.config.plan import Sharing
from plugin.devices.device import Device, HeldIds, Holding
from plugin.discovery.source import Found

FindIdentifiers = Callable[[str], frozenset[str] | None]
"""Identifiers of the device that a resource discovers under an advertised id, None without a device."""

_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


def claim_of(found: Found) -> str:
    """The key of a physical device: `pci:` and an address, or its path; empty for one without either."""
    return found.claim or found.path


class ClaimResult(Struct, frozen=True):
    """`refused`: claims of other resources, by claim; `wake`: resources that wait for a released claim."""

    refused: Mapping[str, str] = field(default_factory=dict)
    wake: frozenset[str] = frozenset()


class DeviceClaims:
    """The claims of the exclusive resources of a process."""

    def __init__(self) -> None:
        self._order: tuple[str, ...] = ()
        self._scanned: set[str] = set()
        self._started: set[str] = set()
        self._owners: dict[str, str] = {}
        self._claims: dict[str, set[str]] = {}
        self._refused: dict[str, frozenset[str]] = {}

    def configure(self, order: Sequence[str]) -> None:
        """Set the exclusive resources, in the order of the configuration."""
        self._order = tuple(order)

    def awaited(self, resource: str, with_holders: Collection[str] = ()) -> tuple[str, ...]:
        """Resources that claim before `resource` does.

        These are the earlier ones that have not scanned yet, and those of `with_holders` that have not
        started: what pods hold of a resource stays its own, whatever its place in the configuration.
        """
        if resource not in self._order:
            return ()
        own = self._order.index(resource)
        return tuple(
            name
            for index, name in enumerate(self._order)
            if name not in self._scanned
            and (index < own or (index > own and name in with_holders and name not in self._started))
        )

    def start(self, resource: str, held: Collection[str]) -> None:
        """Claim the devices that pods hold of `resource`, before its turn."""
        if resource not in self._claims:
            self.claim(resource, held)
        self._started.add(resource)

    def scanned(self, resource: str) -> None:
        """Record that `resource` has scanned once and claimed what it found."""
        self._scanned.add(resource)

    def claim(self, resource: str, claims: Collection[str]) -> ClaimResult:
        """Replace the claims of `resource`."""
        wanted = frozenset(claims)
        before = frozenset(self._claims.get(resource, ()))
        self._refused.pop(resource, None)
        return self.change(resource, wanted - before, before - wanted)

    def change(self, resource: str, wanted: Iterable[str], unwanted: Iterable[str]) -> ClaimResult:
        """Add the claims `wanted` to those of `resource`, and remove the `unwanted` ones."""
        claims = self._claims.setdefault(resource, set())
        freed = claims.intersection(unwanted)
        claims -= freed
        for claim in freed:
            del self._owners[claim]
        refused: dict[str, str] = {}
        for claim in wanted:
            owner = self._owners.setdefault(claim, resource)
            if owner == resource:
                claims.add(claim)
            else:
                refused[claim] = owner
        self._refused[resource] = self._refused.get(resource, frozenset()) | refused.keys()
        return ClaimResult(refused, self._waiting_for(freed))

    def release(self, resource: str) -> frozenset[str]:
        """Remove `resource`; returns the resources that wait for one of its claims."""
        freed = self._claims.pop(resource, set())
        for claim in freed:
            del self._owners[claim]
        self._refused.pop(resource, None)
        self._scanned.discard(resource)
        self._started.discard(resource)
        return self._waiting_for(freed)

    def _waiting_for(self, freed: Collection[str]) -> frozenset[str]:
        return frozenset(name for name, refused in self._refused.items() if not refused.isdisjoint(freed))


class HeldDevices:
    """Finds devices that pods hold under another resource or id than they are offered by.

    A device is recognized by what Allocate put into the container: a path, a PCI address or a CDI name; in
    its own resource also by its name. An answer without any of these identifies no device.

    What non-exclusive resources gave does not count. A shared device (`share`) may also be held through
    resources that this process never served: its shares are meant to be used side by side.
    """

    def __init__(self) -> None:
        self._own: set[str] = set()
        self._not_exclusive: frozenset[str] = frozenset()
        self._holdings: dict[Holding, frozenset[str]] = {}
        self._absent_since: dict[Holding, float] = {}
        self._index: dict[str, list[Holding]] | None = None
        self._finders: dict[str, FindIdentifiers] = {}
        self.generation = 0
        """Grows whenever `holding_of` may give another result."""

    @property
    def resources(self) -> frozenset[str]:
        """Resources of which pods hold something."""
        return frozenset(name for name, _ in self._holdings)

    def ids(self, resource: str) -> frozenset[str]:
        """Held ids of `resource`."""
        return frozenset(device_id for name, device_id in self._holdings if name == resource)

    def configure(self, exclusive: Collection[str], not_exclusive: Collection[str]) -> None:
        """Set the configured resources."""
        self._own |= {*exclusive}
        self._not_exclusive = frozenset(not_exclusive)
        self._changed()

    def join(self, resource: str, find: FindIdentifiers) -> None:
        """Add a resource; `find` reports the devices that it has now."""
        self._own.add(resource)
        self._finders[resource] = find
        self._changed()

    def leave(self, resource: str, held: Mapping[str, frozenset[str]]) -> None:
        """Remove a resource; `held`: identifiers of the devices that pods may hold, by advertised id."""
        self._finders.pop(resource, None)
        for device_id, names in held.items():
            known = self._holdings.get((resource, device_id), frozenset())
            self._holdings[resource, device_id] = known | names
        self._changed()

    def learn(self, holdings: Mapping[Holding, frozenset[str]]) -> None:
        """Add what the kubelet reports: identifiers of the devices that pods hold."""
        for holding, names in holdings.items():
            self._absent_since.pop(holding, None)
            before = self._holdings.get(holding)
            after = names | before if before else names
            if before != after:
                self._holdings[holding] = after
                self._changed()

    def review(self, listed: HeldIds, now: float, patience: float) -> frozenset[Holding]:
        """Forget holdings that the kubelet has not listed for `patience` seconds; returns them.

        A kubelet that has just restarted lists no pods for about a second.
        """
        ended: set[Holding] = set()
        for holding in self._holdings:
            if holding[1] in listed.get(holding[0], ()):
                self._absent_since.pop(holding, None)
            elif now - self._absent_since.setdefault(holding, now) >= patience:
                ended.add(holding)
        for holding in ended:
            del self._holdings[holding]
            del self._absent_since[holding]
        if ended:
            self._changed()
        return frozenset(ended)

    def holding_of(
        self, resource: str, device: Device, sharing: Sharing, identifiers: Callable[[], frozenset[str]]
    ) -> Holding | None:
        """The holding of `device` under another resource or id than `resource` offers it by, if any."""
        index = self._indexed()
        if not index:
            return None
        shared = sharing.replicas is not None
        names = frozenset({f"{resource} {device.id}", f"{resource} {device.name}"})
        for key in names | identifiers():
            for holding in index.get(key, ()):
                holder, held_id = holding
                if holder == resource:
                    # A pod may hold a share of the device, whatever the ids of shares were then.
                    if held_id in sharing.valid_ids(device.id) or (shared and held_id != device.id):
                        continue
                elif shared and holder not in self._own:
                    continue
                if not self._is_of_another(holding, by_name=key in names):
                    return holding
        return None

    def _is_of_another(self, holding: Holding, *, by_name: bool) -> bool:
        """Whether the resource of `holding` discovers the held device under that id."""
        find = self._finders.get(holding[0])
        found = find(holding[1]) if find is not None else None
        return found is not None and (by_name or not found.isdisjoint(self._holdings[holding]))

    def _indexed(self) -> Mapping[str, Sequence[Holding]]:
        if self._index is None:
            self._index = {}
            for holding, names in self._holdings.items():
                resource, device_id = holding
                if resource not in self._not_exclusive:
                    addresses = _PCI.findall(device_id)
                    own = (f"{resource} {device_id}", f"{resource} {device_id.partition('::')[0]}")
                    for name in {*names, *addresses, *own}:
                        self._index.setdefault(name, []).append(holding)
        return self._index

    def _changed(self) -> None:
        self.generation += 1
        self._index = None


class NamesInUse:
    """The names that each resource uses: ids that it advertises, or CDI names. Thread-safe."""

    def __init__(self) -> None:
        self._names: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def replace(self, resource: str, names: Collection[str]) -> dict[str, str]:
        """Replace the names of `resource`; returns those that others use too, as `shared` does."""
        with self._lock:
            self._names[resource] = frozenset(names)
        return self.shared(resource, names)

    def shared(self, resource: str, names: Collection[str]) -> dict[str, str]:
        """Which of `names` other resources than `resource` use, with the first of them by its name."""
        own = frozenset(names)
        with self._lock:
            others = sorted(self._names.keys() - {resource}, reverse=True)
            return {name: other for other in others for name in own & self._names[other]}

    def release(self, resource: str) -> None:
        """Remove `resource`."""
        with self._lock:
            self._names.pop(resource, None)
