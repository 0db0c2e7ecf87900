"""The file: whose it is, and where it goes when it is damaged.

One process writes it at a time. During an upgrade two exporters may run side by side: the second stands by,
for a lock beside the file, which ends with its process whatever ends that, tells it so.
"""

import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Final

from exporter.history.store import Failed

MODE: Final = 0o640
DIRECTORY_MODE: Final = 0o750
DAMAGED_KEPT: Final = 3
"""Damaged files that are kept, the newest: a disk that goes on failing must not be filled with them."""

_COMPANIONS: Final = ("-wal", "-shm")


class Taken(Failed):
    """Another process has it, as while one exporter follows another."""


class Place:
    """The file at `path`, and the lock beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None

    def take(self) -> None:
        """Make the directory and the file where they are not there, and lock it. Raises Failed."""
        try:
            self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            if self._lock is None:
                self._lock = _locked(Path(f"{self.path}.lock"))
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, MODE)
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except BlockingIOError:
            raise Taken("another process writes it; this one waits until that has ended") from None
        except OSError as error:
            raise Failed(f"{error.strerror or error}: {error.filename or self.path}") from error
        if not stat.S_ISREG(status.st_mode):
            raise Failed("it is not a regular file")
        self._identity = status.st_dev, status.st_ino

    def check(self) -> None:
        """Raises Failed where the file is no longer there, or another one is in its place: what is written to
        an open file that was deleted is lost.
        """
        try:
            status = self.path.stat()
        except OSError as error:
            raise Failed(f"the file is gone: {error.strerror or error}") from error
        if (status.st_dev, status.st_ino) != self._identity:
            raise Failed("another file was put in its place")

    def set_aside(self, wall: float) -> Path:
        """Move a damaged file out of the way, under a name with the time in it. Raises Failed."""
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
            self._thin_out()
        except OSError as error:
            raise Failed(f"it is damaged, and cannot be moved aside: {error.strerror or error}") from error
        return aside

    def _thin_out(self) -> None:
        found = sorted(
            (
                file
                for file in self.path.parent.glob(f"{_literal(self.path.name)}.damaged-*")
                if _is_main(file)
            ),
            key=lambda file: file.stat().st_mtime,
        )
        for old in found[:-DAMAGED_KEPT]:
            old.unlink()
            for companion in _COMPANIONS:
                Path(f"{old}{companion}").unlink(missing_ok=True)

    def release(self) -> None:
        """Let another process have it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _is_main(file: Path) -> bool:
    return not file.name.endswith(_COMPANIONS)


def _literal(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
