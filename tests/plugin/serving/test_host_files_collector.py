"""What a resource leaves on the host goes with it, and with nothing less."""

import asyncio
import fcntl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.served import Serve, Served, pod
from harness.served import configuration as of
from plugin.discovery.host import HostRoot
from plugin.serving.host_files import HostFilesCollector
from plugin.serving.written_files import HostRecord
from runtime.clock import Clock
from runtime.directory import DirectoryWatcher
from simulator import SimulatedKubelet

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


async def test_files_of_an_ended_process_stay_while_their_resource_is_configured(
    kubelet: SimulatedKubelet, serve: Serve, host: Path, root: Path
) -> None:
    other = "example.com/other"
    async with serve(configuration(GPU, other)):
        await kubelet.wait_until(lambda k: k.allocatable(GPU) == k.allocatable(other) == 1)
        for name in (GPU, other):
            await kubelet.add_pod(pod(name.rpartition("/")[2], name))
    assert left(host) == BOTH
    async with serve(configuration(GPU, other)) as served, collecting(root, host, served):
        served.apply(configuration(GPU))
        await served.until(lambda: left(host) == BOTH[::2])
        await kubelet.wait_until(lambda k: k.allocatable(GPU) == 1)
    assert left(host) == BOTH[::2]
    assert list((root / "k/device-plugins").glob(".devicelens-*.lock")) == []


async def test_what_another_process_serves_is_left_alone(
    kubelet: SimulatedKubelet, serve: Serve, host: Path, root: Path
) -> None:
    async with serve(configuration(GPU)) as first:
        await kubelet.wait_until(lambda k: k.allocatable(GPU) == 1)
        await first.until(lambda: len(left(host)) == 1)
        async with serve(configuration("example.com/other")) as second:
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


def test_what_cannot_be_removed_holds_up_nothing_else(tmp_path: Path, host: Path) -> None:
    first, second = (remember(tmp_path, host, name) for name in ("a", "b"))
    (host / "etc/cdi/a.json").unlink()
    (host / "etc/cdi/a.json").mkdir()
    leftovers = HostFilesCollector(tmp_path, HostRoot(host), lambda: (), Clock())
    with pytest.raises(OSError, match=r"/etc/cdi/a\.json"):
        leftovers.collect()
    assert not second.exists()
    assert first.exists()


def test_a_lease_that_was_given_up_since_it_was_opened_is_not_removed(
    tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_record_that_cannot_be_read_is_reported_once_and_holds_up_nothing(
    tmp_path: Path, host: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "devicelens")
    first, second = (remember(tmp_path, host, name) for name in ("a", "b"))
    first.write_bytes(b"{")
    leftovers = HostFilesCollector(tmp_path, HostRoot(host), lambda: (), Clock())
    for _ in range(3):
        leftovers.collect()
    assert not second.exists()
    told = [message for message in caplog.messages if message.startswith("cannot read the record")]
    assert told == ["cannot read the record of files on the host"]
    first.unlink()
    leftovers.collect()
    assert caplog.messages[-1] == "cannot read the record of files on the host: over"
