"""A USB bus as sysfs shows it, in a host tree."""

import shutil
from dataclasses import dataclass

from harness.hosttree import HostTree

DEVICES = "/sys/bus/usb/devices"


@dataclass(frozen=True, slots=True)
class UsbBus:
    """Builds below one host controller, a PCI function."""

    tree: HostTree
    controller: str = "/sys/devices/pci0000:00/0000:00:14.0"

    def place(self, port: str) -> str:
        """The directory of the device at a port: hubs on the way are above it."""
        bus, _, chain = port.partition("-")
        steps = chain.split(".")
        on_the_way = [f"{bus}-{'.'.join(steps[: n + 1])}" for n in range(len(steps))]
        return "/".join([self.controller, f"usb{bus}", *on_the_way])

    def plug(
        self,
        port: str,
        vendor: str,
        product: str,
        serial: str | None = None,
        *,
        address: int = 5,
        code: str = "00",
        interface: str = "ff",
        driver: str = "",
    ) -> str:
        """A device with one interface, and its node; returns the interface's directory."""
        path = self.place(port)
        bus = int(port.partition("-")[0])
        node = f"bus/usb/{bus:03d}/{address:03d}"
        self.tree.files(path, idVendor=vendor, idProduct=product, busnum=bus, devnum=address)
        self.tree.files(path, bDeviceClass=code, speed=480, manufacturer="ACME", product="Thing", dev="189:4")
        self.tree.file(f"{path}/uevent", f"MAJOR=189\nMINOR=4\nDEVNAME={node}\nDEVTYPE=usb_device\n")
        self.tree.link(f"{path}/subsystem", "/sys/bus/usb")
        if serial is not None:
            self.tree.file(f"{path}/serial", f"{serial}\n")
        inner = f"{path}/{port}:1.0"
        self.tree.files(inner, bInterfaceClass=interface, bInterfaceNumber="00")
        if driver:
            self.tree.directory(f"/sys/bus/usb/drivers/{driver}")
            self.tree.link(f"{inner}/driver", f"/sys/bus/usb/drivers/{driver}")
        self.tree.link(f"{DEVICES}/{port}", path)
        self.tree.link(f"{DEVICES}/{port}:1.0", inner)
        self.tree.file(f"/dev/{node}")
        return inner

    def unplug(self, port: str) -> None:
        """Take a device out."""
        path = self.tree.root / self.place(port).lstrip("/")
        node = (path / "uevent").read_text().partition("DEVNAME=")[2].splitlines()[0]
        (self.tree.root / "dev" / node).unlink()
        for name in (port, f"{port}:1.0"):
            (self.tree.root / f"{DEVICES}/{name}".lstrip("/")).unlink()
        shutil.rmtree(path)

    def child(self, interface: str, below: str, subsystem: str, node: str) -> None:
        """A child with a node of its own, `below` the interface's directory."""
        path = f"{interface}/{below}"
        self.tree.files(path, dev="1:2")
        self.tree.file(f"{path}/uevent", f"MAJOR=1\nMINOR=2\nDEVNAME={node}\n")
        self.tree.link(f"{path}/subsystem", f"/sys/class/{subsystem}")
        self.tree.file(f"/dev/{node}")
