"""The attributes that a source's devices have: a template that names another one is wrong."""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from plugin.config import model

_NODE: Final = frozenset({"type", "major", "minor", "target"})
_PCI: Final = frozenset(
    {
        *("address", "vendor", "device", "class", "subsystem_vendor", "subsystem_device", "revision"),
        *("driver", "iommu_group", "vfio", "vfio_device", "uio", "vfs", "pf", "vf", "pf_driver", "pf_name"),
        *("acpi_index", "label"),
    }
)
_NET: Final = _PCI | {"interface", "interfaces", "link_type", "rdma", "uverbs", "umad", "issm", "kind"}
_INFINIBAND: Final = _PCI | {
    *("rdma", "interface", "interfaces", "link_type", "ports", "states", "node_guid", "board", "firmware"),
    *("uverbs", "umad", "issm"),
}
_TOGETHER: Final = frozenset({"devices", "interfaces", "addresses"})
_DRM: Final = _PCI | {"card", "render", "render_minor", "device_name"}
_KFD: Final = _DRM | {
    *("partition", "kfd_node", "gpu_id", "gfx", "simd_count", "unique_id"),
    *("compute_partition", "memory_partition"),
}
_NVIDIA: Final = frozenset(
    {
        *("uuid", "minor", "gpu", "gpu_uuid", "model", "address", "memory_mib", "mig", "source"),
        *("profile", "slice", "gi", "ci", "gi_minor", "ci_minor"),
    }
)
_USB: Final = frozenset(
    {
        *("vendor", "product", "serial", "manufacturer", "product_name", "port", "bus", "address"),
        *("class", "classes", "speed", "drivers"),
        *("tty", "input", "video4linux", "hidraw", "sound", "block", "net"),
    }
)


def attributes_of(sources: Iterable[model.AnySource]) -> frozenset[str] | None:
    """The names of the attributes that devices of these sources may have; None where any may be."""
    names: set[str] = set()
    for source in sources:
        own = _of(source)
        if own is None:
            return None
        names |= own
    return frozenset(names)


def _of(source: model.AnySource) -> frozenset[str] | None:
    match source:
        case model.Infiniband():
            return _TOGETHER if source.together else _INFINIBAND
        case model.Regex():
            return _NODE | _groups(source.pattern)
        case model.Group():
            named = (m.name if m.name is not UNSET else f"member{i}" for i, m in enumerate(source.members))
            return frozenset(named)
        case model.Static():
            return frozenset(name for device in source.devices for name in device.attrs)
        case model.Sysfs():
            patterns = [source.pattern, *(file.matches for file in source.keep)]
            groups = (_groups(pattern) for pattern in patterns if pattern is not UNSET)
            return frozenset({*source.attrs, *source.locate}).union(*groups)
        case _:
            return _FIXED.get(type(source))


def _groups(pattern: str) -> frozenset[str]:
    return frozenset(re.compile(pattern).groupindex)


_FIXED: Final[dict[type, frozenset[str]]] = {
    model.Files: frozenset(),
    model.Glob: _NODE,
    model.Pci: _PCI,
    model.Net: _NET,
    model.Drm: _DRM,
    model.Kfd: _KFD,
    model.Nvidia: _NVIDIA,
    model.Usb: _USB,
}
