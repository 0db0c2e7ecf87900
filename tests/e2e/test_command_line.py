"""The command line on a whole node: an exporter, its kubelet and a Prometheus tell the same, now and then."""

import asyncio
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from fcntl import ioctl
from functools import partial
from pathlib import Path

import pytest

from harness.node import Pod
from harness.nodes import running_node
from harness.owners import CLEAN, devicelens, devicelens_again
from harness.processes import Process
from harness.prometheus import Prometheus
from harness.stack import Stack
from harness.waiting import until

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
_CONFIGURATION = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: honoured
    honor_labels: true
    static_configs: [{{targets: ["{target}"], labels: {labels}}}]
  - job_name: renamed
    honor_labels: false
    static_configs: [{{targets: ["{target}"], labels: {labels}}}]
"""
_LABELS = "{namespace: obs, pod: x, container: exporter, node: other-name}"


@pytest.fixture
async def stack() -> AsyncGenerator[Stack]:
    """Three devices, of which the pod `one` holds one."""
    async with running_node("--sync-delay", "0") as node, Stack(node, "--poll.interval", "500ms") as stack:
        stack.add_devices("lime", "cherry", "vanilla")
        await stack.allocatable_is(3)
        await node.add_pod(Pod("one", {"main": {stack.resource: 1}}))
        await stack.ready()
        await stack.metric_is(1.0, "devicelens_resource_allocated_devices")
        yield stack


@pytest.fixture
async def prometheus(stack: Stack, tmp_path: Path) -> AsyncGenerator[str]:
    """A Prometheus that scrapes the exporter twice: with honor_labels on and off."""
    text = _CONFIGURATION.format(target=stack.url.removeprefix("http://"), labels=_LABELS)
    async with Prometheus(tmp_path, text) as running:
        yield running.url


Row = tuple[str, str, str, str, str]


def held(document: dict[str, object]) -> set[Row]:
    """Devices with their holders, free ones with nobody."""
    devices = document["devices"]
    assert isinstance(devices, list)
    return {
        (d["resource"], d["device"], str(d["healthy"]), h.get("pod", ""), h.get("container", ""))
        for d in devices
        for h in d["holders"] or [{}]
    }


async def test_an_exporter_its_kubelet_and_prometheus_tell_the_same(stack: Stack, prometheus: str) -> None:
    status, out, _ = await devicelens("who", "--url", stack.url, "-o", "json")
    assert status == 0
    expected = held(json.loads(out))
    assert len(expected) == 3
    socket_path = str(stack.node.root / "pod-resources" / "kubelet.sock")
    status, out, _ = await devicelens("who", "--socket", socket_path, "-o", "json")
    assert held(json.loads(out)) == expected

    async def fleet(job: str) -> bool:
        asked = ("--prometheus", prometheus, "--selector", f'{{job="{job}"}}')
        status, out, err = await devicelens_again("who", *asked, "-o", "json")
        assert status == 0, err
        (node,) = json.loads(out)["nodes"]
        assert (node["node"], node["labels"], node["freshness"]) == (stack.node.name, {}, "fresh")
        assert held(node) == expected
        return True

    for job in ("honoured", "renamed"):
        await until(f"Prometheus has what the job {job} scraped", partial(fleet, job), limit=60)
    # Both at once are one node, and its name is its own, whatever the scrape calls it.
    status, out, err = await devicelens("who", "--prometheus", prometheus, "--node", stack.node.name)
    assert (status, err) == (0, "")
    assert out.splitlines()[4:] == ["", "3 devices: 1 held, 2 free"]


async def test_states_counts_and_anomalies_of_a_device_that_fails_while_it_is_held(stack: Stack) -> None:
    (held,) = await stack.held()
    socket_path = str(stack.node.root / "pod-resources" / "kubelet.sock")
    sources = (("--url", stack.url), ("--socket", socket_path))

    async def rows(*arguments: str) -> list[list[str]]:
        status, out, err = await devicelens_again(*arguments, "--no-headers")
        assert status in {0, 3}, err
        return [line.split() for line in out.splitlines()]

    for source in sources:
        status, _, err = await devicelens_again("who", stack.resource, *source, "--state", "unhealthy")
        assert (status, "no unhealthy device of" in err) == (3, True)
    stack.remove_devices(held.device)
    await stack.allocatable_is(2)
    await stack.metric_is(0, "devicelens_device_healthy", device=held.device)
    for source in sources:
        who = ("who", stack.resource, *source)
        (ill,) = await rows(*who, "--state", "unhealthy")
        assert ill[:4] == [stack.resource, held.device, "unhealthy", f"{stack.node.namespace}/one"]
        assert [row[1] for row in await rows(*who, "--state", "held")] == [held.device]
        free = await rows(*who, "--state", "free")
        assert {held.device, *(row[1] for row in free)} == {"lime", "cherry", "vanilla"}
        # Rows without a pod come last.
        first, *_ = await rows(*who, "--sort-by", "pod")
        assert first[1] == held.device
        _, out, _ = await devicelens_again(*who)
        assert out.splitlines()[-2:] == ["", "3 devices: 1 held (unhealthy), 2 free"]
    found = [row for row in await rows("anomalies", "--url", stack.url) if row[1] == stack.resource]
    assert [row[:4] for row in found] == [
        ["unhealthy_held", stack.resource, held.device, f"{stack.node.namespace}/one"]
    ]
    status, _, err = await devicelens_again("who", "--url", stack.url, "--fail-if-stale")
    assert status == 0, err


async def test_prometheus_tells_the_past_of_a_pod_that_is_gone(stack: Stack, prometheus: str) -> None:
    fleet = ("--prometheus", prometheus)

    async def shows() -> bool:
        status, _, _ = await devicelens_again("who", *fleet, "--pod", "default/one")
        return status == 0

    await until("Prometheus shows the pod", shows, limit=60)
    there = time.time()
    await stack.node.delete_pod("one")

    async def gone() -> bool:
        status, _, err = await devicelens_again("who", *fleet, "--pod", "default/one")
        return (status, err) == (3, f"devicelens: no device on {stack.node.name} is held by default/one\n")

    await until("Prometheus shows that it is gone", gone, limit=60)
    stamp = datetime.fromtimestamp(there, UTC).isoformat()
    status, out, err = await devicelens("who", *fleet, "--pod", "default/one", "--at", stamp)
    assert status == 0, err
    assert "default/one" in out


async def test_watch_tells_each_change_and_ends_when_it_is_interrupted(stack: Stack) -> None:
    """By the exporter's events, by asking it, and by asking the kubelet."""
    socket_path = str(stack.node.root / "pod-resources" / "kubelet.sock")
    watchers = (
        Process("who", "--url", stack.url, "--watch", stack.resource),
        Process("who", "--url", stack.url, "--watch", "200ms", stack.resource),
        Process("who", "--socket", socket_path, "--watch", "200ms", stack.resource),
    )
    line = rf"[-0-9T:]+Z  released   {re.escape(stack.resource)}  \w+  default/one  main"
    async with watchers[0], watchers[1], watchers[2]:
        for watcher in watchers:
            await watcher.line("held")
        await stack.node.add_pod(Pod("two", {"main": {stack.resource: 1}}))
        for watcher in watchers:
            await watcher.line("default/two")
        await stack.node.delete_pod("one")
        for watcher in watchers:
            assert re.fullmatch(line, await watcher.line("released"))
            assert await watcher.stop(signal.SIGINT) == 0
            told = [line.split()[1] for line in watcher.lines if "default/" in line]
            assert told == ["held", "allocated", "released"]


async def test_watch_outlives_its_exporter(stack: Stack) -> None:
    listen = stack.url.removeprefix("http://")
    arguments = [listen if word == "127.0.0.1:0" else word for word in stack.exporter.arguments]
    process = Process("who", "--url", stack.url, "--watch", "-o", "json")
    async with process:
        await process.line('"held"')
        await stack.exporter.kill()
        await process.line("trying again")
        await stack.node.add_pod(Pod("two", {"main": {stack.resource: 1}}))
        async with Process(*arguments):
            await process.line("answers again")
            line = await process.line('"allocated"')
            assert json.loads(line)["pod"] == "two"
            # What is held since before it was killed is not told anew.
            assert sum('"one"' in line for line in process.lines) == 1
            assert await process.stop(signal.SIGTERM) == 0


async def test_watch_redraws_a_terminal_in_place_and_leaves_it_in_order(stack: Stack) -> None:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 70, 0, 0))
    seen = bytearray()
    asyncio.get_running_loop().add_reader(master, lambda: seen.extend(os.read(master, 65536)))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "devicelens", "who", "--url", stack.url, "--watch"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=ROOT,
        env={**CLEAN, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    try:

        async def shows(text: str) -> bool:
            return text in seen.decode(errors="replace")

        await until("the table", lambda: shows("1 of 3 devices held"))
        drawn = len(seen)
        await stack.node.add_pod(Pod("two", {"main": {stack.resource: 1}}))
        await until("the change", lambda: shows("2 of 3 devices held"))
        after = seen[drawn:].decode(errors="replace")
        assert "\x1b[1A" in after, "the cursor goes up, and the lines are written over"
        assert "\x1b[1;7m*" in after, "what changed is marked"
        assert "\x1b[?1049h" not in seen.decode(errors="replace"), "what was above stays"
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            assert await process.wait() == 0
        await until("the cursor is back", lambda: shows("\x1b[?25h"))
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).splitlines()
        assert [line for line in lines if len(line) > 70] == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        asyncio.get_running_loop().remove_reader(master)
        os.close(master)
        os.close(slave)


async def test_who_is_read_no_more_ends_quietly(stack: Stack) -> None:
    """As `devicelens who | head -1` where head is gone already."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "devicelens", "who", "--url", stack.url],
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=CLEAN,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
