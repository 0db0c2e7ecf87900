"""ResourceSlices as the API server sends them, and the device that each entry of a slice publishes. Pure.

Versions: v1 and v1beta2, and v1beta1, which has a device's facts under `basic`. Kubernetes qualifies the
attributes of a driver by its own domain or not at all; drivers name the same fact differently. Text is cut or
refused here: it comes from drivers.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from exporter.mapping.dra import Consumption, PublishedDevice, PublishedName, Taint
from exporter.mapping.partitions import quantity
from exporter.mapping.physical_ids import pci_address, uuid

NAME_LIMIT: Final = 253
"""Characters of a driver, a pool, a device, and of a UUID, a model or a resource."""
TEXT_LIMIT: Final = 256
"""Characters of an attribute, an amount, or a taint."""

_ENTRIES: Final = 64
"""Attributes, capacities, taints or consumed counters of one device that are kept. Kubernetes: 32, 16, 32."""
_STANDARD: Final = "resource.kubernetes.io/"
_RESOURCE: Final = "devicelens.dev/resource"
# The same fact, as published by NVIDIA's, AMD's and Intel's drivers, DRANET, dra-driver-sriov, dra-driver-cpu
# and dra-example-driver; without the domain, hyphens, underscores, and capital letters.
_UUID: Final = ("uuid", "gpuuuid", "deviceuuid")
_PCI: Final = ("pcibusid", "pciebusid", "pciaddress", "pciaddr", "bdf")
_MODEL: Final = ("productname", "model", "modelname", "product")
_NUMA: Final = ("numanode", "numa", "numanodeid")
_PARENT: Final = ("parentuuid",)


# A time without a zone depends on the node's.
_TIME: Final = msgspec.json.Decoder(Annotated[datetime, Meta(tz=True)])


class SliceMeta(Struct, rename="camel"):
    """A slice's metadata."""

    name: str = ""
    resource_version: str = ""


class SlicePool(Struct, rename="camel"):
    """The pool of a slice: its generation, and how many slices that generation has."""

    name: str
    generation: int = 0
    resource_slice_count: int = 0


class _Attribute(Struct):
    """A value; exactly one member is set. The lists are alpha in 1.36."""

    string: str | None = None
    number: int | None = field(default=None, name="int")
    flag: bool | None = field(default=None, name="bool")
    version: str | None = None
    strings: list[str] | None = None
    numbers: list[int] | None = field(default=None, name="ints")


class _Amount(Struct):
    value: str = ""


class _Taint(Struct, rename="camel"):
    key: str = ""
    value: str = ""
    effect: str = ""
    # Decoded apart: the API server takes the year 0, which Python does not.
    time_added: str | None = None


class _Consumes(Struct, rename="camel"):
    counter_set: str = ""
    counters: dict[str, _Amount] = field(default_factory=dict[str, _Amount])


class _Facts(Struct, rename="camel"):
    attributes: dict[str, _Attribute] | None = None
    capacity: dict[str, _Amount] | None = None
    taints: list[_Taint] | None = None
    allow_multiple_allocations: bool | None = None
    consumes_counters: list[_Consumes] | None = None


class _Device(_Facts, rename="camel"):
    name: str = ""
    basic: _Facts | None = None


class _CounterSet(Struct):
    name: str = ""
    counters: dict[str, _Amount] = field(default_factory=dict[str, _Amount])


class _Spec(Struct, rename="camel"):
    driver: str
    pool: SlicePool
    node_name: str = ""
    devices: list[_Device] | None = None
    shared_counters: list[_CounterSet] | None = None


class ResourceSlice(Struct):
    """A ResourceSlice of the API server."""

    metadata: SliceMeta
    spec: _Spec


class SliceContent(NamedTuple):
    """What is kept of a slice: one of `size` slices of the pool's `generation`. `counters`: the amounts that
    it shares out, by counter set and counter.
    """

    name: str
    node: str
    driver: str
    pool: str
    generation: int
    size: int
    devices: Mapping[PublishedName, PublishedDevice]
    counters: Mapping[tuple[str, str], float]


def is_name(text: str) -> bool:
    """Whether `text` may be the name of a driver, a pool, or a device."""
    return 0 < len(text) <= NAME_LIMIT and text.isascii() and text.isprintable()


def content_of(found: ResourceSlice) -> SliceContent | None:
    """What is kept of a slice, None for names that Kubernetes does not allow.

    Devices are without parents by shared counters. A device whose name or amounts Kubernetes does not allow
    is left out.
    """
    spec = found.spec
    if not all(map(is_name, (found.metadata.name, spec.driver, spec.pool.name))):
        return None
    pool = spec.pool
    sizes = pool.generation, pool.resource_slice_count
    names = found.metadata.name, spec.node_name, spec.driver, pool.name
    return SliceContent(*names, *sizes, _devices(found), _counters(found))


def _devices(found: ResourceSlice) -> Mapping[PublishedName, PublishedDevice]:
    spec = found.spec
    devices = (
        _device(PublishedName(spec.driver, spec.pool.name, one.name), one) for one in spec.devices or ()
    )
    return {device.name: device for device in devices if device is not None}


def _counters(found: ResourceSlice) -> Mapping[tuple[str, str], float]:
    return {
        (one.name, name): amount
        for one in found.spec.shared_counters or ()
        for name, given in one.counters.items()
        if is_name(one.name) and is_name(name) and (amount := quantity(given.value)) is not None
    }


def _device(name: PublishedName, given: _Device) -> PublishedDevice | None:
    facts = given.basic or given
    consumes = _consumes(facts.consumes_counters or ())
    if not is_name(name.device) or consumes is None:
        return None
    attributes = facts.attributes or {}
    by_fact = _by_fact(name.driver, attributes)
    numa = _first(by_fact, _NUMA)
    resource = attributes.get(_RESOURCE, _NONE).string or ""
    return PublishedDevice(
        name,
        # Never another driver's name, which has no slash: its devices would be mixed with these.
        resource=resource if is_name(resource) and "/" in resource else "",
        uuid=_uuid(_text(_first(by_fact, _UUID))),
        pci_address=pci_address(_text(_first(by_fact, _PCI))),
        model=_text(_first(by_fact, _MODEL))[:NAME_LIMIT],
        numa_nodes=_numa_nodes(numa),
        # NVIDIA: a MIG device that exists beforehand consumes no counters.
        parent="" if consumes else _uuid(_text(_first(by_fact, _PARENT))),
        attributes=_sorted((key, _text(value)) for key, value in attributes.items()),
        capacity=_sorted((key, one.value) for key, one in (facts.capacity or {}).items()),
        taints=tuple(map(_taint, (facts.taints or ())[:_ENTRIES])),
        shareable=facts.allow_multiple_allocations is True,
        consumes=consumes,
    )


_NONE: Final = _Attribute()


def _by_fact(driver: str, attributes: Mapping[str, _Attribute]) -> Mapping[str, _Attribute]:
    """Attributes by their names in one spelling: the standard ones come before the driver's, and those before
    the ones of other domains.
    """
    found: dict[str, tuple[int, _Attribute]] = {}
    for name, value in sorted(attributes.items()):
        domain, _, base = name.rpartition("/")
        rank = 0 if name.startswith(_STANDARD) else 1 if domain in {"", driver} else 2
        fact = base.replace("-", "").replace("_", "").lower()
        if fact not in found or rank < found[fact][0]:
            found[fact] = rank, value
    return {fact: value for fact, (_, value) in found.items()}


def _first(by_fact: Mapping[str, _Attribute], names: Iterable[str]) -> _Attribute:
    return next((by_fact[name] for name in names if name in by_fact), _NONE)


def _text(value: _Attribute) -> str:
    if value.flag is not None:
        return "true" if value.flag else "false"
    if value.strings is not None or value.numbers is not None:
        return ",".join(map(str, (value.strings or value.numbers or ())[:_ENTRIES]))[:TEXT_LIMIT]
    if value.number is not None:
        return str(value.number)[:TEXT_LIMIT]
    return (value.string or value.version or "")[:TEXT_LIMIT]


def _uuid(text: str) -> str:
    """A UUID in one form; the vendor's text where it is none of a known form."""
    return uuid(text) or (text if is_name(text) else "")


def _numa_nodes(value: _Attribute) -> tuple[int, ...]:
    nodes = [value.number] if value.number is not None else (value.numbers or ())[:_ENTRIES]
    # sysfs: -1 is a device without affinity.
    return tuple(sorted({node for node in nodes if 0 <= node < 65_536}))


def _taint(taint: _Taint) -> Taint:
    return Taint(
        taint.key[:TEXT_LIMIT],
        taint.value[:TEXT_LIMIT],
        taint.effect[:TEXT_LIMIT],
        _time(taint.time_added or ""),
    )


def _time(text: str) -> float | None:
    """Unix time, None for what is no time."""
    try:
        return _TIME.decode(f'"{text[:TEXT_LIMIT]}"').timestamp() if text else None
    except (msgspec.DecodeError, OverflowError):
        return None


def _sorted(items: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple([(name[:TEXT_LIMIT], value[:TEXT_LIMIT]) for name, value in sorted(items)][:_ENTRIES])


def _consumes(given: Iterable[_Consumes]) -> tuple[Consumption, ...] | None:
    """What a device consumes, None if an amount is none, or there are too many."""
    found: list[Consumption] = []
    for one in given:
        for name, amount in one.counters.items():
            number = quantity(amount.value)
            if number is None or number < 0 or not (is_name(one.counter_set) and is_name(name)):
                return None
            found.append(Consumption(one.counter_set, name, number))
    return tuple(sorted(found)) if len(found) <= 16 * _ENTRIES else None
