"""A link that is put into a path between its resolution and its opening leads nobody out of the host root."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from plugin.discovery import beneath
from plugin.discovery.host import HostRoot, LinkResolver
from plugin.discovery.sysfs_tree import SysfsTree

SECRET = "outside"


@pytest.fixture(params=["openat2", "steps"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system call, and as on a kernel without it."""
    monkeypatch.setattr(beneath.openat2, "missing", request.param == "steps")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the host root, with the same names as the directory /a/b of the host."""
    made = tmp_path / "outside"
    (made / "directory").mkdir(parents=True)
    (made / "file").write_text(SECRET)
    (made / "directory/secret").touch()
    return made


@pytest.fixture
def swap(host: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces a path by a link to the outside, each time after a path was resolved."""
    (host / "a/b/directory").mkdir(parents=True)
    (host / "a/b/file").write_text("inside")
    resolve = LinkResolver.resolve

    def swap_after(path: str) -> None:
        place = host / path

        def resolved(self: LinkResolver, wanted: str) -> str:
            real = resolve(self, wanted)
            if not place.is_symlink():
                place.rename(f"{place}-before")
                place.symlink_to(outside / ("file" if place.name == "file" else ""))
            return real

        monkeypatch.setattr(LinkResolver, "resolve", resolved)

    return swap_after


def _sysfs(host: Path) -> SysfsTree:
    return SysfsTree(HostRoot(host))


READS: list[Callable[[HostRoot], object]] = [
    lambda host: host.read("/a/b/file"),
    lambda host: list(host.entries("/a/b/directory")),
    lambda host: host.make("/a/b/directory/new", "directory"),
    lambda host: host.make("/a/b/directory/new", "file"),
    lambda host: SysfsTree(host).read("/a/b/file"),
    lambda host: SysfsTree(host).names("/a/b/directory"),
]


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("read", READS)
def test_a_directory_that_becomes_a_link_is_not_followed(
    host: Path, outside: Path, swap: Callable[[str], None], read: Callable[[HostRoot], object]
) -> None:
    swap("a/b")
    with pytest.raises(OSError) as caught:  # noqa: PT011 -- by its number
        read(HostRoot(host))
    assert caught.value.errno in {errno.ELOOP, errno.ENOTDIR}
    assert sorted(path.name for path in (outside / "directory").iterdir()) == ["secret"]


@pytest.mark.usefixtures("_way")
def test_a_status_is_that_of_the_host(host: Path, swap: Callable[[str], None]) -> None:
    swap("a/b")
    assert not HostRoot(host).exists("/a/b/file")
    assert SysfsTree(HostRoot(host)).directory("/a/b/directory") is None


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("kind", [HostRoot, _sysfs])
def test_a_file_that_becomes_a_link_is_not_followed(
    host: Path, swap: Callable[[str], None], kind: Callable[[Path], HostRoot | SysfsTree]
) -> None:
    swap("a/b/file")
    with pytest.raises(OSError, match="Too many levels"):
        kind(host).read("/a/b/file")


@pytest.mark.usefixtures("_way")
def test_links_of_the_host_lead_where_they_lead_on_the_host(host: Path, outside: Path) -> None:
    (host / "a/b").mkdir(parents=True)
    (host / "a/b/file").write_text("inside\n")
    (host / "a/absolute").symlink_to("/a/b/file")
    (host / "a/relative").symlink_to("b/file")
    (host / "a/above").symlink_to("../../../../../a/b/file")
    (host / "a/out").symlink_to(outside / "file")
    (host / "a/magic").symlink_to("/proc/self/root")
    files = HostRoot(host)
    for path in ("/a/absolute", "/a/relative", "/a/above", "/a/../../a/relative"):
        assert files.read(path) == "inside"
    for path in ("/a/out", f"/a/magic{outside}/file", f"/a/magic{host}/a/b/file"):
        assert not files.exists(path)


@pytest.mark.usefixtures("_way")
def test_magic_links_of_proc_are_read_as_text(host: Path) -> None:
    """Below /proc, a link such as `fd/3` leads to a file without a path; as text it leads nowhere."""
    (host / "file").write_text("inside")
    opened = os.open(host / "file", os.O_RDONLY)
    here, there = socket.socketpair()
    try:
        files = HostRoot(Path("/proc"))
        assert not files.exists(f"/self/fd/{opened}")
        assert not files.exists(f"/self/fd/{here.fileno()}")
        assert not files.exists("/self/cwd/pyproject.toml")
        assert files.read(f"/{os.getpid()}/comm")
    finally:
        os.close(opened)
        here.close()
        there.close()


def test_without_the_system_call_each_step_is_opened(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host / "a/b").mkdir(parents=True)
    (host / "a/b/file").write_text("inside")
    calls: list[bytes] = []

    def refuse(_directory: int, path: bytes, _flags: int) -> int:
        calls.append(path)
        raise PermissionError(errno.EPERM, "by a seccomp profile")

    monkeypatch.setattr(beneath.openat2, "open", refuse)
    monkeypatch.setattr(beneath.openat2, "missing", False)
    files = HostRoot(host)
    assert [files.read("/a/b/file"), files.read("/a/b/file")] == ["inside"] * 2
    assert calls == [b"a/b/file"], "it is asked for once"
    assert not files.exists("/a/c")
