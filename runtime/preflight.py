"""What a process can reach, what it cannot, and what to do about each.

A process says it once, when it starts, in one line: most of what goes wrong with a new installation is a
mount that is not there, a user that may not, or a limit of the node.

Looks at what a process can reach. Blocking and short; nothing is made to see whether it can be made.
"""

import asyncio
import errno
import os
import re
import resource
import socket
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from asyncinotify import Inotify

from runtime.log import Log
from runtime.text import visible

FEWEST_DESCRIPTORS: Final = 1024
"""Connections to the page, to the kubelet and to history are a descriptor each; this is Linux's default."""

LEAST_MEMORY: Final = 96 << 20
"""Bytes: either process needs some 60 MiB at rest (docs/benchmarks.md), and more while it answers."""

LEAST_FREE: Final = 16 << 20
"""Bytes free on a disk that is to be written to."""

_DAC_OVERRIDE: Final = 1 << 1
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})
_FREE_TYPES: Final = frozenset({"spc_t", "unconfined_t", "unconfined_service_t", "init_t", "kernel_t"})
"""SELinux types that may connect to a socket of the host."""


class Use(Enum):
    """What a path is needed for."""

    CONNECT = "connect"
    LIST = "list"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Need:
    """Something at `path` that a process works with.

    `name` is its field in the line; `missing` says what to do where it is not there. An `optional` one
    may be missing without a word. A directory that the process makes (`made`) may be missing.
    """

    name: str
    path: Path
    use: Use
    missing: str
    optional: bool = False
    made: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What was seen at a path. `error` is the system's reason why it cannot be used, 0 where it can.

    `directory` says whether the directory around it is there; `mounted`, whether a socket is a mount itself;
    `free` are bytes on the disk of a directory that is written to.
    """

    error: int = 0
    directory: bool = True
    mounted: bool = False
    owner: int | None = None
    free: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What the kernel grants this process. None: it does not say.

    `instances_seen` are the inotify instances of this user's processes that can be seen from here (in a
    container: its own); `inotify_error` is the reason why there is no further one, 0 where there is.
    `label` is the process's security context, by SELinux or AppArmor.
    """

    uid: int
    capabilities: int = 0
    label: str = ""
    enforcing: bool | None = None
    descriptors: int | None = None
    memory: int | None = None
    instances: int | None = None
    instances_seen: int = 0
    watches: int | None = None
    inotify_error: int = 0


@dataclass(frozen=True, slots=True)
class Reach:
    """The line: `fields` in their order, the names in it of what is `lacking`, and for each what to do."""

    fields: dict[str, object]
    lacking: tuple[str, ...]
    hints: tuple[str, ...]


def judge(looked: Iterable[tuple[Need, Found]], limits: Limits) -> Reach:
    """What a process that needs this, found that, and has these limits is to say."""
    fields: dict[str, object] = {}
    hints: dict[str, str] = {}
    for need, found in looked:
        fields[need.name] = _state(need, found)
        hint = _hint(need, found, limits)
        if hint:
            hints[need.name] = hint
    fields["inotify"] = _inotify_words(limits)
    if limits.inotify_error:
        hints["inotify"] = _inotify_hint(limits.inotify_error)
    fields["descriptors"] = "unlimited" if limits.descriptors is None else limits.descriptors
    if limits.descriptors is not None and limits.descriptors < FEWEST_DESCRIPTORS:
        hints["descriptors"] = f"raise the limit of open files (ulimit -n) to {FEWEST_DESCRIPTORS} or more"
    fields["memory_limit"] = "none" if limits.memory is None else _size(limits.memory)
    if limits.memory is not None and limits.memory < LEAST_MEMORY:
        hints["memory_limit"] = f"raise the container's limit to {_size(LEAST_MEMORY)} or more"
    fields["uid"] = limits.uid
    if limits.label:
        fields["security_context"] = visible(limits.label, 200)
    return Reach(fields, tuple(hints), tuple(f"{name}: {hint}" for name, hint in hints.items()))


_REACHED: Final = {Use.CONNECT: "served", Use.LIST: "readable", Use.WRITE: "writable"}
_STATES: Final = {
    errno.ECONNREFUSED: "present, nobody serves it",
    errno.ENOENT: "absent",
    errno.EROFS: "read-only",
    errno.ENOTSOCK: "no socket",
    errno.ENOTDIR: "no directory",
    **dict.fromkeys(_DENIED, "no permission"),
}


def _state(need: Need, found: Found) -> str:
    if found.error:
        words = _STATES.get(found.error, os.strerror(found.error).lower())
        return (
            words if found.directory or found.error != errno.ENOENT else f"{words}, and so is its directory"
        )
    if found.mounted:
        return f"{_REACHED[need.use]}, but mounted as a file"
    if _is_full(found):
        return f"{_REACHED[need.use]}, {_size(found.free or 0)} free"
    return _REACHED[need.use]


def _is_full(found: Found) -> bool:
    return found.free is not None and found.free < LEAST_FREE


def _hint(need: Need, found: Found, limits: Limits) -> str:
    path, directory = visible(str(need.path), 200), visible(str(need.path.parent), 200)
    hints = {
        errno.ENOENT: need.missing,
        errno.ECONNREFUSED: "the kubelet has ended or is just starting: nothing to do if it comes back",
        errno.EROFS: f"mount {path} without readOnly",
        # A runtime that is to mount a socket that is not there yet makes a directory of its name.
        errno.ENOTSOCK: f"it is no socket: mount the node's directory {directory}, and remove this from it",
    }
    match found.error:
        case 0 if found.mounted:
            return f"mount the directory {directory}: a restarted kubelet makes the socket anew"
        case 0:
            return f"make room on the disk of {path}" if _is_full(found) else ""
        case errno.ENOENT if need.optional:
            return ""
        case errno.ENOENT if need.use is Use.CONNECT and not found.directory:
            return f"mount the directory {directory} of the node, or say --kubelet.root"
        case code if code in _DENIED:
            return _permission(found, limits)
        case code:
            return hints.get(code, f"see what is at {path}")


def _permission(found: Found, limits: Limits) -> str:
    """Who it is that refuses: the owner's rights come first, as in the kernel, and modules after them."""
    owner, may_all = found.owner, bool(limits.capabilities & _DAC_OVERRIDE)
    selinux = _selinux_type(limits.label)
    if limits.uid not in {0, owner} and not may_all:
        whose = "root" if not owner else f"uid {owner}"
        return f"it belongs to {whose}: run as that user (runAsUser: {owner or 0}), not as uid {limits.uid}"
    if selinux and selinux not in _FREE_TYPES and limits.enforcing is not False:
        return f"SELinux keeps {selinux} from it: seLinuxOptions {{type: spc_t}} (docs/openshift.md)"
    if limits.label.endswith("(enforce)"):
        return f"the AppArmor profile {visible(limits.label.split()[0], 80)} may keep it from it"
    if owner not in {None, limits.uid} and not may_all:
        return (
            f"it belongs to uid {owner}, and root without capabilities is a user as others: run as that user"
        )
    return "its mode, or that of a directory above it, does not let this user in"


def _selinux_type(label: str) -> str:
    """`container_t` of `system_u:system_r:container_t:s0:c1,c2`; empty for what is no SELinux context."""
    parts = label.split(":")
    return visible(parts[2], 80) if len(parts) >= 4 and " " not in label else ""


def _inotify_words(limits: Limits) -> str:
    if limits.instances is None:
        return "not available"
    watches = "" if limits.watches is None else f", {limits.watches} watches allowed"
    return f"{limits.instances_seen} of {limits.instances} instances in use here{watches}"


def _inotify_hint(code: int) -> str:
    if code == errno.EMFILE:
        return "raise fs.inotify.max_user_instances on the node: directories are polled every second"
    return f"directories are polled every second: {os.strerror(code).lower()}"


def _size(count: int) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.4g}{unit}"
    return f"{count}B"


def told(reach: Reach) -> dict[str, object]:
    """The line's fields: what is lacking comes first, and what to do about it last."""
    if not reach.lacking:
        return reach.fields
    return {"lacking": ",".join(reach.lacking), **reach.fields, "hints": "; ".join(reach.hints)}


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
