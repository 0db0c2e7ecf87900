"""Everything that the HTTP application depends on, and the freshness of the mapping in words."""

from collections.abc import Callable, Mapping
from hashlib import blake2s
from secrets import token_hex
from typing import Protocol

from msgspec import Struct, field

from exporter.history.query import HistoryQuery, HistoryResult
from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.state import Failure, Freshness, Moment, State, StateStore
from exporter.refresh.protocols import Preparer
from exporter.views.wording import AGEING, clock_time, counted, lasting, reason, rfc3339, spelled
from runtime.exposition import Format


class HistorySource(Protocol):
    """Answers history queries."""

    async def find(self, question: HistoryQuery, /) -> HistoryResult:
        """The holdings that match. Raises exporter.history.recorder.HistoryUnavailable."""
        ...


class MetricsSource(Protocol):
    """Renders the metrics."""

    async def document(self, form: Format, *, compress: bool) -> tuple[bytes, ...]:
        """The current exposition in the format `form`, gzipped if `compress`, in pieces."""
        ...


class _LastTag:
    """The last tag and what it was made of: it stays for thousands of requests."""

    def __init__(self) -> None:
        self._parts: tuple[str, State, Freshness, tuple[str, ...]] | None = None
        self._tag = ""

    def of(self, run: str, moment: Moment, triggers: tuple[str, ...]) -> str:
        """The tag of `moment`."""
        state, freshness = moment.state, moment.freshness
        last = self._parts
        if last is None or last[1] is not state or last != (run, state, freshness, triggers):
            parts = (
                *(run, state.generation, freshness.value, state.failure),
                *(state.api_version, state.notes, triggers),
            )
            digest = blake2s(repr(parts).encode(errors="surrogatepass"), digest_size=6).hexdigest()
            self._parts, self._tag = (run, state, freshness, triggers), f"{state.generation}-{digest}"
        return self._tag


class Site(Struct, frozen=True):
    """The dependencies of the pages and the API. Times are in seconds; `clock` returns unix time.

    `triggers` returns what makes the exporter refresh, in words. `reader` reads device ids. `cpu_nodes` maps
    CPUs to NUMA nodes. `run` identifies this run of the process, because generations restart with each.
    `preparers` are called before a state is published: the API adds one.
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
    preparers: list[Preparer] = field(default_factory=list[Preparer])
    _last_tag: _LastTag = field(default_factory=_LastTag)

    def moment(self) -> Moment:
        """The current state, now."""
        return Moment(self.states.state, self.node, self.clock(), self.stale_after)

    def tag(self, moment: Moment) -> str:
        """The ETag of answers about `moment`: equal tags mean equal mapping, freshness and failure."""
        return self._last_tag.of(self.run, moment, self.triggers())


class Standing(Struct, frozen=True):
    """The mapping's freshness in words. `headline` is steady while nothing changes; ages are in `detail` and
    `error` ("" without a failure, or an unconfirmed pod).
    """

    freshness: Freshness
    headline: str
    detail: str
    error: str = ""

    @property
    def line(self) -> str:
        """Everything in one line."""
        return "; ".join(part for part in (self.headline, self.detail, self.error) if part)


def judge(state: State, now: float, stale_after: float) -> Standing:
    """The freshness of `state` at unix time `now`; `stale_after` in seconds."""
    freshness = state.freshness(now, stale_after)
    error = "" if state.failure is None else failing(state.failure, now)
    if state.taken_at is None:
        return Standing(freshness, "no mapping yet", "the kubelet has not answered", error)
    age = lasting(now - state.taken_at)
    taken = clock_time(state.taken_at, now)
    if freshness.value == "fresh":
        missing = len(state.snapshot.unconfirmed)
        unconfirmed = (
            f"{counted(missing, 'pod')} not confirmed since the kubelet restarted" if missing else ""
        )
        return Standing(freshness, "the mapping is fresh", f"the kubelet answered {age} ago", unconfirmed)
    if freshness.value == "ageing":
        return Standing(
            freshness,
            AGEING,
            f"this is the mapping of {taken} UTC, {age} old",
            error,
        )
    return Standing(
        freshness,
        "the mapping is stale, do not trust it",
        f"it is of {taken} UTC, {age} old, and more than {lasting(stale_after)} is too old",
        error,
    )


def failing(failure: Failure, now: float) -> str:
    """`List has failed since 2026-11-20T22:41:03.250Z (12 s): UNAVAILABLE: …`"""
    since = f"{rfc3339(failure.since)} ({lasting(now - failure.since)})"
    return f"{spelled(failure.method)} has failed since {since}: {reason(failure.code, failure.message)}"
