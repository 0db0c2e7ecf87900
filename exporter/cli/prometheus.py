"""Queries of Prometheus: the mapping of a whole fleet at one moment, from the series of its exporters.

One instant query has all families, so all series are of the same moment. A second one finds nodes whose
series ended within the last hour. Only /api/v1/query is used, so Thanos and Mimir work too.

A scrape without honor_labels renames an exporter's label to `exported_…` if the target has the same label.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Raw, Struct

from exporter.cli.client import ServerClient, ServerReply
from exporter.cli.common import AskError, NoMatchError
from exporter.cli.select import CpusEntry, MappingAnswer, MappingDocument, NodeMapping, place
from exporter.views.schema import (
    AnomalyEntry,
    AnomalyHolderEntry,
    ClaimEntry,
    ClaimHolderEntry,
    DeviceEntry,
    ErrorEntry,
    HolderEntry,
    WorkloadEntry,
)
from exporter.views.wording import counted, lasting, listed, rfc3339
from runtime.text import visible

_PREFIX: Final = "devicelens_"
_NODE_FAMILIES: Final = (
    *("device_info", "device_owner_info", "device_healthy", "device_held_since_timestamp_seconds"),
    *("claim_device_info", "container_exclusive_cpus", "pod_info", "anomaly_info", "resource_devices"),
)
_EXPORTER_FAMILIES: Final = ("up", "last_refresh_success_timestamp_seconds", "series_dropped")
"""Families without the label `node`."""
_EXPORTER_LABELS: Final = frozenset(
    {
        *("__name__", "node", "resource", "device", "parent", "numa_node", "namespace", "pod", "container"),
        *("pod_uid", "driver", "pool", "share_id", "claim_namespace", "claim", "uid", "workload_kind"),
        *("workload", "phase", "priority_class", "kind"),
    }
)
"""Labels of the families above (docs/metrics.md). All others are the target's."""
_SCRAPE_LABELS: Final = frozenset(
    {
        *("instance", "job", "endpoint", "service", "prometheus", "prometheus_replica", "replica"),
        *("__replica__", "receive", "tenant_id", "receive_replica", "controller_revision_hash"),
        *("pod_template_generation", "pod_template_hash"),
    }
)
"""Labels of a target that do not distinguish nodes. All others do: cluster, region."""
_STALE_AFTER: Final = 300.0
"""Seconds for which Prometheus returns a series without a newer sample."""
_LARGEST: Final = 1e11
_RECENT: Final = "1h"
_MESSAGES: Final = 5
_NAMES: Final = 5

TargetLabels = tuple[tuple[str, str], ...]


class ApiReply(Struct):
    """https://prometheus.io/docs/prometheus/latest/querying/api/#format-overview"""

    status: str
    data: Raw = Raw()
    errorType: str = ""  # noqa: N815 -- its name in the API
    error: str = ""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


class InstantSample(Struct):
    """A series at one moment: unix time, and the value as text."""

    metric: dict[str, str]
    value: tuple[float, str]


class InstantVector(Struct):
    """The result of an instant query."""

    resultType: str  # noqa: N815 -- its name in the API
    result: tuple[InstantSample, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A series with the exporter's own labels under their own names. `labels` are "" where not set."""

    labels: Mapping[str, str]
    value: float

    def __getitem__(self, name: str) -> str:
        return self.labels.get(name, "")

    @property
    def device(self) -> tuple[str, str]:
        """Resource and device."""
        return self["resource"], self["device"]

    @property
    def holder(self) -> tuple[str, str, str]:
        """Namespace, pod and container."""
        return self["namespace"], self["pod"], self["container"]


Families = Mapping[str, Sequence[Series]]
"""The series of one target and node, by family."""
Pods = Mapping[tuple[str, str], Series]
"""The series of devicelens_pod_info, by namespace and name."""


@dataclass(frozen=True, slots=True)
class ScrapedNode:
    """One node as one scrape target has it. `labels` are the target's, without those of the scrape itself.

    `dropped` is the number of series that --metrics.max-series left out.
    """

    document: MappingDocument
    labels: Mapping[str, str]
    target: TargetLabels
    anomalies: tuple[AnomalyEntry, ...]
    dropped: int

    @property
    def key(self) -> tuple[str, TargetLabels]:
        """Name and labels: the same for all targets of the node."""
        return self.document.node, tuple(sorted(self.labels.items()))


async def fetch_mapping(client: ServerClient, *, selector: str, node: str, at: float | None) -> MappingAnswer:
    """The mapping of the nodes that `selector` (matchers) and `node` keep, at unix time `at` or now.

    Raises NoMatchError if they keep nothing, and AskError.
    """
    origin = f"Prometheus at {client.address}"
    samples, warnings = await _query(client, _expression(selector, node), at)
    nothing = f"{origin} has no devicelens series" + ("" if at is None else f" of {rfc3339(at)}")
    kept = " and ".join([f"{{{selector}}}"] * bool(selector) + [f"node {node}"] * bool(node))
    if not samples:
        raise (
            NoMatchError(f"{nothing} for {kept}")
            if kept
            else AskError(f"{nothing}: does it scrape the exporters?")
        )
    now = samples[0].value[0]
    found, failing = read_series(samples)
    nodes, differing = _distinct(found)
    recent = f"last_over_time({{{_matchers(('resource_devices',), selector)}}}[{_RECENT}])"
    earlier, more = await _query(client, recent, now)
    known = {one.key for one in nodes}
    gone = {
        one.key: one for one in read_series(earlier)[0] if one.key not in known and node in {"", one.key[0]}
    }
    if node and not nodes and not gone:
        raise NoMatchError(f"{nothing} for {kept}")
    names = _distinguishing([one.labels for one in (*nodes, *gone.values())])
    remarks = (*differing, *_remarks(nodes, gone.values(), [] if node else failing, names))
    return MappingAnswer(
        tuple(
            NodeMapping(
                one.document, {name: v for name, v in one.labels.items() if name in names}, one.anomalies
            )
            for one in nodes
        ),
        origin,
        fleet=True,
        notes=tuple(dict.fromkeys((*remarks, *warnings, *more))),
        at=now,
    )


def _matchers(families: Iterable[str], *others: str) -> str:
    names = "|".join(f"{_PREFIX}{name}" for name in families)
    return ",".join([f'__name__=~"{names}"', *filter(None, others)])


def _expression(selector: str, node: str) -> str:
    if not node:
        return f"{{{_matchers((*_NODE_FAMILIES, *_EXPORTER_FAMILIES), selector)}}}"
    name = json.dumps(node)
    return " or ".join(
        f"{{{matchers}}}"
        for matchers in (
            _matchers(_NODE_FAMILIES, selector, f"node={name}"),
            _matchers(_NODE_FAMILIES, selector, f"exported_node={name}"),
            _matchers(_EXPORTER_FAMILIES, selector),
        )
    )


async def _query(
    client: ServerClient, expression: str, at: float | None
) -> tuple[Sequence[InstantSample], tuple[str, ...]]:
    """The samples of an instant query, and Prometheus' warnings. Raises AskError."""
    path = "/api/v1/query"
    query = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
    reply = await client.get(path, query)
    try:
        answer = msgspec.json.decode(reply.body, type=ApiReply)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _not_prometheus(client, path, reply, error) from None
    if answer.status != "success":
        text = f"{answer.errorType or 'error'}: {answer.error or 'no reason given'}"
        status = "" if reply.status == 200 else f"{reply.status} "
        hint = ""
        if answer.errorType == "timeout" or "timed out" in text:
            hint = f"; --timeout is {client.timeout:g} s"
        elif any(word in text.lower() for word in ("too many", "limit", "exceeded maximum")):
            hint = "; ask for less: --node, --selector"
        raise AskError(f"{client.address}: {status}{visible(text, 600)}{hint}")
    try:
        vector = msgspec.json.decode(answer.data, type=InstantVector)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"{client.address}: {path} is not an instant vector: {visible(str(error), 200)}"
        raise AskError(message) from None
    messages = (*answer.warnings, *answer.infos)[:_MESSAGES]
    return vector.result, tuple(f"Prometheus says: {visible(text, 300)}" for text in messages)


def _not_prometheus(client: ServerClient, path: str, reply: ServerReply, error: Exception) -> AskError:
    if reply.status == 404 and reply.media == "application/problem+json":
        return AskError(
            f"{client.address}: this is a devicelens process and not a Prometheus: ask an exporter with --url"
        )
    if reply.status != 200:
        text = visible(reply.body[:300].decode(errors="replace").strip(), 300)
        plain = reply.status >= 500 and reply.media == "text/plain"
        return AskError(client.refused(path, reply).message + (f": {text}" if plain else ""))
    return AskError(
        f"{client.address}: this is not a Prometheus; {path} is {reply.media}: {visible(str(error), 200)}"
    )


def read_series(samples: Sequence[InstantSample]) -> tuple[list[ScrapedNode], list[TargetLabels]]:
    """The nodes, sorted, and the targets that have no node because the exporter cannot query its kubelet."""
    targets: dict[TargetLabels, list[InstantSample]] = defaultdict(list)
    for sample in samples:
        targets[_target(sample.metric)].append(sample)
    nodes: list[ScrapedNode] = []
    failing: list[TargetLabels] = []
    for target, own in targets.items():
        clashing = {name for sample in own for name in sample.metric if name.startswith("exported_")}
        of_node: dict[str, dict[str, list[Series]]] = {}
        exporter: dict[str, float] = {}
        for sample in own:
            family = sample.metric.get("__name__", f"{_PREFIX}resource_devices").removeprefix(_PREFIX)
            labels = {
                name: sample.metric.get(f"exported_{name}" if f"exported_{name}" in clashing else name, "")
                for name in _EXPORTER_LABELS
            }
            series = Series(labels, _number(sample.value[1]))
            if family in _EXPORTER_FAMILIES:
                exporter[family] = series.value
            elif family in _NODE_FAMILIES:
                of_node.setdefault(series["node"], defaultdict(list))[family].append(series)
        now = own[0].value[0]
        nodes.extend(_node(name, target, families, exporter, now) for name, families in of_node.items())
        if not of_node and exporter.get("up", 1.0) != 1.0:
            failing.append(target)
    return sorted(nodes, key=lambda node: (*node.key, node.target)), sorted(failing)


def _target(metric: Mapping[str, str]) -> TargetLabels:
    return tuple(
        sorted(
            (name, value)
            for name, value in metric.items()
            if name not in _EXPORTER_LABELS and not name.startswith("exported_")
        )
    )


def _number(text: str) -> float:
    """A number within the range of times and counts, or NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if abs(value) < _LARGEST else math.nan


def _node(
    name: str, target: TargetLabels, families: Families, exporter: Mapping[str, float], now: float
) -> ScrapedNode:
    pods = {(pod["namespace"], pod["pod"]): pod for pod in families.get("pod_info", ())}
    anomalies = tuple(_anomaly(series, pods) for series in families.get("anomaly_info", ()))
    taken_at = exporter.get("last_refresh_success_timestamp_seconds", math.nan)
    taken = rfc3339(taken_at) if taken_at > 0 else None
    up = exporter.get("up", 1.0) == 1.0
    freshness = "fresh" if up else "ageing"
    if any(anomaly.kind == "stale" for anomaly in anomalies):
        freshness = "stale"
    elif taken is None:
        freshness = "unknown"
    elif now - taken_at > _STALE_AFTER:
        freshness = "stale"
    reason = "its exporter cannot query the kubelet"
    document = MappingDocument(
        node=name,
        generation=0,
        taken_at=taken,
        age_seconds=None if taken is None else round(max(0.0, now - taken_at), 3),
        freshness=freshness,
        error=None if up else ErrorEntry("the refresh", "devicelens_up 0", reason, taken or rfc3339(now)),
        devices=_devices(families, pods),
        claims=_claims(families, pods),
        cpus=tuple(
            CpusEntry(*series.holder, _uid(series, pods), int(series.value), None)
            for series in families.get("container_exclusive_cpus", ())
            if series.value > 0
        ),
    )
    dropped = exporter.get("series_dropped", 0.0)
    labels = {label: value for label, value in target if label not in _SCRAPE_LABELS}
    return ScrapedNode(document, labels, target, anomalies, int(dropped) if dropped > 0 else 0)


def _devices(families: Families, pods: Pods) -> tuple[DeviceEntry, ...]:
    info = {series.device: series for series in families.get("device_info", ())}
    healthy = {series.device: series.value == 1.0 for series in families.get("device_healthy", ())}
    since = {
        (series.device, series.holder): rfc3339(series.value)
        for series in families.get("device_held_since_timestamp_seconds", ())
        if series.value > 0
    }
    holders: dict[tuple[str, str], list[HolderEntry]] = defaultdict(list)
    for series in families.get("device_owner_info", ()):
        info.setdefault(series.device, series)
        pod = pods.get((series["namespace"], series["pod"]))
        holders[series.device].append(
            HolderEntry(
                *series.holder,
                _uid(series, pods),
                since.get((series.device, series.holder)),
                since_exact=False,
                workload=WorkloadEntry(pod["workload_kind"], pod["workload"])
                if pod is not None and pod["workload_kind"]
                else None,
            )
        )
    return tuple(
        DeviceEntry(
            *key,
            series["parent"] or None,
            tuple(sorted(int(node) for node in series["numa_node"].split(",") if node.isdecimal())),
            healthy.get(key),
            tuple(sorted(holders[key], key=lambda h: (h.namespace, h.pod, h.container))),
        )
        for key, series in sorted(info.items())
    )


def _uid(series: Series, pods: Pods) -> str | None:
    pod = pods.get((series["namespace"], series["pod"]))
    return series["pod_uid"] or (pod["uid"] if pod is not None else "") or None


def _claims(families: Families, pods: Pods) -> tuple[ClaimEntry, ...]:
    found: dict[tuple[str, str, str, str], list[ClaimHolderEntry]] = defaultdict(list)
    for series in families.get("claim_device_info", ()):
        key = (series["driver"], series["pool"], series["device"], series["share_id"])
        found[key].append(
            ClaimHolderEntry(series["claim_namespace"], series["claim"], *series.holder, _uid(series, pods))
        )
    return tuple(
        ClaimEntry(driver, pool, device, share or None, (), tuple(holders))
        for (driver, pool, device, share), holders in sorted(found.items())
    )


def _anomaly(series: Series, pods: Pods) -> AnomalyEntry:
    holder = AnomalyHolderEntry(*series.holder, _uid(series, pods)) if series["pod"] else None
    evidence = f"a series of {_PREFIX}anomaly_info"
    return AnomalyEntry(
        series["kind"], series["resource"] or None, series["device"] or None, holder, evidence
    )


def _distinct(nodes: Sequence[ScrapedNode]) -> tuple[list[ScrapedNode], list[str]]:
    """Each node once: if several targets have it, the one refreshed last. Remarks say where they differ."""
    groups: dict[tuple[str, TargetLabels], list[ScrapedNode]] = defaultdict(list)
    for node in nodes:
        groups[node.key].append(node)
    kept: list[ScrapedNode] = []
    remarks: list[str] = []
    for (name, _), group in groups.items():
        latest = max(group, key=lambda one: (one.document.freshness != "stale", one.document.taken_at or ""))
        kept.append(latest)
        if any(one.document.devices != latest.document.devices for one in group):
            target = ", ".join(f"{label} {value}" for label, value in latest.target) or "without labels"
            remarks.append(
                f"{len(group)} targets have different devices or holders of {name}: shown is the one "
                f"refreshed last ({target}); nodes of one name need a label for their cluster"
            )
    return kept, remarks


def _distinguishing(labels: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """The names of labels whose values differ."""
    names = {name for one in labels for name in one}
    return frozenset(name for name in names if len({one.get(name, "") for one in labels}) > 1)


def _remarks(
    nodes: Iterable[ScrapedNode],
    gone: Iterable[ScrapedNode],
    failing: Sequence[TargetLabels],
    names: frozenset[str],
) -> Iterator[str]:
    """Warnings about what the answer does not have."""

    def placed(node: ScrapedNode) -> str:
        return place(
            node.document.node, {name: value for name, value in node.labels.items() if name in names}
        )

    if failing:
        instances = [dict(target).get("instance", "unknown instance") for target in failing]
        yield (
            f"{counted(len(failing), 'exporter')} could not query the kubelet yet "
            f"({listed(instances, _NAMES)}): the holders there are unknown"
        )
    missing = sorted(map(placed, gone))
    if missing:
        yield (
            f"no series of {listed(missing, _NAMES)}, but there were some within the hour before: "
            "the exporter is down, or is not scraped"
        )
    for node in nodes:
        document, name = node.document, placed(node)
        age = "" if document.age_seconds is None else lasting(document.age_seconds)
        if document.freshness == "stale":
            holders = "" if document.devices else ": its exporter has no holders"
            yield f"the mapping of {name} is stale{age and f', {age} old'}{holders}"
        elif document.freshness == "unknown":
            yield f"the age of the mapping of {name} is unknown"
        elif document.error is not None:
            yield f"the mapping of {name} is {age} old; {document.error.message}"
        if node.dropped:
            yield f"{name} has {node.dropped} series more than --metrics.max-series: devices are missing"
