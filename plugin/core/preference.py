"""The answer to GetPreferredAllocation: which of the offered devices a container should get."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from plugin.core.device import natural
from plugin.core.inventory import Inventory
from plugin.core.plan import Prefer


class Offer(NamedTuple):
    """One offered id: the physical device behind it and that device's NUMA nodes."""

    id: str
    device: str
    numa_nodes: tuple[int, ...] = ()


_Ranked = tuple[int, Offer]
"""An offer with its place in the natural order of ids."""


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
    chosen = [by_id[i] for i in dict.fromkeys(must_include) if i in by_id]
    taken = Counter(offer.device for offer in chosen)
    included = {offer.id for offer in chosen}
    rest: defaultdict[str, deque[_Ranked]] = defaultdict(deque)
    for rank, offered in enumerate(sorted(by_id, key=natural)):
        if offered not in included:
            offer = by_id[offered]
            rest[offer.device].append((rank, offer))
    free = Counter([offer.device for offer in by_id.values()])
    weight = _weights(how, {device: total.get(device, 0) - free[device] for device in free})
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
    rest: dict[str, deque[_Ranked]],
    taken: Counter[str],
    weight: Callable[[str], int],
    missing: int,
) -> list[Offer]:
    """Up to `missing` offers of `devices`, taken out of `rest`: of each one before of any a second."""
    heap = [(taken[d], weight(d), rest[d][0][0], d) for d in devices]
    heapify(heap)
    chosen: list[Offer] = []
    while heap and len(chosen) < missing:
        _, own, _, device = heappop(heap)
        chosen.append(rest[device].popleft()[1])
        taken[device] += 1
        if rest[device]:
            heappush(heap, (taken[device], own, rest[device][0][0], device))
        else:
            del rest[device]
    return chosen


def _nearest(chosen: Sequence[Offer], rest: Mapping[str, deque[_Ranked]], missing: int) -> tuple[str, ...]:
    """The devices on nodes that are in the choice already; if there are none, those of the best node.

    A node that holds all that is missing comes before one that does not; of those the one with the
    fewest offers to spare, so that larger nodes stay whole; of the others the one with the most.
    Devices that sit on no node come last.
    """
    nodes = {device: frozenset(offers[0][1].numa_nodes) for device, offers in rest.items()}
    present = frozenset(node for offer in chosen for node in offer.numa_nodes)
    near = tuple(device for device in rest if nodes[device] & present)
    if near:
        return near
    room: Counter[int] = Counter()
    for device, offers in rest.items():
        room.update(dict.fromkeys(nodes[device], len(offers)))
    if not room:
        return tuple(rest)
    best = min(room, key=lambda node: (room[node] < missing, abs(room[node] - missing), node))
    return tuple(device for device in rest if best in nodes[device])
