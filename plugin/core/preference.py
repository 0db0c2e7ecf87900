"""The answer to GetPreferredAllocation: which of the offered devices a container should get."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from plugin.core.config import Prefer
from plugin.core.device import natural
from plugin.core.inventory import Inventory


@dataclass(frozen=True, slots=True)
class Offer:
    """One offered id: the physical device behind it and that device's NUMA nodes."""

    id: str
    device: str
    numa_nodes: tuple[int, ...] = ()


def offers(inventory: Inventory, ids: Sequence[str]) -> tuple[Offer, ...]:
    """What is behind offered ids; an id that is not advertised stands for itself."""
    made: list[Offer] = []
    for offered in dict.fromkeys(ids):
        known = inventory.find(offered)
        device = known.device if known is not None else None
        made.append(Offer(offered, device.id if device else offered, device.numa_nodes if device else ()))
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
    included = {offer.id for offer in chosen}
    rest = sorted((o for o in available if o.id not in included), key=lambda o: natural(o.id))
    free = Counter(offer.device for offer in available)
    state = _Choice(how, Counter({device: total.get(device, 0) - free[device] for device in free}))
    state.taken.update(offer.device for offer in chosen)
    while len(chosen) < size and rest:
        best = min(rest, key=state.weigher(chosen, rest, size - len(chosen)))
        rest.remove(best)
        chosen.append(best)
        state.taken[best.device] += 1
    return tuple(offer.id for offer in chosen)


@dataclass(frozen=True, slots=True)
class _Choice:
    """How to choose, how many ids of each device are `used` by others, and `taken` by this choice."""

    how: Prefer
    used: Counter[str]
    taken: Counter[str] = field(default_factory=Counter[str])

    def weigher(
        self, chosen: Sequence[Offer], rest: Sequence[Offer], missing: int
    ) -> Callable[[Offer], tuple[int, ...]]:
        """What to take the least of; ties go by the order of `rest`."""
        used, taken = self.used, self.taken
        match self.how:
            case "packed":
                return lambda o: (taken[o.device], -used[o.device])
            case "spread":
                return lambda o: (taken[o.device], used[o.device])
            case "numa":
                rank = _numa_rank(chosen, rest, missing)
                return lambda o: (rank(o), taken[o.device], used[o.device])
            case "none":
                return lambda o: (taken[o.device],)


def _numa_rank(chosen: Sequence[Offer], rest: Sequence[Offer], missing: int) -> Callable[[Offer], int]:
    """0 for devices of a node that is in the choice already, then nodes by how well they fit.

    A node that holds all that is missing comes before one that does not; of those the one with the
    fewest devices to spare, so that larger nodes stay whole; of the others the one with the most.
    """
    present = {node for offer in chosen for node in offer.numa_nodes}
    room: defaultdict[int, int] = defaultdict(int)
    for offer in rest:
        for node in offer.numa_nodes:
            room[node] += 1
    fitting = sorted((n for n in room if room[n] >= missing), key=lambda n: (room[n], n))
    others = sorted((n for n in room if room[n] < missing), key=lambda n: (-room[n], n))
    order = {node: place + 1 for place, node in enumerate([*fitting, *others])}
    last = len(order) + 1

    def rank(offer: Offer) -> int:
        if present.intersection(offer.numa_nodes):
            return 0
        return min((order[node] for node in offer.numa_nodes), default=last)

    return rank
