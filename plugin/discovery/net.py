"""The source `net`: network functions of the PCI bus, and on request other network interfaces."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from plugin.discovery import selectors
from plugin.discovery.host import HostRoot
from plugin.discovery.infiniband import SUBSYSTEMS, RdmaDevice, RdmaDevices, node_of_kind
from plugin.discovery.pci import (
    DEVICES,
    INTERFACES,
    PCI_ATTRIBUTES,
    FunctionFilter,
    NetworkInterface,
    PciBus,
    PciFunction,
    PciSelection,
    driver_nodes,
)
from plugin.discovery.selectors import NamePatterns
from plugin.discovery.source import Candidates, Findings, Found, Mismatch, Scanner, selected
from plugin.discovery.sysfs_tree import MAX_JOINED, SysfsTree, clean
from plugin.names import in_order, natural

ROUTES: Final = "/proc/1/net/route"
"""Of the host's first process: /proc/net is the network namespace of the process that reads it."""
ROUTES_6: Final = "/proc/1/net/ipv6_route"
MAX_ROUTES: Final = 1 << 20
"""Bytes of a routing table that are read."""
MAX_ABOVE: Final = 8
"""Levels of stacked interfaces (bond, VLAN, bridge, …) that are followed."""

_NETWORK_CLASS: Final = "02"
_LINK_TYPES: Final[Mapping[str, str]] = {"0200": "ether", "0207": "infiniband"}
_FOLLOWED: Final = (("/dev/vfio", "*"), ("/dev/infiniband", "*"))
_USB_PORT: Final = re.compile(r"\d+-\d+(\.\d+)*", re.ASCII)
_SUBSYSTEMS: Final = SUBSYSTEMS | {"pci", "net", "vfio", "uio"}
_UP: Final = 0x1
_REJECT: Final = 0x200

NetKind = Literal["pci", "hardware", "virtual"]


def _pci_alone() -> list[NetKind]:
    return ["pci"]


class Net(PciSelection, frozen=True):
    """Network functions, named after their PCI addresses, and on request interfaces without a function.

    A function needs no interface (it may be bound to vfio-pci). While its interface is in a pod's network
    namespace, it keeps the interface's last known name and link type. An interface with the host's default
    route, directly or through a bond, bridge or VLAN, is left out; this needs no hostNetwork and no hostPID.

    Attributes: those of `pci`, and `interface`, `interfaces` (joined by commas), `link_type` (ether,
    infiniband or the kernel's number), the RDMA device `rdma` with its nodes `uverbs`, `umad` and `issm`,
    and `kind`, one of `kinds`.

    Nodes: as for `pci`; with `rdma: true` those of its RDMA device and /dev/infiniband/rdma_cm.
    """

    interfaces: NamePatterns = []
    """Interfaces, or patterns: `ens3f0`, `eth*`."""
    link_types: NamePatterns = []
    """`ether`, `infiniband`, or other numbers in /sys/class/net/NAME/type."""
    rdma: bool | UnsetType = UNSET
    """Only devices with an RDMA device, or only those without."""
    with_vfs: bool = False
    """Include physical functions that have virtual functions enabled."""
    default_route: bool = False
    """Include interfaces with the host's default route."""
    kinds: Annotated[list[NetKind], Meta(min_length=1, max_length=3)] = field(default_factory=_pci_alone)
    """PCI functions; `hardware` on other buses; `virtual` interfaces (dummy, veth, VLAN, …)."""

    def scanner(self) -> Scanner:
        return NetScanner(self)

    def attributes(self) -> frozenset[str]:
        own = ("interface", "interfaces", "link_type", "rdma", "uverbs", "umad", "issm", "kind")
        return frozenset({*PCI_ATTRIBUTES, *own})

    def host_paths(self) -> Iterable[str]:
        routes = () if self.default_route else (ROUTES,)
        return ("/sys/bus", "/sys/class", *routes)


class _Attached(Struct, frozen=True):
    """The interface and the RDMA device of a function while both are in the host's network namespace.

    Both move with the pod that gets them and come back. The last known values stay right as long as the
    function keeps its driver.
    """

    driver: str
    interfaces: tuple[str, ...] = ()
    link_type: str = ""
    rdma: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    def attributes(self, kind: str) -> dict[str, str]:
        return {
            "kind": kind,
            "interface": clean(next(iter(self.interfaces), "")),
            "interfaces": clean(",".join(self.interfaces), MAX_JOINED),
            "link_type": self.link_type,
            "rdma": ",".join(self.rdma),
            **{node_kind: node_of_kind(self.nodes, node_kind) for node_kind in ("uverbs", "umad", "issm")},
        }


class NetScanner:
    """Scans for the functions and interfaces that a configuration selects."""

    def __init__(self, config: Net) -> None:
        self._config = config
        self._filter = FunctionFilter(config, with_vfs=config.with_vfs)
        self._attached: dict[str, _Attached] = {}

    def scan(self, host: HostRoot) -> Findings:
        """The selected functions and interfaces. Raises OSError if the default route is unknown."""
        scan = _NetScan(host, self._config, self._filter, self._attached)
        candidates = Candidates()
        notes: list[str] = []
        if "pci" in self._config.kinds:
            try:
                addresses = frozenset(scan.bus.addresses())
            except FileNotFoundError:
                addresses = frozenset()
                notes.append(f"{DEVICES} is not there")
            for address in addresses:
                candidates.add(address, scan.function(address))
            self._attached = {a: attached for a, attached in self._attached.items() if a in addresses}
        if {"hardware", "virtual"} & set(self._config.kinds):
            for interface in scan.bus.interfaces.all():
                candidates.add(interface.name, scan.interface(interface))
        found: list[Found] = []
        for item in sorted(candidates.found, key=lambda item: natural(item.name)):
            reason = scan.in_use(item)
            if reason:
                notes.append(f"{clean(item.name)} is left out: {reason}")
            else:
                found.append(item)
        if not found and not notes:
            notes.append("no network function or interface is selected")
        others = candidates.not_selected
        return Findings(tuple(found), _FOLLOWED, tuple(notes), _SUBSYSTEMS, not_selected=others)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The function or interface; None if it is gone or no longer selected."""
        scan = _NetScan(host, self._config, self._filter, self._attached)
        if selectors.ADDRESS.fullmatch(found.name):
            now = selected(scan.function(found.name))
        else:
            interface = scan.bus.interfaces.one(found.name)
            now = None if interface is None else selected(scan.interface(interface))
        reason = scan.in_use(now) if now is not None else ""
        return now if now is None or not reason else replace(now, absent=reason)


class _NetScan:
    """One scan. It updates `attached`."""

    def __init__(
        self, host: HostRoot, config: Net, wanted: FunctionFilter, attached: dict[str, _Attached]
    ) -> None:
        self.bus = PciBus(host)
        self._rdma = RdmaDevices(self.bus)
        self._config = config
        self._wanted = wanted
        self._attached = attached
        self._in_use: frozenset[str] | None = frozenset() if config.default_route else None

    def function(self, address: str) -> Found | Mismatch | str | None:
        """The network function at an address, if it is selected, or else the reason."""
        function = self.bus.function(address)
        if function is None or not function.class_code.startswith(_NETWORK_CLASS):
            return None
        mismatch = self._wanted.mismatch(self.bus, function)
        if mismatch is not None:
            return mismatch
        now = self._attached_to(function)
        wanted = self._config.rdma
        mismatch = self._mismatch(now)
        if mismatch is not None:
            return mismatch
        attributes = {**self.bus.attributes(function), **now.attributes("pci")}
        nodes = driver_nodes(attributes)
        if wanted is True:
            nodes = (*nodes, *now.nodes, *self._rdma.connection_manager())
        return Found(
            function.address,
            attrs=attributes,
            nodes=tuple(in_order(nodes)),
            sysfs=function.directory.path,
            claim=function.claim,
        )

    def interface(self, interface: NetworkInterface) -> Found | Mismatch | str | None:
        """An interface without a PCI function, if it is selected, or else the reason."""
        if interface.kind == "pci":
            return None
        if interface.kind not in self._config.kinds:
            return Mismatch("kinds", self._config.kinds, (interface.kind,))
        mismatch = self._wanted.mismatch(self.bus, None)
        if mismatch is not None:
            return mismatch
        now = _Attached("", (interface.name,), interface.link_type())
        mismatch = self._mismatch(now)
        if mismatch is not None:
            return mismatch
        return Found(
            interface.name,
            attrs={**self.bus.attributes(None), **now.attributes(interface.kind)},
            sysfs=interface.directory.path,
            claim=_claim(interface),
        )

    def _mismatch(self, now: _Attached) -> Mismatch | str | None:
        config = self._config
        if not selectors.any_matches(config.interfaces, now.interfaces):
            return Mismatch("interfaces", config.interfaces, now.interfaces)
        if not selectors.any_matches(config.link_types, (now.link_type,)):
            return Mismatch("link_types", config.link_types, (now.link_type,))
        if config.rdma is not UNSET and config.rdma != bool(now.rdma):
            return f"rdma: found {'an' if now.rdma else 'no'} RDMA device"
        return None

    def in_use(self, found: Found) -> str:
        """Why a device cannot be offered: it has the host's default route; otherwise empty.

        Raises OSError if the host's routes cannot be read: a wrong guess would cut off the node.
        """
        names = self.bus.interfaces.names(found.name)
        if found.attrs["kind"] != "pci":
            names = (found.name,)
        if not names:
            return ""
        if self._in_use is None:
            try:
                self._in_use = with_default_route(self.bus.sysfs)
            except OSError as error:
                advice = "whose is the host's default route? Its /proc is needed, or default_route: true"
                raise OSError(error.errno, f"{error.strerror}: {advice}", error.filename) from error
        busy = [name for name in names if name in self._in_use]
        owner = "it" if found.name in busy else clean(next(iter(busy), ""))
        return f"{owner} has the host's default route" if busy else ""

    def _attached_to(self, function: PciFunction) -> _Attached:
        """What is attached to a function now, completed by the last known values."""
        before = self._attached.get(function.address)
        if before is None or before.driver != function.driver:
            before = _Attached(function.driver)
        interfaces = self.bus.interfaces.of(function.address)
        devices = self._rdma.of(function)
        now = _Attached(
            function.driver,
            tuple(i.name for i in interfaces) or before.interfaces,
            next((t for i in interfaces if (t := i.link_type())), "") or before.link_type,
            tuple(d.name for d in devices) or before.rdma,
            tuple(n for d in devices for n in d.nodes) if devices else before.nodes,
        )
        self._attached[function.address] = now
        return now if now.link_type else replace(now, link_type=self._assumed_link_type(function, devices))

    def _assumed_link_type(self, function: PciFunction, devices: tuple[RdmaDevice, ...]) -> str:
        """For an interface that was never seen: by its RDMA port, physical function or PCI class."""
        of_port = next((t for device in devices if (t := device.link_type())), "")
        of_physical = next((t for i in self.bus.interfaces.of(function.pf) if (t := i.link_type())), "")
        return of_port or of_physical or _LINK_TYPES.get(function.class_code[:4], "")


def _claim(interface: NetworkInterface) -> str:
    """Identifies an interface without a PCI function across all resources."""
    ports = [part for part in interface.directory.path.split("/") if _USB_PORT.fullmatch(part)]
    return f"usb:{ports[-1]}" if ports else f"net:{interface.name}"


def with_default_route(sysfs: SysfsTree) -> frozenset[str]:
    """The interfaces with the host's default route, and the interfaces below them.

    A bond, bridge or VLAN with the default route needs the interfaces below it. Raises OSError if the
    host's routes cannot be read.
    """
    names = {*default_routes(sysfs.read(ROUTES, MAX_ROUTES))}
    with suppress(FileNotFoundError):  # a host without IPv6
        names |= default_routes_6(sysfs.read(ROUTES_6, MAX_ROUTES))
    below = names
    for _ in range(MAX_ABOVE):
        below = {lower for name in below for lower in _below(sysfs, name)} - names
        if not below:
            break
        names |= below
    return frozenset(names)


def _below(sysfs: SysfsTree, name: str) -> Iterator[str]:
    directory = sysfs.directory(f"{INTERFACES}/{name}")
    entries = directory.names() if directory is not None else ()
    return (entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_"))


def default_routes(table: str) -> frozenset[str]:
    """The interfaces of the default routes in /proc/net/route."""
    rows = (line.split() for line in table.splitlines()[1:])
    return frozenset(
        row[0] for row in rows if len(row) >= 8 and row[1] == row[7] == "00000000" and _usable(row[3])
    )


def default_routes_6(table: str) -> frozenset[str]:
    """The interfaces of the default routes in /proc/net/ipv6_route, without reject routes."""
    rows = (line.split() for line in table.splitlines())
    default = (row for row in rows if len(row) >= 10 and row[1] == "00" and not row[0].strip("0"))
    return frozenset(row[9] for row in default if row[9] != "lo" and _usable(row[8]))


def _usable(flags: str) -> bool:
    try:
        number = int(flags, 16)
    except ValueError:
        return False
    return bool(number & _UP) and not number & _REJECT
