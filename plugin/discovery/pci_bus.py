"""The PCI bus as sysfs shows it: functions, what they are, and how virtual ones belong to physical ones."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from plugin.config import selectors
from plugin.config.model import Functions
from plugin.discovery.sysfs_tree import Directory, Sysfs, clean

DEVICES: Final = "/sys/bus/pci/devices"

PCI_ATTRIBUTES: Final = (
    *("address", "vendor", "device", "class", "subsystem_vendor", "subsystem_device", "revision"),
    *("driver", "iommu_group", "vfio", "vfio_device", "uio", "vfs", "pf", "vf", "pf_driver", "pf_name"),
    *("acpi_index", "label"),
)
"""What is told of every function, empty where there is nothing to tell."""

_VFIO_DRIVER: Final = re.compile(r".*vfio[-_]pci", re.ASCII)
_NOT_THE_FUNCTION: Final = re.compile(r"usb\d+|.*\.sf\.\d+", re.ASCII)
"""Between a function and a device: a USB bus, or a scalable function (mlx5_core.sf.4)."""
_VFIO_CONTROL: Final = "/dev/vfio/vfio"
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)

PfNames = Callable[[str], tuple[str, ...]]
"""The interfaces of the physical function at an address."""


@dataclass(frozen=True, slots=True)
class Function:
    """One PCI function. Ids are lower-case hexadecimal digits; what sysfs does not tell is empty."""

    address: str
    directory: Directory
    vendor: str
    device: str
    class_code: str
    driver: str
    pf: str
    """The address of its physical function, where it is a virtual one."""

    @property
    def claim(self) -> str:
        """What names it among the devices of all resources."""
        return f"pci:{self.address}"


class PciBus:
    """The PCI functions for the length of one look, each read once."""

    def __init__(self, sysfs: Sysfs) -> None:
        self.sysfs = sysfs
        self._functions: dict[str, Function | None] = {}
        self._virtual: dict[str, Mapping[str, int]] = {}

    def addresses(self) -> tuple[str, ...]:
        """Every function's address, sorted. Raises OSError where there is no PCI bus to look at."""
        return tuple(name for name in self.sysfs.names(DEVICES) if selectors.ADDRESS.fullmatch(name))

    def function(self, address: str) -> Function | None:
        """The function at an address; None where there is none, or none any more."""
        if address not in self._functions:
            self._functions[address] = self._read(address)
        return self._functions[address]

    def above(self, path: str) -> Function | None:
        """The PCI function that something at a path in sysfs stands for; None where it is none."""
        address = function_address(path)
        return self.function(address) if address else None

    def vfs(self, function: Function) -> int:
        """How many virtual functions are enabled below it."""
        return function.directory.number("sriov_numvfs") or 0

    def vf(self, function: Function) -> int | None:
        """A virtual function's index below its physical one; None where that is not known."""
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

    def _read(self, address: str) -> Function | None:
        directory = self.sysfs.directory(f"{DEVICES}/{address}")
        if directory is None:
            return None
        vendor = selectors.hex_id(directory.text("vendor"))
        if not vendor:  # half-way through its removal: every function has one
            return None
        pf = directory.link("physfn")
        return Function(
            address,
            directory,
            vendor=vendor,
            device=selectors.hex_id(directory.text("device")),
            class_code=selectors.class_code(directory.text("class")),
            driver=directory.link("driver"),
            pf=pf if selectors.ADDRESS.fullmatch(pf) else "",
        )

    def attributes(self, function: Function, pf_names: PfNames) -> dict[str, str]:
        """What templates see of a function; every key is always there."""
        directory = function.directory
        physical = self.function(function.pf) if function.pf else None
        index = self.vf(function)
        group, vfio_device = self._vfio(function)
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
            "pf_name": clean(next(iter(pf_names(function.pf)), "")) if function.pf else "",
            "acpi_index": directory.text("acpi_index"),
            "label": directory.text("label"),
        }

    @staticmethod
    def _vfio(function: Function) -> tuple[str, str]:
        """The nodes of a function's VFIO group and of its own VFIO device; empty where it has none."""
        if not _VFIO_DRIVER.fullmatch(function.driver):
            return "", ""
        directory = function.directory
        own = next((d.name for d in directory.subs("vfio-dev") if _NODE_NAME.fullmatch(d.name)), "")
        device = f"/dev/vfio/devices/{own}" if own else ""
        number = directory.link("iommu_group")
        if not _NUMBER.fullmatch(number):
            return "", device
        group = directory.sub("iommu_group")
        # The kernel's own mark of a group without an IOMMU behind it; its node is called so, too.
        unsafe = group is not None and group.text("name") == "vfio-noiommu"
        return f"/dev/vfio/{'noiommu-' if unsafe else ''}{number}", device

    @staticmethod
    def _uio(function: Function) -> str:
        names = [d.name for d in function.directory.subs("uio") if _NODE_NAME.fullmatch(d.name)]
        return f"/dev/{names[0]}" if names else ""


def function_address(path: str) -> str:
    """The address of the PCI function that something at a path in sysfs stands for.

    Empty for what is on no function, or on a bus or a part behind one.
    """
    address = ""
    for part in path.split("/"):
        if selectors.ADDRESS.fullmatch(part):
            address = part
        elif address and _NOT_THE_FUNCTION.fullmatch(part):
            return ""
    return address


def driver_nodes(attributes: Mapping[str, str]) -> tuple[str, ...]:
    """The device nodes by which a function is used from user space, of its attributes."""
    if attributes["vfio"]:
        return attributes["vfio"], _VFIO_CONTROL
    return (attributes["uio"],) if attributes["uio"] else ()


class FunctionFilter:
    """Holds for the functions that are selected; what costs little is looked at first."""

    def __init__(self, written: Functions, *, with_vfs: bool = True, classes: tuple[str, ...] = ()) -> None:
        self._written = written
        self._with_vfs = with_vfs
        self._vendors = frozenset(map(selectors.hex_id, written.vendors))
        self._devices = frozenset(map(selectors.hex_id, written.devices))
        self._addresses = tuple(map(selectors.address_pattern, written.addresses))
        self._classes = classes
        self._pf_names = tuple(map(selectors.virtual_functions, written.pf_names))
        parsed = map(selectors.virtual_functions, written.pf_addresses)
        self._pf_addresses = tuple(
            selectors.VirtualFunctions(selectors.address_pattern(p.physical), p.ranges) for p in parsed
        )

    @property
    def is_open(self) -> bool:
        """Whether it asks nothing of a function: then a device without one holds as well."""
        written = self._written
        asked = (
            *(self._vendors, self._devices, self._addresses, self._classes, written.drivers),
            *(self._pf_names, self._pf_addresses, written.pf_drivers),
        )
        return written.functions != "virtual" and not any(asked)

    def holds(self, bus: PciBus, function: Function, pf_names: PfNames) -> bool:
        """Whether the function is selected."""
        written = self._written
        return (
            (not self._vendors or function.vendor in self._vendors)
            and (not self._devices or function.device in self._devices)
            and (not self._classes or function.class_code.startswith(self._classes))
            and selectors.any_matches(self._addresses, (function.address,))
            and selectors.any_matches(written.drivers, (function.driver,))
            and (written.functions == "all" or (written.functions == "virtual") == bool(function.pf))
            and (self._with_vfs or bool(function.pf) or not bus.vfs(function))
            and self._of_physical(bus, function, pf_names)
        )

    def _of_physical(self, bus: PciBus, function: Function, pf_names: PfNames) -> bool:
        written = self._written
        if not (self._pf_names or self._pf_addresses or written.pf_drivers):
            return True
        physical = bus.function(function.pf) if function.pf else None
        if physical is None:
            return False
        index = bus.vf(function)
        return (
            (not written.pf_drivers or selectors.any_matches(written.pf_drivers, (physical.driver,)))
            and _of(self._pf_addresses, (physical.address,), index)
            and (not self._pf_names or _of(self._pf_names, pf_names(physical.address), index))
        )


def _of(wanted: tuple[selectors.VirtualFunctions, ...], names: tuple[str, ...], index: int | None) -> bool:
    """Whether one of `names` with this index is wanted; nothing wanted holds for all."""
    return not wanted or any(
        virtual.holds(index) and selectors.any_matches((virtual.physical,), names) for virtual in wanted
    )
