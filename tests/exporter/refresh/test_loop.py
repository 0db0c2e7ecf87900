"""exporter.refresh.loop with a scripted kubelet: when List is called, and what becomes of its answers."""

# Tests read the times and the pacer.
# pyright: reportPrivateUsage=false

import asyncio
import itertools
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from exporter.mapping import anomaly_tracker, restart_guard
from exporter.mapping.dra import (
    NO_DRA,
    AllocatedDevice,
    Claim,
    ClaimName,
    DraView,
    PublishedName,
    SourceStatus,
)
from exporter.mapping.holdings import HoldingChanges
from exporter.mapping.identity import PodIdentity, PodRegistry, PodView, Poll
from exporter.mapping.model import Snapshot
from exporter.mapping.snapshot import SnapshotBuilder
from exporter.mapping.state import Freshness, State, StateStore
from exporter.refresh import pipeline, triggers
from exporter.refresh.loop import Refresher
from exporter.refresh.pipeline import SnapshotPipeline
from exporter.refresh.protocols import Phase, Trigger
from exporter.refresh.triggers import RefreshTiming
from harness import answers
from kubelet.podresources import KubeletError, Raw
from runtime.clock import Clock

LIMIT = 20.0
"""Longest wait for a condition, in seconds."""
LONG = 3600.0
"""An interval that plays no part in a test."""


@pytest.fixture(autouse=True)
def _log_from_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "devicelens")


def _listed(**held: str) -> bytes:
    """A List answer: device id → pod."""
    return answers.listed(*(answers.pod(pod, device) for device, pod in held.items())).SerializeToString()


def _offered(*ids: str) -> bytes:
    return answers.offered(*ids).SerializeToString()


UNAVAILABLE = KubeletError("List", "UNAVAILABLE", "the kubelet is not up")


async def _nothing() -> None:
    return


@dataclass
class Kubelet:
    """A KubeletSource that answers as its fields say, and records its calls."""

    listed: bytes = field(default_factory=lambda: _listed(a="p"))
    offered: bytes | KubeletError = field(default_factory=lambda: _offered("a", "b"))
    error: Exception | None = None
    errors: list[Exception] = field(default_factory=list[Exception])
    """Errors of the next calls, one after the other."""
    reset_error: Exception | None = None
    notes: tuple[str, ...] = ()
    socket_age: float | None = None
    before: Callable[[], Awaitable[object]] = _nothing
    calls: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])
    resets: int = 0
    at_once: int = 0

    async def fetch_raw(self, *, allocatable: bool) -> Raw:
        self.calls.append((asyncio.get_running_loop().time(), allocatable))
        self.at_once += 1
        assert self.at_once == 1
        try:
            await self.before()
            error = self.errors.pop(0) if self.errors else self.error
            if error is not None:
                raise error
            failed = self.offered if allocatable and isinstance(self.offered, KubeletError) else None
            offered = self.offered if allocatable and isinstance(self.offered, bytes) else None
            return Raw(self.listed, offered, allocatable, "v1", self.notes, failed, self.socket_age)
        finally:
            self.at_once -= 1

    async def reset(self) -> None:
        self.resets += 1
        if self.reset_error is not None:
            raise self.reset_error

    @property
    def full(self) -> list[bool]:
        """For each call, whether GetAllocatableResources was called too."""
        return [allocatable for _, allocatable in self.calls]


@dataclass
class Pods:
    """A PodSource whose registry the test writes."""

    name = "test"

    registry: PodRegistry = field(default_factory=PodRegistry)
    polls: list[tuple[State, Poll]] = field(default_factory=list[tuple[State, Poll]])

    @property
    def view(self) -> PodView:
        return self.registry.view

    def polled(self, state: State, poll: Poll) -> None:
        self.polls.append((state, poll))

    def confirm(self) -> None:
        """Record that a list requested now contains all pods."""
        self.registry.confirm(asyncio.get_running_loop().time())


class Running:
    """A refresh loop with a kubelet; also its Observer, which records the calls."""

    def __init__(self, kubelet: Kubelet, clock: Clock, timing: RefreshTiming, **sources: Any) -> None:
        self.kubelet, self.clock, self.states = kubelet, clock, StateStore()
        self.refreshes: list[tuple[Trigger, ...]] = []
        self.seconds: list[float] = []
        self.failures: Counter[tuple[str, str]] = Counter()
        self.steps: list[tuple[State, HoldingChanges]] = []
        self.rereads = 0
        self.observer_error: Exception | None = None
        parts = SnapshotPipeline(keep_allocatable=timing.stale_after)
        self.refresher = Refresher(kubelet, self.states, [self], parts, timing=timing, clock=clock, **sources)
        self.task = asyncio.create_task(self.refresher.run())

    def reread(self) -> None:
        self.rereads += 1

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        self.seconds.append(seconds)
        self.refreshes.append(tuple(triggers))

    def failed(self, method: str, code: str) -> None:
        self.failures[method, code] += 1

    def changed(self, state: State, step: HoldingChanges) -> None:
        self.steps.append((state, step))
        if self.observer_error is not None:
            raise self.observer_error

    @property
    def state(self) -> State:
        return self.states.state

    def freshness(self) -> Freshness:
        return self.state.freshness(self.clock.now(), self.refresher._timing.stale_after)

    @property
    def owners(self) -> dict[str, list[str]]:
        return {one.key.device: [who.pod for who in one.holders] for one in self.state.snapshot.devices}

    @property
    def uids(self) -> dict[str, list[str]]:
        devices = self.state.snapshot.devices
        return {one.key.device: [who.pod_uid for who in one.holders] for one in devices if one.holders}

    @property
    def anomalies(self) -> list[str]:
        return [anomaly.kind for anomaly in self.state.anomalies]

    @property
    def error(self) -> tuple[str, str, str] | None:
        failure = self.state.failure
        return None if failure is None else (failure.method, failure.code, failure.message)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not condition():
                assert not self.task.done(), self.task
                await asyncio.sleep(0.0005)

    async def wait_for(self, times: int = 1) -> None:
        """Wait for so many refreshes from now."""
        wanted = len(self.refreshes) + times
        await self.until(lambda: len(self.refreshes) >= wanted)

    async def trigger(self, *causes: Trigger) -> None:
        """Trigger, and wait for the next refresh."""
        for cause in causes:
            self.refresher.trigger(cause)
        await self.wait_for()

    async def allocate(self, **held: str) -> None:
        """Change the answer of List: device id → pod. Wait for the refresh."""
        self.kubelet.listed = _listed(**held)
        await self.trigger(Trigger.ALLOCATION)

    async def recovered(self) -> None:
        """Wait for the end of a failure."""
        await self.until(lambda: self.state.failure is None)

    async def generation(self, number: int) -> None:
        """Wait for a state."""
        await self.until(lambda: self.state.generation == number)


@asynccontextmanager
async def running(
    kubelet: Kubelet | None = None,
    *,
    interval: float = LONG,
    spacing: float = 0.0,
    settling: tuple[float, ...] = (),
    clock: Clock | None = None,
    stale_after: float = 60.0,
    started: bool = True,
    **sources: Any,
) -> AsyncGenerator[Running]:
    timing = RefreshTiming(interval, stale_after, spacing, settling)
    loop = Running(kubelet or Kubelet(), clock or Clock(), timing, **sources)
    try:
        if started:
            await loop.until(lambda: len(loop.refreshes) >= 1)
        yield loop
    finally:
        loop.task.cancel()
        outcome = await asyncio.gather(loop.task, return_exceptions=True)
        assert isinstance(outcome[0], asyncio.CancelledError), outcome


def _logged(caplog: pytest.LogCaptureFixture, about: str = "") -> list[tuple[str, str]]:
    """Levels and messages of the loop's log lines."""
    return [
        (record.levelname, record.message)
        for record in caplog.records
        if record.name == "devicelens.refresh" and about in record.message
    ]


async def test_start_refreshes_everything_at_once() -> None:
    async with running(Kubelet(notes=("it is old",))) as loop:
        assert (loop.kubelet.full, loop.refreshes) == ([True], [(Trigger.START,)])
        assert loop.owners == {"a": ["p"], "b": []}
        state = loop.state
        assert (state.generation, state.api_version, state.notes) == (1, "v1", ("it is old",))
        assert (loop.error, loop.freshness(), len(state.since)) == (None, Freshness.FRESH, 1)
        assert state.changed_at == state.taken_at


async def test_notes_last_as_long_as_their_reason_and_new_ones_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Notes:
        def notes(self, state: State) -> tuple[str, ...]:
            return ("too many",) if sum(one.allocatable for one in state.snapshot.devices) > 2 else ()

    async with running(Kubelet(notes=("it is old",)), notes=[Notes()]) as loop:
        noted = [loop.state.notes]
        for notes, devices in ((("it is old",), "abc"), (("it is old",), "ab"), ((), "ab")):
            loop.kubelet.notes, loop.kubelet.offered = notes, _offered(*devices)
            await loop.trigger(Trigger.TIMER)
            noted.append(loop.state.notes)
        assert noted == [("it is old",), ("it is old", "too many"), ("it is old",), ()]
    assert _logged(caplog) == [("WARNING", "it is old")]


async def test_triggers_during_a_refresh_share_the_next_one() -> None:
    gate = asyncio.Event()
    async with running(Kubelet(before=gate.wait), started=False) as loop:
        await loop.until(lambda: loop.kubelet.at_once == 1)
        for cause in (Trigger.ALLOCATION, Trigger.REGISTRATION) * 50:
            loop.refresher.trigger(cause)
        gate.set()
        await loop.until(lambda: len(loop.refreshes) == 2)
        await asyncio.sleep(0.02)
        assert loop.refreshes == [(Trigger.START,), (Trigger.ALLOCATION, Trigger.REGISTRATION)]


@asynccontextmanager
async def _triggering(loop: Running, pause: float) -> AsyncGenerator[None]:
    """Allocations without end."""

    async def allocate() -> None:
        while True:
            loop.refresher.trigger(Trigger.ALLOCATION)
            await asyncio.sleep(pause)

    task = asyncio.create_task(allocate())
    yield
    task.cancel()


async def test_list_is_never_called_closer_than_the_spacing() -> None:
    spacing, kubelet = 0.02, Kubelet()
    async with running(kubelet, spacing=spacing) as loop:

        async def change() -> None:
            # A held device that is not allocatable makes each allocation a second, full call.
            kubelet.listed = _listed(**{f"unoffered-{len(kubelet.calls)}": "p"})

        kubelet.before = change
        async with _triggering(loop, 0.001):
            await loop.until(lambda: len(kubelet.calls) >= 16)
        times = [at for at, _ in kubelet.calls]
        assert min(after - before for before, after in itertools.pairwise(times)) >= spacing * 0.1 * 0.95
        # At most four calls in the time of four.
        assert min(times[n + 4] - times[n] for n in range(len(times) - 4)) >= 4 * spacing * 0.95
        assert {False, True} <= set(kubelet.full)


async def test_full_refresh_each_interval_despite_constant_allocations() -> None:
    interval = 0.05
    async with running(interval=interval) as loop:
        async with _triggering(loop, 0.0):
            await loop.until(lambda: loop.kubelet.full.count(True) >= 5)
        full = [at for at, allocatable in loop.kubelet.calls if allocatable]
        assert loop.kubelet.full.count(False) > 5
        assert any(Trigger.TIMER in causes for causes in loop.refreshes)
        assert min(after - before for before, after in itertools.pairwise(full)) >= interval * 0.9


@pytest.mark.parametrize("cause", [Trigger.ALLOCATION, Trigger.PODS, Trigger.CGROUP])
async def test_pods_alone_call_list_only(cause: Trigger) -> None:
    async with running() as loop:
        await loop.trigger(cause)
        assert loop.kubelet.full == [True, False]


async def test_allocation_alone_calls_list_only() -> None:
    async with running() as loop:
        await loop.allocate(a="p", b="q")
        assert loop.kubelet.full == [True, False]
        assert loop.owners == {"a": ["p"], "b": ["q"]}
        state, step = loop.steps[-1]
        assert state is loop.state
        assert [holding.holder.pod for holding in step.change.began] == ["q"]
        assert dict(state.since) == dict(step.since)
        await loop.trigger(Trigger.ALLOCATION, Trigger.REGISTRATION)
        await loop.trigger(Trigger.SETTLING)
        await loop.trigger(Trigger.SOCKET)
        assert loop.kubelet.full == [True, False, True, True, True]
        assert loop.kubelet.resets == 1


async def test_unknown_held_device_causes_a_full_refresh_first() -> None:
    async with running() as loop:
        loop.kubelet.offered = _offered("a", "b", "new")
        await loop.allocate(a="p", new="q")
        assert loop.kubelet.full == [True, False, True]
        assert [device.allocatable for device in loop.state.snapshot.devices] == [True] * 3
        assert (loop.anomalies, loop.state.generation) == ([], 2)
        await loop.allocate(a="p", new="q", ill="r")
        assert loop.kubelet.full[3:] == [False, True]
        assert loop.anomalies == ["unhealthy_held"]
        # The device is known from then on.
        await loop.allocate(a="p", new="q", ill="r", b="s")
        assert loop.kubelet.full[5:] == [False]


async def test_unchanged_answer_changes_the_age_only() -> None:
    async with running() as loop:
        before = loop.state
        await loop.trigger(Trigger.TIMER)
        loop.kubelet.offered = _offered("b", "a")
        await loop.trigger(Trigger.TIMER)
        await loop.trigger(Trigger.ALLOCATION)
        assert (loop.state.generation, loop.state.changed_at) == (1, before.changed_at)
        assert loop.state.snapshot is before.snapshot
        assert (loop.state.taken_at or 0) > (before.taken_at or 0)
        assert len(loop.steps) == 1


async def test_failure_keeps_the_last_snapshot_and_its_beginning() -> None:
    async with running() as loop:
        good = loop.state
        slow = KubeletError("GetAllocatableResources", "DEADLINE_EXCEEDED", "no answer within 3 s")
        since: list[float] = []
        for error in (slow, UNAVAILABLE):
            loop.kubelet.error = error
            await loop.trigger(Trigger.TIMER)
            assert loop.error == (error.method, error.code, error.message)
            assert (loop.state.snapshot, loop.state.taken_at) == (good.snapshot, good.taken_at)
            assert loop.freshness() is Freshness.AGEING
            assert loop.failures[error.method, error.code] >= 1
            assert loop.state.failure is not None
            since.append(loop.state.failure.since)
        assert since[0] == since[1]
        assert loop.failures.total() == len(loop.refreshes) - 1


async def test_recovery_is_logged_once_and_resets_the_pacer(caplog: pytest.LogCaptureFixture) -> None:
    async with running(Kubelet(error=UNAVAILABLE)) as loop:
        assert loop.freshness() is Freshness.UNKNOWN
        await loop.wait_for(3)
        loop.kubelet.error = None
        await loop.recovered()
        assert loop.freshness() is Freshness.FRESH
        assert loop.refresher._pacer.failures == 0
        # A retry is a full refresh.
        assert (loop.refreshes[-1], loop.kubelet.full[-1]) == ((Trigger.RETRY,), True)
    assert _logged(caplog) == [("WARNING", "List failed"), ("INFO", "List failed: over")]


async def test_stale_mapping_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async with running(stale_after=0.05) as loop:
        loop.kubelet.error = UNAVAILABLE
        await loop.trigger(Trigger.TIMER)
        await loop.until(lambda: loop.freshness() is Freshness.STALE)
        await loop.wait_for(3)
        loop.kubelet.error = None
        await loop.recovered()
    assert _logged(caplog, "stale") == [
        ("ERROR", "the mapping is stale and withdrawn from /metrics"),
        ("INFO", "the mapping is stale and withdrawn from /metrics: over"),
    ]


async def test_only_many_rate_limit_refusals_are_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All monitors of one kubelet share its limit, and call it at the same moments."""
    monkeypatch.setattr(triggers, "_FIRST_RETRY", 0.002)
    refused = KubeletError("List", "RESOURCE_EXHAUSTED", "rate limit", rate_limited=True)
    async with running() as loop:
        for refusals, levels in ((3, []), (4, ["WARNING", "INFO"])):
            loop.kubelet.errors = [refused] * refusals
            loop.refresher.trigger(Trigger.TIMER)
            await loop.until(lambda: not loop.kubelet.errors)
            await loop.recovered()
            assert [level for level, _ in _logged(caplog)] == levels
    assert loop.failures["List", "RESOURCE_EXHAUSTED"] == 7


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("odd")


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ({"error": ZeroDivisionError("odd")}, "INTERNAL"),
        ({"reset_error": RuntimeError("cannot be closed")}, "INTERNAL"),
        ({"listed": b"\xff\xff"}, "UNDECODABLE"),
    ],
    ids=["call", "reset", "decode"],
)
async def test_any_failure_keeps_the_mapping_and_is_retried(broken: dict[str, object], code: str) -> None:
    async with running() as loop:
        good, before = loop.state.snapshot, dict(vars(loop.kubelet))
        vars(loop.kubelet).update(broken)
        await loop.trigger(Trigger.SOCKET)
        assert loop.state.snapshot is good
        assert loop.error is not None
        assert loop.error[:2] == ("List", code)
        vars(loop.kubelet).update({name: before[name] for name in broken})
        await loop.recovered()


async def test_failing_step_and_failing_observer_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as loop:
        with monkeypatch.context() as patched:
            patched.setattr(anomaly_tracker, "find", _fail)
            await loop.allocate(a="p", b="q")
            assert loop.owners == {"a": ["p"], "b": []}
            assert loop.error == ("List", "INTERNAL", "ZeroDivisionError: odd")
        await loop.recovered()
        assert loop.owners == {"a": ["p"], "b": ["q"]}
        assert [holding.holder.pod for holding in loop.steps[-1][1].change.began] == ["q"]
        loop.observer_error = ZeroDivisionError("odd")
        await loop.allocate(a="p", b="r")
        loop.observer_error = None
        await loop.recovered()
        assert loop.owners == {"a": ["p"], "b": ["r"]}
        assert len(loop.state.since) == 2


@pytest.mark.parametrize("offered", [b"\xff\xff", KubeletError("GetAllocatableResources", "INTERNAL", "odd")])
async def test_list_is_used_although_allocatable_fails(
    offered: bytes | KubeletError, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as loop:
        loop.kubelet.offered, loop.kubelet.listed = offered, _listed(a="p", b="q", new="r")
        await loop.trigger(Trigger.REGISTRATION)
        assert loop.owners == {"a": ["p"], "b": ["q"], "new": ["r"]}
        assert (loop.error, loop.freshness()) == (None, Freshness.FRESH)
        # An older answer does not make a new allocation unhealthy.
        assert loop.anomalies == []
        (note,) = loop.state.notes
        assert "health are those of its last answer" in note
        assert loop.failures.total() == 1
        # Allocations are read at once all the same.
        await loop.allocate(a="p", newer="r")
        assert loop.kubelet.full[-1] is False
        assert loop.owners["newer"] == ["r"]
        loop.kubelet.offered = _offered("a", "b")
        await loop.until(lambda: loop.state.notes == ())
        assert loop.anomalies == ["unhealthy_held"]
    problem = "the kubelet does not answer GetAllocatableResources"
    assert _logged(caplog, "Allocatable") == [("WARNING", problem), ("INFO", f"{problem}: over")]


@pytest.mark.parametrize("answered_before", [True, False])
async def test_health_is_unknown_without_a_recent_allocatable_answer(answered_before: bool) -> None:
    kubelet = Kubelet() if answered_before else Kubelet(offered=b"\xff\xff")
    async with running(kubelet, stale_after=0.05, interval=0.01) as loop:
        kubelet.offered = b"\xff\xff"
        await loop.until(lambda: not loop.state.snapshot.complete)
        assert loop.owners == {"a": ["p"]}
        assert "health are unknown" in loop.state.notes[0]
        assert (loop.error, loop.anomalies) == (None, [])
        kubelet.offered = _offered("a", "b")
        await loop.until(lambda: loop.state.snapshot.complete)
        assert loop.owners == {"a": ["p"], "b": []}


@pytest.mark.parametrize("cause", [Trigger.REGISTRATION, Trigger.SOCKET])
async def test_registration_causes_settling_refreshes(
    cause: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[tuple[float, Callable[[], None]]] = []

    def call_later(delay: float, call: Callable[..., None], *arguments: object) -> None:
        planned.append((delay, partial(call, *arguments)))

    async with running(settling=(0.2, 1.0)) as loop:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "call_later", call_later)
            loop.refresher.trigger(cause)
            while not planned:
                await asyncio.sleep(0)
        assert [delay for delay, _ in planned] == [0.2, 1.0]
        for _, call in planned:
            call()
            await loop.wait_for()
        assert loop.refreshes == [(Trigger.START,), (cause,), *[(Trigger.SETTLING,)] * 2]
        assert loop.kubelet.full == [True] * 4


@pytest.mark.parametrize("noticed_by", ["socket event", "connection", "socket age"])
async def test_what_a_list_after_a_restart_leaves_out_is_kept(
    noticed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC reconnects silently, and without inotify the directory is read late: the socket's age counts."""
    monkeypatch.setattr(triggers, "UNSETTLED_RETRY", 0.005)
    kubelet = Kubelet(socket_age=500.0 if noticed_by == "socket age" else None)
    async with running(kubelet) as loop:
        kubelet.listed = _listed()
        if noticed_by == "connection":
            kubelet.errors = [UNAVAILABLE]
        elif noticed_by == "socket age":
            kubelet.socket_age = 0.1
        loop.refresher.trigger(Trigger.SOCKET if noticed_by == "socket event" else Trigger.TIMER)
        await loop.until(lambda: bool(loop.state.snapshot.unconfirmed))
        assert (loop.error, loop.freshness()) == (None, Freshness.FRESH)
        assert loop.owners == {"a": ["p"], "b": []}
        (note,) = loop.state.notes
        assert note.startswith("1 pod with devices missing from List since the kubelet restarted")
        # The pods return, without any event: no holding has ended.
        kubelet.listed = _listed(a="p")
        await loop.until(lambda: not loop.state.snapshot.unconfirmed)
        assert loop.state.notes == ()
        assert not [step for _, step in loop.steps if step.change.began or step.change.ended]
        # From then on the kubelet is believed at once, however young its socket is.
        await loop.allocate()
        assert loop.owners == {"a": [], "b": []}


async def test_restart_during_a_call_puts_the_next_answer_in_doubt() -> None:
    kubelet = Kubelet()
    async with running(kubelet) as loop:

        async def restart() -> None:
            if len(kubelet.calls) == 2:
                loop.refresher.trigger(Trigger.SOCKET)
            else:
                kubelet.listed = _listed()

        kubelet.before = restart
        loop.refresher.trigger(Trigger.TIMER)
        await loop.until(lambda: bool(loop.state.snapshot.unconfirmed))
        assert loop.owners == {"a": ["p"], "b": []}


async def test_pods_missing_beyond_the_distrust_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "UNSETTLED_RETRY", 0.005)
    async with running() as loop:
        loop.kubelet.listed = _listed()
        loop.refresher.trigger(Trigger.SOCKET)
        await loop.until(lambda: bool(loop.state.snapshot.unconfirmed))
        monkeypatch.setattr(restart_guard, "DISTRUST", 0.0)
        await loop.until(lambda: not loop.state.snapshot.unconfirmed)
        assert loop.owners == {"a": [], "b": []}


async def test_release_soon_after_the_start_is_believed() -> None:
    """The first scan of the directory reports that the socket may have appeared, and the socket is young."""
    async with running(Kubelet(socket_age=0.1), started=False) as loop:
        loop.refresher.trigger(Trigger.SOCKET)
        await loop.generation(1)
        loop.kubelet.socket_age = None
        await loop.allocate()
        assert (loop.error, loop.owners) == (None, {"a": [], "b": []})


async def test_clock_step_during_a_refresh_makes_nothing_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    reading, go_on = threading.Event(), threading.Event()
    build = SnapshotBuilder.build

    def slow(*arguments: Any, **settings: Any) -> Snapshot:
        reading.set()
        assert go_on.wait(LIMIT)
        return build(*arguments, **settings)

    async with running(clock=Clock(wall=lambda: now[0])) as loop:
        monkeypatch.setattr(SnapshotBuilder, "build", slow)
        for number, hours in enumerate((+5, -9), 2):
            reading.clear()
            go_on.clear()
            now[0] += hours * 3600
            loop.kubelet.listed = _listed(a="p", **{f"new{hours}": "q"})
            loop.refresher.trigger(Trigger.TIMER)
            await loop.until(reading.is_set)
            assert loop.freshness() is Freshness.FRESH
            go_on.set()
            await loop.generation(number)
            assert loop.state.taken_at == pytest.approx(now[0], abs=LIMIT)
            assert loop.state.age(loop.clock.now()) == pytest.approx(0, abs=LIMIT)
        newest = [since.at for holding, since in loop.state.since.items() if holding.key.device == "new-9"]
        assert newest == pytest.approx(now, abs=LIMIT)


async def test_shutdown_does_not_wait_for_processing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> Snapshot:
        reading.set()
        go_on.wait(LIMIT)
        ended.set()
        return Snapshot()

    monkeypatch.setattr(SnapshotBuilder, "build", slow)
    try:
        async with running(started=False) as loop:
            await loop.until(reading.is_set)
        assert not ended.is_set()
    finally:
        go_on.set()


POD = PodIdentity("n", "p", "uid-1", "Running")


async def test_proven_uid_is_published_without_calling_the_kubelet() -> None:
    pods = Pods()
    pods.registry.see(POD, asyncio.get_running_loop().time())
    async with running(pods=pods) as loop:
        # The mapping does not wait for the proof.
        assert loop.uids == {"a": [""]}
        before = loop.state
        ((published, poll),) = pods.polls
        assert published is before
        assert poll.asked <= poll.answered
        pods.confirm()
        loop.refresher.reconsider()
        await loop.generation(2)
        assert (loop.uids, dict(loop.state.pods)) == ({"a": ["uid-1"]}, {POD.key: POD})
        assert (len(loop.kubelet.calls), loop.rereads, len(pods.polls)) == (1, 1, 2)
        # It is the same holding.
        assert loop.state.taken_at == before.taken_at
        assert list(loop.state.since.values()) == list(before.since.values())
        state, step = loop.steps[-1]
        assert (state, step.change.began, step.change.ended) == (loop.state, (), ())

        # More facts about a pod change no holding.
        pods.registry.see(replace(POD, labels=(("team", "ml"),)), asyncio.get_running_loop().time())
        loop.refresher.reconsider()
        await loop.generation(3)
        assert loop.state.pods[POD.key].labels == (("team", "ml"),)
        assert len(loop.steps) == 2
        loop.refresher.reconsider()
        await loop.trigger(Trigger.TIMER)
        assert loop.state.generation == 3


async def test_new_holding_of_a_continued_pod_puts_its_uid_in_doubt() -> None:
    pods = Pods()
    pods.registry.see(POD, asyncio.get_running_loop().time())
    async with running(Kubelet(_listed(a="p", released="p")), pods=pods) as loop:
        pods.confirm()
        loop.refresher.reconsider()
        await loop.generation(2)
        # Without its source a pod keeps what it holds; a new device may be a successor's.
        pods.registry.clear()
        await loop.allocate(a="p")
        assert loop.uids == {"a": ["uid-1"]}
        await loop.allocate(a="p", b="p")
        assert (loop.uids, loop.state.pods) == ({"a": [""], "b": [""]}, {})
        assert [holding.key.device for holding in loop.steps[-1][1].change.began] == ["b"]


async def test_failing_reread_leaves_the_mapping_unchanged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(pods=Pods()) as loop:
        monkeypatch.setattr(pipeline, "identify", _fail)
        good = loop.state
        loop.refresher.reconsider()
        await loop.until(lambda: "cannot be read again" in caplog.text)
        assert loop.state is good


class Prepared:
    """A Preparer, and the PhaseObserver."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.threads: set[str] = set()
        self.published: Callable[[], State] = State
        self.error: Exception | None = None
        self.phases: list[dict[Phase, float]] = []

    def prepare(self, state: State) -> None:
        assert self.published() is not state
        self.threads.add(threading.current_thread().name)
        self.states.append(state)
        if self.error is not None:
            raise self.error

    def timed(self, seconds: Mapping[Phase, float]) -> None:
        self.phases.append(dict(seconds))


class Noted:
    """A NoteSource."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def notes(self, state: State) -> tuple[str, ...]:
        self.threads.add(threading.current_thread().name)
        return (f"{len(state.devices)} devices",)


async def test_what_readers_need_is_made_in_the_worker_before_they_see_the_state() -> None:
    pods, prepared, noted, preparers = Pods(), Prepared(), Noted(), list[Prepared]()
    async with running(pods=pods, preparers=preparers, notes=[noted]) as loop:
        prepared.published = lambda: loop.state
        preparers.append(prepared)
        await loop.allocate(b="q")
        assert loop.state is prepared.states[-1]
        assert loop.state.notes == ("2 devices",)
        await loop.allocate(a="p", b="q")
        assert loop.state is prepared.states[-1]
        assert loop.owners == {"a": ["p"], "b": ["q"]}
        pods.registry.see(POD, asyncio.get_running_loop().time())
        pods.confirm()
        loop.refresher.reconsider()
        await loop.until(lambda: loop.rereads == 1)
        assert loop.state is prepared.states[-1]
    assert all(name.startswith("snapshot") for name in prepared.threads | noted.threads)


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_mapping_stays_fresh_while_the_first_state_after_a_jump_of_the_clock_is_prepared(
    jump: float,
) -> None:
    wall, prepared = [1e6], Prepared()
    async with running(preparers=[prepared], clock=Clock(wall=lambda: wall[0])) as loop:
        ages = list[float | None]()

        def published() -> State:
            ages.append(loop.state.age(loop.clock.now()))
            return loop.state

        prepared.published = published
        wall[0] += jump
        await loop.allocate(b="q")
        ages.append(loop.state.age(loop.clock.now()))
        assert loop.state.taken_at == pytest.approx(wall[0], abs=60)
    assert ages == [pytest.approx(0, abs=60)] * 2


async def test_a_preparer_that_fails_leaves_the_mapping_right(caplog: pytest.LogCaptureFixture) -> None:
    prepared = Prepared()
    async with running(preparers=[prepared]) as loop:
        prepared.error = ValueError("odd")
        await loop.allocate(b="q")
        await loop.allocate(a="q")
        assert (loop.owners, loop.error) == ({"a": ["q"], "b": []}, None)
        assert caplog.text.count("answers cannot be prepared") == 1
        prepared.error = None
        await loop.allocate(b="q")
        assert "answers cannot be prepared, each request makes its own: over" in caplog.text


async def test_the_phases_of_a_refresh_are_the_whole_of_it() -> None:
    prepared = Prepared()
    async with running(preparers=[prepared], phases=prepared) as loop:
        loop.kubelet.before = partial(asyncio.sleep, 0.01)
        await loop.allocate(a="q")
        loop.kubelet.error = UNAVAILABLE
        await loop.trigger(Trigger.ALLOCATION)
        seconds = loop.seconds
    good, failed = prepared.phases[1:3]
    assert good.keys() == failed.keys() == set(Phase)
    assert min(good[Phase.KUBELET], failed[Phase.KUBELET]) >= 0.01
    assert min(good.values()) > 0
    assert (failed[Phase.MAPPING], failed[Phase.RENDERING]) == (0.0, 0.0)
    assert all(sum(one.values()) >= took for one, took in zip((good, failed), seconds[1:], strict=False))


@dataclass
class Claims:
    """A DraSource that reads a claim when the loop waits for it. `slow`: it never answers within the time."""

    view: DraView = NO_DRA
    slow: bool = False
    wanted: frozenset[ClaimName] = frozenset()
    waited: list[tuple[frozenset[ClaimName], float]] = field(
        default_factory=list[tuple[frozenset[ClaimName], float]]
    )

    def want(self, names: Collection[ClaimName]) -> None:
        self.wanted = frozenset(names)

    async def known(self, names: Collection[ClaimName], within: float) -> None:
        self.waited.append((frozenset(names), within))
        if not self.slow:
            self.read()

    def read(self) -> None:
        device = AllocatedDevice(PublishedName("drv", "pool", "gpu-0"), "", "all", "gpu", admin=True)
        self.view = DraView(claims={name: Claim(name, "uid", (device,)) for name in self.wanted})


def _watched(device: str = "gpu-0") -> bytes:
    answer = answers.listed(answers.pod("watcher", "a"))
    resource = answer.pod_resources[0].containers[0].dynamic_resources.add()
    resource.claim_namespace, resource.claim_name = "n", "watch-all"
    resource.claim_resources.add(driver_name="drv", pool_name="pool", device_name=device)
    return answer.SerializeToString()


@pytest.mark.parametrize("slow", [False, True])
async def test_new_claim_is_read_before_its_administrator_is_shown(slow: bool) -> None:
    claims, name = Claims(slow=slow), ClaimName("n", "watch-all")
    async with running(Kubelet(_watched()), dra=claims) as loop:
        assert [names for names, _ in claims.waited] == [{name}]
        assert claims.wanted == {name}
        ((first, _),) = loop.steps
        held = {one.key.device for one in first.snapshot.devices if one.holders}
        assert held == ({"a", "pool/gpu-0"} if slow else {"a"})
        if slow:
            claims.read()
            loop.refresher.reconsider()
            await loop.until(lambda: loop.owners["pool/gpu-0"] == [])
        # A claim that is known costs no wait.
        await loop.trigger(Trigger.ALLOCATION)
        assert len(claims.waited) == 1
        assert loop.owners == {"a": ["watcher"], "b": [], "pool/gpu-0": []}
        # Kubernetes allocates a claim anew, under its name.
        loop.kubelet.listed = _watched("gpu-1")
        await loop.trigger(Trigger.ALLOCATION)
        assert [names for names, _ in claims.waited[1:]] == [{name}]


async def test_a_source_that_fails_is_a_new_generation_of_the_state() -> None:
    """Pages and /api/v1/status, which have its problem, are asked for by generation."""
    claims = Claims()
    async with running(dra=claims) as loop:
        before = loop.state
        problem = (SourceStatus("slices", up=False, problem="no right to list resourceslices"),)
        claims.view = DraView(sources=problem)
        loop.refresher.reconsider()
        await loop.until(lambda: loop.state.sources == problem)
        assert loop.state.generation == before.generation + 1
        assert loop.state.problems == ("no right to list resourceslices",)


async def test_page_says_what_is_unknown_where_no_source_reads_slices() -> None:
    async with running(Kubelet(_watched())) as loop:
        (note,) = loop.state.notes
        assert "which devices of DRA drivers are free is unknown" in note
        assert "deploy/components/dra" in note
    async with running() as loop:
        assert loop.state.notes == (), "the node has no claimed device"
    known = Claims(DraView(sources=(SourceStatus("slices", up=True),)), slow=True)
    async with running(Kubelet(_watched()), dra=known) as loop:
        assert loop.state.notes == ()
