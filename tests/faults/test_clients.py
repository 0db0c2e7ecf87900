"""Clients that are too many, silent, slow to read, or say too much; and descriptors that run out."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from harness.trials import places
from harness.trials.clients import Crowd, crowd, request, too_long
from harness.trials.fault import Fault
from harness.trials.trial import Trial, trying

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(1500)]

GROUP = "Clients"
SERVED = "Who scrapes is answered all the while; what the clients took is given back when they go"
MANY = Fault(
    "500-connections",
    GROUP,
    "500 connections to the page, all of them kept for 2 s, half with a stream of events",
    SERVED,
    short=1,
    full=20,
    memory=48.0,
)
SILENT = Fault(
    "half-open",
    GROUP,
    "500 connections of which half say nothing, and half a part of a request, for 2 s",
    SERVED,
    short=1,
    full=20,
    memory=24.0,
)
SLOW = Fault(
    "slow-readers",
    GROUP,
    "100 clients that ask for the page 300 times each, and read nothing for 2 s",
    SERVED,
    short=1,
    full=20,
    memory=48.0,
)
TOO_LONG = Fault(
    "too-long",
    GROUP,
    "Addresses and headers of a megabyte, 20 000 headers, lengths that no number holds, TLS and HTTP/2 where "
    "neither is served, eight connections of each kind",
    f"{SERVED}; each is answered or cut off at once, none with 5xx, and none is told in the log",
    short=1,
    full=20,
    memory=48.0,
)
NO_DESCRIPTORS = Fault(
    "descriptors",
    GROUP,
    "A process may open nothing more for 3 s, while a hundred clients come and the kubelet restarts",
    "It lives, tells the truth as far as it can, and is well again when it may open files",
    short=2,
    full=20,
)


async def _meanwhile(trial: Trial, come: Callable[[Crowd], Awaitable[None]], seconds: float = 2.0) -> None:
    async with trial.churning(), crowd(trial.url) as clients:
        await come(clients)
        await asyncio.sleep(seconds)
    await trial.recovers()
    trial.figures["slowest answer, s"] = round(trial.observer.seen.slowest, 2)


async def test_500_connections() -> None:
    async def come(clients: Crowd) -> None:
        await clients.say(request("/"), 250)
        await clients.say(request("/api/v1/events"), 250)

    async with trying(MANY) as trial:
        async for _ in trial.rounds():
            await _meanwhile(trial, come)


async def test_connections_that_say_nothing_or_half() -> None:
    async def come(clients: Crowd) -> None:
        await clients.say(b"", 250)
        await clients.say(b"GET /metrics HTTP/1.1\r\nHost: tri", 250)

    async with trying(SILENT) as trial:
        async for _ in trial.rounds():
            await _meanwhile(trial, come)


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
            async with trial.churning():
                for words in too_long():
                    async with crowd(trial.url) as clients:
                        await clients.say(words, 8)
                        answers = await clients.statuses()
                    # Nobody waits for ever, and nothing of it is the exporter's own failure.
                    wrong = {status for status in answers if status[0] == "5" or status == "silence"}
                    assert not wrong, (words[:60], answers)
            await trial.recovers()
            told = [line for line in trial.exporter.lines if "component=http" in line]
            assert told == []


async def test_descriptors_run_out() -> None:
    async with trying(NO_DESCRIPTORS) as trial:
        async for number in trial.rounds():
            process = trial.plugin if number % 2 else trial.exporter
            async with trial.churning(), crowd(trial.url) as clients:
                with places.no_more_descriptors(process.pid):
                    if process is trial.exporter:
                        await clients.say(request("/"), 100)
                    await trial.kubelet.restart(0.2)
                    await asyncio.sleep(3.0)
            await trial.recovers()
