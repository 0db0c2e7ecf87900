"""The topology of AMD's compute driver: compute nodes, and the XGMI links between them."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from plugin.discovery.host import HostRoot
from plugin.discovery.sysfs_tree import SysfsDirectory, SysfsTree, clean
from plugin.names import in_order

NODES: Final = "/sys/class/kfd/kfd/topology/nodes"
_NODE: Final = re.compile(r"\d{1,6}", re.ASCII)
_PROPERTY: Final = re.compile(r"([a-z0-9_]{1,64})[ \t]+(\d{1,20})", re.ASCII)
MAX_PROPERTIES: Final = 16_384
"""Bytes of a node's properties that are read."""


class ComputeNode(Struct, frozen=True):
    """A compute node with a render node."""

    number: int
    gpu_id: str
    properties: Mapping[str, int]

    @property
    def render_minor(self) -> int:
        """The minor number of its render node; 0 if it has none."""
        return self.properties.get("drm_render_minor", 0)

    @property
    def location(self) -> str:
        """Its PCI address, from `domain` and the 16 bits (bus, device, function) of `location_id`."""
        place = self.properties.get("location_id", 0)
        domain, bus = self.properties.get("domain", 0), place >> 8 & 0xFF
        return f"{domain:04x}:{bus:02x}:{place >> 3 & 0x1F:02x}.{place & 0x7:x}"

    @property
    def gfx(self) -> str:
        """The compilers' name of its instruction set: gfx942 for 90402."""
        version = self.properties.get("gfx_target_version", 0)
        if not version:
            return ""
        return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"

    def attributes(self) -> dict[str, str]:
        """Its attributes without those of its card."""
        unique = self.properties.get("unique_id", 0)
        return {
            "kfd_node": str(self.number),
            "gpu_id": self.gpu_id,
            "gfx": self.gfx,
            "simd_count": str(self.properties.get("simd_count", 0)),
            "unique_id": f"{unique:016x}" if unique else "",
        }


def compute_nodes(sysfs: SysfsTree) -> tuple[tuple[ComputeNode, ...], tuple[str, ...]]:
    """The compute nodes, and notes about those that cannot be read.

    Raises FileNotFoundError if the driver is not loaded.
    """
    nodes: list[ComputeNode] = []
    notes: list[str] = []
    for name in in_order(sysfs.names(NODES)):
        directory = sysfs.directory(f"{NODES}/{name}") if _NODE.fullmatch(name) else None
        if directory is None:
            continue
        try:
            node = _read(int(name), directory)
        except PermissionError:
            # The driver checks the device cgroup of the reader, so the plugin must be privileged.
            notes.append(f"{directory.path} may not be read by this process")
        except OSError:
            continue  # it has vanished
        else:
            if node.render_minor:
                nodes.append(node)
    return tuple(nodes), tuple(notes)


def compute_node(sysfs: SysfsTree, number: str) -> ComputeNode | None:
    """The node `number`; None if it is no compute node. Raises OSError."""
    directory = sysfs.directory(f"{NODES}/{number}") if _NODE.fullmatch(number) else None
    node = None if directory is None else _read(int(number), directory)
    return node if node is not None and node.render_minor else None


def _read(number: int, directory: SysfsDirectory) -> ComputeNode:
    text = directory.sysfs.read(f"{directory.path}/properties", MAX_PROPERTIES)
    return ComputeNode(number, clean(directory.raw("gpu_id"), 20), _properties(text))


_XGMI: Final = 11
"""The type of an io_link (kernel: HSA_IOLINK_TYPE_XGMI)."""
_FULL_STRENGTH: Final = 600
_MOST_WIDE: Final = 40


def xgmi_links(host: HostRoot) -> Mapping[str, Mapping[str, int]]:
    """The strengths of XGMI links by the render nodes at both ends; nothing without the driver.

    The kernel's `weight` grows with the distance (15 for each hop), `max_bandwidth` (MB/s) with the width.
    """
    sysfs = SysfsTree(host)
    try:
        nodes, _ = compute_nodes(sysfs)
    except OSError:
        return {}
    renders = {node.number: f"/dev/dri/renderD{node.render_minor}" for node in nodes}
    found: dict[str, dict[str, int]] = {}
    for number, render in renders.items():
        directory = f"{NODES}/{number}/io_links"
        for link in sysfs.each(directory, partial(_link, sysfs, directory)):
            other = renders.get(link.get("node_to", -1))
            if link.get("type") == _XGMI and other is not None and other != render:
                wide = min(link.get("max_bandwidth", 0) // 50_000, _MOST_WIDE)
                strength = max(1, _FULL_STRENGTH // max(1, link.get("weight", _FULL_STRENGTH))) + wide
                found.setdefault(render, {})[other] = strength
    return found


def _link(sysfs: SysfsTree, directory: str, name: str) -> Mapping[str, int] | None:
    try:
        return _properties(sysfs.read(f"{directory}/{name}/properties", MAX_PROPERTIES))
    except OSError:
        return None


def _properties(text: str) -> Mapping[str, int]:
    found = (_PROPERTY.fullmatch(line.strip()) for line in text.splitlines())
    return {match[1]: int(match[2]) for match in found if match is not None}
