"""The kubelet answers what no kubelet should, or what a kubelet may and nobody expects."""

import asyncio
from dataclasses import replace

import pytest

from harness import owners
from harness.trials.churn import STEADY
from harness.trials.fault import Fault
from harness.trials.trial import Trial, trying
from harness.waiting import until
from simulator import Faults

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

GROUP = "What the kubelet answers"
OVERSIZED = Fault(
    "17-mb",
    GROUP,
    "It answers 17 MiB, more than it lets its own clients take, for 2 s",
    "The mapping is kept with its age, /-/ready says RESOURCE_EXHAUSTED",
    short=2,
    memory=40.0,
)
GARBAGE = Fault(
    "garbage",
    GROUP,
    "It answers bytes that are no message for 2 s",
    "The mapping is kept with its age, /-/ready says UNDECODABLE",
)
TWICE = Fault(
    "twice",
    GROUP,
    "It names every device twice for 2 s, in List and in GetAllocatableResources",
    "Every owner is told once, nobody is said to share a device",
)
FORGETS = Fault(
    "forgets",
    GROUP,
    "It leaves a pod out of List although that runs, and brings it back",
    "The pod is told no more while the kubelet leaves it out, and is back after; others see nothing of it",
)


@pytest.mark.parametrize(
    ("fault", "answers", "code"),
    [
        (OVERSIZED, Faults(oversized=True), "RESOURCE_EXHAUSTED"),
        (GARBAGE, Faults(garbage=True), "UNDECODABLE"),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
async def test_the_kubelet_answers_what_is_no_answer(fault: Fault, answers: Faults, code: str) -> None:
    async with trying(fault) as trial:
        async for _ in trial.rounds():
            async with trial.disturbed():
                await trial.kubelet.set_faults(answers)
                over = asyncio.create_task(asyncio.sleep(2.0))
                await trial.says(code)
                await over
                await trial.kubelet.set_faults(Faults())


async def test_the_kubelet_names_every_device_twice() -> None:
    async with trying(TWICE) as trial:
        async for _ in trial.rounds():
            async with trial.churning():
                await trial.kubelet.set_faults(Faults(twice=True))
                await asyncio.sleep(2.0)
            # Everything is told as it is although this goes on.
            await trial.recovers()
            await trial.kubelet.set_faults(Faults())


async def test_the_kubelet_forgets_a_pod_and_brings_it_back() -> None:
    async with trying(FORGETS) as trial:
        trial.observer.excused.add(STEADY)
        async for _ in trial.rounds():
            async with trial.disturbed():
                await trial.kubelet.set_faults(Faults(forgets=("/".join(STEADY),)))
                await until("the pod is not told any more", lambda: _is_told(trial, STEADY, told=False))
                await trial.kubelet.set_faults(Faults())


async def _is_told(trial: Trial, pod: tuple[str, str], *, told: bool) -> bool:
    samples = await owners.scrape(trial.url)
    found = samples.of("devicelens_device_owner_info", namespace=pod[0], pod=pod[1])
    assert bool(found) == told, found
    return True


async def test_every_method_misbehaves_in_turn() -> None:
    """Allocatable alone, List alone: owners never depend on what tells health."""
    fault = Fault(
        "one-method",
        GROUP,
        "List or GetAllocatableResources alone hangs, answers garbage or fails, each for a second",
        "Without GetAllocatableResources owners are told as fresh as ever",
        full=5,
    )
    async with trying(fault) as trial:
        async for _ in trial.rounds():
            for answers in (Faults(hang=True), Faults(garbage=True), Faults(error="INTERNAL")):
                for method in ("List", "GetAllocatableResources"):
                    async with trial.disturbed():
                        await trial.kubelet.set_faults(replace(answers, methods=(method,)))
                        await asyncio.sleep(1.0)
                        await trial.kubelet.set_faults(Faults())
