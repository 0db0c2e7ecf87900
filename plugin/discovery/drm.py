"""The source `drm`: graphics cards with their render nodes."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from plugin.discovery import selectors
from plugin.discovery.host import HostRoot
from plugin.discovery.kfd_topology import xgmi_links
from plugin.discovery.pci import PCI_ATTRIBUTES, FunctionFilter, PciBus, PciFunction, PciSelection
from plugin.discovery.selectors import NamePatterns
from plugin.discovery.source import Candidates, Findings, Found, Mismatch, selected, selection_notes
from plugin.discovery.sysfs_tree import SysfsDirectory, clean
from plugin.names import in_order

CLASS: Final = "/sys/class/drm"
DRM_ATTRIBUTES: Final = (*PCI_ATTRIBUTES, "card", "render", "render_minor", "device_name")

_CARD: Final = re.compile(r"card\d{1,6}", re.ASCII)
_RENDER: Final = re.compile(r"renderD\d{1,6}", re.ASCII)
_SUBSYSTEMS: Final = frozenset({"drm", "pci"})


class GraphicsCard(Struct, frozen=True):
    """One card. `device` is its parent device, and `function` that device if it is a PCI function."""

    name: str
    device: SysfsDirectory
    function: PciFunction | None
    driver: str
    render: str
    """The name of its render node, `renderD128`; empty for a card that only displays."""

    @property
    def path(self) -> str:
        """Its card node."""
        return f"/dev/dri/{self.name}"

    @property
    def render_path(self) -> str:
        """Its render node; empty if it has none."""
        return f"/dev/dri/{self.render}" if self.render else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All of its nodes."""
        return (self.path, self.render_path) if self.render else (self.path,)

    def attributes(self) -> dict[str, str]:
        """Its attributes without those of the PCI function."""
        return {
            "card": self.name.removeprefix("card"),
            "render": self.render_path,
            "render_minor": self.render.removeprefix("renderD"),
            "device_name": clean(self.device.name),
        }


class GraphicsCards:
    """The cards of a host during one scan."""

    def __init__(self, bus: PciBus) -> None:
        self._bus = bus

    def all(self) -> tuple[GraphicsCard, ...]:
        """All cards, in natural order."""
        return self._bus.sysfs.each(CLASS, self.one)

    def one(self, name: str) -> GraphicsCard | None:
        """The card `name`; None if there is none."""
        directory = self._bus.sysfs.directory(f"{CLASS}/{name}") if _CARD.fullmatch(name) else None
        device = directory.sub("device") if directory is not None else None
        if device is None:
            return None
        entries = [entry.name for entry in device.subs("drm")]
        if name not in entries:
            return None
        return GraphicsCard(
            name,
            device,
            self._bus.above(device.path),
            device.link("driver"),
            next((entry for entry in in_order(entries) if _RENDER.fullmatch(entry)), ""),
        )


class Drm(PciSelection, frozen=True):
    """Graphics cards of /sys/class/drm with their render nodes, named `card0`, `card1`, …

    Attributes: those of `pci` for the card's function, and `card` (number), `render` (path of the render
    node), `render_minor` (its number), `device_name` (the PCI address, or the name on another bus).

    Nodes: /dev/dri/cardN and /dev/dri/renderDN.
    """

    names: NamePatterns = []
    """Cards, or patterns: `card0`."""
    with_vfs: bool = False
    """Include physical functions that have virtual functions enabled."""

    def attributes(self) -> frozenset[str]:
        return frozenset(DRM_ATTRIBUTES)

    def links(self, host: HostRoot) -> Mapping[str, Mapping[str, int]]:
        return xgmi_links(host)

    def scan(self, host: HostRoot) -> Findings:
        """The selected cards."""
        bus, wanted = PciBus(host), self._filter()
        cards = GraphicsCards(bus).all()
        candidates = Candidates()
        for card in cards:
            candidates.add(card.name, self._found(bus, card, wanted))
        found, others = tuple(candidates.found), candidates.not_selected
        notes = selection_notes(found, len(cards), "cards", f"{CLASS} has no card")
        return Findings(found, (("/dev/dri", "*"),), notes, _SUBSYSTEMS, not_selected=others)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The card; None if it is gone or no longer selected."""
        bus = PciBus(host)
        card = GraphicsCards(bus).one(found.name)
        return None if card is None else selected(self._found(bus, card, self._filter()))

    def _filter(self) -> FunctionFilter:
        return FunctionFilter(self, with_vfs=self.with_vfs)

    def _found(self, bus: PciBus, card: GraphicsCard, wanted: FunctionFilter) -> Found | Mismatch | str:
        function = card.function
        if not selectors.any_matches(self.names, (card.name,)):
            return Mismatch("names", self.names)
        mismatch = wanted.mismatch(bus, function)
        if mismatch is not None:
            return mismatch
        pci = bus.attributes(function)
        if function is None:
            pci["driver"] = card.driver
        return Found(
            card.name,
            path=card.path,
            attrs={**pci, **card.attributes()},
            nodes=card.nodes,
            sysfs=card.device.path,
            claim=f"drm:{card.device.name}" if function is None else function.claim,
        )
