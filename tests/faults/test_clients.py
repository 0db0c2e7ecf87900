"""Clients that are too many, silent, slow to read, or say too much; and descriptors that run out."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness import owners
from harness.trials import places
from harness.trials.clients import Crowd, crowd, request, too_long
from harness.trials.fault import Fault
from harness.trials.ground import ALLOCATABLE
from harness.trials.trial import Trial, trying
from harness.waiting import until

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

GROUP = "Clients"
SERVED = "Who scrapes is answered all the while; what the clients took is given back when they go"
MANY = Fault(
    "500-connections",
    GROUP,
    "500 connections to the page, all of them kept for 2 s, half with a stream of events",
    SERVED,
    memory=48.0,
)
SILENT = Fault(
    "half-open",
    GROUP,
    "500 connections that never end by themselves: a third says nothing, a third says a part of a request, "
    "and a third does so and closes its own half",
    f"{SERVED}, or after ten seconds",
    memory=24.0,
)
SLOW = Fault(
    "slow-readers",
    GROUP,
    "100 clients that ask for the page 300 times each, and read nothing for 2 s",
    SERVED,
    memory=48.0,
)
TOO_LONG = Fault(
    "too-long",
    GROUP,
    "Addresses and headers of a megabyte, 20 000 headers, lengths that no number holds, TLS and HTTP/2 where "
    "neither is served, eight connections of each kind",
    f"{SERVED}; each is answered or cut off at once, none with 5xx, and none is told in the log",
    memory=48.0,
)
NO_DESCRIPTORS = Fault(
    "descriptors",
    GROUP,
    "A process may open nothing more for 3 s, while the kubelet restarts and, where it is the exporter, a "
    "hundred clients come",
    "It lives, tells the truth as far as it can, and is well again when it may open files",
    short=2,
    withdraws=True,
)


OTHERS = 8
"""Connections that may be open besides: the observer's, and those of whoever asks whether all is well."""


async def _meanwhile(trial: Trial, come: Callable[[Crowd], Awaitable[None]]) -> None:
    async with trial.churning(), crowd(trial.url) as clients:
        await come(clients)
        assert clients.refused == 0
        await until("all of them are connected", lambda: _connected(trial, at_least=len(clients)))
        await asyncio.sleep(2.0)
        await _connected(trial, at_least=len(clients))
    await _over(trial)


async def _over(trial: Trial) -> None:
    await trial.recovers()
    await until("they are gone", lambda: _connected(trial, at_most=OTHERS))
    trial.figures["slowest answer, s"] = round(trial.observer.seen.slowest, 2)


async def _connected(trial: Trial, *, at_least: int = 0, at_most: int = 1000) -> bool:
    found = (await owners.scrape(trial.url)).value("devicelens_web_connections")
    assert found is not None
    assert at_least <= found <= at_most, found
    return True


async def test_500_connections() -> None:
    async def come(clients: Crowd) -> None:
        await clients.say(request("/"), 250)
        await clients.say(request("/api/v1/events"), 250)

    async with trying(MANY) as trial:
        async for _ in trial.rounds():
            await _meanwhile(trial, come)


async def test_connections_that_say_nothing_or_half() -> None:
    half = b"GET /metrics HTTP/1.1\r\nHost: loc"
    async with trying(SILENT) as trial:
        async for _ in trial.rounds():
            async with trial.churning(), crowd(trial.url) as clients:
                await clients.say(b"", 170)
                await clients.say(half, 165)
                await until("those are connected", lambda: _connected(trial, at_least=335))
                await clients.say(half, 165, ends=True)
                assert clients.refused == 0
                # Nobody goes: it is the exporter who ends them.
                await until("they are ended", lambda: _connected(trial, at_most=OTHERS), limit=60.0)
                assert len(clients) == 500
            await _over(trial)


async def test_clients_that_do_not_read() -> None:
    async def come(clients: Crowd) -> None:
        await clients.say(request("/") * 300, 100)

    async with trying(SLOW) as trial:
        async for _ in trial.rounds():
            await _meanwhile(trial, come)


async def test_requests_that_are_too_long() -> None:
    async with trying(TOO_LONG) as trial:
        async for _ in trial.rounds():
            trial.exporter.lines.clear()
            async with trial.disturbed():
                for words in too_long():
                    async with crowd(trial.url) as clients:
                        await clients.say(words, 8)
                        answers = await clients.statuses()
                    # Nobody waits for ever, and nothing of it is the exporter's own failure.
                    wrong = {status for status in answers if status[0] == "5" or status == "silence"}
                    assert not wrong, (words[:60], answers)
            told = [line for line in trial.exporter.lines if "component=http" in line]
            assert told == []


async def test_descriptors_run_out() -> None:
    async with trying(NO_DESCRIPTORS) as trial:
        async for number in trial.rounds():
            async with trial.disturbed():
                await (_starve_plugin(trial) if number % 2 else _starve_exporter(trial))


async def _starve_exporter(trial: Trial) -> None:
    async with crowd(trial.url) as clients:
        with places.no_more_descriptors(trial.exporter.pid):
            await clients.say(request("/"), 100)
            await trial.kubelet.restart(0.2)
            # Logged once, however often accept() fails.
            await trial.exporter.line("connections cannot be accepted")
            await asyncio.sleep(3.0)
    failed = [line for line in trial.exporter.lines if 'msg="connections cannot be accepted"' in line]
    assert len(failed) == 1, failed
    trial.exporter.lines.clear()


async def _starve_plugin(trial: Trial) -> None:
    """It can neither be called nor call, whatever it closes."""
    with places.no_more_descriptors(trial.plugin.pid, present=3):
        await trial.kubelet.restart(0.2)
        await asyncio.sleep(3.0)
        assert not any(trial.kubelet.allocatable(resource) for resource in ALLOCATABLE)
