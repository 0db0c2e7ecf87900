"""What the kubelet's answers say: decoded, compared with the ones before, and doubted where they must be."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError

from exporter.mapping.anomalies import Anomaly, AnomalyTracker
from exporter.mapping.device_ids import IdReader, read_id
from exporter.mapping.holdings import (
    HeldSince,
    Holding,
    HoldingChanges,
    HoldingTracker,
    OpenHoldings,
    pods_gone,
)
from exporter.mapping.identity import (
    EMPTY_VIEW,
    NEVER,
    PodIdentity,
    PodView,
    Poll,
    identify,
    pods_with_new_holdings,
)
from exporter.mapping.listing import LARGE, ListedPods, ListReader
from exporter.mapping.model import NO_REPORTS, DeviceKey, PluginReports, PodKey, Snapshot
from exporter.mapping.restart_guard import after_return, at_start
from exporter.mapping.snapshot import SnapshotBuilder
from exporter.mapping.unattributed import PodsSeen
from kubelet.pb.podresources.v1 import api_pb2
from kubelet.podresources import KubeletError, Raw, decode_allocatable, undecodable

UNSETTLED: Final = "UNSETTLED"
"""Stands where a gRPC code would, for a List in which a kubelet that just came up leaves pods out."""


@dataclass(frozen=True, slots=True)
class Update:
    """What a good answer says; `step` is None if it says the same of holdings as the one before.

    `pods` are the identities of those that hold something, as far as they are known. `advertised` is what
    plugins told by then. `allocatable_error`: GetAllocatableResources failed, and what is told of it is
    older.
    """

    snapshot: Snapshot
    since: Mapping[Holding, HeldSince]
    step: HoldingChanges | None
    anomalies: tuple[Anomaly, ...]
    pods: Mapping[PodKey, PodIdentity]
    advertised: PluginReports
    allocatable_error: KubeletError | None = None


@dataclass(frozen=True, slots=True)
class _Read:
    """One answer, decoded, and in which light it is seen."""

    raw: Raw
    listed: ListedPods
    allocatable: api_pb2.AllocatableResourcesResponse | None
    error: KubeletError | None
    look: Poll
    view: PodView
    advertised: PluginReports


class SnapshotPipeline:
    """Makes news of answers. Runs beside the event loop, one answer at a time."""

    def __init__(
        self,
        cpu_numa: Mapping[int, int],
        *,
        keep_allocatable: float,
        reader: IdReader = read_id,
        node: str = "",
    ) -> None:
        """`cpu_numa` maps CPUs to NUMA nodes; `keep_allocatable`: seconds for which the last answer of
        GetAllocatableResources is told while the method fails; `reader` reads device ids; `node` is this
        node's name.
        """
        self._node = node
        self._listings = ListReader()
        self._builder = SnapshotBuilder(cpu_numa, reader)
        self._judge = AnomalyTracker(reader)
        self._keep_allocatable = keep_allocatable
        self._ledger = HoldingTracker()
        self._news: Update | None = None
        self._raw: Raw | None = None
        self._listed = ListedPods(())
        self._look = Poll(-NEVER, -NEVER)
        self._asked, self._offset = 0.0, 0.0
        self._view = EMPTY_VIEW
        self._allocatable: api_pb2.AllocatableResourcesResponse | None = None
        self._allocatable_at = -NEVER
        self._recollection: OpenHoldings | None = None

    def remember(self, recollection: OpenHoldings) -> None:
        """Have the next reading take over what history knows. May be called from another thread."""
        self._recollection = recollection

    def read(
        self,
        raw: Raw,
        now: float,
        *,
        look: Poll,
        view: PodView,
        advertised: PluginReports = NO_REPORTS,
        returned: float = -NEVER,
    ) -> Update | None:
        """The news in `raw`, received at unix time `now`.

        `look` says when List was asked and answered, `returned` when the kubelet last came back, by one
        monotonic clock; `view` is what is known of the node's pods, `advertised` what plugins tell.

        Raises KubeletError for a List that does not decode, and for one in which a kubelet that has just
        come up leaves pods out.

        None if only List was asked and a device in it is not known to be allocatable, nor known not to
        be: GetAllocatableResources must be asked before it is called unhealthy.
        """
        news = self._news
        self._asked, self._offset = now - (look.answered - look.asked), now - look.answered
        if (
            news is not None
            and view is self._view
            and advertised is news.advertised
            and self._recollection is None
            and self._same(raw, news)
        ):
            self._look = look
            if raw.asked_allocatable:
                self._allocatable_at = look.answered
            # Some things only time tells.
            anomalies = self._anomalies(news.snapshot, advertised, view, now)
            self._news = replace(news, step=None, anomalies=anomalies)
            return self._news
        read = self._decoded(raw, look, view, advertised)
        snapshot, pods = self._identified(read)
        unknown = _unhealthy(snapshot) - self._known_unhealthy()
        if unknown and not raw.asked_allocatable and read.error is None:
            return None
        if unknown and read.error is not None and read.allocatable is not None:
            # kubelet: it gives out healthy devices alone. Nobody says that they have failed since.
            read = replace(read, allocatable=_with(read.allocatable, unknown))
            snapshot, pods = self._identified(read)
        self._doubt(read, snapshot, returned)
        return self._told(read, snapshot, pods, now)

    def reconsider(self, now: float, view: PodView, advertised: PluginReports = NO_REPORTS) -> Update | None:
        """The last answer in the light of what is known of the pods, and told by plugins, by now; None if
        there is none yet.
        """
        if self._raw is None or self._news is None:
            return None
        error = self._news.allocatable_error
        read = _Read(self._raw, self._listed, self._allocatable, error, self._look, view, advertised)
        return self._told(read, *self._identified(read), now)

    def _same(self, raw: Raw, news: Update) -> bool:
        return (
            raw.allocatable_error is None
            and news.allocatable_error is None
            and self._raw is not None
            and _recognisable(raw) == self._raw
        )

    def _decoded(self, raw: Raw, look: Poll, view: PodView, advertised: PluginReports) -> _Read:
        listed, error = _read_list(raw.listed, self._listings), raw.allocatable_error
        offered: api_pb2.AllocatableResourcesResponse | None = None
        if raw.asked_allocatable and error is None:
            try:
                offered = None if raw.allocatable is None else decode_allocatable(raw.allocatable)
            except KubeletError as undecodable:
                error = undecodable
        elif not raw.asked_allocatable:
            error = None if self._news is None else self._news.allocatable_error
        if error is not None or not raw.asked_allocatable:
            aged = error is not None and look.answered - self._allocatable_at > self._keep_allocatable
            offered = None if aged else self._allocatable
        return _Read(raw, listed, offered, error, look, view, advertised)

    def _identified(self, read: _Read) -> tuple[Snapshot, Mapping[PodKey, PodIdentity]]:
        """The snapshot, with the uids that are known; and who has them."""
        before = {} if self._news is None else self._news.pods
        pods, continued = identify(read.listed.names(), before, read.view, read.look)
        snapshot = self._built(read, pods)
        if continued and self._news is not None and snapshot != self._news.snapshot:
            doubtful = continued & pods_with_new_holdings(self._news.snapshot, snapshot)
            if doubtful:
                pods = {key: identity for key, identity in pods.items() if key not in doubtful}
                snapshot = self._built(read, pods)
        holding = {(found.holder.namespace, found.holder.pod) for found in snapshot.containers}
        return snapshot, MappingProxyType({key: pods[key] for key in sorted(holding & pods.keys())})

    def _built(self, read: _Read, pods: Mapping[PodKey, PodIdentity]) -> Snapshot:
        uids = {key: identity.uid for key, identity in pods.items()}
        return self._builder.build(
            read.listed, read.allocatable, pod_uids=uids, advertised=read.advertised.devices
        )

    def _anomalies(
        self, snapshot: Snapshot, advertised: PluginReports, view: PodView, now: float
    ) -> tuple[Anomaly, ...]:
        pods = PodsSeen(view, self._offset)
        return self._judge.judge(snapshot, advertised, asked=self._asked, now=now, pods=pods)

    def _doubt(self, read: _Read, snapshot: Snapshot, returned: float) -> None:
        """Raises KubeletError for a List that a kubelet which has just come up cannot be meaning."""
        now = read.look.answered
        if self._news is None:
            reason = at_start(snapshot, read.listed.names(), read.view, now=now, age=read.raw.socket_age)
        elif returned > -NEVER:
            listed = read.listed.names()
            missing = _missing(self._news.snapshot, snapshot, listed)
            reason = after_return(
                missing,
                read.view,
                listed=listed,
                before=self._listed.names(),
                node=self._node,
                now=now,
                returned=returned,
            )
        else:
            return
        if reason is not None:
            raise KubeletError("List", UNSETTLED, reason)

    def _told(
        self, read: _Read, snapshot: Snapshot, pods: Mapping[PodKey, PodIdentity], now: float
    ) -> Update:
        recollection, self._recollection = self._recollection, None
        if recollection is not None:
            self._ledger.remember(recollection)
        if self._news is None or snapshot != self._news.snapshot:
            # The ledger last: what fails before it leaves nothing half understood.
            anomalies = self._anomalies(snapshot, read.advertised, read.view, now)
            step = self._ledger.advance(snapshot, now)
            news = Update(snapshot, step.since, step, anomalies, pods, read.advertised, read.error)
        else:
            same = pods == self._news.pods
            pods = self._news.pods if same else pods
            news = replace(
                self._news,
                step=None,
                since=self._ledger.since,
                anomalies=self._anomalies(self._news.snapshot, read.advertised, read.view, now),
                pods=pods,
                advertised=read.advertised,
                allocatable_error=read.error,
            )
        if read.raw.asked_allocatable and read.error is None:
            self._allocatable_at = read.look.answered
        self._allocatable = read.allocatable
        self._raw, self._listed = _recognisable(read.raw), read.listed
        self._news, self._look, self._view = news, read.look, read.view
        return news

    def _known_unhealthy(self) -> frozenset[DeviceKey]:
        return frozenset() if self._news is None else _unhealthy(self._news.snapshot)


def _recognisable(raw: Raw) -> Raw:
    """What of an answer is kept to see that it comes again: of a large one its digest, as what it says is
    kept already.
    """
    listed = _digested(raw.listed)
    offered = None if raw.allocatable is None else _digested(raw.allocatable)
    if listed is raw.listed and offered is raw.allocatable:
        return raw
    return replace(raw, listed=listed, allocatable=offered)


def _digested(data: bytes) -> bytes:
    return data if len(data) <= LARGE else blake2b(data).digest()


def _missing(old: Snapshot, new: Snapshot, listed: frozenset[PodKey]) -> dict[PodKey, str]:
    """The pods that held something in `old` and are missing in `new`, with their uids. One that is listed,
    and of which nothing says that it is the same pod, holds nothing and is not missing.
    """
    gone = pods_gone(old, new)
    uids = {found.holder[:2]: found.holder.pod_uid for found in old.containers if found.holder[:2] in gone}
    return {key: uid for key, uid in uids.items() if uid or key not in listed}


def _unhealthy(snapshot: Snapshot) -> frozenset[DeviceKey]:
    """Held ones: of others the kubelet says nothing, and what their plugins say of them is not in doubt."""
    return snapshot.held_unhealthy


def _with(
    allocatable: api_pb2.AllocatableResourcesResponse, devices: frozenset[DeviceKey]
) -> api_pb2.AllocatableResourcesResponse:
    """The same, with more devices."""
    more = api_pb2.AllocatableResourcesResponse()
    more.CopyFrom(allocatable)
    for key in sorted(devices):
        more.devices.add(resource_name=key.resource, device_ids=[key.device])
    return more


def _read_list(data: bytes, reader: ListReader) -> ListedPods:
    """The same by who knows the answers before. Raises KubeletError(code UNDECODABLE)."""
    try:
        return reader.read(data)
    except DecodeError as error:
        raise undecodable("List", data, error) from error
