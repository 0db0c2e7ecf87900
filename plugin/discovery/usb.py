"""The source `usb`: USB devices with their child nodes, named after their serial numbers."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from plugin.discovery.host import HostRoot
from plugin.discovery.selectors import MAX_PATTERN, UNIQUE, HexIds, NamePatterns, any_matches, hex_id
from plugin.discovery.source import (
    Candidates,
    Findings,
    Found,
    Mismatch,
    Scanner,
    Shared,
    SharedState,
    SourceConfig,
    selected,
)
from plugin.discovery.sysfs_tree import MAX_JOINED, SysfsDirectory, SysfsTree, children
from plugin.names import id_problem, in_order, matching, natural

DEVICES: Final = "/sys/bus/usb/devices"
PORT: Final = re.compile(r"\d{1,4}-\d{1,3}(?:\.\d{1,3}){0,6}", re.ASCII)
"""The name of a device in sysfs: its ports. A root hub is named usbN; an interface has a `:`."""
CHILD_KINDS: Final = ("tty", "input", "video4linux", "hidraw", "sound", "block", "net")
DEPTH: Final = 8
"""Levels below a device that are searched for child nodes: a disk is on level seven, a partition eight."""

_HUB: Final = "09"


def _class_problem(text: str) -> str | None:
    if hex_id(text) and len(hex_id(text).lstrip("0")) <= 2:
        return None
    return "expected a USB class: two hexadecimal digits, such as 0e"


def _serial_problem(text: str) -> str | None:
    if text and len(text) <= MAX_PATTERN and text.isprintable():
        return None
    return f"expected a serial number or a pattern of at most {MAX_PATTERN} printable characters"


_port_problem: Final = matching(r"[0-9.*?\[\]!-]+", "a USB port or a pattern: 1-1.2, 1-*")


class Usb(SourceConfig, frozen=True):
    """USB devices but hubs, with their child nodes. A device must match every list that is given.

    Named after the serial number; after the port (`1-1.2`) if it has none, or shares it with another device.

    Attributes: `vendor`, `product` (four hexadecimal digits), `serial`, `manufacturer`, `product_name`,
    `port`, `bus`, `address` (number on the bus), `class`, `classes` (of its interfaces, joined by commas),
    `speed` (Mbit/s), `drivers`; and the paths of child nodes by kind, joined by commas: `tty`, `input`,
    `video4linux`, `hidraw`, `sound`, `block`, `net` (interface names).

    Nodes: /dev/bus/usb/BBB/DDD and those of its children, as they are at Allocate.
    """

    vendors: HexIds = []
    """Vendor ids: `0403`."""
    products: HexIds = []
    """Product ids: `6001`."""
    serials: Annotated[list[Annotated[str, Meta(extra={"check": _serial_problem})]], UNIQUE] = []
    """Serial numbers, or patterns."""
    ports: Annotated[list[Annotated[str, Meta(extra={"check": _port_problem})]], UNIQUE] = []
    """Ports, or patterns: `1-1.2`, `1-*`."""
    classes: Annotated[list[Annotated[str, Meta(extra={"check": _class_problem})]], UNIQUE] = []
    """Classes of the device or of an interface: `0e` video, `03` HID, `08` storage."""
    with_nodes: NamePatterns = []
    """Kinds of child nodes, of which the device must have one: `tty`, `video4linux`."""

    def scanner(self) -> Scanner:
        return UsbScanner(self)

    def attributes(self) -> frozenset[str]:
        own = ("vendor", "product", "serial", "manufacturer", "product_name", "port", "bus", "address")
        return frozenset({*own, "class", "classes", "speed", "drivers", *CHILD_KINDS})

    def host_paths(self) -> Iterable[str]:
        return ("/sys/bus",)


class UsbDevice(Struct, frozen=True):
    """One device. `serial` is empty if it cannot serve as a name."""

    directory: SysfsDirectory
    port: str
    vendor: str
    product: str
    serial: str
    bus: int
    address: int

    @property
    def path(self) -> str:
        """Its current node; plugging it in again changes the number."""
        return f"/dev/bus/usb/{self.bus:03d}/{self.address:03d}"

    @property
    def kind(self) -> tuple[str, str, str]:
        """What stays the same in every port."""
        return self.vendor, self.product, self.serial


def devices(sysfs: SysfsTree) -> Iterator[UsbDevice]:
    """All devices but hubs, in the order of their ports. Raises OSError if there is no USB."""
    for name in in_order(sysfs.names(DEVICES)):
        device = device_at(sysfs, name)
        if device is not None:
            yield device


def device_at(sysfs: SysfsTree, port: str) -> UsbDevice | None:
    """The device at a port; None for a hub, and if there is none or it is being removed."""
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


def attributes(host: HostRoot, sysfs: SysfsTree, device: UsbDevice) -> tuple[dict[str, str], tuple[str, ...]]:
    """(attributes, nodes) of a device."""
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
        **{kind: _joined(in_order(paths)) for kind, paths in kinds.items()},
    }
    own, *others = nodes
    return attrs, (own, *in_order(others))


def classes(attrs: Mapping[str, str]) -> frozenset[str]:
    """The classes of a device and of its interfaces, in the form of `hex_id`."""
    return frozenset(hex_id(text) for text in (attrs["class"], *attrs["classes"].split(",")) if text)


def _joined(texts: Iterator[str] | list[str]) -> str:
    joined = ""
    for text in dict.fromkeys(texts):
        if text and len(joined) + len(text) < MAX_JOINED:
            joined = f"{joined},{text}" if joined else text
    return joined


class Plugged(Struct, frozen=True):
    """A device in a port. `serial` is empty if it has none; `kind` is its vendor and product."""

    port: str
    kind: tuple[str, str]
    serial: str


class SerialNames(Struct):
    """Assigns stable names. A serial number that two devices have names no new device from then on.

    A device that had the serial number alone keeps it. Cheap devices all have serial numbers such as `0001`;
    for these the port is the name.
    """

    _owners: dict[str, Plugged] = field(default_factory=dict)
    _ambiguous: set[str] = field(default_factory=set)

    def names(self, devices: Sequence[Plugged]) -> dict[str, str]:
        """The name of each device by its port: its serial number, or the port."""
        by_serial: dict[str, list[Plugged]] = {}
        for device in devices:
            if device.serial:
                by_serial.setdefault(device.serial, []).append(device)
        named = {device.port: device.port for device in devices}
        for serial, rivals in by_serial.items():
            if len(rivals) > 1:
                self._ambiguous.add(serial)
            owner = self._owners.get(serial)
            if owner not in rivals:
                if serial in self._ambiguous:
                    continue
                owner = self._owners[serial] = rivals[0]
            named[owner.port] = serial
        return named


_SUBSYSTEMS: Final = frozenset({"usb", "usbmisc", *CHILD_KINDS})
_BUSES: Final = "/dev/bus/usb"


_STATE: Final = SharedState(SerialNames)


class UsbScanner:
    """Scans for the USB devices that a configuration selects."""

    def __init__(self, config: Usb) -> None:
        self._config = config
        self._vendors = frozenset(map(hex_id, config.vendors))
        self._products = frozenset(map(hex_id, config.products))
        self._classes = frozenset(map(hex_id, config.classes))
        self._state: Shared[SerialNames] | None = None

    def scan(self, host: HostRoot) -> Findings:
        """The selected devices."""
        sysfs = SysfsTree(host)
        follow = tuple((path, "*") for path in (_BUSES, *self._buses(sysfs)))
        try:
            present = tuple(devices(sysfs))
        except FileNotFoundError:
            return Findings((), follow, (f"{DEVICES} is not there",), _SUBSYSTEMS)
        # Of all devices, not only of the selected ones: a serial number must differ from all others.
        self._state = state = _STATE.of(host, None)
        with state.lock:
            names = state.value.names([Plugged(d.port, (d.vendor, d.product), d.serial) for d in present])
        candidates = Candidates()
        for device in present:
            candidates.add(names[device.port], self._found(host, sysfs, device, names[device.port]))
        found = tuple(sorted(candidates.found, key=lambda item: natural(item.name)))
        notes = () if found else (f"none of {len(present)} USB devices is selected",)
        return Findings(found, follow, notes, _SUBSYSTEMS, not_selected=candidates.not_selected)

    @staticmethod
    def _buses(sysfs: SysfsTree) -> list[str]:
        try:
            return [f"{_BUSES}/{name}" for name in sysfs.names(_BUSES)]
        except OSError:
            return []

    def _mismatch(self, device: UsbDevice) -> Mismatch | None:
        config = self._config
        if self._vendors and device.vendor not in self._vendors:
            return Mismatch("vendors", config.vendors, (device.vendor,))
        if self._products and device.product not in self._products:
            return Mismatch("products", config.products, (device.product,))
        if not any_matches(config.serials, [device.serial]):
            return Mismatch("serials", config.serials, (device.serial,))
        if not any_matches(config.ports, [device.port]):
            return Mismatch("ports", config.ports, (device.port,))
        return None

    def _found(self, host: HostRoot, sysfs: SysfsTree, device: UsbDevice, name: str) -> Found | Mismatch:
        config = self._config
        mismatch = self._mismatch(device)
        if mismatch is not None:
            return mismatch
        attrs, nodes = attributes(host, sysfs, device)
        if self._classes and not self._classes & classes(attrs):
            return Mismatch("classes", config.classes, sorted(classes(attrs)))
        kinds = [kind for kind in CHILD_KINDS if attrs[kind]]
        if not any_matches(config.with_nodes, kinds):
            return Mismatch("with_nodes", config.with_nodes, kinds)
        claim = f"usb:{device.port}"
        return Found(name, device.path, attrs, nodes=nodes, sysfs=device.directory.path, claim=claim)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The device; in another port too, if its serial number identifies it."""
        sysfs = SysfsTree(host)
        kind = (found.attrs["vendor"], found.attrs["product"], found.attrs["serial"])
        device = device_at(sysfs, found.attrs["port"])
        if device is None or device.kind != kind:
            device = None
            if found.name == found.attrs["serial"]:
                same = [other for other in devices(sysfs) if other.kind == kind]
                device = same[0] if len(same) == 1 else None
        return None if device is None else selected(self._found(host, sysfs, device, found.name))
