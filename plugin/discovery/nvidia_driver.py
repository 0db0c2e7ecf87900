"""What NVIDIA's driver shows of its GPUs and MIG slices in files: /proc/driver/nvidia, /dev."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from plugin.core.device import natural
from plugin.core.selectors import ADDRESS
from plugin.discovery.sysfs import Sysfs, clean

GPUS: Final = "/proc/driver/nvidia/gpus"
CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"
MIG_MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
MAX_MINORS: Final = 1 << 20
"""Bytes of the table of capabilities: it has four thousand lines."""

_NODE: Final = re.compile(r"nvidia(\d{1,4})", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,4}", re.ASCII)
_MINOR: Final = re.compile(r"DeviceFileMinor:\s*(\d{1,7})", re.ASCII)
_UUID: Final = re.compile(r"GPU-[0-9a-fA-F-]{8,64}")


@dataclass(frozen=True, slots=True)
class ShownGpu:
    """A GPU as the driver's files show it. `uuid` and `address` are empty where they do not."""

    minor: int
    uuid: str = ""
    model: str = ""
    address: str = ""
    slices: tuple[tuple[int, int], ...] = ()
    """(GPU instance, compute instance) of its MIG slices, in order."""


@dataclass(slots=True)
class Driver:
    """One look at the driver's files."""

    sysfs: Sysfs
    _table: Mapping[str, int] | None = field(default=None)

    def gpus(self) -> Iterator[ShownGpu]:
        """The GPUs in /proc, by their minor numbers. Raises OSError where the driver shows none."""
        shown = [gpu for name in self.sysfs.names(GPUS) if (gpu := self.gpu(name)) is not None]
        yield from sorted(shown, key=lambda gpu: gpu.minor)

    def gpu(self, address: str) -> ShownGpu | None:
        """The GPU at a PCI address; None for one that is not there or was excluded."""
        try:
            text = self.sysfs.read(f"{GPUS}/{address}/information") if ADDRESS.fullmatch(address) else ""
        except OSError:
            return None
        told: dict[str, str] = {}
        for line in text.splitlines():
            key, _, value = line.partition(":")
            told[key.strip()] = clean(value)
        minor = told.get("Device Minor", "")
        if "Yes" in {told.get("GPU Excluded"), told.get("Blacklisted")} or not _NUMBER.fullmatch(minor):
            return None
        # Until somebody has used a GPU, its UUID is all question marks.
        uuid = told.get("GPU UUID", "")
        number = int(minor)
        return ShownGpu(
            number,
            uuid if _UUID.fullmatch(uuid) else "",
            told.get("Model", ""),
            address,
            tuple(self.slices(number)),
        )

    def nodes(self) -> Iterator[ShownGpu]:
        """The GPUs whose nodes are in /dev. Raises OSError."""
        for name in sorted(self.sysfs.names("/dev"), key=natural):
            found = _NODE.fullmatch(name)
            if found is not None:
                minor = int(found[1])
                yield ShownGpu(minor, slices=tuple(self.slices(minor)))

    def slices(self, minor: int) -> Iterator[tuple[int, int]]:
        """(GPU instance, compute instance) of a GPU's slices."""
        base = f"{CAPABILITIES}/gpu{minor}/mig"
        for gi in self._numbered(base, "gi"):
            for ci in self._numbered(f"{base}/gi{gi}", "ci"):
                yield gi, ci

    def _numbered(self, directory: str, prefix: str) -> list[int]:
        try:
            names = self.sysfs.names(directory)
        except OSError:
            return []
        numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return sorted(int(number) for number in numbers if number.isdecimal() and len(number) < 5)

    def capability(self, name: str) -> int | None:
        """The number of a capability's node in /dev/nvidia-caps: of `gpu0/gi1`, or `gpu0/gi1/ci0`."""
        gpu, _, instance = name.partition("/")
        try:
            found = _MINOR.search(self.sysfs.read(f"{CAPABILITIES}/{gpu}/mig/{instance}/access"))
        except OSError:
            return self._minors().get(f"{name}/access")
        return int(found[1]) if found is not None else None

    def _minors(self) -> Mapping[str, int]:
        if self._table is None:
            table: dict[str, int] = {}
            try:
                lines = self.sysfs.read(MIG_MINORS, MAX_MINORS).splitlines()
            except OSError:
                lines = []
            for line in lines:
                name, _, number = line.strip().partition(" ")
                if number.isdecimal() and len(number) < 8:
                    table[name] = int(number)
            self._table = table
        return self._table
