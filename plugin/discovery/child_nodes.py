"""Device nodes that belong to a directory of sysfs: its own, and those of what is below it."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from plugin.core.names import path_problem
from plugin.discovery.host import HostRoot
from plugin.discovery.sysfs import Directory, Sysfs

MAX_DIRECTORIES: Final = 512
MAX_NODES: Final = 128
"""Of one device; what is beyond is left."""


@dataclass(frozen=True, slots=True)
class Child:
    """One thing below a device. `path`: its device node; empty where it has none (a network interface)."""

    subsystem: str
    name: str
    path: str


def children(host: HostRoot, sysfs: Sysfs, directory: Directory, depth: int) -> Iterator[Child]:
    """What has a device node or is a network interface, in the directory and `depth` levels below it.

    Links are not followed. The kernel says in `uevent` what a node is called; where it does not, the node
    is called as its directory.
    """
    directories = found = 0
    level = [directory]
    for _ in range(depth + 1):
        below: list[Directory] = []
        for current in level:
            directories += 1
            names, files = _listed(host, current.path)
            child = _child(host, current, files)
            if child is not None:
                yield child
                found += 1
            if found >= MAX_NODES or directories >= MAX_DIRECTORIES:
                return
            below += [Directory(sysfs, f"{current.path}/{name}") for name in names]
        level = below


def _listed(host: HostRoot, path: str) -> tuple[list[str], frozenset[str]]:
    """(names of directories, names of all else) in a directory whose path has no links."""
    directories: list[str] = []
    others: list[str] = []
    with suppress(OSError), os.scandir(host.here(path)) as entries:
        for entry in entries:
            (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    directories.sort()
    return directories, frozenset(others)


def _child(host: HostRoot, directory: Directory, files: frozenset[str]) -> Child | None:
    if "dev" in files:
        path = node_path(host, directory)
        return Child(directory.link("subsystem"), directory.name, path) if path else None
    if "ifindex" in files:
        return Child("net", directory.name, "")
    return None


def node_path(host: HostRoot, directory: Directory) -> str:
    """The node in /dev of a directory that has a file `dev`; empty where that cannot be known."""
    for line in directory.raw("uevent").splitlines():
        key, _, value = line.partition("=")
        if key == "DEVNAME" and value:
            return _in_dev(value)
    numbers = directory.text("dev")
    kind = "block" if directory.link("subsystem") == "block" else "char"
    with suppress(OSError):
        link = f"/dev/{kind}/{numbers}"
        real = host.real(link)
        if numbers and real != link and host.exists(real):
            return real
    return _in_dev(directory.name.replace("!", "/"))


def _in_dev(name: str) -> str:
    path = f"/dev/{name.removeprefix('/dev/')}"
    return path if path_problem(path) is None and path.isprintable() else ""
