"""The callbacks of an event loop by their CPU time: a busy machine stretches other times."""

import asyncio
import gc
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from runtime.process import visit_garbage_once

LIMIT: Final = 0.030
"""Seconds of CPU of one callback that fail: three times the aim, for machines that are slower."""


class Longest:
    """The callback of the event loop that took the most CPU time since the last one was taken."""

    def __init__(self) -> None:
        self._longest = 0.0, ""

    def measured(self, run: Callable[[asyncio.Handle], None]) -> Callable[[asyncio.Handle], None]:
        """`run`, measured."""

        def measured(handle: asyncio.Handle) -> None:
            # A handle that is cancelled while it runs forgets its callback.
            called: Any = handle._callback  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > self._longest[0]:
                self._longest = took, name(called)

        return measured

    def take(self) -> tuple[float, str]:
        """Its seconds and its name."""
        found, self._longest = self._longest, (0.0, "")
        return found


def name(called: object) -> str:
    """The name of what a handle called: the coroutine of a task, or a function."""
    owner = getattr(called, "__self__", None)
    coroutine = owner.get_coro() if isinstance(owner, asyncio.Task) else called
    return getattr(coroutine, "__qualname__", None) or repr(called)


@contextmanager
def longest_callback(monkeypatch: pytest.MonkeyPatch) -> Generator[Longest]:
    """Measure every callback. Garbage is collected as in the process."""
    found = Longest()
    monkeypatch.setattr(asyncio.Handle, "_run", found.measured(asyncio.Handle._run))
    callbacks = list(gc.callbacks)
    visit_garbage_once()
    yield found
    gc.callbacks[:] = callbacks
