"""NVIDIA's XID events by NVML, as faults of the GPUs and MIG slices that they are about."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from plugin.core.health import Fault
from plugin.discovery.host import HostRoot
from plugin.discovery.nvml import NVML, WHOLE, Nvml, NvmlError, NvmlMissingError
from plugin.discovery.sysfs import clean

WAIT: Final = 0.5
"""Seconds for which an event is waited for before anything else is looked at."""
RENEW: Final = 30.0
"""Seconds after which GPUs are counted again: one may have come, and must be listened to."""
RETRY: Final = 5.0
"""Seconds between attempts while there is nothing to listen to."""

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
"""What NVIDIA's catalogue of XID errors says, in a few words."""


class NvidiaEvents:
    """Listens to all GPUs of the host, for the whole process."""

    def __init__(
        self,
        host: HostRoot,
        library: str | None = None,
        nvml: Nvml = NVML,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._library = library
        self._nvml = nvml
        self._steady = steady

    def listen(
        self, tell: Callable[[Fault], None], say: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Tell faults until `stop` is set; beginning again whenever NVML or the driver fails."""
        while not stop.is_set():
            try:
                self._listen(tell, say, stop)
            except NvmlMissingError as error:
                say(f"no XID events: {error}")
                stop.wait(RETRY)
            except NvmlError as error:
                say(f"no XID events: {error}")
                if error.lost:
                    self._nvml.reset()
                stop.wait(RETRY)

    def _listen(
        self, tell: Callable[[Fault], None], say: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Listen until `stop` is set, or NVML or the driver fails."""
        heard: _Heard | None = None
        while not stop.is_set():
            # Not in one session throughout: NVML must be free to be begun anew between two waits.
            with self._nvml.session(self._host, self._library) as module:
                if heard is None or heard.generation != self._nvml.generation:
                    heard = _Heard(module.nvmlEventSetCreate(), self._nvml.generation)
                now = self._steady()
                if now >= heard.renew_at:
                    heard.renew_at = now + RENEW
                    problems = _register(module, heard)
                    say("" if heard.gpus else f"no XID events: {'; '.join(problems) or 'there is no GPU'}")
                fault = self._wait(module, heard.events)
            if fault is not None:
                tell(fault)
        if heard is not None and heard.generation == self._nvml.generation:
            with self._nvml.session(self._host, self._library) as module:
                module.nvmlEventSetFree(heard.events)

    def _wait(self, module: Any, events: Any) -> Fault | None:
        """The next event, if it is an XID; None where none comes for a while."""
        try:
            data = module.nvmlEventSetWait_v2(events, int(WAIT * 1000))
        except module.NVMLError_Timeout:
            return None
        if data.eventType != module.nvmlEventTypeXidCriticalError:
            return None
        code = int(data.eventData)
        meaning = f" ({_MEANINGS[code]})" if code in _MEANINGS else ""
        return Fault(_subjects(module, data), code, f"XID {code}{meaning}", self._steady())


@dataclass(slots=True)
class _Heard:
    """What is listened to: a set of events, of one beginning of NVML, and the GPUs that are in it."""

    events: Any
    generation: int
    gpus: set[str] = field(default_factory=set)
    renew_at: float = float("-inf")


def _register(module: Any, heard: _Heard) -> list[str]:
    """Put the GPUs that are not in it yet into the set; returns why some cannot be."""
    problems: list[str] = []
    for index in range(module.nvmlDeviceGetCount()):
        try:
            handle = module.nvmlDeviceGetHandleByIndex(index)
            uuid = module.nvmlDeviceGetUUID(handle)
            if uuid in heard.gpus:
                continue
            wanted = module.nvmlDeviceGetSupportedEventTypes(handle) & module.nvmlEventTypeXidCriticalError
            if wanted:
                module.nvmlDeviceRegisterEvents(handle, wanted, heard.events)
                heard.gpus.add(uuid)
            else:
                problems.append(f"GPU {index} tells none")
        except module.NVMLError as error:
            problems.append(f"GPU {index}: {error}")
    return problems


def _subjects(module: Any, data: Any) -> frozenset[str]:
    """The UUID of the slice that an event is about, or of its GPU; nothing, for all, if neither is told."""
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
