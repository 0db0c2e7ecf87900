"""The source `kfd`: the compute nodes of AMD's kernel driver, whole devices and partitions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET, UnsetType

from plugin.discovery.drm import DRM_ATTRIBUTES, GraphicsCard, GraphicsCards
from plugin.discovery.host import HostRoot
from plugin.discovery.pci import FunctionFilter, PciBus, PciFunction, PciSelection
from plugin.discovery.source import Findings, Found
from plugin.discovery.sysfs_tree import SysfsDirectory, SysfsTree, clean
from plugin.names import natural

NODES: Final = "/sys/class/kfd/kfd/topology/nodes"
DEVICE: Final = "/dev/kfd"

_NODE: Final = re.compile(r"\d{1,6}", re.ASCII)
_PROPERTY: Final = re.compile(r"([a-z0-9_]{1,64})[ \t]+(\d{1,20})", re.ASCII)
MAX_PROPERTIES: Final = 16_384
"""Bytes of a node's properties that are read."""


@dataclass(frozen=True, slots=True)
class ComputeNode:
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
    for name in sorted(sysfs.names(NODES), key=natural):
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
    found = (_PROPERTY.fullmatch(line.strip()) for line in text.splitlines())
    properties = {match[1]: int(match[2]) for match in found if match is not None}
    return ComputeNode(number, clean(directory.raw("gpu_id"), 20), properties)


_FOLLOWED: Final = (("/dev/dri", "*"), ("/dev", "kfd"))
_SUBSYSTEMS: Final = frozenset({"kfd", "drm", "pci", "platform"})


class Kfd(PciSelection, frozen=True):
    """AMD's compute nodes of /sys/class/kfd, whole devices and partitions, with their render nodes.

    Named after the PCI address, a partition after its platform device, `amdgpu_xcp_1`. The driver shows
    them to privileged processes only: the plugin must be privileged.

    Attributes: those of `drm` (for a partition, of the function that it is part of), and `partition` (its
    platform device), `kfd_node` (number), `gpu_id`, `gfx` (`gfx942`), `simd_count`, `unique_id`
    (hexadecimal), `compute_partition` and `memory_partition` (`spx`, `nps1`).

    Nodes: /dev/kfd, /dev/dri/cardN and /dev/dri/renderDN.
    """

    partitions: bool | UnsetType = UNSET
    """Only partitions, or only whole devices; both if left out."""

    def attributes(self) -> frozenset[str]:
        own = ("partition", "kfd_node", "gpu_id", "gfx", "simd_count", "unique_id")
        return frozenset({*DRM_ATTRIBUTES, *own, "compute_partition", "memory_partition"})

    def scan(self, host: HostRoot) -> Findings:
        """The selected nodes. A node without its card is left out: nothing of it can be offered."""
        bus, wanted = PciBus(host), FunctionFilter(self)
        try:
            nodes, notes = compute_nodes(bus.sysfs)
        except FileNotFoundError:
            return Findings((), _FOLLOWED, (f"{NODES} is not there",), _SUBSYSTEMS)
        cards = {card.render: card for card in GraphicsCards(bus).all() if card.render}
        pairs = ((node, cards.get(f"renderD{node.render_minor}")) for node in nodes)
        found = [
            item
            for node, card in pairs
            if card is not None and (item := self._found(bus, wanted, node, card)) is not None
        ]
        found.sort(key=lambda item: natural(item.name))
        if not found and not notes:
            notes = (f"none of {len(nodes)} compute nodes is selected",)
        return Findings(tuple(found), _FOLLOWED, notes, _SUBSYSTEMS)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The node; None if it is gone or no longer selected."""
        bus = PciBus(host)
        try:
            node = compute_node(bus.sysfs, found.attrs["kfd_node"])
        except FileNotFoundError:
            return None
        card = GraphicsCards(bus).one(f"card{found.attrs['card']}")
        if node is None or card is None or card.render != f"renderD{node.render_minor}":
            return None
        now = self._found(bus, FunctionFilter(self), node, card)
        return now if now is not None and now.name == found.name else None

    def _found(
        self, bus: PciBus, wanted: FunctionFilter, node: ComputeNode, card: GraphicsCard
    ) -> Found | None:
        """The node, if it is selected."""
        function = card.function or _whole(bus, node)
        partition = card.function is None
        if self.partitions is not UNSET and self.partitions != partition:
            return None
        if not wanted.selects(bus, function):
            return None
        name = card.device.name
        # A partition differs from the function, which is a device of its own.
        claim = function.claim if function is not None and not partition else f"kfd:{name}"
        return Found(
            name,
            path=card.render_path,
            attrs={
                **bus.attributes(function),
                **_partitioning(function),
                **card.attributes(),
                **node.attributes(),
                "partition": name if partition else "",
            },
            nodes=(DEVICE, *card.nodes),
            sysfs=card.device.path if function is None else function.directory.path,
            claim=claim,
        )


def _whole(bus: PciBus, node: ComputeNode) -> PciFunction | None:
    """The function that a partition is part of. Its location numbers the partitions like PCI functions."""
    return bus.function(f"{node.location[:-1]}0") or bus.function(node.location)


def _partitioning(function: PciFunction | None) -> dict[str, str]:
    return {
        key: "" if function is None else function.directory.text(f"current_{key}").lower()
        for key in ("compute_partition", "memory_partition")
    }
