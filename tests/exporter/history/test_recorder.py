"""exporter.history.recorder: observes the refresh loop without delaying it."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter.history import recorder as module
from exporter.history.archive import Archive, HistoryLimits
from exporter.history.coverage import PollRecord, PollTimes
from exporter.history.feed import HistoryFeed
from exporter.history.query import HistoryQuery, HistoryResult
from exporter.history.record import Certainty
from exporter.history.recorder import WAITING_POLLS, HistoryRecorder, HistoryUnavailable
from exporter.history.store import StoreError
from exporter.mapping.holdings import HoldingTracker, OpenHoldings, holdings
from exporter.mapping.identity import PodIdentity, Workload
from exporter.mapping.model import ClaimHolding, Device, DeviceKey, Holder, Snapshot
from exporter.mapping.state import State, StateStore
from exporter.refresh.protocols import Trigger
from harness import scene
from harness.waiting import background, until_holds
from runtime.clock import Clock

GPU = "example.com/gpu"
POD = Holder("ns", "p", "c")


def held(*devices: str, holder: Holder = POD) -> Snapshot:
    return Snapshot(devices=tuple(Device(DeviceKey(GPU, name), holders=(holder,)) for name in devices))


@dataclass
class Remembering:
    """A HoldingRestorer that keeps what it gets."""

    restored: list[OpenHoldings] = field(default_factory=list[OpenHoldings])

    def restore(self, recorded: OpenHoldings) -> None:
        self.restored.append(recorded)


@dataclass
class Running:
    """A recorder that runs, and the refresh loop in the test's hands."""

    recorder: HistoryRecorder
    states: StateStore
    remembering: Remembering
    tracker: HoldingTracker = field(default_factory=HoldingTracker)
    now: float = 1_800_000_000.0

    def refresh(
        self,
        snapshot: Snapshot | None,
        *triggers: Trigger,
        after: float = 5.0,
        took: float = 0.01,
        **more: object,
    ) -> None:
        """What the refresh loop does in `took` seconds; None: the kubelet does not answer."""
        observer = self.recorder
        self.now += after
        if snapshot is None:
            observer.failed("List", "UNAVAILABLE")
        else:
            state = self.states.state
            if snapshot != state.snapshot or state.taken_at is None or more:
                step = self.tracker.advance(snapshot, self.now)
                generation = state.generation + 1
                state = State(generation, snapshot, self.now, self.now, step.since, **more)  # type: ignore[arg-type] # as given
                self.states.publish(state)
                observer.changed(state, step)
            else:
                self.states.publish(State(state.generation, snapshot, self.now, self.now, state.since))
        observer.refreshed(triggers or (Trigger.TIMER,), took)

    async def restored(self, times: int = 1) -> None:
        """Wait until history has given the starts of holdings so often."""
        await until_holds(lambda: len(self.remembering.restored) == times, "history gives the starts")

    async def ask(self, **question: object) -> HistoryResult:
        return await self.recorder.find(HistoryQuery(**question))  # type: ignore[arg-type] # as given


@asynccontextmanager
async def running(path: Path | None, *, now: float = 1_800_000_000.0) -> AsyncGenerator[Running]:
    states, remembering = StateStore(), Remembering()
    found: list[Running] = []
    clock = Clock(lambda: found[0].now if found else now, lambda: found[0].now if found else now)
    archive = Archive(path, HistoryLimits(30 * 86400.0, 64 << 20), doubt=10.0, clock=clock, retry=0.01)
    recorder = HistoryRecorder(
        archive,
        states,
        node="worker-3",
        clock=clock,
        patience=16.0,
        inotify=lambda: True,
    )
    found.append(Running(recorder, states, remembering, now=now))
    async with background(recorder.run(remembering)):
        yield found[0]


async def test_uid_proven_between_polls_is_recorded_at_once() -> None:
    async with running(None) as life:
        life.refresh(held())
        life.refresh(held("a"))
        life.now += 0.3
        known = held("a", holder=Holder("ns", "p", "c", "uid-1"))
        step = life.tracker.advance(known, life.now)
        state = life.states.state
        life.states.publish(State(state.generation + 1, known, state.taken_at, life.now, step.since))
        life.recorder.reread()
        life.recorder.reread()
        (row,) = (await life.ask()).rows
        assert (row.facts.uid, row.end) == ("uid-1", None)
        life.refresh(known)
        assert (await life.ask()).latest == life.now, "a poll without a change extends the coverage"
        life.refresh(held())
        (row,) = (await life.ask()).rows
        assert row.facts.uid == "uid-1"
        assert row.end is not None


async def test_refreshes_are_recorded() -> None:
    async with running(None) as life:
        life.refresh(held())
        began = life.now
        life.refresh(held("a"), Trigger.ALLOCATION)
        life.refresh(held("b"), Trigger.TIMER)
        gone, going = (await life.ask()).rows[::-1]
        assert (gone.key.device, going.key.device) == ("a", "b")
        assert gone.facts.node == "worker-3"
        assert gone.start.certainty is Certainty.AT_ONCE
        assert gone.start.not_before is not None
        assert gone.start.not_before > began
        # As the mapping dates it: held-since does not change when the exporter restarts.
        assert gone.start.not_after == began + 5.0
        assert gone.end is not None
        assert gone.end.certainty is Certainty.BETWEEN_POLLS
        assert life.recorder.condition.rows == 2


@pytest.mark.parametrize("slow", ["kubelet", "process"])
async def test_event_narrows_nothing_with_a_slow_kubelet_or_after_the_process_stood_still(slow: str) -> None:
    async with running(None) as life:
        life.refresh(held())
        began = life.now
        if slow == "process":
            await asyncio.sleep(0.01)  # the recorder runs
            time.sleep(0.5)  # noqa: ASYNC251 -- as SIGSTOP does
            await asyncio.sleep(0.01)  # as asking the kubelet takes
        life.refresh(held("a"), Trigger.ALLOCATION, took=2.5 if slow == "kubelet" else 0.01)
        (row,) = (await life.ask()).rows
        assert (row.start.not_before, row.start.certainty) == (began, Certainty.BETWEEN_POLLS)


async def test_claims_and_workloads_are_recorded() -> None:
    holder = POD._replace(pod_uid="u")
    claimed = scene.claimed("g0", ClaimHolding(holder, "ns", "mine", "s"), driver="d", pool="pool")
    identity = PodIdentity("ns", "p", "u", workload=Workload("Deployment", "web"))
    async with running(None) as life:
        life.refresh(Snapshot((claimed,)), pods={("ns", "p"): identity})
        (row,) = (await life.ask(driver="d")).rows
        assert row.key[:2] == ("d", "pool/g0")
        assert row.facts[:3] == ("u", "Deployment", "web")
        assert row.facts[5:] == ("ns", "mine", "s", "")
        # The claims source has read the claim.
        claimed = scene.claimed(
            "g0", ClaimHolding(holder, "ns", "mine", "s", "r", "x/gpu", admin=False), driver="d", pool="pool"
        )
        life.refresh(Snapshot((claimed,)), pods={("ns", "p"): identity})
        for question in ({"resource": "x/gpu"}, {"resource": "d"}, {"claim": "mine"}):
            (now,) = (await life.ask(**question)).rows
            assert (now.id, now.start, now.facts.requested_as) == (row.id, row.start, "x/gpu")


async def test_free_devices_are_recorded_when_they_change() -> None:
    async with running(None) as life:
        life.refresh(Snapshot((Device(DeviceKey(GPU, "a")), Device(DeviceKey(GPU, "b")))))
        life.refresh(held("a"))
        both = life.now
        life.refresh(Snapshot((*held("a").devices, Device(DeviceKey(GPU, "b"), allocatable=False))))
        life.refresh(Snapshot(held("a").devices, complete=False))
        for at, states, recorded in (
            (both - 5, {"a": "free", "b": "free"}, True),
            (both + 5, {"b": "unhealthy"}, True),
            (life.now, {"b": "unknown"}, False),
        ):
            found = await life.ask(since=at, until=at)
            assert {one.key.device: one.state for one in found.devices} == states
            assert found.devices_recorded is recorded


async def test_next_process_restores_starts_and_rows_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    async with running(path) as life:
        await life.restored()
        life.refresh(held("b"))
        life.refresh(held("a"))
        since = life.tracker.since
    async with running(path, now=life.now + 60) as later:
        await later.restored()
        later.tracker.restore(later.remembering.restored[0])
        later.refresh(held("a"))
        assert later.tracker.since == since
        row, released = (await later.ask()).rows
        assert (released.key.device, released.end is None) == ("b", False)
        assert row.start.not_after == since[next(iter(holdings(held("a"))))].at


async def test_hanging_disk_blocks_nothing_and_costs_precision_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hung, over = threading.Event(), threading.Event()
    original = Archive.take

    def take(self: Archive, *arguments: object) -> None:
        hung.set()
        assert over.wait(20)
        original(self, *arguments)  # type: ignore[arg-type] # as given

    async with running(None) as life:
        life.refresh(held())
        await life.ask()
        monkeypatch.setattr(Archive, "take", take)
        monkeypatch.setattr(module, "ANSWER_WITHIN", 0.05)
        life.refresh(held("x"))
        await asyncio.to_thread(hung.wait, 20)
        for number in range(3 * WAITING_POLLS):
            life.refresh(held(f"d{number}"))
        assert len(life.recorder._waiting) == WAITING_POLLS  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(HistoryUnavailable, match="no answer within"):
            await life.ask()
        over.set()
        monkeypatch.undo()
        rows = (await life.ask(limit=1000)).rows
    # What came and went while too many looks waited is not known; the rest is, and the last is held.
    assert [row.key.device for row in rows if row.end is None] == [f"d{3 * WAITING_POLLS - 1}"]
    # The disk may have hung with a look in hand.
    assert WAITING_POLLS <= len(rows) <= WAITING_POLLS + 1


async def test_few_large_mappings_wait_and_none_after_it_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hung, over = threading.Event(), threading.Event()
    waiting, original = list[int](), Archive.take

    def take(archive: Archive, polls: Iterable[PollRecord], unchanged: PollTimes | None) -> None:
        def counted() -> Iterator[PollRecord]:
            for poll in polls:
                gc.collect()
                waiting.append(sum(one() is not None for one in states))
                yield poll

        hung.set()
        over.wait(20)
        original(archive, counted(), unchanged)

    async with running(None) as life:
        await life.ask()
        monkeypatch.setattr(module, "WAITING_DEVICES", 6)
        monkeypatch.setattr(Archive, "take", take)
        life.refresh(held("x"))
        await asyncio.to_thread(hung.wait, 20)
        states = list[weakref.ref[Snapshot]]()
        for number in range(8):
            snapshot = held(*(f"{number}-{device}" for device in range(3)))
            states.append(weakref.ref(snapshot))
            life.refresh(snapshot)
            del snapshot
        over.set()
        rows = (await life.ask(limit=1000)).rows
    # The last one is the present state.
    assert waiting[-2:] == [2, 1]
    assert {row.key.device for row in rows} == {
        "x",
        *(f"{n}-{device}" for n in (0, 7) for device in range(3)),
    }


async def test_open_rows_are_read_in_the_history_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    original = Archive.open_rows

    def open_rows(self: Archive) -> object:
        threads.append(threading.current_thread().name)
        return original(self)

    monkeypatch.setattr(Archive, "open_rows", open_rows)
    async with running(None) as life:
        await life.restored()
        life.recorder._archive.moves += 1  # pyright: ignore[reportPrivateUsage] -- as when a disk is back
        life.refresh(held("a"))

        await life.restored(2)
    assert all(name.startswith("history") for name in threads)
    assert threads


async def test_too_many_queries_at_once_are_refused() -> None:
    async with running(None) as life:
        life.refresh(held("a"))
        answers = await asyncio.gather(*(life.ask() for _ in range(30)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, HistoryUnavailable)]
        assert len(refused) == 30 - module.WAITING_QUERIES
        assert str(refused[0]) == "too many questions are waiting"
        assert (await life.ask()).rows
    with pytest.raises(HistoryUnavailable, match="ending"):
        await life.ask()


async def test_unreadable_store_makes_history_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object) -> None:
        raise StoreError("another program keeps it locked")

    async with running(None) as life:
        monkeypatch.setattr(Archive, "find", find)
        with pytest.raises(HistoryUnavailable, match="another program keeps it locked"):
            await life.ask()


async def test_unexpected_error_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    async with running(None) as life:
        life.refresh(held("a"))
        await life.ask()
        monkeypatch.setattr(Archive, "take", take)
        life.refresh(held("b"))

        await until_holds(lambda: "history failed" in caplog.text)
        monkeypatch.undo()
        life.refresh(held("b"))
        shown = {row.key.device: row.end is None for row in (await life.ask()).rows}
        assert shown == {"a": False, "b": True}, "the next poll is recorded whole, though nothing changed"


async def test_states_are_compared_in_the_history_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    original = HistoryFeed.filled

    def filled(self: HistoryFeed, *arguments: object) -> object:
        threads.append(threading.current_thread().name)
        return original(self, *arguments)  # type: ignore[arg-type] # as given

    monkeypatch.setattr(HistoryFeed, "filled", filled)
    async with running(None) as life:
        life.refresh(held("a"))
        life.refresh(held("b"))
        life.recorder.reread()
        await life.ask()
    assert len(threads) == 2
    assert all(name.startswith("history") for name in threads)
