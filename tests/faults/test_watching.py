"""Nothing tells of changes: inotify is exhausted, or overflows."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from harness import owners
from harness.trials import places
from harness.trials.fault import FULL, Fault
from harness.trials.trial import Around, Trial, trying
from harness.waiting import until

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

GROUP = "Watching"
OVERFLOW = Fault(
    "overflow",
    GROUP,
    "Both processes stand still while more happens in the directories than a watch holds, the kubelet's "
    "restart included",
    "They look anew, and see what they were not told",
    full=10,
)


@pytest.mark.parametrize("limit", [places.INSTANCES, places.WATCHES])
async def test_inotify_has_nothing_left(limit: str) -> None:
    fault = _of(limit)
    async with trying(fault, Around(before=places.without_inotify(limit))) as trial:
        async for number in trial.rounds():
            if number > 0:
                await _start_anew(trial)
            reason = f"fs.inotify.{limit.replace('max_inotify', 'max_user')}"
            for process in trial.processes.values():
                assert reason in await process.line("no inotify, polling instead")
            assert any(reason in words for words in await _triggers(trial))
            async with trial.disturbed():
                await asyncio.sleep(1.0)
                await trial.kubelet.restart()
            # Whoever has none tries to get an instance every half minute, and to get a watch every second.
            if FULL or limit == places.WATCHES:
                await _given(trial, limit)


async def _given(trial: Trial, limit: str) -> None:
    async with trial.disturbed():
        for process in trial.processes.values():
            places.give_inotify(process.pid, limit, 128)
        for process in trial.processes.values():
            await process.line("no inotify, polling instead: over", limit=60.0)
        assert any("inotify on device-plugins" in words for words in await _triggers(trial))


def _of(limit: str) -> Fault:
    short = limit.removeprefix("max_inotify_")
    return Fault(
        f"inotify-{short}",
        GROUP,
        f"Both processes start while inotify has no {short} left for them, and the kubelet restarts; later "
        "there are some",
        "Both poll, and say so and why; they use inotify as soon as they can",
        full=5,
        withdraws=True,
    )


async def _start_anew(trial: Trial) -> None:
    async with trial.without_exporter():
        await trial.exporter.stop()
    await trial.plugin.stop()
    trial.plugin.lines.clear()
    await trial.plugin.start()
    await until("everything is told as it is", trial.settled)


async def _triggers(trial: Trial) -> list[str]:
    triggers = (await owners.get_json(trial.url, "/api/v1/status"))["triggers"]
    assert isinstance(triggers, list)
    return triggers


async def test_a_watch_overflows() -> None:
    events = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    async with trying(OVERFLOW) as trial:
        async for _ in trial.rounds():
            for process in trial.processes.values():
                process.lines.clear()
            async with trial.without_exporter():
                for process in trial.processes.values():
                    os.kill(process.pid, signal.SIGSTOP)
                _more_than(events, trial.kubelet.root / "device-plugins")
                await trial.kubelet.restart()
                for process in trial.processes.values():
                    os.kill(process.pid, signal.SIGCONT)
            async with trial.disturbed():
                for process in trial.processes.values():
                    await process.line("inotify events were lost")


def _more_than(events: int, directory: Path) -> None:
    """So many changes that no watch holds them."""
    for number in range(events // 2 + 100):
        made = directory / f"f{number}"
        made.touch()
        made.unlink()
