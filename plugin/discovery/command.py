"""A program run for its answer: bounded in time and in output, and leaving nothing behind. Blocking."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final

_CHUNK: Final = 65_536
_PIPE: Final = 1 << 20
"""No pipe of an ordinary user holds more."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended. `status`: as a shell has it, 128 + n for signal n; None: it ran past its limit.

    `output` and `error` hold what came first (or last) of its standard output and error; `cut`: there was
    more.
    """

    status: int | None
    output: bytes
    error: bytes
    cut: bool = False


@dataclass(slots=True)
class _Sink:
    """What one stream gave so far."""

    stream: IO[bytes]
    last: bool
    kept: bytearray = field(default_factory=bytearray)
    cut: bool = False

    def take(self, most: int) -> bool:
        """Take in what is there, keeping `most` bytes in all; False where the stream has ended."""
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
    """Run `command` without a shell for at most `limit` seconds; keep `most` bytes of each stream.

    Its first bytes are kept, or its `last`.

    Its environment is PATH alone and what `environment` adds. It gets a process group of its own, which
    is killed in the end whatever happens, so that nothing that it began outlives it. Raises OSError
    where it cannot be started.
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
        ended = _listen(process.pid, sinks, time.monotonic() + limit, most)
    finally:
        # Before it is waited for: until then nobody else can have its number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        for stream in streams:
            stream.close()
    output, error = sinks
    shown = None if not ended else status if status >= 0 else 128 - status
    return Outcome(shown, bytes(output.kept), bytes(error.kept), output.cut or error.cut)


def _listen(pid: int, sinks: Sequence[_Sink], until: float, most: int) -> bool:
    """Take in what it writes until it ends; whether it did by then."""
    end = os.pidfd_open(pid)
    ended = False
    try:
        with selectors.DefaultSelector() as selector:
            # A child of its own may keep the streams open for ever: its end is what is waited for.
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
        # What it wrote last; no more than a pipe holds, for somebody else may go on writing.
        for _ in range(_PIPE // _CHUNK):
            sink.take(most)
    return ended
