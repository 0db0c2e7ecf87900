"""A node as the end-to-end tests see it: one small interface, whichever kubelet is behind it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Holding:
    """One device in one container, as the kubelet tells it."""

    resource: str
    device: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that asks for devices: `containers` maps names to counts by resource.

    `sidecars` are restartable init containers, `inits` ordinary ones that do not end, likewise.
    """

    name: str
    containers: dict[str, dict[str, int]]
    sidecars: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    inits: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    labels: dict[str, str] = field(default_factory=dict[str, str])


class Refused(Exception):  # noqa: N818 -- an answer, not a fault
    """The kubelet did not admit the pod; the message is its own."""


class Node(Protocol):
    """What a test may ask of a node. Everything waits until it is done, within a limit."""

    name: str
    root: Path
    """The kubelet's root directory."""
    namespace: str
    """Where pods are made."""
    limit: float
    """Seconds that this node may take for what a test waits for."""

    def source_flags(self, source: str) -> tuple[str, ...]:
        """The exporter's flags for the pod source `pods-api`, `apiserver` or `none`.

        Skips the test where this node lacks that source.
        """
        ...

    async def add_pod(self, pod: Pod) -> str:
        """Admit the pod; its devices are allocated afterwards. Returns its uid. Raises Refused."""
        ...

    async def uid(self, name: str) -> str:
        """The uid of a pod that is there."""
        ...

    async def end_pod(self, name: str) -> None:
        """Let the pod's containers end; the API server keeps the pod."""
        ...

    async def delete_pod(self, name: str) -> None:
        """Delete the pod; it is gone afterwards."""
        ...

    async def restart_kubelet(self) -> None:
        """Restart the kubelet; it may not answer yet afterwards. Skips the test where that is not allowed."""
        ...

    async def capacity(self, resource: str) -> int:
        """The node's capacity of a resource, 0 for an unknown one."""
        ...

    async def allocatable(self, resource: str) -> int:
        """How much of a resource can be given out, held or free."""
        ...

    async def holdings(self) -> frozenset[Holding]:
        """The kubelet's own truth of who holds what, this namespace's pods alone."""
        ...
