"""Network interfaces as sysfs shows them, and which of them carry the host's default route.

RDMA devices as sysfs shows them: their nodes, ports, and the PCI functions that they are on.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from plugin.discovery.pci_bus import DEVICES, Function, PciBus, function_address
from plugin.discovery.sysfs_tree import Directory, Sysfs, clean
from plugin.names import natural

CLASS: Final = "/sys/class/net"
ROUTES: Final = "/proc/1/net/route"
"""Of the host's first process: /proc/net would be the namespace of the process that reads it."""
ROUTES_6: Final = "/proc/1/net/ipv6_route"
MAX_ROUTES: Final = 1 << 20
"""Bytes of a table of routes that are read."""
MAX_ABOVE: Final = 8
"""Bonds on VLANs on bridges …: how many of them are gone through."""

LINK_TYPES: Final[Mapping[str, str]] = {"1": "ether", "32": "infiniband"}
"""The kernel's ARPHRD numbers of interfaces that are worth a name."""

_REPRESENTOR: Final = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+", re.ASCII)
_VIRTIO: Final = re.compile(r"virtio\d{1,6}", re.ASCII)
_UP: Final = 0x1
_REJECT: Final = 0x200


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface. `kind`: on a PCI function, on other `hardware`, or `virtual`."""

    name: str
    directory: Directory
    kind: str
    address: str
    """The PCI function that it is on; empty for other kinds."""

    def link_type(self) -> str:
        """ether, infiniband, or the kernel's number; empty where it has gone meanwhile."""
        number = self.directory.text("type")
        return LINK_TYPES.get(number, number)

    def is_representor(self) -> bool:
        """Whether it stands, on the host's side of a switch, for somebody else's function."""
        return _REPRESENTOR.fullmatch(self.directory.text("phys_port_name")) is not None


class Interfaces:
    """The interfaces of the host's namespace for the length of one look."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._of: dict[str, tuple[Interface, ...]] = {}

    def all(self) -> Iterator[Interface]:
        """Every interface in natural order, lo left out; none where sysfs shows none."""
        try:
            names = self._sysfs.names(CLASS)
        except OSError:
            return
        for name in sorted(names, key=natural):
            interface = self.one(name)
            if interface is not None:
                yield interface

    def one(self, name: str) -> Interface | None:
        """The interface of this name; None where there is none, and for lo."""
        directory = self._sysfs.directory(f"{CLASS}/{name}") if name != "lo" else None
        if directory is None or not directory.path.startswith("/sys/devices/"):
            return None  # bonding_masters is a file in there
        if directory.path.startswith("/sys/devices/virtual/"):
            return Interface(name, directory, "virtual", "")
        address = function_address(directory.path)
        return Interface(name, directory, "pci" if address else "hardware", address)

    def of(self, address: str) -> tuple[Interface, ...]:
        """The interfaces of the PCI function at an address, representors left out, in natural order."""
        if address not in self._of:
            found = self._on(f"{DEVICES}/{address}") if address else ()
            ordered = sorted(found, key=lambda interface: natural(interface.name))
            self._of[address] = tuple(i for i in ordered if not i.is_representor())
        return self._of[address]

    def of_physical(self, address: str) -> tuple[str, ...]:
        """The names of a function's interfaces."""
        return tuple(interface.name for interface in self.of(address))

    def _on(self, path: str) -> Iterator[Interface]:
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
                yield Interface(directory.name, directory, "pci", function.name)

    def with_default_route(self) -> frozenset[str]:
        """The interfaces that have the host's default route, and those below them.

        A bond, a bridge or a VLAN with the default route has it through the interfaces below it. Raises
        OSError where the host does not tell its routes: to give away the wrong interface costs the node.
        """
        names = {*default_routes(self._sysfs.read(ROUTES, MAX_ROUTES))}
        with suppress(FileNotFoundError):  # a host without IPv6
            names |= default_routes_6(self._sysfs.read(ROUTES_6, MAX_ROUTES))
        below = names
        for _ in range(MAX_ABOVE):
            below = {lower for name in below for lower in self._below(name)} - names
            if not below:
                break
            names |= below
        return frozenset(names)

    def _below(self, name: str) -> Iterable[str]:
        directory = self._sysfs.directory(f"{CLASS}/{name}")
        entries = directory.names() if directory is not None else ()
        return (entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_"))


def default_routes(table: str) -> frozenset[str]:
    """The interfaces of the default routes in /proc/net/route."""
    names: set[str] = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000":
            continue
        if _usable(fields[3]):
            names.add(fields[0])
    return frozenset(names)


def default_routes_6(table: str) -> frozenset[str]:
    """The interfaces of the default routes in /proc/net/ipv6_route; those that refuse are no routes."""
    names: set[str] = set()
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[1] != "00" or fields[0].strip("0"):
            continue
        if _usable(fields[8]) and fields[9] != "lo":
            names.add(fields[9])
    return frozenset(names)


def _usable(flags: str) -> bool:
    try:
        number = int(flags, 16)
    except ValueError:
        return False
    return bool(number & _UP) and not number & _REJECT


CLASS_RDMA: Final = "/sys/class/infiniband"
CONNECTION_MANAGER: Final = "/dev/infiniband/rdma_cm"
SUBSYSTEMS: Final = frozenset({"infiniband", "infiniband_verbs", "infiniband_mad"})

_NODE_CLASSES: Final = ("infiniband_verbs", "infiniband_mad", "infiniband_cm")
_NODE_NAME: Final = re.compile(r"(uverbs|umad|issm|ucm)\d{1,6}", re.ASCII)
_LINK_LAYERS: Final = {"ethernet": "ether", "infiniband": "infiniband"}


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One device of /sys/class/infiniband."""

    name: str
    directory: Directory
    address: str
    """The PCI function that it is on; empty for one without."""
    nodes: tuple[str, ...]
    """Its own in /dev/infiniband, in natural order."""

    def node(self, kind: str) -> str:
        """Its first node of a kind (uverbs, umad, issm); empty where it has none."""
        return next((n for n in self.nodes if n.rpartition("/")[2].startswith(kind)), "")

    def ports(self) -> tuple[Directory, ...]:
        """Its ports, in natural order."""
        return tuple(sorted(self.directory.subs("ports"), key=lambda port: natural(port.name)))

    def link_type(self) -> str:
        """What its first port is: ether (RoCE, iWARP) or infiniband; empty where it does not say."""
        layers = [port.text("link_layer").lower() for port in self.ports()]
        return next((_LINK_LAYERS.get(layer, layer) for layer in layers if layer), "")

    def states(self) -> str:
        """Its ports' states, `ACTIVE,DOWN`."""
        return ",".join(port.text("state").rpartition(":")[2].strip() for port in self.ports())


class RdmaDevices:
    """The RDMA devices of the host for the length of one look."""

    def __init__(self, bus: PciBus) -> None:
        self._bus = bus
        self._sysfs: Sysfs = bus.sysfs

    def all(self) -> tuple[RdmaDevice, ...]:
        """Every device in natural order; none where sysfs shows none."""
        try:
            names = self._sysfs.names(CLASS_RDMA)
        except OSError:
            return ()
        found = (self.one(name) for name in sorted(names, key=natural))
        return tuple(device for device in found if device is not None)

    def of(self, function: Function) -> tuple[RdmaDevice, ...]:
        """The devices of a PCI function, in natural order."""
        names = sorted((d.name for d in function.directory.subs("infiniband")), key=natural)
        return tuple(device for name in names if (device := self.one(name)) is not None)

    def one(self, name: str) -> RdmaDevice | None:
        """The device of this name; None where there is none."""
        directory = self._sysfs.directory(f"{CLASS_RDMA}/{name}")
        if directory is None or clean(name) != name:
            return None
        function = self._bus.above(directory.path)
        nodes = tuple(sorted(self._nodes(name, directory), key=natural))
        return RdmaDevice(name, directory, "" if function is None else function.address, nodes)

    def connection_manager(self) -> tuple[str, ...]:
        """The node of the connection manager, which all devices share; none without it."""
        parent, _, name = CONNECTION_MANAGER.rpartition("/")
        try:
            return (CONNECTION_MANAGER,) if name in self._sysfs.names(parent) else ()
        except OSError:
            return ()

    def _nodes(self, name: str, directory: Directory) -> Iterator[str]:
        """Below the device that it is on; where that has none, among all of the class."""
        parent = directory.sub("device")
        for kind in _NODE_CLASSES:
            place = None if parent is None else parent.sub(kind)
            if place is None:
                place = self._sysfs.directory(f"/sys/class/{kind}")
            for entry in place.names() if place is not None else ():
                node = place.sub(entry) if place is not None and _NODE_NAME.fullmatch(entry) else None
                if node is not None and node.text("ibdev") == name:
                    yield f"/dev/infiniband/{entry}"
