"""The USB bus as sysfs shows it: devices with their attributes, interfaces and child nodes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from plugin.core.device import natural
from plugin.core.names import id_problem
from plugin.core.selectors import hex_id
from plugin.discovery.child_nodes import children
from plugin.discovery.host import HostRoot
from plugin.discovery.sysfs import MAX_JOINED, Directory, Sysfs

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
