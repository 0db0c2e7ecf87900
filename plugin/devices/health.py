"""Health with a memory: what the probes of a resource have said of each device, and what follows from it.

No I/O and no clock in here; time is handed in: steady, in seconds.

Flapping damped: a device that fails again and again is held unhealthy until it has been well for a while.

A device that comes and goes is worse than one that is gone: each time it looks well, a pod is sent to it.
"""

import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from plugin.config.plan import ProbePlan, XidCheck
from plugin.devices.device import Device
from plugin.discovery.source import Fault

FALLS: Final = 5
"""Failures within WINDOW that make it flapping."""
WINDOW: Final = 300.0
SHORTEST_QUIET: Final = 10.0
LONGEST_QUIET: Final = 300.0
"""Seconds: it must have been well for as long as its last FALLS failures took, within these bounds."""


class Damper:
    """One device's memory of when it failed. Times are steady, in seconds, and never go back."""

    __slots__ = ("_falls", "_well", "held", "release_at")

    def __init__(self) -> None:
        self._falls: deque[float] = deque(maxlen=FALLS)
        self._well = True
        self.held = False
        """Whether it is held unhealthy, whatever its probes say."""
        self.release_at: float | None = None
        """When `advance` lets it go, if nothing happens before; None while it is failing or not held."""

    @property
    def span(self) -> float:
        """Seconds between the first and the last failure that count."""
        return self._falls[-1] - self._falls[0] if self._falls else 0.0

    def fall(self, now: float) -> bool:
        """It failed. Whether it is held from now on, and was not before."""
        if not self._well:
            return False
        self._well = False
        self._falls.append(now)
        self.release_at = None
        begins = not self.held and len(self._falls) == FALLS and self.span <= WINDOW
        self.held = self.held or begins
        return begins

    def rise(self, now: float) -> None:
        """It is well again."""
        if self._well:
            return
        self._well = True
        if self.held:
            self.release_at = now + min(max(self.span, SHORTEST_QUIET), LONGEST_QUIET)

    def advance(self, now: float) -> bool:
        """Let it go if it has been well for long enough; whether it was let go just now.

        What it did before is not forgotten: within WINDOW one more failure is enough to hold it again.
        """
        if self.release_at is None or now < self.release_at:
            return False
        self.held = False
        self.release_at = None
        return True

    def idle(self, now: float) -> bool:
        """Whether there is nothing worth remembering."""
        return self.forget_at is None or (not self.held and now >= self.forget_at)

    @property
    def forget_at(self) -> float | None:
        """When its last failure is too old to count; None where there was none."""
        return self._falls[-1] + WINDOW if self._falls else None


LONGEST_REASON: Final = 256
"""Characters of a reason; a reason is a label and goes into logs."""
_NUMBERS: Final = re.compile(r"(?<!status )(?<!\d)\d+(?:\.\d+)?", re.ASCII)
"""What wanders; a program's or an answer's status says what is wrong."""


def concerns(fault: Fault, device: Device) -> bool:
    """Whether `fault` is about `device`."""
    if not fault.subjects:
        return True
    claim = device.found.claim if device.found is not None else ""
    return not fault.subjects.isdisjoint({claim, device.id, device.name, *device.attrs.values()})


@dataclass(slots=True)
class _Memory:
    """What one probe has said of one device. `well` None: nothing yet. `quiet_at`: a fault's end."""

    well: bool | None
    failures: int = 0
    successes: int = 0
    reason: str = ""
    quiet_at: float | None = None


@dataclass(slots=True)
class _Device:
    """What is remembered of one device. `raw`: what its probes say, `reason`: what is to be said of it.

    Both are None while some probe has not answered for the first time.
    """

    probes: list[_Memory]
    damper: Damper
    present: bool = True
    raw: str | None = None
    reason: str | None = None
    flapping: str = ""


class Health:
    """The health of one resource's devices by its probes.

    A device is unhealthy while one of its probes is, by the counts in a row that the plan asks for; and
    while it is held for flapping.
    """

    def __init__(self, probes: Sequence[ProbePlan]) -> None:
        self._plans = tuple(probes)
        self._devices: dict[str, _Device] = {}
        self._timed: set[str] = set()
        self.flaps = 0
        """How many times a device was found flapping."""

    def survey(self, present: Collection[str], now: float) -> None:
        """These devices are there and no others. One that comes back is asked anew.

        That it flapped is remembered for a while, whether it stays or goes.
        """
        if not self._plans:
            return
        for device_id in [i for i in self._devices if i not in present]:
            self.left(device_id, now)
        for device_id in present:
            self.arrived(device_id, now)

    def arrived(self, device_id: str, now: float) -> None:
        """The device is there; nothing happens if it was."""
        known = self._devices.get(device_id)
        if not self._plans or (known is not None and known.present):
            return
        damper = Damper() if known is None else known.damper
        flapping = "" if known is None else known.flapping
        self._devices[device_id] = known = _Device(
            [_Memory(True if isinstance(p.check, XidCheck) else p.initial) for p in self._plans],
            damper,
            flapping=flapping,
        )
        for memory, plan in zip(known.probes, self._plans, strict=True):
            if memory.well is False:
                memory.reason = f"{plan.place}: has not been found well yet"
        self._judge(device_id, known, now)

    def left(self, device_id: str, now: float) -> None:
        """The device is not there any more."""
        known = self._devices.get(device_id)
        if known is None:
            return
        if known.damper.idle(now):
            del self._devices[device_id]
            self._timed.discard(device_id)
        else:
            known.present = False
            known.probes.clear()
            self._judge(device_id, known, now)

    def reason(self, device_id: str) -> str | None:
        """Why a device is unhealthy, empty while it is healthy, None while that is not known yet."""
        known = self._devices.get(device_id)
        if known is None or not known.present:
            return None if self._plans else ""
        return known.reason

    def answer(self, device_id: str, probe: int, reason: str, now: float) -> bool:
        """Probe number `probe` has answered: `reason` says why it failed, empty: it did not.

        Returns whether that changed what is to be said of the device. An answer for a device that is not
        there any more means nothing.
        """
        known = self._devices.get(device_id)
        if known is None or not known.present:
            return False
        memory, plan = known.probes[probe], self._plans[probe]
        if reason:
            memory.successes = 0
            memory.failures += 1
            if memory.well is not True or memory.failures >= plan.failures:
                told = reason[:LONGEST_REASON]
                if memory.well is not False or not _alike(told, memory.reason):
                    memory.reason = told
                memory.well = False
        else:
            memory.failures = 0
            memory.successes += 1
            if memory.well is None or memory.successes >= plan.successes:
                memory.well = True
        return self._judge(device_id, known, now)

    def fault(self, device: Device, fault: Fault, now: float) -> bool:
        """Take in a fault that means `device`; returns whether that changed what is to be said of it."""
        known = self._devices.get(device.id)
        if known is None or not known.present:
            return False
        for memory, plan in zip(known.probes, self._plans, strict=True):
            if isinstance(plan.check, XidCheck) and fault.code not in plan.check.ignore:
                memory.well = False
                memory.reason = fault.text[:LONGEST_REASON]
                memory.quiet_at = max(now, fault.at) + plan.check.quiet
        return self._judge(device.id, known, now)

    def advance(self, now: float) -> tuple[str, ...]:
        """Let time pass; returns the devices of which something else is to be said now."""
        changed: list[str] = []
        for device_id in sorted(self._timed):
            known = self._devices[device_id]
            if all(now < time for time in _times(known)):
                continue
            for memory in known.probes:
                if memory.quiet_at is not None and now >= memory.quiet_at:
                    memory.quiet_at = None
                    memory.well = True
            if self._judge(device_id, known, now):
                changed.append(device_id)
            if not known.present and known.damper.idle(now):
                del self._devices[device_id]
                self._timed.discard(device_id)
        return tuple(changed)

    @property
    def due(self) -> float | None:
        """When `advance` has something to do at the earliest; None: when something else happens."""
        return min((t for i in self._timed for t in _times(self._devices[i])), default=None)

    def _judge(self, device_id: str, known: _Device, now: float) -> bool:
        """What is to be said of the device now; whether that is something new."""
        before = known.reason
        raw = _raw(known) if known.present else None
        if raw and known.raw == "" and known.damper.fall(now):
            self.flaps += 1
            told = f"flapping: failed {FALLS} times within {known.damper.span:.0f} s, the last time: {raw}"
            known.flapping = told[:LONGEST_REASON]
        elif raw == "":
            known.damper.rise(now)
        known.damper.advance(now)
        known.raw = raw
        known.reason = known.flapping if known.damper.held else raw
        if any(True for _ in _times(known)):
            self._timed.add(device_id)
        else:
            self._timed.discard(device_id)
        return known.reason != before


def _alike(one: str, other: str) -> bool:
    """Whether two reasons differ in numbers alone: a temperature that wanders above its limit is one failure.

    Told anew each time, it would be a new series of the metric that has the reason for a label.
    """
    return one == other or _NUMBERS.sub("0", one) == _NUMBERS.sub("0", other)


def _raw(known: _Device) -> str | None:
    """The reason of the first probe that fails; None while one has not answered yet and none fails."""
    failing = next((m.reason for m in known.probes if m.well is False), None)
    if failing is not None:
        return failing
    return None if any(m.well is None for m in known.probes) else ""


def _times(known: _Device) -> Iterator[float]:
    """When something about the device changes by time alone."""
    for memory in known.probes:
        if memory.quiet_at is not None:
            yield memory.quiet_at
    if known.damper.release_at is not None:
        yield known.damper.release_at
    if not known.present and known.damper.forget_at is not None:
        yield known.damper.forget_at
