"""What a scrape costs in the states that production has, and how soon a change shows, by size of the node.

*unchanged*: nothing happened since the last scrape. *polled*: the kubelet was called once in between, as on a
node at rest. *changed*: one pod has another name since the last scrape. Each round measures the states one
after the other, and the floor after each: the same bytes from a bare aiohttp application.
"""

import argparse
import asyncio
import gzip
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from benchmarks.exporter import GZIP, exporting, healthy, static
from benchmarks.report import Figure, percentile, write_section
from benchmarks.running import LIMIT, Client, cpu, lag

SIZES: Final = ((1, 8), (110, 8), (250, 8), (1000, 8))
"""Pods, and devices of each."""
_PAUSE: Final = 0.22
"""Seconds between two calls of List: the exporter spaces those that follow one another closely."""


class Node:
    """The kubelet's directories of `exporting`: what happens there makes the exporter call the kubelet."""

    def __init__(self, kubelet: Path, client: Client) -> None:
        self._other = kubelet / "other"
        self._checkpoint = kubelet / "device-plugins" / "kubelet_internal_checkpoint"
        self._client = client

    def poll(self) -> None:
        """Have the exporter call the kubelet, as an allocation does."""
        written = self._checkpoint.with_name(".written")
        written.write_bytes(b"{}")
        written.rename(self._checkpoint)

    def change(self) -> str:
        """Give one pod another name; that name's end."""
        if self._other.exists():
            self._other.unlink()
        else:
            self._other.touch()
        self.poll()
        return "-other" if self._other.exists() else ""

    async def refreshed(self, act: Callable[[], object]) -> None:
        """Do it, and wait until the exporter has called the kubelet and published."""
        before = await self.taken_at()
        await asyncio.sleep(_PAUSE)
        act()
        await self.published(before)

    async def published(self, before: str) -> None:
        """Wait until the mapping is later than `before`. Requests are few: they cost CPU too."""
        end = time.monotonic() + LIMIT
        while True:
            # A write of the checkpoint is two events, which may be two calls.
            await asyncio.sleep(2 * _PAUSE)
            if await self.taken_at() != before:
                return
            if time.monotonic() > end:
                raise TimeoutError("the exporter did not call the kubelet")

    async def taken_at(self) -> str:
        """When the mapping was requested from the kubelet."""
        document = json.loads((await self._client.get("/api/v1/status"))[1])
        return f"{document['taken_at']}"


async def scrapes(root: Path, rounds: int) -> None:
    """Each state at each size, gzipped and plain."""
    figures: list[Figure] = []
    for pods, each in SIZES:
        async with exporting(root, pods, each) as (pid, _, client), AsyncExitStack() as stack:
            kept = [(await client.get("/metrics", headers))[1] for headers in (GZIP, "")]
            serving = static(root, f"floor{pods}", kept)
            floor_pid, _, floor = await stack.enter_async_context(serving)
            node = Node(root / f"k{pods}", client)
            acts: dict[str, Callable[[], Awaitable[None]]] = {
                "unchanged": _nothing,
                "polled": lambda node=node: node.refreshed(node.poll),  # type: ignore[misc]
                "changed": lambda node=node: node.refreshed(node.change),  # type: ignore[misc]
            }
            for name, headers in (("gzip", GZIP), ("identity", "")):
                took = {state: _Samples() for state in acts}
                for _ in range(rounds):
                    for state, act in acts.items():
                        await act()
                        await took[state].add((client, pid), (floor, floor_pid), headers)
                for state, samples in took.items():
                    figures += samples.figures(f"{pods * each} devices, {name}, {state}")
    words = (
        "Unchanged, with one call of the kubelet in between, and after a pod changed. Floor: the same bytes "
        "from a bare aiohttp application."
    )
    write_section("Scrape", words, figures)


async def _nothing() -> None:
    await asyncio.sleep(0)


class _Samples:
    """Times and CPU of the exporter's answers and of the floor's, in milliseconds."""

    def __init__(self) -> None:
        self._took: tuple[list[float], list[float]] = ([], [])
        self._used: tuple[list[float], list[float]] = ([], [])

    async def add(self, ours: tuple[Client, int], floor: tuple[Client, int], headers: str) -> None:
        """Scrape both."""
        for which, (client, pid) in enumerate((ours, floor)):
            before, began = cpu(pid), time.perf_counter()
            await client.get("/metrics", headers)
            self._took[which].append((time.perf_counter() - began) * 1000)
            self._used[which].append((cpu(pid) - before) * 1000)

    def figures(self, what: str) -> list[Figure]:
        """Time and CPU."""
        return [
            Figure(f"{what}: time", self._took[0], "ms", self._took[1], "at most 1.5"),
            Figure(f"{what}: CPU", self._used[0], "ms", self._used[1], "at most 1.5"),
        ]


async def changes(root: Path, rounds: int) -> None:
    """One pod changes: what it costs, how soon scrapes show it, and what other readers notice."""
    figures: list[Figure] = []
    for pods, each in SIZES:
        async with exporting(root, pods, each) as (pid, socket, client):
            node, size = Node(root / f"k{pods}", client), f"{pods * each} devices"
            unread = [await _used(pid, node) for _ in range(rounds)]
            await client.get("/metrics", GZIP)
            shown = [await _shown(client, node, pods) for _ in range(rounds)]
            read = [await _used(pid, node) for _ in range(rounds)]
            await lag(client)
            idle = await _healthy(socket, lambda: None, rounds)
            busy = await _healthy(socket, node.change, rounds)
            held = await lag(client)
        figures += [
            Figure(f"{size}: CPU, nobody scrapes", unread, "ms"),
            Figure(f"{size}: CPU, somebody scrapes", read, "ms"),
            Figure(f"{size}: until a scrape shows it", shown, "ms"),
            Figure(f"{size}: until a scrape shows it: p99", [percentile(shown, 0.99)], "ms"),
            Figure(f"{size}: longest hold of the event loop", [1000 * held], "ms", aim="at most 10 ms"),
            Figure(
                f"{size}: `/-/healthy` meanwhile: p99",
                *([percentile(busy, 0.99)], "ms", [percentile(idle, 0.99)], "at most 5 ms"),
            ),
        ]
    words = (
        "One pod changes. Times are from the write of the kubelet's checkpoint; its answers are made "
        "beforehand. Scrapes follow one another without a pause until one shows the change. Floor: the same "
        "requests while nothing changes."
    )
    write_section("A change", words, figures)


async def _used(pid: int, node: Node) -> float:
    """Milliseconds of CPU that the exporter uses for a change, in whichever thread."""
    taken_at = await node.taken_at()
    await asyncio.sleep(_PAUSE)
    before = cpu(pid)
    node.change()
    await asyncio.sleep(2 * _PAUSE)
    used = cpu(pid) - before
    await node.published(taken_at)
    return used * 1000


async def _shown(client: Client, node: Node, pods: int) -> float:
    """Milliseconds from a change to the end of the scrape that shows it."""
    await asyncio.sleep(_PAUSE)
    began = time.perf_counter()
    wanted = f'pod="trainer-{pods // 2}{node.change()}"'.encode()
    async with asyncio.timeout(LIMIT):
        while wanted not in gzip.decompress((await client.get("/metrics", GZIP))[1]):
            pass
    return (time.perf_counter() - began) * 1000


async def _healthy(socket: Path, act: Callable[[], object], rounds: int) -> list[float]:
    """Milliseconds of `/-/healthy`, while `act` is done every quarter of a second."""
    client, took = await Client.to(socket), list[float]()
    for _ in range(rounds):
        act()
        took += await healthy(client, _PAUSE)
    client.close()
    return took


async def main(rounds: int) -> None:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        roots = [Path(directory) / name for name in "sc"]
        for root in roots:
            root.mkdir()
        await scrapes(roots[0], rounds)
        await changes(roots[1], rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="samples of each")
    asyncio.run(main(**vars(parser.parse_args())))
