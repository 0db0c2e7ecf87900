"""Hundreds of clients that stream, pipeline and do not read: others are answered, and memory is bounded.

DEVICELENS_FAULTS=full (`make faults`) attacks an exporter of 40 000 devices for longer.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.running import memory
from harness.flood import SEARCHES, UNREAD, WORDS, Flood, fetched, flooded, socket_memory
from harness.processes import Process
from harness.waiting import until
from runtime.http.connection import MAX_CONNECTIONS, SEND_BUFFER

pytestmark = [pytest.mark.simulated, pytest.mark.timeout(600)]

FULL = os.environ.get("DEVICELENS_FAULTS") == "full"
SECONDS = 30.0 if FULL else 2.0
PODS = 500 if FULL else 100
"""Of 80 devices each."""
WITHIN = 15.0
"""Seconds for an answer: a machine may be slow."""
MEMORY_LIMIT = 768.0
"""MiB, as in deploy/base/daemonset.yaml."""
ONE, MANY = ("127.0.0.1",), tuple(f"127.0.0.{n}" for n in range(2, 34))
PATHS = ("/-/healthy", "/-/ready", "/metrics")


@asynccontextmanager
async def _exporter(root: Path, pods: int) -> AsyncGenerator[tuple[Process, int]]:
    flags = ("--kubelet.root", str(root), "--web.listen-address", "127.0.0.1:0", "--pods.source", "none")
    async with (
        Process(str(root), str(pods), "80", module="benchmarks.pod_resources"),
        Process("exporter", *flags) as exporter,
    ):
        port = int((await exporter.url()).rpartition(":")[2])

        async def ready() -> bool:
            return (await fetched(port, "/-/ready", "127.0.0.1", WITHIN))[0] == 200

        await until("the exporter is ready", ready)
        yield exporter, port


async def _others_are_answered(port: int) -> None:
    """Probe and scrape for SECONDS from an attacker's address and from another one."""
    end = asyncio.get_running_loop().time() + SECONDS
    while asyncio.get_running_loop().time() < end:
        for path in PATHS:
            for address in ("127.0.0.1", "127.0.0.99"):
                status, seconds = await fetched(port, path, address, WITHIN)
                assert status == 200, f"{path} from {address}: {status} after {seconds:.1f} s"


@pytest.mark.parametrize("addresses", [ONE, MANY], ids=["one", "many"])
async def test_512_clients_starve_nobody_and_log_one_line(addresses: tuple[str, ...], root: Path) -> None:
    async with _exporter(root, 1) as (exporter, port):
        before = socket_memory()
        async with flooded(Flood(port, 512, addresses, WORDS)):
            await _others_are_answered(port)
            # The kernel doubles SO_SNDBUF; what clients have received and not read comes on top.
            assert socket_memory() - before < MAX_CONNECTIONS * 3 * SEND_BUFFER
        full = [line for line in exporter.lines if "connection limit reached" in line]
        assert len(full) <= 1, full
        assert not [line for line in exporter.lines if "level=error" in line or "Traceback" in line]


@pytest.mark.parametrize("addresses", [ONE, MANY], ids=["one", "many"])
async def test_answers_that_nobody_reads_are_kept_once(addresses: tuple[str, ...], root: Path) -> None:
    async with _exporter(root, PODS) as (exporter, port):
        before = memory(exporter.pid)
        async with flooded(Flood(port, 200, addresses, UNREAD)):
            await _others_are_answered(port)
            most = memory(exporter.pid, "VmHWM")
        assert most < MEMORY_LIMIT
        # 67 answers of the API, of 300 bytes for each device, were 160 MiB here.
        assert most - before < 110.0 or FULL


async def test_searches_that_are_all_different_delay_nobody(root: Path) -> None:
    async with _exporter(root, PODS) as (exporter, port), flooded(Flood(port, 200, MANY, SEARCHES)):
        await _others_are_answered(port)
        assert memory(exporter.pid, "VmHWM") < MEMORY_LIMIT
