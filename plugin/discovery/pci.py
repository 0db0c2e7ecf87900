"""The source `pci`, and the PCI bus as sysfs shows it, which other sources share.

Functions with their attributes, virtual functions, and network interfaces; and the selection of functions by
vendor, device, class, driver, address, or physical function.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from plugin.discovery import selectors
from plugin.discovery.host import HostRoot
from plugin.discovery.selectors import (
    AddressPatterns,
    ClassPrefixes,
    FunctionAddresses,
    FunctionNames,
    HexIds,
    NamePatterns,
)
from plugin.discovery.source import Candidates, Findings, Found, Mismatch, SourceConfig, selected
from plugin.discovery.sysfs_tree import SysfsDirectory, SysfsTree, clean
from plugin.fields import Problem
from plugin.names import natural

DEVICES: Final = "/sys/bus/pci/devices"
INTERFACES: Final = "/sys/class/net"
LINK_TYPES: Final[Mapping[str, str]] = {"1": "ether", "32": "infiniband"}
"""Names of the kernel's ARPHRD numbers."""

PCI_ATTRIBUTES: Final = (
    *("address", "vendor", "device", "class", "subsystem_vendor", "subsystem_device", "revision"),
    *("driver", "iommu_group", "vfio", "vfio_device", "uio", "vfs", "pf", "vf", "pf_driver", "pf_name"),
    *("acpi_index", "label"),
)
"""The attributes of every function; an attribute without a value is empty."""

_VFIO_DRIVER: Final = re.compile(r".*vfio[-_]pci", re.ASCII)
_BEHIND_FUNCTION: Final = re.compile(r"usb\d+|.*\.sf\.\d+", re.ASCII)
"""A USB bus or a scalable function (mlx5_core.sf.4): what is below it is not the PCI function itself."""
_VFIO_CONTROL: Final = "/dev/vfio/vfio"
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_REPRESENTOR: Final = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+", re.ASCII)
_VIRTIO: Final = re.compile(r"virtio\d{1,6}", re.ASCII)


class PciFunction(Struct, frozen=True):
    """One PCI function. Ids are lower-case hexadecimal digits; a value that sysfs lacks is empty."""

    address: str
    directory: SysfsDirectory
    vendor: str
    device: str
    class_code: str
    driver: str
    pf: str
    """For a virtual function, the address of its physical function."""

    @property
    def claim(self) -> str:
        """Identifies the function across all resources."""
        return f"pci:{self.address}"


class NetworkInterface(Struct, frozen=True):
    """One network interface. `kind`: on a function of the bus `pci`, on other `hardware`, or `virtual`."""

    name: str
    directory: SysfsDirectory
    kind: str
    address: str
    """The PCI function of the interface; empty for other kinds."""

    def link_type(self) -> str:
        """`ether`, `infiniband` or the kernel's number; empty if the interface has vanished."""
        number = self.directory.text("type")
        return LINK_TYPES.get(number, number)

    def is_representor(self) -> bool:
        """Whether it represents a function of somebody else on the host's side of a switch."""
        return _REPRESENTOR.fullmatch(self.directory.text("phys_port_name")) is not None


class NetworkInterfaces:
    """The interfaces of the host's network namespace during one scan."""

    def __init__(self, sysfs: SysfsTree) -> None:
        self._sysfs = sysfs
        self._of: dict[str, tuple[NetworkInterface, ...]] = {}

    def all(self) -> tuple[NetworkInterface, ...]:
        """All interfaces but lo, in natural order."""
        return self._sysfs.each(INTERFACES, self.one)

    def one(self, name: str) -> NetworkInterface | None:
        """The interface `name`; None for lo and if there is none."""
        directory = self._sysfs.directory(f"{INTERFACES}/{name}") if name != "lo" else None
        if directory is None or not directory.path.startswith("/sys/devices/"):
            return None  # bonding_masters is a file in /sys/class/net
        if directory.path.startswith("/sys/devices/virtual/"):
            return NetworkInterface(name, directory, "virtual", "")
        address = function_address(directory.path)
        return NetworkInterface(name, directory, "pci" if address else "hardware", address)

    def of(self, address: str) -> tuple[NetworkInterface, ...]:
        """The interfaces of a PCI function without representors, in natural order."""
        if address not in self._of:
            found = self._on(f"{DEVICES}/{address}") if address else ()
            ordered = sorted(found, key=lambda interface: natural(interface.name))
            self._of[address] = tuple(i for i in ordered if not i.is_representor())
        return self._of[address]

    def names(self, address: str) -> tuple[str, ...]:
        """The names of a function's interfaces."""
        return tuple(interface.name for interface in self.of(address))

    def _on(self, path: str) -> Iterator[NetworkInterface]:
        function = self._sysfs.directory(path)
        if function is None:
            return
        devices = [function]
        if function.link("driver") == "virtio-pci":
            devices += [
                d for name in function.names() if _VIRTIO.fullmatch(name) and (d := function.sub(name))
            ]
        for device in devices:
            for directory in device.subs("net"):
                yield NetworkInterface(directory.name, directory, "pci", function.name)


class PciBus:
    """The PCI functions of a host during one scan, each read once."""

    def __init__(self, host: HostRoot) -> None:
        self.sysfs = SysfsTree(host)
        self.interfaces = NetworkInterfaces(self.sysfs)
        self._functions: dict[str, PciFunction | None] = {}
        self._virtual: dict[str, Mapping[str, int]] = {}

    def addresses(self) -> tuple[str, ...]:
        """The addresses of all functions, sorted. Raises OSError if there is no PCI bus."""
        return tuple(name for name in self.sysfs.names(DEVICES) if selectors.ADDRESS.fullmatch(name))

    def function(self, address: str) -> PciFunction | None:
        """The function at an address; None if there is none."""
        if address not in self._functions:
            self._functions[address] = self._read(address)
        return self._functions[address]

    def above(self, path: str) -> PciFunction | None:
        """The function that the device at a path in sysfs is; None if it is none."""
        address = function_address(path)
        return self.function(address) if address else None

    def vfs(self, function: PciFunction) -> int:
        """The number of its enabled virtual functions."""
        return function.directory.number("sriov_numvfs") or 0

    def vf(self, function: PciFunction) -> int | None:
        """The index of a virtual function; None if it is unknown."""
        if not function.pf:
            return None
        if function.pf not in self._virtual:
            self._virtual[function.pf] = self._indexes(function.pf)
        return self._virtual[function.pf].get(function.address)

    def _indexes(self, pf: str) -> Mapping[str, int]:
        physical = self.function(pf)
        if physical is None:
            return {}
        return {
            physical.directory.link(name): int(name.removeprefix("virtfn"))
            for name in physical.directory.names()
            if name.startswith("virtfn") and _NUMBER.fullmatch(name, len("virtfn"))
        }

    def _read(self, address: str) -> PciFunction | None:
        directory = self.sysfs.directory(f"{DEVICES}/{address}")
        if directory is None:
            return None
        vendor = selectors.hex_id(directory.text("vendor"))
        if not vendor:  # every function has one: this function is being removed
            return None
        pf = directory.link("physfn")
        return PciFunction(
            address,
            directory,
            vendor=vendor,
            device=selectors.hex_id(directory.text("device")),
            class_code=selectors.class_code(directory.text("class")),
            driver=directory.link("driver"),
            pf=pf if selectors.ADDRESS.fullmatch(pf) else "",
        )

    def attributes(self, function: PciFunction | None) -> dict[str, str]:
        """`PCI_ATTRIBUTES` of a function; all of them empty for None."""
        if function is None:
            return dict.fromkeys(PCI_ATTRIBUTES, "")
        directory = function.directory
        physical = self.function(function.pf) if function.pf else None
        index = self.vf(function)
        group, vfio_device = self._vfio(function)
        pf_names = self.interfaces.names(function.pf) if function.pf else ()
        return {
            "address": function.address,
            "vendor": function.vendor,
            "device": function.device,
            "class": function.class_code,
            "subsystem_vendor": selectors.hex_id(directory.text("subsystem_vendor")),
            "subsystem_device": selectors.hex_id(directory.text("subsystem_device")),
            "revision": directory.text("revision").lower().removeprefix("0x"),
            "driver": function.driver,
            "iommu_group": directory.link("iommu_group"),
            "vfio": group,
            "vfio_device": vfio_device,
            "uio": self._uio(function),
            "vfs": str(self.vfs(function)),
            "pf": function.pf,
            "vf": "" if index is None else str(index),
            "pf_driver": "" if physical is None else physical.driver,
            "pf_name": clean(next(iter(pf_names), "")),
            "acpi_index": directory.text("acpi_index"),
            "label": directory.text("label"),
        }

    @staticmethod
    def _vfio(function: PciFunction) -> tuple[str, str]:
        """The nodes of a function's VFIO group and of its VFIO device; empty if it has none."""
        if not _VFIO_DRIVER.fullmatch(function.driver):
            return "", ""
        directory = function.directory
        own = next((d.name for d in directory.subs("vfio-dev") if _NODE_NAME.fullmatch(d.name)), "")
        device = f"/dev/vfio/devices/{own}" if own else ""
        number = directory.link("iommu_group")
        if not _NUMBER.fullmatch(number):
            return "", device
        group = directory.sub("iommu_group")
        # The kernel gives this name to a group without an IOMMU, and prefixes the name of its node.
        unsafe = group is not None and group.text("name") == "vfio-noiommu"
        return f"/dev/vfio/{'noiommu-' if unsafe else ''}{number}", device

    @staticmethod
    def _uio(function: PciFunction) -> str:
        names = [d.name for d in function.directory.subs("uio") if _NODE_NAME.fullmatch(d.name)]
        return f"/dev/{names[0]}" if names else ""


def function_address(path: str) -> str:
    """The address of the PCI function that the device at a path in sysfs is.

    Empty if there is none, and for devices on a bus behind the function.
    """
    address = ""
    for part in path.split("/"):
        if selectors.ADDRESS.fullmatch(part):
            address = part
        elif address and _BEHIND_FUNCTION.fullmatch(part):
            return ""
    return address


def driver_nodes(attributes: Mapping[str, str]) -> tuple[str, ...]:
    """The device nodes by which a program uses a function, from the function's attributes."""
    if attributes["vfio"]:
        return attributes["vfio"], _VFIO_CONTROL
    return (attributes["uio"],) if attributes["uio"] else ()


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

    def _conditions(self) -> Iterator[tuple[str, Sequence[str]]]:
        """The keys that a device without a PCI function does not match, with their values."""
        selection = self._selection
        keys = ("vendors", "devices", "drivers", "addresses", "pf_names", "pf_addresses", "pf_drivers")
        yield from ((key, values) for key in keys if (values := getattr(selection, key)))
        yield from (("classes", self._classes),) if self._classes else ()
        yield from (("functions", ("virtual",)),) if selection.functions == "virtual" else ()

    def mismatch(self, bus: PciBus, function: PciFunction | None) -> Mismatch | str | None:
        """Why a function is not selected; None if it is. A device without a function meets no condition."""
        if function is None:
            return next((Mismatch(key, wanted, ()) for key, wanted in self._conditions()), None)
        own = next(self._mismatches(function), None)
        if own is not None:
            return own
        if not self._with_vfs and not function.pf and bus.vfs(function):
            return "with_vfs: found a function with virtual functions"
        return self._mismatch_of_physical(bus, function)

    def _mismatches(self, function: PciFunction) -> Iterator[Mismatch]:
        """By what is known of a function without further reading."""
        selection = self._selection
        if self._vendors and function.vendor not in self._vendors:
            yield Mismatch("vendors", selection.vendors, (function.vendor,))
        if self._devices and function.device not in self._devices:
            yield Mismatch("devices", selection.devices, (function.device,))
        if self._classes and not function.class_code.startswith(self._classes):
            yield Mismatch("classes", self._classes, (function.class_code,))
        if not selectors.any_matches(self._addresses, (function.address,)):
            yield Mismatch("addresses", selection.addresses)
        if not selectors.any_matches(selection.drivers, (function.driver,)):
            yield Mismatch("drivers", selection.drivers, (function.driver,))
        kind = "virtual" if function.pf else "physical"
        if selection.functions not in {"all", kind}:
            yield Mismatch("functions", (selection.functions,), (kind,))

    def _mismatch_of_physical(self, bus: PciBus, function: PciFunction) -> Mismatch | None:
        selection = self._selection
        of_physical = {
            "pf_drivers": selection.pf_drivers,
            "pf_addresses": selection.pf_addresses,
            "pf_names": selection.pf_names,
        }
        if not any(of_physical.values()):
            return None
        physical = bus.function(function.pf) if function.pf else None
        if physical is None:
            return next(Mismatch(key, wanted, ()) for key, wanted in of_physical.items() if wanted)
        index = bus.vf(function)
        at = "" if index is None else f"#{index}"
        if not selectors.any_matches(selection.pf_drivers, (physical.driver,)):
            return Mismatch("pf_drivers", selection.pf_drivers, (physical.driver,))
        if not _any_selects(self._pf_addresses, lambda: (physical.address,), index):
            return Mismatch("pf_addresses", selection.pf_addresses, (f"{physical.address}{at}",))
        if not _any_selects(self._pf_names, lambda: bus.interfaces.names(physical.address), index):
            names = bus.interfaces.names(physical.address)
            return Mismatch("pf_names", selection.pf_names, tuple(f"{name}{at}" for name in names))
        return None


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
        functions = Candidates()
        for address in addresses:
            functions.add(address, _found(bus, address, wanted))
        found, others = tuple(functions.found), functions.not_selected
        notes = () if found else (f"none of {len(addresses)} PCI functions is selected",)
        return Findings(found, (("/dev/vfio", "*"),), notes, _SUBSYSTEMS, not_selected=others)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The function; None if it is gone or no longer selected."""
        return selected(_found(PciBus(host), found.name, self._filter()))

    def _filter(self) -> FunctionFilter:
        classes = tuple(map(selectors.class_prefix, self.classes))
        return FunctionFilter(self, with_vfs=self.with_vfs, classes=classes)


def _found(bus: PciBus, address: str, wanted: FunctionFilter) -> Found | Mismatch | str | None:
    function = bus.function(address)
    if function is None:
        return None
    mismatch = wanted.mismatch(bus, function)
    if mismatch is not None:
        return mismatch
    attributes = bus.attributes(function)
    return Found(
        function.address,
        attrs=attributes,
        nodes=driver_nodes(attributes),
        sysfs=function.directory.path,
        claim=function.claim,
    )
