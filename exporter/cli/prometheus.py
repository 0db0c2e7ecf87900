"""An instant query of Prometheus: the mapping of a whole fleet at one moment, from its exporters' series.

One query has all families, so all series are of the same moment. Only /api/v1/query is used, so Thanos and
Mimir work too. A scrape without honor_labels renames an exporter's label to `exported_…` if the target has
the same label.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct, structs

from exporter.cli.client import ServerClient, StatusError
from exporter.cli.common import AskError, NoMatchError
from exporter.cli.select import CpusEntry, MappingAnswer, NodeDocument
from exporter.views.schema import (
    AnomalyEntry,
    AnomalyHolderEntry,
    ClaimedEntry,
    ClaimEntry,
    ClaimHolderEntry,
    DeviceEntry,
    ErrorEntry,
    HolderEntry,
    IdentityEntry,
    ThroughEntry,
    WorkloadEntry,
)
from exporter.views.wording import counted, lasting, listed, rfc3339
from runtime.text import visible

_PATH: Final = "/api/v1/query"
_PREFIX: Final = "devicelens_"
_NODE_FAMILIES: Final = (
    *("device_info", "device_owner_info", "device_healthy", "device_held_since_timestamp_seconds"),
    *("device_owner_unconfirmed", "device_owner_unprovable", "device_identity_info", "claim_device_info"),
    *("container_exclusive_cpus", "pod_info", "anomaly_info", "resource_free_devices"),
)
_EXPORTER_FAMILIES: Final = ("up", "last_refresh_success_timestamp_seconds", "series_dropped")
"""Families without the label `node`."""
_EXPORTER_LABELS: Final = (
    *("__name__", "node", "resource", "device", "parent", "numa_node", "namespace", "pod", "container"),
    *("pod_uid", "driver", "pool", "share_id", "claim_namespace", "claim", "uid", "workload_kind"),
    *("workload", "phase", "priority_class", "kind", "requested_as", "uuid", "pci_address", "model"),
)
"""Labels of the families above (docs/metrics.md). All others are the target's."""
_SCRAPE_LABELS: Final = (
    *("instance", "job", "endpoint", "service", "prometheus", "prometheus_replica", "replica"),
    *("__replica__", "receive", "tenant_id", "receive_replica", "controller_revision_hash"),
    *("pod_template_generation", "pod_template_hash"),
)
"""Labels of a target that do not distinguish nodes. All others do: cluster, region."""
_STALE_AFTER: Final = 300.0
"""Seconds for which Prometheus returns a series without a newer sample."""
_LARGEST: Final = 1e11
_NOT_UP: Final = "its exporter cannot query the kubelet"
_NAMES: Final = 5


class InstantSample(Struct):
    """A series at one moment: unix time, and the value as text."""

    metric: dict[str, str]
    value: tuple[float, str]


class _InstantVector(Struct):
    resultType: Literal["vector"]  # noqa: N815 -- its name in the API
    result: tuple[InstantSample, ...]


class _ApiReply(Struct):
    """https://prometheus.io/docs/prometheus/latest/querying/api/#format-overview"""

    status: str
    data: _InstantVector | None = None
    errorType: str = "error"  # noqa: N815 -- its name in the API
    error: str = "no reason given"
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


class _Series(NamedTuple):
    """A series with the exporter's own labels under their own names, "" where not set."""

    labels: Mapping[str, str]
    value: float

    @property
    def device(self) -> tuple[str, str]:
        return self.labels["resource"], self.labels["device"]

    @property
    def pod(self) -> tuple[str, str]:
        return self.labels["namespace"], self.labels["pod"]

    @property
    def holder(self) -> tuple[str, str, str]:
        return *self.pod, self.labels["container"]


_Key = tuple[str, str]
"""Resource and device."""
_DeviceHolder = tuple[str, tuple[str, str, str]]
"""A device, and namespace, pod and container of a holder."""
_Families = Mapping[str, Sequence[_Series]]
_Pods = Mapping[tuple[str, str], _Series]
"""The series of devicelens_pod_info, by namespace and name."""


class ScrapedNode(NamedTuple):
    """One node as the scrape target with the labels `target` has it.

    `dropped` is the number of series that --metrics.max-series left out.
    """

    mapping: NodeDocument
    target: tuple[tuple[str, str], ...]
    dropped: float


def fetch_mapping(client: ServerClient, *, selector: str, node: str, at: float | None) -> MappingAnswer:
    """The mapping of the nodes that `selector` (matchers) and `node` keep, at unix time `at` or now.

    Raises NoMatchError if they keep nothing, and AskError.
    """
    origin = f"Prometheus at {client.address}"
    samples, warnings = _query(client, _expression(selector, node), at)
    scraped, failing = read_series(samples)
    if not samples or (node and not scraped):
        nothing = f"{origin} has no devicelens series" + ("" if at is None else f" of {rfc3339(at)}")
        kept = " and ".join([f"{{{selector}}}"] * bool(selector) + [f"node {node}"] * bool(node))
        if kept:
            raise NoMatchError(f"{nothing} for {kept}")
        raise AskError(f"{nothing}: does it scrape the exporters?")
    notes: list[str] = []
    if failing and not node:
        count = counted(len(failing), "exporter")
        notes.append(
            f"{count} could not query the kubelet yet ({listed(failing, _NAMES)}): the holders are unknown"
        )
    nodes = list(_distinct(scraped, notes))
    notes += [f"Prometheus says: {visible(text, 300)}" for text in warnings]
    unique = tuple(dict.fromkeys(notes))
    return MappingAnswer(
        *(tuple(nodes), origin),
        fleet=True,
        notes=unique,
        at=samples[0].value[0],
        incomplete=bool(failing) and not node,
    )


def _expression(selector: str, node: str) -> str:
    def series(families: Sequence[str], label: str = "") -> str:
        names = "|".join(f"{_PREFIX}{name}" for name in families)
        of_node = f"{label}={json.dumps(node)}" if label else ""
        return "{" + ",".join(filter(None, (f'__name__=~"{names}"', selector, of_node))) + "}"

    if not node:
        return series((*_NODE_FAMILIES, *_EXPORTER_FAMILIES))
    own, renamed = series(_NODE_FAMILIES, "node"), series(_NODE_FAMILIES, "exported_node")
    return f"{own} or {renamed} or {series(_EXPORTER_FAMILIES)}"


def _query(
    client: ServerClient, expression: str, at: float | None
) -> tuple[Sequence[InstantSample], tuple[str, ...]]:
    """The samples of an instant query, and Prometheus' warnings. Raises AskError."""
    query = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
    try:
        answer = client.document(_PATH, _ApiReply, query)
    except StatusError as error:
        if error.detail:
            message = f"{client.address}: this is a devicelens process and not a Prometheus: use --url"
            raise AskError(message) from error
        try:
            answer = msgspec.json.decode(error.body, type=_ApiReply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise error from None
    if answer.status == "success" and answer.data is not None:
        return answer.data.result, (*answer.warnings, *answer.infos)
    text = f"{answer.errorType}: {answer.error}"
    hint = ""
    if "timeout" in text or "timed out" in text:
        hint = f"; --timeout is {client.timeout:g} s"
    elif any(word in text.lower() for word in ("too many", "limit", "exceeded maximum")):
        hint = "; ask for less: --node, --selector"
    raise AskError(f"{client.address}: {visible(text, 600)}{hint}")


def read_series(samples: Sequence[InstantSample]) -> tuple[list[ScrapedNode], list[str]]:
    """The nodes, sorted, and the instances without a node because the exporter cannot query its kubelet."""
    targets: dict[tuple[tuple[str, str], ...], list[InstantSample]] = defaultdict(list)
    for sample in samples:
        labels = sample.metric.items()
        own = {name: v for name, v in labels if not (name in _EXPORTER_LABELS or name[:9] == "exported_")}
        targets[tuple(sorted(own.items()))].append(sample)
    nodes: list[ScrapedNode] = []
    failing: list[str] = []
    for target, scraped in targets.items():
        renamed = {name for sample in scraped for name in sample.metric if name.startswith("exported_")}
        # By node, then by family. The exporter's own families have the node "".
        families: dict[str, dict[str, list[_Series]]] = defaultdict(lambda: defaultdict(list))
        for sample in scraped:
            labels_of = {
                name: sample.metric.get(f"exported_{name}" if f"exported_{name}" in renamed else name, "")
                for name in _EXPORTER_LABELS
            }
            family = sample.metric.get("__name__", "").removeprefix(_PREFIX)
            node = "" if family in _EXPORTER_FAMILIES else labels_of["node"]
            families[node][family].append(_Series(labels_of, _number(sample.value[1])))
        exporter = {family: found[0].value for family, found in families.pop("", {}).items()}
        for node, found in families.items():
            mapping = _node_mapping(node, found, exporter, scraped[0].value[0])
            kept = {name: value for name, value in target if name not in _SCRAPE_LABELS}
            nodes.append(
                ScrapedNode(
                    structs.replace(mapping, labels=kept), target, exporter.get("series_dropped", 0.0)
                )
            )
        if not families and exporter.get("up", 1.0) != 1.0:
            failing.append(dict(target).get("instance", "unknown instance"))
    return sorted(nodes, key=lambda one: (*_identity(one), one.target)), sorted(failing)


def _identity(node: ScrapedNode) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Name and labels: the same for all targets of the node."""
    return node.mapping.node, tuple(sorted(node.mapping.labels.items()))


def _number(text: str) -> float:
    """A number within the range of times and counts, or NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if abs(value) < _LARGEST else math.nan


def _node_mapping(name: str, families: _Families, exporter: Mapping[str, float], now: float) -> NodeDocument:
    pods = {pod.pod: pod for pod in families.get("pod_info", ())}
    anomalies = tuple(
        AnomalyEntry(
            *(series.labels["kind"], series.labels["resource"] or None, series.labels["device"] or None),
            AnomalyHolderEntry(*series.holder, _uid(series, pods)) if series.labels["pod"] else None,
            f"a series of {_PREFIX}anomaly_info",
        )
        for series in families.get("anomaly_info", ())
    )
    taken_at = exporter.get("last_refresh_success_timestamp_seconds", math.nan)
    taken = rfc3339(taken_at) if taken_at > 0 else None
    up = exporter.get("up", 1.0) == 1.0
    freshness = "unknown" if taken is None else "fresh" if up else "ageing"
    if any(anomaly.kind == "stale" for anomaly in anomalies) or (taken and now - taken_at > _STALE_AFTER):
        freshness = "stale"
    devices = _devices(name, families, pods)
    return NodeDocument(
        node=name,
        generation=0,
        taken_at=taken,
        age_seconds=None if taken is None else round(max(0.0, now - taken_at), 3),
        freshness=freshness,
        error=None if up else ErrorEntry("the refresh", "devicelens_up 0", _NOT_UP, taken or rfc3339(now)),
        devices=devices,
        claims=_claims(families.get("claim_device_info", ()), pods, _holders(devices), name),
        cpus=tuple(
            CpusEntry(*series.holder, _uid(series, pods), int(series.value), None)
            for series in families.get("container_exclusive_cpus", ())
            if series.value > 0
        ),
        anomalies=anomalies,
    )


def _devices(node: str, families: _Families, pods: _Pods) -> tuple[DeviceEntry, ...]:
    def by_device(family: str) -> dict[tuple[str, str], _Series]:
        return {series.device: series for series in families.get(family, ())}

    info = by_device("device_info")
    healthy = {key: series.value == 1.0 for key, series in by_device("device_healthy").items()}
    since = {
        (series.device, series.holder): rfc3339(series.value)
        for series in families.get("device_held_since_timestamp_seconds", ())
        if series.value > 0
    }
    unconfirmed, unprovable = (
        {(one.device, one.holder) for one in families.get(f"device_owner_{doubt}", ())}
        for doubt in ("unconfirmed", "unprovable")
    )
    holders: dict[tuple[str, str], list[HolderEntry]] = defaultdict(list)
    for series in families.get("device_owner_info", ()):
        info.setdefault(series.device, series)
        pod = pods.get(series.pod)
        owner = None
        if pod is not None and pod.labels["workload_kind"]:
            owner = WorkloadEntry(pod.labels["workload_kind"], pod.labels["workload"])
        started = since.get((series.device, series.holder))
        holders[series.device].append(
            HolderEntry(
                *series.holder,
                _uid(series, pods),
                started,
                since_exact=False,
                workload=owner,
                confirmed=(series.device, series.holder) not in unconfirmed,
                provable=(series.device, series.holder) not in unprovable,
                requested_as=series.labels["requested_as"] or None,
            )
        )
    identities, claimed = by_device("device_identity_info"), _claimed(families, info, node)
    free = _free(families, {key: not holders[key] and healthy.get(key, True) for key in info})
    return tuple(
        DeviceEntry(
            *series.device,
            series.labels["parent"] or None,
            tuple(sorted(int(node) for node in series.labels["numa_node"].split(",") if node.isdecimal())),
            healthy.get(key),
            tuple(sorted(holders[key], key=lambda h: (h.namespace, h.pod, h.container))),
            identity=_identity_entry(identities.get(key)),
            claimed=claimed.get(key),
            free=free[key],
        )
        for key, series in sorted(info.items())
    )


def _free(families: _Families, unheld: Mapping[_Key, bool]) -> dict[_Key, bool | None]:
    """Whether a pod can get a device; None where the series do not say so. `unheld`: no pod holds the device,
    and it is not unhealthy. No series says which unheld devices are reserved, or alternatives to others, but
    one counts those that are free.
    """
    free = {one.labels["resource"]: one.value for one in families.get("resource_free_devices", ())}
    numbers = Counter(resource for (resource, _), is_unheld in unheld.items() if is_unheld)
    by_resource = {
        resource: True if number == numbers[resource] else None if number else False
        for resource, number in free.items()
    }
    return {
        key: None if key[0] not in free else by_resource[key[0]] if is_unheld else False
        for key, is_unheld in unheld.items()
    }


def _claimed(families: _Families, info: Mapping[_Key, _Series], node: str) -> Mapping[_Key, ClaimedEntry]:
    """What the series of claims say about held devices: not their capacity, attributes, and taints."""
    owned = {(one.labels["device"], one.holder): one.device for one in families.get("device_owner_info", ())}
    through: dict[_Key, list[_Series]] = defaultdict(list)
    for series in families.get("claim_device_info", ()):
        name = _claimed_name(series, node)
        # The resource is the driver, unless the slice has the attribute devicelens.dev/resource.
        key: _Key | None = (series.labels["driver"], name)
        if key not in info:
            key = owned.get((name, series.holder))
        if key is not None:
            through[key].append(series)
    found: dict[_Key, ClaimedEntry] = {}
    for key, claims in through.items():
        names = (claims[0].labels["driver"], claims[0].labels["pool"], claims[0].labels["device"])
        entries = tuple([_through(one) for one in sorted(claims, key=lambda one: one.holder)])
        found[key] = ClaimedEntry(*names, (), {}, {}, (), None, alternative=False, through=entries)
    return found


def _claimed_name(series: _Series, node: str) -> str:
    """The device of a series of a claim, as the other families name it."""
    device, pool = series.labels["device"], series.labels["pool"]
    return device if pool == node else f"{pool}/{device}"


def _through(series: _Series) -> ThroughEntry:
    of = series.labels
    claim = (of["claim_namespace"], of["claim"], of["share_id"] or None)
    return ThroughEntry(*series.holder, *claim, request=None, requested_as=None, admin=None)


def _identity_entry(series: _Series | None) -> IdentityEntry | None:
    if series is None:
        return None
    of = series.labels
    return IdentityEntry(of["uuid"], of["pci_address"], of["model"], of["driver"])


def _uid(series: _Series, pods: _Pods) -> str | None:
    pod = pods.get(series.pod)
    return series.labels["pod_uid"] or (pod.labels["uid"] if pod is not None else "") or None


def _holders(devices: Sequence[DeviceEntry]) -> Mapping[_DeviceHolder, HolderEntry]:
    return {
        (device.device, (one.namespace, one.pod, one.container)): one
        for device in devices
        for one in device.holders
    }


def _claims(
    claimed: Sequence[_Series], pods: _Pods, holders: Mapping[_DeviceHolder, HolderEntry], node: str
) -> tuple[ClaimEntry, ...]:
    found: dict[tuple[str, str, str, str], list[ClaimHolderEntry]] = defaultdict(list)
    for series in claimed:
        of, holder = series.labels, holders.get((_claimed_name(series, node), series.holder))
        started, confirmed = (None, True) if holder is None else (holder.since, holder.confirmed)
        entry = ClaimHolderEntry(
            *(of["claim_namespace"], of["claim"], *series.holder, _uid(series, pods), started),
            since_exact=False,
            confirmed=confirmed,
        )
        found[of["driver"], of["pool"], of["device"], of["share_id"]].append(entry)
    return tuple(
        ClaimEntry(driver, pool, device, share or None, (), tuple(entries))
        for (driver, pool, device, share), entries in sorted(found.items())
    )


def _distinct(scraped: Sequence[ScrapedNode], notes: list[str]) -> Iterator[NodeDocument]:
    """Each node once, as the target has it that refreshed last, with the labels that distinguish nodes.

    `notes` gets warnings about stale, different and incomplete mappings.
    """
    targets: dict[object, list[ScrapedNode]] = defaultdict(list)
    for node in scraped:
        targets[_identity(node)].append(node)
    values: dict[str, set[str]] = defaultdict(set)
    for name in {name for node in scraped for name in node.mapping.labels}:
        values[name] = {node.mapping.labels.get(name, "") for node in scraped}
    for group in targets.values():
        latest = max(
            group,
            key=lambda one: (one.mapping.freshness != "stale", one.mapping.taken_at or ""),
        )
        labels = {name: value for name, value in latest.mapping.labels.items() if len(values[name]) > 1}
        shown = structs.replace(latest.mapping, labels=labels)
        if any(one.mapping.devices != shown.devices for one in group):
            target = ", ".join(f"{label} {value}" for label, value in latest.target) or "without labels"
            notes.append(
                f"{len(group)} targets have different devices or holders of {shown.node}: shown is the "
                f"one refreshed last ({target}); nodes of one name need a label for their cluster"
            )
        if shown.freshness != "fresh":
            age = "" if shown.age_seconds is None else f", {lasting(shown.age_seconds)} old"
            notes.append(f"the mapping of {shown.place} is {shown.freshness}{age}")
        if latest.dropped > 0:
            notes.append(
                f"{shown.place} has {latest.dropped:.0f} series more than --metrics.max-series: "
                "devices are missing"
            )
        yield shown
