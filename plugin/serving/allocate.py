"""Answers to Allocate and GetPreferredAllocation for one resource.

PreStartContainer: the configured program, run before a container starts, within the kubelet's patience.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from plugin.config.plan import PreStartPlan, ResourcePlan
from plugin.devices.allocation import (
    ContainerAnswer,
    Refusal,
    RefusedError,
    offers,
    prefer,
    request,
    unavailable,
)
from plugin.devices.claims import claim_of
from plugin.devices.device import Device
from plugin.devices.inventory import Inventory
from plugin.devices.rendering import RenderError, Run, runs
from plugin.discovery.command import Outcome, run_command
from plugin.names import natural
from plugin.serving.blocking import Offload, StuckError
from plugin.serving.host_files import Giving
from plugin.serving.status import Tally
from runtime.clock import Clock
from runtime.config_file import quoted
from runtime.log import Log
from runtime.text import visible

KUBELET_LIMIT: Final = 29.0
"""Seconds for the whole call. kubelet: it gives up after 30."""
AT_ONCE: Final = 8
"""Programs of one resource that run at the same time."""
MARGIN: Final = 0.5
"""Seconds that killing a program and waiting for its end may take."""
OUTPUT: Final = 64 * 1024
TAIL: Final = 512
"""Characters of a failed program's output that are told: its last words say why."""

_log_prestart = Log("pre-start")


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
        until = self._clock.monotonic() + KUBELET_LIMIT
        tasks = [asyncio.create_task(self._one(run, until)) for run in runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, run: Run, until: float) -> None:
        async with self._room:
            limit = min(self._plan.timeout, until - self._clock.monotonic() - MARGIN)
            started = self._clock.monotonic()
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
        _log_prestart.info(
            "done",
            resource=self._resource,
            device=run.device,
            command=shlex.join(run.command),
            seconds=round(self._clock.monotonic() - started, 3),
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


GIVE_LIMIT: Final = 5.0
"""Seconds for looking at what Allocate gives; a look that hangs refuses it."""
LINGER: Final = 30.0
"""Seconds for which a thread is kept for the next Allocate: pods come in bursts."""

_log = Log("allocate")


class Allocator:
    """Decides from the inventory as it is, and looks again at what it hands out."""

    def __init__(
        self,
        plan: ResourcePlan,
        *,
        inventory: Inventory,
        giving: Giving,
        clock: Clock,
        tally: Tally,
        write_down: Callable[[Mapping[str, str]], Awaitable[None]],
    ) -> None:
        """`write_down` is asked to before ids are given: the claims of what they stand for."""
        self._plan = plan
        self._inventory = inventory
        self._giving = giving
        self._clock = clock
        self._tally = tally
        self._write_down = write_down
        self._offload = Offload(linger=LINGER)
        self._pre_start = PreStart(plan.name, plan.pre_start, clock) if plan.pre_start is not None else None

    @property
    def prefers(self) -> bool:
        """Whether GetPreferredAllocation is offered."""
        return self._plan.prefer != "none"

    @property
    def pre_starts(self) -> bool:
        """Whether PreStartContainer is wanted before each start of a container."""
        return self._pre_start is not None

    async def allocate(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        """What each container gets. Raises RefusedError for all of them where one cannot be served."""
        started = self._clock.monotonic()
        self._inventory.name((i for ids in containers for i in ids), self._clock.instant())
        try:
            await self._write_down(self._claims(containers))
            answers = await self._answers(containers)
        except RefusedError as error:
            self._tally.allocation_errors += 1
            _log.warn("allocation refused", resource=self._plan.name, reason=str(error))
            raise
        finally:
            self._tally.allocation_seconds.observe(self._clock.monotonic() - started)
            self._inventory.name((i for ids in containers for i in ids), self._clock.instant())
        self._tally.allocations += len(answers)
        self._inventory.give((i for ids in containers for i in ids), self._clock.instant())
        for ids in containers:
            _log.info("allocated", resource=self._plan.name, devices=",".join(ids))
        return answers

    def preferred(self, available: Sequence[str], must_include: Sequence[str], size: int) -> tuple[str, ...]:
        """The ids of `available` that a container should best get."""
        offered = offers(self._inventory, available)
        total = dict.fromkeys([offer.device for offer in offered], self._plan.replicas or 1)
        return prefer(self._plan.prefer, offered, must_include, size, total)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Run what is to be run before a container with these ids starts. Raises RefusedError."""
        if self._pre_start is None or self._plan.pre_start is None:
            return
        try:
            devices = self._held(ids)
            with suppress(StuckError):
                devices = await self._offload.run(lambda: self._giving.current(devices), limit=GIVE_LIMIT)
            await self._pre_start.run(runs(self._plan.pre_start, self._plan.name, ids, devices))
        except RenderError as error:
            raise self._not_started(RefusedError(Refusal.INTERNAL, f"{self._plan.name}: {error}")) from None
        except RefusedError as error:
            raise self._not_started(error) from None
        self._tally.pre_starts += 1

    def _not_started(self, refused: RefusedError) -> RefusedError:
        self._tally.pre_start_errors += 1
        _log.warn("pre-start refused", resource=self._plan.name, reason=str(refused))
        return refused

    def _held(self, ids: Sequence[str]) -> tuple[Device, ...]:
        """The devices of a container that has them already, healthy or not: it may be starting again."""
        devices: dict[str, Device] = {}
        unknown: list[str] = []
        for i in dict.fromkeys(ids):
            known = self._inventory.find(i)
            if known is None:
                unknown.append(f"{quoted(i)} is unknown")
            else:
                devices[known.device.id] = known.device
        if unknown:
            raise unavailable(self._plan, unknown)
        return tuple(devices[i] for i in sorted(devices, key=natural))

    def _claims(self, containers: Sequence[Sequence[str]]) -> Mapping[str, str]:
        known = {i: self._inventory.find(i) for ids in containers for i in ids}
        found = {i: entry.device.found for i, entry in known.items() if entry is not None}
        claims = {i: claim_of(thing) for i, thing in found.items() if thing is not None}
        return {i: claim for i, claim in claims.items() if claim}

    async def _answers(self, containers: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        chosen = [request(self._inventory, self._plan, ids) for ids in containers]
        if not self._giving.needs_host(device for asked in chosen for device in asked.devices):
            return self._giving.give(chosen, on_host=False)
        try:
            return await self._offload.run(lambda: self._giving.give(chosen), limit=GIVE_LIMIT)
        except StuckError as error:
            raise unavailable(self._plan, [f"the host's files cannot be looked at: {error}"]) from None
