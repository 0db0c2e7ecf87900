"""Health of a resource's devices by their probes and fault events, with flapping damped.

A device that fails repeatedly is held unhealthy until it has succeeded for a while: whenever it is healthy
for a moment, the kubelet would give it to a pod. No I/O and no clock; times are monotonic seconds.
"""

import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from msgspec import Struct

from plugin.config.plan import ProbePlan, XidCheck
from plugin.devices.device import Device
from plugin.discovery.source import Fault

FALLS: Final = 5
"""Failures within WINDOW that make a device flapping."""
WINDOW: Final = 300.0
SHORTEST_QUIET: Final = 10.0
LONGEST_QUIET: Final = 300.0
"""Seconds without a failure that end flapping: as long as the last FALLS failures took, within bounds."""


class Damper:
    """Detects flapping of one device from its failures and recoveries."""

    __slots__ = ("_falls", "_well", "held", "release_at")

    def __init__(self) -> None:
        self._falls: deque[float] = deque(maxlen=FALLS)
        self._well = True
        self.held = False
        """Whether the device is held unhealthy."""
        self.release_at: float | None = None
        """When `advance` releases the device; None while it fails or is not held."""

    @property
    def span(self) -> float:
        """Seconds between the first and the last remembered failure."""
        return self._falls[-1] - self._falls[0] if self._falls else 0.0

    def fall(self, now: float) -> bool:
        """Record a failure of a well device; returns whether it is held from now on, and was not before."""
        self._well = False
        self._falls.append(now)
        self.release_at = None
        begins = not self.held and len(self._falls) == FALLS and self.span <= WINDOW
        self.held = self.held or begins
        return begins

    def rise(self, now: float) -> None:
        """Record a recovery."""
        if self._well:
            return
        self._well = True
        if self.held:
            self.release_at = now + min(max(self.span, SHORTEST_QUIET), LONGEST_QUIET)

    def advance(self, now: float) -> bool:
        """Release the device if it has not failed for long enough; returns whether that was just now.

        Earlier failures still count: within WINDOW one more failure is enough to hold it again.
        """
        if self.release_at is None or now < self.release_at:
            return False
        self.held = False
        self.release_at = None
        return True

    def idle(self, now: float) -> bool:
        """Whether no failure is recent enough to count."""
        return self.forget_at is None or (not self.held and now >= self.forget_at)

    @property
    def forget_at(self) -> float | None:
        """When the last failure is too old to count; None without a failure."""
        return self._falls[-1] + WINDOW if self._falls else None


LONGEST_REASON: Final = 256
"""Characters of a reason, which is a metric label."""
_NUMBERS: Final = re.compile(r"(?<!status )(?<!\d)\d+(?:\.\d+)?", re.ASCII)
"""Numbers that may vary between equal failures; a program's or an HTTP status is not one of them."""


def concerns(fault: Fault, device: Device) -> bool:
    """Whether `fault` is about `device`."""
    if not fault.subjects:
        return True
    claim = device.found.claim if device.found is not None else ""
    return not fault.subjects.isdisjoint({claim, device.id, device.name, *device.attrs.values()})


class _Memory(Struct):
    """Results of one probe of one device. `well`: None before the first; `quiet_at`: when a fault ends."""

    well: bool | None
    failures: int = 0
    successes: int = 0
    reason: str = ""
    quiet_at: float | None = None


class _Device(Struct):
    """One device. `raw`: the reason by its probes, `reason`: the reason after damping.

    Both are empty for a healthy device, and None until every probe has answered once.
    """

    probes: list[_Memory]
    damper: Damper
    present: bool = True
    raw: str | None = None
    reason: str | None = None
    flapping: str = ""


class HealthTracker:
    """The health of one resource's devices.

    A device is unhealthy while one of its probes is, by the configured numbers of failures and successes in
    a row, and while it is held for flapping.
    """

    def __init__(self, probes: Sequence[ProbePlan]) -> None:
        self._plans = tuple(probes)
        self._devices: dict[str, _Device] = {}
        self._timed: set[str] = set()
        self.flaps = 0
        """How many times a device began to flap."""

    def survey(self, present: Collection[str], now: float) -> None:
        """Set the devices that are present. One that comes back is probed again.

        Recent failures are remembered although the device is gone.
        """
        if not self._plans:
            return
        for device_id in [i for i in self._devices if i not in present]:
            self.left(device_id, now)
        for device_id in present:
            self.arrived(device_id, now)

    def arrived(self, device_id: str, now: float) -> None:
        """Add a device, unless it is present."""
        state = self._devices.get(device_id)
        if not self._plans or (state is not None and state.present):
            return
        damper = Damper() if state is None else state.damper
        flapping = "" if state is None else state.flapping
        self._devices[device_id] = state = _Device(
            [_Memory(True if isinstance(p.check, XidCheck) else p.initial) for p in self._plans],
            damper,
            flapping=flapping,
        )
        for memory, plan in zip(state.probes, self._plans, strict=True):
            if memory.well is False:
                memory.reason = f"{plan.place}: has not succeeded yet"
        self._update(device_id, state, now)

    def left(self, device_id: str, now: float) -> None:
        """Remove a device."""
        state = self._devices.get(device_id)
        if state is None:
            return
        if state.damper.idle(now):
            del self._devices[device_id]
            self._timed.discard(device_id)
        else:
            state.present = False
            state.probes.clear()
            self._update(device_id, state, now)

    def reason(self, device_id: str) -> str | None:
        """Why a device is unhealthy; empty while it is healthy, None before its probes have answered."""
        state = self._devices.get(device_id)
        if state is None or not state.present:
            return None if self._plans else ""
        return state.reason

    def answer(self, device_id: str, probe: int, reason: str, now: float) -> bool:
        """Record the result of probe number `probe`: why it failed, empty for a success.

        Returns whether the device's reason changed. Results for absent devices are ignored.
        """
        state = self._devices.get(device_id)
        if state is None or not state.present:
            return False
        memory, plan = state.probes[probe], self._plans[probe]
        if reason:
            memory.successes = 0
            memory.failures += 1
            if memory.well is not True or memory.failures >= plan.failures:
                text = reason[:LONGEST_REASON]
                if memory.well is not False or not _same_but_numbers(text, memory.reason):
                    memory.reason = text
                memory.well = False
        else:
            memory.failures = 0
            memory.successes += 1
            if memory.well is None or memory.successes >= plan.successes:
                memory.well = True
        return self._update(device_id, state, now)

    def fault(self, device: Device, fault: Fault, now: float) -> bool:
        """Record a fault event of `device`; returns whether the device's reason changed."""
        state = self._devices.get(device.id)
        if state is None or not state.present:
            return False
        for memory, plan in zip(state.probes, self._plans, strict=True):
            if isinstance(plan.check, XidCheck) and fault.code not in plan.check.ignore:
                memory.well = False
                memory.reason = fault.text[:LONGEST_REASON]
                memory.quiet_at = max(now, fault.at) + plan.check.quiet
        return self._update(device.id, state, now)

    def advance(self, now: float) -> tuple[str, ...]:
        """Apply what time alone changes; returns the devices whose reason changed."""
        changed: list[str] = []
        for device_id in sorted(self._timed):
            state = self._devices[device_id]
            if all(now < time for time in _times(state)):
                continue
            for memory in state.probes:
                if memory.quiet_at is not None and now >= memory.quiet_at:
                    memory.quiet_at = None
                    memory.well = True
            if self._update(device_id, state, now):
                changed.append(device_id)
            if not state.present and state.damper.idle(now):
                del self._devices[device_id]
                self._timed.discard(device_id)
        return tuple(changed)

    @property
    def due(self) -> float | None:
        """When `advance` has something to do next; None while there is nothing."""
        return min((t for i in self._timed for t in _times(self._devices[i])), default=None)

    def _update(self, device_id: str, state: _Device, now: float) -> bool:
        """Update the device's reason; returns whether it changed."""
        before = state.reason
        raw = _raw(state) if state.present else None
        if raw and state.raw == "" and state.damper.fall(now):
            self.flaps += 1
            text = f"flapping: failed {FALLS} times within {state.damper.span:.0f} s, the last time: {raw}"
            state.flapping = text[:LONGEST_REASON]
        elif raw == "":
            state.damper.rise(now)
        state.damper.advance(now)
        state.raw = raw
        state.reason = state.flapping if state.damper.held else raw
        if any(True for _ in _times(state)):
            self._timed.add(device_id)
        else:
            self._timed.discard(device_id)
        return state.reason != before


def _same_but_numbers(one: str, other: str) -> bool:
    """Whether two reasons differ in numbers alone, such as a temperature above its limit.

    Each different reason would be a new series of the metric that has it as a label.
    """
    return one == other or _NUMBERS.sub("0", one) == _NUMBERS.sub("0", other)


def _raw(state: _Device) -> str | None:
    """The reason of the first failing probe; None while none fails and one has not answered."""
    failing = next((m.reason for m in state.probes if m.well is False), None)
    if failing is not None:
        return failing
    return None if any(m.well is None for m in state.probes) else ""


def _times(state: _Device) -> Iterator[float]:
    """Times at which the device may change without an event."""
    for memory in state.probes:
        if memory.quiet_at is not None:
            yield memory.quiet_at
    if state.damper.release_at is not None:
        yield state.damper.release_at
    if not state.present and state.damper.forget_at is not None:
        yield state.damper.forget_at
