"""All that readers show of each device, as one object that stays the same while nothing of it changes.

A refresh changes few of a node's devices. Metrics, API and pages recognise the others by identity and keep
what they made of them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import Struct

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
    Snapshot,
)

_Since = Mapping[Holding, HeldSince]
_Pods = Mapping[PodKey, PodIdentity]


class HolderStatus(NamedTuple):
    """A holder of a device: since when, the pod's identity if its uid is proven, and the doubt about the
    holding after a kubelet restart.
    """

    holder: Holder
    since: HeldSince | None = None
    identity: PodIdentity | None = None
    doubt: Doubt | None = None


class PluginStatus(NamedTuple):
    """What a plugin reports of a device: `source` is the plugin's address; `answers` as PluginReport."""

    device: AdvertisedDevice
    source: str
    answers: bool


class DeviceStatus(Struct, frozen=True):
    """A device of a snapshot, its holders in order, and what its plugin reports, None without a report.

    `healthy` is None where the kubelet does not serve GetAllocatableResources.
    """

    device: Device
    healthy: bool | None = None
    holders: tuple[HolderStatus, ...] = ()
    plugin: PluginStatus | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStatuses:
    """The statuses of a snapshot's devices, in its order, and what they were made of."""

    snapshot: Snapshot
    since: Mapping[Holding, HeldSince]
    pods: Mapping[PodKey, PodIdentity]
    advertised: PluginReports
    devices: tuple[DeviceStatus, ...] = ()

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
        key, healthy = device.key, device.allocatable if self.snapshot.complete else None
        holders = tuple([self._holder(key, holder) for holder in device.holders])
        return DeviceStatus(device, healthy, holders, self._plugin(key))

    def _holder(self, key: DeviceKey, holder: Holder) -> HolderStatus:
        pod, since = holder[:2], self.since.get(Holding(key, holder))
        return HolderStatus(holder, since, self.pods.get(pod), self.snapshot.unconfirmed.get(pod))

    def _plugin(self, key: DeviceKey) -> PluginStatus | None:
        device, found = self.advertised.devices.get(key), self.advertised.resources.get(key.resource)
        if device is None or found is None:
            return None
        return PluginStatus(device, found.report.source, found.report.answers)

    def touched(self, last: "DeviceStatuses") -> Callable[[Device], bool]:
        """Whether the status of a device that did not change may differ from that in `last`."""
        pods = self._changed_pods(last)
        reports = self._changed_reports(last)

        def differs(device: Device) -> bool:
            held = bool(pods) and any(holder[:2] in pods for holder in device.holders)
            return held or (reports is not None and reports(device.key))

        return differs if pods or reports is not None else _never

    def _changed_pods(self, last: "DeviceStatuses") -> Collection[PodKey]:
        """Pods whose identity or doubt differs. The devices of a pod that is new or gone changed as well."""
        pods = {key for key, one in self.pods.items() if last.pods.get(key, one) is not one}
        now, before = self.snapshot.unconfirmed, last.snapshot.unconfirmed
        return pods if now == before else pods | now.keys() | before.keys()

    def _changed_reports(self, last: "DeviceStatuses") -> Callable[[DeviceKey], bool] | None:
        """Whether a device's report differs; None if no report changed."""
        now, before = self.advertised, last.advertised
        if now is before:
            return None
        plugins, others = _plugins(now), _plugins(before)

        def differs(key: DeviceKey) -> bool:
            one, other = now.devices.get(key), before.devices.get(key)
            return plugins.get(key.resource) != others.get(key.resource) or (
                one is not other and one != other
            )

        return differs


def _plugins(reports: PluginReports) -> Mapping[str, tuple[str, bool]]:
    return {name: (one.report.source, one.report.answers) for name, one in reports.resources.items()}


def _never(_device: Device) -> bool:
    return False


def device_statuses(
    snapshot: Snapshot,
    since: Mapping[Holding, HeldSince],
    pods: Mapping[PodKey, PodIdentity],
    advertised: PluginReports,
    last: DeviceStatuses | None = None,
    *,
    restored: bool = False,
) -> DeviceStatuses:
    """The statuses of `snapshot`, with the objects of `last` where nothing changed.

    `restored`: starts of devices that did not change may differ, because history brought them.
    """
    now = DeviceStatuses(snapshot, since, pods, advertised)
    if last is None:
        return replace(now, devices=tuple([now.made(device) for device in snapshot.devices]))
    if len(last.devices) == len(snapshot.devices):
        known: Iterable[DeviceStatus | None] = last.devices
    else:
        by_key = {status.device.key: status for status in last.devices}
        known = [by_key.get(device.key) for device in snapshot.devices]
    every = restored or snapshot.complete != last.snapshot.complete
    touched = now.touched(last)
    changed = snapshot.changed_at(last.snapshot)
    if changed is not None and touched is _never and not every:
        devices = list(last.devices)
        for index in changed:
            status = now.made(snapshot.devices[index])
            devices[index] = status if status != devices[index] else devices[index]
        return replace(now, devices=tuple(devices))
    found: list[DeviceStatus] = []
    for device, was in zip(snapshot.devices, known, strict=True):
        if (
            was is not None
            and was.device is device
            and not every
            and (touched is _never or not touched(device))
        ):
            found.append(was)
            continue
        status = now.made(device)
        found.append(was if was is not None and was == status else status)
    return replace(now, devices=tuple(found))
