"""Sources of their own kind: nvidia, usb, sysfs, exec."""

from msgspec import Struct

from plugin.core.model.common import Command, Duration, Texts


class Nvidia(Struct, frozen=True, forbid_unknown_fields=True):
    """NVIDIA GPUs by NVML where its library loads, else by /proc/driver/nvidia; or their MIG slices."""

    mig: bool = False


class Usb(Struct, frozen=True, forbid_unknown_fields=True):
    """USB devices with their child nodes."""

    vendors: Texts = []
    products: Texts = []
    serials: Texts = []


class Sysfs(Struct, frozen=True, forbid_unknown_fields=True):
    """Directories of sysfs, kept where files say what is wanted; files' contents become attributes."""

    paths: Texts


class Exec(Struct, frozen=True, forbid_unknown_fields=True):
    """A program that prints the devices as JSON."""

    command: Command
    timeout: Duration = "10s"
