"""A fleet's present, or its state at a moment, as every source answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.cli.http import NobodyError
from exporter.cli.prometheus import labels
from exporter.cli.prometheus.client import Prometheus
from exporter.cli.prometheus.labels import Key
from exporter.cli.prometheus.promql import Matcher, any_of, selector
from exporter.cli.prometheus.states import Node, distinct, read
from exporter.cli.select import Answer, CpusEntry, MappingDocument, Told, placed
from exporter.views import documents
from exporter.views.documents import Moment
from exporter.views.matching import Wanted
from exporter.views.query import Filters
from exporter.views.wording import counted, lasting, listed, rfc3339

_MISSED: Final = "1h"
"""How far back a node is looked for that is not told of any more."""
_NAMED: Final = 5
_OF_EXPORTERS: Final = (labels.UP, labels.LAST_SUCCESS, labels.DROPPED)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which part of the fleet: series that all `matchers` keep, of the node of this name ("": any)."""

    matchers: tuple[Matcher, ...] = ()
    node: str = ""

    @property
    def all(self) -> bool:
        """Whether nothing is left out."""
        return not self.matchers and not self.node

    def keeps(self, name: str) -> bool:
        """Whether a node of this name is meant."""
        return not self.node or name == self.node

    def __str__(self) -> str:
        parts = [f"{{{','.join(map(str, self.matchers))}}}"] if self.matchers else []
        return " and ".join([*parts, *([f"node {self.node}"] if self.node else [])])


@dataclass(frozen=True, slots=True)
class Fleet:
    """Nodes at unix time `now`, each with the labels that tell it from others of its name."""

    nodes: tuple[tuple[Node, dict[str, str]], ...]
    now: float
    notes: tuple[str, ...]


def survey(prometheus: Prometheus, scope: Scope, at: float | None = None) -> Fleet:
    """The nodes of `scope`, at unix time `at` or now.

    All families in one question: of one moment, and of the same scrape. Raises NobodyError and AskError.
    """
    seen = read(prometheus.query(_everything(scope), at).result)
    if scope.node and not any(scope.keeps(node.name) for node in seen.nodes):
        # What is called exported_node is not found by its name; and what there is instead is to be said.
        seen = read(prometheus.query(_everything(replace(scope, node="")), at).result)
    if seen.now is None:
        raise NobodyError(_nobody(prometheus, scope, at))
    nodes, doubts = distinct(seen)
    kept = [node for node in nodes if scope.keeps(node.name)]
    missing = _missing(prometheus, scope, nodes, seen.now)
    if not kept and scope.node and scope.node not in {name for name, _ in missing}:
        known = sorted({node.name for node in nodes})
        raise NobodyError(
            f"{prometheus.origin} knows no node {scope.node}: there are {listed(known, 10) or 'none'}"
        )
    telling = labels.telling([node.place for node in kept] + [place for _, place in missing])
    notes = [
        *doubts,
        *_mute(seen.mute, scope),
        *_gone(missing, telling),
        *(note for node in kept for note in _state_of(node, seen.now, telling)),
    ]
    told = tuple((node, _told(node.place, telling)) for node in kept)
    return Fleet(told, seen.now, (*notes, *prometheus.notes))


def _everything(scope: Scope) -> str:
    """All families of the nodes that are meant, and of all exporters: those do not say whose they are."""
    if not scope.node:
        return any_of((*labels.OF_NODES, *_OF_EXPORTERS), scope.matchers)
    of_node = any_of(labels.OF_NODES, (*scope.matchers, Matcher("node", "=", scope.node)))
    return f"{of_node} or {any_of(_OF_EXPORTERS, scope.matchers)}"


def present(prometheus: Prometheus, scope: Scope, at: float | None = None) -> Answer:
    """Who holds what in `scope`. Raises NobodyError and AskError."""
    fleet = survey(prometheus, scope, at)
    told = tuple(
        Told(_document(node, fleet.now), place, tuple(map(documents.anomaly, node.state.anomalies)))
        for node, place in fleet.nodes
    )
    return Answer(told, prometheus.origin, fleet=True, notes=fleet.notes, at=fleet.now)


def moment(node: Node, now: float) -> Moment:
    """A node as its exporter would see it."""
    return Moment(node.state, node.name, now, node.stale_after)


def _document(node: Node, now: float) -> MappingDocument:
    seen = moment(node, now)
    devices = documents.devices(seen, Filters())
    return MappingDocument(
        **{name: getattr(devices, name) for name in devices.__struct_fields__},
        claims=documents.claims(seen, Wanted()).claims,
        cpus=tuple(
            CpusEntry(h.namespace, h.pod, h.container, h.pod_uid or None, count, None)
            for h, count in node.cpus
        ),
    )


def _told(place: Key, telling: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in place if name in telling}


def _nobody(prometheus: Prometheus, scope: Scope, at: float | None) -> str:
    when = "" if at is None else f" of {rfc3339(at)}"
    if scope.matchers:
        return f"{prometheus.origin} has nothing of devicelens{when} that {scope} keeps"
    return f"{prometheus.origin} has nothing of devicelens{when}: does it scrape the exporters?"


def _missing(
    prometheus: Prometheus, scope: Scope, nodes: Sequence[Node], now: float
) -> list[tuple[str, Key]]:
    """Nodes that were told of a while ago, and are not any more."""
    expression = f"last_over_time({selector(labels.RESOURCE_DEVICES, scope.matchers)}[{_MISSED}])"
    before: set[tuple[str, Key]] = set()
    for sample in prometheus.query(expression, now).result:
        series = labels.read({"__name__": labels.RESOURCE_DEVICES, **sample.metric})
        if series is not None and scope.keeps(series["node"]):
            before.add((series["node"], labels.place(series.target)))
    # A node that several targets tell apart has more labels than its place.
    there = {(node.name, labels.place(node.target)) for node in nodes}
    return sorted(before - there)


def _gone(missing: Sequence[tuple[str, Key]], telling: frozenset[str]) -> Iterable[str]:
    if not missing:
        return
    names = [placed(name, _told(place, telling)) for name, place in missing]
    yield (
        f"nothing is told of {listed(names, _NAMED)}, as there was within the hour before: "
        "the exporter is down there, or is not scraped"
    )


def _mute(mute: Sequence[tuple[Key, bool]], scope: Scope) -> Iterable[str]:
    """Exporters that tell of no node: those that are well have a node without devices."""
    ill = [dict(target).get("instance", "an exporter") for target, well in mute if not well]
    if ill and not scope.node:
        yield (
            f"{counted(len(ill), 'exporter')} could not ask the kubelet yet ({listed(ill, _NAMED)}): "
            "who holds what there is not known"
        )


def _state_of(node: Node, now: float, telling: frozenset[str]) -> Iterable[str]:
    name = placed(node.name, _told(node.place, telling))
    age = node.state.age(now)
    if node.stale:
        old = "" if age is None else f", and is {lasting(age)} old"
        yield f"the mapping of {name} is stale{old}: its exporter tells no holders"
    elif age is None:
        yield f"how old the mapping of {name} is is not told"
    elif node.state.failure is not None or age > node.stale_after:
        why = "; its exporter cannot ask the kubelet" if node.state.failure is not None else ""
        yield f"the mapping of {name} is {lasting(age)} old{why}"
    if node.dropped:
        yield (f"{name} has {node.dropped} series more than --metrics.max-series: its devices are not told")
