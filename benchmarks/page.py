"""The status page: its first byte, when a browser can use it, and what open pages cost.

The kubelet (pod_resources), the exporter, the open pages and the floors run in processes of their own. Where
there is no Chromium its part is left out, and said to be.
"""

import argparse
import asyncio
import shutil
import socket as sockets
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, async_playwright

from benchmarks.exporter import GZIP, exporting, static
from benchmarks.report import Figure, write_section
from benchmarks.running import cpu, environment, process, ready

_DEVICES: Final = 8
"""Of each pod."""
_PAGES: Final = 50
_LIMIT: Final = 30.0

_OPEN: Final = """\
import asyncio, sys
from pathlib import Path
from benchmarks.running import Client
socket, pages, path = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
seen = 0
async def page():
    # As the page's own module does: a stream of events, and the page again for each new tag.
    global seen
    client = await Client.to(socket)
    await client.get(path, "Accept-Encoding: gzip\\r\\n")
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(b"GET /api/v1/events HTTP/1.1\\r\\nHost: bench\\r\\nAccept: text/event-stream\\r\\n\\r\\n")
    tag = ""
    while line := await reader.readline():
        if line.startswith(b"id: "):
            known, tag = tag, line[4:].decode().strip()
            if known:
                status, body = await client.get(
                    path, f'Accept-Encoding: gzip\\r\\nIf-None-Match: W/"{known}"\\r\\n'
                )
                assert status == 200 and body
                seen += 1
async def count():
    while True:
        await asyncio.sleep(0.2)
        new = Path(sys.argv[4] + ".new")
        new.write_text(str(seen))
        new.rename(sys.argv[4])
async def main():
    await asyncio.gather(count(), *(page() for _ in range(pages)))
asyncio.run(main())
"""
_FLOOR: Final = """\
import asyncio, sys
from pathlib import Path
from aiohttp import web
body = Path(sys.argv[2]).read_bytes()
number = 0
async def page(request):
    return web.Response(body=body, headers={"Content-Type": "text/html", "Content-Encoding": "gzip"})
async def ready(request):
    return web.Response(text="ready")
async def events(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    streams.add(response)
    await asyncio.Event().wait()
async def change(app):
    async def forever():
        global number
        while True:
            await asyncio.sleep(1)
            number += 1
            for stream in streams:
                await stream.write(b"event: generation\\nid: %d\\ndata: %d\\n\\n" % (number, number))
    app["task"] = asyncio.create_task(forever())
streams = set()
app = web.Application()
app.on_startup.append(change)
app.add_routes([web.get("/", page), web.get("/-/healthy", ready), web.get("/api/v1/events", events)])
web.run_app(app, path=sys.argv[1], print=None, access_log=None)
"""


async def first_byte(root: Path, rounds: int) -> None:
    """From a request to the first byte of its answer, on a connection that is open."""
    figures: list[Figure] = []
    for pods in (250, 1250):
        size = f"{pods * _DEVICES} devices"
        async with (
            exporting(root, pods, _DEVICES, "--poll.interval", "0.2s") as (_, socket, client),
            AsyncExitStack() as stack,
        ):
            kept = [(await client.get("/", headers))[1] for headers in (GZIP, "")]
            serving = static(root, f"static{pods}", kept)
            _, floor_socket, _ = await stack.enter_async_context(serving)
            floor = [await _first_byte(floor_socket, "/metrics") for _ in range(rounds)]
            changing = root / f"k{pods}" / "changing"
            for changes in (False, True):
                if changes:
                    changing.touch()
                for path, what in (("/", "all"), ("/?q=trainer-1&sort=-since&group=pod", "searched, sorted")):
                    took: list[float] = []
                    for _ in range(rounds if changes else 3):
                        # Another second, and where it changes another mapping, than those before.
                        await asyncio.sleep(0.21 if changes else 1.01)
                        took.append(await _first_byte(socket, path))
                    when = "after a change" if changes else "unchanged"
                    figures.append(Figure(f"{size}, {what}, {when}", took, "ms", floor, "at most 50 ms"))
    words = (
        "From a request to the first byte of the page, gzipped, 200 rows of it. Floor: the same bytes, read "
        "from a file at the start, answered by a bare aiohttp application."
    )
    write_section("Status page: first byte", words, figures)


async def _first_byte(socket: Path, path: str) -> float:
    """Milliseconds."""
    reader, writer = await asyncio.open_unix_connection(socket, limit=1 << 22)
    try:
        began = time.perf_counter()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{GZIP}\r\n".encode())
        head = await reader.readuntil(b"\r\n")
        took = (time.perf_counter() - began) * 1000
    finally:
        writer.close()
    if b" 200 " not in head:
        raise OSError(f"{path}: {head!r}")
    return took


async def open_pages(root: Path, seconds: float) -> None:
    """What pages that stand open cost the exporter: its CPU with them, less its CPU without."""
    figures: list[Figure] = []
    for pods in (1, 250):
        async with exporting(root, pods, _DEVICES, "--poll.interval", "1s") as (pid, socket, client):
            body = (await client.get("/", GZIP))[1]
            (root / f"k{pods}" / "changing").touch()
            alone = await _used(pid, seconds)
            env = environment(root / "compiled")
            floor_socket, kept = root / f"floor{pods}", root / f"floor{pods}.gz"
            kept.write_bytes(body)
            async with process("-c", _FLOOR, str(floor_socket), str(kept), env=env) as floor_pid:
                (await ready(floor_socket, "/-/healthy")).close()
                floor = await _opened(floor_socket, floor_pid, seconds, env)
            used = await _opened(socket, pid, seconds, env)
        figures += [
            Figure(
                f"{pods * _DEVICES} devices: {_PAGES} pages",
                [100 * (used - alone)],
                "% of a core",
                [100 * floor],
                "at most 5 %",
            ),
            Figure(f"{pods * _DEVICES} devices: the exporter without them", [100 * alone], "% of a core"),
        ]
    words = (
        f"{_PAGES} pages of the same address, live, while the mapping changes once a second: each has an "
        "event stream and fetches the page after each change. Floor: a bare aiohttp application that "
        "writes to as many streams and answers as many requests with the same bytes."
    )
    write_section("Status page: open pages", words, figures)


async def _opened(socket: Path, pid: int, seconds: float, env: dict[str, str]) -> float:
    """Seconds of CPU a second of the process that serves at `socket`, with the pages open."""
    counter = socket.with_name(f"{socket.name}.seen")
    async with process("-c", _OPEN, str(socket), str(_PAGES), "/", str(counter), env=env):
        async with asyncio.timeout(_LIMIT):
            while _seen(counter) < 2 * _PAGES:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.1)
        before = _seen(counter)
        used = await _used(pid, seconds)
        fetched = (_seen(counter) - before) / _PAGES / seconds
    if not 0.7 <= fetched <= 1.3:
        raise RuntimeError(f"each page was fetched {fetched:.2f} times a second, expected once")
    return used


def _seen(counter: Path) -> int:
    return int(counter.read_text()) if counter.exists() else 0


async def _used(pid: int, seconds: float) -> float:
    before, began = cpu(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    return (cpu(pid) - before) / (time.perf_counter() - began)


async def usable(root: Path, rounds: int) -> None:
    """From the address to a page that a person can use, in Chromium."""
    executable = shutil.which("chromium")
    if executable is None:
        print("\nStatus page: usable\n\nleft out: there is no chromium here", flush=True)
        return
    figures: list[Figure] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        for pods in (1, 250, 1250):
            async with _on_tcp(root, pods) as port:
                took = [await _load(browser, port, scripts=True) for _ in range(rounds)]
                floor = [await _load(browser, port, scripts=False) for _ in range(rounds)]
            figures.append(Figure(f"{pods * _DEVICES} devices", took, "ms", floor, "at most 1000 ms"))
        await browser.close()
    words = (
        "From the address until the rows are there and the page's module has done its part, in a Chromium "
        "without anything cached. Floor: the same page with scripts switched off, until it is loaded."
    )
    write_section("Status page: usable", words, figures)


@asynccontextmanager
async def _on_tcp(root: Path, pods: int) -> AsyncGenerator[int]:
    """An exporter beside a kubelet of this size, for browsers: its port."""
    env, kubelet = environment(root / "compiled"), root / f"k{pods}"
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = ("-m", "devicelens", "exporter", "--kubelet.root", str(kubelet), "--pods.source", "none")
    listen = ("--web.listen-address", f"127.0.0.1:{port}", "--log.level", "error")
    async with (
        process("-m", "benchmarks.pod_resources", str(kubelet), str(pods), str(_DEVICES), env=env),
        process(*command, *listen, env=env),
    ):
        async with asyncio.timeout(_LIMIT):
            while not await _is_ready(port):  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.02)
        yield port


async def _is_ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /-/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.close()


async def _load(browser: Browser, port: int, *, scripts: bool) -> float:
    """Milliseconds."""
    context = await browser.new_context(java_script_enabled=scripts)
    page = await context.new_page()
    began = time.perf_counter()
    await page.goto(f"http://127.0.0.1:{port}/", wait_until="load")
    if scripts:
        await page.wait_for_selector(".devices tbody:last-of-type button.copy", state="attached")
    took = (time.perf_counter() - began) * 1000
    await context.close()
    return took


async def main(rounds: int, seconds: float) -> None:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        roots = [Path(directory) / name for name in "fuo"]
        for root in roots:
            root.mkdir()
        await first_byte(roots[0], rounds)
        await usable(roots[1], rounds)
        await open_pages(roots[2], seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="samples of what is short")
    parser.add_argument("--seconds", type=float, default=15.0, help="time for which pages stand open")
    asyncio.run(main(**vars(parser.parse_args())))
