"""What history remembers of the present: since when something that is held now was held before a restart."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from exporter.core.diff import Holding
from exporter.core.history import Certainty, HoldingKey, Row, key_of

_VAGUE: Final = frozenset({Certainty.HELD_ALREADY, Certainty.WHILE_DOWN})


class Memory(NamedTuple):
    """Since when (unix), whether that is when it was first seen, and the pod's uid then, "" if unknown."""

    at: float
    exact: bool
    uid: str


class Recollection:
    """History's open rows, found by holding. Each is of use once: what begins again is another holding."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._found: dict[HoldingKey, list[Memory]] = {}
        for row in rows:
            if row.start.not_after is None:
                continue
            memory = Memory(row.start.not_after, row.start.certainty not in _VAGUE, row.facts.uid)
            self._found.setdefault(row.key, []).append(memory)

    def take(self, holding: Holding) -> Memory | None:
        """What is remembered of a holding; a uid that is unknown on one side contradicts nothing."""
        if not self._found:
            return None
        found = self._found.get(key_of(holding.key, holding.holder), [])
        uid = holding.holder.pod_uid
        same = next((memory for memory in found if memory.uid == uid), None)
        if same is None and len(found) == 1 and not (uid and found[0].uid):
            same = found[0]
        if same is not None:
            found.remove(same)
        return same
