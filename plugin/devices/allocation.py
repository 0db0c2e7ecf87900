"""The answer to Allocate: which devices a container gets, and what it needs to use them.

The answer to GetPreferredAllocation: which of the offered devices a container should get.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush, nsmallest
from typing import Final, NamedTuple

from plugin import names
from plugin.config.plan import Prefer, ResourcePlan
from plugin.devices import cdi
from plugin.devices.device import Device
from plugin.devices.inventory import Inventory
from plugin.devices.rendering import File, Mount, Node, Renderer, RenderError, distinct
from plugin.names import natural
from runtime.config_file import quoted

__all__ = [
    "ContainerAnswer",
    "File",
    "Mount",
    "Node",
    "Refusal",
    "RefusedError",
    "answer",
    "choose",
    "unavailable",
]

MAX_NAMED: Final = 8
"""How many ids an error names; the rest are counted."""


class Refusal(Enum):
    """Why Allocate was refused: the gRPC status code of the same name."""

    FAILED_PRECONDITION = "failed precondition"
    INVALID_ARGUMENT = "invalid argument"
    RESOURCE_EXHAUSTED = "resource exhausted"
    DEADLINE_EXCEEDED = "deadline exceeded"
    INTERNAL = "internal"


class RefusedError(Exception):
    """Allocate cannot be answered; the message names the ids or the place in the configuration."""

    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """What one container gets."""

    env: Mapping[str, str]
    devices: tuple[Node, ...]
    mounts: tuple[Mount, ...]
    annotations: Mapping[str, str]
    cdi: tuple[str, ...]
    files: tuple[File, ...] = ()
    """To be written first; each is mounted read-only."""


@dataclass(frozen=True, slots=True)
class Request:
    """One container's request: the ids asked for, each once, and the physical devices behind them.

    `owners`: the device's id by the id asked for.
    """

    ids: tuple[str, ...]
    devices: tuple[Device, ...]
    owners: Mapping[str, str]


def request(inventory: Inventory, plan: ResourcePlan, asked: Sequence[str]) -> Request:
    """What a container asks for by `asked`. Raises RefusedError as `choose` does."""
    devices = choose(inventory, plan, asked)
    ids = distinct(asked)
    known = ((i, inventory.find(i)) for i in ids)
    return Request(ids, devices, {i: entry.device.id for i, entry in known if entry is not None})


def choose(inventory: Inventory, plan: ResourcePlan, asked: Sequence[str]) -> tuple[Device, ...]:
    """The physical devices behind the ids of one container's request, each once, in natural order.

    Raises RefusedError for ids that are unknown or unhealthy, and for more than may be shared out.
    """
    ids = distinct(asked)
    if not ids:
        raise RefusedError(Refusal.INVALID_ARGUMENT, f"{plan.name}: the request names no device")
    if plan.max_per_container is not None and len(ids) > plan.max_per_container:
        raise RefusedError(
            Refusal.INVALID_ARGUMENT,
            f"{plan.name}: a container may have at most {plan.max_per_container}, {len(ids)} were asked for",
        )
    devices: dict[str, Device] = {}
    faults: list[str] = []
    for advertised_id in ids:
        known = inventory.find(advertised_id)
        if known is None:
            faults.append(f"{quoted(advertised_id)} is unknown")
        elif not known.healthy:
            faults.append(f"{quoted(advertised_id)} is unhealthy ({known.reason})")
        else:
            devices[known.device.id] = known.device
    if faults:
        raise unavailable(plan, faults)
    return tuple(devices[i] for i in sorted(devices, key=natural))


def unavailable(plan: ResourcePlan, faults: Sequence[str]) -> RefusedError:
    """The refusal that names devices and what is wrong with each."""
    more = f" and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
    return RefusedError(Refusal.FAILED_PRECONDITION, f"{plan.name}: {', '.join(faults[:MAX_NAMED])}{more}")


def answer(plan: ResourcePlan, asked: Sequence[str], devices: Sequence[Device]) -> ContainerAnswer:
    """What a container gets that was given `devices` for the ids `asked`, optional things among it.

    Raises RefusedError (INTERNAL) where a template fails, naming it and its place.
    """
    allocate = plan.allocate
    ids = tuple(sorted(distinct(asked), key=natural))
    rendered = Renderer("allocate", plan.name, devices, ids)
    try:
        env = rendered.entries("env", allocate.env, names.variable_problem)
        mounts, files = rendered.mounts(allocate.mounts), rendered.files(allocate.files)
        taken = {mount.container for mount in mounts}
        for file in files:
            if file.container in taken:
                raise rendered.failed("files", f"{quoted(file.container)} in the container is a mount too")
        return ContainerAnswer(
            env=env,
            devices=rendered.nodes(allocate.devices),
            mounts=mounts,
            annotations=rendered.entries("annotations", allocate.annotations, names.annotation_problem),
            cdi=(*rendered.texts("cdi", allocate.cdi, names.cdi_problem), *cdi.names_of(plan, devices)),
            files=files,
        )
    except RenderError as error:
        raise RefusedError(Refusal.INTERNAL, f"{plan.name}: {error}") from None


class Offer(NamedTuple):
    """One offered id: the physical device behind it and that device's NUMA nodes."""

    id: str
    device: str
    numa_nodes: tuple[int, ...] = ()


_Key = tuple[tuple[str, int], ...]
_Turn = tuple[int, int, _Key, Offer]
"""How much of a device is taken, its weight, the place of its next id in the natural order, and that."""


def offers(inventory: Inventory, ids: Sequence[str]) -> tuple[Offer, ...]:
    """What is behind offered ids; an id that is not advertised stands for itself."""
    made: list[Offer] = []
    for offered in dict.fromkeys(ids):
        known = inventory.find(offered)
        if known is None:
            made.append(Offer(offered, offered))
        else:
            made.append(Offer(offered, known.device.id, known.device.numa_nodes))
    return tuple(made)


def prefer(
    how: Prefer, available: Sequence[Offer], must_include: Sequence[str], size: int, total: Mapping[str, int]
) -> tuple[str, ...]:
    """`size` of the available ids, all of `must_include` among them (kubelet: else it ignores the answer).

    `total`: how many ids each physical device is advertised under; what of them is not available is in
    use. Replicas are spread over physical devices first; then

    packed  devices that are in use already, to keep others whole
    spread  devices that are least in use
    numa    the fewest NUMA nodes (this before spreading replicas), then as spread
    none    the natural order of ids

    Returns fewer than `size` ids only where fewer are available, more only where more are included.
    """
    by_id = {offer.id: offer for offer in available}
    chosen = [by_id.pop(i) for i in dict.fromkeys(must_include) if i in by_id]
    taken = Counter([offer.device for offer in chosen])
    rest: defaultdict[str, list[Offer]] = defaultdict(list)
    for offer in by_id.values():
        rest[offer.device].append(offer)
    used = {device: total.get(device, 0) - len(offers) - taken[device] for device, offers in rest.items()}
    weight = _weights(how, used)
    while len(chosen) < size and rest:
        devices = _nearest(chosen, rest, size - len(chosen)) if how == "numa" else tuple(rest)
        chosen += _spread(devices, rest, taken, weight, size - len(chosen))
    return tuple(offer.id for offer in chosen)


def _weights(how: Prefer, used: Mapping[str, int]) -> Callable[[str], int]:
    """What to take the least of, by what others use of a device; ties go by the natural order of ids."""
    match how:
        case "packed":
            return lambda device: -used[device]
        case "spread" | "numa":
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
    """Up to `missing` offers of `devices`, taken out of `rest`: of each one before of any a second."""

    def turn(device: str, offer: Offer) -> _Turn:
        return taken[device], weight(device), natural(offer.id), offer

    # No other can have its turn: each of these has an earlier one, and there are as many as are missing.
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


def _by_id(offer: Offer) -> _Key:
    return natural(offer.id)


def _nearest(chosen: Sequence[Offer], rest: Mapping[str, list[Offer]], missing: int) -> tuple[str, ...]:
    """The devices on nodes that are in the choice already; if there are none, those of the best node.

    A node that holds all that is missing comes before one that does not; of those the one with the
    fewest offers to spare, so that larger nodes stay whole; of the others the one with the most.
    Devices that sit on no node come last.
    """
    places: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for device, offers in rest.items():
        places[offers[0].numa_nodes].append(device)
    present = frozenset(node for offer in chosen for node in offer.numa_nodes)
    if not any(present.intersection(nodes) for nodes in places):
        room: Counter[int] = Counter()
        for nodes, devices in places.items():
            room.update(dict.fromkeys(nodes, sum(len(rest[device]) for device in devices)))
        if not room:
            return tuple(rest)
        best = min(room, key=lambda node: (room[node] < missing, abs(room[node] - missing), node))
        present = frozenset((best,))
    return tuple(
        device for nodes, devices in places.items() if present.intersection(nodes) for device in devices
    )
