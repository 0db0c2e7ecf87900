"""How the C library keeps memory that is freed: glibc's way is for programs of many busy threads."""

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
"""glibc's malloc.h: M_ARENA_MAX."""


def share_one_arena() -> None:
    """Have all threads of this process allocate from one arena, where the C library is glibc.

    It has one for each thread otherwise, and what one thread freed no other can use: of an answer of 16 MB
    that several threads handle in turn some 50 MiB more stay. Python's threads hardly ever allocate at the
    same time. To be called before there are threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)
