"""All that readers show of each device, as one object that stays the same while nothing of it changes.

A refresh changes few of a node's devices. Metrics, API and pages recognise the others by identity and keep
what they made of them.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from exporter.mapping.chosen_devices import KUBELETS, NO_CHOICES, Choice, Choices, choices
from exporter.mapping.device_health import BY_STATUS, NO_HEALTH, UNHEALTHY, DeviceHealth, HealthFacts
from exporter.mapping.device_identity import DeviceIdentity, identity_of
from exporter.mapping.holdings import HeldSince, Holding
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    AdvertisedDevice,
    Device,
    DeviceKey,
    Doubt,
    Holder,
    PluginReports,
    PodKey,
    ResourceCounts,
    Snapshot,
)

_Since = Mapping[Holding, HeldSince]
_Pods = Mapping[PodKey, PodIdentity]


class HolderStatus(NamedTuple):
    """A holder of a device: since when, the pod's identity if its uid is proven, the doubt about the holding
    after a kubelet restart, what the container asked by (Device.requested_as), and the physical device where
    another scheduler chose it.
    """

    holder: Holder
    since: HeldSince | None = None
    identity: PodIdentity | None = None
    doubt: Doubt | None = None
    requested_as: str = ""
    choice: Choice = KUBELETS


class PluginStatus(NamedTuple):
    """What a plugin reports of a device: `source` is the plugin's address; `answers` as PluginReport."""

    device: AdvertisedDevice
    source: str
    answers: bool


class DeviceStatus(Struct, frozen=True):
    """A device of a snapshot, its health, its holders in order, what its plugin reports, None without a
    report, and what is known of the physical device, None for nothing. `free` as Snapshot.is_free, and
    not unhealthy.
    """

    device: Device
    health: DeviceHealth = NO_HEALTH
    holders: tuple[HolderStatus, ...] = ()
    plugin: PluginStatus | None = None
    identity: DeviceIdentity | None = None
    free: bool | None = None

    @property
    def healthy(self) -> bool | None:
        """Whether the device is healthy, None if that is unknown."""
        return self.health.healthy


class IllDevice(NamedTuple):
    """A device, and why the status of a pod that has it calls it unhealthy, "" without a reason."""

    device: Device
    reason: str


class DeviceStatuses(Struct, frozen=True, eq=False):
    """The statuses of a snapshot's devices, in its order, and what they were made of.

    `ill` are the devices that are unhealthy by the status of a pod that has them.
    `choices` are the physical devices that other schedulers chose for holders.
    """

    snapshot: Snapshot
    since: Mapping[Holding, HeldSince]
    pods: Mapping[PodKey, PodIdentity]
    advertised: PluginReports
    devices: tuple[DeviceStatus, ...] = ()
    ill: Mapping[DeviceKey, IllDevice] = field(
        default_factory=lambda: MappingProxyType(dict[DeviceKey, IllDevice]())
    )
    choices: Choices = NO_CHOICES

    def resources(self) -> Mapping[str, ResourceCounts]:
        """Counts of each resource, by name; those that are ill count as unhealthy."""
        if not self.ill:
            return self.snapshot.resources()
        found = dict(self.snapshot.resources())
        for key, (device, _) in self.ill.items():
            if device.allocatable and not device.alternative:
                counts, unheld = found[key.resource], not device.holders
                found[key.resource] = replace(
                    counts,
                    unhealthy=counts.unhealthy + 1,
                    free=counts.free - (unheld and not device.reserved),
                    reserved=counts.reserved - (unheld and bool(device.reserved)),
                )
        return found

    def is_of(
        self,
        snapshot: Snapshot,
        since: Mapping[Holding, HeldSince],
        pods: Mapping[PodKey, PodIdentity],
        advertised: PluginReports,
    ) -> bool:
        """Whether the statuses were made of these very objects."""
        made = self.snapshot is snapshot and self.since is since
        return made and self.pods is pods and self.advertised is advertised

    def made(self, device: Device) -> DeviceStatus:
        """The status of one device."""
        holders = tuple([self._holder(device, holder) for holder in device.holders])
        identity = identity_of(device, self.advertised.devices.get(device.key))
        plugin, health, free = self._plugin(device.key), self.health(device), self.snapshot.is_free(device)
        return DeviceStatus(device, health, holders, plugin, identity, free and health.kind != "unhealthy")

    def health(self, device: Device) -> DeviceHealth:
        """The health of one device."""
        return HealthFacts(self.snapshot.complete, self.pods, self.advertised).of(device)

    def dated(
        self, since: Mapping[Holding, HeldSince], last: "DeviceStatuses | None" = None
    ) -> "DeviceStatuses":
        """These statuses with the starts `since`. They differ only where a device changed since `last`; None
        if any may.
        """
        if since is self.since:
            return self
        changed = None if last is None else self.snapshot.changed_at(last.snapshot)
        found = list(self.devices)
        for index in range(len(found)) if changed is None else changed:
            status = found[index]
            if status.holders:
                key = status.device.key
                holders = [
                    HolderStatus(one[0], since.get(Holding(key, one[0])), *one[2:]) for one in status.holders
                ]
                facts = (status.device, status.health, tuple(holders))
                dated = DeviceStatus(*facts, status.plugin, status.identity, status.free)
                found[index] = _same_or(status, dated)
        return replace(self, since=since, devices=tuple(found))

    def _holder(self, device: Device, holder: Holder) -> HolderStatus:
        pod, since = holder[:2], self.since.get(Holding(device.key, holder))
        doubt, choice = self.snapshot.unconfirmed.get(pod), KUBELETS
        if self.choices:
            choice = self.choices.get(device.key, {}).get(holder, KUBELETS)
        return HolderStatus(holder, since, self.pods.get(pod), doubt, device.requested_as(holder), choice)

    def _plugin(self, key: DeviceKey) -> PluginStatus | None:
        device, found = self.advertised.devices.get(key), self.advertised.resources.get(key.resource)
        if device is None or found is None:
            return None
        return PluginStatus(device, found.report.source, found.report.answers)

    def changed_since(self, last: "DeviceStatuses") -> Collection[int] | None:
        """The indexes of the devices whose status may differ from that in `last`. None if any may."""
        now, before = self.snapshot, last.snapshot
        devices = now.changed_at(before)
        known = (now.complete, now.published, now.held_only)
        if devices is None or known != (before.complete, before.published, before.held_only):
            return None
        pods, keys, resources = self._changed_pods(last), self._changed_reports(last), self._plugins(last)
        found = set(devices)
        keys = {*keys, *self._changed_choices(last)}
        numbered = enumerate(self.snapshot.devices) if pods or keys or resources else ()
        for index, device in numbered:
            if (
                device.key in keys
                or device.key[0] in resources
                or (pods and not pods.isdisjoint(_pods_of(device)))
            ):
                found.add(index)
        return found

    def _changed_pods(self, last: "DeviceStatuses") -> set[PodKey]:
        """Pods whose identity or doubt differs. The devices of a pod that is new or gone changed as well."""
        pods: set[PodKey] = set()
        if self.pods is not last.pods:
            pods = {key for key, one in self.pods.items() if last.pods.get(key, one) is not one}
        now, before = self.snapshot.unconfirmed, last.snapshot.unconfirmed
        return pods if now == before else pods | now.keys() | before.keys()

    def _changed_choices(self, last: "DeviceStatuses") -> Collection[DeviceKey]:
        """Devices of which another physical device is chosen for a holder."""
        now, before = self.choices, last.choices
        return [key for key in {**now, **before} if now.get(key) != before.get(key)]

    def _changed_reports(self, last: "DeviceStatuses") -> Collection[DeviceKey]:
        """Devices whose report differs."""
        now, before = self.advertised.devices, last.advertised.devices
        if now is before:
            return ()
        gone = before.keys() - now.keys() if len(before) != len(now) else ()
        return {*gone, *[key for key, one in now.items() if before.get(key) is not one]}

    def _plugins(self, last: "DeviceStatuses") -> Collection[str]:
        """Resources whose plugin differs, answers no more or again, or is no longer watched."""
        now, before = (
            {
                name: (one.resource.served, one.report.source, one.report.problem, one.report.answers)
                for name, one in reports.resources.items()
            }
            for reports in (self.advertised, last.advertised)
        )
        return {name for name, _ in now.items() ^ before.items()}


def _pods_of(device: Device) -> list[PodKey]:
    """The pods of the holders, and those that have the device for administration: all report its health."""
    pods = [holder[:2] for holder in device.holders]
    return pods if device.claimed is None else [*pods, *[one.holder[:2] for one in device.claimed.through]]


def device_statuses(
    snapshot: Snapshot,
    since: Mapping[Holding, HeldSince],
    pods: Mapping[PodKey, PodIdentity],
    advertised: PluginReports,
    last: DeviceStatuses | None = None,
) -> DeviceStatuses:
    """The statuses of `snapshot`, with the objects of `last` where nothing changed. `since` may differ from
    that of `last` where devices changed.
    """
    now = DeviceStatuses(snapshot, since, pods, advertised, choices=choices(snapshot, pods))
    changed = None if last is None else now.changed_since(last)
    if last is not None and changed is not None:
        found = list(last.devices)
        for index in changed:
            found[index] = _same_or(found[index], now.made(snapshot.devices[index]))
        made = [found[index] for index in changed]
        lasting = last.ill
        if lasting:
            keys = {one.device.key for one in made}
            lasting = {key: one for key, one in lasting.items() if key not in keys}
        return replace(now, devices=tuple(found), ill={**lasting, **_ill(made)})
    known = {} if last is None else {status.device.key: status for status in last.devices}
    made = [_same_or(known.get(device.key), now.made(device)) for device in snapshot.devices]
    return replace(now, devices=tuple(made), ill=_ill(made))


def _ill(statuses: Iterable[DeviceStatus]) -> dict[DeviceKey, IllDevice]:
    found = [one for one in statuses if one.health.words == UNHEALTHY and one.health.source == BY_STATUS]
    return {one.device.key: IllDevice(one.device, one.health.reason) for one in found}


def _same_or(was: DeviceStatus | None, status: DeviceStatus) -> DeviceStatus:
    return was if was is not None and was == status else status
