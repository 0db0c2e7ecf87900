"""The order of tests for pytest-xdist: each worker starts with long tests."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def ordered_for(first: Iterable[Sequence[T]], then: Iterable[Sequence[T]], workers: int) -> list[T]:
    """All items, ordered so that each of `workers` equal parts of the list starts with some of `first`.

    With `--dist worksteal` each worker of xdist starts with such a part.
    """
    hands: list[list[T]] = [[] for _ in range(workers)]
    for group in first:
        min(hands, key=len).extend(group)
    rest = [item for group in then for item in group]
    left = sum(map(len, hands)) + len(rest)
    order: list[T] = []
    for number, hand in enumerate(hands):
        share = max(len(hand), left // (workers - number))
        taken = share - len(hand)
        order += [*hand, *rest[:taken]]
        rest = rest[taken:]
        left -= share
    return [*order, *rest]
