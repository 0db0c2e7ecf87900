"""Opens files below a directory without following any link, by openat2 or step by step.

A path whose links were resolved may have a new link when it is opened: whoever can write to a part of it
would lead the reader elsewhere. `openat2` (Linux 5.6) refuses links in one call. Where the kernel or a
seccomp profile does not have it, each step is opened by itself.
"""

import ctypes
import errno
import os
from typing import Any, Final

_OPENAT2: Final = 437
"""The number of the system call, equal on all architectures."""
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_MISSING: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.E2BIG})
"""Errors of a kernel, or a seccomp profile, without openat2."""
_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _How(ctypes.Structure):
    """struct open_how."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_SIZE: Final = ctypes.sizeof(_How)


class _Openat2:
    """The system call, until it turns out to be missing."""

    def __init__(self) -> None:
        self.missing = False
        self._hows: dict[int, Any] = {}
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.argtypes = (
            *(ctypes.c_long, ctypes.c_long, ctypes.c_char_p),
            *(ctypes.POINTER(_How), ctypes.c_size_t),
        )
        self._syscall.restype = ctypes.c_long

    def open(self, directory: int, path: bytes, flags: int) -> int:
        """A descriptor. Raises OSError."""
        how = self._hows.get(flags)
        if how is None:  # a call takes half as long without making one
            made = _How(flags, 0, _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
            how = self._hows[flags] = ctypes.pointer(made)
        while True:
            descriptor = int(self._syscall(_OPENAT2, directory, path, how, _SIZE))
            if descriptor >= 0:
                return descriptor
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))


openat2: Final = _Openat2()


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open `path`, which has no links and no `..`, below the directory `root`.

    `flags` create nothing. An empty path is the directory itself. For a link, raises ELOOP or ENOTDIR.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    path = path.strip("/") or "."
    if not openat2.missing:
        try:
            return openat2.open(root, os.fsencode(path), flags)
        except OSError as error:
            if error.errno not in _MISSING:
                raise
        descriptor = _by_steps(root, path, flags)
        openat2.missing = True  # the file opens without it
        return descriptor
    return _by_steps(root, path, flags)


def _by_steps(root: int, path: str, flags: int) -> int:
    here, steps = root, path.split("/")
    try:
        for step in steps[:-1]:
            below = os.open(step, _STEP, dir_fd=here)
            if here != root:
                os.close(here)
            here = below
        return os.open(steps[-1], flags, dir_fd=here)
    finally:
        if here != root:
            os.close(here)
