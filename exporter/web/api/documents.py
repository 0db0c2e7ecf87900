"""The JSON API's documents, made of the state. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from exporter.core.anomalies import Anomaly, order
from exporter.core.diff import Holding
from exporter.core.identity import Identity
from exporter.core.model import ClaimDevice, Container, Device, HeldKey, Holder, Snapshot
from exporter.core.state import Freshness, State
from exporter.web import matching
from exporter.web.api import entries
from exporter.web.api.filters import Wanted
from exporter.web.api.schema import (
    AnomaliesDocument,
    ClaimEntry,
    ClaimHolderEntry,
    ClaimsDocument,
    ContainerEntry,
    Counts,
    DeviceEntry,
    DevicesDocument,
    ErrorEntry,
    HeldClaimEntry,
    HeldDeviceEntry,
    HolderEntry,
    MemoryEntry,
    PodEntry,
    PodsDocument,
    ResourceEntry,
    ResourcesDocument,
    StatusDocument,
    WorkloadEntry,
)
from exporter.web.query import Filters
from exporter.web.words import lasting, rfc3339


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
    return AnomaliesDocument(**envelope(moment), anomalies=tuple(map(entries.anomaly, kept)))


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
        plugins=entries.plugins(state.advertised),
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
        plugin=entries.of_plugin(device.key, state.advertised),
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


def _workload(identity: Identity | None) -> WorkloadEntry | None:
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
