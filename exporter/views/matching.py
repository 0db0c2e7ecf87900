"""Which devices, pods, claims, containers, resources and anomalies a filter keeps. Pure.

The API, the pages and the commands use the same rules: `q`, `device` and `pod` match part of a text,
case-insensitive; a resource matches by its name or the part after its slash, all other filters by whole names
(exporter.mapping.names).

An item without the filtered attribute does not match: a container with exclusive CPUs has no resource. What a
holder asked by, and the driver of a claimed device, count as its resource.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from exporter.mapping.device_status import DeviceStatus
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    AdvertisedDevice,
    Anomaly,
    Claimed,
    ClaimHolding,
    Container,
    Holder,
    PodKey,
    Snapshot,
)
from exporter.mapping.names import folded, is_resource, same
from exporter.mapping.state import State
from exporter.views.claimed import held_by, holdings, resource_names, texts
from exporter.views.query import Filters, StateFilter

_NO_PODS: Final[Mapping[PodKey, PodIdentity]] = MappingProxyType({})


def states(status: DeviceStatus) -> frozenset[StateFilter]:
    """The states of a device; not unhealthy where its health is unknown, and not free while it is reserved or
    another partition of the same physical device counts in its place.
    """
    device = status.device
    found: set[StateFilter] = set()
    if device.holders:
        found.add(StateFilter.HELD)
    elif status.free:
        found.add(StateFilter.FREE)
    if status.healthy is False:
        found.add(StateFilter.UNHEALTHY)
    return frozenset(found)


class ItemMatcher:
    """Filters prepared for many items.

    `pods` identifies holders' workloads, which `q` also searches.
    """

    def __init__(self, filters: Filters, pods: Mapping[PodKey, PodIdentity] = _NO_PODS) -> None:
        self._f = filters
        self._pods = pods
        self._q = filters.q.casefold()
        self._device = filters.device.casefold()
        self._pod = filters.pod.casefold()
        self._searched: dict[Holder, bool] = {}
        """Whether `q` is in the texts of a holder, which holds several devices."""

    @classmethod
    def of(cls, state: State, filters: Filters) -> "ItemMatcher":
        """The matcher that searches all texts of `state`."""
        return cls(filters, state.pods)

    def devices(self, every: Iterable[DeviceStatus]) -> list[DeviceStatus]:
        """The matching devices, whole: with every holder, also holders that do not match."""
        return [one for one in every if not self._f.any or self.device(one)]

    def containers(self, snapshot: Snapshot) -> list[Container]:
        """The matching containers with exclusive CPUs or pinned memory."""
        return [c for c in snapshot.containers if (c.cpu_ids or c.memory) and self.container(c)]

    def pods(self, state: State) -> frozenset[PodKey]:
        """The pods that hold a matching device or container."""
        kept: set[Holder] = {c.holder for c in state.snapshot.containers if self.container(c)}
        for one in state.devices:
            kept.update(
                holder
                for holder in one.device.holders
                if holder not in kept and self.device(replace(one, device=held_by(one.device, holder)))
            )
        return frozenset((holder.namespace, holder.pod) for holder in kept)

    def device(self, status: DeviceStatus) -> bool:
        """Whether a device matches."""
        f, device, claimed = self._f, status.device, status.device.claimed
        if f.resource and not any(_resource(name, f.resource) for name in resource_names(device)):
            return False
        if f.state is not None and f.state not in states(status):
            return False
        if self._device and self._device not in folded(device.key.device):
            return False
        if f.driver or f.pool or f.claim:
            if claimed is None or not self._claimed(claimed):
                return False
        elif (f.namespace or f.pod) and not any(map(self.holder, device.holders)):
            return False
        return (
            not self._q
            or self._found(device.key.device, device.parent, device.key.resource)
            or self._found_holder(device.holders)
            or (status.plugin is not None and self._found(*_reported(status.plugin.device)))
            or self._found(*(status.identity or ()))
            or (claimed is not None and self._found(*texts(claimed)))
        )

    def _claimed(self, claimed: Claimed) -> bool:
        """Whether the names match, and one claim with its namespace and pod."""
        f, name = self._f, claimed.name
        if not (_whole(name.driver, f.driver) and _whole(name.pool, f.pool)):
            return False
        return not (f.claim or f.namespace or f.pod) or any(map(self._through, holdings(claimed)))

    def _through(self, one: ClaimHolding) -> bool:
        return _whole(one.claim, self._f.claim) and self.holder(one.holder)

    def container(self, container: Container) -> bool:
        """Whether a container matches for its CPUs and memory."""
        f = self._f
        if f.resource or f.device or f.state is not None or f.driver or f.pool or f.claim:
            return False
        if not self.holder(container.holder):
            return False
        return not self._q or self._found_holder((container.holder,))

    def resource(self, name: str) -> bool:
        """Whether a resource matches."""
        return _resource(name, self._f.resource) and (not self._q or self._found(name))

    def anomaly(self, anomaly: Anomaly) -> bool:
        """Whether an anomaly matches: by its kind and texts, and by every device and pod that takes part."""
        f = self._f
        if not (_whole(anomaly.kind, f.kind) and _resource(anomaly.resource, f.resource)):
            return False
        devices = {anomaly.device, *anomaly.devices} - {""}
        if self._device and not any(self._device in folded(device) for device in devices):
            return False
        holders = [Holder(namespace, pod, "") for namespace, pod in anomaly.pods]
        if anomaly.holder is not None:
            holders.append(anomaly.holder)
        if (f.namespace or f.pod) and not any(map(self.holder, holders)):
            return False
        texts = (anomaly.kind, anomaly.resource, anomaly.evidence, *devices)
        return not self._q or self._found(*texts) or self._found_holder(holders)

    def holder(self, holder: Holder) -> bool:
        """Whether the holder's namespace and pod match."""
        return _whole(holder.namespace, self._f.namespace) and (
            not self._pod or self._pod in folded(holder.pod)
        )

    def _found(self, *texts: str) -> bool:
        return any(self._q in folded(text) for text in texts)

    def _found_holder(self, holders: Iterable[Holder]) -> bool:
        return any(map(self._searched_holder, holders))

    def _searched_holder(self, holder: Holder) -> bool:
        found = self._searched.get(holder)
        if found is None:
            found = self._searched[holder] = self._found(*self._holder_texts(holder))
        return found

    def _holder_texts(self, holder: Holder) -> Iterator[str]:
        yield f"{holder.namespace}/{holder.pod}"
        yield holder.container
        yield holder.pod_uid
        identity = self._pods.get((holder.namespace, holder.pod))
        if identity is not None and identity.workload.kind:
            yield f"{identity.workload.kind} {identity.workload.name}"


def _reported(device: AdvertisedDevice) -> Iterator[str]:
    yield device.parent
    yield device.reason
    for name, value in device.attributes:
        yield f"{name} {value}"


def _whole(raw: str, wanted: str) -> bool:
    return not wanted or same(raw, wanted)


def _resource(raw: str, wanted: str) -> bool:
    return not wanted or is_resource(raw, wanted)
