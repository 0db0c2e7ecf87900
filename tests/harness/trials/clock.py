"""A wall clock that jumps, for one process alone: a library that is preloaded into it."""

import atexit
import mmap
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

_SECONDS = struct.Struct("q")


@lru_cache(maxsize=1)
def _library() -> Path:
    """Built once. Skips where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a clock that jumps needs a C compiler")
    directory = tempfile.mkdtemp(prefix="dl-")
    atexit.register(shutil.rmtree, directory)
    made = Path(directory) / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source], check=True, timeout=60)
    return made


class JumpingClock:
    """How far the clock of processes with `environment` is ahead of this machine's."""

    def __init__(self, path: Path, seconds: mmap.mmap) -> None:
        self.environment = {"LD_PRELOAD": str(_library()), "TRIAL_CLOCK": str(path)}
        self._seconds = seconds

    def set_ahead(self, seconds: int) -> None:
        """From this moment on."""
        _SECONDS.pack_into(self._seconds, 0, seconds)


@contextmanager
def jumping_clock() -> Generator[JumpingClock]:
    """A clock that is right so far."""
    directory = Path(tempfile.mkdtemp(prefix="dl-"))
    path = directory / "ahead"
    path.write_bytes(_SECONDS.pack(0))
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), _SECONDS.size) as seconds:
            yield JumpingClock(path, seconds)
    finally:
        shutil.rmtree(directory)
