"""The answer to GetPreferredAllocation: which of the offered devices a container should get."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush, nsmallest
from typing import NamedTuple

from plugin.core.device import natural
from plugin.core.inventory import Inventory
from plugin.core.plan import Prefer


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
