"""What can be made to go wrong, and the gate that every answer passes."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import grpc

GARBAGE: Final = b"\xff\xff\xff\xffnot a protocol buffer"
"""Decodes as nothing."""
OVERSIZED: Final = bytes(17 << 20)
"""More than the 16 MiB that clients of PodResources let in."""


@dataclass(frozen=True, slots=True)
class RegistrationFaults:
    """What goes wrong with device plugins' Registration. As in Faults."""

    slow: float = 0.0
    hang: bool = False
    gone: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong with PodResources; all at once if wished.

    `slow`: seconds before each answer. `hang`: calls are taken and not answered until it is over.
    `rate_limited`: 1 refuses every call as if another caller used the limit up, n every n-th call.
    `garbage`: answers that do not decode. `oversized`: answers of 17 MiB. `twice`: List and
    GetAllocatableResources name every device twice. `forgets`: pods (NAMESPACE/NAME) that List leaves out
    although they run. `gone`: no socket. `error`: a gRPC status code's name (UNAVAILABLE) that every call
    fails with. `methods`: only these are struck; empty: all of them.
    """

    slow: float = 0.0
    hang: bool = False
    rate_limited: int = 0
    garbage: bool = False
    oversized: bool = False
    twice: bool = False
    forgets: tuple[str, ...] = ()
    gone: bool = False
    error: str = ""
    methods: tuple[str, ...] = ()
    registration: RegistrationFaults = field(default_factory=RegistrationFaults)

    def __post_init__(self) -> None:
        for code in (self.error, self.registration.error):
            if code and code not in grpc.StatusCode.__members__:
                known = ", ".join(sorted(grpc.StatusCode.__members__))
                raise ValueError(f"error: found {code!r}, expected one of {known}")
        if self.slow < 0 or self.registration.slow < 0 or self.rate_limited < 0:
            raise ValueError("slow and rate_limited: expected no less than 0")


NO_FAULTS: Final = Faults()


class Gate:
    """Holds the present faults and lets calls wait for their end."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._changed = asyncio.Event()
        self._calls = 0

    @property
    def faults(self) -> Faults:
        """The present faults."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._changed.set()
        self._changed = asyncio.Event()

    def of(self, method: str) -> Faults:
        """The present faults, if they strike `method`."""
        return self._faults if _struck(self._faults, method) else NO_FAULTS

    def used_up(self, method: str) -> bool:
        """Whether another client has used up the rate limit for this call."""
        faults = self._faults
        if not faults.rate_limited or not _struck(faults, method):
            return False
        self._calls += 1
        return self._calls % faults.rate_limited == 0

    async def answer(self, method: str) -> bytes | grpc.StatusCode | None:
        """Wait as long as the faults want; then what to answer instead of the truth, or None."""
        while self._faults.hang and _struck(self._faults, method):
            await self._changed.wait()
        faults = self._faults
        if not _struck(faults, method):
            return None
        await asyncio.sleep(faults.slow)
        if faults.error:
            return grpc.StatusCode[faults.error]
        if faults.oversized:
            return OVERSIZED
        return GARBAGE if faults.garbage else None

    async def registration(self) -> grpc.StatusCode | None:
        """The same for Register."""
        while self._faults.registration.hang:
            await self._changed.wait()
        faults = self._faults.registration
        await asyncio.sleep(faults.slow)
        return grpc.StatusCode[faults.error] if faults.error else None


def _struck(faults: Faults, method: str) -> bool:
    return not faults.methods or method in faults.methods
