"""From Allocate to /metrics, and from a pod's end to /metrics: whole processes beside a simulated kubelet.

The clock starts before the kubelet receives the pod (or its deletion), so that its own work and the
plugin's are in the time; and it stops with the first scrape that shows it, scrapes following one another
without a pause.
Floor: the kubelet's part, until it says that the pod is admitted (is gone).
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from benchmarks.report import Figure, percentile, write_section
from benchmarks.running import Client, environment, process, ready
from simulator.control import ControlClient
from simulator.model import ContainerSpec, PodSpec

Sample = tuple[float, float]
"""Milliseconds until a scrape shows an event, and until the kubelet has answered."""
_RESOURCE = "myway5.com/cola"
_PAUSE = 0.3
"""Seconds between two events: not so many that the exporter must space its calls, as on most nodes."""
_ALONE: Final = ("--pods.source", "none")
_BY_POLL: Final = 20
"""Releases that are seen at a poll, which takes seconds."""


async def measure(root: Path, rounds: int) -> None:
    """Add and delete pods, and print how long each took to show."""
    colas, kubelet, env = root / "host" / "etc" / "colas", root / "kubelet", environment(root / "compiled")
    colas.mkdir(parents=True)
    for number in range(8):
        (colas / f"cola{number}").touch()
    flags = ("--kubelet.root", str(kubelet), "--log.level", "error")
    async with AsyncExitStack() as stack:

        async def run(*command: str) -> None:
            await stack.enter_async_context(process("-m", "devicelens", *command, *flags, env=env))

        await run("kubelet", "--pods-api", "--cgroup-driver", "systemd")
        plugin = root / "plugin"
        host = ("--host-root", str(root / "host"))
        await run("plugin", "--preset", "cola", *host, "--web.listen-address", f"unix:{plugin}")
        stack.callback((await ready(plugin)).close)
        control = ControlClient(kubelet)
        while await control.allocatable(_RESOURCE) < 8:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.05)
        found: dict[str, list[Sample]] = {"allocation": []}
        for release, times, within, given in (
            ("release, with the Pods API", rounds, 0.0, ("--pods.source", "pods-api")),
            ("release, with cgroups", rounds, 0.0, (*_ALONE, "--cgroup.root", str(kubelet / "cgroup"))),
            ("release, at the next poll", min(rounds, _BY_POLL), 5.0, _ALONE),
        ):
            exporter = root / f"exporter-{len(found)}"
            address = ("--web.listen-address", f"unix:{exporter}")
            async with process("-m", "devicelens", "exporter", *given, *address, *flags, env=env):
                client = await ready(exporter)
                allocations, found[release] = await events(client, control, times, within)
                found["allocation"] += allocations
                client.close()
    figures: list[Figure] = []
    for what, samples in found.items():
        took, floor = ([sample[which] for sample in samples] for which in (0, 1))
        aim = "" if what.endswith("poll") else "at most 50 ms"
        figures += [
            Figure(what, took, "ms", floor),
            Figure(f"{what}: p99", [percentile(took, 0.99)], "ms", [percentile(floor, 0.99)], aim),
        ]
    words = (
        "From the moment at which the kubelet receives a pod (or its deletion) to the first scrape that "
        "shows it, the kubelet's and the plugin's work included. Floor: the kubelet's own answer."
    )
    write_section("Allocate to /metrics", words, figures)


async def events(
    client: Client, control: ControlClient, rounds: int, within: float
) -> tuple[list[Sample], list[Sample]]:
    """Add and delete that many pods, one after another: the times of the allocations and of the releases.

    A release is at any moment `within` an interval of polls, in seconds.
    """
    found: tuple[list[Sample], list[Sample]] = ([], [])
    for number in range(rounds):
        name = f"bench-{number}"
        pod = PodSpec(name=name, containers=(ContainerSpec("main", resources={_RESOURCE: 1}),))
        await asyncio.sleep(_PAUSE)
        found[0].append(await shown(client, control.add_pod(pod), name, there=True))
        await asyncio.sleep(_PAUSE + random.uniform(0.0, within))  # noqa: S311 -- no secret
        found[1].append(await shown(client, control.delete_pod("default", name), name, there=False))
    return found


async def shown(client: Client, event: Awaitable[object], pod: str, *, there: bool) -> Sample:
    """Milliseconds from now until a scrape shows what the event brings; and until the kubelet answered."""
    began = time.perf_counter()

    async def timed() -> float:
        await event
        return (time.perf_counter() - began) * 1000

    task = asyncio.create_task(timed())
    wanted = f'pod="{pod}"'.encode()
    async with asyncio.timeout(20):
        while (wanted in (await client.get("/metrics"))[1]) is not there:
            pass
        took = (time.perf_counter() - began) * 1000
        return took, await task


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150, help="pods that come and go")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        asyncio.run(measure(Path(directory), arguments.rounds))
