"""exporter.refresh.loop with a scripted kubelet: when it is asked, and what becomes of its answers."""

# A test may look inside.
# pyright: reportPrivateUsage=false

import asyncio
import itertools
import logging
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from exporter.mapping import anomalies, anomaly_tracker
from exporter.mapping.holdings import HoldingChanges
from exporter.mapping.identity import PodIdentity, PodRegistry, PodView, Poll
from exporter.mapping.model import Snapshot
from exporter.mapping.restart_guard import DISTRUST
from exporter.mapping.snapshot import SnapshotBuilder
from exporter.mapping.state import Freshness, State, StateStore
from exporter.refresh import pipeline, triggers
from exporter.refresh.loop import Refresher
from exporter.refresh.pipeline import SnapshotPipeline
from exporter.refresh.protocols import NoteSource, Trigger
from exporter.refresh.triggers import RefreshTiming
from harness.stopwatch import Stopwatch
from kubelet.pb.podresources.v1 import api_pb2
from kubelet.podresources import KubeletError, Raw
from runtime.clock import Clock

LIMIT = 20.0
"""Seconds within which what is waited for must have come."""

LONG = 3600.0
"""An interval that plays no part in a test."""

R = "example.com/gpu"


def _listed(**held: str) -> bytes:
    """A List answer: device id → pod."""
    pods = [
        api_pb2.PodResources(
            namespace="n",
            name=pod,
            containers=[
                api_pb2.ContainerResources(
                    name="c", devices=[api_pb2.ContainerDevices(resource_name=R, device_ids=[device])]
                )
            ],
        )
        for device, pod in held.items()
    ]
    return api_pb2.ListPodResourcesResponse(pod_resources=pods).SerializeToString()


def _offered(*ids: str) -> bytes:
    entry = api_pb2.ContainerDevices(resource_name=R, device_ids=ids)
    return api_pb2.AllocatableResourcesResponse(devices=[entry]).SerializeToString()


def _unavailable() -> KubeletError:
    return KubeletError("List", "UNAVAILABLE", "the kubelet is not up")


async def _nothing() -> None:
    return


@dataclass
class Kubelet:
    """A Source that answers as it is set to at the moment, and remembers when it was asked for what."""

    listed: bytes = field(default_factory=lambda: _listed(a="p"))
    offered: bytes | KubeletError | None = field(default_factory=lambda: _offered("a", "b"))
    error: Exception | None = None
    errors: list[Exception] = field(default_factory=list[Exception])
    """What the next calls fail with, one after the other."""
    reset_error: Exception | None = None
    notes: tuple[str, ...] = ()
    socket_age: float | None = None
    before: Callable[[], Awaitable[object]] = _nothing
    calls: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])
    resets: list[int] = field(default_factory=list[int])
    at_once: int = 0
    most_at_once: int = 0

    async def fetch_raw(self, *, allocatable: bool) -> Raw:
        self.calls.append((asyncio.get_running_loop().time(), allocatable))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.before()
            if self.errors:
                raise self.errors.pop(0)
            if self.error is not None:
                raise self.error
            failed = self.offered if allocatable and isinstance(self.offered, KubeletError) else None
            offered = self.offered if allocatable and isinstance(self.offered, bytes) else None
            return Raw(self.listed, offered, allocatable, "v1", self.notes, failed, self.socket_age)
        finally:
            self.at_once -= 1

    async def reset(self) -> None:
        self.resets.append(len(self.calls))
        if self.reset_error is not None:
            raise self.reset_error

    @property
    def asked(self) -> list[bool]:
        """Whether allocatable was asked, for each call."""
        return [allocatable for _, allocatable in self.calls]


@dataclass
class Watching:
    """An Observer that keeps what it is told."""

    refreshes: list[tuple[Trigger, ...]] = field(default_factory=list[tuple[Trigger, ...]])
    failures: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    steps: list[tuple[State, HoldingChanges]] = field(default_factory=list[tuple[State, HoldingChanges]])
    error: Exception | None = None
    rereads: int = 0

    def reread(self) -> None:
        self.rereads += 1

    def refreshed(self, triggers: Iterable[Trigger], seconds: float) -> None:
        assert seconds >= 0
        self.refreshes.append(tuple(triggers))

    def failed(self, method: str, code: str) -> None:
        self.failures[method, code] += 1

    def changed(self, state: State, step: HoldingChanges) -> None:
        self.steps.append((state, step))
        if self.error is not None:
            raise self.error


@dataclass
class Knowing:
    """A PodSource whose registry the test writes."""

    name = "test"

    register: PodRegistry = field(default_factory=PodRegistry)
    looks: list[tuple[State, Poll]] = field(default_factory=list[tuple[State, Poll]])

    @property
    def view(self) -> PodView:
        return self.register.view

    def polled(self, state: State, look: Poll) -> None:
        self.looks.append((state, look))

    def confirm(self) -> None:
        """The source was asked just now, and has all its pods still."""
        self.register.confirm(asyncio.get_running_loop().time())


@dataclass
class Running:
    """A refresh loop that runs, with everything around it."""

    kubelet: Kubelet
    states: StateStore
    observer: Watching
    refresher: Refresher
    clock: Clock
    task: "asyncio.Task[None]"

    @property
    def state(self) -> State:
        return self.states.state

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not condition():
                assert not self.task.done(), self.task
                await asyncio.sleep(0.0005)

    async def refreshed(self, times: int = 1) -> None:
        """Wait for so many refreshes from now."""
        wanted = len(self.observer.refreshes) + times
        await self.until(lambda: len(self.observer.refreshes) >= wanted)

    async def trigger(self, *causes: Trigger) -> None:
        """Ask, and wait until that was done."""
        for cause in causes:
            self.refresher.trigger(cause)
        await self.refreshed()


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
    pods: "Knowing | None" = None,
    notes: NoteSource | None = None,
) -> AsyncGenerator[Running]:
    kubelet = kubelet or Kubelet()
    states, observer, clock = StateStore(), Watching(), clock or Clock()
    timing = RefreshTiming(interval, stale_after, spacing, settling)
    refresher = Refresher(
        *(kubelet, states, [observer], SnapshotPipeline(keep_allocatable=stale_after)),
        timing=timing,
        clock=clock,
        pods=pods,
        notes=notes,
    )
    task = asyncio.create_task(refresher.run())
    loop = Running(kubelet, states, observer, refresher, clock, task)
    try:
        if started:
            await loop.until(lambda: len(observer.refreshes) >= 1)
        yield loop
    finally:
        task.cancel()
        outcome = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome[0], asyncio.CancelledError), outcome


def _owners(state: State) -> dict[str, list[str]]:
    return {device.key.device: [holder.pod for holder in device.holders] for device in state.snapshot.devices}


def _kinds(state: State) -> list[str]:
    return [anomaly.kind for anomaly in state.anomalies]


async def test_start_refreshes_everything_at_once() -> None:
    kubelet = Kubelet(notes=("it is old",))
    async with running(kubelet) as loop:
        assert kubelet.asked == [True]
        assert loop.observer.refreshes == [(Trigger.START,)]
        state = loop.state
        assert _owners(state) == {"a": ["p"], "b": []}
        assert (state.generation, state.api_version, state.notes) == (1, "v1", ("it is old",))
        assert state.failure is None
        assert state.freshness(loop.clock.now(), 60) is Freshness.FRESH
        assert state.changed_at == state.taken_at
        assert len(state.since) == 1


async def test_notes_last_as_long_as_their_reason_and_new_ones_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    kubelet = Kubelet(notes=("it is old",))

    class Notes:
        def notes(self, state: State) -> tuple[str, ...]:
            return ("too many",) if len(state.snapshot.devices) > 2 else ()

    async with running(kubelet, notes=Notes()) as loop:
        noted = [loop.state.notes]
        for devices in (("a", "b", "c"), ("a", "b")):
            kubelet.offered = _offered(*devices)
            await loop.trigger(Trigger.TIMER)
            noted.append(loop.state.notes)
        kubelet.notes = ()
        await loop.trigger(Trigger.TIMER)
        noted.append(loop.state.notes)
        assert noted == [("it is old",), ("it is old", "too many"), ("it is old",), ()]
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == ["it is old"]


async def test_triggers_during_a_refresh_share_the_next_one() -> None:
    gate = asyncio.Event()
    kubelet = Kubelet(before=gate.wait)
    async with running(kubelet, started=False) as loop:
        await loop.until(lambda: kubelet.at_once == 1)
        for _ in range(50):
            for cause in (Trigger.ALLOCATION, Trigger.REGISTRATION):
                loop.refresher.trigger(cause)
        gate.set()
        await loop.until(lambda: len(loop.observer.refreshes) == 2)
        await asyncio.sleep(0.02)
        assert loop.observer.refreshes == [(Trigger.START,), (Trigger.ALLOCATION, Trigger.REGISTRATION)]
        assert kubelet.most_at_once == 1


async def test_list_is_never_called_closer_than_the_spacing() -> None:
    spacing = 0.02
    # The device that is never offered makes each allocation a second, full question.
    async with running(Kubelet(), spacing=spacing) as loop:
        loop.kubelet.before = _make_suspicious(loop.kubelet)

        async def pester() -> None:
            while True:
                loop.refresher.trigger(Trigger.ALLOCATION)
                await asyncio.sleep(0.001)

        pestering = asyncio.create_task(pester())
        await loop.until(lambda: len(loop.kubelet.calls) >= 16)
        pestering.cancel()
        times = [at for at, _ in loop.kubelet.calls]
        assert min(after - before for before, after in itertools.pairwise(times)) >= spacing * 0.1 * 0.95
        # No more than four in the time of four, wherever it begins.
        assert min(times[n + 4] - times[n] for n in range(len(times) - 4)) >= 4 * spacing * 0.95
        assert {False, True} <= set(loop.kubelet.asked)


def _make_suspicious(kubelet: Kubelet) -> Callable[[], Awaitable[object]]:
    """Before each answer another device is held that was never offered."""
    number = 0

    async def change() -> None:
        nonlocal number
        number += 1
        kubelet.listed = _listed(**{f"unoffered-{number}": "p"})

    return change


async def test_allocation_alone_calls_list_only() -> None:
    async with running() as loop:
        loop.kubelet.listed = _listed(a="p", b="q")
        await loop.trigger(Trigger.ALLOCATION)
        assert loop.kubelet.asked == [True, False]
        assert _owners(loop.state) == {"a": ["p"], "b": ["q"]}
        await loop.trigger(Trigger.ALLOCATION, Trigger.REGISTRATION)
        await loop.trigger(Trigger.SETTLING)
        assert loop.kubelet.asked == [True, False, True, True]


async def test_unknown_held_device_causes_a_full_refresh_first() -> None:
    async with running() as loop:
        loop.kubelet.listed = _listed(a="p", new="q")
        loop.kubelet.offered = _offered("a", "b", "new")
        await loop.trigger(Trigger.ALLOCATION)
        assert loop.kubelet.asked == [True, False, True]
        assert [device.allocatable for device in loop.state.snapshot.devices] == [True] * 3
        assert _kinds(loop.state) == []
        assert loop.state.generation == 2

        loop.kubelet.listed = _listed(a="p", new="q", ill="r")
        await loop.trigger(Trigger.ALLOCATION)
        assert loop.kubelet.asked[3:] == [False, True]
        assert _kinds(loop.state) == ["unhealthy_held"]
        # It is known now, and asked about no more.
        loop.kubelet.listed = _listed(a="p", new="q", ill="r", b="s")
        await loop.trigger(Trigger.ALLOCATION)
        assert loop.kubelet.asked[5:] == [False]


async def test_full_refresh_each_interval_despite_constant_allocations() -> None:
    interval = 0.05
    async with running(interval=interval) as loop:

        async def allocate() -> None:
            while True:
                loop.refresher.trigger(Trigger.ALLOCATION)
                await asyncio.sleep(0)

        allocating = asyncio.create_task(allocate())
        await loop.until(lambda: loop.kubelet.asked.count(True) >= 5)
        allocating.cancel()
        full = [at for at, allocatable in loop.kubelet.calls if allocatable]
        assert loop.kubelet.asked.count(False) > 5
        assert min(after - before for before, after in itertools.pairwise(full)) >= interval * 0.9


async def test_timer_refreshes_everything() -> None:
    async with running(interval=0.01) as loop:
        await loop.refreshed(3)
        assert loop.observer.refreshes[:3] == [(Trigger.START,), (Trigger.TIMER,), (Trigger.TIMER,)]
        assert set(loop.kubelet.asked) == {True}


async def test_unchanged_answer_changes_the_age_only() -> None:
    async with running() as loop:
        before = loop.state
        await loop.trigger(Trigger.TIMER)
        # The same in another order and by another question.
        loop.kubelet.listed += b""
        loop.kubelet.offered = _offered("b", "a")
        await loop.trigger(Trigger.TIMER)
        await loop.trigger(Trigger.ALLOCATION)
        after = loop.state
        assert after.generation == before.generation == 1
        assert after.snapshot is before.snapshot
        assert (after.taken_at or 0) > (before.taken_at or 0)
        assert after.changed_at == before.changed_at
        assert len(loop.observer.steps) == 1


async def test_observers_get_changes_with_their_state() -> None:
    async with running() as loop:
        loop.kubelet.listed = _listed(b="q")
        await loop.trigger(Trigger.ALLOCATION)
        state, step = loop.observer.steps[-1]
        assert state.generation == 2
        assert state.snapshot is loop.state.snapshot
        assert [holding.holder.pod for holding in step.change.began] == ["q"]
        assert [holding.holder.pod for holding in step.change.ended] == ["p"]
        assert dict(loop.state.since) == dict(step.since)


async def test_failure_keeps_the_last_snapshot_and_its_beginning() -> None:
    async with running() as loop:
        good = loop.state
        loop.kubelet.error = KubeletError(
            "GetAllocatableResources", "DEADLINE_EXCEEDED", "no answer within 3 s"
        )
        await loop.trigger(Trigger.TIMER)
        first = loop.state.failure
        assert first is not None
        assert (first.method, first.code, first.message) == (
            "GetAllocatableResources",
            "DEADLINE_EXCEEDED",
            "no answer within 3 s",
        )
        assert (loop.state.snapshot, loop.state.taken_at) == (good.snapshot, good.taken_at)
        assert loop.state.freshness(loop.clock.now(), 60) is Freshness.AGEING

        loop.kubelet.error = _unavailable()
        await loop.trigger(Trigger.TIMER)
        assert loop.state.failure is not None
        assert (loop.state.failure.code, loop.state.failure.since) == ("UNAVAILABLE", first.since)
        assert loop.observer.failures["GetAllocatableResources", "DEADLINE_EXCEEDED"] >= 1
        assert loop.observer.failures["List", "UNAVAILABLE"] >= 1
        assert loop.observer.failures.total() == len(loop.observer.refreshes) - 1


async def test_recovery_is_logged_once_and_resets_the_pacer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    async with running(Kubelet(error=_unavailable())) as loop:
        assert loop.state.freshness(loop.clock.now(), 60) is Freshness.UNKNOWN
        await loop.refreshed(3)
        loop.kubelet.error = None
        await loop.until(lambda: loop.state.failure is None)
        assert loop.state.freshness(loop.clock.now(), 60) is Freshness.FRESH
        assert loop.refresher._pacer.failures == 0
        calls = len(loop.kubelet.calls)
        await asyncio.sleep(0.05)
        assert len(loop.kubelet.calls) == calls
    assert [record.message for record in caplog.records if record.name == "devicelens.refresh"] == [
        "List failed",
        "List failed: over",
    ]


async def test_stale_mapping_is_logged_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    async with running(stale_after=0.05) as loop:
        loop.kubelet.error = _unavailable()
        await loop.trigger(Trigger.TIMER)
        await loop.until(lambda: loop.state.freshness(loop.clock.now(), 0.05) is Freshness.STALE)
        await loop.refreshed(3)
        loop.kubelet.error = None
        await loop.until(lambda: loop.state.failure is None)
    told = [(record.levelname, record.message) for record in caplog.records if "stale" in record.message]
    assert told == [
        ("ERROR", "the mapping is stale and withdrawn from /metrics"),
        ("INFO", "the mapping is stale and withdrawn from /metrics: over"),
    ]


async def test_retry_is_a_full_refresh() -> None:
    async with running() as loop:
        loop.kubelet.error = _unavailable()
        await loop.trigger(Trigger.ALLOCATION)
        loop.kubelet.error = None
        await loop.until(lambda: loop.state.failure is None)
        assert loop.kubelet.asked[-1] is True
        assert loop.observer.refreshes[-1] == (Trigger.RETRY,)


async def test_few_rate_limit_refusals_are_not_logged_but_many_are(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Monitors of one kubelet have its limit together, and all ask when something happens."""
    monkeypatch.setattr(triggers, "_FIRST_RETRY", 0.002)
    caplog.set_level(logging.INFO, "devicelens")

    def told() -> list[str]:
        return [record.levelname for record in caplog.records if record.name == "devicelens.refresh"]

    refused = KubeletError("List", "RESOURCE_EXHAUSTED", "rate limit", rate_limited=True)
    async with running() as loop:
        for refusals, lines in ((3, []), (4, ["WARNING", "INFO"])):
            loop.kubelet.errors = [refused] * refusals
            loop.refresher.trigger(Trigger.TIMER)
            await loop.until(lambda: not loop.kubelet.errors)
            await loop.until(lambda: loop.state.failure is None)
            assert told() == lines
    assert loop.observer.failures["List", "RESOURCE_EXHAUSTED"] == 7


async def test_undecodable_answer_fails_its_method() -> None:
    async with running() as loop:
        good = loop.state.snapshot
        loop.kubelet.listed = b"\xff\xff"
        await loop.trigger(Trigger.ALLOCATION)
        assert loop.observer.failures == {("List", "UNDECODABLE"): 1}
        assert loop.state.snapshot is good
        assert loop.state.failure is not None
        loop.kubelet.listed = _listed(a="p")
        await loop.until(lambda: loop.state.failure is None)


async def test_list_is_used_although_allocatable_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    async with running() as loop:
        for offered in (b"\xff\xff", KubeletError("GetAllocatableResources", "INTERNAL", "odd")):
            before = loop.observer.failures.total()
            loop.kubelet.offered = offered
            loop.kubelet.listed = _listed(a="p", b="q", new="r")
            await loop.trigger(Trigger.REGISTRATION)
            assert _owners(loop.state) == {"a": ["p"], "b": ["q"], "new": ["r"]}
            assert loop.state.failure is None
            assert loop.state.freshness(loop.clock.now(), 60) is Freshness.FRESH
            # What was given out a moment ago is not called ill by an answer that is older.
            assert _kinds(loop.state) == []
            (note,) = loop.state.notes
            assert "health are those of its last answer" in note
            assert loop.observer.failures.total() == before + 1
            # Allocations are not held up by it.
            loop.kubelet.listed = _listed(a="p", newer="r")
            await loop.trigger(Trigger.ALLOCATION)
            assert loop.kubelet.asked[-1] is False
            assert _owners(loop.state)["newer"] == ["r"]
            loop.kubelet.offered = _offered("a", "b")
            await loop.until(lambda: loop.state.notes == ())
            assert _kinds(loop.state) == ["unhealthy_held"]
            loop.kubelet.listed = _listed(a="p")
            await loop.trigger(Trigger.TIMER)
    told = [record.message for record in caplog.records if "Allocatable" in record.message]
    assert (
        told
        == [
            "the kubelet does not answer GetAllocatableResources",
            "the kubelet does not answer GetAllocatableResources: over",
        ]
        * 2
    )


async def test_old_allocatable_answer_is_dropped() -> None:
    async with running(stale_after=0.05, interval=0.01) as loop:
        loop.kubelet.offered = b"\xff\xff"
        await loop.until(lambda: not loop.state.snapshot.complete)
        assert _owners(loop.state) == {"a": ["p"]}
        assert "health are unknown" in loop.state.notes[0]
        assert loop.state.failure is None


async def test_owners_are_known_without_any_allocatable_answer() -> None:
    async with running(Kubelet(offered=b"\xff\xff")) as loop:
        assert _owners(loop.state) == {"a": ["p"]}
        assert not loop.state.snapshot.complete
        assert _kinds(loop.state) == []
        loop.kubelet.offered = _offered("a", "b")
        await loop.until(lambda: loop.state.snapshot.complete)
        assert _owners(loop.state) == {"a": ["p"], "b": []}


async def test_unexpected_error_does_not_end_the_loop() -> None:
    async with running() as loop:
        loop.kubelet.error = ZeroDivisionError("odd")
        await loop.trigger(Trigger.TIMER)
        assert loop.state.failure is not None
        assert (loop.state.failure.code, loop.state.failure.message) == ("INTERNAL", "ZeroDivisionError: odd")
        loop.kubelet.error = None
        await loop.until(lambda: loop.state.failure is None)

        loop.kubelet.reset_error = RuntimeError("cannot be closed")
        await loop.trigger(Trigger.SOCKET)
        assert loop.state.failure is not None
        loop.kubelet.reset_error = None
        await loop.until(lambda: loop.state.failure is None)


async def test_failed_step_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as loop:
        find = anomalies.find

        def fail(*_: object, **__: object) -> None:
            raise ZeroDivisionError("odd")

        monkeypatch.setattr(anomaly_tracker, "find", fail)
        loop.kubelet.listed = _listed(a="p", b="q")
        await loop.trigger(Trigger.ALLOCATION)
        assert _owners(loop.state) == {"a": ["p"], "b": []}
        assert loop.state.failure is not None
        monkeypatch.setattr(anomaly_tracker, "find", find)
        await loop.until(lambda: loop.state.failure is None)
        assert _owners(loop.state) == {"a": ["p"], "b": ["q"]}
        assert [holding.holder.pod for holding in loop.observer.steps[-1][1].change.began] == ["q"]


async def test_failing_observer_does_not_hold_back_the_snapshot() -> None:
    async with running() as loop:
        loop.observer.error = ZeroDivisionError("odd")
        loop.kubelet.listed = _listed(a="p", b="q")
        await loop.trigger(Trigger.ALLOCATION)
        loop.observer.error = None
        await loop.until(lambda: loop.state.failure is None)
        assert _owners(loop.state) == {"a": ["p"], "b": ["q"]}
        assert len(loop.state.since) == 2


async def test_socket_change_resets_the_connection() -> None:
    async with running() as loop:
        assert loop.kubelet.resets == []
        await loop.trigger(Trigger.ALLOCATION)
        await loop.trigger(Trigger.SOCKET)
        assert loop.kubelet.resets == [2]
        assert loop.kubelet.asked == [True, False, True]


@pytest.mark.parametrize("cause", [Trigger.REGISTRATION, Trigger.SOCKET])
async def test_registration_causes_settling_refreshes(cause: Trigger) -> None:
    # What comes while one is under way shares the next: they are far apart.
    async with running(settling=(0.05, 1.0)) as loop:
        await loop.trigger(cause)
        await loop.until(lambda: len(loop.observer.refreshes) == 4)
        assert loop.observer.refreshes == [
            (Trigger.START,),
            (cause,),
            (Trigger.SETTLING,),
            (Trigger.SETTLING,),
        ]
        assert loop.kubelet.asked == [True] * 4


async def test_incomplete_list_after_a_restart_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triggers, "UNSETTLED_RETRY", 0.005)
    async with running() as loop:
        loop.kubelet.listed = _listed()
        await loop.trigger(Trigger.SOCKET)
        await loop.refreshed(2)
        assert _owners(loop.state) == {"a": ["p"], "b": []}
        assert loop.state.failure is not None
        assert loop.state.failure.code == "UNSETTLED"
        assert "1 with devices are missing" in loop.state.failure.message
        # It lists them again: nobody ever let go.
        loop.kubelet.listed = _listed(a="p")
        await loop.until(lambda: loop.state.failure is None)
        assert loop.state.generation == 1


async def test_pods_missing_beyond_the_distrust_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "UNSETTLED_RETRY", 0.005)
    async with running() as loop:
        loop.kubelet.listed = _listed()
        loop.kubelet.error = _unavailable()
        await loop.trigger(Trigger.TIMER)
        loop.kubelet.error = None
        await loop.until(lambda: loop.state.failure is not None and loop.state.failure.code == "UNSETTLED")
        assert asyncio.get_running_loop().time() - loop.refresher._restarted_at < LIMIT
        loop.refresher._restarted_at -= DISTRUST
        await loop.until(lambda: loop.state.failure is None)
        assert _owners(loop.state) == {"a": [], "b": []}


async def test_restart_is_noticed_by_the_socket_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC makes a broken connection anew without a word, and without inotify the directory tells late."""
    monkeypatch.setattr(triggers, "UNSETTLED_RETRY", 0.005)
    async with running(Kubelet(socket_age=500.0)) as loop:
        loop.kubelet.listed, loop.kubelet.socket_age = _listed(), 0.1
        await loop.trigger(Trigger.TIMER)
        assert _owners(loop.state) == {"a": ["p"], "b": []}
        assert loop.state.failure is not None
        assert loop.state.failure.code == "UNSETTLED"
        loop.kubelet.listed = _listed(a="p")
        await loop.until(lambda: loop.state.failure is None)
        # From then on it is believed at once, young as it is.
        loop.kubelet.listed = _listed()
        await loop.trigger(Trigger.TIMER)
        assert _owners(loop.state) == {"a": [], "b": []}


async def test_release_soon_after_the_start_is_believed() -> None:
    """The directory is looked at for the first time then, which says that the socket may have come."""
    async with running(started=False) as loop:
        loop.refresher.trigger(Trigger.SOCKET)
        await loop.until(lambda: loop.state.generation == 1)
        loop.kubelet.listed = _listed()
        await loop.trigger(Trigger.ALLOCATION)
        assert loop.state.failure is None
        assert _owners(loop.state) == {"a": [], "b": []}


async def test_clock_step_during_a_refresh_makes_nothing_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000_000.0]
    clock = Clock(wall=lambda: now[0])
    reading, go_on = threading.Event(), threading.Event()
    build = SnapshotBuilder.build

    def slow(*arguments: object, **settings: object) -> Snapshot:
        reading.set()
        assert go_on.wait(LIMIT)
        return build(*arguments, **settings)  # type: ignore[arg-type]

    async with running(clock=clock) as loop:
        monkeypatch.setattr(SnapshotBuilder, "build", slow)
        for hours in (+5, -9):
            reading.clear()
            go_on.clear()
            now[0] += hours * 3600
            loop.kubelet.listed = _listed(a="p", **{f"new{hours}": "q"})
            loop.refresher.trigger(Trigger.TIMER)
            await loop.until(reading.is_set)
            assert loop.state.age(clock.now()) == pytest.approx(0, abs=LIMIT)
            assert loop.state.freshness(clock.now(), 60) is Freshness.FRESH
            generation = loop.state.generation
            go_on.set()
            await loop.until(lambda generation=generation: loop.state.generation > generation)  # type: ignore[misc]
            assert loop.state.taken_at == pytest.approx(now[0], abs=LIMIT)
            assert loop.state.age(clock.now()) == pytest.approx(0, abs=LIMIT)
        newest = [since for holding, since in loop.state.since.items() if holding.key.device == "new-9"]
        assert [since.at for since in newest] == pytest.approx(now, abs=LIMIT)


async def test_shutdown_does_not_wait_for_processing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> Snapshot:
        reading.set()
        go_on.wait(LIMIT)
        return Snapshot()

    monkeypatch.setattr(SnapshotBuilder, "build", slow)
    try:
        async with running(started=False) as refreshing:
            await refreshing.until(reading.is_set)
            took = Stopwatch()
        assert took.seconds < 1
    finally:
        go_on.set()


UID = PodIdentity("n", "p", "uid-1", "Running")


def _uids(state: State) -> dict[str, list[str]]:
    return {d.key.device: [h.pod_uid for h in d.holders] for d in state.snapshot.devices if d.holders}


async def test_proven_uid_is_published_without_calling_the_kubelet() -> None:
    witness = Knowing()
    witness.register.see(UID, asyncio.get_running_loop().time())
    async with running(pods=witness) as loop:
        # The mapping does not wait for it.
        assert _uids(loop.state) == {"a": [""]}
        before = loop.state
        ((published, look),) = witness.looks
        assert published is before
        assert look.asked <= look.answered
        witness.confirm()
        loop.refresher.reconsider()
        await loop.until(lambda: loop.state.generation == 2)
        assert _uids(loop.state) == {"a": ["uid-1"]}
        assert dict(loop.state.pods) == {UID.key: UID}
        assert len(loop.kubelet.calls) == 1
        assert loop.observer.rereads == 1
        assert loop.state.taken_at == before.taken_at
        # It is the same holding.
        assert [since.at for since in loop.state.since.values()] == [s.at for s in before.since.values()]
        state, step = loop.observer.steps[-1]
        assert (state, step.change.began, step.change.ended) == (loop.state, (), ())
        assert len(witness.looks) == 2

        # What more is known of a pod changes no holding.
        witness.register.see(replace(UID, labels=(("team", "ml"),)), asyncio.get_running_loop().time())
        loop.refresher.reconsider()
        await loop.until(lambda: loop.state.generation == 3)
        assert loop.state.pods[UID.key].labels == (("team", "ml"),)
        assert len(loop.observer.steps) == 2
        loop.refresher.reconsider()
        await loop.trigger(Trigger.TIMER)
        assert loop.state.generation == 3


async def test_new_holding_of_a_continued_pod_puts_its_uid_in_doubt() -> None:
    witness = Knowing()
    witness.register.see(UID, asyncio.get_running_loop().time())
    async with running(pods=witness) as loop:
        witness.confirm()
        loop.refresher.reconsider()
        await loop.until(lambda: _uids(loop.state) == {"a": ["uid-1"]})
        # Its source is gone: what it had goes on, what it gets may be another's.
        witness.register.clear()
        await loop.trigger(Trigger.TIMER)
        assert _uids(loop.state) == {"a": ["uid-1"]}
        loop.kubelet.listed = _listed(a="p", b="p")
        await loop.trigger(Trigger.ALLOCATION)
        assert _uids(loop.state) == {"a": [""], "b": [""]}
        assert loop.state.pods == {}
        began = loop.observer.steps[-1][1].change.began
        assert [holding.key.device for holding in began] == ["b"]


async def test_failing_reread_leaves_the_mapping_unchanged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devicelens")
    async with running(pods=Knowing()) as loop:

        def fail(*_: object) -> None:
            raise ZeroDivisionError("odd")

        monkeypatch.setattr(pipeline, "identify", fail)
        good = loop.state
        loop.refresher.reconsider()
        await loop.until(lambda: "cannot be read again" in caplog.text)
        assert loop.state is good
