"""The life of a process: its actors in one TaskGroup, its end on SIGTERM or SIGINT, its limits and memory.

An actor is a plain coroutine that runs until it is cancelled. It handles the failures of its field itself, so
an exception that reaches this module is a defect or a Fatal, and ends the process.
"""

import asyncio
import atexit
import ctypes
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any, Final

import grpc.aio

from runtime.log import Log
from runtime.loop_lag import MeasuredLoop
from runtime.text import visible

END_WITHIN: Final = 1.7
"""Seconds from the first signal to the end, whatever hangs; two are promised."""

_CUT_OFF: Final = 0.1
"""Seconds after that at which a blocked event loop is cut off as well."""

_SWITCH_INTERVAL: Final = 0.0005
"""Seconds for which a thread that computes may keep the event loop waiting: a tenth of Python's default. The
loop gives the GIL away at each system call, so one request waits for it several times.
"""

_log = Log("process")

Actor = Coroutine[Any, Any, None]


class Fatal(Exception):  # noqa: N818 -- it is the end, not an error to handle
    """The process cannot start or go on; the message says why, in one line."""


def innermost(error: BaseException) -> BaseException:
    """The first error in nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def run_actors(actors: Iterable[Actor], stop: asyncio.Event) -> None:
    """Run `actors` together until `stop` is set, then cancel and await each of them.

    Raises an ExceptionGroup if one of them fails; the others are cancelled first.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(actor) for actor in actors]
        await stop.wait()
        for task in tasks:
            task.cancel()


def end_at_once_on_signals() -> None:
    """Until `run` is called, make SIGTERM and SIGINT end the process with status 0: there is nothing to undo.

    The kernel drops a signal that the first process of a container does not handle, so without this a pod
    that is deleted during start-up ends only after its grace period.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_at_once)


def run(main: Callable[[asyncio.Event], Actor], *, end_within: float = END_WITHIN) -> int:
    """Run `main(stop)` to its end and return the process's exit status.

    The first SIGTERM or SIGINT sets `stop`. A second one, or `end_within` seconds, end the process at once
    with status 1; where a thread or the event loop is blocked, its stack goes to standard error. Status 0: a
    clean end. Status 1: a Fatal, in one line on standard error.

    A clean end leaves the interpreter's memory to the kernel: on a busy node its teardown takes too long.
    """
    status = 0
    clean = False
    raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    visit_garbage_once()

    def skip_teardown() -> None:
        if clean:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(0)

    # Registered first, it is called last, after threads were joined.
    atexit.register(skip_teardown)
    try:
        with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
            runner.run(_with_signals(main, end_within))
        clean = True
    except* Fatal as group:
        print(f"devicelens: {visible(str(innermost(group)))}", file=sys.stderr)  # noqa: T201 -- the one clear line
        status = 1
    return status


async def _with_signals(main: Callable[[asyncio.Event], Actor], end_within: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked or loop.is_closed():
            os._exit(1)
        asked = True
        # Works although the event loop is blocked, or Python joins a thread at its exit.
        faulthandler.dump_traceback_later(end_within + _CUT_OFF, exit=True)
        loop.call_soon_threadsafe(end, number)

    def end(number: int) -> None:
        _log.info("ending", signal=signal.Signals(number).name)
        stop.set()
        loop.call_later(end_within, _leave, end_within)

    for number in (signal.SIGTERM, signal.SIGINT):
        # The event loop's own handlers would wait for a loop that may be blocked.
        signal.signal(number, on_signal)
    with _woken_by_signals(loop):
        await main(stop)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Make each signal wake the event loop.

    Python calls the handler of a signal that arrives just before the event loop waits, or in another thread,
    only when the main thread continues: without this, at the next event or timer.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.settimeout(0)
        writer.settimeout(0)
        loop.add_reader(reader, reader.recv, 64)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            loop.remove_reader(reader)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _leave(seconds: float) -> None:
    _log.warn("shutdown timed out, exiting", seconds=seconds)
    os._exit(1)


_ARENA_MAX: Final = -8
"""glibc's malloc.h: M_ARENA_MAX."""


def share_one_arena() -> None:
    """Make all threads allocate from one arena with glibc. Call it before there are threads.

    By default each thread has an arena, and no other thread can use what was freed in it: an answer of 16 MB
    that several threads handle in turn keeps 50 MiB more. Python's threads rarely allocate at the same time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)


_FREEZE_FROM: Final = 20_000
"""Objects that a full garbage collection visits in about 10 ms."""


def visit_garbage_once() -> None:
    """Make the garbage collector visit an object in one full collection at most.

    A full collection stops all threads, for 70 ms where it visits the mapping of 8000 devices. What survives
    one is data, which reference counts free; what needs the collector is short-lived: connections,
    errors. Modules are not visited at all: call `gc.disable()` before their import, this enables it.
    """
    gc.freeze()
    gc.callbacks.append(_freeze_survivors)
    gc.enable()


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2 and len(gc.get_objects(2)) > _FREEZE_FROM:
        gc.freeze()


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one: each connection is a descriptor."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_NOWHERE: Final = "unix:///nowhere"


@asynccontextmanager
async def grpc_runtime() -> AsyncGenerator[None]:
    """Keep the gRPC runtime while the context lasts, whatever channels and servers come and go.

    The runtime ends with the last of them. Starting it again takes descriptors, and gRPC aborts the process
    where none is left. A channel without calls does not connect.
    """
    async with grpc.aio.insecure_channel(_NOWHERE):
        yield
