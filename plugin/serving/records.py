"""What a resource has put on the host, remembered beside its sockets: files, and a CDI specification.

They outlive the process, since running pods need them; so what is ours must be known to the next one.
Told before it is made: whatever happens, nothing of ours is left that nobody knows.

Several things of which one that fails must not hold up the others.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from plugin.serving.sockets import PREFIX, RECORD_ENDING
from runtime.log import Log

MAX_BYTES: Final = 16 * 1024 * 1024

_log = Log("belongings")


class FileRecord(msgspec.Struct, frozen=True):
    """One file. `ids`: the device ids that it was written for. `made`: directories made for it."""

    content: str
    mode: int
    ids: tuple[str, ...] = ()
    made: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a resource has on the host: paths are the host's. `family`: the template of its name, if any."""

    version: Literal[1]
    resource: str
    family: str = ""
    cdi: str = ""
    files: dict[str, FileRecord] = {}


class Belongings:
    """One resource's record. Blocking; whoever changes it holds `guard`."""

    def __init__(self, path: Path, resource: str, family: str = "") -> None:
        self.guard = threading.RLock()
        self._path = path
        self._empty = Record(1, resource, family)
        self._known: Record | None = None

    @property
    def record(self) -> Record:
        """What is remembered."""
        if self._known is None:
            self._known = read(self._path) or self._empty
        return self._known

    def put(self, *, cdi: str | None = None, files: Mapping[str, FileRecord] | None = None) -> None:
        """Remember this instead, what is None as it was. Raises OSError: then nothing is to be made."""
        new = Record(
            1,
            self._empty.resource,
            self._empty.family,
            self.record.cdi if cdi is None else cdi,
            self.record.files if files is None else dict(files),
        )
        if new == self.record:
            return
        if new == self._empty:
            self._path.unlink(missing_ok=True)
        else:
            _write(self._path, msgspec.json.encode(new))
        self._known = new


Say = Callable[[Path, str], None]
"""Called with a record that cannot be read, and why."""


def _warn(path: Path, reason: str) -> None:
    _log.warn("cannot read what was left on the host before", path=path, reason=reason)


def read(path: Path, say: Say = _warn) -> Record | None:
    """The record at `path`; None where there is none that can be read, which is told."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(file, "rb") as stream:  # noqa: PTH123 -- a descriptor
            content = stream.read(MAX_BYTES + 1)
        return msgspec.json.decode(content, type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        say(path, (error.strerror if isinstance(error, OSError) else None) or str(error))
        return None


def records(directory: Path, say: Say = _warn) -> Iterator[tuple[Path, Record]]:
    """Every record in `directory`."""
    for path in sorted(directory.glob(f".{PREFIX}*{RECORD_ENDING}")):
        record = read(path, say)
        if record is not None:
            yield path, record


def _write(path: Path, content: bytes) -> None:
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_BYTES} bytes of files are to be remembered", str(path))
    new = path.with_name(f"{path.name}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as stream:  # noqa: PTH123 -- a descriptor
            stream.write(content)
            stream.flush()
            # What it remembers has to be made again after a power cut too, for pods that start again.
            os.fsync(file)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


T = TypeVar("T")


def try_each(items: Iterable[T], do: Callable[[T], object]) -> None:
    """Do it for each of `items`. Raises the first OSError, once all were tried."""
    first: OSError | None = None
    for item in items:
        try:
            do(item)
        except OSError as error:
            first = first or error
    if first is not None:
        raise first
