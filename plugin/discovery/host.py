"""The host's file system below the host root: `/` on the host, a mount of it in a container.

All paths are host paths, and so are the paths in errors. Symbolic links are followed as on the host: an
absolute link starts at the host root, and no link leads out of it. Files are written completely or not.
"""

import errno
import os
import re
import secrets
import stat
import threading
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import finalize

from msgspec import Struct

from plugin.discovery.beneath import open_beneath

MAX_LINKS: Final = 40
"""The kernel's limit: a path with more links is a loop."""
MAX_ENTRIES: Final = 100_000
"""Entries of one directory that are read."""
MAX_FILE_BYTES: Final = 4096
_NO_LINK: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ELOOP, errno.EINVAL, errno.EIO})
"""What `readlink` reports for a path that is missing, is no link, or vanishes during the call."""
_PLAIN: Final = re.compile(r"(?:/(?!\.)[^/\0]+)+")
"""A path with neither `.` nor `..`: where it has no links, there is no other way to write it."""


class DirectoryEntry(Struct, frozen=True):
    """One entry of a directory, links followed. `status` is None for a dangling link."""

    name: str
    is_link: bool
    status: os.stat_result | None


class LinkResolver:
    """Follows links below the host root as the host does. Each link is read once, so use it for one scan."""

    def __init__(self, root: str) -> None:
        self.root = root
        """The directory of the host's files, without a slash at its end."""
        self._real: dict[str, str] = {"": ""}

    def resolve(self, path: str) -> str:
        """The host path with all links of its existing part followed; empty for the host root.

        Raises OSError for a loop of links, and if a link cannot be read.
        """
        known = self._real.get(path)
        if known is not None:
            return known
        parent, _, name = path.rpartition("/")
        real = self._real.get(parent)
        if real is None:
            real = ""
            for part in parent.split("/"):
                real = self._step(real, part, 0)
            self._real[parent] = real
        self._real[path] = self._step(real, name, 0)
        return self._real[path]

    def remember(self, path: str) -> None:
        """Record that `path` has no link in it."""
        self._real[path] = path

    def _step(self, base: str, name: str, links: int) -> str:
        """Resolve one component below `base`, which has no links."""
        if name in {"", "."}:
            return base
        if name == "..":
            return base.rpartition("/")[0]
        path = f"{base}/{name}"
        known = self._real.get(path)
        if known is not None:
            return known
        try:
            target = read_link(self.root + path)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise OSError(error.errno, error.strerror, path) from error
            self._real[path] = path
            return path
        if links >= MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        real = "" if target.startswith("/") else base
        for part in target.split("/"):
            real = self._step(real, part, links + 1)
        self._real[path] = real
        return real


def read_link(path: str) -> str:
    """The target of a link. Raises OSError."""
    # Thousands of calls in one scan: a Path object costs more than the system call.
    return os.readlink(path)  # noqa: PTH115 -- see above


class _Memory:
    """What one thread has read of the host: while it is entered, it is the thread's one of `memories`."""

    __slots__ = ("_memories", "links", "statuses")

    def __init__(self, memories: threading.local, links: LinkResolver) -> None:
        self._memories = memories
        self.links = links
        self.statuses: dict[str, os.stat_result] = {}

    def __enter__(self) -> None:
        self._memories.memory = self

    def __exit__(self, *_: object) -> None:
        self._memories.memory = None


class HostRoot:
    """The host's files. Every method takes host paths and raises OSError like the system call."""

    def __init__(self, root: Path) -> None:
        self._memories = threading.local()
        self._root = root if root.is_absolute() else root.absolute()
        self._is_all = self._root == Path("/")
        self._text = str(self._root).rstrip("/")
        self._descriptor: int | None = None

    def here(self, path: str) -> Path:
        """The path of a host path for this process, links not followed."""
        return self._root / path.lstrip("/")

    def open(self, real: str, flags: int) -> int:
        """A descriptor of a path that `real` returned. A link that is put into it meanwhile is not followed.

        Raises OSError: ELOOP or ENOTDIR for such a link.
        """
        if self._is_all:  # nothing is outside
            return os.open(real or "/", flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._open_beneath(real, flags)

    def _open_beneath(self, path: str, flags: int) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            finalize(self, os.close, self._descriptor)
        return open_beneath(self._descriptor, path, flags)

    def reading_once(self) -> AbstractContextManager[None]:
        """Within this context this thread reads each link and each status once.

        For one short call that checks a path in several steps, such as Allocate. The context must end before
        anything is changed on the host.
        """
        return _Memory(self._memories, self.links())

    def links(self) -> "LinkResolver":
        """A resolver of links that reads each link once."""
        return LinkResolver(self._text)

    def real(self, path: str) -> str:
        """The host path with all links of its existing part followed."""
        memory: _Memory | None = getattr(self._memories, "memory", None)
        links = memory.links if memory is not None else self.links()
        return links.resolve(path) or "/"

    def stat(self, path: str) -> os.stat_result:
        """The status of the target of `path`."""
        memory: _Memory | None = getattr(self._memories, "memory", None)
        if memory is None:
            return self._stat(path)
        status = memory.statuses.get(path)
        if status is None:
            status = self._stat_without_links(path)
            if status is not None:
                memory.links.remember(path)
            else:
                status = self._stat(path)
            memory.statuses[path] = status
        return status

    def _stat(self, path: str) -> os.stat_result:
        with _named(path):
            descriptor = self.open(self.real(path), os.O_PATH)
            try:
                return os.fstat(descriptor)
            finally:
                os.close(descriptor)

    def _stat_without_links(self, path: str) -> os.stat_result | None:
        """The status of a path with no link in it; None where there is a link, or anything else is wrong.

        This takes half as long as to read each part of the path as a link first.
        """
        if _PLAIN.fullmatch(path) is None:
            return None
        try:
            descriptor = self._open_beneath(path, os.O_PATH)
        except OSError:
            return None
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return None if stat.S_ISLNK(status.st_mode) else status

    def is_link(self, path: str) -> bool:
        """Whether the last component of `path` is a symbolic link. Raises OSError if it does not exist."""
        parent, _, name = path.rstrip("/").rpartition("/")
        with _named(path):
            return stat.S_ISLNK(os.lstat(self.here(self.real(parent or "/")) / name).st_mode)

    def exists(self, path: str) -> bool:
        """Whether the target of `path` exists. Raises OSError if that cannot be determined."""
        try:
            self.stat(path)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return False
            raise
        return True

    def entries(self, directory: str) -> Iterator[DirectoryEntry]:
        """The entries of a directory, with the status of their targets."""
        with _named(directory), self.directory(self.real(directory)) as found:
            for count, entry in enumerate(found):
                if count >= MAX_ENTRIES:
                    raise OSError(errno.EFBIG, f"more than {MAX_ENTRIES} entries", directory)
                is_link = entry.is_symlink()
                try:
                    path = f"{directory.rstrip('/')}/{entry.name}"
                    status = self.stat(path) if is_link else entry.stat(follow_symlinks=False)
                except OSError:
                    status = None
                yield DirectoryEntry(entry.name, is_link, status)

    @contextmanager
    def directory(self, real: str) -> Generator[Iterator[os.DirEntry[str]]]:
        """The entries of a directory whose path `real` returned."""
        descriptor = self.open(real, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as found:
                yield found
        finally:
            os.close(descriptor)  # not before: an entry's status is read below it

    def read(self, path: str) -> str:
        """The text of a small file, stripped; bytes that are not UTF-8 are replaced."""
        with _named(path), open(self.open(self.real(path), os.O_RDONLY), "rb") as file:  # noqa: PTH123 -- a descriptor
            return file.read(MAX_FILE_BYTES).decode(errors="replace").strip()

    def make(self, path: str, kind: str) -> None:
        """Create a `directory` or a `file` at `path` unless it exists; its parent must exist.

        Raises OSError for anything else at `path`, even a link: whoever can write to the parent could
        make it point anywhere.
        """
        parent, _, name = path.rstrip("/").rpartition("/")
        with _named(path), _opened(self, parent or "/", None) as directory:
            try:
                if kind == "directory":
                    os.mkdir(name, 0o755, dir_fd=directory)
                else:
                    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
                    os.close(os.open(name, flags, 0o644, dir_fd=directory))
            except FileExistsError:
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                if not (stat.S_ISDIR(mode) if kind == "directory" else stat.S_ISREG(mode)):
                    raise FileExistsError(errno.EEXIST, f"there is something that is not a {kind}") from None


@contextmanager
def _named(path: str) -> Generator[None]:
    """Make an OSError name the host path."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def node_of(status: os.stat_result) -> tuple[str, int, int] | None:
    """("char" or "block", major, minor) of a device node; None for anything else."""
    kind = "char" if stat.S_ISCHR(status.st_mode) else "block" if stat.S_ISBLK(status.st_mode) else None
    return None if kind is None else (kind, os.major(status.st_rdev), os.minor(status.st_rdev))


def os_problem(error: OSError) -> str:
    """The text of an OSError: the path and the reason."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


MAX_READ: Final = 64 * 1024 * 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write(host: HostRoot, path: str, content: bytes, mode: int) -> tuple[str, ...]:
    """Write a file with `mode`, whatever the umask. Returns the directories that were created for it.

    Readers see the old file or the new one, never a part. A link at `path` is replaced, not followed.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    made: list[str] = []
    with _named(path), _opened(host, parent or "/", made) as directory:
        # Hidden and without an extension, so that no reader of such directories uses it.
        temporary = f".devicelens-{secrets.token_hex(8)}"
        file = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=directory,
        )
        try:
            with open(file, "wb") as stream:  # noqa: PTH123 -- a descriptor
                stream.write(content)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise
    return tuple(made)


def read(host: HostRoot, path: str) -> tuple[bytes, int] | None:
    """The content and mode of the regular file at `path`; None if there is none."""
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        with _named(path), _opened(host, parent or "/", None) as directory:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            with open(file, "rb") as stream:  # noqa: PTH123 -- a descriptor
                status = os.fstat(stream.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_READ:
                    return None
                return stream.read(), stat.S_IMODE(status.st_mode)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return None
        raise


def remove(host: HostRoot, path: str, directories: tuple[str, ...] = ()) -> None:
    """Remove the file at `path` if it exists, then those of `directories` that are empty."""
    parent, _, name = path.rstrip("/").rpartition("/")
    gone = suppress(FileNotFoundError, NotADirectoryError)
    with _named(path), gone, _opened(host, parent or "/", None) as directory:
        os.unlink(name, dir_fd=directory)
    for empty in sorted(directories, key=len, reverse=True):
        upper, _, last = empty.rstrip("/").rpartition("/")
        with suppress(OSError), _opened(host, upper or "/", None) as directory:
            os.rmdir(last, dir_fd=directory)


@contextmanager
def _opened(host: HostRoot, directory: str, made: list[str] | None) -> Generator[int]:
    """A descriptor of `directory`. Missing parts are created and added to `made`, unless that is None.

    Links are resolved below the host root first; then every step refuses links, so that nobody who can
    write to a part of the path leads the write elsewhere.
    """
    steps = [step for step in host.real(directory).split("/") if step]
    here = os.open(host.here("/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for count, step in enumerate(steps, start=1):
            try:
                below = os.open(step, _DIRECTORY, dir_fd=here)
            except FileNotFoundError:
                if made is None:
                    raise
                with suppress(FileExistsError):
                    os.mkdir(step, 0o755, dir_fd=here)
                    made.append("/" + "/".join(steps[:count]))
                below = os.open(step, _DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)
