"""Looks in threads: bounded in time, and a thread that stays for the next one."""

import asyncio
import threading
import time

import pytest

from harness.waiting import until
from plugin.serving.blocking import Offload, StuckError


async def test_what_a_look_gives_or_raises_comes_back() -> None:
    offload = Offload()
    assert await offload.run(lambda: 42, limit=20) == 42
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0, limit=20)


async def test_a_thread_stays_for_the_next_look_and_ends_when_there_is_none() -> None:
    offload = Offload(linger=0.2)
    first = await offload.run(threading.current_thread, limit=20)
    assert [await offload.run(threading.current_thread, limit=20) for _ in range(5)] == [first] * 5
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0, limit=20)
    assert await offload.run(threading.current_thread, limit=20) is first

    async def ended() -> bool:
        return not first.is_alive()

    await until("its end", ended, limit=20, pause=0.01)
    assert await offload.run(threading.current_thread, limit=20) is not first


async def test_looks_at_the_same_time_have_threads_of_their_own() -> None:
    offload = Offload(linger=5)
    barrier = threading.Barrier(3)
    await asyncio.gather(*(offload.run(lambda: barrier.wait(20), limit=20) for _ in range(3)))


async def test_without_lingering_a_thread_ends_with_its_look() -> None:
    offload = Offload()
    thread = await offload.run(threading.current_thread, limit=20)
    thread.join(20)
    assert not thread.is_alive()


async def test_a_look_that_hangs_is_left_behind_and_no_more_than_few_are() -> None:
    offload = Offload(1, linger=60)
    go = threading.Event()
    with pytest.raises(StuckError, match=r"no answer within 0.05 s"):
        await offload.run(go.wait, limit=0.05)
    with pytest.raises(StuckError, match="an earlier look at the host still hangs"):
        await offload.run(time.time, limit=20)
    go.set()

    async def again() -> bool:
        try:
            return await offload.run(lambda: True, limit=20)
        except StuckError:
            return False

    await until("another look", again, limit=20, pause=0.01)
