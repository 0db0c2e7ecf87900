"""The processes are killed, ended, stopped for a while, and upgraded in place."""

import asyncio
import os
import random
import signal
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from harness.processes import TREE
from harness.trials import ground
from harness.trials.census import census
from harness.trials.fault import FULL, Fault
from harness.trials.ground import STALE_AFTER
from harness.trials.observer import Observer
from harness.trials.previous import previous
from harness.trials.trial import Around, Trial, trying
from harness.waiting import until

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

GROUP = "The processes"
KILLED = Fault(
    "sigkill",
    GROUP,
    "SIGKILL to either, at random, while pods come and go; another one follows at once or a second later",
    "The next exporter tells no owner that it has not heard of; the next plugin serves what the last one did "
    "and clears up after it",
    short=2,
    full=60,
)
ENDED = Fault(
    "sigterm",
    GROUP,
    "SIGTERM to either, at random, while pods come and go; another one follows at once or a second later",
    "It ends with status 0 within two seconds, and leaves no socket and no file",
    short=2,
    full=60,
)
STOPPED = Fault(
    "sigstop",
    GROUP,
    "SIGSTOP to either, at random, and SIGCONT up to 3 s later, while pods come and go",
    "What it says when it goes on is true by then",
    short=2,
    full=60,
)
UPGRADED = Fault(
    "upgrade",
    GROUP,
    "Another version of both starts beside the first, on the same directories and sockets; the kubelet "
    "restarts; the first ends; in the next round it is the other way round",
    "Both exporters tell the truth all the while, one of them keeps history; each resource is served, and in "
    "the end by the new plugin alone",
)
SLACK = 2.0
"""Seconds that a signal's sender may wait on a machine that has other things to do."""


async def _replaced(fault: Fault, number: signal.Signals) -> None:
    order = random.Random(fault.name)
    async with trying(fault) as trial:
        slowest = 0.0
        async for turn in trial.rounds():
            of_exporter = turn == 0 if turn < 2 else order.random() < 0.5
            async with trial.disturbed():
                await asyncio.sleep(order.random())
                began = time.monotonic()
                pause = order.choice((0.0, 1.0))
                if of_exporter:
                    async with trial.without_exporter():
                        status = await trial.exporter.stop(number)
                        slowest = max(slowest, time.monotonic() - began)
                        await asyncio.sleep(pause)
                else:
                    status = await trial.plugin.stop(number)
                    slowest = max(slowest, time.monotonic() - began)
                    await asyncio.sleep(pause)
                    await trial.plugin.start()
                assert status == (0 if number is signal.SIGTERM else -number)
        if number is signal.SIGTERM:
            trial.figures["slowest end, s"] = round(slowest, 2)
            # `make faults` runs alone on its machine.
            assert slowest < 2.0 + SLACK or not FULL


async def test_either_is_killed() -> None:
    await _replaced(KILLED, signal.SIGKILL)


async def test_either_is_ended() -> None:
    await _replaced(ENDED, signal.SIGTERM)


async def test_either_is_stopped_for_a_while() -> None:
    order = random.Random(STOPPED.name)
    async with trying(STOPPED) as trial:
        async for turn in trial.rounds():
            of_exporter = turn == 0 if turn < 2 else order.random() < 0.5
            process = trial.exporter if of_exporter else trial.plugin
            async with trial.disturbed():
                await asyncio.sleep(order.random())
                with trial.observer.absent(replaced=False) if of_exporter else nullcontext():
                    os.kill(process.pid, signal.SIGSTOP)
                    try:
                        await asyncio.sleep(order.choice((0.2, 1.0, 3.0)))
                    finally:
                        os.kill(process.pid, signal.SIGCONT)


async def test_both_are_upgraded_in_place() -> None:
    with previous() as before:
        versions = (before.tree, TREE)
        async with trying(UPGRADED, Around(tree=before.tree)) as trial:
            trial.figures["from"] = before.name
            for process in trial.processes.values():
                assert (await census(process)).code == (str(before.tree),)
            async for number in trial.rounds():
                around = replace(trial.around, tree=versions[(number + 1) % 2])
                await _upgrade(trial, around, number)
                await trial.recovers()


async def _upgrade(trial: Trial, around: Around, number: int) -> None:
    names = ("exporter", "plugin") if number % 2 else ("exporter-next", "plugin-next")
    exporter = ground.exporter(trial.directory, around, names[0])
    plugin = ground.plugin(trial.directory, around, names[1])
    # Each has a socket of its own for people, and a place for what is temporary.
    if number == 0:
        trial.new_files.update({"plugin.sock": 1, "plugin-next.sock": 1})
    async with trial.churning():
        await trial.stack.enter_async_context(plugin)
        await trial.stack.enter_async_context(exporter)
        url = await exporter.url()
        for process in (exporter, plugin):
            assert (await census(process)).code == (str(around.tree),)
        second = Observer(trial.truth, lambda: url, STALE_AFTER)
        async with second.watching():
            await until("the second exporter has a mapping", lambda: _has_looked(second))
            await trial.kubelet.restart()
            await asyncio.sleep(2.0)
            # Of a former version it is not promised that it ends in time on a busy machine.
            ends = {0} if number else {0, 1}
            assert await trial.plugin.stop() in ends
            async with trial.without_exporter():
                assert await trial.exporter.stop() in ends
                trial.exporter, trial.plugin, trial.url = exporter, plugin, url
                trial.plugin_url = ground.plugin_url(trial.directory, names[1])
        assert second.problems == [], second.problems
        trial.observer.seen.scrapes += second.seen.scrapes
        trial.observer.seen.documents += second.seen.documents


async def _has_looked(observer: Observer) -> bool:
    return observer.seen.owners > 0
