"""The life of a process: start its actors in one TaskGroup, end them on SIGTERM or SIGINT.

Each actor is a plain coroutine that runs for ever. One that fails ends the process: an actor
handles what the field throws itself, so what reaches this module is a defect or a Fatal.

How the C library keeps memory that is freed: glibc's way is for programs of many busy threads.

gRPC's engine, kept: it ends with the last channel or server of a process, and the next begins another.
"""

import asyncio
import atexit
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Any, Final

import grpc.aio

from runtime.log import Log
from runtime.text import visible

END_WITHIN: Final = 1.7
"""Seconds from the first signal to the end, whatever hangs; the contract says two."""

_CUT_OFF: Final = 0.1
"""Seconds after that at which not even the event loop is relied upon."""

_log = Log("process")

Actor = Coroutine[Any, Any, None]


class Fatal(Exception):  # noqa: N818 -- it is the end, not an error to handle
    """The process cannot do what it was asked for; the message says why, in one line."""


def innermost(error: BaseException) -> BaseException:
    """The first error that is no group of others: what a TaskGroup in a TaskGroup wraps."""
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
    """Until `run` is reached, have SIGTERM and SIGINT end the process with status 0: it has nothing to undo.

    For what takes its time before that. The kernel keeps from the first process of a container any signal
    that it does not handle, so the pod would only end with its grace period.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_at_once)


def run(main: Callable[[asyncio.Event], Actor], *, end_within: float = END_WITHIN) -> int:
    """Run `main(stop)` to its end and return the process's exit status.

    `stop` is set at the first SIGTERM or SIGINT; a second one, or `end_within` seconds, end the process
    at once with status 1; if that is because a thread or the event loop itself is blocked, its stack is
    written to standard error. Status 0: ended as asked. 1: a Fatal, told in one line on standard error.

    A process that has ended as asked leaves the rest to the kernel once its threads have ended: what the
    interpreter would still take apart is memory, which on a busy node can take longer than the end may.
    """
    status = 0
    clean = False

    def leave_the_rest() -> None:
        if clean:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(0)

    # First, for it is called after all others, and after threads were awaited.
    atexit.register(leave_the_rest)
    try:
        asyncio.run(_with_signals(main, end_within))
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
        # Neither a blocked event loop nor a thread that Python joins at its exit can hold this up.
        faulthandler.dump_traceback_later(end_within + _CUT_OFF, exit=True)
        loop.call_soon_threadsafe(end, number)

    def end(number: int) -> None:
        _log.info("ending", signal=signal.Signals(number).name)
        stop.set()
        loop.call_later(end_within, _leave, end_within)

    for number in (signal.SIGTERM, signal.SIGINT):
        # Not the loop's own handlers: those wait for a loop that may be what is blocked.
        signal.signal(number, on_signal)
    await main(stop)


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _leave(seconds: float) -> None:
    _log.warn("did not end in time, leaving", seconds=seconds)
    os._exit(1)


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


_NOWHERE: Final = "unix:///nowhere"


@asynccontextmanager
async def engine_kept() -> AsyncGenerator[None]:
    """Keep the engine for as long as the context lasts, whatever channels and servers come and go meanwhile.

    To begin another takes descriptors, and gRPC aborts the process where none is left. A channel over which
    nothing is called connects to nothing.
    """
    async with grpc.aio.insecure_channel(_NOWHERE):
        yield
