"""Which devices, pods, claims, containers, resources and anomalies a filter keeps. Pure.

The API, the pages and the commands use the same rules: `q`, `device` and `pod` match part of a text,
case-insensitive; a resource matches by its name or the part after its slash, all other filters by whole names
(exporter.mapping.names).

An item without the filtered attribute does not match: a container with exclusive CPUs has no resource. On the
status page and below /api/v1/pods, a claimed device's driver counts as its resource, and its state is held.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    AdvertisedDevice,
    Anomaly,
    ClaimDevice,
    Container,
    Device,
    DeviceKey,
    Holder,
    PodKey,
    Snapshot,
)
from exporter.mapping.names import folded, is_resource, same
from exporter.mapping.state import State
from exporter.views.query import Filters, StateFilter

_NO_PODS: Final[Mapping[PodKey, PodIdentity]] = MappingProxyType({})
_NO_PLUGINS: Final[Mapping[DeviceKey, AdvertisedDevice]] = MappingProxyType({})


def states(device: Device, *, complete: bool) -> frozenset[StateFilter]:
    """The states of a device; neither free nor unhealthy where the snapshot is not `complete`."""
    found: set[StateFilter] = set()
    if device.holders:
        found.add(StateFilter.HELD)
    elif device.allocatable:
        found.add(StateFilter.FREE)
    if complete and not device.allocatable:
        found.add(StateFilter.UNHEALTHY)
    return frozenset(found)


class ItemMatcher:
    """Filters prepared for many items.

    `pods` identifies holders' workloads and `plugins` has what plugins report of devices: `q` also searches
    these texts.
    """

    def __init__(
        self,
        filters: Filters,
        pods: Mapping[PodKey, PodIdentity] = _NO_PODS,
        plugins: Mapping[DeviceKey, AdvertisedDevice] = _NO_PLUGINS,
    ) -> None:
        self._f = filters
        self._pods = pods
        self._plugins = plugins
        self._q = filters.q.casefold()
        self._device = filters.device.casefold()
        self._pod = filters.pod.casefold()
        self._searched: dict[Holder, bool] = {}
        """Whether `q` is in the texts of a holder, which holds several devices."""

    @classmethod
    def of(cls, state: State, filters: Filters) -> "ItemMatcher":
        """The matcher that searches all texts of `state`."""
        return cls(filters, state.pods, state.advertised.devices)

    def devices(self, snapshot: Snapshot) -> list[Device]:
        """The matching devices, whole: with every holder, also holders that do not match."""
        if not self._f.any:
            return list(snapshot.devices)
        return [d for d in snapshot.devices if self.device(d, complete=snapshot.complete)]

    def claims(self, snapshot: Snapshot) -> list[ClaimDevice]:
        """The matching claimed devices, whole."""
        return [claim for claim in snapshot.claims if not self._f.any or self.claim(claim)]

    def containers(self, snapshot: Snapshot) -> list[Container]:
        """The matching containers with exclusive CPUs or pinned memory."""
        return [c for c in snapshot.containers if (c.cpu_ids or c.memory) and self.container(c)]

    def pods(self, snapshot: Snapshot) -> frozenset[PodKey]:
        """The pods that hold a matching device, claimed device or container."""
        kept: set[Holder] = {c.holder for c in snapshot.containers if self.container(c)}
        for device in snapshot.devices:
            kept.update(
                holder
                for holder in device.holders
                if holder not in kept and self.device(_held_by(device, holder), complete=snapshot.complete)
            )
        for claim in snapshot.claims:
            kept.update(
                through.holder for through in claim.holders if self.claim(replace(claim, holders=(through,)))
            )
        return frozenset((holder.namespace, holder.pod) for holder in kept)

    def device(self, device: Device, *, complete: bool) -> bool:
        """Whether a device matches; `complete` as in Snapshot."""
        f = self._f
        if not _resource(device.key.resource, f.resource):
            return False
        if f.state is not None and f.state not in states(device, complete=complete):
            return False
        if self._device and self._device not in folded(device.key.device):
            return False
        if (f.namespace or f.pod) and not any(map(self.holder, device.holders)):
            return False
        return (
            not self._q
            or self._found(device.key.device, device.parent, device.key.resource)
            or self._found_holder(device.holders)
            or self._found(*self._plugin_texts(device.key))
        )

    def claim(self, claim: ClaimDevice) -> bool:
        """Whether a claimed device matches: its own names, and one holder's claim, namespace and pod."""
        f, key = self._f, claim.key
        names = ((key.driver, f.driver), (key.pool, f.pool))
        if not (_resource(key.driver, f.resource) and all(_whole(raw, wanted) for raw, wanted in names)):
            return False
        if f.state in {StateFilter.FREE, StateFilter.UNHEALTHY}:
            return False
        if self._device and self._device not in folded(key.device):
            return False
        if (f.claim or f.namespace or f.pod) and not any(
            _whole(one.claim, f.claim) and self.holder(one.holder) for one in claim.holders
        ):
            return False
        return (
            not self._q
            or self._found(*key, *claim.cdi_devices)
            or self._found(*(f"{one.claim_namespace}/{one.claim}" for one in claim.holders))
            or self._found_holder(one.holder for one in claim.holders)
        )

    def container(self, container: Container) -> bool:
        """Whether a container matches for its CPUs and memory."""
        f = self._f
        if f.resource or f.device or f.state is not None or not self.holder(container.holder):
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

    def _plugin_texts(self, key: DeviceKey) -> Iterator[str]:
        reported = self._plugins.get(key)
        if reported is not None:
            yield reported.parent
            yield reported.reason
            for name, value in reported.attributes:
                yield f"{name} {value}"


def _held_by(device: Device, holder: Holder) -> Device:
    """`device` with this one of its holders."""
    return device if len(device.holders) == 1 else replace(device, holders=(holder,))


def _whole(raw: str, wanted: str) -> bool:
    return not wanted or same(raw, wanted)


def _resource(raw: str, wanted: str) -> bool:
    return not wanted or is_resource(raw, wanted)
