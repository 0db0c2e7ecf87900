"""What is wrong, followed from look to look: since when, and what only time tells."""

from dataclasses import replace

from exporter.core.advertised import NOTHING, Advertised
from exporter.core.anomalies import Anomaly, find, listed
from exporter.core.attribution import Attribution, Pods, Unattributed
from exporter.core.ids import Reader, read
from exporter.core.model import DeviceKey, Snapshot
from exporter.core.placement import Placements
from exporter.core.times import utc

_Name = tuple[str, str, str, str, str, str]
"""What makes an anomaly the same one: its kind, where it is, and the container that it hits."""


class Judge:
    """Judges each good answer. One judge for one node; one answer at a time."""

    def __init__(self, reader: Reader = read) -> None:
        self._reader = reader
        self._placements = Placements()
        self._attribution = Attribution()
        self._since: dict[_Name, float] = {}
        self._snapshot: Snapshot | None = None
        self._held: frozenset[DeviceKey] = frozenset()
        self._advertised: Advertised = NOTHING
        self._splits: tuple[Anomaly, ...] = ()
        self._unattributed: tuple[Unattributed, ...] = ()
        self._anomalies: tuple[Anomaly, ...] = ()

    def judge(
        self,
        snapshot: Snapshot,
        advertised: Advertised,
        *,
        asked: float,
        now: float,
        pods: Pods | None = None,
    ) -> tuple[Anomaly, ...]:
        """The anomalies by the good answer that was `asked` for and came `now`, in unix time: the very same
        tuple as before where nothing changed.
        """
        held, released = self._held, frozenset[DeviceKey]()
        if snapshot is not self._snapshot:
            held = self._held_in(snapshot)
            released = self._held - held
        unattributed = self._attribution.look(
            held, advertised, released=released, asked=asked, now=now, pods=pods
        )
        if (
            snapshot is self._snapshot
            and advertised is self._advertised
            and unattributed == self._unattributed
        ):
            return self._anomalies
        if snapshot is not self._snapshot:
            self._splits = self._placements.advance(snapshot, released)
        self._snapshot, self._held = snapshot, held
        self._advertised, self._unattributed = advertised, unattributed
        further = (*self._splits, *map(_unattributed, unattributed))
        found = find(snapshot, advertised, reader=self._reader, further=further)
        names = [_name(anomaly) for anomaly in found]
        self._since = {name: self._since.get(name, now) for name in names}
        judged = tuple(
            replace(anomaly, since=self._since[name]) for anomaly, name in zip(found, names, strict=True)
        )
        if judged != self._anomalies:
            self._anomalies = judged
        return self._anomalies

    def _held_in(self, snapshot: Snapshot) -> frozenset[DeviceKey]:
        changed = None if self._snapshot is None else snapshot.changed_since(self._snapshot)
        if changed is None:
            return frozenset([device.key for device in snapshot.devices if device.holders])
        held = self._held.difference([now.key for _, now in changed if not now.holders])
        return held.union([now.key for _, now in changed if now.holders])


def _name(anomaly: Anomaly) -> _Name:
    # A pod's uid may be learned while it lasts.
    holder = anomaly.holder
    namespace, pod, container = ("", "", "") if holder is None else holder[:3]
    return anomaly.kind, anomaly.resource, anomaly.device, namespace, pod, container


def _unattributed(found: Unattributed) -> Anomaly:
    who = "an init container has it, or the pod that was to get it was refused, or it leaked"
    if found.pods:
        names = listed([f"{namespace}/{pod}" for namespace, pod in found.pods])
        who = f"an init container has it, or it leaked; the pods that came then are {names}"
    return Anomaly(
        "unattributed",
        found.key.resource,
        found.key.device,
        evidence=f"its plugin gave it out at {utc(found.at)}, and no pod has listed it since: {who}",
        devices=(found.key.device,),
        pods=found.pods[:64],
    )
