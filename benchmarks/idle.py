"""What the two processes take of a node at rest: memory, threads, descriptors, CPU, and time to be ready.

They run as on a node, from compiled modules, beside a simulated kubelet with ten devices. The floor is a
bare Python process that serves one static answer by aiohttp.web and another by grpc.aio, and has called
the latter once: no program of these parts takes less. Memory is in MiB, CPU in seconds a
minute, `ready` the median of some starts.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.report import Figure, write_section
from benchmarks.running import memory as resident

_FLOOR: Final = """\
import asyncio, sys, grpc.aio
from aiohttp import web
async def same(request, context):
    return request
async def answer(request):
    return web.Response(text="ready")
async def main(path):
    server = grpc.aio.server()
    methods = {"Same": grpc.unary_unary_rpc_method_handler(same)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floor", methods),))
    server.add_insecure_port(f"unix:{path}.grpc")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}.grpc") as channel:
        await channel.unary_unary("/floor/Same")(b"")
    app = web.Application()
    app.add_routes([web.get("/{any:.*}", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, path).start()
    await server.wait_for_termination()
asyncio.run(main(sys.argv[1]))
"""
_IMPORTS: Final = """\
import sys
from pathlib import Path
for name in ("sys", *sys.argv[1:]):
    __import__(name)
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line)
    print(name, int(line.split()[1]) / 1024)
"""
_STEPS: Final = ("asyncio", "grpc.aio", "aiohttp.web")
"""What every process of these parts imports, one after the other."""
_READY_LIMIT: Final = 60.0
GROWN: Final = 4.0
"""MiB by which a process may have grown when all is over; of 10 000 refreshes that is 400 bytes each."""
MORE_DESCRIPTORS: Final = 2
Taken = tuple[float, int, int]
"""MiB resident, threads, descriptors."""
_SERIES: Final = 'devicelens_refreshes_total{trigger="allocation"} '
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Subject:
    """A process to measure: it serves HTTP on `socket`, and is ready when /-/ready is 200 there."""

    name: str
    command: tuple[str, ...]
    socket: Path


async def get(subject: Subject, path: str) -> str:
    """The body of a 200; raises OSError for any other answer, and for none."""
    reader, writer = await asyncio.open_unix_connection(subject.socket)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read(-1)).decode().partition("\r\n\r\n")
    finally:
        writer.close()
    if not head.startswith("HTTP/1.1 200 "):
        raise OSError(f"{subject.name}: {path}: {head[:80]!r}")
    return body


@asynccontextmanager
async def running(subject: Subject, environment: dict[str, str]) -> AsyncGenerator[tuple[int, float]]:
    """The process, ready: its id, and the seconds it took to get there."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*subject.command, env=environment)
    try:
        async with asyncio.timeout(_READY_LIMIT):
            while True:
                assert process.returncode is None, f"{subject.name} ended with {process.returncode}"
                with suppress(OSError):
                    await get(subject, "/-/ready")
                    break
                await asyncio.sleep(0.002)
        yield process.pid, time.perf_counter() - began
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def memory(pid: int) -> str:
    """RSS, the anonymous part of it, and PSS: what is shared divided among those who share it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {key: int(value.split()[0]) for key, _, value in (line.partition(":") for line in lines)}
    return "".join(f"{kib[key] / 1024:7.1f}" for key in ("Rss", "Anonymous", "Pss"))


def rest(pid: int) -> tuple[float, int, int]:
    """Seconds of CPU used so far, threads, and descriptors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[17]), descriptors


def rest_figures(pids: Mapping[str, int], seconds: float, before: Sequence[float]) -> list[Figure]:
    """Memory and CPU of both processes after `seconds` without anything to do, since `before`."""
    used = {
        name: 100 * (rest(pid)[0] - then) / seconds
        for (name, pid), then in zip(pids.items(), before, strict=True)
    }
    figures: list[Figure] = []
    for name in ("exporter", "plugin"):
        figures.append(
            Figure(
                f"{name}, memory", [resident(pids[name])], "MiB", [resident(pids["floor"])], "at most 55 MiB"
            )
        )
        figures.append(Figure(f"{name}, CPU", [used[name]], "% of one", aim="at most 0.3 %"))
    return figures


async def imports(environment: dict[str, str]) -> None:
    """Print and write what each step of the imports takes of memory."""
    figures: list[Figure] = []
    output = b""
    for name in ("exporter", "plugin"):
        command = (sys.executable, "-c", _IMPORTS, *_STEPS, f"{name}.main")
        for _ in range(2):  # the first one compiles the modules
            process = await asyncio.create_subprocess_exec(
                *command, env=environment, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await process.communicate()
        before = 0.0
        for line in output.decode().splitlines():
            module, _, total = line.partition(" ")
            what = f"{name}: {'interpreter' if module == 'sys' else f'import {module}'}"
            figures.append(Figure(what, [float(total) - before], "MiB"))
            before = float(total)
    write_section("Memory by import", "What each step adds to the resident memory.", figures)


def taken(pid: int) -> Taken:
    """What a process takes now."""
    _cpu, threads, descriptors = rest(pid)
    return resident(pid), threads, descriptors


def compared(before: Mapping[str, Taken], after: Mapping[str, Taken]) -> dict[str, tuple[str, str]]:
    """What each process takes now beside what it took before."""
    return {
        f"{name}, {what}": (f"{was:.4g}", f"{now:.4g}")
        for name, then in before.items()
        for what, was, now in zip(("memory, MiB", "threads", "descriptors"), then, after[name], strict=True)
    }


def grown(before: Mapping[str, Taken], after: Mapping[str, Taken]) -> list[str]:
    """Which processes take more than work may leave behind: what they leak, in words."""
    return [
        f"{name} grew by {memory:.1f} MiB and {descriptors} descriptors"
        for name, then in before.items()
        for memory, descriptors in ((after[name][0] - then[0], after[name][2] - then[2]),)
        if memory > GROWN or descriptors > MORE_DESCRIPTORS
    ]


async def work(subjects: Sequence[Subject], checkpoint: Path, refreshes: int) -> None:
    """Write the checkpoint again and again; each time scrape everyone until the exporter has refreshed."""
    for number in range(refreshes):
        checkpoint.with_name(f".{number}").write_bytes(b"")
        checkpoint.with_name(f".{number}").unlink()
        async with asyncio.timeout(_READY_LIMIT):
            done = 0.0
            while done <= number:
                lines = "\n".join([await get(subject, "/metrics") for subject in subjects]).splitlines()
                done = sum(float(line.removeprefix(_SERIES)) for line in lines if line.startswith(_SERIES))


async def measure(root: Path, seconds: float, starts: int, refreshes: int, row: Path | None) -> None:
    """Do it all below `root`, and print the table. `row` gets what changed by the refreshes, if it is given:
    the documents are left alone then.
    """
    devices, kubelet = root / "host" / "etc" / "colas", root / "kubelet"
    devices.mkdir(parents=True)
    for number in range(10):
        (devices / f"cola{number}").touch()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DEVICELENS_", "PYTHON"))}
    environment["PYTHONPYCACHEPREFIX"] = str(root / "compiled")
    devicelens = (sys.executable, "-m", "devicelens")
    flags = ("--kubelet.root", str(kubelet), "--log.level", "error")
    listen, cola = "--web.listen-address", ("--preset", "cola", "--host-root", str(root / "host"))
    floor, exporter, plugin = (root / f"{name}.sock" for name in ("floor", "exporter", "plugin"))
    subjects = (
        Subject("floor", (sys.executable, "-c", _FLOOR, str(floor)), floor),
        Subject("exporter", (*devicelens, "exporter", *flags, listen, f"unix:{exporter}"), exporter),
        Subject("plugin", (*devicelens, "plugin", *cola, *flags, listen, f"unix:{plugin}"), plugin),
    )
    async with AsyncExitStack() as stack:
        simulated = await asyncio.create_subprocess_exec(*devicelens, "kubelet", *flags, env=environment)
        stack.push_async_callback(simulated.wait)
        stack.callback(simulated.terminate)
        ready: list[list[float]] = [[], [], []]
        for subject, took in zip(subjects, ready, strict=True):
            for _ in range(starts + 1):  # the first one compiles the modules
                async with running(subject, environment) as (_, needed):
                    took.append(needed)
        pids = [(await stack.enter_async_context(running(s, environment)))[0] for s in subjects]
        before = [rest(pid)[0] for pid in pids]
        await asyncio.sleep(seconds)
        figures = rest_figures(dict(zip(("floor", "exporter", "plugin"), pids, strict=True)), seconds, before)
        figures += [
            Figure(
                f"{subject.name}, ready", [1000 * one for one in took[1:]], "ms", floor_ready, "at most 1.25"
            )
            for floor_ready in ([1000 * one for one in ready[0][1:]],)
            for subject, took in zip(subjects[1:], ready[1:], strict=True)
        ]
        print(" " * 10 + "    RSS   anon    PSS  threads  fds  CPU s/min  ready ms")
        for subject, pid, used, took in zip(subjects, pids, before, ready, strict=True):
            (cpu, threads, fds), median = rest(pid), statistics.median(took[1:])
            per_minute = 60 * (cpu - used) / seconds
            print(f"{subject.name:10}{memory(pid)}{threads:9}{fds:5}{per_minute:11.2f}{median * 1000:10.0f}")
        names = [subject.name for subject in subjects]
        then = dict(zip(names, map(taken, pids), strict=True))
        await work(subjects, kubelet / "device-plugins" / "kubelet_internal_checkpoint", refreshes)
        print(f"after {refreshes} refreshes, each scraped at least once")
        if row is not None:
            now = dict(zip(names, map(taken, pids), strict=True))
            result = {"refreshes": refreshes, "compared": compared(then, now)}
            row.write_text(json.dumps(result))  # noqa: ASYNC240 -- a small file, when all is over
            if leaks := grown(then, now):
                raise SystemExit("; ".join(leaks))
            return
        for subject, pid in zip(subjects, pids, strict=True):
            print(f"{subject.name:10}{memory(pid)}{rest(pid)[1]:9}{rest(pid)[2]:5}")
        floor_rss = [resident(pids[0])]
        figures += [
            Figure(
                f"{subject.name}, memory after {refreshes} refreshes, each scraped",
                *([resident(pid)], "MiB", floor_rss, "at most 55 MiB"),
            )
            for subject, pid in zip(subjects[1:], pids[1:], strict=True)
        ]
        words = "Compiled modules, ten devices, a simulated kubelet. Floor: Python with grpc.aio and aiohttp."
        write_section("At rest", words, figures)
        await imports(environment)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="time at rest")
    parser.add_argument("--starts", type=int, default=5, help="starts; the median is reported")
    parser.add_argument("--refreshes", type=int, default=200, help="refreshes after that")
    parser.add_argument("--row", type=Path, help="where to write the changes, instead of the documents")
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        asyncio.run(measure(Path(directory), **vars(parser.parse_args())))
