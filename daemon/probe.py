"""Looks at what a process can reach. Blocking and short; nothing is made to see whether it can be made."""

import asyncio
import errno
import os
import re
import resource
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from asyncinotify import Inotify

from daemon.log import Log
from daemon.reach import Found, Limits, Need, Use, judge, told

_PROCESSES: Final = 4096
"""Processes that are looked at for inotify instances: outside a container a process sees all."""
_READ: Final = 65536
"""Bytes of a file in /proc or /sys."""
_INSTANCE: Final = "anon_inode:inotify"
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_NO_LIMIT: Final = 1 << 60
"""Bytes: cgroups of the first version write a number as large where there is no limit."""


_log = Log("reach")


async def tell_reach(needs: Sequence[Need], *, proc: Path = Path("/proc")) -> None:
    """One line about what this process can reach; looked at in a thread, for a file system may hang."""
    reach = judge(*await asyncio.to_thread(look, needs, proc))
    if reach.lacking:
        _log.warn("cannot reach", **told(reach))
    else:
        _log.info("can reach", **told(reach))


def look(needs: Sequence[Need], proc: Path = Path("/proc")) -> tuple[list[tuple[Need, Found]], Limits]:
    """Each need with what is there, and this process's limits."""
    mounts = _mount_points(proc)
    return [(need, _found(need, mounts)) for need in needs], limits(proc)


def _found(need: Need, mounts: frozenset[str]) -> Found:
    try:
        if need.use is Use.CONNECT:
            return _socket(need.path, mounts)
        return _directory(need)
    except OSError as error:
        # Python tells of an address that is too long without the system's number for it.
        code = error.errno or errno.ENAMETOOLONG
        return Found(code, directory=need.path.parent.is_dir(), owner=_owner(need.path))


def _socket(path: Path, mounts: frozenset[str]) -> Found:
    """Connected to and let go at once, which a gRPC server takes no notice of. Raises OSError."""
    status = path.stat()
    if not stat.S_ISSOCK(status.st_mode):
        return Found(errno.ENOTSOCK, owner=status.st_uid)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        # EAGAIN: so many wait already that there is no room for one more; somebody serves it.
        code = probe.connect_ex(str(path))
    return Found(
        0 if code == errno.EAGAIN else code, mounted=str(path.resolve()) in mounts, owner=status.st_uid
    )


def _directory(need: Need) -> Found:
    """Raises OSError."""
    path = need.path
    while need.made and not path.exists() and path != path.parent:
        path = path.parent
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        return Found(errno.ENOTDIR, owner=status.st_uid)
    disk = os.statvfs(path)
    if need.use is Use.LIST:
        allowed = os.access(path, os.R_OK | os.X_OK)
        return Found(0 if allowed else errno.EACCES, owner=status.st_uid)
    if os.access(path, os.W_OK | os.X_OK):
        # What has no blocks at all, as the kernel's own file systems, does not say how full it is.
        free = disk.f_bavail * disk.f_frsize if disk.f_blocks else None
        return Found(owner=status.st_uid, free=free)
    return Found(errno.EROFS if disk.f_flag & os.ST_RDONLY else errno.EACCES, owner=status.st_uid)


def _owner(path: Path) -> int | None:
    """Whose it is, or whose the nearest directory above is that can be seen."""
    for place in (path, *path.parents):
        try:
            return place.stat().st_uid
        except OSError:
            continue
    return None


def limits(proc: Path = Path("/proc")) -> Limits:
    """What the kernel grants this process."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    inotify = proc / "sys/fs/inotify"
    refused = _refused()
    return Limits(
        uid=os.geteuid(),
        capabilities=_capabilities(proc),
        label=_text(proc / "self/attr/current").rstrip("\0"),
        enforcing={"1": True, "0": False}.get(_text(Path("/sys/fs/selinux/enforce"))),
        descriptors=None if soft == resource.RLIM_INFINITY else soft,
        memory=memory_limit(proc, Path("/sys/fs/cgroup")),
        instances=_number(inotify / "max_user_instances"),
        instances_seen=instances_seen(proc, os.geteuid()),
        watches=_number(inotify / "max_user_watches"),
        inotify_error=refused,
    )


def _refused() -> int:
    """Why this process gets no further inotify instance; 0 where it does."""
    try:
        Inotify().close()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def instances_seen(proc: Path, uid: int) -> int:
    """The inotify instances of `uid`'s processes that can be seen below `proc`."""
    count = 0
    for process in [name for name in _listed(proc) if name.isdecimal()][:_PROCESSES]:
        descriptors = f"{proc}/{process}/fd"
        try:
            if os.stat(descriptors).st_uid != uid:  # noqa: PTH116 -- thousands of them
                continue
            for descriptor in os.listdir(descriptors):  # noqa: PTH208 -- thousands of them
                with suppress(FileNotFoundError):
                    count += os.readlink(f"{descriptors}/{descriptor}") == _INSTANCE  # noqa: PTH115
        except OSError:
            continue  # it ended, or is not ours to look at
    return count


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 -- names are wanted
    except OSError:
        return []


def memory_limit(proc: Path, cgroups: Path) -> int | None:
    """Bytes that this process's cgroup, or one above it that can be seen, may have; None without a limit."""
    least: int | None = None
    for line in _text(proc / "self/cgroup").splitlines():
        _hierarchy, *told = line.split(":", 2)
        if len(told) != 2:
            continue
        controllers, place = told
        if controllers == "":
            top, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Where the cgroup is not told by its place (no namespace of its own), the top is this container's.
        parts = [part for part in place.split("/") if part not in {"", ".", ".."}]
        for depth in range(len(parts) + 1):
            limit = _number(top.joinpath(*parts[:depth], name))
            if limit is not None and limit < _NO_LIMIT:
                least = limit if least is None else min(least, limit)
    return least


def _capabilities(proc: Path) -> int:
    for line in _text(proc / "self/status").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            try:
                return int(value.strip(), 16)
            except ValueError:
                return 0
    return 0


def _mount_points(proc: Path) -> frozenset[str]:
    """Where something is mounted; the fifth field of mountinfo, its octal escapes undone."""
    lines = (line.split(" ") for line in _text(proc / "self/mountinfo", 1 << 20).splitlines())
    return frozenset(
        _ESCAPE.sub(lambda code: chr(int(code[1], 8)), line[4]) for line in lines if len(line) > 4
    )


def _text(path: Path, limit: int = _READ) -> str:
    """A file's text without its last line's end; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdecimal() else None
