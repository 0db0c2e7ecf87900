"""Fast reading of sysfs, NUMA nodes, and device nodes of sysfs directories.

A `SysfsTree` serves one scan: it resolves each link once. Files that vanish during the scan read as missing.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

from msgspec import Struct

from plugin.discovery.host import MAX_ENTRIES, MAX_FILE_BYTES, HostRoot, read_link
from plugin.discovery.source import Found
from plugin.names import in_order, path_problem
from runtime.text import is_hostile

T = TypeVar("T")

MAX_TEXT: Final = 256
"""Characters of an attribute; a longer one is cut."""
MAX_JOINED: Final = 4096
"""Characters of an attribute with several names."""

_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class _Opened:
    """A descriptor of the directory at a host path, closed with the last reference to it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class SysfsTree:
    """The host's files during one scan. Links never lead out of the host root."""

    def __init__(self, host: HostRoot) -> None:
        self._host = host
        self._links = host.links()
        self._root = self._links.root
        self._last: _Opened | None = None

    def directory(self, path: str) -> "SysfsDirectory | None":
        """The directory at a host path; None if there is none."""
        try:
            real = self._links.resolve(path)
        except OSError:
            return None
        try:
            self._opened(real)
        except OSError:
            return None
        return SysfsDirectory(self, real)

    def _opened(self, real: str) -> int:
        """A descriptor of a directory, until another is opened: the files of one are read in a row."""
        if self._last is None or self._last.path != real:
            self._last = _Opened(real, self._host.open(real, os.O_PATH | os.O_DIRECTORY))
        return self._last.descriptor

    def names(self, path: str) -> tuple[str, ...]:
        """The entries of a directory, sorted. Raises OSError if it cannot be read."""
        real = self._links.resolve(path)
        names: list[str] = []
        with self._host.directory(real) as entries:
            for entry in entries:
                if len(names) >= MAX_ENTRIES:
                    raise OSError(errno.EFBIG, f"more than {MAX_ENTRIES} entries", path)
                names.append(entry.name)
        names.sort()
        return tuple(names)

    def each(self, directory: str, one: Callable[[str], T | None]) -> tuple[T, ...]:
        """`one(name)` of each entry, in natural order, without None; nothing if there is no directory."""
        try:
            names = self.names(directory)
        except OSError:
            return ()
        found = (one(name) for name in in_order(names))
        return tuple(item for item in found if item is not None)

    def read(self, path: str, limit: int = MAX_FILE_BYTES) -> str:
        """The first `limit` bytes of a file. Raises OSError if it cannot be read."""
        return self.read_here(self._links.resolve(path), limit, path)

    def read_here(self, real: str, limit: int, path: str) -> str:
        """The first bytes of a file whose path has no links; a link at the path is not followed."""
        try:
            # Not blocking: a FIFO instead of a file must not hang the scan.
            parent, _, name = real.rpartition("/")
            descriptor = os.open(name, _OPEN_FILE, dir_fd=self._opened(parent))
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        try:
            parts: list[bytes] = []
            left = limit
            while left > 0 and (part := os.read(descriptor, left)):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)
        return b"".join(parts).decode(errors="replace")

    def target(self, path: str) -> str:
        """The last component of a link's target, which need not exist; empty if `path` is no link."""
        parent, _, name = path.rpartition("/")
        try:
            target = read_link(f"{self._root}{self._links.resolve(parent)}/{name}")
        except OSError:
            return ""
        return target.rstrip("/").rpartition("/")[2]

    def real(self, path: str) -> str:
        """A host path with all links of its existing part followed. Raises OSError for a loop."""
        return self._links.resolve(path) or "/"


class SysfsDirectory(Struct, frozen=True):
    """One directory of sysfs, such as a device's. `path` is its host path without links."""

    sysfs: SysfsTree
    path: str

    @property
    def name(self) -> str:
        """The last component of its path."""
        return self.path.rpartition("/")[2]

    def text(self, name: str, limit: int = MAX_TEXT) -> str:
        """The cleaned text of one of its files; empty if it cannot be read."""
        return clean(self.raw(name), limit)

    def raw(self, name: str, limit: int = MAX_FILE_BYTES) -> str:
        """The unchanged text of one of its files; empty if it cannot be read."""
        try:
            return self.sysfs.read_here(f"{self.path}/{name}", limit, name)
        except OSError:
            return ""

    def number(self, name: str) -> int | None:
        """The non-negative whole number in one of its files; None for anything else."""
        text = self.text(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None

    def link(self, name: str) -> str:
        """The last component of the target of one of its links; empty if there is no such link."""
        return clean(self.sysfs.target(f"{self.path}/{name}"))

    def names(self) -> tuple[str, ...]:
        """Its entries, sorted; none if it cannot be read."""
        try:
            return self.sysfs.names(self.path)
        except OSError:
            return ()

    def sub(self, name: str) -> "SysfsDirectory | None":
        """The directory at one of its entries, links followed."""
        return self.sysfs.directory(f"{self.path}/{name}")

    def subs(self, name: str) -> "Iterator[SysfsDirectory]":
        """The directories below one of its directories."""
        inner = self.sub(name)
        for entry in inner.names() if inner is not None else ():
            found = self.sysfs.directory(f"{self.path}/{name}/{entry}")
            if found is not None:
                yield found


def clean(text: str, limit: int = MAX_TEXT) -> str:
    """At most `limit` characters of `text`, without surrounding white space and hostile characters."""
    text = text.strip()
    if not text.isprintable():
        text = "".join(" " if is_hostile(character) else character for character in text)
    return text[:limit].strip()


MAX_NODE: Final = 1023
"""Linux has at most 1024 NUMA nodes."""


def numa_nodes(host: HostRoot, found: Found) -> tuple[int, ...]:
    """The NUMA node of a device: the first valid `numa_node` of its directory and its parents.

    Linux writes -1 for an unknown node, which the kubelet must not get. Unreadable files count as unknown.
    """
    start = found.sysfs
    if not start and found.rdev is not None:
        kind, major, minor = found.rdev
        start = f"/sys/dev/{kind}/{major}:{minor}"
    if not start:
        return ()
    try:
        path = host.real(start)
    except OSError:
        return ()
    while path.startswith("/sys/devices/"):
        node = _node(host, f"{path}/numa_node")
        if node is not None:
            return (node,)
        path = path.rpartition("/")[0]
    return ()


def _node(host: HostRoot, path: str) -> int | None:
    try:
        text = host.read(path)
    except OSError:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 4:
        return None
    node = int(text)
    return node if node <= MAX_NODE else None


MAX_DIRECTORIES: Final = 512
MAX_NODES: Final = 128
"""Device nodes of one device; more are ignored."""


class Child(Struct, frozen=True):
    """Something below a device. `path`: its device node; empty for a network interface."""

    subsystem: str
    name: str
    path: str


def children(host: HostRoot, sysfs: SysfsTree, directory: SysfsDirectory, depth: int) -> Iterator[Child]:
    """Device nodes and network interfaces of the directory and of `depth` levels below it.

    Links are not followed. The name of a node is in the file `uevent`, otherwise it is the directory's name.
    """
    directories = found = 0
    level = [directory]
    for _ in range(depth + 1):
        below: list[SysfsDirectory] = []
        for current in level:
            directories += 1
            names, files = _listed(host, current.path)
            child = _child(host, current, files)
            if child is not None:
                yield child
                found += 1
            if found >= MAX_NODES or directories >= MAX_DIRECTORIES:
                return
            below += [SysfsDirectory(sysfs, f"{current.path}/{name}") for name in names]
        level = below


def _listed(host: HostRoot, path: str) -> tuple[list[str], frozenset[str]]:
    """(directories, other entries) of a directory whose path has no links."""
    directories: list[str] = []
    others: list[str] = []
    with suppress(OSError), host.directory(path) as entries:
        for entry in entries:
            (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    directories.sort()
    return directories, frozenset(others)


def _child(host: HostRoot, directory: SysfsDirectory, files: frozenset[str]) -> Child | None:
    if "dev" in files:
        path = node_path(host, directory)
        return Child(directory.link("subsystem"), directory.name, path) if path else None
    if "ifindex" in files:
        return Child("net", directory.name, "")
    return None


def node_path(host: HostRoot, directory: SysfsDirectory) -> str:
    """The node in /dev of a directory with a file `dev`; empty if it cannot be determined."""
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
