"""RDMA devices as sysfs shows them: their nodes, ports, and the PCI functions that they are on."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from plugin.core.device import natural
from plugin.discovery.pci_bus import Function, PciBus
from plugin.discovery.sysfs import Directory, Sysfs, clean

CLASS: Final = "/sys/class/infiniband"
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
            names = self._sysfs.names(CLASS)
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
        directory = self._sysfs.directory(f"{CLASS}/{name}")
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
