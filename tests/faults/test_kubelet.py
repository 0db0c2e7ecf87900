"""The kubelet restarts, flaps, hangs and refuses."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import grpc.aio
import pytest

from harness import owners
from harness.trials.fault import FULL, Fault
from harness.trials.ground import ALLOCATABLE, STALE_AFTER
from harness.trials.trial import Around, Trial, trying
from harness.waiting import until, until_holds
from kubelet.paths import KubeletPaths, socket_target
from simulator import Faults, RegistrationFaults

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

GROUP = "The kubelet"
RESTART = Fault(
    "restart",
    GROUP,
    "It restarts while pods come and go, is away for up to half a second, and hears of its pods sooner or "
    "later",
    "The mapping never disappears, though a kubelet that has just come up lists nobody",
    full=100,
)
FLAPS = Fault(
    "flaps",
    GROUP,
    "It restarts five times, each as soon as it is up",
    "The mapping never disappears; the plugin is registered once in the end",
)
HANG = Fault(
    "hang-3s",
    GROUP,
    "It takes calls and does not answer for 3 s",
    "The mapping is kept with its age, /-/ready says DEADLINE_EXCEEDED",
)
LONG_HANG = Fault(
    "hang-15s",
    GROUP,
    "It takes calls and does not answer for 15 s, more than --stale-after",
    "The mapping is withdrawn from Prometheus when it is stale, and never before",
    full=5,
    withdraws=True,
)
REFUSES = Fault(
    "refuses",
    GROUP,
    "For a second it refuses: nobody listens on its socket, there is none, or every call is UNAVAILABLE",
    "The mapping is kept with its age, /-/ready says UNAVAILABLE",
    short=3,
    full=30,
)
REGISTRATION = Fault(
    "registration",
    GROUP,
    "It restarts, and for a second its Registration hangs, fails with INTERNAL, or is not there",
    "The plugin registers by itself, each resource once; owners are told as ever",
    short=3,
    full=30,
)
CROWDED = Fault(
    "rate-limit",
    GROUP,
    "Another program asks as fast as it can for 4 s and uses up the limit that all share",
    "The mapping never disappears; the exporter asks List and GetAllocatableResources at most 25 times a "
    "second for its part",
    full=10,
)


@pytest.mark.parametrize("source", ["none", "pods-api"])
async def test_the_kubelet_restarts(source: str) -> None:
    fault = replace(RESTART, name=f"restart-{source}", what=f"{RESTART.what} (--pods.source {source})")
    order = random.Random(source)
    async with trying(fault, Around(source=source)) as trial:
        async for _ in trial.rounds():
            async with trial.disturbed():
                await asyncio.sleep(order.random() / 2)
                _hears_after(trial, order.choice((0.0, 0.3, 0.8, 2.0)))
                await trial.kubelet.restart(order.choice((0.0, 0.1, 0.5)))


async def test_the_kubelet_flaps() -> None:
    async with trying(FLAPS, Around(source="pods-api")) as trial:
        async for _ in trial.rounds():
            async with trial.disturbed():
                for delay in (0.0, 0.8, 0.0, 0.3, 0.1):
                    _hears_after(trial, delay)
                    await trial.kubelet.restart()


def _hears_after(trial: Trial, seconds: float) -> None:
    """From its next start on the kubelet knows its pods that late."""
    node = trial.kubelet._node  # pyright: ignore[reportPrivateUsage]
    node.settings = replace(node.settings, sync_delay=seconds)


async def test_the_kubelet_hangs_for_3_seconds() -> None:
    async with trying(HANG) as trial:
        async for _ in trial.rounds():
            await _hang(trial, 3.0)


async def test_the_kubelet_hangs_longer_than_stale_after() -> None:
    stale_after = STALE_AFTER if FULL else 8.0
    async with trying(LONG_HANG, Around(stale_after=stale_after)) as trial:
        async for _ in trial.rounds():
            await _hang(trial, stale_after + 1.0, withdrawn=True)


async def _hang(trial: Trial, seconds: float, *, withdrawn: bool = False) -> None:
    """Hang for so long, and until the mapping is `withdrawn`."""
    before = trial.observer.seen.withdrawn
    async with trial.disturbed():
        await trial.kubelet.set_faults(Faults(hang=True))
        over = asyncio.create_task(asyncio.sleep(seconds))
        await trial.says("DEADLINE_EXCEEDED")
        await over
        if withdrawn:
            await until_holds(lambda: trial.observer.seen.withdrawn > before, "the mapping is withdrawn")
        await trial.kubelet.set_faults(Faults())


async def test_the_kubelet_refuses() -> None:
    async with trying(REFUSES) as trial:
        async for number in trial.rounds():
            async with trial.disturbed():
                await _refuse(trial, number)


async def _refuse(trial: Trial, number: int) -> None:
    kubelet = trial.kubelet
    if number % 3 == 0:
        # Its socket stays, as after a SIGKILL.
        restart = asyncio.create_task(kubelet.restart(1.0))
        await trial.says("UNAVAILABLE")
        await restart
        return
    over = asyncio.create_task(asyncio.sleep(1.0))
    await kubelet.set_faults(Faults(gone=True) if number % 3 == 1 else Faults(error="UNAVAILABLE"))
    await trial.says("UNAVAILABLE")
    await over
    await kubelet.set_faults(Faults())


async def test_its_registration_does_not_work() -> None:
    kinds = (
        RegistrationFaults(hang=True),
        RegistrationFaults(error="INTERNAL"),
        RegistrationFaults(gone=True),
    )
    async with trying(REGISTRATION) as trial:
        async for number in trial.rounds():
            async with trial.disturbed():
                await trial.kubelet.set_faults(Faults(registration=kinds[number % 3]))
                await trial.kubelet.restart()
                await asyncio.sleep(1.0)
                assert not any(trial.kubelet.allocatable(resource) for resource in ALLOCATABLE)
                await trial.kubelet.set_faults(Faults())


async def test_another_caller_uses_up_the_rate_limit() -> None:
    async with trying(CROWDED) as trial:
        most = 0.0
        async for _ in trial.rounds():
            refused = await _refused(trial)
            async with trial.churning(), _crowd(trial) as asked:
                before, began = trial.kubelet.calls, time.monotonic()
                await asyncio.sleep(4.0)
                await until("the exporter is refused", partial(_is_refused, trial, refused))
                calls = trial.kubelet.calls - before
                own = calls.total() - sum(asked) - calls["Allocate"]
                most = max(most, own / (time.monotonic() - began))
            await trial.recovers()
        trial.figures["calls a second"] = round(most, 1)
        assert most <= 25


async def _refused(trial: Trial) -> float:
    errors = (await owners.scrape(trial.url)).of("devicelens_refresh_errors_total", code="RESOURCE_EXHAUSTED")
    return sum(value for _, value in errors)


async def _is_refused(trial: Trial, before: float) -> bool:
    return await _refused(trial) > before


@asynccontextmanager
async def _crowd(trial: Trial) -> AsyncGenerator[list[int]]:
    """Ask List four at a time without a pause; each call that was taken counts 1 in what is given."""
    asked: list[int] = []
    target = socket_target(KubeletPaths(trial.kubelet.root).pod_resources_socket)

    async def ask(channel: grpc.aio.Channel) -> None:
        method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1.PodResourcesLister/List"
        )
        while True:
            asked.append(1)
            try:
                await method(b"", timeout=5)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                # A refusal costs nobody anything, the caller least of all.
                await asyncio.sleep(0.002)

    async with grpc.aio.insecure_channel(target, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        tasks = [asyncio.create_task(ask(channel)) for _ in range(4)]
        try:
            yield asked
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
