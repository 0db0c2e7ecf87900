"""/metrics: the mapping, rendered once for each state and format, and the exporter's own metrics."""

import asyncio
import itertools
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from exporter.mapping.holdings import HoldingChanges
from exporter.mapping.model import DeviceKey
from exporter.mapping.state import UNSETTLED, Freshness, State, StateStore
from exporter.metrics.devices import DeviceLines, SeriesLimit
from exporter.metrics.families import of_snapshot, of_stale
from exporter.refresh.protocols import PodSource, Trigger
from kubelet.podresources import METHODS, UNDECODABLE
from runtime.exposition import EMPTY, LARGE, Body, Collector, Format, HistogramCounts, assemble, render

_HOLD_BUCKETS: Final = (10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 30 * 86400)
_REFRESH_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

MAX_RESOURCES: Final = 1000
"""Resources with counters: many times what a node has, because names may change for as long as it runs."""
_FORESEEN: Final = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", UNDECODABLE)


@dataclass(slots=True)
class _ResourceCounts:
    """Counts of one resource; `held`: how long released devices were held."""

    number: int
    """In the order in which resources appeared: the order of their series."""
    allocations: int = 0
    releases: int = 0
    held: HistogramCounts = field(default_factory=lambda: HistogramCounts(_HOLD_BUCKETS))


class Counters:
    """Counts of the exporter, and the collector of their families. Implements the refresh loop's Observer."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._resources: dict[str, _ResourceCounts] = {}
        """By resource; the latest are at the end."""
        self._numbers = itertools.count()
        # Prometheus sees no increase from "no series" to 1: foreseeable series begin at 0.
        self._refreshes = Counter({trigger.value: 0 for trigger in Trigger})
        self._errors = Counter({(method, code): 0 for method in METHODS for code in _FORESEEN})
        self._errors[METHODS[0], UNSETTLED] = 0
        self._duration = HistogramCounts(_REFRESH_BUCKETS)
        self._changes = 0

    @property
    def changes(self) -> int:
        """Grows with every count."""
        return self._changes

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        """Count one refresh for each of its triggers."""
        self._changes += 1
        self._refreshes.update(trigger.value for trigger in triggers)
        self._duration.observe(seconds)

    def reread(self) -> None:
        """Count nothing: the kubelet was not called."""

    def failed(self, method: str, code: str) -> None:
        """Count a failed call."""
        self._changes += 1
        self._errors[method, code] += 1

    def changed(self, state: State, changes: HoldingChanges) -> None:
        """Count allocations and releases. Every known resource has counters, from 0 on. Claimed devices have
        no resource and are not counted.
        """
        self._changes += 1
        present = state.snapshot.resources()
        for resource in present:
            self._counts(resource)
        for holding in changes.change.began:
            if isinstance(holding.key, DeviceKey):
                self._counts(holding.key.resource).allocations += 1
        for release in changes.released:
            if isinstance(release.holding.key, DeviceKey):
                counts = self._counts(release.holding.key.resource)
                counts.releases += 1
                counts.held.observe(release.seconds)
        excess = max(0, len(self._resources) - MAX_RESOURCES)
        for resource in [name for name in self._resources if name not in present][:excess]:
            del self._resources[resource]

    def _counts(self, resource: str) -> _ResourceCounts:
        counts = self._resources.pop(resource, None) or _ResourceCounts(next(self._numbers))
        self._resources[resource] = counts
        return counts

    def collect(self) -> Iterable[Metric]:
        """The families at this moment."""
        by_resource = ("node", "resource")
        allocations = CounterMetricFamily(
            "devicelens_allocations",
            "Allocations seen since the exporter started, one for each device and holder. [STABLE]",
            labels=by_resource,
        )
        releases = CounterMetricFamily(
            "devicelens_releases",
            "Releases seen since the exporter started, one for each device and holder. [STABLE]",
            labels=by_resource,
        )
        held = HistogramMetricFamily(
            "devicelens_allocation_hold_seconds",
            "How long released devices were held, from observed start to observed end, in seconds. [ALPHA]",
            labels=by_resource,
        )
        for resource, counts in sorted(self._resources.items(), key=lambda item: item[1].number):
            allocations.add_metric((self._node, resource), counts.allocations)
            releases.add_metric((self._node, resource), counts.releases)
            counts.held.add_to(held, (self._node, resource))
        yield from (allocations, releases, held)
        refreshes = CounterMetricFamily(
            "devicelens_refreshes",
            "Refreshes by what asked for them; one that several asked for counts for each. [ALPHA]",
            labels=("trigger",),
        )
        for trigger, count in self._refreshes.items():
            refreshes.add_metric((trigger,), count)
        errors = CounterMetricFamily(
            "devicelens_refresh_errors",
            "Refreshes that failed, by the kubelet's method and the gRPC code; UNDECODABLE: the answer does "
            "not decode; UNSETTLED: the first List was rejected after a kubelet restart. [ALPHA]",
            labels=("method", "code"),
        )
        for labels, count in self._errors.items():
            errors.add_metric(labels, count)
        duration = HistogramMetricFamily(
            "devicelens_refresh_duration_seconds",
            "How long a refresh took, from asking the kubelet to the published snapshot, in seconds. [ALPHA]",
        )
        self._duration.add_to(duration)
        yield from (refreshes, errors, duration)


class _ScrapeFamilies:
    """A collector: the families that depend on the moment of the scrape."""

    def __init__(self, metrics: "Metrics", version: str, pods: PodSource | None) -> None:
        self._metrics = metrics
        self._version = version
        self._pods = pods

    def collect(self) -> Iterable[Metric]:
        state = self._metrics.rendered
        yield GaugeMetricFamily(
            "devicelens_up",
            "Whether the last refresh succeeded: the mapping is the kubelet's last answer. [STABLE]",
            value=int(self._metrics.fresh),
        )
        if state.taken_at is not None:
            yield GaugeMetricFamily(
                "devicelens_last_refresh_success_timestamp_seconds",
                "When the last good answer was asked for, in unix time. [STABLE]",
                value=state.taken_at,
            )
        source = GaugeMetricFamily(
            "devicelens_pods_source_up",
            "Whether the source of pods' uids, labels and owners is connected; none with "
            "--pods.source=none. [ALPHA]",
            labels=("source",),
        )
        if self._pods is not None:
            source.add_metric((self._pods.name,), int(self._pods.view.connected))
        yield source
        plugins = GaugeMetricFamily(
            "devicelens_plugin_url_up",
            "Whether the plugin of a --plugin.url reports its devices at present. [ALPHA]",
            labels=("url",),
        )
        reports = state.advertised.reports
        for url, answers in {report.source: report.answers for report in reports}.items():
            plugins.add_metric((url,), int(answers))
        yield plugins
        build = GaugeMetricFamily(
            "devicelens_build_info",
            "The exporter's version, its Python's, and the PodResources API it speaks (1). [STABLE]",
            labels=("version", "python_version", "api_version"),
        )
        build.add_metric((self._version, platform.python_version(), state.api_version), 1)
        yield build


class _BodyKey(NamedTuple):
    """What a rendered body depends on."""

    generation: int
    stale: bool


class Metrics:
    """The whole exposition. A scrape never calls the kubelet."""

    def __init__(
        self,
        states: StateStore,
        *,
        node: str,
        version: str,
        stale_after: float,
        clock: Callable[[], float],
        limit: SeriesLimit | None = None,
        pods: PodSource | None = None,
    ) -> None:
        """`stale_after` in seconds; `clock` returns unix time as the states have it; no `limit` of series
        without it.
        """
        self._states = states
        self.rendered = states.state
        """The state of the document that is being rendered."""
        self._node = node
        self._stale_after = stale_after
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self.counters = Counters(node)
        self._registry.register(self.counters)
        self._registry.register(_ScrapeFamilies(self, version, pods))
        self._pods = pods
        self._limit = limit or SeriesLimit(sys.maxsize)
        self._devices = DeviceLines(node)
        self._bodies: dict[Format, tuple[_BodyKey, Body]] = {}
        self._documents: dict[tuple[Format, bool], tuple[tuple[object, ...], bytes]] = {}
        self._conditions: list[Callable[[], object] | None] = []
        self._locks: dict[Format, asyncio.Lock] = {form: asyncio.Lock() for form in Format}
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="render")

    @property
    def fresh(self) -> bool:
        """Whether the rendered state is fresh."""
        return self.rendered.freshness(self._clock(), self._stale_after) is Freshness.FRESH

    def register(self, collector: Collector, condition: Callable[[], object] | None = None) -> None:
        """Add the families of another part of the process. `condition` returns everything that they depend
        on; without it they are rendered for each scrape.
        """
        self._registry.register(collector)
        self._conditions.append(condition)

    async def document(self, form: Format, *, compress: bool) -> bytes:
        """The exposition as `form`, gzipped if `compress`: the same bytes object while nothing changes."""
        body_key, body, self.rendered = await self._body(form)
        state, pods = self.rendered, self._pods
        key = (
            *(body_key, self.counters.changes, state.generation, state.taken_at, state.api_version),
            *(self.fresh, pods is not None and pods.view.connected),
            *(condition() for condition in self._conditions if condition is not None),
        )
        kept = self._documents.get((form, compress))
        if kept is not None and kept[0] == key:
            return kept[1]
        document = assemble(body, self._registry, form, compress=compress)
        if None not in self._conditions and len(document) <= LARGE:
            self._documents[form, compress] = (key, document)
        return document

    def close(self) -> None:
        """End the rendering thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _body(self, form: Format) -> tuple[_BodyKey | None, Body, State]:
        """The mapping's part, kept while the state and its staleness last, and the state that it shows: a
        newer one's timestamp must not be exposed with these owners.
        """
        async with self._locks[form]:
            state = self._states.state
            freshness = state.freshness(self._clock(), self._stale_after)
            if freshness is Freshness.UNKNOWN:
                return None, EMPTY, state
            key = _BodyKey(state.generation, freshness is Freshness.STALE)
            kept = self._bodies.get(form)
            if kept is not None and kept[0] == key:
                return *kept, state
            body = await asyncio.get_running_loop().run_in_executor(
                self._worker, self._render, state, key.stale, form
            )
            self._bodies[form] = (key, body)
            return key, body, state

    def _render(self, state: State, stale: bool, form: Format) -> Body:  # noqa: FBT001 -- by position, in a thread
        if stale:
            return render(of_stale(self._node), form)
        return render(of_snapshot(state, self._node, self._devices, self._limit.plan(state)), form)
