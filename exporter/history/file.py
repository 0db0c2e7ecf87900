"""The file of history: created, locked, checked, and moved aside where it is damaged.

One process writes the file at a time. During an upgrade two exporters may run side by side: a lock file
beside the database keeps the second one waiting. The kernel releases the lock with its process.
"""

import fcntl
import glob
import os
import stat
import time
from pathlib import Path
from typing import Final

from exporter.history import schema
from exporter.history.store import StoreError

MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
DAMAGED_KEPT: Final = 3
"""Damaged files that are kept, the newest ones: they must not fill a failing disk."""

_COMPANIONS: Final = ("-wal", "-shm")


class FileLocked(StoreError):  # noqa: N818 -- usual while one exporter replaces another
    """Another process has the file."""


_MAGIC: Final = b"SQLite format 3\0"
_EMPTY_TABLE: Final = b"\x0d\0\0\0\0"
"""The first page of a database without tables, from byte 100 (https://sqlite.org/fileformat.html)."""


def foreign_problem(path: Path) -> str:
    """Why the file at `path` is not a history, which must stay as it is; "" for a history, even a damaged
    one, for an empty file, and for none.

    A history has its application id. A damaged file without it is a history where a lock file is beside it.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "it is not a regular file"
        with path.open("rb") as file:
            head = file.read(105)
    except OSError:
        return ""
    known = _lock_path(path).exists()
    if not head or (known and not head.startswith(_MAGIC)):
        return ""
    if not head.startswith(_MAGIC):
        return "it is no database, and so the file of another program"
    application = int.from_bytes(head[68:72])
    # A new history, whose tables are still in the write-ahead log, has no application id either.
    if application == schema.APPLICATION or (application == 0 and (known or head[100:] == _EMPTY_TABLE)):
        return ""
    return "it is a database of another program"


def _lock_path(path: Path) -> Path:
    return Path(f"{path}.lock")


class HistoryFile:
    """The file `path`, and the lock file beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None

    def lock(self) -> None:
        """Create the directory and the file if needed, and lock it. Raises StoreError."""
        foreign = foreign_problem(self.path)
        if foreign:
            raise StoreError(f"{foreign}, and is left alone")
        try:
            self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = _locked(_lock_path(self.path))
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, MODE)
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except BlockingIOError:
            raise FileLocked("another process writes it; this one waits until that has ended") from None
        except OSError as error:
            raise StoreError(f"{error.strerror or error}: {error.filename or self.path}") from error
        if not stat.S_ISREG(status.st_mode):
            raise StoreError("it is not a regular file")
        self._identity = status.st_dev, status.st_ino

    def check(self) -> None:
        """Raise StoreError where the file was deleted or replaced: writes to a deleted open file are lost."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise StoreError(f"the file is gone: {error.strerror or error}") from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise StoreError("another file was put in its place")

    def set_aside(self, wall: float) -> Path:
        """Rename a damaged file to a name with the time. Raises StoreError."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall))
        aside = Path(f"{self.path}.damaged-{stamp}")
        number = 1
        while aside.exists():
            number += 1
            aside = Path(f"{self.path}.damaged-{stamp}.{number}")
        try:
            self.path.rename(aside)
            for companion in _COMPANIONS:
                if (beside := Path(f"{self.path}{companion}")).exists():
                    beside.rename(f"{aside}{companion}")
            self._delete_old()
        except OSError as error:
            raise StoreError(
                f"it is damaged, and cannot be moved aside: {error.strerror or error}"
            ) from error
        return aside

    def _delete_old(self) -> None:
        kept = self.path.parent.glob(f"{glob.escape(self.path.name)}.damaged-*")
        found = sorted(
            (file for file in kept if not file.name.endswith(_COMPANIONS)),
            key=lambda file: file.stat().st_mtime,
        )
        for old in found[:-DAMAGED_KEPT]:
            old.unlink()
            for companion in _COMPANIONS:
                Path(f"{old}{companion}").unlink(missing_ok=True)

    def unlock(self) -> None:
        """Unlock it for another process."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
