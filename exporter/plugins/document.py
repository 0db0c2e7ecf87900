"""A plugin's document (its /api/v1/devices), checked and bounded. Pure.

Keys that are not known are ignored, keys that may be missing are missed. What is of the wrong kind, or of
another version, is refused as a whole, with the place in it.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

import msgspec

from daemon.text import visible
from exporter.core.advertised import AdvertisedDevice, AdvertisedResource

VERSION: Final = 1
MAX_DEVICES: Final = 100_000
"""Devices of one document; the kubelet's own answers end at 16 MiB."""
_MAX_ATTRIBUTES: Final = 64
"""Attributes of a device that are kept, by name."""
_MAX_TEXT: Final = 1024
"""Characters of a reason, of an attribute's name and of its value that are kept."""
_MAX_NODES: Final = 1024
_LATEST: Final = 32_503_680_000.0
"""Unix time of the year 3000: what is later cannot be shown, and is none."""
_HEALTHY: Final = "Healthy"


class DocumentError(ValueError):
    """It is not a plugin's document; the message says what was found and what was expected."""


class _Version(msgspec.Struct):
    version: int


class _Device(msgspec.Struct):
    id: str
    health: str = ""
    reason: str = ""
    since: str | None = None
    numa_nodes: list[int] = []
    attributes: dict[str, str] = {}
    last_allocated: str | None = None


class _Resource(msgspec.Struct):
    name: str
    registered: bool = False
    streams: int = 0
    devices: list[_Device] = []


class _Document(msgspec.Struct):
    resources: list[_Resource]


def parse(body: bytes) -> Mapping[str, AdvertisedResource]:
    """The resources in a document, by name. Raises DocumentError.

    A time that is none counts as not told, a negative NUMA node as no node; texts are cut.
    """
    try:
        version = msgspec.json.decode(body, type=_Version).version
        if version != VERSION:
            raise DocumentError(f"found version {version}, expected {VERSION}")
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        told = visible(str(error), limit=200)
        raise DocumentError(f"expected the devices of a devicelens plugin: {told}") from None
    count = sum(len(resource.devices) for resource in document.resources)
    if count > MAX_DEVICES:
        raise DocumentError(f"found {count} devices, expected at most {MAX_DEVICES}")
    return MappingProxyType({resource.name: _resource(resource) for resource in document.resources})


def _resource(told: _Resource) -> AdvertisedResource:
    devices = {device.id: _device(device) for device in told.devices}
    return AdvertisedResource(told.registered, max(0, told.streams), MappingProxyType(devices))


def _device(told: _Device) -> AdvertisedDevice:
    attributes = sorted((_cut(name), _cut(value)) for name, value in told.attributes.items())
    healthy = told.health == _HEALTHY
    reason = _cut(told.reason)
    if not healthy and not reason and told.health != "Unhealthy":
        reason = f"its health is {visible(told.health, limit=80)!r}"
    return AdvertisedDevice(
        healthy=healthy,
        reason=reason,
        since=_time(told.since),
        numa_nodes=tuple(sorted({node for node in told.numa_nodes[:_MAX_NODES] if node >= 0})),
        attributes=tuple(attributes[:_MAX_ATTRIBUTES]),
        last_allocated=_time(told.last_allocated),
        parent=_parent(told),
    )


def _parent(told: _Device) -> str:
    parent = told.attributes.get("parent", "")
    return parent if parent != told.id and len(parent) <= _MAX_TEXT else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _time(text: str | None) -> float | None:
    """Unix time of an RFC 3339 time with its offset from UTC; None for anything else."""
    if not text or len(text) > 64:
        return None
    try:
        moment = datetime.fromisoformat(text)
        at = moment.timestamp() if moment.tzinfo is not None else math.nan
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at <= _LATEST else None
