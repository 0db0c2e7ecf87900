"""runtime.loop_lag with a clock that only the test moves."""

import asyncio
import os
from collections.abc import Iterator
from selectors import EVENT_READ

import pytest

from runtime.exposition import CollectorBlocks, Format
from runtime.loop_lag import LagFamily, LagSelector, MeasuredLoop, take_lag


class ScriptedClock:
    """Returns the times of a script, one a call: when a selector is made, and before and after each wait."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)

    def __call__(self) -> float:
        return next(self._times)


@pytest.fixture
def readable() -> Iterator[int]:
    """A descriptor that can be read."""
    reader, writer = os.pipe()
    os.write(writer, b"x")
    yield reader
    os.close(reader)
    os.close(writer)


def test_the_lag_is_the_time_for_which_callbacks_hold_the_loop(readable: int) -> None:
    with LagSelector(ScriptedClock(0, 0, 1, 4, 5, 6, 6)) as selector:
        selector.register(readable, EVENT_READ)
        for _ in range(3):
            selector.select(60)
        assert selector.take() == 3


def test_a_wait_that_ends_too_late_counts_with_the_callbacks_after_it() -> None:
    with LagSelector(ScriptedClock(0, 0, 0.75, 1, 1)) as selector:
        selector.select(0.25)
        selector.select(0)
        assert selector.take() == 0.75


@pytest.mark.parametrize("timeout", [60, None])
def test_a_wait_that_an_event_ends_is_not_late(timeout: float | None, readable: int) -> None:
    with LagSelector(ScriptedClock(0, 0, 50, 50.5, 50.5)) as selector:
        selector.register(readable, EVENT_READ)
        for _ in range(2):
            selector.select(timeout)
        assert selector.take() == 0.5


def test_between_two_turns_without_a_wait_nothing_is_left_out() -> None:
    """Another thread may keep the GIL for that time."""
    with LagSelector(ScriptedClock(0, 0, 3, 5, 5)) as selector:
        selector.select(0)
        selector.select(-1)
        assert selector.take() == 5


def test_each_lag_is_taken_once() -> None:
    with LagSelector(ScriptedClock(0, 0, 0, 2, 2, 3, 3)) as selector:
        selector.select(0)
        selector.select(0)
        assert selector.take() == 2
        assert selector.take() == 0
        selector.select(0)
        assert selector.take() == 1


class HandClock:
    """Seconds that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_measured_loop_is_an_event_loop_with_its_lag() -> None:
    clock = HandClock()

    async def hold() -> tuple[float, float]:
        await asyncio.sleep(0)
        before = take_lag()
        clock.now += 7
        await asyncio.sleep(0)
        return before, take_lag()

    with asyncio.Runner(loop_factory=lambda: MeasuredLoop(clock)) as runner:
        assert runner.run(hold()) == (0, 7)


def test_the_metric_is_the_longest_lag_since_the_last_scrape() -> None:
    clock = HandClock()

    async def scraped() -> list[str]:
        blocks, found = CollectorBlocks(LagFamily("x")), list[str]()
        for seconds in (0.25, 7.0, 0.0):
            for held in (seconds, seconds / 2):
                clock.now += held
                await asyncio.sleep(0)
            found.append(blocks.of(Format.TEXT).text.decode().splitlines()[-1])
        return found

    with asyncio.Runner(loop_factory=lambda: MeasuredLoop(clock)) as runner:
        lags = ["0.25", "7.0", "0.0"]
        assert runner.run(scraped()) == [f"x_event_loop_lag_seconds {lag}" for lag in lags]


def test_another_loop_has_no_lag() -> None:
    async def lag() -> float:
        return take_lag()

    assert asyncio.run(lag()) == 0
