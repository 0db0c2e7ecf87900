"""Exclusive CPUs and pinned memory: the static CPU manager and the static memory manager, in small."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from simulator.topology import Hint, Mask, counted_hints

MEMORY: Final = "memory"


class PinningError(Exception):
    """Too little is left; says it in the kubelet's words."""


@dataclass(frozen=True, slots=True)
class PinnedMemory:
    """Bytes of one type pinned to NUMA nodes."""

    type: str
    size: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pinned:
    """What one container has to itself."""

    cpus: tuple[int, ...] = ()
    memory: tuple[PinnedMemory, ...] = ()


@dataclass(slots=True, eq=False)
class Pinning:
    """A node's CPUs and memory, and who has them.

    `cpus`: allocatable CPUs by NUMA node; `memory`: bytes by type and node. Either empty: that
    manager's policy is "none", and nothing of it is ever listed.
    """

    cpus: Mapping[int, Sequence[int]]
    memory: Mapping[str, Mapping[int, int]]
    _held: dict[str, dict[str, Pinned]] = field(default_factory=dict[str, dict[str, Pinned]])

    def cpu_hints(self, nodes: Sequence[int], request: int) -> tuple[Hint, ...]:
        """Masks with enough free CPUs."""
        free = self._free_cpus()
        counts = {node: len([c for c in ids if c in free]) for node, ids in self.cpus.items()}
        return counted_hints(nodes, {node: len(ids) for node, ids in self.cpus.items()}, counts, request)

    def memory_hints(self, nodes: Sequence[int], kind: str, request: int) -> tuple[Hint, ...]:
        """Masks with enough free memory of one type."""
        return counted_hints(nodes, self.memory.get(kind, {}), self._free_memory(kind), request)

    def pin(
        self, pod_uid: str, container: str, cpus: int, memory: Mapping[str, int], mask: Mask | None
    ) -> None:
        """Give a container its own, from the nodes of `mask` first. Raises PinningError."""
        if container in self._held.get(pod_uid, {}):
            return
        pinned = Pinned(
            self._take_cpus(cpus, mask) if cpus and self.cpus else (),
            tuple(
                self._take_memory(kind, size, mask) for kind, size in memory.items() if size and self.memory
            ),
        )
        self._held.setdefault(pod_uid, {})[container] = pinned

    def of(self, pod_uid: str, container: str) -> Pinned:
        """What a container has to itself."""
        return self._held.get(pod_uid, {}).get(container, Pinned())

    def release(self, pod_uid: str) -> None:
        """The pod ended."""
        self._held.pop(pod_uid, None)

    def _all(self) -> list[Pinned]:
        return [pinned for pod in self._held.values() for pinned in pod.values()]

    def _free_cpus(self) -> set[int]:
        every = {cpu for ids in self.cpus.values() for cpu in ids}
        return every.difference(*(pinned.cpus for pinned in self._all()))

    def _take_cpus(self, request: int, mask: Mask | None) -> tuple[int, ...]:
        free = self._free_cpus()
        if len(free) < request:
            raise PinningError(
                f"not enough cpus available to satisfy request: requested={request}, available={len(free)}"
            )
        home = {cpu: node for node, ids in self.cpus.items() for cpu in ids}
        wanted = sorted(free, key=lambda cpu: (mask is not None and home[cpu] not in mask, cpu))
        return tuple(sorted(wanted[:request]))

    def _free_memory(self, kind: str) -> dict[int, int]:
        free = dict(self.memory.get(kind, {}))
        for block in (m for pinned in self._all() for m in pinned.memory if m.type == kind):
            left = block.size
            for node in block.nodes:
                part = min(left, free.get(node, 0))
                free[node] = free.get(node, 0) - part
                left -= part
        return free

    def _take_memory(self, kind: str, size: int, mask: Mask | None) -> PinnedMemory:
        free = self._free_memory(kind)
        nodes: list[int] = []
        left = size
        for node in sorted(free, key=lambda n: (mask is not None and n not in mask, n)):
            if left <= 0:
                break
            if free[node] > 0:
                nodes.append(node)
                left -= free[node]
        if left > 0:
            raise PinningError(
                f"[memorymanager] insufficient {kind}: requested={size}, available={sum(free.values())}"
            )
        return PinnedMemory(kind, size, tuple(nodes))
