"""How quick the plugin is: Allocate, list updates and a kubelet's restarts, each beside a floor.

The plugin runs as on a node, from compiled modules. A bare client calls Allocate and receives list updates
of one resource with ten thousand devices; the floor is a bare grpc.aio server that answers a unary
call, or sends a stream a message of the same size, and does nothing besides. For restarts the simulated
kubelet is the other side, with twenty resources; the floor is the kubelet's own time from the start of a
registration to the first list, when nobody but one scripted plugin is there. Times are in milliseconds.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from benchmarks.report import Figure, percentile, write_section
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from simulator import SimulatedKubelet
from simulator.devices import Device
from simulator.scripted import ScriptedPlugin

_DEVICE_PLUGIN: Final = "/v1beta1.DevicePlugin"
_LIMIT: Final = 60.0
_FLOOR: Final = """\
import asyncio, sys, grpc
path, size = sys.argv[1], int(sys.argv[2])
async def unary(request, context):
    return request
async def stream(request, context):
    loop, lines = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, lambda: (sys.stdin.readline(), lines.set()))
    while True:
        await context.write(bytes(size))
        await lines.wait()
        lines.clear()
async def main():
    server = grpc.aio.server()
    methods = {
        "Allocate": grpc.unary_unary_rpc_method_handler(unary),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port("unix:" + path)
    await server.start()
    await server.wait_for_termination()
asyncio.run(main())
"""


def figures(
    what: str, seconds: Sequence[float], floor: Sequence[float], aims: tuple[str, str]
) -> list[Figure]:
    """The usual case and the rare one; `aims` say what is wanted of each."""
    took, least = [1000 * value for value in seconds], [1000 * value for value in floor]
    rare, rarest = [percentile(took, 0.99)], [percentile(least, 0.99)]
    return [Figure(what, took, "ms", least, aims[0]), Figure(f"{what}: p99", rare, "ms", rarest, aims[1])]


def resident(pid: int) -> float:
    """Memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {key: int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines)}
    return kib["Rss"] / 1024


@asynccontextmanager
async def running(*command: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process whose standard input can be written to."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DEVICELENS_")}
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


class Registrations:
    """Takes every registration; says who registered last."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoint: asyncio.Queue[str] = asyncio.Queue()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Serve on kubelet.sock."""
        self.directory.mkdir(parents=True)
        server = grpc.aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(
            self._register, request_deserializer=pb.RegisterRequest.FromString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        server.add_insecure_port(f"unix:{self.directory}/kubelet.sock")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    async def _register(self, request: pb.RegisterRequest, _context: object) -> bytes:
        self.endpoint.put_nowait(request.endpoint)
        return b""


@asynccontextmanager
async def connected(path: Path) -> AsyncGenerator[grpc.aio.Channel]:
    """A channel to a plugin's socket, connected."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        await asyncio.wait_for(channel.channel_ready(), _LIMIT)
        yield channel


async def allocations(channel: grpc.aio.Channel, requests: Sequence[bytes]) -> list[float]:
    """How long each of these Allocate calls took, one after the other."""
    call: Any = channel.unary_unary(f"{_DEVICE_PLUGIN}/Allocate")
    took: list[float] = []
    for number, request in enumerate(requests):
        began = time.perf_counter()
        answer = await call(request)
        if number >= 50:  # before that it warms up
            took.append(time.perf_counter() - began)
        assert answer
    return took


async def updates(
    channel: grpc.aio.Channel, change: Callable[[int], Awaitable[None]], times: int
) -> tuple[list[float], bytes]:
    """How long it took from each change to the list that shows it; and the last list."""
    call: Any = channel.unary_stream(f"{_DEVICE_PLUGIN}/ListAndWatch")
    stream = call(b"")
    took: list[float] = []
    message = await asyncio.wait_for(stream.read(), _LIMIT)
    try:
        for number in range(times):
            await asyncio.sleep(0.3)  # as somebody plugs a device in; the plugin is at rest by then
            began = time.perf_counter()
            await change(number)
            message = await asyncio.wait_for(stream.read(), _LIMIT)
            took.append(time.perf_counter() - began)
    finally:
        stream.cancel()
    return took, message


async def one_resource(root: Path, devices: int, calls: int, changes: int) -> None:
    """Allocate and list updates of one resource, beside the floor."""
    host = root / "host" / "dev"
    host.mkdir(parents=True)
    for number in range(devices):
        (host / f"v{number}").touch()
    config = root / "plugin.yaml"
    config.write_text(
        "version: 1\nresources:\n- name: a.b/c\n  discover: [{glob: {paths: ['/dev/v*']}}]\n"
        "  allocate: {env: {DEVICES: \"{{ ids | join(',') }}\"}, devices: [{host: '{{ device.path }}'}]}\n"
    )
    registrations = Registrations(root / "kubelet" / "device-plugins")
    flags = (
        "--kubelet.root",
        str(root / "kubelet"),
        "--host-root",
        str(root / "host"),
        "--log.level",
        "error",
    )
    listen = ("--web.listen-address", f"unix:{root}/web.sock")
    command = (sys.executable, "-m", "devicelens", "plugin", "--config", str(config), *flags, *listen)

    async def touch(number: int) -> None:
        (host / f"v{devices + number}").touch()

    async with registrations.serving(), running(*command) as plugin:
        endpoint = await asyncio.wait_for(registrations.endpoint.get(), _LIMIT)
        async with connected(registrations.directory / endpoint) as channel:
            await asyncio.sleep(2.0)  # what follows a start has been done by then
            took, message = await updates(channel, touch, changes)
            listed = len(pb.ListAndWatchResponse.FromString(message).devices)
            assert listed == devices + changes, f"{listed} devices are listed"
            chosen = random.Random(0)  # noqa: S311 -- no secrets
            requests = [
                pb.AllocateRequest(
                    container_requests=[
                        pb.ContainerAllocateRequest(devices_ids=[f"v{chosen.randrange(devices)}"])
                    ]
                ).SerializeToString()
                for _ in range(calls + 50)
            ]
            allocated = await allocations(channel, requests)
            memory = resident(plugin.pid)
    async with running(sys.executable, "-c", _FLOOR, str(root / "floor.sock"), str(len(message))) as floor:

        async def line(_number: int) -> None:
            assert floor.stdin is not None
            floor.stdin.write(b"\n")

        async with connected(root / "floor.sock") as channel:
            bare = await allocations(channel, requests)
            sent, _ = await updates(channel, line, changes)
    write_section(
        f"Plugin: one resource of {devices} devices",
        "Allocate of one device, and a device that is plugged in until its list has arrived. Floor: a bare "
        "grpc.aio server that answers a call, or sends as many bytes, and does nothing besides.",
        [
            *figures("Allocate", allocated, bare, ("at most 1 ms", "at most 5 ms")),
            *figures("list update", took, sent, ("at most 100 ms", "")),
            Figure("memory after that", [memory], "MiB"),
        ],
    )


async def alone(root: Path, kubelet: SimulatedKubelet, number: int, devices: int) -> float:
    """From one registration to its list, with nobody else there."""
    listed = [Device(f"{number}-{device}") for device in range(devices)]
    async with ScriptedPlugin(root / "k", f"c.d/e{number}", listed, socket=f"{number}.sock") as plugin:
        began = time.perf_counter()
        await plugin.register()
        await kubelet.wait_until(lambda k: k.allocatable(plugin.resource) == devices, limit=_LIMIT)
        return time.perf_counter() - began


async def restarts(root: Path, times: int, resources: int, devices: int) -> None:
    """A kubelet that restarts at random moments: until every resource is registered and listed again."""
    host, names = root / "host", [f"a.b/r{number}" for number in range(resources)]
    for number in range(resources):
        directory = host / f"r{number}"
        directory.mkdir(parents=True)
        for device in range(devices):
            (directory / f"{number}-{device}").touch()
    config = root / "plugin.yaml"
    config.write_text(
        "version: 1\nresources:\n"
        + "".join(
            f"- {{name: a.b/r{number}, discover: [{{files: {{directory: /r{number}}}}}]}}\n"
            for number in range(resources)
        )
    )
    flags = ("--kubelet.root", str(root / "k"), "--host-root", str(host), "--log.level", "error")
    listen = ("--web.listen-address", f"unix:{root}/web.sock")
    moments, took = random.Random(0), list[float]()  # noqa: S311 -- no secrets
    async with SimulatedKubelet(root / "k") as kubelet:
        bare = [await alone(root, kubelet, number, devices) for number in range(20)]
        command = (sys.executable, "-m", "devicelens", "plugin", "--config", str(config), *flags, *listen)
        async with running(*command):

            def everyone(k: SimulatedKubelet) -> bool:
                return all(k.allocatable(name) == devices for name in names)

            await kubelet.wait_until(everyone, limit=_LIMIT)
            for _ in range(times):
                await asyncio.sleep(moments.uniform(0.0, 0.2))
                await kubelet.restart(down_for=moments.choice([0.0, 0.0, 0.01, 0.1]))
                began = time.perf_counter()
                await kubelet.wait_until(everyone, limit=_LIMIT)
                took.append(time.perf_counter() - began)
    total = resources * devices
    write_section(
        "Plugin: restarts of the kubelet",
        f"{times} at random moments, {resources} resources with {total} devices together: from the kubelet's "
        "return until every device of each is allocatable. Floor: one scripted plugin's registration.",
        figures("until all are back", took, bare, ("at most 500 ms", "")),
    )


async def main(options: argparse.Namespace) -> None:
    """Both, one after the other."""
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        await one_resource(Path(directory), options.devices, options.calls, options.changes)
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        await restarts(Path(directory), options.restarts, options.resources, options.each)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--devices", type=int, default=10_000, help="devices of the one resource")
    parser.add_argument("--calls", type=int, default=3000, help="Allocate calls")
    parser.add_argument("--changes", type=int, default=30, help="devices that are plugged in")
    parser.add_argument("--restarts", type=int, default=100, help="restarts of the kubelet")
    parser.add_argument("--resources", type=int, default=20, help="resources for that")
    parser.add_argument("--each", type=int, default=50, help="devices of each of them")
    asyncio.run(main(parser.parse_args()))
