"""Turns the kubelet's answers into updates of the state.

`SnapshotPipeline.process` runs these steps, each a pure module of exporter.mapping: decode the List
(listing), identify its pods (identity), build the snapshot (snapshot, device_memory), carry over what a List
after a restart leaves out (restart_guard, carried), collect what is known of each device (device_status),
find anomalies (anomaly_tracker) and date the holdings (holdings).
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError
from msgspec import Struct
from msgspec.structs import replace

from exporter.mapping.anomaly_tracker import AnomalyTracker
from exporter.mapping.carried import carry_over
from exporter.mapping.claimed_devices import NO_CLAIMS, ClaimFacts, claim_facts, contradicted
from exporter.mapping.device_memory import FORGET_AFTER, DeviceMemory
from exporter.mapping.device_status import DeviceStatuses, device_statuses
from exporter.mapping.dra import NO_DRA, ClaimName, DraView, PodDevices, SourceStatus
from exporter.mapping.holdings import HeldSince, Holding, HoldingChanges, HoldingTracker, OpenHoldings
from exporter.mapping.identity import (
    NEVER,
    PodIdentity,
    PodView,
    Poll,
    identify,
    pods_with_new_holdings,
)
from exporter.mapping.listing import LARGE, ListedPods, ListReader
from exporter.mapping.model import NO_REPORTS, Anomaly, DeviceKey, Doubt, PluginReports, PodKey, Snapshot
from exporter.mapping.restart_guard import DISTRUST, Restart, at_start, doubted, holding_pods, restarted
from exporter.mapping.snapshot import SnapshotBuilder
from exporter.mapping.state import UNSETTLED
from exporter.mapping.unattributed import PodsSeen
from kubelet.pb.podresources.v1 import api_pb2
from kubelet.podresources import KubeletError, Raw, decode_allocatable, undecodable


class Update(Struct, frozen=True):
    """The content of a good answer. `changes` is None if the holdings are those of the answer before.

    `pods` are the identities of holders with a proven uid. `advertised` are the plugin reports used.
    `statuses` has all of that for each device. `allocatable_error`: GetAllocatableResources failed, and the
    allocatable devices are older. `notes` say what the snapshot leaves out, `claims` which claims List names,
    `sources` whether those of DRA facts work.
    """

    snapshot: Snapshot
    since: Mapping[Holding, HeldSince]
    changes: HoldingChanges | None
    anomalies: tuple[Anomaly, ...]
    pods: Mapping[PodKey, PodIdentity]
    advertised: PluginReports
    statuses: DeviceStatuses
    allocatable_error: KubeletError | None = None
    notes: tuple[str, ...] = ()
    claims: frozenset[ClaimName] = frozenset()
    sources: tuple[SourceStatus, ...] = ()


class _Answer(Struct, frozen=True):
    """One decoded answer, and the pods and reports that it is read with.

    `offered` is `allocatable`, with devices that count as allocatable besides. `restart` is the kubelet's
    last one while pods are missing since, `restarted_at` the time of the last one that was noticed.
    """

    raw: Raw
    listed: ListedPods
    allocatable: api_pb2.AllocatableResourcesResponse | None
    offered: api_pb2.AllocatableResourcesResponse | None
    error: KubeletError | None
    poll: Poll
    view: PodView
    advertised: PluginReports
    dra: DraView
    restarted_at: float
    restart: Restart | None = None


class SnapshotPipeline:
    """Processes one answer after the other, in a thread beside the event loop."""

    def __init__(
        self,
        builder: SnapshotBuilder | None = None,
        anomalies: AnomalyTracker | None = None,
        *,
        keep_allocatable: float,
        forget_after: float = FORGET_AFTER,
        node: str = "",
    ) -> None:
        """`keep_allocatable`: seconds for which the last answer of GetAllocatableResources is used while the
        method fails; `forget_after`: for which a device that is no longer offered stays. `node` is this
        node's name.
        """
        self._node = node
        self._keep_allocatable = keep_allocatable
        self._list_reader = ListReader()
        self._builder = builder or SnapshotBuilder()
        self._claims: ClaimFacts = NO_CLAIMS
        self._memory = self._next_memory = DeviceMemory(forget_after)
        self._anomalies = anomalies or AnomalyTracker()
        self._holdings = HoldingTracker()
        self._recorded: OpenHoldings | None = None
        self._last: _Answer | None = None
        self._poll = Poll(-NEVER, -NEVER)
        self._update: Update | None = None
        self._allocatable_at = -NEVER
        self._decoded_offer: tuple[bytes, api_pb2.AllocatableResourcesResponse] | None = None
        self._asked, self._offset = 0.0, 0.0

    def unread_claims(self, raw: Raw, dra: DraView) -> frozenset[ClaimName]:
        """The claims that the answer `raw` names and of which `dra` says nothing, or has other devices than
        List, and those that another pod uses now: Kubernetes allocates a claim anew, under its name, when no
        pod has it, and users delete claims and make them again. None of an answer that does not decode, or
        that is too large to be decoded twice.
        """
        last = self._last
        if len(raw.listed) > LARGE or (last is not None and raw.listed == last.raw.listed):
            return frozenset()
        try:
            listed = self._list_reader.read(raw.listed)
        except DecodeError:
            return frozenset()
        used = listed.used_anew(ListedPods(()) if last is None else last.listed)
        return (listed.claims() - dra.claims.keys()) | used | frozenset(contradicted(listed, dra.claims))

    def restore(self, recorded: OpenHoldings) -> None:
        """Have the next answer take over the starts from history. May be called from another thread."""
        self._recorded = recorded

    def process(
        self,
        raw: Raw,
        now: float,
        *,
        poll: Poll,
        view: PodView,
        advertised: PluginReports = NO_REPORTS,
        dra: DraView = NO_DRA,
        restarted_at: float = -NEVER,
    ) -> Update | None:
        """Process the answer `raw`, received at unix time `now`.

        `poll` says when List was called and returned, `restarted_at` when the kubelet last restarted, by one
        monotonic clock. `view` are the known pods, `advertised` the plugin reports, `dra` the facts of claims
        and slices.

        Returns None if only List was called and a held device in it is not known to be allocatable or
        unhealthy: GetAllocatableResources must be called before the device counts as unhealthy.

        Raises KubeletError for a List that does not decode, and with the code UNSETTLED for a first one that
        is not believed (exporter.mapping.restart_guard).
        """
        self._asked, self._offset = now - (poll.answered - poll.asked), now - poll.answered
        last, update = self._last, self._update
        forgets = self._memory.expired(poll.answered)
        if (
            last is not None
            and update is not None
            and not forgets
            and self._unchanged(raw, view, advertised, dra, last)
        ):
            self._poll = poll
            if raw.asked_allocatable:
                self._allocatable_at = poll.answered
            # Some anomalies depend on time alone.
            anomalies = self._anomalies_of(update.statuses, last, now)
            self._update = replace(update, changes=None, anomalies=anomalies)
            return self._update
        answer, doubts = self._doubted(self._decoded(raw, poll, (view, advertised, dra), restarted_at))
        snapshot, pods = self._identified(answer)
        known = frozenset[DeviceKey]() if update is None else update.snapshot.held_unhealthy
        unknown = snapshot.held_unhealthy - known
        if unknown and answer.error is None and not raw.asked_allocatable:
            return None
        if unknown and answer.error is not None and answer.offered is not None:
            # kubelet: it allocates healthy devices only, and nothing shows that these failed since.
            offered = _with_devices(answer.offered, unknown)
            answer = replace(answer, allocatable=offered, offered=offered)
            snapshot, pods = self._identified(answer)
        if update is None:
            age, names = raw.socket_age, answer.listed.names()
            reason = at_start(snapshot, names, view, now=poll.answered, socket_age=age)
            if reason is not None:
                raise KubeletError("List", UNSETTLED, reason)
        return self._updated(answer, *self._carried(snapshot, pods, doubts), now)

    def reconsider(
        self,
        now: float,
        view: PodView,
        advertised: PluginReports = NO_REPORTS,
        dra: DraView = NO_DRA,
    ) -> Update | None:
        """Read the last answer again with the present pods, plugin reports, and DRA facts; None if there is
        none.
        """
        if self._last is None:
            return None
        answer = replace(self._last, poll=self._poll, view=view, advertised=advertised, dra=dra)
        doubts = self._doubts(answer, now - self._offset)
        return self._updated(answer, *self._carried(*self._identified(answer), doubts), now)

    def _unchanged(
        self, raw: Raw, view: PodView, advertised: PluginReports, dra: DraView, last: _Answer
    ) -> bool:
        return (
            view is last.view
            and advertised is last.advertised
            and dra is last.dra
            and self._recorded is None
            and raw.allocatable_error is None
            and last.error is None
            and last.restart is None
            and _comparable(raw) == last.raw
        )

    def _decoded(
        self, raw: Raw, poll: Poll, facts: tuple[PodView, PluginReports, DraView], restarted_at: float
    ) -> _Answer:
        try:
            listed = self._list_reader.read(raw.listed)
        except DecodeError as error:
            raise undecodable("List", raw.listed, error) from error
        failure = raw.allocatable_error
        allocatable: api_pb2.AllocatableResourcesResponse | None = None
        if not raw.asked_allocatable:
            failure = None if self._last is None else self._last.error
        elif failure is None and raw.allocatable is not None:
            try:
                allocatable = self._allocatable(raw.allocatable)
            except KubeletError as error:
                failure = error
        if failure is not None or not raw.asked_allocatable:
            expired = failure is not None and poll.answered - self._allocatable_at > self._keep_allocatable
            allocatable = None if expired or self._last is None else self._last.allocatable
        return _Answer(raw, listed, allocatable, allocatable, failure, poll, *facts, restarted_at)

    def _allocatable(self, data: bytes) -> api_pb2.AllocatableResourcesResponse:
        """Decode an answer of GetAllocatableResources. The same bytes are the same message, which is not
        compared again. Raises KubeletError.
        """
        digest = blake2b(data).digest()
        if self._decoded_offer is None or self._decoded_offer[0] != digest:
            self._decoded_offer = digest, decode_allocatable(data)
        return self._decoded_offer[1]

    def _doubted(self, answer: _Answer) -> tuple[_Answer, Mapping[PodKey, Doubt]]:
        """`answer` with the restart that it follows, and the pods that it leaves out for that."""
        last, update, now = self._last, self._update, answer.poll.answered
        if last is None or update is None:
            return answer, {}
        restart, restarted_at = last.restart, answer.restarted_at
        if restart is None and restarted_at == -NEVER:
            return answer, {}
        names, held = answer.listed.names(), holding_pods(update.snapshot)
        # An answer that was requested before the restart may be of either kubelet.
        if restarted_at > -NEVER and (restarted_at != last.restarted_at or self._poll.asked < restarted_at):
            before = last.listed.names()
            restart = restarted(
                restarted_at,
                restarted_at + self._offset,
                before=before,
                held=held,
                node=self._node,
                last=restart,
            )
        elif restart is not None:
            held = {key: uid for key, uid in held.items() if key in update.snapshot.unconfirmed}
        if restart is None:
            return answer, {}
        restart = restart.listed(names, node=self._node, now=now)
        missing = {key: uid for key, uid in held.items() if key not in names}
        doubts = doubted(missing, answer.view, restart, now)
        if not doubts:
            return answer, {}
        if now < restart.at + DISTRUST:
            # kubelet: nothing is allocatable until the plugins have registered again.
            answer = replace(answer, offered=_with_resources(answer.allocatable, last.offered))
        return replace(answer, restart=restart), doubts

    def _doubts(self, answer: _Answer, now: float) -> Mapping[PodKey, Doubt]:
        """The pods that are in doubt at `now`, of those that were."""
        update = self._update
        if update is None or answer.restart is None:
            return {}
        held = holding_pods(update.snapshot)
        missing = {key: held[key] for key in update.snapshot.unconfirmed}
        return doubted(missing, answer.view, answer.restart, now)

    def _carried(
        self, snapshot: Snapshot, pods: Mapping[PodKey, PodIdentity], doubts: Mapping[PodKey, Doubt]
    ) -> tuple[Snapshot, Mapping[PodKey, PodIdentity]]:
        """The snapshot and identities with those of the pods in doubt."""
        before = self._update
        if before is None or not doubts:
            return snapshot, pods
        snapshot = carry_over(snapshot, before.snapshot, doubts, self._builder.cpu_numa)
        kept = {key: before.pods[key] for key in snapshot.unconfirmed if key in before.pods}
        return snapshot, MappingProxyType(dict(sorted({**pods, **kept}.items())))

    def _identified(self, answer: _Answer) -> tuple[Snapshot, Mapping[PodKey, PodIdentity]]:
        """The snapshot with the uids that are known, and the identities of its holders."""
        before = self._update
        known = {} if before is None else before.pods
        pods, continued = identify(answer.listed.names(), known, answer.view, answer.poll)
        snapshot = self._built(answer, pods)
        if continued and before is not None and snapshot != before.snapshot:
            doubtful = continued & pods_with_new_holdings(before.snapshot, snapshot)
            if doubtful:
                pods = {key: identity for key, identity in pods.items() if key not in doubtful}
                snapshot = self._built(answer, pods)
        at = answer.poll.answered
        memory = self._memory.after(snapshot, now=at + self._offset, at=at)
        if memory.devices is not self._memory.devices:
            snapshot = self._built(answer, pods, memory)
        self._next_memory = memory
        holding = {found.holder[:2] for found in snapshot.containers}
        return snapshot, MappingProxyType({key: pods[key] for key in sorted(holding & pods.keys())})

    def _built(
        self, answer: _Answer, pods: Mapping[PodKey, PodIdentity], memory: DeviceMemory | None = None
    ) -> Snapshot:
        self._claims = claim_facts(self._node, answer.dra, _pods_with_claims(answer), self._claims)
        return self._builder.build(
            answer.listed,
            answer.offered,
            pod_uids={key: identity.uid for key, identity in pods.items()},
            advertised=answer.advertised.devices,
            remembered=(memory or self._memory).devices,
            claims=self._claims,
        )

    def _anomalies_of(self, statuses: DeviceStatuses, answer: _Answer, now: float) -> tuple[Anomaly, ...]:
        pods = PodsSeen(answer.view, self._offset)
        times = {"asked": self._asked, "now": now}
        return self._anomalies.advance(statuses, **times, pods=pods, claims=self._claims)

    def _updated(
        self, answer: _Answer, snapshot: Snapshot, pods: Mapping[PodKey, PodIdentity], now: float
    ) -> Update:
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            self._holdings.restore(recorded)
        before = self._update
        # The same objects where nothing changed: the state's generation then stays.
        if before is not None and snapshot == before.snapshot:
            snapshot = before.snapshot
        if before is not None and pods == before.pods:
            pods = before.pods
        self._memory = self._next_memory.built(snapshot)
        last = None if before is None else before.statuses
        statuses = device_statuses(snapshot, self._holdings.since, pods, answer.advertised, last)
        anomalies = self._anomalies_of(statuses, answer, now)
        # The tracker of holdings comes last: what fails before it leaves every step as it was.
        unchanged = before is not None and snapshot is before.snapshot
        changes = None if unchanged else self._holdings.advance(snapshot, now)
        statuses = statuses.dated(self._holdings.since, None if recorded is not None else last)
        self._update = Update(
            *(snapshot, self._holdings.since, changes, anomalies, pods),
            *(answer.advertised, statuses, answer.error, self._memory.notes, answer.listed.claims()),
            sources=answer.dra.sources,
        )
        if answer.raw.asked_allocatable and answer.error is None:
            self._allocatable_at = answer.poll.answered
        self._last, self._poll = replace(answer, raw=_comparable(answer.raw)), answer.poll
        return self._update


def _pods_with_claims(answer: _Answer) -> dict[PodKey, tuple[PodDevices, ...]]:
    """What the objects of listed pods with claims say about them."""
    found: dict[PodKey, tuple[PodDevices, ...]] = {}
    for key in answer.listed.claimants():
        known = [record.identity.devices for record in answer.view.of(key)]
        pods = tuple([one for one in known if one.claims or one.extended])
        if pods:
            found[key] = pods
    return found


def _comparable(raw: Raw) -> Raw:
    """What is kept of an answer to recognise the same bytes: a digest of a large one."""
    return replace(
        raw,
        listed=_digested(raw.listed),
        allocatable=None if raw.allocatable is None else _digested(raw.allocatable),
        allocatable_error=None,
        socket_age=None,
    )


def _digested(data: bytes) -> bytes:
    return data if len(data) <= LARGE else blake2b(data).digest()


def _with_devices(
    allocatable: api_pb2.AllocatableResourcesResponse, devices: frozenset[DeviceKey]
) -> api_pb2.AllocatableResourcesResponse:
    """A copy with more devices."""
    more = api_pb2.AllocatableResourcesResponse()
    more.CopyFrom(allocatable)
    for key in sorted(devices):
        more.devices.add(resource_name=key.resource, device_ids=[key.device])
    return more


def _with_resources(
    allocatable: api_pb2.AllocatableResourcesResponse | None,
    before: api_pb2.AllocatableResourcesResponse | None,
) -> api_pb2.AllocatableResourcesResponse | None:
    """`allocatable` with the devices `before` of resources of which it has none."""
    if allocatable is None or before is None:
        return allocatable
    named = {entry.resource_name for entry in allocatable.devices}
    lost = [entry for entry in before.devices if entry.resource_name not in named]
    if not lost:
        return allocatable
    more = api_pb2.AllocatableResourcesResponse()
    more.CopyFrom(allocatable)
    more.devices.extend(lost)
    return more


SYSFS_NODES: Final = Path("/sys/devices/system/node")
_NODE: Final = re.compile(r"node(\d+)")
_MAX_CPUS: Final = 65536


def numa_of_cpus(nodes: Path = SYSFS_NODES) -> dict[int, int]:
    """Map CPU numbers to NUMA nodes, from the host's sysfs. Nodes that cannot be read are left out."""
    found: dict[int, int] = {}
    try:
        entries = sorted(nodes.iterdir())
    except OSError:
        return found
    for entry in entries:
        match = _NODE.fullmatch(entry.name)
        if match is None:
            continue
        try:
            cpus = parse_cpu_list((entry / "cpulist").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        found |= dict.fromkeys(cpus, int(match[1]))
    return found


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPU numbers of the kernel's list format: `0-3,8,10-11`.

    Raises ValueError for anything else, and for more CPUs than a machine can have.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        low = int(first)
        high = int(last) if dash else low
        if not 0 <= low <= high < _MAX_CPUS:
            raise ValueError(f"found {part!r}, expected a range of CPU numbers")
        cpus.update(range(low, high + 1))
    return frozenset(cpus)
