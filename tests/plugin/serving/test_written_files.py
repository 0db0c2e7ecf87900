"""Files written for containers: one that fails holds up no other, and what was promised is tried again."""

import os
from pathlib import Path

import pytest

from harness.scripted import pod
from harness.served import Hands, Node, configuration, glob
from plugin.devices.rendering import File
from plugin.discovery.host import HostRoot
from plugin.serving.context import Pace
from plugin.serving.written_files import KEEP_SIDE_FILES, HostRecord, SideFiles, read_record

GPU = "example.com/gpu"
FILE = '{host: "/run/gpus/{{ device.id }}", container: "/etc/{{ device.id }}", content: x}'
CONFIGURATION = configuration(glob(GPU, "/dev/gpu*", f"  allocate: {{files: [{FILE}]}}\n"))


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def files(host: Path, tmp_path: Path, hands: Hands) -> SideFiles:
    """Files of a, b and c, of which b's cannot be removed nor written."""
    made = SideFiles(HostRoot(host), HostRecord(tmp_path / "record.json", GPU), hands.clock())
    for name in "abc":
        made.write([File(f"/run/{name}", f"/etc/{name}", "x", 0o644, name)], {name: name})
    (host / "run/b").unlink()
    (host / "run/b").mkdir()
    return made


def test_a_failed_removal_blocks_no_other(files: SideFiles, host: Path, tmp_path: Path, hands: Hands) -> None:
    hands.ahead = KEEP_SIDE_FILES
    with pytest.raises(OSError, match="/run/b"):
        files.release([], hands.clock().monotonic())
    assert [path.name for path in (host / "run").iterdir()] == ["b"]
    record = read_record(tmp_path / "record.json")
    assert record is not None
    assert [*record.files] == ["/run/b"]
    (host / "run/b").rmdir()
    files.release([], hands.clock().monotonic())
    assert not files.any()


def test_a_file_written_after_the_holders_were_read_stays(host: Path, tmp_path: Path, hands: Hands) -> None:
    """However long the kubelet took to answer, and whatever has been released by then."""
    clock = hands.clock()
    files = SideFiles(HostRoot(host), HostRecord(tmp_path / "record.json", GPU), clock)
    hands.ahead += KEEP_SIDE_FILES
    read_at = clock.monotonic()
    files.write([File("/run/a", "/etc/a", "x", 0o644, "a")], {"a": "a"})
    hands.ahead += 10 * KEEP_SIDE_FILES
    files.release([], read_at)
    assert (host / "run/a").is_file()
    files.release([], clock.monotonic())
    assert not files.any()


def test_a_failed_restore_blocks_no_other(files: SideFiles, host: Path) -> None:
    for name in "ac":
        (host / "run" / name).unlink()
    with pytest.raises(OSError, match="/run/b"):
        files.restore()
    assert all((host / "run" / name).is_file() for name in "ac")


def test_a_record_is_synced_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(file: int) -> None:
        done.append(f"{os.fstat(file).st_size > 0} synced")
        fsync(file)

    def replaced(path: Path, target: Path) -> Path:
        done.append("replaced")
        return replace(path, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    HostRecord(tmp_path / "record.json", GPU).update(cdi="/etc/cdi/x.json")
    assert done == ["True synced", "replaced"]


async def test_files_are_restored_until_that_succeeds(node: Node, host: Path, dev: Path) -> None:
    (dev / "gpu0").touch()
    async with node.serve(CONFIGURATION, ready={GPU: 1}):
        await node.kubelet.add_pod(pod("p", GPU))
    # As after a reboot, and what the file is in is not there yet.
    written = host / "run/gpus/gpu0"
    written.unlink()
    written.parent.rmdir()
    written.parent.write_text("not mounted yet")
    async with node.serve(CONFIGURATION, pace=Pace(release=0.05), ready={GPU: 1}) as served:
        assert not written.exists()
        written.parent.unlink()
        await served.until(written.is_file)
