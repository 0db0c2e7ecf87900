"""Runs a program with limits on its time and output, and kills its process group. Blocking."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

from msgspec import Struct, field

_CHUNK: Final = 65_536
_PIPE: Final = 1 << 20
"""The largest pipe of an unprivileged user."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Outcome(Struct, frozen=True):
    """How a program ended. `status` is as in a shell, 128 + n for signal n; None: it exceeded its time.

    `output` and `error` are the first (or last) bytes of its standard output and error; `cut`: there were
    more.
    """

    status: int | None
    output: bytes
    error: bytes
    cut: bool = False


class _Sink(Struct):
    """The kept bytes of one stream."""

    stream: IO[bytes]
    last: bool
    kept: bytearray = field(default_factory=bytearray)
    cut: bool = False

    def take(self, most: int) -> bool:
        """Read what is available and keep at most `most` bytes; False at the end of the stream."""
        chunk = self.stream.read(_CHUNK)
        if chunk:
            self.cut = self.cut or len(chunk) > most - len(self.kept)
            if self.last:
                self.kept += chunk
                del self.kept[:-most]
            else:
                self.kept += chunk[: most - len(self.kept)]
        return chunk != b""


def run_command(
    command: Sequence[str],
    *,
    limit: float,
    most: int = _CHUNK,
    last: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run `command` without a shell for at most `limit` seconds. Raises OSError if it cannot be started.

    The first `most` bytes of each stream are kept, or the `last`. The environment is PATH and `environment`.
    The program gets its own process group, which is killed in the end, with everything it started.
    """
    process = subprocess.Popen(  # noqa: S603 -- a program that the configuration names
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", _PATH), **(environment or {})},
        start_new_session=True,
        bufsize=0,
    )
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    sinks = [_Sink(stream, last) for stream in streams]
    ended = False
    try:
        ended = _read_until_end(process.pid, sinks, time.monotonic() + limit, most)
    finally:
        # Before the process is reaped: until then its number is not reused.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        for stream in streams:
            stream.close()
    output, error = sinks
    shown = None if not ended else status if status >= 0 else 128 - status
    return Outcome(shown, bytes(output.kept), bytes(error.kept), output.cut or error.cut)


def _read_until_end(pid: int, sinks: Sequence[_Sink], until: float, most: int) -> bool:
    """Read its output until it ends; whether it ended before the monotonic time `until`."""
    end = os.pidfd_open(pid)
    ended = False
    try:
        with selectors.DefaultSelector() as selector:
            # A child process may keep the streams open: wait for the end of the program.
            selector.register(end, selectors.EVENT_READ)
            for sink in sinks:
                os.set_blocking(sink.stream.fileno(), False)
                selector.register(sink.stream, selectors.EVENT_READ, sink)
            while not ended and (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.data is None:
                        ended = True
                    elif not key.data.take(most):
                        selector.unregister(key.fileobj)
    finally:
        os.close(end)
    for sink in sinks:
        # Its last output; at most the contents of a pipe, since a child may still write.
        for _ in range(_PIPE // _CHUNK):
            sink.take(most)
    return ended
