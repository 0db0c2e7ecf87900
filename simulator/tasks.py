"""Tasks that live and die together without a place in the code that waits for them all."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """A set of tasks; `cancel` ends them and tells what failed meanwhile."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._failures: list[BaseException] = []

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, awaited: bool = False) -> asyncio.Task[T]:
        """Run `coroutine` beside the others. `awaited`: its failure is its awaiter's affair."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard if awaited else self._done)
        return task

    async def cancel(self) -> None:
        """End all tasks and wait for them. Raises an ExceptionGroup of what failed since the start."""
        while self._running:
            running = tuple(self._running)
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            # Their callbacks run in the loop's next round.
            await asyncio.sleep(0)
        failures, self._failures = self._failures, []
        if failures:
            raise BaseExceptionGroup("tasks of the simulated kubelet failed", failures)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failures.append(error)
