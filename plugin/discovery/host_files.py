"""Files written below the host's root: whole or not at all, through no link that leads elsewhere.

Every path is a host path; what fails raises OSError with that path, not where it is for this process.
"""

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from plugin.discovery.host import HostRoot

MAX_READ: Final = 64 * 1024 * 1024
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write(host: HostRoot, path: str, content: bytes, mode: int) -> tuple[str, ...]:
    """Put `content` at `path`, with `mode` whatever the umask. Returns the directories made for it.

    Readers see the old file or the new one, never a part. A link at `path` is replaced, not followed.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    made: list[str] = []
    with _named(path), _opened(host, parent or "/", made) as directory:
        # A name that no reader of such directories takes for its own: hidden, and without an ending.
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
    """The content and mode of the regular file at `path` itself; None where there is no such."""
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
    """Remove the file at `path`, if it is there, then those of `directories` that are empty now."""
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
    """A descriptor of `directory`, whose missing parts are made and told in `made`, unless that is None.

    Its links are followed below the host's root, then every step is taken without following any: who
    may write to a part of the path cannot lead elsewhere.
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


@contextmanager
def _named(path: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
