"""Adds and deletes pods during a fault: constant owners would hide wrong reports."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from simulator import SimulatedKubelet
from simulator.model import AdmissionError, ContainerError, ContainerSpec, PodSpec

GPU, SHARED = "faults.test/gpu", "faults.test/shared"
NAMES = tuple(("default" if number % 2 else "team", f"pod-{number}") for number in range(8))
STEADY = ("default", "steady")
"""A pod that keeps its devices: a report without it, or with another holder, is wrong."""


class Churn:
    """One thing after another happens to a node's pods, as a random walk that its seed repeats."""

    def __init__(self, kubelet: SimulatedKubelet, seed: int, pace: float = 0.1) -> None:
        """`pace`: seconds between two things."""
        self._kubelet = kubelet
        self._order = random.Random(seed)
        self.pace = pace
        self._ending = asyncio.Event()
        self.ended_at = 0.0
        self.added = 0

    @asynccontextmanager
    async def going_on(self) -> AsyncGenerator[None]:
        """While in the context. What has begun is awaited; `ended_at` is when it was to end."""
        self._ending.clear()
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self.ended_at = time.monotonic()
            self._ending.set()
            async with asyncio.timeout(60):
                await task

    async def _run(self) -> None:
        while not self._ending.is_set():
            # A kubelet that is down sees nothing end, so that nobody could say when it did.
            if self._kubelet.is_up:
                await self.step()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.pace):
                    await self._ending.wait()

    async def begin(self) -> None:
        """The pod that stays, and some others."""
        await self._kubelet.add_pod(_pod(STEADY, {GPU: 1, SHARED: 1}))
        for _ in range(4):
            await self.add()

    async def clear(self) -> None:
        """Every pod goes but the one that stays."""
        while key := self._any():
            with suppress(KeyError):
                await self._kubelet.delete_pod(*key)

    async def step(self) -> None:
        """A pod comes, goes, ends, or is followed by another of its name."""
        await self._order.choice((self.add, self.add, self.delete, self.complete, self.succeed))()

    async def add(self, key: tuple[str, str] | None = None) -> None:
        """A pod comes; its name may have been another's."""
        if key is None:
            taken = {(pod.spec.namespace, pod.spec.name) for pod in self._kubelet.pods() if pod.active}
            free = [name for name in NAMES if name not in taken]
            if not free:
                return
            key = self._order.choice(free)
        wish = self._order.choice(({GPU: 1}, {GPU: 2}, {SHARED: 2}, {GPU: 1, SHARED: 1}, {}))
        with suppress(AdmissionError, ContainerError, ValueError):
            await self._kubelet.add_pod(_pod(key, wish))
            self.added += 1

    async def delete(self) -> None:
        """A pod goes."""
        if key := self._any():
            with suppress(KeyError):
                await self._kubelet.delete_pod(*key)

    async def complete(self) -> None:
        """A pod's containers end."""
        if key := self._any():
            with suppress(KeyError):
                await self._kubelet.complete_pod(*key, failed=self._order.random() < 0.5)

    async def succeed(self) -> None:
        """A pod goes and another of its name comes at once, as a StatefulSet's does."""
        if key := self._any():
            with suppress(KeyError):
                await self._kubelet.delete_pod(*key)
            await self.add(key)

    def _any(self) -> tuple[str, str] | None:
        pods = [(pod.spec.namespace, pod.spec.name) for pod in self._kubelet.pods() if pod.active]
        changing = [key for key in pods if key != STEADY]
        return self._order.choice(changing) if changing else None


def _pod(key: tuple[str, str], wish: dict[str, int]) -> PodSpec:
    namespace, name = key
    return PodSpec(name, namespace, (ContainerSpec("main", wish),))
