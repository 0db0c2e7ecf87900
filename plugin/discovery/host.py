"""The host's file system below its root: `/` on the host itself, a mount of it in a container.

Paths in a configuration are the host's. They are looked up below the root with symbolic links
followed as the host would: an absolute link starts at the root again, and none leads out of it.
"""

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_LINKS: Final = 40
"""As the kernel: a path with more links is a loop."""
MAX_ENTRIES: Final = 100_000
"""Entries of one directory that are looked at."""
MAX_FILE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One entry of a directory, links followed. `status` is None for one that leads nowhere."""

    name: str
    is_link: bool
    status: os.stat_result | None


class HostRoot:
    """The host's files. Every method takes host paths and raises OSError as the system does."""

    def __init__(self, root: Path) -> None:
        self._root = root if root.is_absolute() else root.absolute()

    def here(self, path: str) -> Path:
        """Where a host path is for this process, its links not followed."""
        return self._root / path.lstrip("/")

    def real(self, path: str) -> str:
        """The host path with every link in it followed, as far as it is there."""
        done: list[str] = []
        rest = [part for part in reversed(path.split("/")) if part not in {"", "."}]
        links = 0
        while rest:
            part = rest.pop()
            if part == "..":
                del done[-1:]
                continue
            target = self._link("/".join([*done, part]))
            if target is None:
                done.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                done = []
            rest += [step for step in reversed(target.split("/")) if step not in {"", "."}]
        return "/" + "/".join(done)

    def _link(self, path: str) -> str | None:
        try:
            return str((self._root / path).readlink())
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.ENOENT, errno.ENOTDIR}:
                return None
            raise

    def stat(self, path: str) -> os.stat_result:
        """The status of what `path` leads to."""
        with _named(path):
            return os.lstat(self.here(self.real(path)))

    def is_link(self, path: str) -> bool:
        """Whether the last component of `path` is a symbolic link. Raises OSError where nothing is there."""
        parent, _, name = path.rstrip("/").rpartition("/")
        with _named(path):
            return stat.S_ISLNK(os.lstat(self.here(self.real(parent or "/")) / name).st_mode)

    def exists(self, path: str) -> bool:
        """Whether `path` leads to something. Raises OSError where that cannot be known."""
        try:
            self.stat(path)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return False
            raise
        return True

    def entries(self, directory: str) -> Iterator[DirectoryEntry]:
        """What is in a directory, with what each entry leads to."""
        with _named(directory):
            scan = os.scandir(self.here(self.real(directory)))
        with scan as found:
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

    def read(self, path: str) -> str:
        """A small text file, such as sysfs has; bytes that are not UTF-8 are replaced."""
        with _named(path), self.here(self.real(path)).open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace").strip()

    def make(self, path: str, kind: str) -> None:
        """See to it that there is a `directory` or a `file` at `path`, making it where nothing is.

        Its parent must be there. Raises OSError for something else at `path`, a link among it: who may
        write to the parent could point it anywhere.
        """
        parent, _, name = path.rstrip("/").rpartition("/")
        with _named(path):
            place = self.here(self.real(parent or "/")) / name
            try:
                if kind == "directory":
                    place.mkdir(mode=0o755)
                else:
                    os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644))
            except FileExistsError:
                mode = place.lstat().st_mode
                if not (stat.S_ISDIR(mode) if kind == "directory" else stat.S_ISREG(mode)):
                    raise FileExistsError(errno.EEXIST, f"there is something that is not a {kind}") from None


@contextmanager
def _named(path: str) -> Generator[None]:
    """An OSError from within names the host's path, not where that is for this process."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def node_of(status: os.stat_result) -> tuple[str, int, int] | None:
    """("char" or "block", major, minor) of a device node, None for anything else."""
    kind = "char" if stat.S_ISCHR(status.st_mode) else "block" if stat.S_ISBLK(status.st_mode) else None
    return None if kind is None else (kind, os.major(status.st_rdev), os.minor(status.st_rdev))
