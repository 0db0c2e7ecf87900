"""One device explained: which one is meant, and everything that is known of it. explain_words tells it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from daemon.text import visible
from exporter.core.advertised import AdvertisedDevice, Word
from exporter.core.anomalies import Anomaly
from exporter.core.ids import Reader, Reading
from exporter.core.model import ClaimDevice, Device, DeviceKey, Snapshot
from exporter.core.state import State

_NEAREST: Final = 5
_COMPARED: Final = 4096
"""Ids that one that is not known is compared with."""
_LENGTH: Final = 256
"""Characters of an id that are compared, and shown."""


class Subject(StrEnum):
    """What an id was found to be."""

    DEVICE = "device"
    """A device of a device plugin."""
    PARENT = "parent"
    """What is behind shares or parts, and no device that the kubelet knows by itself."""
    CLAIMED = "claimed"
    """A device given through ResourceClaims (DRA)."""


class UnknownDevice(Exception):  # noqa: N818 -- an answer, not a failure
    """There is no such device. `nearest` are the ones whose ids are most like it."""

    def __init__(self, message: str, nearest: tuple[DeviceKey, ...]) -> None:
        super().__init__(message)
        self.nearest = nearest


class AmbiguousDevice(ValueError):  # noqa: N818 -- a wrong use
    """Several devices may be meant: `devices`, or more than them."""

    def __init__(self, message: str, devices: tuple[DeviceKey, ...]) -> None:
        super().__init__(message)
        self.devices = devices


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything known of what an id names.

    `key` is the device's (`resource` "" for what is none of a device plugin's). `device` is its place in the
    snapshot, None unless it is a DEVICE. `reading` tells how its id was read, `parent_reading` its parent's
    (None without one). `siblings` are the other devices of its parent, `parts` the devices whose parent it
    is itself, `elsewhere` the other resources that have a device of this id, `claimed` the claimed devices of
    this name. `told` is its plugin's word on it, `word` on its resource. `numa_by_plugin`: where it is only
    its plugin tells.
    """

    subject: Subject
    key: DeviceKey
    reading: Reading
    parent_reading: Reading | None = None
    device: Device | None = None
    siblings: tuple[Device, ...] = ()
    parts: tuple[Device, ...] = ()
    elsewhere: tuple[str, ...] = ()
    claimed: tuple[ClaimDevice, ...] = ()
    told: AdvertisedDevice | None = None
    word: Word | None = None
    numa_by_plugin: bool = False
    anomalies: tuple[Anomaly, ...] = ()

    @property
    def parent(self) -> str:
        """The device behind it, by its id or by its plugin; "" for a whole one."""
        return self.reading.parent if self.device is None else self.device.parent


def explain(state: State, device: str, resource: str = "", *, reader: Reader) -> Findings:
    """What is known of the device whose id is `device`, as it is or as it is shown, or has it as a part if
    only one does, or only those into which one device is divided. `resource` is a whole name, or what
    follows its slash.

    Raises UnknownDevice and AmbiguousDevice.
    """
    snapshot = state.snapshot
    names = _resources(snapshot, resource)
    if names is not None and not names:
        raise _no_resource(resource, snapshot)
    known = [found for found in snapshot.devices if names is None or found.key.resource in names]
    claimed = tuple(c for c in snapshot.claims if _same(c.key.device, device)) if names is None else ()
    exact = [found for found in known if _same(found.key.device, device)]
    if len({found.key for found in exact}) > 1:
        raise _ambiguous(device, exact, "is an id in several resources")
    if exact:
        return _device(exact[0], state, reader, claimed)
    parts = tuple(found for found in known if found.parent and _same(found.parent, device))
    if parts:
        return _parent(parts, state, reader)
    if claimed:
        key = DeviceKey("", claimed[0].key.device)
        return Findings(Subject.CLAIMED, key, reader(key.device), claimed=claimed)
    like = [found for found in known if device and device.casefold() in found.key.device.casefold()]
    if len(like) > 1:
        behind = {found.parent for found in like}
        if len(behind) == 1 and device.casefold() in like[0].parent.casefold():
            return _parent(tuple(found for found in known if found.parent in behind), state, reader)
        raise _ambiguous(device, like, f"is part of {len(like)} ids")
    if like:
        return _device(like[0], state, reader, ())
    raise _unknown(device, resource, known, state, reader)


def _same(raw: str, asked: str) -> bool:
    return raw == asked or visible(raw, limit=8192) == asked


def _resources(snapshot: Snapshot, asked: str) -> frozenset[str] | None:
    """The resources that may be meant; None for all."""
    if not asked:
        return None
    known = snapshot.resources()
    whole = frozenset(name for name in known if _same(name, asked))
    return whole or frozenset(name for name in known if _same(name.rpartition("/")[2], asked))


def _device(device: Device, state: State, reader: Reader, claimed: tuple[ClaimDevice, ...]) -> Findings:
    snapshot, key = state.snapshot, device.key
    siblings = _others(snapshot, lambda d: bool(device.parent) and d.parent == device.parent and d.key != key)
    return Findings(
        subject=Subject.DEVICE,
        key=key,
        reading=reader(key.device, key.resource),
        parent_reading=reader(device.parent, key.resource) if device.parent else None,
        device=device,
        siblings=siblings,
        parts=_others(snapshot, lambda d: d.parent == key.device),
        elsewhere=tuple(
            d.key.resource
            for d in snapshot.devices
            if d.key.device == key.device and d.key.resource != key.resource
        ),
        claimed=claimed,
        told=state.advertised.devices.get(key),
        word=state.advertised.resources.get(key.resource),
        numa_by_plugin=key in snapshot.numa_by_plugin,
        anomalies=_concerning(state.anomalies, device),
    )


def _parent(parts: tuple[Device, ...], state: State, reader: Reader) -> Findings:
    first = parts[0]
    resource = first.key.resource
    return Findings(
        subject=Subject.PARENT,
        key=DeviceKey("", first.parent),
        reading=reader(first.parent, resource),
        parts=parts,
        anomalies=tuple(dict.fromkeys(a for part in parts for a in _concerning(state.anomalies, part))),
    )


def _others(snapshot: Snapshot, kept: Callable[[Device], bool]) -> tuple[Device, ...]:
    return tuple(device for device in snapshot.devices if kept(device))


def _concerning(anomalies: Iterable[Anomaly], device: Device) -> tuple[Anomaly, ...]:
    """Those that name the device, its resource as a whole, or it among others."""
    key = device.key
    return tuple(
        anomaly
        for anomaly in anomalies
        if anomaly.resource in {key.resource, ""}
        and (
            anomaly.device == key.device
            or (not anomaly.device and anomaly.holder is None)
            or (key.device in anomaly.devices and anomaly.holder in {None, *device.holders})
        )
    )


def _ambiguous(asked: str, found: list[Device], why: str) -> AmbiguousDevice:
    keys = tuple(device.key for device in found[:20])
    shown = ", ".join(f"{_cut(key.resource)}={_cut(key.device)}" for key in keys[:_NEAREST])
    more = f" and {len(found) - _NEAREST} more" if len(found) > _NEAREST else ""
    return AmbiguousDevice(f"'{_cut(asked)}' {why}: say which: {shown}{more}", keys)


def _unknown(asked: str, resource: str, known: list[Device], state: State, reader: Reader) -> UnknownDevice:
    where = f" of {_cut(resource)}" if resource else ""
    words = [f"no device '{_cut(asked)}'{where} is known on this node"]
    parent = reader(asked, resource).parent
    if parent:
        there = any(parent in {found.parent, found.key.device} for found in known)
        words.append(f"its id reads as one of {_cut(parent)}, which is {'' if there else 'not '}known")
    nearest = _nearest(asked, known)
    if nearest:
        words.append(f"most like it are {', '.join(_cut(key.device) for key in nearest)}")
    if not state.advertised.tellings:
        words.append(
            "a device that is neither allocatable nor held is known only where its plugin is asked "
            "(--plugin.url)"
        )
    return UnknownDevice("; ".join(words), nearest)


def _no_resource(asked: str, snapshot: Snapshot) -> UnknownDevice:
    known = ", ".join(_cut(name) for name in list(snapshot.resources())[:20])
    return UnknownDevice(f"no resource '{_cut(asked)}' on this node: there are {known or 'none at all'}", ())


def _nearest(asked: str, known: list[Device]) -> tuple[DeviceKey, ...]:
    """The ids that begin and end most like it: the ends of two ids differ more often than the middle."""
    wanted = asked.casefold()[:_LENGTH]
    scored: list[tuple[int, DeviceKey]] = []
    for device in known[:_COMPARED]:
        other = device.key.device.casefold()[:_LENGTH]
        alike = _common(wanted, other) + _common(wanted[::-1], other[::-1])
        if 2 * alike >= max(len(wanted), 2):
            scored.append((-alike, device.key))
    return tuple(key for _, key in sorted(scored)[:_NEAREST])


def _common(one: str, other: str) -> int:
    """Characters that both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _cut(text: str) -> str:
    return visible(text, limit=_LENGTH)
