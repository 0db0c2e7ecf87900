"""The clock jumps an hour, ahead or back, under both processes."""

import asyncio
import time

import pytest

from harness import owners
from harness.trials.clock import JumpingClock, jumping_clock
from harness.trials.fault import FULL, Fault
from harness.trials.trial import Around, Trial, trying
from harness.waiting import until
from simulator import Faults

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

HOUR = 3600
JUMPS = Fault(
    "clock",
    "Time",
    "The wall clock of both processes jumps an hour ahead and back, and behind and back, up to twelve times "
    "a round, while the kubelet answers and while it hangs",
    "Nothing disappears and nothing stale is told: ages follow the steady clock",
    full=10,
)


async def test_the_clock_jumps_an_hour_either_way() -> None:
    with jumping_clock() as clock:
        async with trying(JUMPS, Around(environment=clock.environment)) as trial:
            trial.observer.ahead = (0.0, HOUR, -HOUR)
            async for _ in trial.rounds():
                for ahead in (HOUR, 0, -HOUR, 0) if FULL else (HOUR, -HOUR):
                    await _jump(trial, clock, ahead, hanging=False)
                    await _jump(trial, clock, 0 if ahead else HOUR, hanging=True)
                    await _jump(trial, clock, ahead, hanging=False)
            clock.set_ahead(0)
            await trial.recovers()


async def _jump(trial: Trial, clock: JumpingClock, ahead: int, *, hanging: bool) -> None:
    async with trial.disturbed():
        if hanging:
            await trial.kubelet.set_faults(Faults(hang=True))
            await trial.says("DEADLINE_EXCEEDED")
        clock.set_ahead(ahead)
        if hanging:
            # Its age is what it is, whatever the clock says.
            age = (await owners.get_json(trial.url, "/api/v1/devices"))["age_seconds"]
            assert 0 <= age < HOUR / 10, age
            await asyncio.sleep(1.0)
            await trial.kubelet.set_faults(Faults())
        # It is this clock by which the exporter dates what it asks for from now on.
        await until("the kubelet is asked by this clock", lambda: _is_dated(trial, ahead))


async def _is_dated(trial: Trial, ahead: int) -> bool:
    taken = (await owners.scrape(trial.url)).value("devicelens_last_refresh_success_timestamp_seconds")
    assert taken is not None
    return abs(taken - (time.time() + ahead)) < HOUR / 10
