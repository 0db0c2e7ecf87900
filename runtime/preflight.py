"""Preflight: what of the node a process needs, whether it can be reached, and what to do where it cannot.

Each process logs one line at its start (`can reach` or `cannot reach`): most of what goes wrong with a new
installation is a mount that is missing, a user without the right, or a limit of the node. The checks block
shortly and create nothing.
"""

import asyncio
import errno
import os
import re
import resource
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from asyncinotify import Inotify
from msgspec import Struct

from runtime.log import Log
from runtime.text import visible

FEWEST_DESCRIPTORS: Final = 1024
"""Each connection to the page, the kubelet and the database is a descriptor; this is Linux's default."""

LEAST_MEMORY: Final = 96 << 20
"""Bytes: either process needs some 60 MiB at rest (docs/benchmarks.md), and more while it answers."""

LEAST_FREE: Final = 16 << 20
"""Bytes free on a disk that the process writes to."""

_DAC_OVERRIDE: Final = 1 << 1
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM})
_FREE_TYPES: Final = frozenset({"spc_t", "unconfined_t", "unconfined_service_t", "init_t", "kernel_t"})
"""SELinux types that may connect to a socket of the host."""


class Use(Enum):
    """What a path is needed for."""

    CONNECT = "connect"
    LIST = "list"
    WRITE = "write"


class Need(Struct, frozen=True):
    """A path that a process uses.

    `name` is its field in the log line; `missing` is the hint for a path that does not exist. An `optional`
    path may be missing without a hint, and so may a directory that the process creates (`made`).
    """

    name: str
    path: Path
    use: Use
    missing: str
    optional: bool = False
    made: bool = False


class Observation(Struct, frozen=True):
    """Something else that a process sees of its node. `hint`: what to do; empty where nothing is lacking."""

    name: str
    state: str
    hint: str = ""


class PathState(Struct, frozen=True):
    """The state of a path. `error` is the errno that keeps it from being used, 0 for none.

    `directory`: its directory exists. `mounted`: the socket itself is a mount point. `owner`: a uid.
    `free`: bytes on the disk of a directory that is written to.
    """

    error: int = 0
    directory: bool = True
    mounted: bool = False
    owner: int | None = None
    free: int | None = None


class ProcessLimits(Struct, frozen=True):
    """What the kernel grants this process; None for what it does not say.

    `instances` and `watches` are the limits of inotify, `inotify_error` the errno that a further instance
    fails with (0: none). `label` is the process's security context, by SELinux or AppArmor.
    """

    uid: int
    capabilities: int = 0
    label: str = ""
    enforcing: bool | None = None
    descriptors: int | None = None
    memory: int | None = None
    instances: int | None = None
    watches: int | None = None
    inotify_error: int = 0


class PreflightReport(Struct, frozen=True):
    """The log line: its `fields` in order, the names of those that are `lacking`, and a hint for each."""

    fields: dict[str, object]
    lacking: tuple[str, ...]
    hints: tuple[str, ...]

    def log_fields(self) -> dict[str, object]:
        """All fields of the line: what is lacking comes first, the hints last."""
        if not self.lacking:
            return self.fields
        return {"lacking": ",".join(self.lacking), **self.fields, "hints": "; ".join(self.hints)}


def assess(
    needs: Iterable[tuple[Need, PathState]],
    limits: ProcessLimits,
    observations: Iterable[Observation] = (),
) -> PreflightReport:
    """The report on needs with the state of their paths, on observations, and on the limits. Pure."""
    fields: dict[str, object] = {}
    hints: dict[str, str] = {}
    for need, found in needs:
        fields[need.name] = _state(need, found)
        hint = _hint(need, found, limits)
        if hint:
            hints[need.name] = hint
    for seen in observations:
        fields[seen.name] = visible(seen.state, 200)
        if seen.hint:
            hints[seen.name] = visible(seen.hint, 200)
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
    return PreflightReport(fields, tuple(hints), tuple(f"{name}: {hint}" for name, hint in hints.items()))


_REACHED: Final = {Use.CONNECT: "served", Use.LIST: "readable", Use.WRITE: "writable"}
_STATES: Final = {
    errno.ECONNREFUSED: "present, no process serves it",
    errno.ENOENT: "absent",
    errno.EROFS: "read-only",
    errno.ENOTSOCK: "no socket",
    errno.ENOTDIR: "no directory",
    **dict.fromkeys(_DENIED, "no permission"),
}


def _state(need: Need, found: PathState) -> str:
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


def _is_full(found: PathState) -> bool:
    return found.free is not None and found.free < LEAST_FREE


def _hint(need: Need, found: PathState, limits: ProcessLimits) -> str:
    path, directory = visible(str(need.path), 200), visible(str(need.path.parent), 200)
    hints = {
        errno.ENOENT: need.missing,
        errno.ECONNREFUSED: "the kubelet has ended or is just starting: nothing to do if it comes back",
        errno.EROFS: f"mount {path} without readOnly",
        # A container runtime that mounts a socket which does not exist yet creates a directory of its name.
        errno.ENOTSOCK: f"it is no socket: mount the node's directory {directory}, and remove this from it",
    }
    match found.error:
        case 0 if found.mounted:
            return f"mount the directory {directory}: the kubelet replaces the socket when it restarts"
        case 0:
            return f"make room on the disk of {path}" if _is_full(found) else ""
        case errno.ENOENT | errno.ECONNREFUSED if need.optional:
            return ""
        case errno.ENOENT if need.use is Use.CONNECT and not found.directory:
            return f"mount the directory {directory} of the node, or say --kubelet.root"
        case code if code in _DENIED:
            return _permission(found, limits)
        case code:
            return hints.get(code, f"see what is at {path}")


def _permission(found: PathState, limits: ProcessLimits) -> str:
    """What refuses access: file permissions come first, as in the kernel, and security modules after them."""
    owner, may_all = found.owner, bool(limits.capabilities & _DAC_OVERRIDE)
    selinux = _selinux_type(limits.label)
    if limits.uid not in {0, owner} and not may_all:
        whose = "root" if not owner else f"uid {owner}"
        return f"it belongs to {whose}: run as that user (runAsUser: {owner or 0}), not as uid {limits.uid}"
    if selinux and selinux not in _FREE_TYPES and limits.enforcing is not False:
        return f"SELinux keeps {selinux} from it: seLinuxOptions {{type: spc_t}} (docs/openshift.md)"
    if limits.label.endswith("(enforce)"):
        return f"the AppArmor profile {visible(limits.label.split()[0], 80)} may deny access to it"
    if owner not in {None, limits.uid} and not may_all:
        return (
            f"it belongs to uid {owner}, and root without capabilities is a user as others: run as that user"
        )
    return "its mode, or that of a directory above it, does not let this user in"


def _selinux_type(label: str) -> str:
    """`container_t` of `system_u:system_r:container_t:s0:c1,c2`; empty for other labels."""
    parts = label.split(":")
    return visible(parts[2], 80) if len(parts) >= 4 and " " not in label else ""


def _inotify_words(limits: ProcessLimits) -> str:
    if limits.instances is None:
        return "not available"
    watches = "" if limits.watches is None else f" and {limits.watches} watches"
    return f"{limits.instances} instances{watches} allowed"


def _inotify_hint(code: int) -> str:
    if code == errno.EMFILE:
        return "raise fs.inotify.max_user_instances on the node: directories are polled every second"
    return f"directories are polled every second: {os.strerror(code).lower()}"


def _size(count: int) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.4g}{unit}"
    return f"{count}B"


_READ: Final = 65536
"""Bytes of a file in /proc or /sys."""
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_NO_LIMIT: Final = 1 << 60
"""Bytes: cgroups v1 report at least this much where there is no limit."""


_log = Log("preflight")


async def log_preflight(
    needs: Sequence[Need],
    *,
    observe: Callable[[], Sequence[Observation]] = tuple,
    proc: Path = Path("/proc"),
) -> None:
    """Log one line about what this process can reach, and what `observe` returns.

    A file system may hang, so a thread checks.
    """
    states, limits = await asyncio.to_thread(inspect, needs, proc)
    report = assess(states, limits, await asyncio.to_thread(observe))
    if report.lacking:
        _log.warn("cannot reach", **report.log_fields())
    else:
        _log.info("can reach", **report.log_fields())


def inspect(
    needs: Sequence[Need], proc: Path = Path("/proc")
) -> tuple[list[tuple[Need, PathState]], ProcessLimits]:
    """Each need with the state of its path, and this process's limits."""
    mounts = _mount_points(proc)
    return [(need, _path_state(need, mounts)) for need in needs], process_limits(proc)


def _path_state(need: Need, mounts: frozenset[str]) -> PathState:
    try:
        if need.use is Use.CONNECT:
            return _socket(need.path, mounts)
        return _directory(need)
    except OSError as error:
        # Python raises OSError without an errno for an address that is too long.
        code = error.errno or errno.ENAMETOOLONG
        return PathState(code, directory=need.path.parent.is_dir(), owner=_owner(need.path))


def _socket(path: Path, mounts: frozenset[str]) -> PathState:
    """Connects and closes at once, which a gRPC server ignores. Raises OSError."""
    status = path.stat()
    if not stat.S_ISSOCK(status.st_mode):
        return PathState(errno.ENOTSOCK, owner=status.st_uid)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)
        # EAGAIN: the backlog is full, so a server listens.
        code = probe.connect_ex(str(path))
    return PathState(
        0 if code == errno.EAGAIN else code, mounted=str(path.resolve()) in mounts, owner=status.st_uid
    )


def _directory(need: Need) -> PathState:
    """Raises OSError."""
    path = need.path
    while need.made and not path.exists() and path != path.parent:
        path = path.parent
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        return PathState(errno.ENOTDIR, owner=status.st_uid)
    disk = os.statvfs(path)
    if need.use is Use.LIST:
        allowed = os.access(path, os.R_OK | os.X_OK)
        return PathState(0 if allowed else errno.EACCES, owner=status.st_uid)
    if os.access(path, os.W_OK | os.X_OK):
        # A file system without blocks, as the kernel's own, does not report how full it is.
        free = disk.f_bavail * disk.f_frsize if disk.f_blocks else None
        return PathState(owner=status.st_uid, free=free)
    return PathState(errno.EROFS if disk.f_flag & os.ST_RDONLY else errno.EACCES, owner=status.st_uid)


def _owner(path: Path) -> int | None:
    """The owner of the path, or of the nearest parent directory that is visible."""
    for place in (path, *path.parents):
        try:
            return place.stat().st_uid
        except OSError:
            continue
    return None


def process_limits(proc: Path = Path("/proc")) -> ProcessLimits:
    """What the kernel grants this process."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    inotify = proc / "sys/fs/inotify"
    return ProcessLimits(
        uid=os.geteuid(),
        capabilities=_capabilities(proc),
        label=_text(proc / "self/attr/current").rstrip("\0"),
        enforcing={"1": True, "0": False}.get(_text(Path("/sys/fs/selinux/enforce"))),
        descriptors=None if soft == resource.RLIM_INFINITY else soft,
        memory=memory_limit(proc, Path("/sys/fs/cgroup")),
        instances=_number(inotify / "max_user_instances"),
        watches=_number(inotify / "max_user_watches"),
        inotify_error=_inotify_error(),
    )


def _inotify_error() -> int:
    """The errno that a further inotify instance fails with; 0 for none."""
    try:
        Inotify().close()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def memory_limit(proc: Path, cgroups: Path) -> int | None:
    """The least memory limit in bytes of this process's cgroup and its visible parents; None without one."""
    least: int | None = None
    for line in _text(proc / "self/cgroup").splitlines():
        _hierarchy, *parts = line.split(":", 2)
        if len(parts) != 2:
            continue
        controllers, path = parts
        if controllers == "":
            top, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Without a cgroup namespace the path is not below `top`, which then is this container's own cgroup.
        names = [part for part in path.split("/") if part not in {"", ".", ".."}]
        for depth in range(len(names) + 1):
            limit = _number(top.joinpath(*names[:depth], name))
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
    """All mount points: the fifth field of mountinfo, its octal escapes decoded."""
    lines = (line.split(" ") for line in _text(proc / "self/mountinfo", 1 << 20).splitlines())
    return frozenset(
        _ESCAPE.sub(lambda code: chr(int(code[1], 8)), line[4]) for line in lines if len(line) > 4
    )


def _text(path: Path, limit: int = _READ) -> str:
    """A file's text, stripped; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdecimal() else None
