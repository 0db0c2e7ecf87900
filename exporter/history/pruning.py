"""Keeping a store within its limits, in small steps."""

from collections.abc import Iterator
from typing import Final

from exporter.history.store import Cut, Store

MEMORY_BYTES: Final = 8 << 20
"""What history takes at most where it is kept in memory: some ten thousand holdings."""

STEPS: Final = 4
"""Steps that are made before anybody else has a turn."""

_BESIDE: Final = 2 << 20
"""Bytes of the limit that are left for what lies beside the file: the write-ahead log."""


def prune(store: Store, size: int, before: float | None) -> Iterator[Cut]:
    """Delete some of what goes beyond `size` bytes, or ended before unix time `before` (None: not by age);
    each step as it is made.
    """
    limit = min(size, MEMORY_BYTES) if store.path is None else size - _BESIDE
    cut: Cut | None = None
    for _ in range(STEPS):
        step: Cut | None = None
        if store.size() > limit:
            step = store.shrink()
        elif before is not None:
            step = store.expire(before)
        if step is None:
            break
        cut = step
        yield step
    if cut is not None:
        store.give_back()
