"""Which devices a container gets: the device manager's choice, in two steps around the plugin's own.

Pure. `begin` takes what is settled already and says what to ask GetPreferredAllocation, if anything;
`finish` completes the choice with its answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from simulator.topology import Mask

Order = Callable[[Iterable[str]], Sequence[str]]
"""How a set is walked through; a real kubelet walks sets in no order at all."""


class UnavailableError(Exception):
    """Too few devices are free; says it in the kubelet's words."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One GetPreferredAllocation request."""

    available: frozenset[str]
    must_include: frozenset[str]
    size: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice under way: `taken` is settled; `pools` supply the rest, the plugin's preference first.

    Only what the plugin prefers within `eligible` counts.
    """

    required: int
    taken: frozenset[str]
    eligible: frozenset[str]
    pools: tuple[frozenset[str], ...]
    offer: Offer | None


def split(
    numa: Mapping[str, Sequence[int] | None], available: Iterable[str], mask: Mask | None
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """`available` in three: on the affinity's nodes, on other nodes, and without affinity.

    kubelet: one device with topology makes the whole resource aligned; without a mask nothing is.
    """
    free = frozenset(available)
    if mask is None or all(where is None for where in numa.values()):
        return frozenset(), frozenset(), free
    on = frozenset(i for i in free if mask.intersection(numa.get(i) or ()))
    nowhere = frozenset(i for i in free if not any(node >= 0 for node in numa.get(i) or ()))
    return on, free - on - nowhere, nowhere


def begin(
    resource: str,
    required: int,
    *,
    reusable: Iterable[str],
    available: Iterable[str],
    numa: Mapping[str, Sequence[int] | None],
    mask: Mask | None,
    order: Order,
) -> Choice:
    """Take what an init container hands on, then divide what is free by affinity.

    Raises UnavailableError when handed-on and free devices together are too few.
    """
    taken = frozenset(order(reusable)[:required])
    needed = required - len(taken)
    free = frozenset(available) - taken
    if needed == 0:
        return Choice(required, taken, frozenset(), (), None)
    if len(free) < needed:
        raise UnavailableError(
            f"requested number of devices unavailable for {resource}. "
            f"Requested: {needed}, Available: {len(free)}"
        )
    aligned, unaligned, nowhere = split(numa, free, mask)
    if needed <= len(aligned):
        offer = Offer(aligned | taken, taken, required) if needed < len(aligned) else None
        return Choice(required, taken, aligned, (aligned,), offer)
    # kubelet: asked here even where nothing is left to choose; only aligned devices that settle it alone
    # make the question needless.
    taken |= aligned
    offer = Offer(free | taken, taken, required)
    return Choice(required, taken, free - aligned, (unaligned, nowhere), offer)


def finish(choice: Choice, preferred: Iterable[str], order: Order) -> frozenset[str]:
    """The devices to allocate: what is settled, what the plugin prefers, then whatever is left."""
    taken = set(choice.taken)
    wanted = frozenset(preferred) & choice.eligible
    for pool in (wanted, *choice.pools):
        missing = choice.required - len(taken)
        taken.update(order(pool - taken)[:missing])
    return frozenset(taken)
