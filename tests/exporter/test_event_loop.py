"""No request holds the event loop of an exporter for long while one of 8000 devices' pods changes.

The CPU time of each callback is measured: a busy machine stretches other times.
"""

from __future__ import annotations  # grpc's classes are generic for type checkers alone

import asyncio
import gc
import itertools
import socket
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import grpc
import pytest

from benchmarks.pod_resources import RESOURCE, allocatable, device, listed
from exporter.main import main
from exporter.settings import ExporterSettings
from harness.callbacks import LIMIT, Longest, longest_callback
from harness.waiting import background, until
from runtime.flags import settings_command

PODS, DEVICES = 1000, 8

GZIP = {"Accept-Encoding": "gzip"}
OPENMETRICS = {"Accept": "application/openmetrics-text"}
REQUESTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("/", GZIP),
    ("/?q=trainer-1&sort=-since&group=pod", {}),
    (f"/devices/{RESOURCE}/{device(4711)}", GZIP),
    ("/pods/ml/trainer-77", {}),
    ("/claims/gpu.example.com/worker/gpu-0", GZIP),
    ("/history", {}),
    ("/nowhere", {"Accept": "text/html"}),
    ("/metrics", GZIP),
    ("/metrics", {}),
    ("/metrics", GZIP | OPENMETRICS),
    ("/metrics", OPENMETRICS),
    ("/api/v1/devices", GZIP),
    ("/api/v1/devices", {}),
    ("/api/v1/devices?state=held", GZIP),
    ("/api/v1/devices?limit=1000", {}),
    ("/api/v1/pods?limit=1000", GZIP),
    ("/api/v1/pods", GZIP),
    ("/api/v1/resources", {}),
    ("/api/v1/anomalies", {}),
    (f"/api/v1/explain?device={device(4711)}", {}),
    ("/api/v1/history", {}),
    ("/api/v1/status", {}),
)


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> Iterator[Longest]:
    with longest_callback(monkeypatch) as found:
        yield found


@contextmanager
def kubelet(root: Path) -> Generator[None]:
    """PodResources of 8000 held devices: of two Lists one pod has another name."""
    lists = itertools.cycle([listed(PODS, DEVICES, other=other) for other in (False, True)])
    offer = allocatable(PODS, DEVICES)

    def list_pods(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return next(lists)

    def get_allocatable(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return offer

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "List": grpc.unary_unary_rpc_method_handler(list_pods),
        "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(get_allocatable),
    }
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)])
    for name in ("pod-resources", "device-plugins"):
        (root / name).mkdir()
    server.add_insecure_port(f"unix:{root}/pod-resources/kubelet.sock")
    server.start()
    try:
        yield
    finally:
        server.stop(None)


class UnixConnection(HTTPConnection):
    """HTTP over a unix socket. Blocking: for threads."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def settings(root: Path) -> ExporterSettings:
    found: list[ExporterSettings] = []
    command = settings_command(ExporterSettings)(found.append)
    listen = f"--web.listen-address=unix:{root}/web"
    flags = [f"--kubelet.root={root}", "--pods.source=none", "--poll.interval=0.5s", listen]
    command.main(flags, standalone_mode=False)
    return found[0]


async def test_no_request_holds_the_event_loop(root: Path, longest: Longest) -> None:
    client = UnixConnection(root / "web")

    def get(path: str, headers: dict[str, str]) -> int:
        client.request("GET", path, headers=headers)
        answer = client.getresponse()
        answer.read()
        return answer.status

    async def ready() -> bool:
        try:
            return await asyncio.to_thread(get, "/-/ready", {}) == 200
        except OSError:
            client.close()
            return False

    async def streaming() -> None:
        reader, writer = await asyncio.open_unix_connection(root / "web")
        with closing(writer):
            writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.read()

    stop, too_long = asyncio.Event(), list[str]()
    with kubelet(root):
        exporter = asyncio.create_task(main(settings(root), stop))
        try:
            await until("the exporter is ready", ready)
            gc.collect()
            await asyncio.sleep(0)
            async with background(streaming()):
                longest.take()
                for path, headers in REQUESTS:
                    status = await asyncio.to_thread(get, path, headers)
                    assert status in {200, 404}, path
                    seconds, callback = longest.take()
                    if seconds > LIMIT:
                        too_long.append(f"{path} {headers}: {callback} for {seconds * 1000:.0f} ms")
        finally:
            client.close()
            stop.set()
            await exporter
    assert not too_long
