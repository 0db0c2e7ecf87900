"""The USB bus as sysfs shows it: devices with their attributes, interfaces and child nodes.

The source `usb`: USB devices with their child nodes, called by their serial numbers.

Devices called by their serial numbers, as far as these tell them apart.
"""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from plugin.config.model import Usb
from plugin.config.selectors import any_matches, hex_id
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings, Found, Memory
from plugin.discovery.sysfs_tree import MAX_JOINED, Directory, Sysfs, children
from plugin.names import id_problem, natural

DEVICES: Final = "/sys/bus/usb/devices"
PORT: Final = re.compile(r"\d{1,4}-\d{1,3}(?:\.\d{1,3}){0,6}", re.ASCII)
"""A device by the ports that lead to it; a root hub is called usbN, an interface as its device with `:`."""
CHILD_KINDS: Final = ("tty", "input", "video4linux", "hidraw", "sound", "block", "net")
DEPTH: Final = 8
"""How deep child nodes lie: a disk's is seven levels below its device, a partition's eight."""

_HUB: Final = "09"


@dataclass(frozen=True, slots=True)
class UsbDevice:
    """One device. `serial` is empty where there is none that could tell it from others."""

    directory: Directory
    port: str
    vendor: str
    product: str
    serial: str
    bus: int
    address: int

    @property
    def path(self) -> str:
        """Its node as it is called now; another one each time it is plugged in."""
        return f"/dev/bus/usb/{self.bus:03d}/{self.address:03d}"

    @property
    def kind(self) -> tuple[str, str, str]:
        """What stays the same wherever it is plugged in."""
        return self.vendor, self.product, self.serial


def devices(sysfs: Sysfs) -> Iterator[UsbDevice]:
    """All devices but hubs, by their ports. Raises OSError where there is no USB."""
    for name in sorted(sysfs.names(DEVICES), key=natural):
        device = device_at(sysfs, name)
        if device is not None:
            yield device


def device_at(sysfs: Sysfs, port: str) -> UsbDevice | None:
    """The device at a port; None for none, a hub, and one that is going."""
    directory = sysfs.directory(f"{DEVICES}/{port}") if PORT.fullmatch(port) else None
    if directory is None:
        return None
    vendor, product = hex_id(directory.text("idVendor")), hex_id(directory.text("idProduct"))
    bus, address = directory.number("busnum"), directory.number("devnum")
    if not vendor or not product or bus is None or address is None or directory.text("bDeviceClass") == _HUB:
        return None
    serial = directory.text("serial")
    if id_problem(serial) is not None or PORT.fullmatch(serial):
        serial = ""
    return UsbDevice(directory, port, vendor, product, serial, bus, address)


def attributes(host: HostRoot, sysfs: Sysfs, device: UsbDevice) -> tuple[dict[str, str], tuple[str, ...]]:
    """A device's attributes and its nodes."""
    directory = device.directory
    interfaces = [
        inner
        for name in directory.names()
        if name.startswith(f"{device.port}:") and (inner := directory.sub(name)) is not None
    ]
    nodes: dict[str, None] = {device.path: None}
    kinds: dict[str, list[str]] = {kind: [] for kind in CHILD_KINDS}
    for child in children(host, sysfs, directory, DEPTH):
        if child.path:
            nodes[child.path] = None
        kinds.get(child.subsystem, []).append(child.path or child.name)
    attrs = {
        "vendor": device.vendor,
        "product": device.product,
        "serial": device.serial,
        "manufacturer": directory.text("manufacturer"),
        "product_name": directory.text("product"),
        "port": device.port,
        "bus": str(device.bus),
        "address": str(device.address),
        "class": directory.text("bDeviceClass"),
        "classes": _joined(inner.text("bInterfaceClass") for inner in interfaces),
        "speed": directory.text("speed"),
        "drivers": _joined(inner.link("driver") for inner in interfaces),
        **{kind: _joined(sorted(paths, key=natural)) for kind, paths in kinds.items()},
    }
    own, *others = nodes
    return attrs, (own, *sorted(others, key=natural))


def classes(attrs: Mapping[str, str]) -> frozenset[str]:
    """The classes of a device and of its interfaces, as `hex_id` writes them."""
    return frozenset(hex_id(text) for text in (attrs["class"], *attrs["classes"].split(",")) if text)


def _joined(texts: Iterator[str] | list[str]) -> str:
    joined = ""
    for text in dict.fromkeys(texts):
        if text and len(joined) + len(text) < MAX_JOINED:
            joined = f"{joined},{text}" if joined else text
    return joined


@dataclass(frozen=True, slots=True)
class Plugged:
    """A device at a port. `serial` is empty where it has none; `kind` tells it from other models."""

    port: str
    kind: tuple[str, str]
    serial: str


@dataclass(slots=True)
class SerialNames:
    """Gives names that stay: a serial number that two devices have is nobody's from then on.

    Only who had it alone before goes on being called by it. Cheap devices have serials such as `0001`, all
    of them; there the port says which is which.
    """

    _owners: dict[str, Plugged] = field(default_factory=dict)
    _doubtful: set[str] = field(default_factory=set)

    def names(self, devices: Sequence[Plugged]) -> dict[str, str]:
        """What each device is called, by its port: its serial number, or the port."""
        by_serial: dict[str, list[Plugged]] = {}
        for device in devices:
            if device.serial:
                by_serial.setdefault(device.serial, []).append(device)
        named = {device.port: device.port for device in devices}
        for serial, rivals in by_serial.items():
            if len(rivals) > 1:
                self._doubtful.add(serial)
            owner = self._owners.get(serial)
            if owner not in rivals:
                if serial in self._doubtful:
                    continue
                owner = self._owners[serial] = rivals[0]
            named[owner.port] = serial
        return named


_SUBSYSTEMS: Final = frozenset({"usb", "usbmisc", *CHILD_KINDS})
_BUSES: Final = "/dev/bus/usb"


@dataclass(slots=True, weakref_slot=True)
class _Names:
    names: SerialNames = field(default_factory=SerialNames)
    lock: threading.Lock = field(default_factory=threading.Lock)


_MEMORY: Final = Memory(_Names)


class UsbSource:
    """The USB devices that `written` selects."""

    def __init__(self, written: Usb) -> None:
        self._written = written
        self._vendors = frozenset(map(hex_id, written.vendors))
        self._products = frozenset(map(hex_id, written.products))
        self._classes = frozenset(map(hex_id, written.classes))
        self._memory: _Names | None = None

    def scan(self, host: HostRoot) -> Findings:
        """The devices as they are now."""
        sysfs = Sysfs(host)
        follow = tuple((path, "*") for path in (_BUSES, *self._buses(sysfs)))
        try:
            present = tuple(devices(sysfs))
        except FileNotFoundError:
            return Findings((), follow, (f"{DEVICES} is not there",), _SUBSYSTEMS)
        # All of them, not the selected ones alone: a serial number is told from all others.
        self._memory = memory = _MEMORY.of(host, None)
        with memory.lock:
            names = memory.names.names([Plugged(d.port, (d.vendor, d.product), d.serial) for d in present])
        found = [item for d in present if (item := self._found(host, sysfs, d, names[d.port])) is not None]
        found.sort(key=lambda item: natural(item.name))
        notes = () if found else (f"none of {len(present)} USB devices is selected",)
        return Findings(tuple(found), follow, notes, _SUBSYSTEMS)

    @staticmethod
    def _buses(sysfs: Sysfs) -> list[str]:
        try:
            return [f"{_BUSES}/{name}" for name in sysfs.names(_BUSES)]
        except OSError:
            return []

    def _found(self, host: HostRoot, sysfs: Sysfs, device: UsbDevice, name: str) -> Found | None:
        written = self._written
        if (self._vendors and device.vendor not in self._vendors) or (
            self._products and device.product not in self._products
        ):
            return None
        if not any_matches(written.serials, [device.serial]) or not any_matches(written.ports, [device.port]):
            return None
        attrs, nodes = attributes(host, sysfs, device)
        if self._classes and not self._classes & classes(attrs):
            return None
        if not any_matches(written.with_nodes, [kind for kind in CHILD_KINDS if attrs[kind]]):
            return None
        claim = f"usb:{device.port}"
        return Found(name, device.path, attrs, nodes=nodes, sysfs=device.directory.path, claim=claim)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The same device as it is now, wherever it is plugged in, if its serial number says which it is."""
        sysfs = Sysfs(host)
        kind = (found.attrs["vendor"], found.attrs["product"], found.attrs["serial"])
        device = device_at(sysfs, found.attrs["port"])
        if device is None or device.kind != kind:
            device = None
            if found.name == found.attrs["serial"]:
                same = [other for other in devices(sysfs) if other.kind == kind]
                device = same[0] if len(same) == 1 else None
        return None if device is None else self._found(host, sysfs, device, found.name)
