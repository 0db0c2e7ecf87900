"""What a process can reach, what it cannot, and what to do about each: judged here, seen by `daemon.probe`.

A process says it once, when it starts, in one line: most of what goes wrong with a new installation is a
mount that is not there, a user that may not, or a limit of the node.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from daemon.text import visible

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
