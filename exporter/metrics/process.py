"""The exporter's own families: what it counts, how the mapping stands, and the condition of history."""

import itertools
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from msgspec import Struct, field

from exporter.history.archive import HistoryStatus
from exporter.mapping.holdings import HoldingChanges
from exporter.mapping.state import UNSETTLED, State
from exporter.refresh.protocols import DraSource, Phase, PodSource, Trigger
from kubelet.podresources import METHODS, UNDECODABLE
from runtime.blocks import CHUNK, Block
from runtime.exposition import Family, Format, HistogramCounts, ItemFamily, counter, gauge, histogram

_HOLD_BUCKETS: Final = (10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 30 * 86400)
_REFRESH_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

MAX_RESOURCES: Final = 1000
"""Resources with counters: many times what a node has, because names may change for as long as it runs."""
_FORESEEN: Final = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", UNDECODABLE)


class _ResourceCounts(Struct, frozen=True, eq=False):
    """Counts of one resource; `held`: how long released devices were held. Another object after each count.

    `number` is in the order in which resources appeared, which is that of their series.
    """

    name: str
    number: int
    allocations: int = 0
    releases: int = 0
    held: HistogramCounts = field(default_factory=lambda: HistogramCounts(_HOLD_BUCKETS))

    def after(self, allocations: int, held: Sequence[float]) -> "_ResourceCounts":
        """The counts with further allocations and releases; `held`: seconds of each release."""
        return _ResourceCounts(
            *(self.name, self.number, self.allocations + allocations, self.releases + len(held)),
            self.held.after(held),
        )


def _of_resources(node: str) -> list[ItemFamily[_ResourceCounts]]:
    """The families of resources."""
    labels = ("node", "resource")
    allocations = partial(
        counter,
        "devicelens_allocations",
        "Allocations seen since the exporter started, one for each device and holder. [STABLE]",
        labels,
    )
    releases = partial(
        counter,
        "devicelens_releases",
        "Releases seen since the exporter started, one for each device and holder. [STABLE]",
        labels,
    )
    held = partial(
        histogram,
        "devicelens_allocation_hold_seconds",
        "How long released devices were held, from observed start to observed end, in seconds. [ALPHA]",
        labels,
    )
    return [
        ItemFamily(allocations, lambda family, one: family.add((node, one.name), one.allocations)),
        ItemFamily(releases, lambda family, one: family.add((node, one.name), one.releases)),
        ItemFamily(held, lambda family, one: one.held.add_to(family, (node, one.name))),
    ]


class Counters:
    """Counts of the exporter, and their families. Implements the refresh loop's Observer."""

    def __init__(self, node: str) -> None:
        self._resources: dict[str, _ResourceCounts] = {}
        """By resource; the latest are at the end."""
        self._numbers = itertools.count()
        self._groups: list[tuple[int, list[_ResourceCounts]]] = []
        """By number, each those of a block."""
        self._of_resources = _of_resources(node)
        # Prometheus sees no increase from "no series" to 1: foreseeable series begin at 0.
        self._refreshes = Counter({trigger.value: 0 for trigger in Trigger})
        self._errors = Counter({(method, code): 0 for method in METHODS for code in _FORESEEN})
        self._errors[METHODS[0], UNSETTLED] = 0
        self._durations = {phase: HistogramCounts(_REFRESH_BUCKETS) for phase in Phase}
        self._changes = 0

    def condition(self) -> object:
        """Grows with every refresh."""
        return self._changes

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:  # noqa: ARG002 -- see `timed`
        """Count one refresh for each of its triggers."""
        self._changes += 1
        self._refreshes.update([trigger.value for trigger in triggers])

    def timed(self, seconds: Mapping[Phase, float]) -> None:
        """Count how long a refresh took, by phase."""
        self._changes += 1
        for phase, took in seconds.items():
            self._durations[phase].observe(took)

    def reread(self) -> None:
        """Count nothing: the kubelet was not called."""

    def failed(self, method: str, code: str) -> None:
        """Count a failed call."""
        self._changes += 1
        self._errors[method, code] += 1

    def changed(self, state: State, changes: HoldingChanges) -> None:
        """Count allocations and releases. Every known resource has counters, from 0 on."""
        present = state.snapshot.resources()
        began = Counter([one.key.resource for one in changes.change.began])
        held: dict[str, list[float]] = {}
        for release in changes.released:
            held.setdefault(release.holding.key.resource, []).append(release.seconds)
        for resource in {**present, **began, **held}:
            counts = self._resources.pop(resource, None) or _ResourceCounts(resource, next(self._numbers))
            if resource in began or resource in held:
                counts = counts.after(began[resource], held.get(resource, ()))
            self._resources[resource] = counts
        excess = max(0, len(self._resources) - MAX_RESOURCES)
        for resource in [name for name in self._resources if name not in present][:excess]:
            del self._resources[resource]
        numbered = sorted(self._resources.values(), key=lambda one: one.number)
        self._groups = [(at, list(some)) for at, some in groupby(numbered, lambda one: one.number // CHUNK)]

    def blocks(self, form: Format) -> list[Block]:
        """The families of resources at this moment. A node may have thousands, and a refresh counts few."""
        return [one for family in self._of_resources for one in family.blocks(self._groups, form)]

    def families(self) -> Iterable[Family]:
        """The families of refreshes at this moment."""
        refreshes = counter(
            "devicelens_refreshes",
            "Refreshes by what asked for them; one that several asked for counts for each. [ALPHA]",
            ("trigger",),
        )
        for trigger, count in self._refreshes.items():
            refreshes.add((trigger,), count)
        errors = counter(
            "devicelens_refresh_errors",
            "Refreshes that failed, by the kubelet's method and the gRPC code; UNDECODABLE: the answer does "
            "not decode; UNSETTLED: the first List was rejected after a kubelet restart. [ALPHA]",
            ("method", "code"),
        )
        for labels, count in self._errors.items():
            errors.add(labels, count)
        duration = histogram(
            "devicelens_refresh_duration_seconds",
            "How long a refresh took, in seconds, by phase: kubelet (waiting for its answers), mapping, "
            "rendering (metrics and API), publishing; together the whole refresh. [ALPHA]",
            ("phase",),
        )
        for phase, seconds in self._durations.items():
            seconds.add_to(duration, (phase.value,))
        yield from (refreshes, errors, duration)


class MappingStatus(Struct):
    """The families about the mapping as a whole. `state` is the mapping that the document shows; `fresh`: it
    is the kubelet's last answer.
    """

    version: str
    pods: PodSource | None
    dra: DraSource
    state: State
    fresh: bool = False

    def condition(self) -> object:
        """All that the families depend on."""
        state = self.state
        connected = self.pods is not None and self.pods.view.connected
        return (
            self.fresh,
            state.taken_at,
            state.api_version,
            connected,
            self._answers(),
            self.dra.view.sources,
        )

    def _answers(self) -> dict[str, bool]:
        """Whether each plugin answers, by its address."""
        return {report.source: report.answers for report in self.state.advertised.reports}

    def families(self) -> Iterable[Family]:
        """The families at this moment."""
        state = self.state
        yield gauge(
            "devicelens_up",
            "Whether the last refresh succeeded: the mapping is the kubelet's last answer. [STABLE]",
            value=int(self.fresh),
        )
        if state.taken_at is not None:
            yield gauge(
                "devicelens_last_refresh_success_timestamp_seconds",
                "When the last good answer was asked for, in unix time. [STABLE]",
                value=state.taken_at,
            )
        source = gauge(
            "devicelens_pods_source_up",
            "Whether the source of pods' uids, labels and owners is connected; none with "
            "--pods.source=none. [ALPHA]",
            ("source",),
        )
        if self.pods is not None:
            source.add((self.pods.name,), int(self.pods.view.connected))
        facts = gauge(
            "devicelens_dra_source_up",
            "Whether a source of what claimed devices are works: slices and claims, or cdi; none with "
            "--dra.source=none. [ALPHA]",
            ("source",),
        )
        for one in self.dra.view.sources:
            facts.add((one.name,), int(one.up))
        plugins = gauge(
            "devicelens_plugin_url_up",
            "Whether the plugin of a --plugin.url reports its devices at present. [ALPHA]",
            ("url",),
        )
        for url, answers in self._answers().items():
            plugins.add((url,), int(answers))
        build = gauge(
            "devicelens_build_info",
            "The exporter's version, its Python's, and the PodResources API it speaks (1). [STABLE]",
            ("version", "python_version", "api_version"),
        )
        build.add((self.version, platform.python_version(), state.api_version), 1)
        yield from (source, facts, plugins, build)


class HistoryFamilies:
    """The families of history's condition."""

    def __init__(self, condition: Callable[[], HistoryStatus]) -> None:
        self._condition = condition

    def condition(self) -> object:
        """All that the families depend on."""
        return self._condition()

    def families(self) -> Iterable[Family]:
        """The families."""
        now = self._condition()
        for name, text, value in (
            (
                "up",
                "Whether history is written where it should be; 0 if its file cannot be used or written.",
                int(now.written),
            ),
            ("holdings", "Holdings that history has, those that last and those of the past.", now.rows),
            ("pending_holdings", "Changes of holdings that wait to be written.", now.pending),
            ("size_bytes", "What history takes of its file, or of memory, in bytes.", now.size),
            (
                "earliest_timestamp_seconds",
                "Since when history knows who held what, in unix time.",
                now.earliest,
            ),
        ):
            if value is not None:
                yield gauge(f"devicelens_history_{name}", f"{text} [ALPHA]", value=value)
        for name, text, count in (
            ("errors", "Attempts to use or to write history's file that failed.", now.errors),
            (
                "dropped_holdings",
                "Holdings that were forgotten because too many waited to be written.",
                now.dropped,
            ),
            (
                "expired_holdings",
                "Holdings that were deleted for their age, or to keep history within its size.",
                now.expired,
            ),
        ):
            yield counter(f"devicelens_history_{name}", f"{text} [ALPHA]", value=count)
