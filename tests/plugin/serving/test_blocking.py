import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from harness.waiting import LIMIT, until, until_holds
from plugin.serving import probes
from plugin.serving.blocking import Call, Offload, StuckError, begin
from plugin.serving.probes import ProbeRunner, Question


class Answers:
    """What was answered, in order."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []

    def __call__(self, question: Question, reason: str) -> None:
        self.got.append((question.device, reason))


def question(device: str, ask: Callable[[], str] = str, timeout: float = 5.0) -> Question:
    return Question(device, 0, "health[0].exists", timeout, None, with_scans=True, ask=ask)


async def test_probes_run_in_order_in_one_thread() -> None:
    answers = Answers()
    threads: set[int] = set()

    def ask() -> str:
        threads.add(threading.get_ident())
        return "bad"

    await ProbeRunner().run([question(str(n), ask) for n in range(1000)], answers)
    assert answers.got == [(str(n), "bad") for n in range(1000)]
    assert len(threads) == 1


async def test_hanging_threads_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MOST_HANGING", 3)
    release, answers = threading.Event(), Answers()
    before = threading.active_count()
    try:
        many = [question(str(n), lambda: str(release.wait(30)), 0.05) for n in range(50)]
        await ProbeRunner().run(many, answers)
        assert len(answers.got) == 50
        assert all(reason for _, reason in answers.got)
        assert threading.active_count() - before <= 3 + probes.MOST_THREADS
        assert any("others have not answered" in reason for _, reason in answers.got)
    finally:
        release.set()


async def test_a_probe_with_a_defect_fails() -> None:
    answers = Answers()

    def broken() -> str:
        raise RuntimeError("boom")

    await ProbeRunner().run([question("a", broken), question("b")], answers)
    assert answers.got == [("a", "health[0].exists: RuntimeError: boom"), ("b", "")]


async def test_a_cancelled_run_leaves_no_thread_at_work() -> None:
    release, answers = threading.Event(), Answers()
    runs: list[str] = []
    before = set(threading.enumerate())  # other tests' threads stay for a while

    def slow() -> str:
        runs.append("")
        return str(release.wait(30))

    task = asyncio.create_task(ProbeRunner().run([question(str(n), slow) for n in range(100)], answers))
    await until_holds(lambda: runs)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await until_holds(
        lambda: not any(thread.name == "blocking" for thread in set(threading.enumerate()) - before)
    )
    assert len(runs) <= probes.MOST_THREADS


async def test_a_thread_stays_for_the_next_call_and_ends_without_one() -> None:
    offload = Offload(linger=20)
    first = await offload.run(threading.current_thread, limit=LIMIT)
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0, limit=LIMIT)
    assert [await offload.run(threading.current_thread, limit=LIMIT) for _ in range(5)] == [first] * 5
    offload = Offload(linger=0.05)
    brief = await offload.run(threading.current_thread, limit=LIMIT)
    await until_holds(lambda: not brief.is_alive())
    assert await offload.run(threading.current_thread, limit=LIMIT) is not brief


async def test_concurrent_calls_have_threads_of_their_own() -> None:
    offload = Offload(linger=5)
    barrier = threading.Barrier(3)
    await asyncio.gather(*(offload.run(lambda: barrier.wait(20), limit=LIMIT) for _ in range(3)))


async def test_without_lingering_a_thread_ends_with_its_call() -> None:
    offload = Offload()
    thread = await offload.run(threading.current_thread, limit=LIMIT)
    thread.join(20)
    assert not thread.is_alive()


async def test_calls_that_hang_are_abandoned_and_limited() -> None:
    offload = Offload(1, linger=60)
    go = threading.Event()
    with pytest.raises(StuckError, match=r"no answer within 0.05 s"):
        await offload.run(go.wait, limit=0.05)
    with pytest.raises(StuckError, match="an earlier call still hangs"):
        await offload.run(time.time, limit=LIMIT)
    go.set()

    async def again() -> bool:
        try:
            return await offload.run(lambda: True, limit=LIMIT)
        except StuckError:
            return False

    await until("another call", again, pause=0.01)


async def test_the_event_loop_itself_waits_for_a_quick_call_only() -> None:
    offload = Offload(1, in_place=20)
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "the event loop")
    assert await offload.run(lambda: "quick", limit=LIMIT) == "quick"
    assert turns == []
    with pytest.raises(TimeoutError, match="of the call"):
        await offload.run(_fail_with_a_timeout, limit=LIMIT)
    go = threading.Event()
    offload = Offload(1, in_place=0.001)
    slow = asyncio.create_task(offload.run(lambda: go.wait(20), limit=LIMIT))
    await asyncio.sleep(0)  # the event loop runs meanwhile
    go.set()
    assert await slow


def _fail_with_a_timeout() -> None:
    raise TimeoutError("of the call")


async def test_a_call_that_ends_before_the_event_loop_waits_for_it_is_not_missed() -> None:
    go = threading.Event()
    call = begin(lambda: go.wait(20), [], 0.0)
    assert not call.ends_within(0.001)
    go.set()
    await until_holds(lambda: call.ended)
    await asyncio.wait_for(call.wait(), LIMIT)
    assert call.result()


async def test_a_call_that_ends_while_the_event_loop_begins_to_wait_is_not_missed() -> None:
    """The calls end at different points of the time in place and of what follows."""
    offload = Offload(linger=20, in_place=0.00005)

    def slow(number: int) -> int:
        time.sleep(number % 50 / 500_000)
        return number

    assert [await offload.run(partial(slow, n), limit=LIMIT) for n in range(500)] == list(range(500))


async def test_a_thread_that_ends_loses_no_call() -> None:
    """Calls come at about the time at which the idle thread ends."""
    offload = Offload(linger=0.0002)
    for n in range(300):
        assert await offload.run(partial(abs, n), limit=LIMIT) == n
        await asyncio.sleep(0.0002)


async def test_a_call_that_was_cancelled_before_it_began_is_not_run() -> None:
    runs: list[str] = []
    call = Call(lambda: runs.append("run"))
    waiting = asyncio.create_task(call.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    call.run(lambda: runs.append("before the end"))
    assert (runs, call.ended) == (["before the end"], True)


async def test_a_call_may_outlive_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> None:
        raise RuntimeError("Event loop is closed")

    call = Call(lambda: None)
    waiting = asyncio.create_task(call.wait())
    await asyncio.sleep(0)
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", closed)
        call.run(lambda: None)
    assert call.ended
    waiting.cancel()
