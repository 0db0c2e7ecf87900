"""PreStartContainer: the configured program, run before a container starts, within the kubelet's patience."""

import asyncio
import shlex
from collections.abc import Sequence
from typing import Final

from daemon.log import Log
from daemon.text import visible
from plugin.core.allocation import Refusal, RefusedError
from plugin.core.plan import PreStartPlan
from plugin.core.prestart import Run
from plugin.discovery.command import Outcome, run_command
from plugin.discovery.offload import Offload, StuckError
from plugin.services.clock import Clock

KUBELET_LIMIT: Final = 29.0
"""Seconds for the whole call. kubelet: it gives up after 30."""
AT_ONCE: Final = 8
"""Programs of one resource that run at the same time."""
MARGIN: Final = 0.5
"""Seconds that killing a program and waiting for its end may take."""
OUTPUT: Final = 64 * 1024
TAIL: Final = 512
"""Characters of a failed program's output that are told: its last words say why."""

_log = Log("pre-start")


class PreStart:
    """Runs one resource's program."""

    def __init__(self, resource: str, plan: PreStartPlan, clock: Clock) -> None:
        self._resource = resource
        self._plan = plan
        self._clock = clock
        self._offload = Offload(AT_ONCE)
        self._room = asyncio.Semaphore(AT_ONCE)

    async def run(self, runs: Sequence[Run]) -> None:
        """Run them all, each at most for its time. Raises RefusedError for the first that fails.

        The others are not begun then; those that run already come to their end.
        """
        until = self._clock.steady() + KUBELET_LIMIT
        tasks = [asyncio.create_task(self._one(run, until)) for run in runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, run: Run, until: float) -> None:
        async with self._room:
            limit = min(self._plan.timeout, until - self._clock.steady() - MARGIN)
            started = self._clock.steady()
            if limit <= 0:
                raise self._refused(Refusal.DEADLINE_EXCEEDED, run, "there was no time left to run it")
            try:
                outcome = await self._offload.run(
                    lambda: run_command(run.command, limit=limit, most=OUTPUT, last=True),
                    limit=limit + MARGIN,
                )
            except OSError as error:
                raise self._refused(Refusal.FAILED_PRECONDITION, run, error.strerror or str(error)) from None
            except StuckError:
                raise self._refused(
                    Refusal.DEADLINE_EXCEEDED, run, f"it cannot be ended, {limit:g} s were not enough"
                ) from None
        if outcome.status is None:
            reason = f"still running after {limit:g} s, killed{_last_words(outcome)}"
            raise self._refused(Refusal.DEADLINE_EXCEEDED, run, reason)
        if outcome.status:
            reason = f"exit status {outcome.status}{_last_words(outcome)}"
            raise self._refused(Refusal.FAILED_PRECONDITION, run, reason)
        _log.info(
            "done",
            resource=self._resource,
            device=run.device,
            command=shlex.join(run.command),
            seconds=round(self._clock.steady() - started, 3),
        )

    def _refused(self, refusal: Refusal, run: Run, reason: str) -> RefusedError:
        device = f" for {visible(run.device)}" if run.device else ""
        command = visible(shlex.join(run.command), 200)
        return RefusedError(refusal, f"{self._resource}: pre_start{device}: {command}: {reason}")


def _last_words(outcome: Outcome) -> str:
    """What a program said last: of its standard error, else of its output."""
    said = (outcome.error.strip() or outcome.output.strip()).decode(errors="replace")
    if not said:
        return ""
    tail = said if len(said) <= TAIL else f"…{said[-TAIL:]}"
    return f": {visible(tail, 4 * TAIL)}"
