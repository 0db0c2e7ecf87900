"""What a resource leaves on the host goes with it, and with nothing less."""

import fcntl
from pathlib import Path

import pytest

from harness.served import Node, configuration, static
from plugin.discovery.host import HostRoot
from plugin.serving.host_files import HostFilesCollector
from plugin.serving.written_files import HostRecord
from runtime.clock import Clock


def specified(name: str) -> str:
    """A resource with a CDI specification."""
    return configuration(static(name, name[-3:]) + "  cdi: {kind: vendor.example/gpu, env: {GPU: x}}\n")


async def test_files_of_another_process_stay(node: Node, host: Path, root: Path) -> None:
    def left() -> int:
        return len([*host.glob("var/run/cdi/*.json")])

    async with node.serve(specified("example.com/gpu"), ready={"example.com/gpu": 1}) as first:
        await first.until(lambda: left() == 1)
        async with node.serve(specified("example.com/other")) as second:
            leftovers = HostFilesCollector(
                root / "k/device-plugins", HostRoot(host), lambda: second.fleet.plans, Clock()
            )
            await second.until(lambda: left() == 2)
            leftovers.collect()
            assert left() == 2


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
