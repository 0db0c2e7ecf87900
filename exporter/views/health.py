"""Since when a device has its health, and the health of the physical device behind shares or slices. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from exporter.mapping.anomalies import listed
from exporter.mapping.device_health import WORST_FIRST, DeviceHealth
from exporter.mapping.model import Anomaly, Device
from exporter.mapping.state import State
from runtime.text import shortened, visible


def health(device: Device, state: State) -> DeviceHealth:
    """The health of a device, and since when it lasts: by its plugin, else by its anomalies."""
    found = state.health_of(device)
    if found.since is not None:
        return found
    reported = state.advertised.devices.get(device.key)
    if found.healthy and reported is not None:
        return replace(found, since=reported.since)
    if found.kind == "unhealthy":
        known = [one.since for one in concerning(state.anomalies, device) if one.since is not None]
        return replace(found, since=min(known, default=None))
    return found


_LENGTH: Final = 8192


def health_of_parts(parts: Sequence[Device], state: State) -> DeviceHealth:
    """The health of the physical device behind `parts`: the worst of theirs, since the first of these began;
    healthy since the last part is.

    Equal reasons are one; where parts differ, the words count the affected ones and the reason names them.
    """
    found = [(part, health(part, state)) for part in parts]
    kind = min((one.kind for _, one in found), key=WORST_FIRST.index)
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
