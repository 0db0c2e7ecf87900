"""File systems, limits and rights that can be taken away from a process and given back."""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

INSTANCES, WATCHES = "max_inotify_instances", "max_inotify_watches"

_OWN_LIMITS = """\
for name in "$@"; do [ "$name" = -- ] && break; echo 0 > "/proc/sys/user/$name" || exit 1; shift; done
shift; exec "$@"
"""


def _works(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except FileNotFoundError:
        return False


@lru_cache(maxsize=1)
def _namespaces() -> bool:
    return _works("unshare", "--user", "--map-root-user", "test", "-w", f"/proc/sys/user/{INSTANCES}")


def without_inotify(limit: str) -> tuple[str, ...]:
    """What a program is run by so that the kernel gives it nothing of `limit` until `give_inotify`.

    A user namespace has limits of its own, whoever's user it is. Skips where none can be made.
    """
    if not _namespaces():
        pytest.skip("a process that inotify is refused to needs `unshare --user`: allow user namespaces")
    return ("unshare", "--user", "--map-root-user", "sh", "-c", _OWN_LIMITS, "sh", limit, "--")


def give_inotify(pid: int, limit: str, number: int) -> None:
    """Let a process that was started by `without_inotify` have so much of `limit` from now on."""
    namespace = ("nsenter", "--user", "--preserve-credentials", "--target", str(pid))
    written = f"echo {number} > /proc/sys/user/{limit}"
    subprocess.run((*namespace, "sh", "-c", written), check=True, timeout=20, capture_output=True)


def as_owner_alone() -> tuple[str, ...]:
    """What a program is run by so that files' modes count for it, for they do not for root.

    A container without capabilities is the same. Skips where it cannot be had.
    """
    if os.geteuid() != 0:
        return ()
    dropped = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    if not _works(*dropped, "true"):
        pytest.skip("root that files' modes count for needs setpriv, of util-linux")
    return dropped


@contextmanager
def small_disk(size: int = 2 << 20) -> Generator[Path]:
    """A file system of its own, of `size` bytes. Skips where none can be mounted."""
    directory = Path(tempfile.mkdtemp(prefix="dl-"))
    if not _works("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(directory)):
        directory.rmdir()
        pytest.skip("a disk that is full or read-only needs the right to mount one: run as root")
    try:
        yield directory
    finally:
        subprocess.run(("umount", "--lazy", directory), check=True, timeout=20)
        shutil.rmtree(directory)


def fill(disk: Path) -> Path:
    """Leave no byte free; what takes them all is given back, to be removed."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return ballast


def mount_again(disk: Path, option: str) -> None:
    """`ro` or `rw`."""
    subprocess.run(("mount", "-o", f"remount,{option}", disk), check=True, timeout=20)


@contextmanager
def no_more_descriptors(pid: int, present: int | None = None) -> Generator[None]:
    """A process may open nothing beyond what it has open, while in the context; `present` is how much that is
    said to be: with less than there is it may open nothing, whatever it closes.
    """
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    if present is None:
        present = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (present, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
