"""Snapshots one after the other: what did not change is taken from the one before, object by object.

The result equals snapshot.build's. What follows snapshots sees by identity what may have changed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from exporter.core.advertised import AdvertisedDevice
from exporter.core.ids import Reader, read
from exporter.core.listing import Listing, Nodes, Part, nodes_of
from exporter.core.model import ClaimDevice, Device, DeviceKey, Holder, PodKey, Snapshot
from exporter.core.snapshot import Held, assemble, container_of
from exporter.pb.podresources.v1 import api_pb2

_Offer = frozenset[tuple[str, Nodes, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class _Built:
    """A snapshot, and all that it was made of."""

    snapshot: Snapshot
    parts: Mapping[PodKey, Part]
    uids: Mapping[PodKey, str]
    offer: _Offer | None
    advertised: Mapping[DeviceKey, AdvertisedDevice] | None
    numa: Mapping[DeviceKey, Nodes]
    offered: frozenset[DeviceKey]
    places: Mapping[DeviceKey, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """A snapshot of pods that are not told apart, and all that it was made of."""

    snapshot: Snapshot
    listing: Listing
    allocatable: api_pb2.AllocatableResourcesResponse | None
    uids: Mapping[PodKey, str]
    advertised: Mapping[DeviceKey, AdvertisedDevice] | None


class Builder:
    """Makes snapshots; keeps what the last one was made of."""

    def __init__(self, cpu_numa: Mapping[int, int] | None = None, reader: Reader = read) -> None:
        self._cpu_numa = cpu_numa or {}
        self._reader = reader
        self._built: _Built | None = None
        self._whole: _Whole | None = None

    def build(
        self,
        listing: Listing,
        allocatable: api_pb2.AllocatableResourcesResponse | None,
        *,
        pod_uids: Mapping[PodKey, str] | None = None,
        advertised: Mapping[DeviceKey, AdvertisedDevice] | None = None,
    ) -> Snapshot:
        """As snapshot.build."""
        uids, built = pod_uids or {}, self._built
        if listing.parts is None:
            return self._build_whole(listing, allocatable, uids, advertised)
        self._whole = None
        offer = _offer(allocatable)
        if built is not None and offer == built.offer and advertised is built.advertised:
            snapshot = self._continued(built, listing.parts, uids)
            if snapshot is not None:
                parts, known = listing.parts, {key: uids.get(key, "") for key in listing.parts}
                self._built = _Built(
                    snapshot,
                    parts,
                    known,
                    *(built.offer, built.advertised, built.numa, built.offered, built.places),
                )
                return snapshot
        snapshot, numa, offered = self._assembled(listing, allocatable, uids, advertised)
        if built is not None:
            snapshot = _with_kept(snapshot, built)
        known = {key: uids.get(key, "") for key in listing.parts}
        places = {device.key: place for place, device in enumerate(snapshot.devices)}
        self._built = _Built(snapshot, listing.parts, known, offer, advertised, numa, offered, places)
        return snapshot

    def _build_whole(
        self,
        listing: Listing,
        allocatable: api_pb2.AllocatableResourcesResponse | None,
        uids: Mapping[PodKey, str],
        advertised: Mapping[DeviceKey, AdvertisedDevice] | None,
    ) -> Snapshot:
        """The same object for the very same messages: a second one of a large answer takes much memory."""
        self._built, whole = None, self._whole
        if (
            whole is not None
            and listing is whole.listing
            and allocatable is whole.allocatable
            and uids == whole.uids
            and advertised is whole.advertised
        ):
            return whole.snapshot
        self._whole = whole = None
        snapshot, _, _ = self._assembled(listing, allocatable, uids, advertised)
        self._whole = _Whole(snapshot, listing, allocatable, uids, advertised)
        return snapshot

    def _assembled(
        self,
        listing: Listing,
        allocatable: api_pb2.AllocatableResourcesResponse | None,
        uids: Mapping[PodKey, str],
        advertised: Mapping[DeviceKey, AdvertisedDevice] | None,
    ) -> tuple[Snapshot, Mapping[DeviceKey, Nodes], frozenset[DeviceKey]]:
        return assemble(
            listing.pod_resources,
            allocatable,
            cpu_numa=self._cpu_numa,
            reader=self._reader,
            pod_uids=uids,
            advertised=advertised,
        )

    def _continued(
        self, built: _Built, parts: Mapping[PodKey, Part], uids: Mapping[PodKey, str]
    ) -> Snapshot | None:
        """The snapshot by what changed of pods alone; None where more than their own devices hangs on it."""
        affected = {
            key
            for key, part in parts.items()
            if part is not built.parts.get(key) or uids.get(key, "") != built.uids[key]
        }
        affected |= built.parts.keys() - parts.keys()
        if not affected:
            return built.snapshot
        if 2 * len(affected) > len(parts):
            return None
        touched = {key for name in affected if name in built.parts for key in _devices(built.parts[name])}
        held = Held()
        numa = dict[DeviceKey, Nodes]()
        for name in affected:
            if (part := parts.get(name)) is not None:
                held.add_pod(part.message, uids.get(name, ""), built.offered, numa)
        touched |= held.holders.keys()
        # Of a device that is not offered the entries of all who hold it tell, and whether it is known.
        if not touched <= built.offered:
            return None
        old = built.snapshot
        devices = list(old.devices)
        for key in touched:
            place = built.places[key]
            device = devices[place]
            holders = {holder for holder in device.holders if holder[:2] not in affected}
            holders |= held.holders.get(key, set[Holder]())
            found = tuple(sorted(holders))
            if found != device.holders:
                devices[place] = Device(key, device.parent, device.numa_nodes, device.allocatable, found)
        containers = [one for one in old.containers if one.holder[:2] not in affected]
        containers += [
            container_of(holder, found, built.numa, self._cpu_numa)
            for holder, found in held.containers.items()
        ]
        containers.sort(key=lambda one: one.holder)
        return Snapshot(
            devices=tuple(devices),
            claims=_claims(built, parts, uids, affected),
            containers=tuple(containers),
            pods=len(parts),
            complete=old.complete,
            numa_by_plugin=old.numa_by_plugin,
        )


def _claims(
    built: _Built, parts: Mapping[PodKey, Part], uids: Mapping[PodKey, str], affected: Iterable[PodKey]
) -> tuple[ClaimDevice, ...]:
    """All claimed devices; those of before where none of the affected pods has or had any."""
    either = [part for name in affected for part in (built.parts.get(name), parts.get(name))]
    if not any(part.claims for part in either if part is not None):
        return built.snapshot.claims
    held, numa = Held(), dict[DeviceKey, Nodes]()
    for name, part in parts.items():
        if part.claims:
            held.add_pod(part.message, uids.get(name, ""), built.offered, numa)
    return held.claims.result()


def _offer(allocatable: api_pb2.AllocatableResourcesResponse | None) -> _Offer | None:
    """What is offered, to be compared: the order of the answer differs from call to call."""
    if allocatable is None:
        return None
    return frozenset(
        [
            (entry.resource_name, nodes_of(entry.topology), frozenset(entry.device_ids))
            for entry in allocatable.devices
        ]
    )


def _devices(part: Part) -> list[DeviceKey]:
    return [
        DeviceKey(entry.resource_name, device)
        for container in part.message.containers
        for entry in container.devices
        for device in entry.device_ids
    ]


def _with_kept(snapshot: Snapshot, built: _Built) -> Snapshot:
    """The same, of the objects of the snapshot before where they are equal."""
    old, places = built.snapshot.devices, built.places
    devices = [
        old[place] if (place := places.get(device.key)) is not None and old[place] == device else device
        for device in snapshot.devices
    ]
    return Snapshot(
        devices=tuple(devices),
        claims=built.snapshot.claims if built.snapshot.claims == snapshot.claims else snapshot.claims,
        containers=snapshot.containers,
        pods=snapshot.pods,
        complete=snapshot.complete,
        numa_by_plugin=snapshot.numa_by_plugin,
    )
