"""A wall clock that jumps, for one process: a library that the process preloads."""

import mmap
import shutil
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from harness.tools import shared_library

_SECONDS = struct.Struct("q")


class JumpingClock:
    """How far the clock of processes with `environment` is ahead of this machine's."""

    def __init__(self, path: Path, seconds: mmap.mmap) -> None:
        self.environment = {
            "LD_PRELOAD": str(shared_library(Path(__file__).with_name("clock.c"))),
            "TRIAL_CLOCK": str(path),
        }
        self._seconds = seconds

    def set_ahead(self, seconds: int) -> None:
        """Set how far ahead the clock is from now on."""
        _SECONDS.pack_into(self._seconds, 0, seconds)


@contextmanager
def jumping_clock() -> Generator[JumpingClock]:
    """A clock that starts with the correct time."""
    directory = Path(tempfile.mkdtemp(prefix="dl-"))
    path = directory / "ahead"
    path.write_bytes(_SECONDS.pack(0))
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), _SECONDS.size) as seconds:
            yield JumpingClock(path, seconds)
    finally:
        shutil.rmtree(directory)
