"""The source `pci`: PCI functions, named by their addresses."""

from plugin.config import selectors
from plugin.config.model import Pci
from plugin.discovery.host import HostRoot
from plugin.discovery.network import Interfaces
from plugin.discovery.pci_bus import DEVICES, Function, FunctionFilter, PciBus, driver_nodes
from plugin.discovery.source import Findings, Found
from plugin.discovery.sysfs_tree import Sysfs

_SUBSYSTEMS = frozenset({"pci", "vfio", "vfio-dev", "uio"})


class PciSource:
    """The functions that `written` selects."""

    def __init__(self, written: Pci) -> None:
        classes = tuple(map(selectors.class_prefix, written.classes))
        self._filter = FunctionFilter(written, with_vfs=written.with_vfs, classes=classes)

    def scan(self, host: HostRoot) -> Findings:
        """The functions as they are now."""
        look = _Look(host)
        try:
            addresses = look.bus.addresses()
        except FileNotFoundError:
            return Findings((), notes=(f"{DEVICES} is not there",), subsystems=_SUBSYSTEMS)
        found = [item for address in addresses if (item := look.found(address, self._filter)) is not None]
        found.sort(key=lambda item: item.name)
        notes = () if found else (f"none of {len(addresses)} PCI functions is selected",)
        return Findings(tuple(found), (("/dev/vfio", "*"),), notes, _SUBSYSTEMS)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The function as it is now; None where it is gone or not selected any more."""
        return _Look(host).found(found.name, self._filter)


class _Look:
    """One look at the bus."""

    def __init__(self, host: HostRoot) -> None:
        sysfs = Sysfs(host)
        self.bus = PciBus(sysfs)
        self._interfaces = Interfaces(sysfs)

    def found(self, address: str, wanted: FunctionFilter) -> Found | None:
        function = self.bus.function(address)
        if function is None or not wanted.holds(self.bus, function, self._interfaces.of_physical):
            return None
        return self._found(function)

    def _found(self, function: Function) -> Found:
        attributes = self.bus.attributes(function, self._interfaces.of_physical)
        return Found(
            function.address,
            attrs=attributes,
            nodes=driver_nodes(attributes),
            sysfs=function.directory.path,
            claim=function.claim,
        )
