"""Which devices, pods, claims and containers a filter keeps. Pure.

A filter that a row cannot satisfy leaves it out: a container of its own CPUs is of no resource. A claimed
device's driver counts as its resource, and it is held: of free and of unhealthy ones nothing is known.

What is kept of claims, resources and anomalies, read from an address. Pure.

As everywhere in the API: `device` and `pod` are parts of names and `q` is part of any text, these three
without regard to case; all other names are whole. Text is compared as it is shown (exporter.views.query).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from exporter.mapping.anomalies import Anomaly
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    AdvertisedDevice,
    ClaimDevice,
    Container,
    Device,
    DeviceKey,
    Holder,
    Snapshot,
)
from exporter.mapping.state import State
from exporter.views.query import DeviceState, Filters, Pairs, QueryError, single
from exporter.views.schema import KINDS
from exporter.views.wording import spelled

PodKey = tuple[str, str]
"""A pod's namespace and name."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known besides the snapshot, for `q` to look at: of pods, and of devices by their plugins."""

    pods: Mapping[PodKey, PodIdentity]
    devices: Mapping[DeviceKey, AdvertisedDevice]


NOTHING: Final = Told(MappingProxyType({}), MappingProxyType({}))


def told(state: State) -> Told:
    """What `state` tells besides its snapshot."""
    return Told(state.pods, state.advertised.devices)


def devices(snapshot: Snapshot, filters: Filters, known: Told = NOTHING) -> list[Device]:
    """The devices that `filters` keep, whole: with every holder, also those that did not match."""
    if not filters.any:
        return list(snapshot.devices)
    match = Match(filters, known)
    return [d for d in snapshot.devices if match.device(d, complete=snapshot.complete)]


def claims(snapshot: Snapshot, filters: Filters, known: Told = NOTHING) -> list[ClaimDevice]:
    """The claimed devices that `filters` keep."""
    if not filters.any:
        return list(snapshot.claims)
    match = Match(filters, known)
    return [claim for claim in snapshot.claims if match.claim(claim)]


def containers(snapshot: Snapshot, filters: Filters, known: Told = NOTHING) -> list[Container]:
    """The containers with exclusive CPUs or pinned memory that `filters` keep."""
    pinned = (c for c in snapshot.containers if c.cpu_ids or c.memory)
    if not filters.any:
        return list(pinned)
    match = Match(filters, known)
    return [c for c in pinned if match.container(c)]


def pods(snapshot: Snapshot, filters: Filters, known: Told = NOTHING) -> frozenset[PodKey]:
    """The pods that `filters` keep, of those that hold anything: a pod is kept, and whole, where the filters
    keep one of its devices, claimed devices or containers for its own sake.
    """
    match = Match(filters, known)
    kept: set[Holder] = {c.holder for c in snapshot.containers if match.container(c)}
    for device in snapshot.devices:
        kept.update(
            holder
            for holder in device.holders
            if holder not in kept
            and match.device(replace(device, holders=(holder,)), complete=snapshot.complete)
        )
    for claim in snapshot.claims:
        kept.update(
            through.holder for through in claim.holders if match.claim(replace(claim, holders=(through,)))
        )
    return frozenset((holder.namespace, holder.pod) for holder in kept)


def folded(raw: str) -> str:
    """`raw` as texts are compared without regard to case: as it is shown, and case-folded."""
    return spelled(raw).casefold()


class Match:
    """Filters made ready for many rows."""

    def __init__(self, filters: Filters, known: Told = NOTHING) -> None:
        self._f = filters
        self._known = known
        self._q = filters.q.casefold()
        self._device = filters.device.casefold()
        self._pod = filters.pod.casefold()

    def device(self, device: Device, *, complete: bool) -> bool:
        """Whether a device is kept."""
        f = self._f
        if f.resource and spelled(device.key.resource) != f.resource:
            return False
        if f.state is not None and f.state not in states(device, complete=complete):
            return False
        if self._device and self._device not in folded(device.key.device):
            return False
        if (f.namespace or f.pod) and not any(map(self.named, device.holders)):
            return False
        return not self._q or self._found(
            *(device.key.device, device.parent, device.key.resource),
            *self._names(device.holders),
            *self._attributes(device.key),
        )

    def claim(self, claim: ClaimDevice) -> bool:
        """Whether a claimed device is kept."""
        f = self._f
        if f.resource and spelled(claim.key.driver) != f.resource:
            return False
        if f.state in {DeviceState.FREE, DeviceState.UNHEALTHY}:
            return False
        if self._device and self._device not in folded(claim.key.device):
            return False
        holders = [through.holder for through in claim.holders]
        if (f.namespace or f.pod) and not any(map(self.named, holders)):
            return False
        key = claim.key
        return not self._q or self._found(
            *(key.driver, key.pool, key.device, key.share_id),
            *(name for through in claim.holders for name in (through.claim_namespace, through.claim)),
            *claim.cdi_devices,
            *self._names(holders),
        )

    def container(self, container: Container) -> bool:
        """Whether a container with CPUs or memory of its own is kept."""
        f = self._f
        if f.resource or f.device or f.state is not None or not self.named(container.holder):
            return False
        return not self._q or self._found(*self._names((container.holder,)))

    def named(self, holder: Holder) -> bool:
        """Whether the holder's namespace and pod are the ones that are asked for."""
        f = self._f
        if f.namespace and spelled(holder.namespace) != f.namespace:
            return False
        return not self._pod or self._pod in folded(holder.pod)

    def _found(self, *texts: str) -> bool:
        return any(self._q in folded(text) for text in texts)

    def _names(self, holders: Iterable[Holder]) -> Iterator[str]:
        for holder in holders:
            yield f"{holder.namespace}/{holder.pod}"
            yield holder.container
            yield holder.pod_uid
            identity = self._known.pods.get((holder.namespace, holder.pod))
            if identity is not None and identity.workload.kind:
                yield f"{identity.workload.kind} {identity.workload.name}"

    def _attributes(self, key: DeviceKey) -> Iterator[str]:
        told = self._known.devices.get(key)
        if told is not None:
            yield told.parent
            yield told.reason
            for name, value in told.attributes:
                yield f"{name} {value}"


def states(device: Device, *, complete: bool) -> frozenset[DeviceState]:
    """What can be said of a device. Of health, nothing where the snapshot is not `complete`."""
    said: set[DeviceState] = set()
    if device.holders:
        said.add(DeviceState.HELD)
    elif device.allocatable:
        said.add(DeviceState.FREE)
    if complete and not device.allocatable:
        said.add(DeviceState.UNHEALTHY)
    return frozenset(said)


CLAIMS: Final = ("q", "driver", "pool", "device", "claim", "namespace", "pod")
RESOURCES: Final = ("q", "resource")
ANOMALIES: Final = ("q", "kind", "resource", "device", "namespace", "pod")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to keep; "" keeps all."""

    q: str = ""
    resource: str = ""
    driver: str = ""
    pool: str = ""
    claim: str = ""
    device: str = ""
    namespace: str = ""
    pod: str = ""
    kind: str = ""

    def claimed(self, device: ClaimDevice) -> bool:
        """Whether a claimed device is kept: by itself, and by one of its holders and that one's claim."""
        key = device.key
        if not (_whole(key.driver, self.driver) and _whole(key.pool, self.pool)):
            return False
        if not _part(key.device, self.device):
            return False
        through = [
            one
            for one in device.holders
            if _whole(one.claim, self.claim) and self._names(one.holder.namespace, one.holder.pod)
        ]
        if (self.claim or self.namespace or self.pod) and not through:
            return False
        texts = [key.driver, key.pool, key.device, key.share_id]
        texts += [
            text for one in device.holders for text in (f"{one.claim_namespace}/{one.claim}", one.claim)
        ]
        return self._says(*texts, *(text for one in device.holders for text in _texts(one.holder)))

    def counted(self, resource: str) -> bool:
        """Whether a resource is kept."""
        return _whole(resource, self.resource) and self._says(resource)

    def wrong(self, anomaly: Anomaly) -> bool:
        """Whether an anomaly is kept: by what it is, and by any of the devices and pods that it is about."""
        if self.kind and anomaly.kind != self.kind:
            return False
        if not _whole(anomaly.resource, self.resource):
            return False
        devices = {anomaly.device, *anomaly.devices} - {""}
        if self.device and not any(_part(device, self.device) for device in devices):
            return False
        pods = set(anomaly.pods)
        if anomaly.holder is not None:
            pods.add((anomaly.holder.namespace, anomaly.holder.pod))
        if (self.namespace or self.pod) and not any(self._names(*pod) for pod in pods):
            return False
        holder = () if anomaly.holder is None else tuple(_texts(anomaly.holder))
        named = (f"{namespace}/{pod}" for namespace, pod in pods)
        return self._says(anomaly.kind, anomaly.resource, anomaly.evidence, *devices, *named, *holder)

    def _names(self, namespace: str, pod: str) -> bool:
        return _whole(namespace, self.namespace) and _part(pod, self.pod)

    def _says(self, *texts: str) -> bool:
        return not self.q or any(_part(text, self.q) for text in texts)


def parse_claims(pairs: Pairs) -> Wanted:
    """Which claimed devices. Raises QueryError."""
    return _wanted(pairs, CLAIMS)


def parse_resources(pairs: Pairs) -> Wanted:
    """Which resources. Raises QueryError."""
    return _wanted(pairs, RESOURCES)


def parse_anomalies(pairs: Pairs) -> Wanted:
    """Which anomalies. Raises QueryError."""
    wanted = _wanted(pairs, ANOMALIES)
    if wanted.kind and wanted.kind not in KINDS:
        raise QueryError("kind", wanted.kind, f"one of {', '.join(KINDS)}")
    return wanted


def _wanted(pairs: Pairs, known: tuple[str, ...]) -> Wanted:
    return Wanted(**{name: spelled(value.strip()) for name, value in single(pairs, known).items()})


def _whole(raw: str, asked: str) -> bool:
    return not asked or spelled(raw) == asked


def _part(raw: str, asked: str) -> bool:
    return not asked or asked.casefold() in folded(raw)


def _texts(holder: Holder) -> Iterator[str]:
    yield f"{holder.namespace}/{holder.pod}"
    yield holder.container
    yield holder.pod_uid
