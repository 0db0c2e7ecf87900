"""What NVIDIA's driver shows of its GPUs and MIG slices in files: /proc/driver/nvidia, /dev.

The source `nvidia`: GPUs and MIG slices by NVML, or by what the driver shows.
"""

import errno
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import UNSET

from plugin.config.model import Nvidia
from plugin.config.selectors import ADDRESS
from plugin.discovery.host import HostRoot
from plugin.discovery.nvml import NVML, Gpu, Nvml, NvmlError, NvmlMissingError, Slice
from plugin.discovery.source import Findings, Found, Memory
from plugin.discovery.sysfs_tree import Sysfs, clean
from plugin.names import natural

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


_FOLLOWED: Final = (("/dev", "nvidia*"), ("/dev/nvidia-caps", "*"))
_SUBSYSTEMS: Final = frozenset({"pci", "module"})


@dataclass(slots=True, weakref_slot=True)
class _Seen:
    """What NVML told last, by name; None: it never told anything."""

    by_nvml: dict[str, Found] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


_MEMORY: Final = Memory(_Seen)


class NvidiaSource:
    """The GPUs or slices that `written` asks for."""

    def __init__(self, written: Nvidia, nvml: Nvml = NVML) -> None:
        self._kind = written.kind
        self._library = None if written.library is UNSET else written.library
        self._nvml = nvml
        self._seen: _Seen | None = None

    def scan(self, host: HostRoot) -> Findings:
        """What is there now. Raises OSError where NVML, which knew it before, cannot say."""
        self._seen = seen = _MEMORY.of(host, (self._kind, self._library))
        driver = Driver(Sysfs(host))
        try:
            gpus, problems = self._nvml.gpus(host, self._library)
        except NvmlMissingError as error:
            return self._by_driver(driver, seen, str(error))
        except NvmlError as error:
            raise OSError(errno.EIO, str(error)) from error
        found = {item.name: item for gpu in gpus for item in self._by_nvml(driver, gpu)}
        with seen.lock:
            before = seen.by_nvml or {}
            if problems:
                # A GPU that is lost is still counted; what it was called is known from before.
                told = "; ".join(problems)
                for name in before.keys() - found.keys():
                    found[name] = replace(before[name], absent=told)
            seen.by_nvml = found
        notes = problems or (() if found else (f"NVML tells of {len(gpus)} GPUs, and of no {self._wanted}",))
        return _findings(found.values(), notes)

    @property
    def _wanted(self) -> str:
        return {"gpus": "GPU", "slices": "MIG slice", "both": "GPU and no MIG slice"}[self._kind]

    def _by_driver(self, driver: Driver, seen: _Seen, reason: str) -> Findings:
        """What the driver's files show, while there is no NVML."""
        try:
            shown = tuple(driver.gpus())
            source = "procfs"
        except OSError:
            try:
                shown = tuple(driver.nodes())
            except OSError:
                shown = ()
            source = "nodes"
        if seen.by_nvml and shown and self._kind != "gpus":
            # By files slices are called otherwise: a device that is held would seem to be another one.
            raise OSError(errno.EIO, f"NVML told of slices before, and is not there now: {reason}")
        found = [item for gpu in shown for item in self._by_files(driver, gpu, source)]
        notes = [f"NVML is not used: {reason}"]
        if not shown:
            notes.append(f"{GPUS} and /dev/nvidia0 are not there: no driver is loaded")
        elif not found:
            notes.append(f"the driver shows {len(shown)} GPUs, and no {self._wanted}")
        return _findings(found, notes)

    def _by_nvml(self, driver: Driver, gpu: Gpu) -> Iterator[Found]:
        slices = {(item.gi, item.ci): item for item in gpu.slices}
        base = {
            "uuid": gpu.uuid,
            "gpu_uuid": gpu.uuid,
            "model": gpu.model,
            "memory_mib": "" if gpu.memory_mib is None else str(gpu.memory_mib),
            "mig": "" if gpu.mig is None else "enabled" if gpu.mig else "disabled",
            "source": "nvml",
        }
        yield from self._wanted_of(driver, _Parent(gpu.minor, gpu.address, base), slices)

    def _by_files(self, driver: Driver, gpu: ShownGpu, source: str) -> Iterator[Found]:
        base = {
            "uuid": gpu.uuid,
            "gpu_uuid": gpu.uuid,
            "model": gpu.model,
            "memory_mib": "",
            "mig": "enabled" if gpu.slices else "",
            "source": source,
        }
        yield from self._wanted_of(driver, _Parent(gpu.minor, gpu.address, base), dict.fromkeys(gpu.slices))

    def _wanted_of(
        self, driver: Driver, parent: "_Parent", slices: Mapping[tuple[int, int], Slice | None]
    ) -> Iterator[Found]:
        divided = parent.base["mig"] == "enabled"
        if self._kind == "gpus" or (self._kind == "both" and not divided):
            yield parent.found()
        elif parent.minor is not None:
            for (gi, ci), told in sorted(slices.items(), key=lambda item: item[0]):
                yield parent.slice(driver, gi, ci, told)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """As it was found, with the nodes that it has now; None where the driver does not show it any more.

        NVML is not asked: it may take its time, and the driver's files tell what may have changed.
        """
        driver = Driver(Sysfs(host))
        address = found.attrs["address"]
        shown = driver.gpu(address) if address else None
        if shown is None:
            return None if found.attrs["source"] == "procfs" or not host.exists(found.path) else found
        base = {key: found.attrs[key] for key in _BASE}
        parent = _Parent(shown.minor, address, base)
        if not found.attrs["gi"]:
            now = parent.found()
        else:
            gi, ci = int(found.attrs["gi"]), int(found.attrs["ci"])
            told = None
            if found.attrs["source"] == "nvml":
                memory = int(found.attrs["memory_mib"] or 0)
                told = Slice(found.attrs["uuid"], gi, ci, found.attrs["profile"], memory)
            now = parent.slice(driver, gi, ci, told)
        return replace(now, name=found.name)


_BASE: Final = ("uuid", "gpu_uuid", "model", "memory_mib", "mig", "source")


@dataclass(frozen=True, slots=True)
class _Parent:
    """A GPU, and what it and its slices have in common."""

    minor: int | None
    address: str
    base: dict[str, str]

    @property
    def _name(self) -> str:
        return "" if self.minor is None else f"nvidia{self.minor}"

    def _attrs(self, **own: str) -> dict[str, str]:
        empty = dict.fromkeys(("profile", "slice", "gi", "ci", "gi_minor", "ci_minor"), "")
        minor = "" if self.minor is None else str(self.minor)
        return {**self.base, "minor": minor, "gpu": self._name, "address": self.address, **empty, **own}

    @property
    def _sysfs(self) -> str:
        return f"/sys/bus/pci/devices/{self.address}" if self.address else ""

    @property
    def _path(self) -> str:
        return f"/dev/{self._name}" if self._name else ""

    def found(self) -> Found:
        """The GPU, whole."""
        return Found(
            self.base["uuid"] or self._name,
            self._path,
            self._attrs(),
            nodes=(self._path,) if self._path else (),
            sysfs=self._sysfs,
            claim=f"pci:{self.address}" if self.address else "",
        )

    def slice(self, driver: Driver, gi: int, ci: int, told: Slice | None) -> Found:
        """One of its slices; `told` by NVML, or shown by files alone."""
        label = f"{self._name}/gi{gi}" + (f"/ci{ci}" if ci else "")
        minors = [driver.capability(f"gpu{self.minor}/gi{gi}{more}") for more in ("", f"/ci{ci}")]
        caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors if minor is not None]
        attrs = self._attrs(
            uuid="" if told is None else told.uuid,
            memory_mib="" if told is None else str(told.memory_mib),
            profile="" if told is None else told.profile,
            slice=label,
            gi=str(gi),
            ci=str(ci),
            gi_minor="" if minors[0] is None else str(minors[0]),
            ci_minor="" if minors[1] is None else str(minors[1]),
        )
        name = label if told is None else told.uuid or label
        absent = "" if None not in minors else f"{label}: its numbers in /dev/nvidia-caps are not known"
        nodes = (self._path, *caps)
        claim = f"nvidia:{self.address or self._name}/gi{gi}/ci{ci}"
        return Found(name, self._path, attrs, absent, nodes=nodes, sysfs=self._sysfs, claim=claim)


def _findings(found: Iterable[Found], notes: Sequence[str]) -> Findings:
    ordered = sorted(found, key=lambda item: natural(item.attrs["slice"] or item.attrs["gpu"] or item.name))
    return Findings(tuple(ordered), _FOLLOWED, tuple(notes), _SUBSYSTEMS)
