"""The source `kfd`: AMD's compute nodes, whole devices and partitions, with their cards."""

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET

from plugin.core.device import Found, natural
from plugin.core.model.buses import Kfd
from plugin.discovery.drm_cards import Card, Cards
from plugin.discovery.host import HostRoot
from plugin.discovery.interfaces import Interfaces
from plugin.discovery.kfd_topology import DEVICE, NODES, ComputeNode, compute_node, compute_nodes
from plugin.discovery.pci_bus import PCI_ATTRIBUTES, Function, FunctionFilter, PciBus
from plugin.discovery.source import Findings
from plugin.discovery.sysfs import Sysfs

_FOLLOWED: Final = (("/dev/dri", "*"), ("/dev", "kfd"))
_SUBSYSTEMS: Final = frozenset({"kfd", "drm", "pci", "platform"})


class KfdSource:
    """The compute nodes that `written` selects."""

    def __init__(self, written: Kfd) -> None:
        self._written = written
        self._filter = FunctionFilter(written)

    def discover(self, host: HostRoot) -> Findings:
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
