"""The compute nodes of AMD's kernel driver, as /sys/class/kfd shows them.

The source `kfd`: AMD's compute nodes, whole devices and partitions, with their cards.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from plugin.config.model import Kfd
from plugin.discovery.drm import Card, Cards
from plugin.discovery.host import HostRoot
from plugin.discovery.network import Interfaces
from plugin.discovery.pci_bus import PCI_ATTRIBUTES, Function, FunctionFilter, PciBus
from plugin.discovery.source import Findings, Found
from plugin.discovery.sysfs_tree import Directory, Sysfs, clean
from plugin.names import natural

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


_FOLLOWED: Final = (("/dev/dri", "*"), ("/dev", "kfd"))
_SUBSYSTEMS: Final = frozenset({"kfd", "drm", "pci", "platform"})


class KfdSource:
    """The compute nodes that `written` selects."""

    def __init__(self, written: Kfd) -> None:
        self._written = written
        self._filter = FunctionFilter(written)

    def scan(self, host: HostRoot) -> Findings:
        """The nodes as they are now."""
        look = _Look(host, self._written, self._filter)
        try:
            nodes, notes = compute_nodes(look.sysfs)
        except FileNotFoundError:
            return Findings((), _FOLLOWED, (f"{NODES} is not there",), _SUBSYSTEMS)
        found = sorted(look.found(nodes), key=lambda item: natural(item.name))
        if not found and not notes:
            notes = (f"none of {len(nodes)} compute nodes is selected",)
        return Findings(tuple(found), _FOLLOWED, notes, _SUBSYSTEMS)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The node as it is now; None where it is gone or not selected any more."""
        look = _Look(host, self._written, self._filter)
        try:
            node = compute_node(look.sysfs, found.attrs["kfd_node"])
        except FileNotFoundError:
            return None
        now = look.one(node, f"card{found.attrs['card']}") if node is not None else None
        return now if now is not None and now.name == found.name else None


class _Look:
    """One look at the host."""

    def __init__(self, host: HostRoot, written: Kfd, wanted: FunctionFilter) -> None:
        self.sysfs = Sysfs(host)
        self._bus = PciBus(self.sysfs)
        self._interfaces = Interfaces(self.sysfs)
        self._cards = Cards(self._bus)
        self._written = written
        self._wanted = wanted

    def found(self, nodes: tuple[ComputeNode, ...]) -> Iterator[Found]:
        """The selected ones of `nodes`. One whose card is not there is none that could be given out."""
        cards = {card.render: card for card in self._cards.all() if card.render}
        for node in nodes:
            card = cards.get(f"renderD{node.render_minor}")
            item = self._one(node, card) if card is not None else None
            if item is not None:
                yield item

    def one(self, node: ComputeNode, name: str) -> Found | None:
        """The node, where it is selected and the card of this name is its own."""
        card = self._cards.one(name)
        if card is None or card.render != f"renderD{node.render_minor}":
            return None
        return self._one(node, card)

    def _one(self, node: ComputeNode, card: Card) -> Found | None:
        function = card.function or self._whole(node)
        partition = card.function is None
        if self._written.partitions is not UNSET and self._written.partitions != partition:
            return None
        if function is None and not self._wanted.is_open:
            return None
        if function is not None and not self._wanted.holds(self._bus, function, self._interfaces.of_physical):
            return None
        name = card.device.name
        return Found(
            name,
            path=card.render_path,
            attrs={
                **self._of_function(function),
                **card.attributes(),
                **node.attributes(),
                "partition": name if partition else "",
            },
            nodes=(DEVICE, *card.nodes),
            sysfs=card.device.path if function is None else function.directory.path,
            claim=self._claim(function, name, partition=partition),
        )

    @staticmethod
    def _claim(function: Function | None, name: str, *, partition: bool) -> str:
        """Partitions are apart from each other and from the function, which is a device of its own."""
        return function.claim if function is not None and not partition else f"kfd:{name}"

    def _whole(self, node: ComputeNode) -> Function | None:
        """The function that a partition is a part of.

        Its location counts the partitions of one device in the place of the function's number.
        """
        return self._bus.function(f"{node.location[:-1]}0") or self._bus.function(node.location)

    def _of_function(self, function: Function | None) -> dict[str, str]:
        if function is None:
            return {**dict.fromkeys(PCI_ATTRIBUTES, ""), "compute_partition": "", "memory_partition": ""}
        directory = function.directory
        return {
            **self._bus.attributes(function, self._interfaces.of_physical),
            "compute_partition": directory.text("current_compute_partition").lower(),
            "memory_partition": directory.text("current_memory_partition").lower(),
        }
