"""The JSON API's documents, made of the state. Pure.

Entries of the JSON API's documents: what plugins tell, and what is wrong. Pure.

The document of /api/v1/explain, made of the state. Pure.

/api/v1/history's document, made of what history found. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2s
from typing import Final, TypedDict

import msgspec

from exporter.history.coverage import CoverageGap
from exporter.history.query import HistoryResult, write_cursor
from exporter.history.record import Bound, Certainty, HoldingRow
from exporter.mapping.anomalies import Anomaly, order
from exporter.mapping.device_ids import IdReader, IdReading
from exporter.mapping.holdings import Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    ClaimDevice,
    Container,
    Device,
    DeviceKey,
    HeldKey,
    Holder,
    PluginReport,
    PluginReports,
    Snapshot,
)
from exporter.mapping.state import Freshness, State
from exporter.views import matching
from exporter.views.explain import Findings, explain, sentences, why_nobody
from exporter.views.matching import Wanted
from exporter.views.query import AskedHistoryQuery as Asked
from exporter.views.query import Filters
from exporter.views.schema import (
    AnomaliesDocument,
    AnomalyEntry,
    AnomalyHolderEntry,
    BoundEntry,
    ClaimEntry,
    ClaimHolderEntry,
    ClaimsDocument,
    ContainerEntry,
    Counts,
    DeviceEntry,
    DevicesDocument,
    ErrorEntry,
    ExplainDocument,
    HeldClaimEntry,
    HeldDeviceEntry,
    HistoryDocument,
    HolderEntry,
    MemoryEntry,
    NumaEntry,
    PastEntry,
    PluginEntry,
    PluginStatusEntry,
    PodEntry,
    PodName,
    PodsDocument,
    ReadingEntry,
    ResourceEntry,
    ResourcesDocument,
    StatusDocument,
    UnseenEntry,
    WorkloadEntry,
)
from exporter.views.wording import lasting, rfc3339, spelled


def of_plugin(key: DeviceKey, advertised: PluginReports) -> PluginEntry | None:
    """What its plugin tells of a device; None where none does."""
    told, word = advertised.devices.get(key), advertised.resources.get(key.resource)
    if told is None or word is None:
        return None
    return PluginEntry(
        source=word.report.source,
        answers=word.report.answers,
        health="Healthy" if told.healthy else "Unhealthy",
        reason=told.reason or None,
        since=_at(told.since),
        attributes=dict(told.attributes),
        last_allocated=_at(told.last_allocated),
    )


def plugins(advertised: PluginReports) -> tuple[PluginStatusEntry, ...]:
    """Every plugin that is asked."""
    return tuple(map(_plugin, advertised.reports))


def _plugin(telling: PluginReport) -> PluginStatusEntry:
    return PluginStatusEntry(
        source=telling.source,
        answers=telling.answers,
        resources=tuple(sorted(telling.resources)),
        told_at=_at(telling.received_at),
        silent_since=_at(telling.silent_since),
        problem=telling.problem or None,
    )


def anomaly(found: Anomaly) -> AnomalyEntry:
    """One thing that is wrong."""
    h = found.holder
    return AnomalyEntry(
        kind=found.kind,
        resource=found.resource or None,
        device=found.device or None,
        holder=None if h is None else AnomalyHolderEntry(h.namespace, h.pod, h.container, h.pod_uid or None),
        evidence=spelled(found.evidence),
        since=_at(found.since),
        devices=found.devices,
        pods=tuple(PodName(namespace, pod) for namespace, pod in found.pods),
        numa_nodes=found.numa_nodes,
    )


def _at(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)


@dataclass(frozen=True, slots=True)
class Moment:
    """A state as it is seen at unix time `now`, on `node`; stale when older than `stale_after` seconds."""

    state: State
    node: str
    now: float
    stale_after: float

    @property
    def freshness(self) -> Freshness:
        """How far the mapping can be trusted."""
        return self.state.freshness(self.now, self.stale_after)


def devices(moment: Moment, filters: Filters) -> DevicesDocument:
    """The devices that `filters` keep."""
    state = moment.state
    kept = matching.devices(state.snapshot, filters, matching.told(state))
    return DevicesDocument(**envelope(moment), devices=tuple(device_entry(d, state) for d in kept))


def pods(moment: Moment, filters: Filters) -> PodsDocument:
    """The pods that `filters` keep, with all that they hold."""
    state = moment.state
    kept = matching.pods(state.snapshot, filters, matching.told(state))
    held = _held_devices(state)
    claimed = _held_claims(state)
    uids: dict[matching.PodKey, str] = {}
    found: dict[matching.PodKey, list[ContainerEntry]] = {key: [] for key in sorted(kept)}
    for container in state.snapshot.containers:
        holder = container.holder
        key = (holder.namespace, holder.pod)
        if key in found:
            found[key].append(_container(container, held.get(holder, ()), claimed.get(holder, ())))
            uids[key] = uids.get(key, "") or holder.pod_uid
    return PodsDocument(
        **envelope(moment),
        pods=tuple(
            _pod(namespace, name, uids[namespace, name], tuple(containers), state)
            for (namespace, name), containers in found.items()
        ),
    )


def claims(moment: Moment, wanted: Wanted) -> ClaimsDocument:
    """The claimed devices that are `wanted`, whole: with every holder."""
    state = moment.state
    kept = filter(wanted.claimed, state.snapshot.claims)
    return ClaimsDocument(**envelope(moment), claims=tuple(claim_entry(claim, state) for claim in kept))


def resources(moment: Moment, wanted: Wanted) -> ResourcesDocument:
    """Counts of the resources that are `wanted`."""
    snapshot = moment.state.snapshot

    def told(count: int) -> int | None:
        return count if snapshot.complete else None

    return ResourcesDocument(
        **envelope(moment),
        resources=tuple(
            ResourceEntry(name, c.known, told(c.allocatable), c.allocated, told(c.unhealthy), told(c.free))
            for name, c in snapshot.resources().items()
            if wanted.counted(name)
        ),
    )


def anomalies(moment: Moment, wanted: Wanted) -> AnomaliesDocument:
    """What is `wanted` of what is wrong with the devices, and with the mapping itself when it is stale."""
    found = list(moment.state.anomalies)
    if moment.freshness is Freshness.STALE:
        age = lasting(moment.state.age(moment.now) or 0.0)
        evidence = f"the mapping is {age} old; more than {lasting(moment.stale_after)} is too old"
        since = (moment.state.taken_at or 0.0) + moment.stale_after
        found.append(Anomaly("stale", "", evidence=evidence, since=since))
    found.sort(key=order)
    kept = filter(wanted.wrong, found)
    return AnomaliesDocument(**envelope(moment), anomalies=tuple(map(anomaly, kept)))


def status(
    moment: Moment, *, triggers: tuple[str, ...], poll_interval: float, version: str
) -> StatusDocument:
    """What the exporter knows of itself; answered from the start."""
    state = moment.state
    return StatusDocument(
        **envelope(moment),
        api_version=state.api_version or None,
        notes=state.notes,
        triggers=triggers,
        poll_interval_seconds=poll_interval,
        stale_after_seconds=moment.stale_after,
        version=version,
        counts=None if state.taken_at is None else _counts(state),
        plugins=plugins(state.advertised),
    )


class _Envelope(TypedDict):
    node: str
    generation: int
    taken_at: str | None
    age_seconds: float | None
    freshness: str
    error: ErrorEntry | None


def envelope(moment: Moment) -> _Envelope:
    """What every answer begins with."""
    state = moment.state
    age = state.age(moment.now)
    failure = state.failure
    return {
        "node": moment.node,
        "generation": state.generation,
        "taken_at": None if state.taken_at is None else rfc3339(state.taken_at),
        "age_seconds": None if age is None else round(age, 3),
        "freshness": moment.freshness.value,
        "error": None
        if failure is None
        else ErrorEntry(failure.method, failure.code, failure.message, rfc3339(failure.since)),
    }


def healthy(device: Device, snapshot: Snapshot) -> bool | None:
    """Whether the kubelet would hand it out; None where it cannot tell."""
    return device.allocatable if snapshot.complete else None


def _since(held: HeldKey, holder: Holder, state: State) -> tuple[str | None, bool]:
    since = state.since.get(Holding(held, holder))
    return (None, False) if since is None else (rfc3339(since.at), since.exact)


def device_entry(device: Device, state: State) -> DeviceEntry:
    """One device."""
    return DeviceEntry(
        resource=device.key.resource,
        device=device.key.device,
        parent=device.parent or None,
        numa_nodes=device.numa_nodes,
        healthy=healthy(device, state.snapshot),
        holders=tuple(
            HolderEntry(
                *(h.namespace, h.pod, h.container, h.pod_uid or None),
                *_since(device.key, h, state),
                _workload(state.pods.get((h.namespace, h.pod))),
            )
            for h in device.holders
        ),
        plugin=of_plugin(device.key, state.advertised),
    )


def _pod(
    namespace: str, name: str, uid: str, containers: tuple[ContainerEntry, ...], state: State
) -> PodEntry:
    identity = state.pods.get((namespace, name))
    if identity is None:
        return PodEntry(namespace, name, uid or None, containers)
    return PodEntry(
        *(namespace, name, uid or None, containers),
        workload=_workload(identity),
        phase=identity.phase or None,
        priority_class=identity.priority_class or None,
        labels=dict(identity.labels),
    )


def _workload(identity: PodIdentity | None) -> WorkloadEntry | None:
    if identity is None or not identity.workload.kind:
        return None
    return WorkloadEntry(identity.workload.kind, identity.workload.name)


def _held_devices(state: State) -> Mapping[Holder, list[HeldDeviceEntry]]:
    held: dict[Holder, list[HeldDeviceEntry]] = {}
    for device in state.snapshot.devices:
        key, well = device.key, healthy(device, state.snapshot)
        for holder in device.holders:
            since = _since(key, holder, state)
            entry = HeldDeviceEntry(key.resource, key.device, device.parent or None, well, *since)
            held.setdefault(holder, []).append(entry)
    return held


def _held_claims(state: State) -> Mapping[Holder, list[HeldClaimEntry]]:
    held: dict[Holder, list[HeldClaimEntry]] = {}
    for claim in state.snapshot.claims:
        key = claim.key
        for through in claim.holders:
            entry = HeldClaimEntry(
                *(through.claim_namespace, through.claim, key.driver, key.pool, key.device),
                key.share_id or None,
                *_since(claim.held(through), through.holder, state),
            )
            held.setdefault(through.holder, []).append(entry)
    return held


def _container(
    container: Container, held: Iterable[HeldDeviceEntry], claimed: Iterable[HeldClaimEntry]
) -> ContainerEntry:
    return ContainerEntry(
        name=container.holder.container,
        devices=tuple(held),
        claims=tuple(claimed),
        cpu_ids=container.cpu_ids,
        memory=tuple(MemoryEntry(m.memory_type, m.numa_nodes, m.size_bytes) for m in container.memory),
        numa_nodes=container.numa_nodes,
    )


def claim_entry(claim: ClaimDevice, state: State) -> ClaimEntry:
    """One claimed device."""
    key = claim.key
    holders = tuple(
        ClaimHolderEntry(
            *(through.claim_namespace, through.claim),
            *(through.holder.namespace, through.holder.pod, through.holder.container),
            through.holder.pod_uid or None,
            *_since(claim.held(through), through.holder, state),
        )
        for through in claim.holders
    )
    return ClaimEntry(key.driver, key.pool, key.device, key.share_id or None, claim.cdi_devices, holders)


def _counts(state: State) -> Counts:
    snapshot = state.snapshot
    by_resource = snapshot.resources().values()
    return Counts(
        resources=len(by_resource),
        devices=len(snapshot.devices),
        held=sum(c.allocated for c in by_resource),
        free=sum(c.free for c in by_resource) if snapshot.complete else None,
        unhealthy=sum(c.unhealthy for c in by_resource) if snapshot.complete else None,
        claimed_devices=len(snapshot.claims),
        containers=len(snapshot.containers),
        pods=len({(c.holder.namespace, c.holder.pod) for c in snapshot.containers}),
        anomalies=len(state.anomalies),
    )


_RELATIVES: Final = 100
"""Siblings and parts that are told, of each."""


def explained(moment: Moment, device: str, resource: str, *, reader: IdReader) -> ExplainDocument:
    """The device that is asked for. Raises UnknownDevice and AmbiguousDevice of exporter.views.explain."""
    state = moment.state
    found = explain(state, device, resource, reader=reader)
    nobody = why_nobody(found, state)
    return ExplainDocument(
        **envelope(moment),
        sentences=sentences(found, state, now=moment.now, stale_after=moment.stale_after),
        subject=found.subject.value,
        resource=found.key.resource or None,
        device=found.key.device,
        reading=_reading(found.reading),
        parent=found.parent or None,
        parent_reading=None if found.parent_reading is None else _reading(found.parent_reading),
        elsewhere=found.elsewhere,
        entry=None if found.device is None else device_entry(found.device, state),
        numa=None if found.device is None else _numa(found.device, found),
        attributed=bool(found.claimed) if found.device is None else bool(found.device.holders),
        why_nobody=nobody or None,
        siblings=tuple(device_entry(d, state) for d in found.siblings[:_RELATIVES]),
        parts=tuple(device_entry(d, state) for d in found.parts[:_RELATIVES]),
        claims=tuple(claim_entry(claim, moment.state) for claim in found.claimed),
        anomalies=tuple(map(anomaly, found.anomalies)),
    )


def _reading(reading: IdReading) -> ReadingEntry:
    return ReadingEntry(
        rule=reading.rule,
        kind=reading.kind.value,
        parent=reading.parent or None,
        replica=reading.replica or None,
        partition=reading.partition or None,
    )


def _numa(device: Device, found: Findings) -> NumaEntry:
    if not device.numa_nodes:
        return NumaEntry((), None)
    return NumaEntry(device.numa_nodes, "plugin" if found.numa_by_plugin else "kubelet")


_UNSEEN_LIMIT: Final = 100


def history(moment: Moment, asked: Asked, found: HistoryResult) -> HistoryDocument:
    """The answer to `asked`."""
    question = asked.question
    ranged = asked.at is None
    return HistoryDocument(
        **envelope(moment),
        at=_time(asked.at),
        since=_time(question.since) if ranged else None,
        until=_time(question.until) if ranged else None,
        earliest=_time(found.earliest),
        latest=_time(found.latest),
        complete=not found.unseen,
        unseen=tuple(map(_unseen, found.unseen[-_UNSEEN_LIMIT:])),
        unseen_left_out=max(0, len(found.unseen) - _UNSEEN_LIMIT),
        holdings=tuple(_row(row, asked.at, found) for row in found.rows),
        next=None if found.next is None else write_cursor(found.next),
        resources=tuple(found.resources),
        kept_in=found.kept_in,
        trouble=found.trouble or None,
    )


def tag(document: HistoryDocument, asked: Asked, found: HistoryResult) -> str:
    """Names what `document` says; made of all of it but for ages.

    The last look (`latest`) moves on every few seconds. Of a time that had ended by then it says nothing,
    and does not count.
    """
    until = asked.question.until
    over = until is not None and found.latest is not None and until <= found.latest
    lasting = msgspec.structs.replace(
        document, taken_at=None, age_seconds=None, latest=None if over else document.latest
    )
    return blake2s(repr(lasting).encode(errors="surrogatepass"), digest_size=9).hexdigest()


def _row(row: HoldingRow, at: float | None, found: HistoryResult) -> PastEntry:
    key, facts = row.key, row.facts
    return PastEntry(
        id=row.id,
        node=facts.node,
        resource=key.resource or None,
        device=key.device,
        parent=facts.parent or None,
        driver=key.driver or None,
        pool=key.pool or None,
        share_id=key.share_id or None,
        claim_namespace=key.claim_namespace or None,
        claim=key.claim or None,
        namespace=key.namespace,
        pod=key.pod,
        pod_uid=facts.uid or None,
        container=key.container,
        workload_kind=facts.workload_kind or None,
        workload=facts.workload or None,
        start=_bound(row.start),
        end=_end(row),
        assumed=row.assumed,
        certain=None if at is None else _certain(row, at, found),
    )


def _end(row: HoldingRow) -> BoundEntry | None:
    if row.missed is not None:
        return _bound(Bound(row.missed.not_before, None, Certainty.IN_DOUBT))
    return None if row.end is None else _bound(row.end)


def _certain(row: HoldingRow, at: float, found: HistoryResult) -> bool:
    """Whether it was surely held at that moment, which counts for less where nobody looked."""
    if not row.surely_held_at(at):
        return False
    if row.end is None and (found.latest is None or at > found.latest):
        return not found.unseen
    return not (row.assumed and found.unseen)


def _bound(bound: Bound) -> BoundEntry:
    return BoundEntry(_time(bound.not_before), _time(bound.not_after), bound.certainty.value)


def _unseen(unseen: CoverageGap) -> UnseenEntry:
    return UnseenEntry(_time(unseen.since), _time(unseen.until), unseen.why.value)


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)
