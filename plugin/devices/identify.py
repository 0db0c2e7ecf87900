"""Makes a resource's devices from what its sources found: selects them, and gives each an id and NUMA nodes.

`members` derives the resources of a family, whose name is a template over its devices.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from plugin.config.plan import ResourcePlan
from plugin.config.templates import Template, TemplateError
from plugin.devices.device import Device
from plugin.discovery.source import Found
from plugin.names import id_problem, in_order, resource_problem
from runtime.text import quoted

NumaNodes = Callable[[Found], tuple[int, ...]]
"""Reads the NUMA nodes of a found device from the host; called for `numa: auto` alone."""


class IdentityChange(Struct, frozen=True):
    """A partial scan: `devices` that are new or changed, and the ids of those that are `gone`."""

    devices: tuple[Device, ...]
    gone: tuple[str, ...]


class Identity(Struct, frozen=True):
    """All devices in natural order of their ids. `left_out`: path or name, and the reason."""

    devices: tuple[Device, ...]
    left_out: tuple[tuple[str, str], ...]


class Identifier:
    """Gives ids to found devices. Of two devices with one id, the one that had it first keeps it."""

    def __init__(self, plan: ResourcePlan) -> None:
        self._plan = plan
        self._owners: dict[str, Device] = {}
        self._known: dict[tuple[str, str], tuple[Found, Device | str | None]] = {}
        self._contested: frozenset[str] = frozenset()

    def identify(self, found: Iterable[Found], numa_nodes: NumaNodes) -> Identity:
        """The devices of a full scan. What cannot be a device is left out, with the reason."""
        left_out: list[tuple[str, str]] = []
        known: dict[tuple[str, str], tuple[Found, Device | str | None]] = {}
        candidates: dict[str, list[Device]] = {}
        for item in found:
            key = (item.name, item.path)
            if key in known:
                continue
            entry = self._known.get(key)
            if entry is None or entry[0] != item:
                entry = item, self._one(item, numa_nodes)
            known[key] = entry
            result = entry[1]
            if isinstance(result, str):
                left_out.append((item.path or item.name, result))
            elif result is not None:
                candidates.setdefault(result.id, []).append(result)
        self._known = known
        self._contested = frozenset(i for i, rivals in candidates.items() if len(rivals) > 1)
        chosen = {device_id: self._choose(rivals, left_out) for device_id, rivals in candidates.items()}
        self._owners = chosen
        return Identity(tuple(chosen[i] for i in in_order(chosen)), tuple(left_out))

    def __contains__(self, key: tuple[str, str]) -> bool:
        """Whether the scans so far found something of this name and path."""
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def update(
        self, found: Iterable[Found], gone: Iterable[tuple[str, str]], numa_nodes: NumaNodes
    ) -> IdentityChange | None:
        """The devices of a partial scan; `gone`: (name, path) of missing ones.

        None where a full scan is needed: an id that several devices claim, or a device that is left out.
        """
        devices: list[Device] = []
        ids_gone: dict[str, None] = {}
        changes = [(key, None) for key in gone] + [((item.name, item.path), item) for item in found]
        for key, item in changes:
            old, before = self._known.get(key, (None, None))
            if old == item:
                continue
            now = None if item is None else self._one(item, numa_nodes)
            if isinstance(before, str) or isinstance(now, str):
                return None
            self._known.pop(key, None)
            if item is not None:
                self._known[key] = item, now
            if before is not None and (now is None or now.id != before.id):
                ids_gone[before.id] = None
            if now is not None:
                devices.append(now)
        return self._settled(tuple(devices), ids_gone)

    def _settled(self, devices: tuple[Device, ...], gone: Iterable[str]) -> IdentityChange | None:
        """The change, or None where one of its ids belongs to several devices."""
        ids = [device.id for device in devices]
        if not self._contested.isdisjoint((*ids, *gone)):
            return None
        for device_id in gone:
            del self._owners[device_id]
        for device in devices:
            if not _same_place(device, self._owners.setdefault(device.id, device)):
                return None
        return IdentityChange(devices, tuple(i for i in gone if i not in ids))

    def _choose(self, rivals: list[Device], left_out: list[tuple[str, str]]) -> Device:
        """The device that had the id before, or else the first that was found."""
        owner = self._owners.get(rivals[0].id)
        winner = next((r for r in rivals if owner and _same_place(r, owner)), rivals[0])
        place = winner.path or winner.name
        for rival in rivals:
            if rival is not winner and rival.path != winner.path:
                reason = f"its id {quoted(rival.id)} is taken by {place}"
                left_out.append((rival.path or rival.name, reason))
        return winner

    def _one(self, found: Found, numa_nodes: NumaNodes) -> Device | str | None:
        """The device, a reason against it, or None where `match` does not hold."""
        plan = self._plan
        variables = {"device": found}
        if plan.member_of is not None and not _is_member(plan.member_of, plan.name, variables):
            return None
        try:
            if plan.match is not None and not plan.match.holds(variables):
                return None
        except TemplateError as error:
            return f"match: {error}"
        try:
            device_id = found.name if plan.id is None else plan.id.render(variables)
        except TemplateError as error:
            return f"id: {error}"
        problem = id_problem(device_id)
        if problem is not None:
            return f"it cannot have the id {quoted(device_id)}: {problem}"
        numa = self._numa(found, numa_nodes)
        return Device(device_id, found.name, found.path, found.attrs, numa, found.nodes, found)

    def _numa(self, found: Found, numa_nodes: NumaNodes) -> tuple[int, ...]:
        numa = self._plan.numa
        if numa == "off":
            return ()
        if isinstance(numa, int):
            return (numa,)
        nodes = (found.numa_node,) if found.numa_node is not None else numa_nodes(found)
        return tuple(sorted({node for node in nodes if node >= 0}))


def _same_place(one: Device, other: Device) -> bool:
    return (one.name, one.path) == (other.name, other.path)


def unmatched(plan: ResourcePlan, found: Iterable[Found]) -> Iterator[Found]:
    """What `match` excludes: the dry run shows it. A template that fails is left out by `identify`."""
    for item in found:
        with suppress(TemplateError):
            if plan.match is not None and not plan.match.holds({"device": item}):
                yield item


def _is_member(family: Template, name: str, variables: Mapping[str, object]) -> bool:
    """Whether the family template gives `name` for a device. The family itself reports a failing template."""
    try:
        return family.render(variables) == name
    except TemplateError:
        return False


MOST_MEMBERS: Final = 256
"""Resources of one family; the kubelet keeps a connection to each."""


class Members(Struct, frozen=True):
    """The resources of a family by name. `left_out`: (path or name, reason) of devices without one."""

    plans: Mapping[str, ResourcePlan]
    left_out: tuple[tuple[str, str], ...]


def members(family: ResourcePlan, found: Iterable[Found]) -> Members:
    """The resources that the devices `found` name, without those for which `match` does not hold."""
    if family.family is None:
        raise ValueError(f"{family.name} is no family")
    plans: dict[str, ResourcePlan] = {}
    left_out: list[tuple[str, str]] = []
    for item in found:
        variables = {"device": item}
        place = item.path or item.name
        try:
            if family.match is not None and not family.match.holds(variables):
                continue
            name = family.family.render(variables)
        except TemplateError as error:
            left_out.append((place, f"name: {error}"))
            continue
        problem = resource_problem(name)
        if problem is not None:
            left_out.append((place, f"its resource cannot have the name {quoted(name)}, {problem}"))
        elif name in plans or len(plans) < MOST_MEMBERS:
            plans.setdefault(name, replace(family, name=name, family=None, member_of=family.family))
        else:
            left_out.append((place, f"there are {MOST_MEMBERS} resources of its family already"))
    return Members(plans, tuple(left_out))
