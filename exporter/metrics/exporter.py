"""What Prometheus gets: the mapping, rendered once for each snapshot, and the exporter's own metrics."""

import asyncio
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily

from exporter.mapping.holdings import HoldingChanges
from exporter.mapping.identity import PodView
from exporter.mapping.model import DeviceKey
from exporter.mapping.state import Freshness, State, StateStore
from exporter.metrics.devices import DeviceLines, SeriesLimit
from exporter.metrics.families import of_snapshot, of_stale
from exporter.refresh.pipeline import UNSETTLED
from exporter.refresh.protocols import Trigger
from kubelet.podresources import METHODS, UNDECODABLE
from runtime.exposition import EMPTY, LARGE, Body, Collector, Format, assemble, render

_HOLD_BUCKETS: Final = (10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 30 * 86400)
_REFRESH_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

MAX_SERIES: Final = 100_000
"""Series that the mapping may have, unless something else is said."""
MOST_RESOURCES: Final = 1000
"""Resources that are counted: many times what a node has, for names may come and go as long as it runs."""
_FORESEEN: Final = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", UNDECODABLE)


class Counters:
    """The exporter's own counters, written by the refresh loop. Implements its Observer."""

    def __init__(self, node: str, registry: CollectorRegistry) -> None:
        self._node = node
        self._allocations = Counter(
            "devicelens_allocations_total",
            "Allocations seen since the exporter started, one for each device and holder. [STABLE]",
            ("node", "resource"),
            registry=registry,
        )
        self._releases = Counter(
            "devicelens_releases_total",
            "Releases seen since the exporter started, one for each device and holder. [STABLE]",
            ("node", "resource"),
            registry=registry,
        )
        self._changes = 0
        self._resources: dict[str, None] = {}
        self._held = Histogram(
            "devicelens_allocation_hold_seconds",
            "How long released devices were held, as far as it was seen, in seconds. [STABLE]",
            ("node", "resource"),
            buckets=_HOLD_BUCKETS,
            registry=registry,
        )
        self._refreshes = Counter(
            "devicelens_refreshes_total",
            "Refreshes by what asked for them; one that several asked for counts for each. [STABLE]",
            ("trigger",),
            registry=registry,
        )
        self._errors = Counter(
            "devicelens_refresh_errors_total",
            "Refreshes that failed, by the kubelet's method and the gRPC code; UNDECODABLE for nonsense. "
            "[STABLE]",
            ("method", "code"),
            registry=registry,
        )
        self._duration = Histogram(
            "devicelens_refresh_duration_seconds",
            "How long a refresh took, from asking the kubelet to the published snapshot, in seconds. "
            "[STABLE]",
            buckets=_REFRESH_BUCKETS,
            registry=registry,
        )
        # Prometheus sees no increase from "not there" to 1: what can be foreseen begins at 0.
        for trigger in Trigger:
            self._refreshes.labels(trigger.value)
        for method in METHODS:
            for code in _FORESEEN:
                self._errors.labels(method, code)
        self._errors.labels(METHODS[0], UNSETTLED)

    @property
    def changes(self) -> int:
        """Another number whenever anything was counted."""
        return self._changes

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """Count one refresh for each of its `triggers`."""
        self._changes += 1
        for trigger in triggers:
            self._refreshes.labels(trigger.value).inc()
        self._duration.observe(seconds)

    def reread(self) -> None:
        """Nothing is counted: nobody was asked."""

    def failed(self, method: str, code: str) -> None:
        """Count a refresh that failed."""
        self._changes += 1
        self._errors.labels(method, code).inc()

    def changed(self, state: State, step: HoldingChanges) -> None:
        """Count what a snapshot brought; every resource known has its counters, at 0 to begin with."""
        self._changes += 1
        present = state.snapshot.resources()
        for resource in present:
            self._know(resource)
        # Claimed devices belong to no resource: these families do not count them.
        for holding in step.change.began:
            if isinstance(holding.key, DeviceKey):
                self._allocations.labels(self._node, holding.key.resource).inc()
        for released in step.released:
            if not isinstance(released.holding.key, DeviceKey):
                continue
            resource = released.holding.key.resource
            self._know(resource)
            self._releases.labels(self._node, resource).inc()
            self._held.labels(self._node, resource).observe(released.seconds)
        excess = max(0, len(self._resources) - MOST_RESOURCES)
        for resource in [name for name in self._resources if name not in present][:excess]:
            del self._resources[resource]
            for counted in (self._allocations, self._releases, self._held):
                counted.remove(self._node, resource)

    def _know(self, resource: str) -> None:
        """Have counters for it; those that were seen last are at the end."""
        if resource not in self._resources:
            self._allocations.labels(self._node, resource)
            self._releases.labels(self._node, resource)
            self._held.labels(self._node, resource)
        self._resources.pop(resource, None)
        self._resources[resource] = None


class PodsSource(Protocol):
    """Where pods' identities come from."""

    @property
    def name(self) -> str:
        """As --pods.source has it."""
        ...

    @property
    def view(self) -> PodView:
        """What it has told."""
        ...


class _Now:
    """The families that depend on the moment of the scrape."""

    def __init__(
        self,
        state: Callable[[], State],
        version: str,
        fresh: Callable[[], bool],
        pods_source: PodsSource | None,
    ) -> None:
        """`state`: what the scrape tells of."""
        self._state = state
        self._version = version
        self._fresh = fresh
        self._pods_source = pods_source

    def collect(self) -> Iterable[Metric]:
        state = self._state()
        yield GaugeMetricFamily(
            "devicelens_up",
            "Whether the last refresh succeeded: the mapping is what the kubelet says. [STABLE]",
            value=int(self._fresh()),
        )
        if state.taken_at is not None:
            yield GaugeMetricFamily(
                "devicelens_last_refresh_success_timestamp_seconds",
                "When the last good answer was asked for, in unix time. [STABLE]",
                value=state.taken_at,
            )
        source = GaugeMetricFamily(
            "devicelens_pods_source_up",
            "Whether the source of pods' uids, labels and owners tells at present; none with "
            "--pods.source=none. [STABLE]",
            labels=("source",),
        )
        if self._pods_source is not None:
            source.add_metric((self._pods_source.name,), int(self._pods_source.view.connected))
        yield source
        plugins = GaugeMetricFamily(
            "devicelens_plugin_url_up",
            "Whether the plugin of a --plugin.url tells of its devices at present. [STABLE]",
            labels=("url",),
        )
        for url, answers in {report.source: report.answers for report in state.advertised.reports}.items():
            plugins.add_metric((url,), int(answers))
        yield plugins
        build = GaugeMetricFamily(
            "devicelens_build_info",
            "The exporter's version, its Python's, and the PodResources API it speaks (1). [STABLE]",
            labels=("version", "python_version", "api_version"),
        )
        build.add_metric((self._version, platform.python_version(), state.api_version), 1)
        yield build


class _Of(NamedTuple):
    """What a body was rendered of."""

    generation: int
    stale: bool


class Metrics:
    """The whole exposition. A scrape never asks the kubelet."""

    def __init__(
        self,
        states: StateStore,
        *,
        node: str,
        version: str,
        stale_after: float,
        clock: Callable[[], float],
        pods_source: PodsSource | None = None,
        limit: SeriesLimit | None = None,
    ) -> None:
        """`stale_after` in seconds; `clock` tells unix time as the states's states have it. `limit`: how many
        series the mapping may have.
        """
        self._board = states
        self._told = states.state
        self._node = node
        self._stale_after = stale_after
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self.counters = Counters(node, self._registry)
        self._registry.register(
            _Now(lambda: self._told, version, lambda: self._freshness() is Freshness.FRESH, pods_source)
        )
        self._pods_source = pods_source
        self._limit = limit or SeriesLimit(MAX_SERIES)
        self._devices = DeviceLines(node)
        self._bodies: dict[Format, tuple[_Of, Body]] = {}
        self._documents: dict[tuple[Format, bool], tuple[tuple[object, ...], bytes]] = {}
        self._further: list[Callable[[], object] | None] = []
        self._locks: dict[Format, asyncio.Lock] = {form: asyncio.Lock() for form in Format}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")

    def register(self, collector: Collector, condition: Callable[[], object] | None = None) -> None:
        """Have the families of another part of the process told as well. `condition` is all that they depend
        on, to be compared; without it they are rendered anew for each scrape.
        """
        self._registry.register(collector)
        self._further.append(condition)

    async def document(self, form: Format, *, compress: bool) -> bytes:
        """The exposition at this moment, as `form`, gzipped if `compress` says so.

        The very same bytes for as long as nothing changes: that is what most scrapes find.
        """
        of, body, self._told = await self._body(form)
        present = (of, *self._own())
        kept = self._documents.get((form, compress))
        if kept is not None and kept[0] == present:
            return kept[1]
        document = assemble(body, self._registry, form, compress=compress)
        if None not in self._further and len(document) <= LARGE:
            self._documents[form, compress] = (present, document)
        return document

    def close(self) -> None:
        """End the thread that renders."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _freshness(self) -> Freshness:
        return self._told.freshness(self._clock(), self._stale_after)

    def _own(self) -> tuple[object, ...]:
        """All that the exporter's own families depend on."""
        state, source = self._told, self._pods_source
        return (
            *(self.counters.changes, state.generation, state.taken_at, state.api_version),
            self._freshness() is Freshness.FRESH,
            source is not None and source.view.connected,
            *(condition() for condition in self._further if condition is not None),
        )

    async def _body(self, form: Format) -> tuple[_Of | None, Body, State]:
        """The mapping's part: kept for as long as the snapshot and its freshness last. And the state that it
        tells: by now there may be another, whose time must not be told with these owners.
        """
        async with self._locks[form]:
            state = self._board.state
            freshness = state.freshness(self._clock(), self._stale_after)
            if freshness is Freshness.UNKNOWN:
                return None, EMPTY, state
            of = _Of(state.generation, freshness is Freshness.STALE)
            kept = self._bodies.get(form)
            if kept is not None and kept[0] == of:
                return *kept, state
            body = await asyncio.get_running_loop().run_in_executor(
                self._worker, self._render, state, of.stale, form
            )
            self._bodies[form] = (of, body)
            return of, body, state

    def _render(self, state: State, stale: bool, form: Format) -> Body:  # noqa: FBT001 -- by position, in a thread
        if stale:
            return render(of_stale(self._node), form)
        return render(of_snapshot(state, self._node, self._devices, self._limit.plan(state)), form)
