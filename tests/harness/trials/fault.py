"""A fault, declared: what is done, how often, and what must hold."""

import os
from dataclasses import dataclass
from typing import Final

FULL: Final = os.environ.get("DEVICELENS_FAULTS") == "full"
"""Whether every fault is caused many times (`make faults`), or a few times."""

SOURCE: Final = "none" if FULL else "pods-api"
"""--pods.source, where nothing else is said. Without one that knows pods the exporter doubts a kubelet that
has come back without a pod for ten seconds: as it is on most nodes, and too long for `make test`.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table. `short` and `full`: how often it is done in `make test` and in `make faults`.

    `holds` is what must hold besides what must always hold: no owner is reported that was none, none that the
    mapping should name is missing, and nothing leaks. `memory`: MiB by which a process may end larger than
    it was after the first round: what Python and glibc keep of a large answer or of many connections.
    `withdraws`: the mapping may become stale, and is then withdrawn.
    """

    name: str
    group: str
    what: str
    holds: str
    short: int = 1
    full: int = 20
    memory: float = 8.0
    withdraws: bool = False

    @property
    def times(self) -> int:
        """How often it is done in this run."""
        return self.full if FULL else self.short
