"""What every source answers with, whether one node's or a fleet's. Pure.

A node's mapping is in the shape of the exporter's own documents, whoever told it: what selects, shows and
follows knows no sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from msgspec import field as member

from exporter.web.api.history_schema import PastEntry
from exporter.web.api.schema import AnomalyEntry, ClaimEntry, DevicesDocument

CPU: Final = "cpu"
"""What exclusive CPUs are called where a resource is: as in a container's requests."""


class CpusEntry(Struct, frozen=True):
    """A container with CPUs that are its alone. `cpu_ids` is null where only their number is told."""

    namespace: str
    pod: str
    container: str
    pod_uid: str | None
    count: int
    cpu_ids: tuple[int, ...] | None
    numa_nodes: tuple[int, ...] = ()


class MappingDocument(DevicesDocument, frozen=True, kw_only=True):
    """One node's devices, claimed devices and exclusive CPUs."""

    claims: tuple[ClaimEntry, ...] = ()
    cpus: tuple[CpusEntry, ...] = ()


class NodeDocument(MappingDocument, frozen=True, kw_only=True):
    """A node of a fleet. `labels` tell it from others of its name (its cluster, say). `generation` is 0, for
    Prometheus does not know it.
    """

    labels: dict[str, str] = member(default_factory=dict[str, str])
    anomalies: tuple[AnomalyEntry, ...] = ()


class FleetDocument(Struct, frozen=True):
    """What Prometheus answered: as of `at`; `notes` are what must be known of it."""

    prometheus: str
    at: str
    notes: tuple[str, ...]
    nodes: tuple[NodeDocument, ...]


class FleetPastEntry(PastEntry, frozen=True, kw_only=True):
    """A holding; `labels` tell its node from others of its name."""

    labels: dict[str, str] = member(default_factory=dict[str, str])


class FleetHistoryDocument(Struct, frozen=True, kw_only=True):
    """What Prometheus knows of a time range, newest first: looked at every `step_seconds`, scraped about
    every `scrape_seconds` (null where that cannot be told). `complete` false: there are more than these.
    """

    prometheus: str
    since: str
    until: str
    step_seconds: float
    scrape_seconds: float | None
    notes: tuple[str, ...]
    holdings: tuple[FleetPastEntry, ...]
    complete: bool


NO_LABELS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Told:
    """One node's mapping; `labels` are what tells it from other nodes of its name."""

    document: MappingDocument
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    anomalies: tuple[AnomalyEntry, ...] = ()

    @property
    def place(self) -> str:
        """The node, with its labels where it has any."""
        return placed(self.document.node, self.labels)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a source told: of one node, or of a `fleet` (then `told` may be empty), as of unix time `at`
    (None: the document's own). `notes` are sentences that must be known to understand it. `origin` is where
    it comes from, in words.
    """

    told: tuple[Told, ...]
    origin: str
    fleet: bool = False
    notes: tuple[str, ...] = ()
    at: float | None = None

    @property
    def place(self) -> str:
        """Where nothing was found, in words."""
        if len(self.told) == 1:
            return self.told[0].place
        return f"any of {len(self.told)} nodes" if self.told else "any node"


def placed(node: str, labels: Mapping[str, str]) -> str:
    """`worker-3`, or `worker-3 (cluster a)`."""
    if not labels:
        return node
    return f"{node} ({', '.join(f'{name} {value}' for name, value in sorted(labels.items()))})"
