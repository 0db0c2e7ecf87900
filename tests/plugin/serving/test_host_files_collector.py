"""What a resource leaves on the host goes with it, and with nothing less."""

import asyncio
import fcntl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.served import Node, Served, pod
from harness.served import configuration as of
from plugin.discovery.host import HostRoot
from plugin.serving.host_files import HostFilesCollector
from plugin.serving.written_files import HostRecord
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher

GPU = "example.com/gpu"


def resource(name: str) -> str:
    return f"""\
  - name: {name}
    discover: [{{static: {{devices: [{{name: "{name.rpartition("/")[2]}0"}}]}}}}]
    cdi: {{kind: vendor.example/gpu, env: {{"GPU": "{{{{ device.id }}}}"}}}}
    allocate: {{files: [{{host: "/run/x/{{{{ device.id }}}}", container: /etc/x, content: x}}]}}
"""


def configuration(*names: str) -> str:
    return of(*map(resource, names))


@asynccontextmanager
async def collecting(root: Path, host: Path, served: Served) -> AsyncGenerator[None]:
    watcher = DirectoryWatcher()
    leftovers = HostFilesCollector(
        root / "k/device-plugins", HostRoot(host), lambda: served.fleet.plans, Clock()
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watcher.run()), group.create_task(leftovers.run(watcher))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def left(host: Path) -> list[str]:
    return sorted(
        path.name
        for name in ("var/run/cdi", "run/x")
        if (host / name).exists()
        for path in (host / name).iterdir()
    )


BOTH = [
    "gpu0",
    "other0",
    "vendor.example-gpu_devicelens_example.com_gpu.json",
    "vendor.example-gpu_devicelens_example.com_other.json",
]


async def test_files_go_with_the_resource(node: Node, host: Path, root: Path) -> None:
    other = "example.com/other"
    async with node.serve(configuration(GPU, other)):
        await node.kubelet.wait_until(lambda k: k.allocatable(GPU) == k.allocatable(other) == 1)
        for name in (GPU, other):
            await node.kubelet.add_pod(pod(name.rpartition("/")[2], name))
    assert left(host) == BOTH
    async with node.serve(configuration(GPU, other)) as served, collecting(root, host, served):
        served.apply(configuration(GPU))
        await served.until(lambda: left(host) == BOTH[::2])
        await node.allocatable(GPU)
        directory = node.kubelet.root / "device-plugins"
        await served.until(lambda: len([*directory.glob(".devicelens-*.lock")]) == 1)
    assert left(host) == BOTH[::2]


async def test_files_of_another_process_stay(node: Node, host: Path, root: Path) -> None:
    async with node.serve(configuration(GPU), ready={GPU: 1}) as first:
        await first.until(lambda: len(left(host)) == 1)
        async with node.serve(configuration("example.com/other")) as second:
            leftovers = HostFilesCollector(
                root / "k/device-plugins", HostRoot(host), lambda: second.fleet.plans, Clock()
            )
            await second.until(lambda: len(left(host)) == 2)
            leftovers.collect()
            assert len(left(host)) == 2


def remember(directory: Path, host: Path, name: str) -> Path:
    """A record of a resource that nobody serves, and its CDI specification."""
    specification = host / "etc/cdi" / f"{name}.json"
    specification.parent.mkdir(parents=True, exist_ok=True)
    specification.touch()
    record = directory / f".devicelens-{name}.json"
    HostRecord(record, f"example.com/{name}").update(cdi=f"/etc/cdi/{name}.json")
    return record


def test_a_failed_removal_blocks_no_other_record(tmp_path: Path, host: Path) -> None:
    first, second = (remember(tmp_path, host, name) for name in ("a", "b"))
    (host / "etc/cdi/a.json").unlink()
    (host / "etc/cdi/a.json").mkdir()
    leftovers = HostFilesCollector(tmp_path, HostRoot(host), lambda: (), Clock())
    with pytest.raises(OSError, match=r"/etc/cdi/a\.json"):
        leftovers.collect()
    assert not second.exists()
    assert first.exists()


def test_a_lease_of_another_stays(tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = remember(tmp_path, host, "a")
    lease = record.with_suffix(".lock")
    real = fcntl.flock

    def another_took_it_over(file: int, operation: int) -> None:
        lease.unlink()
        lease.touch()
        real(file, operation)

    monkeypatch.setattr("plugin.serving.sockets.fcntl.flock", another_took_it_over)
    HostFilesCollector(tmp_path, HostRoot(host), lambda: (), Clock()).collect()
    assert record.exists()
    assert lease.exists()


def test_an_unreadable_record_is_logged_once(
    tmp_path: Path, host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "devicelens")
    first, second = (remember(tmp_path, host, name) for name in ("a", "b"))
    first.write_bytes(b"{")
    leftovers = HostFilesCollector(tmp_path, HostRoot(host), lambda: (), Clock())
    for _ in range(3):
        leftovers.collect()
    assert not second.exists()
    logged = [message for message in caplog.messages if message.startswith("cannot read the record")]
    assert logged == ["cannot read the record of files on the host"]
    first.unlink()
    leftovers.collect()
    assert caplog.messages[-1] == "cannot read the record of files on the host: over"
