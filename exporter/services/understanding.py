"""What the kubelet's answers say: decoded, compared with the ones before, and doubted where they must be."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from exporter.core.anomalies import Anomaly, find
from exporter.core.diff import Holding, pods_gone
from exporter.core.holdings import Ledger, Since, Step
from exporter.core.model import DeviceKey, Snapshot
from exporter.core.snapshot import build
from exporter.kubelet.client import KubeletError, Raw, decode_allocatable, decode_list
from exporter.pb.podresources.v1 import api_pb2

UNSETTLED: Final = "UNSETTLED"
"""Stands where a gRPC code would, for a List in which a kubelet that just came up leaves pods out."""


@dataclass(frozen=True, slots=True)
class News:
    """What a good answer says; `step` is None if it says the same as the one before."""

    snapshot: Snapshot
    since: Mapping[Holding, Since]
    step: Step | None
    anomalies: tuple[Anomaly, ...]


class Understanding:
    """Makes news of answers. Runs beside the event loop, one answer at a time."""

    def __init__(self, cpu_numa: Mapping[int, int]) -> None:
        self._cpu_numa = cpu_numa
        self._ledger = Ledger()
        self._raw: Raw | None = None
        self._news: News | None = None
        self._allocatable: api_pb2.AllocatableResourcesResponse | None = None

    def read(self, raw: Raw, now: float, *, doubtful: bool) -> News | None:
        """The news in `raw`, received at unix time `now`.

        Raises KubeletError for what does not decode, and, if the kubelet is `doubtful`, for a List that
        leaves out pods that held something: for about a second after its return, until it has heard
        from the API server, a kubelet lists no pod at all, and answers OK.

        None if only List was asked and a device in it is not known to be allocatable, nor known not to
        be: GetAllocatableResources must be asked before it is called unhealthy.
        """
        if self._news is not None and raw == self._raw:
            return replace(self._news, step=None)
        listed = decode_list(raw.listed)
        allocatable = self._allocatable
        if raw.asked_allocatable:
            allocatable = None if raw.allocatable is None else decode_allocatable(raw.allocatable)
        snapshot = build(listed, allocatable, cpu_numa=self._cpu_numa)
        if not raw.asked_allocatable and not _unhealthy(snapshot) <= self._known_unhealthy():
            return None
        if doubtful and self._news is not None:
            missing = pods_gone(self._news.snapshot, snapshot)
            if missing:
                raise KubeletError("List", UNSETTLED, _unsettled(missing))
        if self._news is None or snapshot != self._news.snapshot:
            # The ledger last: what fails before it leaves nothing half understood.
            anomalies = find(snapshot)
            step = self._ledger.advance(snapshot, now)
            self._raw, self._allocatable = raw, allocatable
            self._news = News(snapshot, step.since, step, anomalies)
            return self._news
        self._raw, self._allocatable = raw, allocatable
        return replace(self._news, step=None)

    def _known_unhealthy(self) -> frozenset[DeviceKey]:
        return frozenset() if self._news is None else _unhealthy(self._news.snapshot)


def _unsettled(missing: Collection[tuple[str, str]]) -> str:
    return (
        f"the kubelet has just come back and does not list all pods yet: {len(missing)} that held devices "
        "are missing"
    )


def _unhealthy(snapshot: Snapshot) -> frozenset[DeviceKey]:
    return frozenset(device.key for device in snapshot.devices if not device.allocatable)
