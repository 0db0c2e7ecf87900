"""A device's health, and who says so: the kubelet, its plugin, a holder's pod status, or a taint. Pure.

The first of these rules that applies decides. For a plugin's device:

1. A device that the kubelet does not offer is unhealthy. Its plugin gives the reason, else the pod's status.
2. The plugin answers and reports it healthy: healthy. A pod's status lags behind the plugin.
3. A holder's pod status says Unhealthy: unhealthy.
4. The kubelet offers it: healthy.

For a claimed device:

1. A device that the driver no longer publishes is unhealthy.
2. A holder's pod status says Unhealthy: unhealthy.
3. A taint keeps pods away: unhealthy, also where a status says Healthy.
4. A holder's pod status says Healthy: healthy.
5. The health is unknown.

kubelet: allocatedResourcesStatus names a claimed device by its first CDI name, and has one entry for each
name. If a driver gives several devices of a claim one name, the entry does not say which of them it is about:
the health of each is unknown. Containers whose claim serves an extended resource have no entries.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from exporter.mapping.dra import ResourceHealth, Taint
from exporter.mapping.identity import PodIdentity
from exporter.mapping.model import (
    AdvertisedDevice,
    Claimed,
    Device,
    PluginReports,
    PodKey,
    ResourceReport,
)

NOT_OFFERED: Final = "no longer offered"
"""The words for a device that no answer names any more."""
NOT_REPORTED: Final = "health not reported"
"""The words for a claimed device of which no source says the health."""
UNKNOWN: Final = "health unknown"
"""The words for a device of which the kubelet does not know the health."""
UNHEALTHY: Final = "unhealthy"
"""The words for a device that its plugin or the status of a pod calls unhealthy."""
TAINTED: Final = "tainted"
"""The words for a claimed device with a taint that keeps pods away."""
WORST_FIRST: Final = ("unhealthy", "unknown", "healthy")
"""The kinds of health, the worst first."""
BY_STATUS: Final = "reported by the kubelet in the pod's status"
"""The source of what allocatedResourcesStatus says."""


class DeviceHealth(Struct, frozen=True):
    """A device's health: `kind` is healthy, unhealthy or unknown. `words` and `reason` say why ("" without a
    reason), `since` is unix time, `source` names who reports it.
    """

    kind: str
    words: str
    reason: str = ""
    since: float | None = None
    source: str = ""

    @property
    def healthy(self) -> bool | None:
        """Whether the device is healthy, None if that is unknown."""
        return None if self.kind == "unknown" else self.kind == "healthy"


OFFERED: Final = DeviceHealth("healthy", "healthy", source="the kubelet offers it")
"""Of nearly every device of a plugin."""
_INCOMPLETE: Final = DeviceHealth(
    "unknown", "unknown", source="this kubelet does not report allocatable devices"
)
_SILENCE: Final = DeviceHealth("unknown", NOT_REPORTED, source="no pod's status reports it, and no taint")
NO_HEALTH: Final = DeviceHealth("unknown", UNKNOWN)
"""Of a device of which nothing is known."""
_HEALTHY: Final = DeviceHealth("healthy", "healthy", source=BY_STATUS)


class HealthFacts(NamedTuple):
    """What decides the health of devices. `complete` as in Snapshot; `pods` are proven identities."""

    complete: bool
    pods: Mapping[PodKey, PodIdentity]
    advertised: PluginReports

    def of(self, device: Device) -> DeviceHealth:
        """The health of one device."""
        if device.claimed is not None:
            return self._claimed(device, device.claimed)
        key = device.key
        reported = self.advertised.devices.get(key)
        if self.complete and not device.allocatable:
            return self._not_allocatable(device, reported, self.advertised.resources.get(key.resource))
        status = _worst(_of_plugin(device, self.pods)) if self.pods else None
        if not self.complete:
            return status or _INCOMPLETE
        if status is None or status.kind != "unhealthy":
            return OFFERED
        well = reported is not None and reported.healthy and self.advertised.answers(key.resource)
        return OFFERED if well else status

    def _not_allocatable(
        self, device: Device, reported: AdvertisedDevice | None, plugin: ResourceReport | None
    ) -> DeviceHealth:
        if device.no_longer_offered_since is not None:
            since, source = device.no_longer_offered_since, "the kubelet no longer names it"
            return DeviceHealth("unhealthy", NOT_OFFERED, since=since, source=source)
        if plugin is not None and not plugin.report.answers:
            report, words = plugin.report, "its plugin does not answer"
            source = f"plugin at {report.source}"
            return DeviceHealth("unhealthy", words, report.problem, report.silent_since, source)
        if plugin is not None and reported is not None and not reported.healthy:
            source = f"its plugin, at {plugin.report.source}"
            return DeviceHealth("unhealthy", UNHEALTHY, reported.reason, reported.since, source)
        why, source = "", "the kubelet does not offer it"
        if plugin is not None and not plugin.resource.served:
            why = "the kubelet does not watch its plugin"
        elif reported is not None:
            why = "its plugin reports it healthy"
        else:
            status = _worst(_of_plugin(device, self.pods))
            if status is not None and status.kind == "unhealthy":
                why, source = status.reason, status.source if status.reason else source
        return DeviceHealth("unhealthy", "not allocatable", why, source=source)

    def _claimed(self, device: Device, claimed: Claimed) -> DeviceHealth:
        if device.no_longer_offered_since is not None:
            since, source = device.no_longer_offered_since, "its driver no longer publishes it"
            return DeviceHealth("unhealthy", NOT_OFFERED, since=since, source=source)
        status = _worst(_of_claims(claimed, self.pods)) if self.pods else None
        if status is not None and status.kind == "unhealthy":
            return status
        return _tainted(claimed.taints) or status or _SILENCE


def named(taints: Sequence[Taint]) -> str:
    """`taint example.com/xid=79:NoExecute`, as kubectl writes taints of nodes."""
    words = [f"{key}={value}:{effect}" if value else f"{key}:{effect}" for key, value, effect, _ in taints]
    return f"{'taint' if len(words) == 1 else 'taints'} {', '.join(words)}"


def _tainted(taints: Sequence[Taint]) -> DeviceHealth | None:
    if not taints:
        return None
    since = min([one.since for one in taints if one.since is not None], default=None)
    return DeviceHealth("unhealthy", TAINTED, named(taints), since, "its ResourceSlice")


def _of_plugin(device: Device, pods: Mapping[PodKey, PodIdentity]) -> Iterator[DeviceHealth]:
    """What the statuses of pods say about a plugin's device."""
    for holder in device.holders:
        pod = pods.get(holder[:2])
        for entry in () if pod is None else _entries(pod, holder.container, device.key.resource):
            if entry.resource_id == device.key.device:
                yield _said(entry)


def _of_claims(claimed: Claimed, pods: Mapping[PodKey, PodIdentity]) -> Iterator[DeviceHealth]:
    """What the statuses of pods say about a claimed device, of those too that have it for administration."""
    ids, shared = {*claimed.cdi_devices, "/".join(claimed.name)}, dict(claimed.shared_cdi)
    for one in claimed.through:
        pod = pods.get(one.holder[:2])
        if pod is None or not pod.devices.health or one.holder.namespace != one.claim_namespace:
            continue
        name = f"claim:{pod.devices.reference(one.holder.pod, one.claim)}"
        for entry in _entries(pod, one.holder.container, name):
            request = entry.name.removeprefix(name).removeprefix("/")
            if entry.resource_id in ids and (not request or one.request in {"", request}):
                yield _said(entry, shared.get(entry.resource_id, 1))


def _entries(pod: PodIdentity, container: str, name: str) -> Iterator[ResourceHealth]:
    """The entries of a container that are called `name`, or `name/REQUEST`."""
    health = pod.devices.health
    for index in range(bisect_left(health, (container, name)), len(health)):
        entry = health[index]
        if entry.container != container or not entry.name.startswith(name):
            return
        if entry.name[len(name) :][:1] in {"", "/"}:
            yield entry


def _said(entry: ResourceHealth, devices: int = 1) -> DeviceHealth:
    """What an entry says about each of several `devices` with one name."""
    message = entry.message
    if devices > 1:
        why = f"one of {devices} devices is {entry.health}: the driver gives them one CDI name"
        return DeviceHealth("unknown", UNKNOWN, f"{why}; {message}" if message else why, source=BY_STATUS)
    if entry.health == "Healthy":
        return _HEALTHY
    kind, words = ("unhealthy", UNHEALTHY) if entry.health == "Unhealthy" else ("unknown", UNKNOWN)
    return DeviceHealth(kind, words, message, source=BY_STATUS)


def _worst(found: Iterator[DeviceHealth]) -> DeviceHealth | None:
    """Statuses of several holders differ only while one lags."""
    return min(found, key=lambda one: WORST_FIRST.index(one.kind), default=None)
