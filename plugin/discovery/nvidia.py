"""The source `nvidia`: GPUs and MIG slices by NVML, or by the driver's files in /proc and /dev."""

import errno
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Literal

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from plugin.discovery.host import HostRoot
from plugin.discovery.nvml import NVML, Gpu, NvidiaEvents, Nvml, NvmlError, NvmlMissingError, Slice
from plugin.discovery.selectors import ADDRESS
from plugin.discovery.source import (
    Candidates,
    FaultSource,
    Findings,
    Found,
    NotSelected,
    Scanner,
    Shared,
    SharedState,
    SourceConfig,
)
from plugin.discovery.sysfs_tree import SysfsTree, clean
from plugin.fields import HostPath
from plugin.names import in_order, natural

GPUS: Final = "/proc/driver/nvidia/gpus"
CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"
MIG_MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
MAX_MINORS: Final = 1 << 20
"""Bytes of the table of capabilities, which has four thousand lines."""

_NVLINK: Final = 40
"""The strength of one NVLink, about that of an XGMI hop."""
_NODE: Final = re.compile(r"nvidia(\d{1,4})", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,4}", re.ASCII)
_MINOR: Final = re.compile(r"DeviceFileMinor:\s*(\d{1,7})", re.ASCII)
_UUID: Final = re.compile(r"GPU-[0-9a-fA-F-]{8,64}")
_BASE: Final = ("uuid", "gpu_uuid", "model", "memory_mib", "mig", "source")
_OF_SLICE: Final = ("profile", "slice", "gi", "ci", "gi_minor", "ci_minor")


class Nvidia(SourceConfig, frozen=True):
    """NVIDIA GPUs or their MIG slices, by NVML if its library is there, otherwise by the driver's files.

    NVML needs the extra `nvidia` and `libnvidia-ml.so.1`. Without it, /proc/driver/nvidia shows the GPUs, and
    slices without UUIDs and profiles; without that too, /dev/nvidia0 and so on show the GPUs.

    Named after the UUID, or else `nvidia0`, `nvidia0/gi1` (a slice), `nvidia0/gi1/ci2` (a further compute
    instance).

    Attributes: `uuid`, `minor` (of /dev/nvidiaN), `gpu` (`nvidia0`), `gpu_uuid` (of a slice, its parent's),
    `model`, `address` (PCI), `memory_mib`; `mig` (`enabled`, `disabled`); of a slice `profile` (`1g.10gb`),
    `slice` (`nvidia0/gi1`), `gi`, `ci`, and `gi_minor` and `ci_minor` of its nodes in /dev/nvidia-caps;
    `source` (nvml, procfs or nodes).

    Nodes: /dev/nvidiaN; for a slice also its two in /dev/nvidia-caps.
    """

    reports_faults: ClassVar[bool] = True

    kind: Literal["gpus", "slices", "both"] = "gpus"
    """Whole GPUs; MIG slices; or slices of GPUs in MIG mode and other GPUs whole."""
    library: HostPath | UnsetType = UNSET
    """NVML's library, a host path; by default where the loader and driver installers put it."""

    def scanner(self) -> Scanner:
        return NvidiaScanner(self)

    def attributes(self) -> frozenset[str]:
        return frozenset({*_BASE, "minor", "gpu", "address", *_OF_SLICE})

    def host_paths(self) -> Iterable[str]:
        return ("/dev", "/sys/bus", "/proc/driver")

    def links(self, host: HostRoot) -> Mapping[str, Mapping[str, int]]:
        try:
            found = NVML.links(host, None if self.library is UNSET else self.library)
        except (NvmlMissingError, NvmlError):
            return {}
        return {
            f"pci:{one}": {f"pci:{other}": _NVLINK * count for other, count in others.items()}
            for one, others in found.items()
        }

    def fault_source(self, host: HostRoot) -> FaultSource:
        return NvidiaEvents(host, None if self.library is UNSET else self.library)


class DriverFiles(Struct):
    """The driver's files during one scan."""

    sysfs: SysfsTree
    _table: Mapping[str, int] | None = field(default=None)

    def gpus(self) -> Iterator[Gpu]:
        """The GPUs in /proc, by their minor numbers. Raises OSError if the directory cannot be read."""
        shown = [gpu for name in self.sysfs.names(GPUS) if (gpu := self.gpu(name)) is not None]
        yield from sorted(shown, key=lambda gpu: gpu.minor or 0)

    def gpu(self, address: str) -> Gpu | None:
        """The GPU at a PCI address; None if it is not there or excluded."""
        try:
            text = self.sysfs.read(f"{GPUS}/{address}/information") if ADDRESS.fullmatch(address) else ""
        except OSError:
            return None
        values: dict[str, str] = {}
        for line in text.splitlines():
            key, _, value = line.partition(":")
            values[key.strip()] = clean(value)
        minor = values.get("Device Minor", "")
        if "Yes" in {values.get("GPU Excluded"), values.get("Blacklisted")} or not _NUMBER.fullmatch(minor):
            return None
        # Before the first use of a GPU, its UUID is all question marks.
        uuid = values.get("GPU UUID", "")
        known = uuid if _UUID.fullmatch(uuid) else ""
        return self._gpu(int(minor), known, values.get("Model", ""), address)

    def nodes(self) -> Iterator[Gpu]:
        """The GPUs with a node in /dev. Raises OSError."""
        for name in in_order(self.sysfs.names("/dev")):
            found = _NODE.fullmatch(name)
            if found is not None:
                yield self._gpu(int(found[1]))

    def _gpu(self, minor: int, uuid: str = "", model: str = "", address: str = "") -> Gpu:
        base = f"{CAPABILITIES}/gpu{minor}/mig"
        slices = tuple(
            Slice(gi, ci)
            for gi in self._numbered(base, "gi")
            for ci in self._numbered(f"{base}/gi{gi}", "ci")
        )
        return Gpu(minor, uuid, model, address, mig=True if slices else None, slices=slices)

    def _numbered(self, directory: str, prefix: str) -> list[int]:
        try:
            names = self.sysfs.names(directory)
        except OSError:
            return []
        numbers = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return sorted(int(number) for number in numbers if number.isdecimal() and len(number) < 5)

    def capability(self, name: str) -> int | None:
        """The minor number in /dev/nvidia-caps of the capability `gpu0/gi1` or `gpu0/gi1/ci0`."""
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


_LastScan = Shared[dict[str, Found]]
"""The devices of the last scan with NVML, by name; none if there was none."""

_STATE: Final[SharedState[dict[str, Found]]] = SharedState(dict)


class NvidiaScanner:
    """Scans for GPUs or slices."""

    def __init__(self, config: Nvidia, nvml: Nvml = NVML) -> None:
        self._kind = config.kind
        self._library = None if config.library is UNSET else config.library
        self._nvml = nvml
        self._seen: _LastScan | None = None

    def scan(self, host: HostRoot) -> Findings:
        """The GPUs or slices. Raises OSError if NVML worked before and fails now."""
        self._seen = seen = _STATE.of(host, (self._kind, self._library))
        driver = DriverFiles(SysfsTree(host))
        try:
            gpus, problems = self._nvml.gpus(host, self._library)
        except NvmlMissingError as error:
            return self._by_driver(driver, seen, str(error))
        except NvmlError as error:
            raise OSError(errno.EIO, str(error)) from error
        found = {item.name: item for gpu in gpus for item in self._devices(driver, gpu, "nvml")}
        with seen.lock:
            before = seen.value
            if problems:
                # NVML counts a lost GPU but cannot name it: it keeps its last name.
                reason = "; ".join(problems)
                for name in before.keys() - found.keys():
                    found[name] = replace(before[name], absent=reason)
            seen.value = found
        notes = problems or (() if found else (f"NVML has {len(gpus)} GPUs, and no {self._wanted}",))
        return _findings(found.values(), notes, self._others(gpus))

    def _others(self, gpus: Iterable[Gpu]) -> NotSelected:
        """The slices, or the GPUs without slices, that `kind` does not select."""
        others = Candidates()
        for gpu in gpus:
            parent = _Parent(gpu.minor, gpu.address, {"uuid": gpu.uuid})
            if self._kind == "gpus":
                for part in gpu.slices:
                    others.add(part.uuid or parent.label(part), "kind: found a MIG slice, expected a GPU")
            elif not gpu.slices and (self._kind == "slices" or gpu.mig):
                others.add(gpu.uuid or parent.name, "kind: found a GPU without MIG slices, expected slices")
        return others.not_selected

    @property
    def _wanted(self) -> str:
        return {"gpus": "GPU", "slices": "MIG slice", "both": "GPU and no MIG slice"}[self._kind]

    def _by_driver(self, driver: DriverFiles, seen: _LastScan, reason: str) -> Findings:
        """The devices by the driver's files, without NVML."""
        try:
            shown = tuple(driver.gpus())
            source, none = "procfs", f"{GPUS} shows no GPU that the driver offers"
        except OSError as error:
            none = f"{GPUS} and /dev/nvidia0 are not there: no driver is loaded"
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                none = f"{GPUS} cannot be read ({error.strerror}), and /dev/nvidia0 is not there"
            try:
                shown = tuple(driver.nodes())
            except OSError:
                shown = ()
            source = "nodes"
        if seen.value and shown and self._kind != "gpus":
            # The files name slices differently: a held device would change its id.
            raise OSError(errno.EIO, f"NVML named the slices before, and is not there now: {reason}")
        found = [item for gpu in shown for item in self._devices(driver, gpu, source)]
        notes = [f"NVML is not used: {reason}"]
        if not shown:
            notes.append(none)
        elif not found:
            notes.append(f"the driver shows {len(shown)} GPUs, and no {self._wanted}")
        return _findings(found, notes, self._others(shown))

    def _devices(self, driver: DriverFiles, gpu: Gpu, source: str) -> Iterator[Found]:
        """The GPU, or its slices. `source`: the attribute, where the GPU was read."""
        base = {
            "uuid": gpu.uuid,
            "gpu_uuid": gpu.uuid,
            "model": gpu.model,
            "memory_mib": _text(gpu.memory_mib),
            "mig": "" if gpu.mig is None else "enabled" if gpu.mig else "disabled",
            "source": source,
        }
        parent = _Parent(gpu.minor, gpu.address, base)
        if self._kind == "gpus" or (self._kind == "both" and not gpu.mig):
            yield parent.found()
        elif gpu.minor is not None:
            for part in sorted(gpu.slices, key=lambda part: (part.gi, part.ci)):
                yield parent.slice(driver, part)

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The device with its current nodes, by the driver's files; None if it is gone.

        NVML may be slow, and everything that can change is in the files.
        """
        driver = DriverFiles(SysfsTree(host))
        address = found.attrs["address"]
        shown = driver.gpu(address) if address else None
        if shown is None:
            return None if found.attrs["source"] == "procfs" or not host.exists(found.path) else found
        base = {key: found.attrs[key] for key in _BASE}
        parent = _Parent(shown.minor, address, base)
        if not found.attrs["gi"]:
            now = parent.found()
        else:
            attrs = found.attrs
            memory = int(attrs["memory_mib"]) if attrs["memory_mib"] else None
            part = Slice(int(attrs["gi"]), int(attrs["ci"]), attrs["uuid"], attrs["profile"], memory)
            now = parent.slice(driver, part)
        return replace(now, name=found.name)


class _Parent(Struct, frozen=True):
    """A GPU, and the attributes that it shares with its slices."""

    minor: int | None
    address: str
    base: dict[str, str]

    @property
    def name(self) -> str:
        """`nvidia0`; empty if its number is unknown."""
        return "" if self.minor is None else f"nvidia{self.minor}"

    def _attrs(self, **own: str) -> dict[str, str]:
        empty = dict.fromkeys(_OF_SLICE, "")
        return {
            **self.base,
            "minor": _text(self.minor),
            "gpu": self.name,
            "address": self.address,
            **empty,
            **own,
        }

    @property
    def _sysfs(self) -> str:
        return f"/sys/bus/pci/devices/{self.address}" if self.address else ""

    @property
    def _path(self) -> str:
        return f"/dev/{self.name}" if self.name else ""

    def label(self, part: Slice) -> str:
        """`nvidia0/gi1`, `nvidia0/gi1/ci2`."""
        return f"{self.name}/gi{part.gi}" + (f"/ci{part.ci}" if part.ci else "")

    def found(self) -> Found:
        """The whole GPU."""
        return Found(
            self.base["uuid"] or self.name,
            self._path,
            self._attrs(),
            nodes=(self._path,) if self._path else (),
            sysfs=self._sysfs,
            claim=f"pci:{self.address}" if self.address else "",
        )

    def slice(self, driver: DriverFiles, part: Slice) -> Found:
        """One of its slices, named after the UUID if NVML gives one."""
        label = self.label(part)
        minors = [driver.capability(f"gpu{self.minor}/gi{part.gi}{more}") for more in ("", f"/ci{part.ci}")]
        caps = [f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in minors if minor is not None]
        attrs = self._attrs(
            uuid=part.uuid,
            memory_mib=_text(part.memory_mib),
            profile=part.profile,
            slice=label,
            gi=str(part.gi),
            ci=str(part.ci),
            gi_minor=_text(minors[0]),
            ci_minor=_text(minors[1]),
        )
        absent = "" if None not in minors else f"{label}: its numbers in /dev/nvidia-caps are not known"
        nodes = (self._path, *caps)
        claim = f"nvidia:{self.address or self.name}/gi{part.gi}/ci{part.ci}"
        return Found(
            part.uuid or label, self._path, attrs, absent, nodes=nodes, sysfs=self._sysfs, claim=claim
        )


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _findings(found: Iterable[Found], notes: Sequence[str], others: NotSelected) -> Findings:
    ordered = sorted(found, key=lambda item: natural(item.attrs["slice"] or item.attrs["gpu"] or item.name))
    return Findings(tuple(ordered), _FOLLOWED, tuple(notes), _SUBSYSTEMS, not_selected=others)
