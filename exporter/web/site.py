"""Everything that the HTTP application depends on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2s
from secrets import token_hex
from typing import Protocol

from exporter.history.query import HistoryQuery, HistoryResult
from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.state import Moment, StateStore
from runtime.exposition import Format


class HistorySource(Protocol):
    """Answers history queries."""

    async def find(self, question: HistoryQuery, /) -> HistoryResult:
        """The holdings that match. Raises exporter.history.recorder.HistoryUnavailable."""
        ...


class MetricsSource(Protocol):
    """Renders the metrics."""

    async def document(self, form: Format, *, compress: bool) -> bytes:
        """The current exposition in the format `form`, gzipped if `compress`."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """The dependencies of the pages and the API. Times are in seconds; `clock` returns unix time.

    `triggers` returns what makes the exporter refresh, in words. `reader` reads device ids. `cpu_nodes` maps
    CPUs to NUMA nodes. `run` identifies this run of the process, because generations restart with each.
    """

    states: StateStore
    node: str
    stale_after: float
    poll_interval: float
    clock: Callable[[], float]
    metrics: MetricsSource
    triggers: Callable[[], tuple[str, ...]]
    version: str
    history: HistorySource | None = None
    reader: IdReader = read_id
    cpu_nodes: Mapping[int, int] = field(default_factory=dict[int, int])
    run: str = field(default_factory=lambda: token_hex(4))

    def moment(self) -> Moment:
        """The current state, now."""
        return Moment(self.states.state, self.node, self.clock(), self.stale_after)

    def tag(self, moment: Moment) -> str:
        """The ETag of answers about `moment`: equal tags mean equal mapping, freshness and failure."""
        state = moment.state
        parts = (
            *(self.run, state.generation, moment.freshness.value, state.failure),
            *(state.api_version, state.notes, self.triggers()),
        )
        digest = blake2s(repr(parts).encode(errors="surrogatepass"), digest_size=6).hexdigest()
        return f"{state.generation}-{digest}"
