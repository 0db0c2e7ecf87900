"""Growth of cost: refreshes with pods, scrapes and memory with devices, answers with clients.

The measurements are those of benchmarks.exporter, at sizes that double, in a chart with the floor. The table
has the smallest and the largest size.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.exporter import GZIP, exporting, first, refreshed, static, timed, walk
from benchmarks.plot import Line, chart
from benchmarks.pod_resources import allocatable, listed
from benchmarks.report import Figure, write_section
from benchmarks.running import Client, cpu, memory

_PODS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048)
_NODES: Final = (16, 64, 256, 1024)
"""Pods of eight devices."""
_EACH: Final = 8
_CLIENTS: Final = (1, 2, 4, 8, 16, 32, 64)

Curve = dict[int, list[float]]


def _ends(curve: Curve) -> tuple[int, int]:
    """The smallest and the largest size: the chart shows the sizes between."""
    return min(curve), max(curve)


def with_pods(rounds: int) -> None:
    """Refreshes."""
    changed, again, start, floor = Curve(), Curve(), Curve(), Curve()
    for pods in _PODS:
        offer = allocatable(pods, _EACH)
        lists = [listed(pods, _EACH, other=other) for other in (False, True)]
        floor[pods] = [timed(partial(walk, lists[0], offer)) for _ in range(rounds)]
        changed[pods] = refreshed([[lists[number % 2], offer] for number in range(rounds)])
        again[pods] = refreshed([[lists[0], offer]] * rounds)
        start[pods] = [first(lists[0], offer) for _ in range(3)]
    curves = {"the first": start, "a pod changed": changed, "unchanged": again}
    lines = [*(_line(name, curve) for name, curve in curves.items()), _line("floor", floor, floor=True)]
    picture = chart("Refresh", f"pods of {_EACH} devices", "milliseconds", lines)
    write_section(
        "Growth: refreshes with pods",
        "From the kubelet's bytes to what is published. Floor: decoding them and touching each field.",
        [
            Figure(f"{pods} pods, {name}", curve[pods], "ms", floor[pods])
            for pods in _ends(floor)
            for name, curve in curves.items()
        ],
        {"growth-refresh.svg": picture},
    )


async def with_devices(root: Path, rounds: int) -> None:
    """Scrapes, and memory."""
    took, floor, rest, peak = Curve(), Curve(), Curve(), Curve()
    for pods in _NODES:
        devices = pods * _EACH
        async with exporting(root, pods, _EACH) as (pid, _, client):
            rest[devices] = [memory(pid)]
            bodies = [(await client.get("/metrics", headers))[1] for headers in (GZIP, "")]
            async with static(root, f"s{pods}", bodies) as (_, _, bare):
                took[devices], floor[devices] = await _scraped(client, rounds), await _scraped(bare, rounds)
            peak[devices] = [memory(pid, "VmHWM")]
    write_section(
        "Growth: scrapes with devices",
        "A gzipped scrape while nothing changes. Floor: the same bytes from a bare aiohttp application.",
        [
            Figure(f"{devices} devices", took[devices], "ms", floor[devices], "at most 1.5")
            for devices in _ends(took)
        ],
        {
            "growth-scrape.svg": chart(
                "Scrape",
                "devices",
                "milliseconds",
                [_line("exporter", took), _line("floor", floor, floor=True)],
            )
        },
    )
    write_section(
        "Growth: memory with devices",
        "The exporter's resident memory when it is ready, and the most it was after scrapes of both kinds.",
        [
            Figure(f"{devices} devices, {name}", curve[devices], "MiB")
            for devices in _ends(rest)
            for name, curve in (("ready", rest), ("most", peak))
        ],
        {
            "growth-memory.svg": chart(
                "Memory of the exporter", "devices", "MiB", [_line("most", peak), _line("ready", rest)]
            )
        },
    )


async def with_clients(root: Path, seconds: float) -> None:
    """Clients that scrape in a loop: what an answer takes, and what CPU it costs."""
    took, floor, used, bare_used = Curve(), Curve(), Curve(), Curve()
    async with exporting(root, 110, _EACH) as (pid, socket, client):
        bodies = [(await client.get("/metrics", headers))[1] for headers in (GZIP, "")]
        async with static(root, "clients", bodies) as (bare, other, _):
            for number in _CLIENTS:
                took[number], used[number] = await _scraped_by(socket, pid, number, seconds)
                floor[number], bare_used[number] = await _scraped_by(other, bare, number, seconds)
    lines = [_line("exporter", took), _line("floor", floor, floor=True)]
    write_section(
        "Growth: answers with clients",
        f"So many clients scrape a node of {110 * _EACH} devices in a loop, as fast as they are answered, "
        "from one process beside it. Floor: the same bytes from a bare aiohttp application.",
        [
            figure
            for number in _ends(took)
            for figure in (
                Figure(f"{number} clients, a scrape", took[number], "ms", floor[number]),
                Figure(f"{number} clients, CPU of a scrape", used[number], "ms", bare_used[number]),
            )
        ],
        {"growth-clients.svg": chart("Scrape among many", "clients", "milliseconds", lines)},
    )


async def _scraped(client: Client, rounds: int) -> list[float]:
    took: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        await client.get("/metrics", GZIP)
        took.append((time.perf_counter() - began) * 1000)
    return took


async def _scraped_by(socket: Path, pid: int, number: int, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds of each scrape, and the server's CPU of one."""
    clients = [await Client.to(socket) for _ in range(number)]
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def loop(client: Client) -> None:
        while time.perf_counter() < end:
            took.extend(await _scraped(client, 1))

    try:
        before = cpu(pid)
        await asyncio.gather(*map(loop, clients))
        return took, [(cpu(pid) - before) / len(took) * 1000]
    finally:
        for client in clients:
            client.close()


def _line(name: str, curve: Curve, *, floor: bool = False) -> Line:
    points: Sequence[tuple[float, float]] = [
        (size, statistics.median(taken)) for size, taken in curve.items()
    ]
    return Line(name, points, floor)


async def main(rounds: int, seconds: float) -> None:
    """All of it."""
    with_pods(rounds)
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        await with_devices(Path(directory), rounds)
        await with_clients(Path(directory), seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="samples of each")
    parser.add_argument("--seconds", type=float, default=2.0, help="time with each number of clients")
    asyncio.run(main(**vars(parser.parse_args())))
