"""The exporter: refreshes, health under load, and the largest answer, each beside its floor.

The kubelet (pod_resources), the exporter and the floors run in processes of their own, on unix sockets.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.pod_resources import allocatable, listed
from benchmarks.report import Figure, percentile, write_section
from benchmarks.running import Client, environment, lag, memory, process, ready
from exporter.mapping.identity import EMPTY_VIEW, Poll
from exporter.refresh.pipeline import SnapshotPipeline
from kubelet.pb.podresources.v1 import api_pb2
from kubelet.podresources import Raw

STATIC: Final = """\
import sys
from pathlib import Path
from aiohttp import web
bodies = {encoding: Path(path).read_bytes() for encoding, path in zip(("gzip", ""), sys.argv[2:])}
async def answer(request):
    encoding = "gzip" if "gzip" in request.headers.get("Accept-Encoding", "") else ""
    headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    headers |= {"Content-Encoding": "gzip"} if encoding else {}
    return web.Response(body=bodies[encoding], headers=headers)
async def ready(request):
    return web.Response(text="ready")
app = web.Application()
app.add_routes([web.get("/metrics", answer), web.get("/-/healthy", ready)])
web.run_app(app, path=sys.argv[1], print=None, access_log=None)
"""
_CLIENTS: Final = """\
import asyncio, sys
from pathlib import Path
from benchmarks.running import Client
async def loop():
    client = await Client.to(Path(sys.argv[1]))
    while True:
        await client.get(sys.argv[2], sys.argv[3].encode().decode("unicode_escape"))
async def main():
    await asyncio.gather(loop(), loop())
asyncio.run(main())
"""
GZIP: Final = "Accept-Encoding: gzip\r\n"


def walk(list_bytes: bytes, allocatable_bytes: bytes) -> int:
    """Decode both answers and touch each field once: the least that a refresh can take."""
    seen = 0
    answer = api_pb2.ListPodResourcesResponse.FromString(list_bytes)
    for pod in answer.pod_resources:
        seen += len(pod.name) + len(pod.namespace)
        for container in pod.containers:
            seen += len(container.name) + len(container.cpu_ids) + len(container.memory)
            seen += len(container.dynamic_resources) + _walk(container.devices)
    return seen + _walk(api_pb2.AllocatableResourcesResponse.FromString(allocatable_bytes).devices)


def _walk(devices: Sequence[api_pb2.ContainerDevices]) -> int:
    seen = 0
    for entry in devices:
        seen += len(entry.resource_name)
        for node in entry.topology.nodes:
            seen += node.ID
        for device in entry.device_ids:
            seen += len(device)
    return seen


def reordered(data: bytes, order: random.Random) -> bytes:
    """The same List in another order, as real kubelets give it from call to call."""
    answer = api_pb2.ListPodResourcesResponse.FromString(data)
    pods = list(answer.pod_resources)
    order.shuffle(pods)
    for pod in pods:
        for container in pod.containers:
            entries = list(container.devices)
            order.shuffle(entries)
            for entry in entries:
                ids = list(entry.device_ids)
                order.shuffle(ids)
                entry.device_ids[:] = ids
            copies = [api_pb2.ContainerDevices.FromString(entry.SerializeToString()) for entry in entries]
            del container.devices[:]
            container.devices.extend(copies)
    return api_pb2.ListPodResourcesResponse(pod_resources=pods).SerializeToString()


def refreshes(rounds: int) -> None:
    """What a refresh computes, in this process; calls to the kubelet are not part of it."""
    figures: list[Figure] = []
    order = random.Random(1)  # noqa: S311 -- a benchmark
    for pods, devices, aims in ((250, 8, ("at most 2", "at most 1 ms")), (1250, 8, ("at most 40 ms", ""))):
        offer = allocatable(pods, devices)
        lists = [listed(pods, devices, other=other) for other in (False, True)]
        shuffled = [[reordered(data, order) for data in lists] for _ in range(2)]
        changed = [[lists[number % 2], offer] for number in range(rounds)]
        mixed = [[shuffled[number // 2 % 2][number % 2], offer] for number in range(rounds)]
        same = [[lists[0], offer]] * rounds
        size = f"{pods} pods of {devices}"
        floor = [timed(partial(walk, lists[0], offer)) for _ in range(rounds)]
        figures += [
            Figure(f"{size}, a pod changed", refreshed(changed), "ms", floor, aims[0]),
            Figure(f"{size}, a pod changed, all in another order", refreshed(mixed), "ms", floor),
            Figure(f"{size}, unchanged", refreshed(same), "ms", floor, aims[1]),
            Figure(f"{size}, the first", [first(lists[0], offer) for _ in range(5)], "ms", floor),
        ]
    words = "From the kubelet's bytes to what is published. Floor: decoding them and touching each field."
    write_section("Refresh", words, figures)


def refreshed(answers: Sequence[Sequence[bytes]]) -> list[float]:
    """Milliseconds that each of these pairs of answers took, after the last of them was read before."""
    pipeline = SnapshotPipeline(keep_allocatable=60.0)
    took: list[float] = []
    for number, (list_bytes, offer) in enumerate([answers[-1], *answers]):
        raw, poll = (
            Raw(list_bytes, offer, asked_allocatable=True, api_version="v1"),
            Poll(number, number + 0.01),
        )
        took.append(timed(partial(pipeline.process, raw, poll.answered, poll=poll, view=EMPTY_VIEW)))
    return took[1:]


def first(list_bytes: bytes, offer: bytes) -> float:
    """Milliseconds that the very first snapshot took."""
    raw, poll = Raw(list_bytes, offer, asked_allocatable=True, api_version="v1"), Poll(0.0, 0.01)
    return timed(
        lambda: SnapshotPipeline(keep_allocatable=60.0).process(raw, 1.0, poll=poll, view=EMPTY_VIEW)
    )


def timed(work: Callable[[], object]) -> float:
    """Milliseconds that `work` took."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def exporting(
    root: Path, pods: int, devices: int, *flags: str, length: int = 40
) -> AsyncGenerator[tuple[int, Path, Client]]:
    """An exporter beside a kubelet of this size: its id, its socket, and a connection."""
    env, socket, kubelet = environment(root / "compiled"), root / f"e{pods}", root / f"k{pods}"
    async with AsyncExitStack() as stack:
        size = (str(pods), str(devices), str(length))
        await stack.enter_async_context(
            process("-m", "benchmarks.pod_resources", str(kubelet), *size, env=env)
        )
        command = ("-m", "devicelens", "exporter", "--kubelet.root", str(kubelet), "--pods.source", "none")
        listen = ("--web.listen-address", f"unix:{socket}", "--log.level", "error")
        pid = await stack.enter_async_context(process(*command, *listen, *flags, env=env))
        client = await ready(socket)
        stack.callback(client.close)
        yield pid, socket, client


@asynccontextmanager
async def static(root: Path, name: str, bodies: Sequence[bytes]) -> AsyncGenerator[tuple[int, Path, Client]]:
    """A bare server of the same two bodies, gzipped and plain: its id, its socket, and a connection."""
    paths, socket = [root / f"{name}.gz", root / f"{name}.plain"], root / f"{name}.sock"
    for path, body in zip(paths, bodies, strict=True):
        path.write_bytes(body)
    command = ("-c", STATIC, str(socket), *map(str, paths))
    async with process(*command, env=environment(root / "compiled")) as pid:
        client = await ready(socket, "/-/healthy")
        try:
            yield pid, socket, client
        finally:
            client.close()


async def health(root: Path, seconds: float) -> None:
    """/-/healthy while two clients scrape in a loop and the mapping changes."""
    figures: list[Figure] = []
    # 4 series a device, and 2 a container.
    async with exporting(root, 297, 8, "--poll.interval", "0.1s") as (_, socket, client):
        body = (await client.get("/metrics"))[1]
        series = sum(not line.startswith(b"#") for line in body.splitlines())
        floor = await healthy(client, seconds)
        env = environment(root / "compiled")
        for name, headers in (("gzip", GZIP), ("identity", "")):
            escaped = headers.replace("\r\n", "\\r\\n")
            for refreshing in (False, True):
                changing = root / "k297" / "changing"
                if refreshing:
                    changing.touch()
                async with process("-c", _CLIENTS, str(socket), "/metrics", escaped, env=env):
                    await asyncio.sleep(1.0)
                    took = await healthy(client, seconds)
                changing.unlink(missing_ok=True)
                what = f"{name}, {'10 changes a second' if refreshing else 'nothing changes'}"
                figures += [
                    Figure(what, took, "ms", floor),
                    Figure(
                        f"{what}: p99",
                        [percentile(took, 0.99)],
                        "ms",
                        [percentile(floor, 0.99)],
                        "at most 20 ms",
                    ),
                ]
    words = (
        f"/-/healthy while two clients scrape {series} series in a loop, as fast as they are answered. "
        "Floor: the same without them."
    )
    write_section("Health under load", words, figures)


async def healthy(client: Client, seconds: float) -> list[float]:
    """Milliseconds of each `/-/healthy` in some seconds."""
    end, took = time.perf_counter() + seconds, list[float]()
    while time.perf_counter() < end:
        began = time.perf_counter()
        status, _ = await client.get("/-/healthy")
        took.append((time.perf_counter() - began) * 1000)
        assert status == 200
        await asyncio.sleep(0.005)
    return took


async def event_loop(root: Path, seconds: float) -> None:
    """The lag of the event loop, and /-/healthy, with 8000 devices while a pod changes twice a second."""
    figures: list[Figure] = []
    async with (
        exporting(root, 1000, 8, "--poll.interval", "0.5s") as (_, socket, client),
        AsyncExitStack() as stack,
    ):
        await lag(client)
        floor = await healthy(client, seconds)
        figures.append(Figure("at rest: lag", [await lag(client) * 1000], "ms"))
        await client.get("/", GZIP)
        figures.append(Figure("the first page: lag", [await lag(client) * 1000], "ms", aim="at most 10 ms"))
        (root / "k1000" / "changing").touch()
        for what in ("changes", "changes, and clients read /api/v1/devices in a loop"):
            if "clients" in what:
                command = ("-c", _CLIENTS, str(socket), "/api/v1/devices", GZIP.replace("\r\n", "\\r\\n"))
                await stack.enter_async_context(process(*command, env=environment(root / "compiled")))
            await asyncio.sleep(1.0)
            await lag(client)
            took = await healthy(client, seconds)
            p99 = [percentile(took, 0.99)], "ms", [percentile(floor, 0.99)]
            figures += [
                Figure(f"{what}: /-/healthy, p99", *p99, "at most 5 ms"),
                Figure(f"{what}: lag", [await lag(client) * 1000], "ms", aim="at most 10 ms"),
            ]
    words = "8000 devices; a pod changes twice a second. Floor: /-/healthy while nothing changes."
    write_section("The event loop", words, figures)


async def largest(root: Path) -> None:
    """An answer that is as large as the kubelet lets it be."""
    # Long ids: some 16 000 of them, within the limit of 16 MiB.
    figures: list[Figure] = []
    for pods, length, what in ((2000, 980, "long ids"), (36_000, 40, "many devices")):
        size = len(listed(pods, 8, length=length)) / (1 << 20)
        assert 13 < size < 16, size
        async with exporting(root, pods, 8, length=length) as (pid, _, client):
            peak = [memory(pid, "VmHWM")]
            began = time.perf_counter()
            status, body = await client.get("/metrics", GZIP)
            took = time.perf_counter() - began
            assert status == 200
            peak.append(memory(pid, "VmHWM"))
        name = f"{what}, {size:.1f} MiB"
        figures += [
            Figure(f"{name}: most memory until ready", peak[:1], "MiB"),
            Figure(f"{name}: most memory after a scrape", peak[1:], "MiB", aim="at most 256 MiB"),
            Figure(f"{name}: first scrape, {len(body)} bytes gzipped", [took * 1000], "ms"),
        ]
    write_section("The largest answer", "A List near the limit of 16 MiB.", figures)


async def main(rounds: int, seconds: float) -> None:
    """All of it."""
    refreshes(rounds)
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        root = Path(directory)
        await health(root, seconds)
        await event_loop(root, seconds)
        await largest(root)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="samples of what is short")
    parser.add_argument("--seconds", type=float, default=5.0, help="time under each load")
    asyncio.run(main(**vars(parser.parse_args())))
