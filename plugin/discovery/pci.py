"""The source `pci`: PCI functions; and the selection of functions that other sources share."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

from plugin.discovery import selectors
from plugin.discovery.host import HostRoot
from plugin.discovery.pci_bus import DEVICES, PCI_ATTRIBUTES, PciBus, PciFunction, driver_nodes
from plugin.discovery.selectors import (
    AddressPatterns,
    ClassPrefixes,
    FunctionAddresses,
    FunctionNames,
    HexIds,
    NamePatterns,
)
from plugin.discovery.source import Findings, Found, SourceConfig
from plugin.fields import Problem

_SUBSYSTEMS: Final = frozenset({"pci", "vfio", "vfio-dev", "uio"})


class PciSelection(SourceConfig, frozen=True):
    """Selects the PCI functions of devices. A device must match every list that is given."""

    vendors: HexIds = []
    """PCI vendors: `8086`."""
    devices: HexIds = []
    """PCI devices: `1889`."""
    drivers: NamePatterns = []
    """Bound drivers, or patterns: `vfio-pci`, `mlx5*`."""
    addresses: AddressPatterns = []
    """PCI addresses, or patterns: `0000:3b:00.0`, `3b:00.0`, `0000:3b:*`."""
    functions: Literal["all", "physical", "virtual"] = "all"
    """Physical functions, virtual functions (SR-IOV), or both."""
    pf_names: FunctionNames = []
    """Virtual functions of physical functions with these interfaces, or some of them: `eth0#0-3,5`."""
    pf_addresses: FunctionAddresses = []
    """Virtual functions of physical functions at these addresses, or some: `3b:00.0#0-3,5`."""
    pf_drivers: NamePatterns = []
    """Virtual functions of physical functions with these drivers."""

    def contradictions(self) -> Iterator[Problem]:
        if self.functions == "physical":
            for key in ("pf_names", "pf_addresses", "pf_drivers"):
                if getattr(self, key):
                    yield (key,), f"found {key}, which select virtual functions, beside functions: physical"

    def host_paths(self) -> Iterable[str]:
        return ("/dev", "/sys/bus", "/sys/class")


class FunctionFilter:
    """Applies a `PciSelection`, cheap conditions first."""

    def __init__(
        self, selection: PciSelection, *, with_vfs: bool = True, classes: tuple[str, ...] = ()
    ) -> None:
        self._selection = selection
        self._with_vfs = with_vfs
        self._vendors = frozenset(map(selectors.hex_id, selection.vendors))
        self._devices = frozenset(map(selectors.hex_id, selection.devices))
        self._addresses = tuple(map(selectors.address_pattern, selection.addresses))
        self._classes = classes
        self._pf_names = tuple(map(selectors.virtual_functions, selection.pf_names))
        parsed = map(selectors.virtual_functions, selection.pf_addresses)
        self._pf_addresses = tuple(
            selectors.VirtualFunctions(selectors.address_pattern(p.physical), p.ranges) for p in parsed
        )

    @property
    def is_open(self) -> bool:
        """Whether it has no condition, so that a device without a PCI function is selected too."""
        selection = self._selection
        conditions = (
            *(self._vendors, self._devices, self._addresses, self._classes, selection.drivers),
            *(self._pf_names, self._pf_addresses, selection.pf_drivers),
        )
        return selection.functions != "virtual" and not any(conditions)

    def selects(self, bus: PciBus, function: PciFunction | None) -> bool:
        """Whether a function is selected; None: a device without a PCI function."""
        selection = self._selection
        if function is None:
            return self.is_open
        return (
            (not self._vendors or function.vendor in self._vendors)
            and (not self._devices or function.device in self._devices)
            and (not self._classes or function.class_code.startswith(self._classes))
            and selectors.any_matches(self._addresses, (function.address,))
            and selectors.any_matches(selection.drivers, (function.driver,))
            and (selection.functions == "all" or (selection.functions == "virtual") == bool(function.pf))
            and (self._with_vfs or bool(function.pf) or not bus.vfs(function))
            and self._selects_physical(bus, function)
        )

    def _selects_physical(self, bus: PciBus, function: PciFunction) -> bool:
        drivers = self._selection.pf_drivers
        if not (self._pf_names or self._pf_addresses or drivers):
            return True
        physical = bus.function(function.pf) if function.pf else None
        if physical is None:
            return False
        index = bus.vf(function)
        return (
            (not drivers or selectors.any_matches(drivers, (physical.driver,)))
            and _any_selects(self._pf_addresses, lambda: (physical.address,), index)
            and _any_selects(self._pf_names, lambda: bus.interfaces.names(physical.address), index)
        )


def _any_selects(
    wanted: tuple[selectors.VirtualFunctions, ...], names: Callable[[], tuple[str, ...]], index: int | None
) -> bool:
    """Whether a function with this index, of a physical function with these names, is wanted."""
    return not wanted or any(
        virtual.holds(index) and selectors.any_matches((virtual.physical,), names()) for virtual in wanted
    )


class Pci(PciSelection, frozen=True):
    """PCI functions, named after their addresses.

    Attributes: `address`, `vendor`, `device`, `class`, `subsystem_vendor`, `subsystem_device`, `revision`
    (lower-case hexadecimal digits without 0x), `driver`, `iommu_group`, `acpi_index`, `label`; with such a
    driver, the nodes `vfio` (group), `vfio_device` and `uio`; `vfs`, the number of enabled virtual
    functions; of a virtual function its index `vf`, and of its physical function the address `pf`,
    `pf_driver` and the interface `pf_name`.

    Nodes: the VFIO group with /dev/vfio/vfio, or the UIO device.
    """

    classes: ClassPrefixes = []
    """The first two, four or six digits of PCI classes: `03`, `0x030200`."""
    with_vfs: bool = False
    """Include physical functions that have virtual functions enabled."""

    def attributes(self) -> frozenset[str]:
        return frozenset(PCI_ATTRIBUTES)

    def host_paths(self) -> Iterable[str]:
        return ("/sys/bus",)

    def scan(self, host: HostRoot) -> Findings:
        """The selected functions."""
        bus, wanted = PciBus(host), self._filter()
        try:
            addresses = bus.addresses()
        except FileNotFoundError:
            return Findings((), notes=(f"{DEVICES} is not there",), subsystems=_SUBSYSTEMS)
        found = [item for address in addresses if (item := _found(bus, address, wanted)) is not None]
        notes = () if found else (f"none of {len(addresses)} PCI functions is selected",)
        return Findings(tuple(found), (("/dev/vfio", "*"),), notes, _SUBSYSTEMS)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The function; None if it is gone or no longer selected."""
        return _found(PciBus(host), found.name, self._filter())

    def _filter(self) -> FunctionFilter:
        classes = tuple(map(selectors.class_prefix, self.classes))
        return FunctionFilter(self, with_vfs=self.with_vfs, classes=classes)


def _found(bus: PciBus, address: str, wanted: FunctionFilter) -> Found | None:
    function = bus.function(address)
    if function is None or not wanted.selects(bus, function):
        return None
    attributes = bus.attributes(function)
    return Found(
        function.address,
        attrs=attributes,
        nodes=driver_nodes(attributes),
        sysfs=function.directory.path,
        claim=function.claim,
    )
