"""Graphics cards as sysfs shows them: card nodes, render nodes, and what they are on.

The source `drm`: graphics cards with their render nodes.
"""

import re
from dataclasses import dataclass
from typing import Final

from plugin.config import selectors
from plugin.config.model import Drm
from plugin.discovery.host import HostRoot
from plugin.discovery.network import Interfaces
from plugin.discovery.pci_bus import PCI_ATTRIBUTES, Function, FunctionFilter, PciBus
from plugin.discovery.source import Findings, Found
from plugin.discovery.sysfs_tree import Directory, Sysfs, clean
from plugin.names import natural

CLASS: Final = "/sys/class/drm"

_CARD: Final = re.compile(r"card\d{1,6}", re.ASCII)
_RENDER: Final = re.compile(r"renderD\d{1,6}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Card:
    """One card. `device` is what it is on; `function` is that where it is a PCI function."""

    name: str
    device: Directory
    function: Function | None
    driver: str
    render: str
    """Its render node's name, `renderD128`; empty for a card that only shows pictures."""

    @property
    def path(self) -> str:
        """The card's node."""
        return f"/dev/dri/{self.name}"

    @property
    def render_path(self) -> str:
        """The render node; empty where it has none."""
        return f"/dev/dri/{self.render}" if self.render else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Both of its nodes, or the one that it has."""
        return (self.path, self.render_path) if self.render else (self.path,)

    def attributes(self) -> dict[str, str]:
        """What templates see of it beside its function's attributes."""
        return {
            "card": self.name.removeprefix("card"),
            "render": self.render_path,
            "render_minor": self.render.removeprefix("renderD"),
            "device_name": clean(self.device.name),
        }


class Cards:
    """The cards for the length of one look."""

    def __init__(self, bus: PciBus) -> None:
        self._bus = bus
        self._sysfs = bus.sysfs

    def all(self) -> tuple[Card, ...]:
        """Every card in natural order; none where sysfs shows none."""
        try:
            names = self._sysfs.names(CLASS)
        except OSError:
            return ()
        found = (self.one(name) for name in sorted(names, key=natural) if _CARD.fullmatch(name))
        return tuple(card for card in found if card is not None)

    def one(self, name: str) -> Card | None:
        """The card of this name; None where there is none."""
        directory = self._sysfs.directory(f"{CLASS}/{name}") if _CARD.fullmatch(name) else None
        device = directory.sub("device") if directory is not None else None
        return None if device is None else self.of(device, name)

    def of(self, device: Directory, name: str = "") -> Card | None:
        """The card `name`, or the first one, of a device; None where it has none."""
        entries = sorted(d.name for d in device.subs("drm"))
        cards = sorted((entry for entry in entries if _CARD.fullmatch(entry)), key=natural)
        if not cards or (name and name not in cards):
            return None
        return Card(
            name or cards[0],
            device,
            self._bus.above(device.path),
            device.link("driver"),
            next((entry for entry in sorted(entries, key=natural) if _RENDER.fullmatch(entry)), ""),
        )


_SUBSYSTEMS: Final = frozenset({"drm", "pci"})


class DrmSource:
    """The cards that `written` selects."""

    def __init__(self, written: Drm) -> None:
        self._written = written
        self._filter = FunctionFilter(written, with_vfs=written.with_vfs)

    def scan(self, host: HostRoot) -> Findings:
        """The cards as they are now."""
        look = _Look(host, self._written, self._filter)
        cards = look.cards.all()
        found = [item for card in cards if (item := look.found(card)) is not None]
        found.sort(key=lambda item: natural(item.name))
        if cards and not found:
            notes: tuple[str, ...] = (f"none of {len(cards)} cards is selected",)
        else:
            notes = () if found else (f"{CLASS} has no card",)
        return Findings(tuple(found), (("/dev/dri", "*"),), notes, _SUBSYSTEMS)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The card as it is now; None where it is gone or not selected any more."""
        look = _Look(host, self._written, self._filter)
        card = look.cards.one(found.name)
        return None if card is None else look.found(card)


class _Look:
    """One look at the host."""

    def __init__(self, host: HostRoot, written: Drm, wanted: FunctionFilter) -> None:
        sysfs = Sysfs(host)
        self._bus = PciBus(sysfs)
        self._interfaces = Interfaces(sysfs)
        self._written = written
        self._wanted = wanted
        self.cards = Cards(self._bus)

    def found(self, card: Card) -> Found | None:
        """The card, where it is selected."""
        if not selectors.any_matches(self._written.names, (card.name,)):
            return None
        function = card.function
        if function is None and not self._wanted.is_open:
            return None
        if function is not None and not self._wanted.holds(self._bus, function, self._interfaces.of_physical):
            return None
        pci = (
            dict.fromkeys(PCI_ATTRIBUTES, "") | {"driver": card.driver}
            if function is None
            else self._bus.attributes(function, self._interfaces.of_physical)
        )
        return Found(
            card.name,
            path=card.path,
            attrs={**pci, **card.attributes()},
            nodes=card.nodes,
            sysfs=card.device.path,
            claim=f"drm:{card.device.name}" if function is None else function.claim,
        )
