"""The source `drm`: graphics cards with their render nodes."""

from typing import Final

from plugin.core import selectors
from plugin.core.device import Found, natural
from plugin.core.model.buses import Drm
from plugin.discovery.drm_cards import CLASS, Card, Cards
from plugin.discovery.host import HostRoot
from plugin.discovery.interfaces import Interfaces
from plugin.discovery.pci_bus import PCI_ATTRIBUTES, FunctionFilter, PciBus
from plugin.discovery.source import Findings
from plugin.discovery.sysfs import Sysfs

_SUBSYSTEMS: Final = frozenset({"drm", "pci"})


class DrmSource:
    """The cards that `written` selects."""

    def __init__(self, written: Drm) -> None:
        self._written = written
        self._filter = FunctionFilter(written, with_vfs=written.with_vfs)

    def discover(self, host: HostRoot) -> Findings:
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
