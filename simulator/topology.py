"""The topology manager: which NUMA nodes a container's devices, CPUs and memory should come from.

Masks of NUMA nodes are frozensets. Each provider (devices of one resource, CPUs, memory) hints at
the masks that could serve a request; the policy merges one hint of each into the container's affinity.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product
from typing import Final, Literal

Mask = frozenset[int]
Policy = Literal["none", "best-effort", "restricted", "single-numa-node"]
POLICIES: Final[tuple[Policy, ...]] = ("none", "best-effort", "restricted", "single-numa-node")


@dataclass(frozen=True, slots=True)
class Hint:
    """A mask that could serve; None: no preference at all. `preferred`: as narrow as the node allows."""

    mask: Mask | None
    preferred: bool


ANY: Final = (Hint(None, preferred=True),)
"""A provider that does not care."""

NONE: Final = (Hint(None, preferred=False),)
"""A provider that cannot serve the request at all."""


def masks(nodes: Sequence[int]) -> tuple[Mask, ...]:
    """Every non-empty combination of nodes, narrow ones first."""
    return tuple(frozenset(c) for size in range(1, len(nodes) + 1) for c in combinations(nodes, size))


def device_hints(
    nodes: Sequence[int],
    numa: Mapping[str, Sequence[int] | None],
    available: Iterable[str],
    reusable: Iterable[str],
    request: int,
) -> tuple[Hint, ...]:
    """What the device manager hints for one resource; `numa`: nodes of every device, None without topology.

    Init containers' devices (`reusable`) are handed on, so a mask has to contain those that have a node.
    """
    if all(where is None for where in numa.values()):
        return ANY
    free, handed_on = set(available), set(reusable)
    if len(free | handed_on) < request:
        return NONE

    def on(mask: Mask, ids: Iterable[str]) -> int:
        return sum(1 for i in ids if mask.intersection(numa.get(i) or ()))

    def serves(mask: Mask) -> bool:
        placed = {i for i in handed_on if numa.get(i) is not None}
        return on(mask, placed) == len(placed) and on(mask, placed) + on(mask, free) >= request

    return _hints(nodes, lambda mask: on(mask, numa) >= request, serves)


def counted_hints(
    nodes: Sequence[int], total: Mapping[int, int], free: Mapping[int, int], request: int
) -> tuple[Hint, ...]:
    """What the CPU or memory manager hints, by how much each node has and has left."""
    return _hints(
        nodes,
        lambda mask: sum(total.get(n, 0) for n in mask) >= request,
        lambda mask: sum(free.get(n, 0) for n in mask) >= request,
    )


def _hints(
    nodes: Sequence[int], could: Callable[[Mask], bool], can: Callable[[Mask], bool]
) -> tuple[Hint, ...]:
    every = masks(nodes)
    least = min((len(mask) for mask in every if could(mask)), default=len(nodes))
    return tuple(Hint(mask, preferred=len(mask) == least) for mask in every if can(mask)) or NONE


def affinity(policy: Policy, nodes: Sequence[int], providers: Sequence[Sequence[Hint]]) -> Hint:
    """The container's affinity. A mask of None leaves the providers free to choose."""
    if policy == "none" or not providers:
        return Hint(None, preferred=True)
    everywhere = frozenset(nodes)
    if policy == "single-numa-node":
        single = [
            [h for h in hints if h.preferred and (h.mask is None or len(h.mask) == 1)] for hints in providers
        ]
        if not all(single):
            return Hint(None, preferred=False)
        best = _best(everywhere, single)
        return Hint(None, best.preferred) if best.mask == everywhere else best
    return _best(everywhere, providers)


def admits(policy: Policy, hint: Hint) -> bool:
    """Whether the policy lets a container with this affinity in."""
    return hint.preferred or policy in {"none", "best-effort"}


def _best(everywhere: Mask, providers: Sequence[Sequence[Hint]]) -> Hint:
    # kubelet: among unpreferred merges the one nearest to what the neediest provider needs wins.
    enough = max(min(len(everywhere if h.mask is None else h.mask) for h in hints) for hints in providers)
    best: Hint | None = None
    for combination in product(*providers):
        given = [everywhere if hint.mask is None else hint.mask for hint in combination]
        merged = reduce(frozenset.intersection, given, everywhere)
        if not merged:
            continue
        candidate = Hint(merged, all(hint.preferred for hint in combination))
        if best is None or _rank(candidate, enough) < _rank(best, enough):
            best = candidate
    return best or Hint(everywhere, preferred=False)


def _rank(hint: Hint, enough: int) -> tuple[int, int, int, tuple[int, ...]]:
    mask = hint.mask or frozenset()
    size = len(mask)
    order = tuple(sorted(mask, reverse=True))
    if hint.preferred:
        return 0, 0, size, order
    return (1, 0, size, order) if size >= enough else (1, 1, -size, order)
