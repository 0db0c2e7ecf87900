"""What the application is given, and the present moment made of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2s
from secrets import token_hex
from typing import Protocol

from exporter.history.query import HistoryQuery, HistoryResult
from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.state import StateStore
from exporter.views.documents import Moment
from runtime.exposition import Format


class HistorySource(Protocol):
    """Where the past comes from."""

    async def find(self, question: HistoryQuery) -> HistoryResult:
        """The holdings that are asked for. Raises exporter.history.recorder.Unavailable."""
        ...


class MetricsSource(Protocol):
    """Where the exposition comes from."""

    async def document(self, form: Format, *, compress: bool) -> bytes:
        """The exposition at this moment, as `form`, gzipped if `compress` says so."""
        ...


@dataclass(frozen=True, slots=True)
class Site:
    """Everything the pages and the API are made of. Times are in seconds; `clock` tells unix time.

    `triggers` says in words what makes the exporter ask the kubelet at present. `reader` reads device
    ids. `cpu_nodes` maps CPUs to NUMA nodes. `run` names this run of the process, for generations begin
    anew with each.
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
        """The states's state as it is seen now."""
        return Moment(self.states.state, self.node, self.clock(), self.stale_after)

    def tag(self, moment: Moment) -> str:
        """Names all that an answer depends on besides its address and the time that passes.

        Two moments of one tag show the same mapping, with the same freshness and the same failure.
        """
        state = moment.state
        parts = (
            *(self.run, state.generation, moment.freshness.value, state.failure),
            *(state.api_version, state.notes, self.triggers()),
        )
        digest = blake2s(repr(parts).encode(errors="surrogatepass"), digest_size=6).hexdigest()
        return f"{state.generation}-{digest}"
