"""The source `kfd`: the compute nodes of AMD's kernel driver, whole devices and partitions."""

from collections.abc import Mapping
from typing import Final

from msgspec import UNSET, UnsetType

from plugin.discovery.drm import DRM_ATTRIBUTES, GraphicsCard, GraphicsCards
from plugin.discovery.host import HostRoot
from plugin.discovery.kfd_topology import NODES, ComputeNode, compute_node, compute_nodes, xgmi_links
from plugin.discovery.pci import FunctionFilter, PciBus, PciFunction, PciSelection
from plugin.discovery.source import Candidates, Findings, Found, Mismatch, selected
from plugin.names import natural

DEVICE: Final = "/dev/kfd"

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

    def links(self, host: HostRoot) -> Mapping[str, Mapping[str, int]]:
        return xgmi_links(host)

    def scan(self, host: HostRoot) -> Findings:
        """The selected nodes. A node without its card is left out: nothing of it can be offered."""
        bus, wanted = PciBus(host), FunctionFilter(self)
        try:
            nodes, notes = compute_nodes(bus.sysfs)
        except FileNotFoundError:
            return Findings((), _FOLLOWED, (f"{NODES} is not there",), _SUBSYSTEMS)
        cards = {card.render: card for card in GraphicsCards(bus).all() if card.render}
        candidates = Candidates()
        for node in nodes:
            card = cards.get(f"renderD{node.render_minor}")
            if card is None:
                candidates.add(f"kfd node {node.number}", f"no card has renderD{node.render_minor}")
            else:
                candidates.add(card.device.name, self._found(bus, wanted, node, card))
        found = sorted(candidates.found, key=lambda item: natural(item.name))
        if not found and not notes:
            notes = (f"none of {len(nodes)} compute nodes is selected",)
        others = candidates.not_selected
        return Findings(tuple(found), _FOLLOWED, notes, _SUBSYSTEMS, not_selected=others)

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
        now = selected(self._found(bus, FunctionFilter(self), node, card))
        return now if now is not None and now.name == found.name else None

    def _found(
        self, bus: PciBus, wanted: FunctionFilter, node: ComputeNode, card: GraphicsCard
    ) -> Found | Mismatch | str:
        """The node, if it is selected, or else the reason."""
        function = card.function or _whole(bus, node)
        partition = card.function is None
        if self.partitions is not UNSET and self.partitions != partition:
            return f"partitions: found a {'partition' if partition else 'whole device'}"
        mismatch = wanted.mismatch(bus, function)
        if mismatch is not None:
            return mismatch
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
