"""Answers to Allocate and GetPreferredAllocation, computed from the inventory and the configuration. No I/O.

`request` resolves advertised ids, `render` makes the answer from templates, `prefer` chooses among ids.
"""

import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from heapq import heappop, heappush, nsmallest
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from plugin import names
from plugin.config.plan import Prefer, ResourcePlan
from plugin.devices import cdi
from plugin.devices.device import Device
from plugin.devices.inventory import Inventory
from plugin.devices.rendering import ContainerNode, File, Mount, Renderer, RenderError, distinct
from plugin.devices.topology import MAX_DEVICES, Links, Position, best_connected, position
from plugin.names import NaturalKey, in_order, natural
from runtime.text import named, quoted


class Refusal(Enum):
    """Why Allocate was refused: the gRPC status code of the same name."""

    FAILED_PRECONDITION = "failed precondition"
    INVALID_ARGUMENT = "invalid argument"
    RESOURCE_EXHAUSTED = "resource exhausted"
    DEADLINE_EXCEEDED = "deadline exceeded"
    INTERNAL = "internal"


class AllocationError(Exception):
    """A call that cannot be answered. The message names the ids or the place in the configuration."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


class ContainerAllocation(Struct, frozen=True):
    """What one container gets. `files` are written on the host first, and mounted read-only."""

    env: Mapping[str, str]
    devices: tuple[ContainerNode, ...]
    mounts: tuple[Mount, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]
    files: tuple[File, ...] = ()


class AllocationRequest(Struct, frozen=True):
    """One container's request: advertised ids, each once, and the physical devices behind them.

    `devices` are in natural order; `owners` has the device's id by advertised id.
    """

    ids: tuple[str, ...]
    devices: tuple[Device, ...]
    owners: Mapping[str, str]


def request(inventory: Inventory, plan: ResourcePlan, requested: Sequence[str]) -> AllocationRequest:
    """Resolve the ids of one container's request.

    Raises AllocationError for ids that are unknown or unhealthy, and for more than `max_per_container`.
    """
    ids = distinct(requested)
    if not ids:
        raise AllocationError(Refusal.INVALID_ARGUMENT, f"{plan.name}: the request names no device")
    if plan.max_per_container is not None and len(ids) > plan.max_per_container:
        raise AllocationError(
            Refusal.INVALID_ARGUMENT,
            f"{plan.name}: a container may have at most {plan.max_per_container}, {len(ids)} were asked for",
        )
    devices = resolve(inventory, plan, ids, healthy=True)
    return AllocationRequest(
        ids, tuple(sorted_devices(devices.values())), {i: d.id for i, d in devices.items()}
    )


def resolve(
    inventory: Inventory, plan: ResourcePlan, ids: Sequence[str], *, healthy: bool
) -> dict[str, Device]:
    """The device behind each advertised id. `healthy`: refuse unhealthy ones. Raises AllocationError."""
    devices: dict[str, Device] = {}
    problems: list[str] = []
    for advertised_id in ids:
        known = inventory.find(advertised_id)
        if known is None:
            problems.append(f"{quoted(advertised_id)} is unknown")
        elif healthy and not known.healthy:
            problems.append(f"{quoted(advertised_id)} is unhealthy ({known.reason})")
        else:
            devices[advertised_id] = known.device
    if problems:
        raise unavailable(plan, problems)
    return devices


def sorted_devices(devices: Iterable[Device]) -> list[Device]:
    """Devices in natural order of their ids, each once."""
    by_id = {device.id: device for device in devices}
    return [by_id[i] for i in in_order(by_id)]


def unavailable(plan: ResourcePlan, problems: Sequence[str]) -> AllocationError:
    """The error that names devices and what is wrong with each."""
    return AllocationError(Refusal.FAILED_PRECONDITION, f"{plan.name}: {named(problems)}")


def refuse_missing(plan: ResourcePlan, paths: Iterable[str]) -> None:
    """Raise AllocationError for the device nodes at `paths`, if there are any."""
    missing = [f"the host has no {quoted(path)}" for path in dict.fromkeys(paths)]
    if missing:
        raise unavailable(plan, missing)


class refusing:  # noqa: N801 -- a context manager
    """Turns a RenderError or OSError into an AllocationError that names the place in the configuration."""

    # Not a generator: Allocate uses five of these, and each would take as long as five calls.
    __slots__ = ("_place", "_plan")

    def __init__(self, plan: ResourcePlan, place: str) -> None:
        self._plan = plan
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RenderError):
            raise AllocationError(Refusal.INTERNAL, f"{self._plan.name}: {error}") from None
        if isinstance(error, OSError):
            full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
            refusal = Refusal.RESOURCE_EXHAUSTED if full else Refusal.FAILED_PRECONDITION
            path = f"{error.filename}: " if error.filename else ""
            reason = error.strerror or str(error)
            raise AllocationError(refusal, f"{self._plan.name}: {self._place}: {path}{reason}") from None


def render(plan: ResourcePlan, requested: Sequence[str], devices: Sequence[Device]) -> ContainerAllocation:
    """What a container gets for the ids `requested`, with `devices` behind them. Includes optional parts.

    Raises AllocationError (INTERNAL) where a template fails, with its place.
    """
    allocate = plan.allocate
    ids = tuple(in_order(distinct(requested)))
    renderer = Renderer("allocate", plan.name, devices, ids)
    with refusing(plan, "allocate"):
        env = renderer.entries("env", allocate.env, names.variable_problem)
        mounts, files = renderer.mounts(allocate.mounts), renderer.files(allocate.files)
        taken = {mount.container for mount in mounts}
        for file in files:
            if file.container in taken:
                raise renderer.failed("files", f"{quoted(file.container)} in the container is a mount too")
        return ContainerAllocation(
            env=env,
            devices=renderer.nodes(allocate.devices),
            mounts=mounts,
            annotations=renderer.entries("annotations", allocate.annotations, names.annotation_problem),
            cdi=(*renderer.texts("cdi", allocate.cdi, names.cdi_problem), *cdi.names_of(plan, devices)),
            files=files,
        )


def named_by_specification(
    plan: ResourcePlan, made: ContainerAllocation, existing: frozenset[str]
) -> ContainerAllocation:
    """`made` without names of the resource's CDI specification that are not in `existing`.

    CDI does not allow a device without edits: one that has none on this host has no entry.
    """
    if plan.cdi is None:
        return made
    own = f"{plan.cdi.kind}="
    return replace(made, cdi=tuple(n for n in made.cdi if n in existing or not n.startswith(own)))


class Offer(NamedTuple):
    """One offered id: the physical device behind it, that device's NUMA nodes, and where it is."""

    id: str
    device: str
    numa_nodes: tuple[int, ...] = ()
    position: Position = Position()


_Turn = tuple[int, int, NaturalKey, Offer]
"""How many ids of a device are taken, its weight, the sort key of its next id, and that id."""


def offers(inventory: Inventory, ids: Sequence[str], links: Links | None = None) -> tuple[Offer, ...]:
    """The devices behind offered ids; their positions where `links` are given.

    An id that is not advertised counts as a device of its own.
    """
    made: list[Offer] = []
    positions: dict[str, Position] = {}
    for offered in dict.fromkeys(ids):
        known = inventory.find(offered)
        if known is None:
            made.append(Offer(offered, offered))
        else:
            device = known.device
            if links is not None and device.id not in positions:
                positions[device.id] = position(device, links)
            made.append(Offer(offered, device.id, device.numa_nodes, positions.get(device.id, Position())))
    return tuple(made)


def prefer(
    how: Prefer, available: Sequence[Offer], must_include: Sequence[str], size: int, total: Mapping[str, int]
) -> tuple[str, ...]:
    """Choose `size` of the available ids, with all of `must_include` (else the kubelet ignores the answer).

    `total`: how many ids each physical device has; those that are not available are in use. Shares are
    spread over physical devices first; then

    - packed: devices that are in use already, to keep others whole
    - spread: devices that are least in use
    - numa: the fewest NUMA nodes (this before spreading shares), then as spread
    - topology: the best connected devices, by links, PCI bridges and NUMA nodes, then as spread; as numa
      where more than `topology.MAX_DEVICES` are available
    - none: the natural order of ids

    Returns fewer ids than `size` only where fewer are available, more only where more must be included.
    """
    by_id = {offer.id: offer for offer in available}
    chosen = [by_id.pop(i) for i in dict.fromkeys(must_include) if i in by_id]
    taken = Counter([offer.device for offer in chosen])
    rest: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in by_id.values():
        rest[offer.device].append(offer)
    used = {device: total.get(device, 0) - len(offers) - taken[device] for device, offers in rest.items()}
    weight = _weights(how, used)
    if how == "topology" and len(rest) > MAX_DEVICES:
        how = "numa"
    positions = {offer.device: offer.position for offer in available} if how == "topology" else {}
    while len(chosen) < size and rest:
        missing = size - len(chosen)
        devices: Iterable[str] = rest
        if how == "numa":
            devices = _nearest(chosen, rest, missing)
        elif how == "topology":
            devices = _connected(positions, taken, rest, missing, weight)
        chosen += _spread(tuple(devices), rest, taken, weight, missing)
    return tuple(offer.id for offer in chosen)


def _weights(how: Prefer, used: Mapping[str, int]) -> Callable[[str], int]:
    """The weight of a device by the ids of it that are in use. The least weight comes first."""
    match how:
        case "packed":
            return lambda device: -used[device]
        case "spread" | "numa" | "topology":
            return lambda device: used[device]
        case "none":
            return lambda _device: 0


def _spread(
    devices: Iterable[str],
    rest: dict[str, list[Offer]],
    taken: Counter[str],
    weight: Callable[[str], int],
    missing: int,
) -> list[Offer]:
    """Take up to `missing` offers of `devices` out of `rest`: one of each device before a second of any."""

    def turn(device: str, offer: Offer) -> _Turn:
        return taken[device], weight(device), natural(offer.id), offer

    # Devices beyond the first `missing` cannot have a turn: each of these comes before them.
    turns = nsmallest(missing, (turn(d, min(rest[d], key=_by_id)) for d in devices))
    for *_, offer in turns:
        rest[offer.device].sort(key=_by_id, reverse=True)
    chosen: list[Offer] = []
    while turns and len(chosen) < missing:
        *_, offer = heappop(turns)
        device, left = offer.device, rest[offer.device]
        chosen.append(left.pop())
        taken[device] += 1
        if left:
            heappush(turns, turn(device, left[-1]))
        else:
            del rest[device]
    return chosen


def _connected(
    positions: Mapping[str, Position],
    taken: Counter[str],
    rest: Mapping[str, list[Offer]],
    missing: int,
    weight: Callable[[str], int],
) -> tuple[str, ...]:
    """The best connected of the devices of which the fewest ids are taken: the next turn of spreading."""
    fewest = min(taken[device] for device in rest)
    candidates = in_order(device for device in rest if taken[device] == fewest)
    present = [device for device, count in taken.items() if count]
    size = min(missing, len(candidates))
    return best_connected(positions, present, candidates, size, weight)


def _by_id(offer: Offer) -> NaturalKey:
    return natural(offer.id)


def _nearest(chosen: Sequence[Offer], rest: Mapping[str, list[Offer]], missing: int) -> tuple[str, ...]:
    """The devices on the NUMA nodes chosen so far; if there are none, those on the best node.

    A node with all that is missing comes before one without; of the former the one with the fewest offers
    to spare, of the latter the one with the most. Devices without a node come last.
    """
    by_nodes: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for device, offers in rest.items():
        by_nodes[offers[0].numa_nodes].append(device)
    present = frozenset(node for offer in chosen for node in offer.numa_nodes)
    if not any(present.intersection(nodes) for nodes in by_nodes):
        room: Counter[int] = Counter()
        for nodes, devices in by_nodes.items():
            room.update(dict.fromkeys(nodes, sum(len(rest[device]) for device in devices)))
        if not room:
            return tuple(rest)
        best = min(room, key=lambda node: (room[node] < missing, abs(room[node] - missing), node))
        present = frozenset((best,))
    return tuple(
        device for nodes, devices in by_nodes.items() if present.intersection(nodes) for device in devices
    )
