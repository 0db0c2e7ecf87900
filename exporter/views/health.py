"""Health of a device, and of the physical device behind shares or slices. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from exporter.mapping.anomalies import listed
from exporter.mapping.model import Anomaly, Device
from exporter.mapping.state import State
from runtime.text import shortened, visible

NOT_OFFERED: Final = "no longer offered"
"""The words for a device that no answer names any more."""


class DeviceHealth(Struct, frozen=True):
    """A device's health: `kind` is healthy, unhealthy or unknown. `words` and `reason` say why ("" without a
    reason), `since` is unix time, `source` names who reports it.
    """

    kind: str
    words: str
    reason: str = ""
    since: float | None = None
    source: str = ""


def health(device: Device, state: State) -> DeviceHealth:
    """The health of a device, by the kubelet and by its plugin."""
    reported = state.advertised.devices.get(device.key)
    plugin = state.advertised.resources.get(device.key.resource)
    since = None if reported is None else reported.since
    if not state.snapshot.complete:
        return DeviceHealth("unknown", "unknown", source="this kubelet does not report allocatable devices")
    if device.no_longer_offered_since is not None:
        since = device.no_longer_offered_since
        return DeviceHealth("unhealthy", NOT_OFFERED, since=since, source="the kubelet no longer names it")
    if device.allocatable:
        return DeviceHealth("healthy", "healthy", since=since, source="the kubelet offers it")
    source = "" if plugin is None else plugin.report.source
    if plugin is not None and not plugin.report.answers:
        report = plugin.report
        words = "its plugin does not answer"
        return DeviceHealth("unhealthy", words, report.problem, report.silent_since, f"plugin at {source}")
    if reported is not None and not reported.healthy:
        return DeviceHealth("unhealthy", "unhealthy", reported.reason, since, f"its plugin, at {source}")
    why = "its plugin reports it healthy" if reported is not None else ""
    if plugin is not None and not plugin.resource.served:
        why = "the kubelet does not watch its plugin"
    found = (a.since for a in concerning(state.anomalies, device) if a.since is not None)
    return DeviceHealth(
        "unhealthy", "not allocatable", why, min(found, default=None), "the kubelet does not offer it"
    )


_LENGTH: Final = 8192
_WORST_FIRST: Final = ("unhealthy", "unknown", "healthy")


def health_of_parts(parts: Sequence[Device], state: State) -> DeviceHealth:
    """The health of the physical device behind `parts`: the worst of theirs, since the first of these began;
    healthy since the last part is.

    Equal reasons are one; where parts differ, the words count the affected ones and the reason names them.
    """
    found = [(part, health(part, state)) for part in parts]
    kind = min((one.kind for _, one in found), key=_WORST_FIRST.index)
    worst = [(part, one) for part, one in found if one.kind == kind]
    sources = listed(dict.fromkeys(one.source for _, one in worst))
    reasons: dict[str, list[str]] = {}
    for part, one in worst:
        why = one.reason or ("" if one.words == kind else one.words)
        reasons.setdefault(why, []).append(shortened(visible(part.key.device, limit=_LENGTH)))
    known = [one.since for _, one in worst if one.since is not None]
    since = min(known, default=None)
    if kind == "healthy":
        since = max(known) if len(known) == len(worst) else None
    if len(reasons) == 1 and len(worst) == len(found):
        return replace(worst[0][1], since=since, source=sources)
    named = (f"{listed(names)}{f': {why}' if why else ''}" for why, names in reasons.items())
    return DeviceHealth(kind, f"{len(worst)} of {len(found)} parts {kind}", "; ".join(named), since, sources)


def concerning(anomalies: Iterable[Anomaly], device: Device) -> tuple[Anomaly, ...]:
    """The anomalies of the device, of its resource as a whole, or of several devices that include it."""
    key = device.key
    return tuple(
        anomaly
        for anomaly in anomalies
        if anomaly.resource in {key.resource, ""}
        and (
            anomaly.device == key.device
            or (not anomaly.device and anomaly.holder is None and anomaly.kind != "no_longer_offered")
            or (key.device in anomaly.devices and anomaly.holder in {None, *device.holders})
        )
    )
