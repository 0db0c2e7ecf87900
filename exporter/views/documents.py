"""The JSON API's documents (exporter.views.schema), made of the state and of history. Pure."""

from collections.abc import Iterable
from hashlib import blake2s
from typing import Final, TypedDict

import msgspec

from exporter.history.coverage import CoverageGap
from exporter.history.query import HistoryResult, write_cursor
from exporter.history.record import Bound, Certainty, HoldingRow
from exporter.mapping.anomalies import order
from exporter.mapping.device_health import DeviceHealth
from exporter.mapping.device_ids import IdReader, IdReading
from exporter.mapping.device_status import DeviceStatus, PluginStatus
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import Anomaly, Claimed, Container, Device, Holder, PluginReport, ResourceCounts
from exporter.mapping.pod_status import PodStatus, pod_statuses
from exporter.mapping.state import Freshness, Moment, State
from exporter.views import schema
from exporter.views.claimed import Share, shares
from exporter.views.encoding import encode
from exporter.views.explain import DeviceFacts, explain, sentences
from exporter.views.matching import ItemMatcher
from exporter.views.query import WHOLE, HistoryRequest, ListQuery
from exporter.views.verdict import device_verdict
from exporter.views.wording import lasting, rfc3339, spelled

_RELATIVES: Final = 100
"""Siblings and parts in a document, of each."""
_UNSEEN: Final = 100
"""Gaps in a history document."""


def devices(moment: Moment, query: ListQuery = WHOLE) -> schema.DevicesDocument:
    """The devices that match."""
    state = moment.state
    matcher = ItemMatcher.of(state, query.filters)
    found, following = query.paging.of(state.devices, lambda one: one.device.key, matcher.device)
    entries = tuple(map(device_entry, found))
    return schema.DevicesDocument(**envelope(moment), next=following, devices=entries)


def pods(moment: Moment, query: ListQuery = WHOLE) -> schema.PodsDocument:
    """The pods that match, with all that they hold."""
    state, filters = moment.state, query.filters
    statuses = list(pod_statuses(state, {}).values())
    kept = ItemMatcher.of(state, filters).pods(state) if filters.any else None
    found, following = query.paging.of(
        statuses, lambda one: one.key, lambda one: kept is None or one.key in kept
    )
    return schema.PodsDocument(**envelope(moment), next=following, pods=tuple(map(pod_entry, found)))


def claims(moment: Moment, query: ListQuery = WHOLE) -> schema.ClaimsDocument:
    """The shares of claimed devices that match, with every holder."""
    state = moment.state
    matcher = ItemMatcher.of(state, query.filters)
    every = sorted([one for device in state.snapshot.devices for one in shares(device)], key=_share_key)
    found, following = query.paging.of(
        every, _share_key, lambda one: matcher.device(DeviceStatus(one.device))
    )
    entries = tuple(claim_entry(one, state) for one in found)
    return schema.ClaimsDocument(**envelope(moment), next=following, claims=entries)


def _share_key(share: Share) -> tuple[str, ...]:
    return *share.claimed.name, share.share_id


def resources(moment: Moment, query: ListQuery = WHOLE) -> schema.ResourcesDocument:
    """The counts of the resources that match."""
    state = moment.state
    matcher = ItemMatcher.of(state, query.filters)
    found, following = query.paging.of(
        list(state.resources().items()), lambda one: one[:1], lambda one: matcher.resource(one[0])
    )
    return schema.ResourcesDocument(
        **envelope(moment),
        next=following,
        resources=tuple(
            _resource(name, counts, known=state.snapshot.knows_all(name)) for name, counts in found
        ),
    )


def _resource(name: str, counts: ResourceCounts, *, known: bool) -> schema.ResourceEntry:
    """The counts of one resource; `known`: its free devices are known."""
    return schema.ResourceEntry(
        resource=name,
        known=counts.known,
        allocatable=counts.allocatable if known else None,
        allocated=counts.allocated,
        unhealthy=counts.unhealthy if known else None,
        free=counts.free if known else None,
        unavailable=counts.unavailable if known else None,
        held_unhealthy=counts.held_unhealthy if known else None,
        alternatives=counts.alternatives,
    )


def anomalies(moment: Moment, query: ListQuery = WHOLE) -> schema.AnomaliesDocument:
    """The anomalies that match, including that of a stale mapping."""
    state = moment.state
    known = list(state.anomalies)
    if moment.freshness is Freshness.STALE:
        age = lasting(state.age(moment.now) or 0.0)
        evidence = f"the mapping is {age} old; more than {lasting(moment.stale_after)} is too old"
        since = (state.taken_at or 0.0) + moment.stale_after
        known.append(Anomaly("stale", "", evidence=evidence, since=since))
    found, following = query.paging.of(
        sorted(known, key=order),
        lambda one: (one.kind, one.resource, one.device, *(one.holder or ())),
        ItemMatcher.of(state, query.filters).anomaly,
    )
    entries = tuple(map(anomaly, found))
    return schema.AnomaliesDocument(**envelope(moment), next=following, anomalies=entries)


def status(
    moment: Moment, *, triggers: tuple[str, ...], poll_interval: float, version: str
) -> schema.StatusDocument:
    """The exporter itself."""
    state = moment.state
    return schema.StatusDocument(
        **envelope(moment),
        api_version=state.api_version or None,
        notes=state.notes,
        triggers=triggers,
        poll_interval_seconds=poll_interval,
        stale_after_seconds=moment.stale_after,
        version=version,
        counts=None if state.taken_at is None else _counts(state),
        plugins=tuple(map(_plugin_status, state.advertised.reports)),
        sources=tuple(schema.SourceEntry(one.name, one.up, one.problem or None) for one in state.sources),
    )


class _Envelope(TypedDict):
    node: str
    generation: int
    taken_at: str | None
    age_seconds: float | None
    freshness: str
    error: schema.ErrorEntry | None


def envelope(moment: Moment) -> _Envelope:
    """The members that every document begins with."""
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
        else schema.ErrorEntry(failure.method, failure.code, failure.message, rfc3339(failure.since)),
    }


def anomaly(found: Anomaly) -> schema.AnomalyEntry:
    """One anomaly."""
    h = found.holder
    return schema.AnomalyEntry(
        kind=found.kind,
        resource=found.resource or None,
        device=found.device or None,
        holder=None
        if h is None
        else schema.AnomalyHolderEntry(h.namespace, h.pod, h.container, h.pod_uid or None),
        evidence=spelled(found.evidence),
        since=_time(found.since),
        devices=found.devices,
        pods=tuple(schema.PodName(namespace, pod) for namespace, pod in found.pods),
        numa_nodes=found.numa_nodes,
    )


def _plugin(found: PluginStatus | None) -> schema.PluginEntry | None:
    """What its plugin reports of a device; None where no plugin does."""
    if found is None:
        return None
    device = found.device
    return schema.PluginEntry(
        source=found.source,
        answers=found.answers,
        health="Healthy" if device.healthy else "Unhealthy",
        reason=device.reason or None,
        since=_time(device.since),
        attributes=dict(device.attributes),
        last_allocated=_time(device.last_allocated),
    )


def _plugin_status(report: PluginReport) -> schema.PluginStatusEntry:
    return schema.PluginStatusEntry(
        source=report.source,
        answers=report.answers,
        resources=tuple(sorted(report.resources)),
        told_at=_time(report.received_at),
        silent_since=_time(report.silent_since),
        problem=report.problem or None,
    )


def _since(found: HeldSince | None) -> tuple[str | None, bool]:
    return (None, False) if found is None else (rfc3339(found.at), found.exact)


def device_entry(status: DeviceStatus) -> schema.DeviceEntry:
    """One device."""
    device = status.device
    return schema.DeviceEntry(
        resource=device.key.resource,
        device=device.key.device,
        parent=device.parent or None,
        numa_nodes=device.numa_nodes,
        healthy=status.healthy,
        holders=tuple(
            [
                schema.HolderEntry(
                    *(holder.namespace, holder.pod, holder.container, holder.pod_uid or None),
                    *_since(since),
                    _workload(identity),
                    doubt is None,
                    choice.device or None,
                    not choice.doubt,
                    requested_as or None,
                )
                for holder, since, identity, doubt, requested_as, choice in status.holders
            ]
        ),
        plugin=_plugin(status.plugin),
        no_longer_offered_since=_time(device.no_longer_offered_since),
        free=status.free,
        identity=None if status.identity is None else schema.IdentityEntry(*status.identity),
        claimed=None if device.claimed is None else _claimed(device.claimed, alternative=device.alternative),
    )


def _claimed(claimed: Claimed, *, alternative: bool) -> schema.ClaimedEntry:
    """What DRA says about a device."""
    published = claimed.published
    return schema.ClaimedEntry(
        *claimed.name,
        cdi_devices=claimed.cdi_devices,
        capacity={} if published is None else dict(published.capacity),
        attributes={} if published is None else dict(published.attributes),
        taints=()
        if published is None
        else tuple([schema.TaintEntry(*taint[:3], _time(taint.since)) for taint in published.taints]),
        shareable=None if published is None else published.shareable,
        alternative=alternative,
        through=tuple(
            [
                schema.ThroughEntry(
                    *(one.holder.namespace, one.holder.pod, one.holder.container),
                    *(one.claim_namespace, one.claim, one.share_id or None),
                    *(one.request or None, one.requested_as or None, one.admin),
                )
                for one in claimed.through
            ]
        ),
        reserved=tuple([schema.ReservedEntry(*one) for one in claimed.reserved]),
    )


def pod_entry(status: PodStatus) -> schema.PodEntry:
    """One pod with all that it holds."""
    held: dict[Holder, list[schema.HeldDeviceEntry]] = {}
    for one in status.devices:
        device = one.device
        for holder, since, _, _, requested_as, choice in one.holders:
            if holder[:2] == status.key:
                known = (device.key.resource, device.key.device, choice.parent(device) or None, one.healthy)
                entry = schema.HeldDeviceEntry(*known, *_since(since), not choice.doubt, requested_as or None)
                held.setdefault(holder, []).append(entry)
    claimed: dict[Holder, list[schema.HeldClaimEntry]] = {}
    for name, through, since in status.claims:
        names = (through.claim_namespace, through.claim, name.driver, name.pool, name.device)
        claim = schema.HeldClaimEntry(*names, through.share_id or None, *_since(since))
        claimed.setdefault(through.holder, []).append(claim)
    containers = tuple(
        [_container(one, held.get(one.holder, ()), claimed.get(one.holder, ())) for one in status.containers]
    )
    uid = next((one.holder.pod_uid for one in status.containers if one.holder.pod_uid), None)
    identity, confirmed = status.identity, status.doubt is None
    if identity is None:
        return schema.PodEntry(*status.key, uid, containers, confirmed=confirmed)
    return schema.PodEntry(
        *(*status.key, uid, containers),
        confirmed=confirmed,
        workload=_workload(identity),
        phase=identity.phase or None,
        priority_class=identity.priority_class or None,
        labels=dict(identity.labels),
    )


def _workload(identity: PodIdentity | None) -> schema.WorkloadEntry | None:
    if identity is None or not identity.workload.kind:
        return None
    return schema.WorkloadEntry(identity.workload.kind, identity.workload.name)


def _container(
    container: Container, held: Iterable[schema.HeldDeviceEntry], claimed: Iterable[schema.HeldClaimEntry]
) -> schema.ContainerEntry:
    return schema.ContainerEntry(
        name=container.holder.container,
        devices=tuple(held),
        claims=tuple(claimed),
        cpu_ids=container.cpu_ids,
        memory=tuple(schema.MemoryEntry(m.memory_type, m.numa_nodes, m.size_bytes) for m in container.memory),
        numa_nodes=container.numa_nodes,
    )


def claim_entry(share: Share, state: State) -> schema.ClaimEntry:
    """One share of a claimed device."""
    claimed, key = share.claimed, share.device.key
    holders = tuple(
        schema.ClaimHolderEntry(
            *(one.claim_namespace, one.claim),
            *(one.holder.namespace, one.holder.pod, one.holder.container),
            one.holder.pod_uid or None,
            *_since(state.since.get(Holding(key, one.holder))),
            state.snapshot.doubt(one.holder) is None,
        )
        for one in claimed.through
    )
    return schema.ClaimEntry(*claimed.name, share.share_id or None, claimed.cdi_devices, holders)


def _counts(state: State) -> schema.Counts:
    snapshot = state.snapshot
    by_resource = state.resources()
    numbers = [counts for name, counts in by_resource.items() if snapshot.knows_all(name)]
    known = snapshot.complete or bool(numbers)
    return schema.Counts(
        resources=len(by_resource),
        devices=sum(c.known for c in by_resource.values()),
        held=sum(c.allocated for c in by_resource.values()),
        free=sum(c.free for c in numbers) if known else None,
        unhealthy=sum(c.unhealthy for c in numbers) if known else None,
        unavailable=sum(c.unavailable for c in numbers) if known else None,
        held_unhealthy=sum(c.held_unhealthy for c in numbers) if known else None,
        claimed_devices=sum(1 for one in snapshot.devices if one.claimed is not None and one.holders),
        containers=len(snapshot.containers),
        pods=len({(c.holder.namespace, c.holder.pod) for c in snapshot.containers}),
        anomalies=len(state.anomalies),
        unconfirmed_pods=len(snapshot.unconfirmed),
    )


def explained(moment: Moment, device: str, resource: str, *, reader: IdReader) -> schema.ExplainDocument:
    """One device explained.

    Raises NotKnownYet, UnknownDevice and AmbiguousDevice of exporter.views.explain.
    """
    state, entry = moment.state, moment.state.status_of
    facts = explain(state, device, resource, reader=reader)
    verdict = device_verdict(facts, moment.freshness)
    return schema.ExplainDocument(
        **envelope(moment),
        severity=verdict.severity.value,
        sentences=(
            verdict.on(spelled(facts.key.device)),
            *sentences(facts, state, now=moment.now, stale_after=moment.stale_after),
        ),
        subject=facts.subject.value,
        resource=facts.key.resource or None,
        device=facts.key.device,
        reading=_reading(facts.reading),
        parent=facts.parent or None,
        parent_reading=None if facts.parent_reading is None else _reading(facts.parent_reading),
        elsewhere=facts.elsewhere,
        entry=None if facts.device is None else device_entry(entry(facts.device)),
        health=None if facts.health is None else _health(facts.health),
        numa=None if facts.device is None else _numa(facts.device, facts),
        attributed=facts.device is not None and bool(facts.device.holders),
        why_nobody=facts.why_nobody or None,
        siblings=tuple(device_entry(entry(d)) for d in facts.siblings[:_RELATIVES]),
        parts=tuple(device_entry(entry(d)) for d in facts.parts[:_RELATIVES]),
        claims=() if facts.device is None else tuple(claim_entry(one, state) for one in shares(facts.device)),
        anomalies=tuple(map(anomaly, facts.anomalies)),
    )


def _reading(reading: IdReading) -> schema.ReadingEntry:
    return schema.ReadingEntry(
        rule=reading.rule,
        kind=reading.kind.value,
        parent=reading.parent or None,
        replica=reading.replica or None,
        partition=reading.partition or None,
    )


def _health(found: DeviceHealth) -> schema.HealthEntry:
    return schema.HealthEntry(
        found.kind, found.words, found.reason or None, _time(found.since), found.source or None
    )


def _numa(device: Device, facts: DeviceFacts) -> schema.NumaEntry:
    if not device.numa_nodes:
        return schema.NumaEntry((), None)
    source = "plugin" if facts.numa_by_plugin else "driver" if device.claimed is not None else "kubelet"
    return schema.NumaEntry(device.numa_nodes, source)


def history(moment: Moment, query: HistoryRequest, found: HistoryResult) -> schema.HistoryDocument:
    """The answer to a history query."""
    question = query.question
    ranged = query.at is None
    return schema.HistoryDocument(
        **envelope(moment),
        at=_time(query.at),
        since=_time(question.since) if ranged else None,
        until=_time(question.until) if ranged else None,
        earliest=_time(found.earliest),
        latest=_time(found.latest),
        complete=not found.unseen,
        unseen=tuple(map(_unseen, found.unseen[-_UNSEEN:])),
        unseen_left_out=max(0, len(found.unseen) - _UNSEEN),
        holdings=tuple(_past(row, query.at, found) for row in found.rows),
        next=None if found.next is None else write_cursor(found.next),
        resources=tuple(found.resources),
        kept_in=found.kept_in,
        trouble=found.trouble or None,
        matched=tuple(schema.MatchedEntry(*match) for match in found.matches),
        devices=tuple(
            schema.PastDeviceEntry(*device.key, device.parent or None, device.state, device.healthy)
            for device in found.devices
        ),
        devices_recorded=found.devices_recorded,
        held_only=tuple(found.held_only),
    )


def history_tag(document: schema.HistoryDocument, query: HistoryRequest, found: HistoryResult) -> str:
    """The ETag of a history document, made of its content except ages.

    The time of the last refresh (`latest`) counts only where the queried time extends to it.
    """
    until = query.question.until
    over = until is not None and found.latest is not None and until <= found.latest
    content = msgspec.structs.replace(
        document, taken_at=None, age_seconds=None, latest=None if over else document.latest
    )
    return blake2s(encode(content), digest_size=9).hexdigest()


def _past(row: HoldingRow, at: float | None, found: HistoryResult) -> schema.PastEntry:
    key, facts = row.key, row.facts
    return schema.PastEntry(
        id=row.id,
        node=facts.node,
        resource=key.resource,
        device=key.device,
        parent=facts.parent or None,
        requested_as=facts.requested_as or (None if facts.claim else key.resource),
        driver=key.resource if row.pool else None,
        pool=row.pool or None,
        share_id=facts.share_id or None,
        claim_namespace=facts.claim_namespace or None,
        claim=facts.claim or None,
        namespace=key.namespace,
        pod=key.pod,
        pod_uid=facts.uid or None,
        container=key.container,
        workload_kind=facts.workload_kind or None,
        workload=facts.workload or None,
        start=_bound(row.start),
        end=_end(row),
        assumed=row.assumed,
        certain=None if at is None else surely_held(row, at, found),
    )


def _end(row: HoldingRow) -> schema.BoundEntry | None:
    if row.missed is not None:
        return _bound(Bound(row.missed.not_before, None, Certainty.IN_DOUBT))
    return None if row.end is None else _bound(row.end)


def surely_held(row: HoldingRow, at: float, found: HistoryResult) -> bool:
    """Whether the device was surely held at `at`, given the gaps in observation."""
    if not row.surely_held_at(at):
        return False
    if row.end is None and (found.latest is None or at > found.latest):
        return not found.unseen
    return not (row.assumed and found.unseen)


def _bound(bound: Bound) -> schema.BoundEntry:
    return schema.BoundEntry(_time(bound.not_before), _time(bound.not_after), bound.certainty.value)


def _unseen(unseen: CoverageGap) -> schema.UnseenEntry:
    return schema.UnseenEntry(_time(unseen.since), _time(unseen.until), unseen.why.value)


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)
