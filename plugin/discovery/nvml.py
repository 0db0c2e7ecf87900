"""NVML by nvidia-ml-py: GPUs, MIG slices, and XID events as faults.

The library is loaded at first use and initialised again after the driver was reloaded. A process has one
`Nvml`, as the library itself has one state. Calls may hang with the driver: make them in a thread.
"""

import ctypes
import importlib
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from msgspec import Struct, field

from plugin.discovery.host import HostRoot
from plugin.discovery.selectors import ADDRESS
from plugin.discovery.source import Fault
from plugin.discovery.sysfs_tree import clean

LIBRARY: Final = "libnvidia-ml.so.1"
PLACES: Final = (
    *(f"/usr/lib/{machine}-linux-gnu" for machine in ("x86_64", "aarch64")),
    *("/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/home/kubernetes/bin/nvidia/lib64"),
    *(f"/run/nvidia/driver/usr/lib/{machine}-linux-gnu" for machine in ("x86_64", "aarch64")),
    "/run/nvidia/driver/usr/lib64",
)
"""Where driver installers put the library: distributions, GKE, NVIDIA's driver container."""
WHOLE: Final = 0xFFFFFFFF
"""The instance number in an event of a whole GPU."""
BUSY: Final = 5.0
"""Seconds that a reset waits for running calls."""

_PROFILE: Final = re.compile(r"\bMIG (\S+)$")
_VOID: Final = ("NVML_ERROR_UNINITIALIZED", "NVML_ERROR_DRIVER_NOT_LOADED")
_LOST: Final = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_UNKNOWN")
_ABSENT: Final = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_NO_PERMISSION")


class Slice(Struct, frozen=True):
    """A MIG compute instance, with its GPU instance `gi`. `profile` is NVIDIA's: `1g.10gb`, `1c.3g.40gb`.

    Without NVML only the numbers are known.
    """

    gi: int
    ci: int
    uuid: str = ""
    profile: str = ""
    memory_mib: int | None = None


class Gpu(Struct, frozen=True):
    """A GPU. `address` is written as by Linux; `mig`: whether MIG mode is on, None if the GPU has none.

    `uuid`, `model` and `address` are empty if the driver's files do not have them.
    """

    minor: int | None
    uuid: str = ""
    model: str = ""
    address: str = ""
    memory_mib: int | None = None
    mig: bool | None = None
    slices: tuple[Slice, ...] = ()


class NvmlMissingError(Exception):
    """NVML cannot be used: no library, no driver or no Python module."""


class NvmlError(Exception):
    """A call of NVML failed.

    `lost`: a reset may help; `void`: nothing works before a reset.
    """

    def __init__(self, text: str, *, lost: bool = False, void: bool = False) -> None:
        super().__init__(text)
        self.lost = lost
        self.void = void


class Nvml:
    """The library. Every method raises NvmlMissingError or NvmlError."""

    def __init__(self, by_loader: Sequence[str] = (LIBRARY,)) -> None:
        self.by_loader = tuple(by_loader)
        """Library names that are first tried with the system's loader."""
        self._module: Any = None
        self._initialised = False
        self._calls = 0
        self._ending = False
        self.generation = 0
        """Counts initialisations; handles and events of an earlier one are invalid."""
        self._state = threading.Condition()

    @contextmanager
    def session(self, host: HostRoot, library: str | None) -> Generator[Any]:
        """The initialised module `pynvml`. A reset waits for open sessions."""
        with self._state:
            self._state.wait_for(lambda: not self._ending, BUSY)
            self._initialise(host, library)
            self._calls += 1
        try:
            yield self._module
        except self._module.NVMLError as error:
            raise self._explained(error) from error
        finally:
            with self._state:
                self._calls -= 1
                self._state.notify_all()

    def reset(self) -> bool:
        """Shut NVML down, so that the next call initialises it; False if calls do not end in time."""
        with self._state:
            # Otherwise the listener for events opens its next session before this thread wakes up.
            self._ending = True
            try:
                if not self._state.wait_for(lambda: self._calls == 0, BUSY):
                    return False
                if self._initialised:
                    self._initialised = False
                    with suppress(self._module.NVMLError):
                        self._module.nvmlShutdown()
                return True
            finally:
                self._ending = False
                self._state.notify_all()

    def gpus(self, host: HostRoot, library: str | None) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
        """(GPUs with their slices, why other GPUs cannot be read)."""
        try:
            gpus, problems = self._read(host, library)
        except NvmlError as error:
            # For example, the driver was reloaded.
            if not error.lost or not self.reset():
                raise
            gpus, problems = self._read(host, library)
        if any(problem.lost for problem in problems):
            self.reset()
        return gpus, tuple(map(str, problems))

    def _read(self, host: HostRoot, library: str | None) -> tuple[tuple[Gpu, ...], list[NvmlError]]:
        gpus: list[Gpu] = []
        problems: list[NvmlError] = []
        with self.session(host, library) as module:
            for index in range(module.nvmlDeviceGetCount()):
                try:
                    gpus.append(self._gpu(module, module.nvmlDeviceGetHandleByIndex(index)))
                except module.NVMLError as error:
                    problems.append(self._explained(error, f"GPU {index}: "))
            if problems and not gpus and all(problem.void for problem in problems):
                raise problems[0]
        return tuple(gpus), problems

    def links(self, host: HostRoot, library: str | None) -> Mapping[str, Mapping[str, int]]:
        """How many NVLinks connect two GPUs, directly or through NVSwitches, by both PCI addresses."""
        ends: dict[str, Counter[str]] = {}
        with self.session(host, library) as module:
            for index in range(module.nvmlDeviceGetCount()):
                with suppress(module.NVMLError):
                    handle = module.nvmlDeviceGetHandleByIndex(index)
                    ends[_address(module.nvmlDeviceGetPciInfo(handle))] = _nvlinks(module, handle)
        return {
            one: {
                other: count
                for other in ends
                if other != one and (count := mine[other] + _through_switches(mine, ends[other], ends))
            }
            for one, mine in ends.items()
        }

    def _initialise(self, host: HostRoot, library: str | None) -> None:
        if self._initialised:
            return
        if self._module is None:
            try:
                self._module = importlib.import_module("pynvml")
            except ImportError:
                raise NvmlMissingError("nvidia-ml-py is not installed") from None
        module = self._module
        if module.nvmlLib is None:
            module.nvmlLib = self._load(host, library)
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            raise NvmlMissingError(str(error)) from None
        self._initialised = True
        self.generation += 1

    def _load(self, host: HostRoot, library: str | None) -> ctypes.CDLL:
        for name in () if library is not None else self.by_loader:
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
        problem = f"{library or LIBRARY} is not there"
        for path in (library,) if library is not None else tuple(f"{place}/{LIBRARY}" for place in PLACES):
            try:
                if host.exists(path):
                    return ctypes.CDLL(str(host.here(host.real(path))))
            except OSError as error:
                problem = f"{path} does not load: {error}"
        raise NvmlMissingError(problem)

    def _explained(self, error: Exception, where: str = "") -> NvmlError:
        value = getattr(error, "value", None)
        void = value in {getattr(self._module, name) for name in _VOID}
        lost = void or value in {getattr(self._module, name) for name in _LOST}
        return NvmlError(f"{where}NVML: {error}", lost=lost, void=void)

    def _gpu(self, module: Any, handle: Any) -> Gpu:
        memory = self._or_none(module, lambda: module.nvmlDeviceGetMemoryInfo(handle).total)
        mode = self._or_none(module, lambda: module.nvmlDeviceGetMigMode(handle)[0])
        return Gpu(
            uuid=clean(module.nvmlDeviceGetUUID(handle)),
            minor=self._or_none(module, lambda: module.nvmlDeviceGetMinorNumber(handle)),
            model=clean(module.nvmlDeviceGetName(handle)),
            address=_address(module.nvmlDeviceGetPciInfo(handle)),
            memory_mib=None if memory is None else memory >> 20,
            mig=None if mode is None else mode == module.NVML_DEVICE_MIG_ENABLE,
            slices=tuple(self._slices(module, handle, memory))
            if mode == module.NVML_DEVICE_MIG_ENABLE
            else (),
        )

    def _slices(self, module: Any, gpu: Any, memory: int | None) -> Iterator[Slice]:
        for index in range(module.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            try:
                handle = module.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            except module.NVMLError_NotFound:
                continue
            attributes = module.nvmlDeviceGetAttributes(handle)
            named = _PROFILE.search(clean(module.nvmlDeviceGetName(handle)))
            yield Slice(
                uuid=clean(module.nvmlDeviceGetUUID(handle)),
                gi=module.nvmlDeviceGetGpuInstanceId(handle),
                ci=module.nvmlDeviceGetComputeInstanceId(handle),
                profile=named[1] if named is not None else profile_of(attributes, memory),
                memory_mib=attributes.memorySizeMB,
            )

    @staticmethod
    def _or_none(module: Any, read: Callable[[], int]) -> int | None:
        """The value, or None if this GPU does not support it."""
        try:
            return read()
        except module.NVMLError as error:
            if error.value in {getattr(module, name) for name in _ABSENT}:
                return None
            raise


def _address(information: Any) -> str:
    text = information.busId
    return linux_address(text.decode(errors="replace") if isinstance(text, bytes) else text)


def _nvlinks(module: Any, handle: Any) -> Counter[str]:
    """The active NVLinks of a GPU by the PCI address of their other end: a GPU or an NVSwitch."""
    found: Counter[str] = Counter()
    for link in range(module.NVML_NVLINK_MAX_LINKS):
        try:
            if module.nvmlDeviceGetNvLinkState(handle, link) == module.NVML_FEATURE_ENABLED:
                found[_address(module.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))] += 1
        except module.NVMLError:  # fewer links, or none at all
            break
    return found


def _through_switches(one: Counter[str], other: Counter[str], gpus: Mapping[str, object]) -> int:
    return sum(count for end, count in (one & other).items() if end and end not in gpus)


def linux_address(text: str) -> str:
    """NVML's PCI address `00000000:3B:00.0` as Linux writes it; empty for anything else."""
    domain, _, rest = text.strip().lower().partition(":")
    address = f"{domain.lstrip('0').zfill(4)}:{rest}"
    return address if ADDRESS.fullmatch(address) else ""


def profile_of(attributes: Any, memory: int | None) -> str:
    """The profile of a slice whose name does not have it, in NVIDIA's notation.

    The memory is rounded up to eighths of the GPU's memory, in GiB.
    """
    gi, ci = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    gib = attributes.memorySizeMB / 1024
    if memory:
        eighths = -(-8 * (attributes.memorySizeMB << 20) // memory)
        gib = eighths / 8 * -(-memory // (1 << 30))
    return f"{'' if ci == gi else f'{ci}c.'}{gi}g.{int(gib + 0.5)}gb"


NVML: Final = Nvml()
"""The only one of a process."""


WAIT: Final = 0.5
"""Seconds of one wait for an event."""
RENEW: Final = 30.0
"""Seconds between registrations of new GPUs."""
RETRY: Final = 5.0
"""Seconds between attempts while NVML fails."""

_MEANINGS: Final[Mapping[int, str]] = {
    48: "double-bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "row remapping or page retirement",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    154: "GPU recovery action changed",
}
"""A summary of NVIDIA's catalogue of XID errors."""


class NvidiaEvents:
    """Receives the XID events of all GPUs of the host."""

    def __init__(
        self,
        host: HostRoot,
        library: str | None = None,
        nvml: Nvml = NVML,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._library = library
        self._nvml = nvml
        self._monotonic = monotonic

    def listen(
        self, report: Callable[[Fault], None], state: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Report faults until `stop` is set; retry whenever NVML or the driver fails."""
        while not stop.is_set():
            try:
                self._listen(report, state, stop)
            except NvmlMissingError as error:
                state(f"no XID events: {error}")
                stop.wait(RETRY)
            except NvmlError as error:
                state(f"no XID events: {error}")
                if error.lost:
                    self._nvml.reset()
                stop.wait(RETRY)

    def _listen(
        self, report: Callable[[Fault], None], state: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Report faults until `stop` is set, or NVML or the driver fails."""
        events: _EventSet | None = None
        while not stop.is_set():
            # One session for each wait, so that a reset is possible between two waits.
            with self._nvml.session(self._host, self._library) as module:
                if events is None or events.generation != self._nvml.generation:
                    events = _EventSet(module.nvmlEventSetCreate(), self._nvml.generation)
                now = self._monotonic()
                if now >= events.renew_at:
                    events.renew_at = now + RENEW
                    problems = _register(module, events)
                    state("" if events.gpus else f"no XID events: {'; '.join(problems) or 'there is no GPU'}")
                fault = self._wait(module, events.handle)
            if fault is not None:
                report(fault)
        if events is not None and events.generation == self._nvml.generation:
            with self._nvml.session(self._host, self._library) as module:
                module.nvmlEventSetFree(events.handle)

    def _wait(self, module: Any, handle: Any) -> Fault | None:
        """The next XID event; None after `WAIT` seconds without one."""
        try:
            data = module.nvmlEventSetWait_v2(handle, int(WAIT * 1000))
        except module.NVMLError_Timeout:
            return None
        if data.eventType != module.nvmlEventTypeXidCriticalError:
            return None
        code = int(data.eventData)
        meaning = f" ({_MEANINGS[code]})" if code in _MEANINGS else ""
        return Fault(_subjects(module, data), code, f"XID {code}{meaning}", self._monotonic())


class _EventSet(Struct):
    """NVML's set of events of one generation, and the UUIDs of the registered GPUs."""

    handle: Any
    generation: int
    gpus: set[str] = field(default_factory=set)
    renew_at: float = float("-inf")


def _register(module: Any, events: _EventSet) -> list[str]:
    """Register new GPUs in the set. Returns why some cannot be registered."""
    problems: list[str] = []
    for index in range(module.nvmlDeviceGetCount()):
        try:
            handle = module.nvmlDeviceGetHandleByIndex(index)
            uuid = module.nvmlDeviceGetUUID(handle)
            if uuid in events.gpus:
                continue
            wanted = module.nvmlDeviceGetSupportedEventTypes(handle) & module.nvmlEventTypeXidCriticalError
            if wanted:
                module.nvmlDeviceRegisterEvents(handle, wanted, events.handle)
                events.gpus.add(uuid)
            else:
                problems.append(f"GPU {index} has none")
        except module.NVMLError as error:
            problems.append(f"GPU {index}: {error}")
    return problems


def _subjects(module: Any, data: Any) -> frozenset[str]:
    """The UUID of the slice or GPU of an event; an empty set, meaning all, if it cannot be read."""
    try:
        if WHOLE not in {data.gpuInstanceId, data.computeInstanceId}:
            for index in range(module.nvmlDeviceGetMaxMigDeviceCount(data.device)):
                try:
                    handle = module.nvmlDeviceGetMigDeviceHandleByIndex(data.device, index)
                except module.NVMLError_NotFound:
                    continue
                gi, ci = (
                    module.nvmlDeviceGetGpuInstanceId(handle),
                    module.nvmlDeviceGetComputeInstanceId(handle),
                )
                if (gi, ci) == (data.gpuInstanceId, data.computeInstanceId):
                    return frozenset({clean(module.nvmlDeviceGetUUID(handle))})
        return frozenset({clean(module.nvmlDeviceGetUUID(data.device))})
    except module.NVMLError:
        return frozenset()
