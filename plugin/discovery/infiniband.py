"""The source `infiniband`: InfiniBand and RoCE devices, each joined with its network interface."""

from plugin.config import selectors
from plugin.config.model import Infiniband
from plugin.discovery.host import HostRoot
from plugin.discovery.network import CLASS_RDMA as CLASS
from plugin.discovery.network import SUBSYSTEMS, Interfaces, RdmaDevice, RdmaDevices
from plugin.discovery.pci_bus import PCI_ATTRIBUTES, Function, FunctionFilter, PciBus
from plugin.discovery.source import Findings, Found
from plugin.discovery.sysfs_tree import MAX_JOINED, Sysfs, clean
from plugin.names import natural

TOGETHER = "all"
"""The name of the one device that stands for all that are selected."""


class InfinibandSource:
    """The devices that `written` selects, or one for all of them."""

    def __init__(self, written: Infiniband) -> None:
        self._written = written
        self._filter = FunctionFilter(written)

    def scan(self, host: HostRoot) -> Findings:
        """The devices as they are now."""
        look = _Look(host, self._written, self._filter)
        devices = look.rdma.all()
        found = [item for device in devices if (item := look.found(device)) is not None]
        if devices and not found:
            notes: tuple[str, ...] = (f"none of {len(devices)} RDMA devices is selected",)
        else:
            notes = () if found else (f"{CLASS} has no device",)
        if self._written.together:
            found = _together(found)
        follow = (("/dev/infiniband", "*"),)
        return Findings(tuple(found), follow, notes, SUBSYSTEMS | {"net"})

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The device as it is now; None where it is gone or not selected any more."""
        if self._written.together:
            return next(iter(self.scan(host).found), None)
        look = _Look(host, self._written, self._filter)
        device = look.rdma.one(found.name)
        return None if device is None else look.found(device)


class _Look:
    """One look at the host."""

    def __init__(self, host: HostRoot, written: Infiniband, wanted: FunctionFilter) -> None:
        sysfs = Sysfs(host)
        self._bus = PciBus(sysfs)
        self._interfaces = Interfaces(sysfs)
        self._written = written
        self._wanted = wanted
        self.rdma = RdmaDevices(self._bus)

    def found(self, device: RdmaDevice) -> Found | None:
        """The device, where it is selected."""
        written = self._written
        if not selectors.any_matches(written.names, (device.name,)):
            return None
        function = self._bus.function(device.address) if device.address else None
        if function is None and not self._wanted.is_open:
            return None
        if function is not None and not self._wanted.holds(self._bus, function, self._interfaces.of_physical):
            return None
        interfaces = self._interfaces_of(device)
        link_type = device.link_type()
        if not selectors.any_matches(written.interfaces, interfaces):
            return None
        if not selectors.any_matches(written.link_types, (link_type,)):
            return None
        attributes = {
            **self._pci_attributes(function),
            "rdma": device.name,
            "interface": clean(next(iter(interfaces), "")),
            "interfaces": clean(",".join(interfaces), MAX_JOINED),
            "link_type": link_type,
            "ports": str(len(device.ports())),
            "states": device.states(),
            "node_guid": device.directory.text("node_guid"),
            "board": device.directory.text("board_id"),
            "firmware": device.directory.text("fw_ver"),
            "uverbs": device.node("uverbs"),
            "umad": device.node("umad"),
            "issm": device.node("issm"),
        }
        return Found(
            device.name,
            path=attributes["uverbs"],
            attrs=attributes,
            nodes=tuple(sorted((*device.nodes, *self.rdma.connection_manager()), key=natural)),
            sysfs=device.directory.path if function is None else function.directory.path,
            claim=f"rdma:{device.name}" if function is None else function.claim,
        )

    def _pci_attributes(self, function: Function | None) -> dict[str, str]:
        if function is None:
            return dict.fromkeys(PCI_ATTRIBUTES, "")
        return self._bus.attributes(function, self._interfaces.of_physical)

    def _interfaces_of(self, device: RdmaDevice) -> tuple[str, ...]:
        """By what its ports' address tables name; else those of the function that it is on."""
        named: set[str] = set()
        for port in device.ports():
            table = port.sub("gid_attrs/ndevs")
            named.update(name for i in _GIDS if table is not None and (name := table.text(i)))
        there = sorted((name for name in named if self._interfaces.one(name) is not None), key=natural)
        return tuple(there) or self._interfaces.of_physical(device.address)


_GIDS = ("0", "1")
"""Entries of a port's table that name its own interface; later ones name VLANs on it."""


def _together(found: list[Found]) -> list[Found]:
    """One device for all; none for none."""
    if not found:
        return []
    lists = {
        "devices": (item.name for item in found),
        "interfaces": (item.attrs["interfaces"] for item in found),
        "addresses": (item.attrs["address"] for item in found),
    }
    joined = {key: ",".join(filter(None, texts))[:MAX_JOINED] for key, texts in lists.items()}
    nodes = sorted({node for item in found for node in item.nodes}, key=natural)
    return [Found(TOGETHER, attrs=joined, nodes=tuple(nodes))]
