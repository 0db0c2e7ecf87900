"""The source `usb`: USB devices with their child nodes, called by their serial numbers."""

import threading
from dataclasses import dataclass, field
from typing import Final

from plugin.core.device import Found, natural
from plugin.core.model import Usb
from plugin.core.selectors import any_matches, hex_id
from plugin.core.serials import Plugged, SerialNames
from plugin.discovery.host import HostRoot
from plugin.discovery.memory import Memory
from plugin.discovery.source import Findings
from plugin.discovery.sysfs import Sysfs
from plugin.discovery.usb_bus import CHILD_KINDS, DEVICES, UsbDevice, attributes, classes, device_at, devices

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

    def discover(self, host: HostRoot) -> Findings:
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
