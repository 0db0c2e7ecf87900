"""The compute nodes of AMD's kernel driver, as /sys/class/kfd shows them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from plugin.core.device import natural
from plugin.discovery.sysfs import Directory, Sysfs, clean

NODES: Final = "/sys/class/kfd/kfd/topology/nodes"
DEVICE: Final = "/dev/kfd"

_NODE: Final = re.compile(r"\d{1,6}", re.ASCII)
_PROPERTY: Final = re.compile(r"([a-z0-9_]{1,64})[ \t]+(\d{1,20})", re.ASCII)
MAX_PROPERTIES: Final = 16_384
"""Bytes of a node's properties that are read."""


@dataclass(frozen=True, slots=True)
class ComputeNode:
    """A node that computes. `address` is the function that it is, or is a part of, by its location."""

    number: int
    gpu_id: str
    properties: Mapping[str, int]

    @property
    def render_minor(self) -> int:
        """The minor number of its render node; 0: it has none."""
        return self.properties.get("drm_render_minor", 0)

    @property
    def location(self) -> str:
        """The address that its location tells: bus and device-function in 16 bits, beside the domain."""
        place = self.properties.get("location_id", 0)
        domain, bus = self.properties.get("domain", 0), place >> 8 & 0xFF
        return f"{domain:04x}:{bus:02x}:{place >> 3 & 0x1F:02x}.{place & 0x7:x}"

    @property
    def gfx(self) -> str:
        """The instruction set as compilers name it: gfx942 of 90402."""
        version = self.properties.get("gfx_target_version", 0)
        if not version:
            return ""
        return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}"

    def attributes(self) -> dict[str, str]:
        """What templates see of it."""
        unique = self.properties.get("unique_id", 0)
        return {
            "kfd_node": str(self.number),
            "gpu_id": self.gpu_id,
            "gfx": self.gfx,
            "simd_count": str(self.properties.get("simd_count", 0)),
            "unique_id": f"{unique:016x}" if unique else "",
        }


def compute_nodes(sysfs: Sysfs) -> tuple[tuple[ComputeNode, ...], tuple[str, ...]]:
    """The nodes that compute, and notes on those that could not be read.

    Raises FileNotFoundError where the driver is not there.
    """
    nodes: list[ComputeNode] = []
    notes: list[str] = []
    for name in sorted(sysfs.names(NODES), key=natural):
        directory = sysfs.directory(f"{NODES}/{name}") if _NODE.fullmatch(name) else None
        if directory is None:
            continue
        try:
            node = _read(int(name), directory)
        except PermissionError:
            # The driver asks the device cgroup of who reads: a plugin that is not privileged sees nothing.
            notes.append(f"{directory.path} may not be read by this process")
        except OSError:
            continue  # it has gone meanwhile
        else:
            if node.render_minor:
                nodes.append(node)
    return tuple(nodes), tuple(notes)


def compute_node(sysfs: Sysfs, number: str) -> ComputeNode | None:
    """The node of this number; None where there is none, or it does not compute. Raises OSError."""
    directory = sysfs.directory(f"{NODES}/{number}") if _NODE.fullmatch(number) else None
    node = None if directory is None else _read(int(number), directory)
    return node if node is not None and node.render_minor else None


def _read(number: int, directory: Directory) -> ComputeNode:
    text = directory.sysfs.read(f"{directory.path}/properties", MAX_PROPERTIES)
    found = (_PROPERTY.fullmatch(line.strip()) for line in text.splitlines())
    properties = {match[1]: int(match[2]) for match in found if match is not None}
    return ComputeNode(number, clean(directory.raw("gpu_id"), 20), properties)
