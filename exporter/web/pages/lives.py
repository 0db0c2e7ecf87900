"""The lives of a pod's name: a pod that is made anew under its name is another one. Pure.

Where a uid is known it tells pods apart. Where none is, time does as far as it can: a pod has its devices
from its admission to its end, so that when for a while nothing was held under a name, what came before and
what came after were two pods.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exporter.core.history import Row


@dataclass(frozen=True, slots=True)
class Life:
    """One pod of a name: its `uid`, "" where nothing tells it, and its holdings, the newest first. `present`:
    it is on the node now.
    """

    uid: str
    rows: tuple[Row, ...]
    present: bool = False

    @property
    def first(self) -> Row | None:
        """The holding that began first."""
        return min(self.rows, key=lambda row: (row.low, row.id), default=None)

    @property
    def last(self) -> Row | None:
        """The holding that ended last, or is held still."""
        return max(self.rows, key=lambda row: (row.high, row.id), default=None)


def lives(rows: Iterable[Row], present: Sequence[str]) -> tuple[Life, ...]:
    """The pods of one name, the newest first. `present` are the uids of those that hold anything now, ""
    where it is not known; history need not have any holding of theirs.
    """
    by_uid: dict[str, list[Row]] = {}
    unknown: list[Row] = []
    for row in rows:
        if row.facts.uid:
            by_uid.setdefault(row.facts.uid, []).append(row)
        else:
            unknown.append(row)
    found = [Life(uid, _newest_first(own), uid in present) for uid, own in by_uid.items()]
    clusters = _apart(unknown)
    found += [
        Life("", _newest_first(own), "" in present and any(row.end is None for row in own))
        for own in clusters
    ]
    here = {life.uid for life in found if life.present}
    found += [Life(uid, (), present=True) for uid in dict.fromkeys(present) if uid not in here]
    return tuple(sorted(found, key=_order, reverse=True))


def _newest_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: (row.low, row.id), reverse=True))


def _order(life: Life) -> tuple[bool, float, float]:
    first, last = life.first, life.last
    return (
        life.present,
        math.inf if first is None else first.low,
        math.inf if last is None else last.high,
    )


def _apart(rows: Iterable[Row]) -> list[list[Row]]:
    """Holdings in groups between which nothing was held."""
    found: list[list[Row]] = []
    reached = -math.inf
    for row in sorted(rows, key=lambda row: (row.low, row.id)):
        if not found or row.low > reached:
            found.append([])
        found[-1].append(row)
        reached = max(reached, row.high)
    return found
