"""runtime.process: in a process of its own, whose threads allocate at the same time."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import ctypes, sys, threading
from runtime.process import share_one_arena
if sys.argv[1] == "shared":
    share_one_arena()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(4)
def work():
    barrier.wait()
    libc.malloc(1000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


def _arenas(how: str) -> int:
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        (sys.executable, "-c", _PROGRAM, how),
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ran.stderr.count("Arena ")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_threads_have_one_arena_between_them() -> None:
    assert _arenas("shared") == 1 < _arenas("own")
