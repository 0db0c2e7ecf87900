"""The source `infiniband`: InfiniBand and RoCE devices, each with its network interface."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from plugin.discovery import selectors
from plugin.discovery.host import HostRoot
from plugin.discovery.pci import PCI_ATTRIBUTES, FunctionFilter, PciBus, PciFunction, PciSelection
from plugin.discovery.selectors import NamePatterns
from plugin.discovery.source import Candidates, Findings, Found, Mismatch, selected, selection_notes
from plugin.discovery.sysfs_tree import MAX_JOINED, SysfsDirectory, clean
from plugin.names import in_order, natural

CLASS: Final = "/sys/class/infiniband"
CONNECTION_MANAGER: Final = "/dev/infiniband/rdma_cm"
SUBSYSTEMS: Final = frozenset({"infiniband", "infiniband_verbs", "infiniband_mad"})
TOGETHER: Final = "all"
"""The name of the one device that stands for all selected devices."""

_NODE_CLASSES: Final = ("infiniband_verbs", "infiniband_mad", "infiniband_cm")
_NODE_NAME: Final = re.compile(r"(uverbs|umad|issm|ucm)\d{1,6}", re.ASCII)
_LINK_LAYERS: Final = {"ethernet": "ether", "infiniband": "infiniband"}
_GIDS: Final = ("0", "1")
"""Entries of a port's GID table that name the port's interface; later ones name VLANs on it."""


class RdmaDevice(Struct, frozen=True):
    """One device of /sys/class/infiniband."""

    name: str
    directory: SysfsDirectory
    address: str
    """The PCI function of the device; empty if it has none."""
    nodes: tuple[str, ...]
    """Its nodes in /dev/infiniband, in natural order."""

    def ports(self) -> tuple[SysfsDirectory, ...]:
        """Its ports, in natural order."""
        return tuple(sorted(self.directory.subs("ports"), key=lambda port: natural(port.name)))

    def link_type(self) -> str:
        """The type of its first port with one: ether (RoCE, iWARP) or infiniband; otherwise empty."""
        layers = [port.text("link_layer").lower() for port in self.ports()]
        return next((_LINK_LAYERS.get(layer, layer) for layer in layers if layer), "")

    def states(self) -> str:
        """The states of its ports: `ACTIVE,DOWN`."""
        return ",".join(port.text("state").rpartition(":")[2].strip() for port in self.ports())


def node_of_kind(nodes: Iterable[str], kind: str) -> str:
    """The first node of a kind (uverbs, umad, issm); empty if there is none."""
    return next((node for node in nodes if node.rpartition("/")[2].startswith(kind)), "")


class RdmaDevices:
    """The RDMA devices of a host during one scan."""

    def __init__(self, bus: PciBus) -> None:
        self._bus = bus
        self._sysfs = bus.sysfs

    def all(self) -> tuple[RdmaDevice, ...]:
        """All devices, in natural order."""
        return self._sysfs.each(CLASS, self.one)

    def of(self, function: PciFunction) -> tuple[RdmaDevice, ...]:
        """The devices of a PCI function, in natural order."""
        names = in_order(d.name for d in function.directory.subs("infiniband"))
        return tuple(device for name in names if (device := self.one(name)) is not None)

    def one(self, name: str) -> RdmaDevice | None:
        """The device `name`; None if there is none."""
        directory = self._sysfs.directory(f"{CLASS}/{name}")
        if directory is None or clean(name) != name:
            return None
        function = self._bus.above(directory.path)
        nodes = tuple(in_order(self._nodes(name, directory)))
        return RdmaDevice(name, directory, "" if function is None else function.address, nodes)

    def connection_manager(self) -> tuple[str, ...]:
        """The node of the connection manager, which all devices share; empty without it."""
        parent, _, name = CONNECTION_MANAGER.rpartition("/")
        try:
            return (CONNECTION_MANAGER,) if name in self._sysfs.names(parent) else ()
        except OSError:
            return ()

    def _nodes(self, name: str, directory: SysfsDirectory) -> Iterator[str]:
        """From the class directories of the parent device; without a parent, from all of each class."""
        parent = directory.sub("device")
        for kind in _NODE_CLASSES:
            place = None if parent is None else parent.sub(kind)
            if place is None:
                place = self._sysfs.directory(f"/sys/class/{kind}")
            for entry in place.names() if place is not None else ():
                node = place.sub(entry) if place is not None and _NODE_NAME.fullmatch(entry) else None
                if node is not None and node.text("ibdev") == name:
                    yield f"/dev/infiniband/{entry}"


class Infiniband(PciSelection, frozen=True):
    """InfiniBand and RoCE devices of /sys/class/infiniband, each with its network interface.

    Attributes: those of `pci` for the device's function, and `rdma` (the device's name), `interface`,
    `interfaces`, `link_type` (ether, infiniband), `ports` (their number), `states` (`ACTIVE,DOWN`),
    `node_guid`, `board`, `firmware`, `uverbs`, `umad`, `issm`.

    Nodes: those of the device in /dev/infiniband and rdma_cm; with `together` those of all devices.
    """

    names: NamePatterns = []
    """Devices, or patterns: `mlx5_0`, `mlx5_*`."""
    interfaces: NamePatterns = []
    """Network interfaces, or patterns: `ib0`, `ens3f*`."""
    link_types: NamePatterns = []
    """`ether`, `infiniband`."""
    together: bool = False
    """One device named `all` for all selected devices, while there is at least one.

    Its attributes are `devices`, `interfaces` and `addresses`, each joined by commas, and the first `uverbs`.
    """

    def attributes(self) -> frozenset[str]:
        if self.together:
            return frozenset({"devices", "interfaces", "addresses", "uverbs"})
        return frozenset(
            {
                *PCI_ATTRIBUTES,
                *("rdma", "interface", "interfaces", "link_type", "ports", "states", "node_guid", "board"),
                *("firmware", "uverbs", "umad", "issm"),
            }
        )

    def scan(self, host: HostRoot) -> Findings:
        """The selected devices."""
        bus = PciBus(host)
        rdma, wanted = RdmaDevices(bus), FunctionFilter(self)
        devices = rdma.all()
        candidates = Candidates()
        for device in devices:
            candidates.add(device.name, self._found(bus, rdma, wanted, device))
        found, others = candidates.found, candidates.not_selected
        notes = selection_notes(found, len(devices), "RDMA devices", f"{CLASS} has no device")
        if self.together:
            found = _together(found)
        follow = (("/dev/infiniband", "*"),)
        return Findings(tuple(found), follow, notes, SUBSYSTEMS | {"net"}, not_selected=others)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The device; None if it is gone or no longer selected."""
        if self.together:
            return next(iter(self.scan(host).found), None)
        bus = PciBus(host)
        rdma = RdmaDevices(bus)
        device = rdma.one(found.name)
        return None if device is None else selected(self._found(bus, rdma, FunctionFilter(self), device))

    def _found(
        self, bus: PciBus, rdma: RdmaDevices, wanted: FunctionFilter, device: RdmaDevice
    ) -> Found | Mismatch | str:
        """The device, if it is selected, or else the reason."""
        if not selectors.any_matches(self.names, (device.name,)):
            return Mismatch("names", self.names)
        function = bus.function(device.address) if device.address else None
        mismatch = wanted.mismatch(bus, function)
        if mismatch is not None:
            return mismatch
        interfaces = _interfaces(bus, device)
        link_type = device.link_type()
        if not selectors.any_matches(self.interfaces, interfaces):
            return Mismatch("interfaces", self.interfaces, interfaces)
        if not selectors.any_matches(self.link_types, (link_type,)):
            return Mismatch("link_types", self.link_types, (link_type,))
        attributes = {
            **bus.attributes(function),
            "rdma": device.name,
            "interface": clean(next(iter(interfaces), "")),
            "interfaces": clean(",".join(interfaces), MAX_JOINED),
            "link_type": link_type,
            "ports": str(len(device.ports())),
            "states": device.states(),
            "node_guid": device.directory.text("node_guid"),
            "board": device.directory.text("board_id"),
            "firmware": device.directory.text("fw_ver"),
            **{kind: node_of_kind(device.nodes, kind) for kind in ("uverbs", "umad", "issm")},
        }
        return Found(
            device.name,
            path=attributes["uverbs"],
            attrs=attributes,
            nodes=tuple(in_order((*device.nodes, *rdma.connection_manager()))),
            sysfs=device.directory.path if function is None else function.directory.path,
            claim=f"rdma:{device.name}" if function is None else function.claim,
        )


def _interfaces(bus: PciBus, device: RdmaDevice) -> tuple[str, ...]:
    """The interfaces that the ports' GID tables name; without any, those of the PCI function."""
    named: set[str] = set()
    for port in device.ports():
        table = port.sub("gid_attrs/ndevs")
        named.update(name for i in _GIDS if table is not None and (name := table.text(i)))
    there = in_order(name for name in named if bus.interfaces.one(name) is not None)
    return tuple(there) or bus.interfaces.names(device.address)


def _together(found: list[Found]) -> list[Found]:
    """One device for all of `found`."""
    if not found:
        return []
    lists = {
        "devices": (item.name for item in found),
        "interfaces": (item.attrs["interfaces"] for item in found),
        "addresses": (item.attrs["address"] for item in found),
    }
    joined = {key: ",".join(filter(None, texts))[:MAX_JOINED] for key, texts in lists.items()}
    nodes = in_order({node for item in found for node in item.nodes})
    joined["uverbs"] = node_of_kind(nodes, "uverbs")
    return [Found(TOGETHER, attrs=joined, nodes=tuple(nodes))]
