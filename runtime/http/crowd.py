"""Who is connected, who of them is idle, and who has to go when there is no room. Does no I/O."""

import asyncio
from typing import Final

MOST: Final = 512
"""Connections at once. Each is a descriptor and some tens of kilobytes."""


def allowed(descriptors: int | None, most: int = MOST) -> int:
    """How many connections a process may have that may have so many descriptors (None: any number).

    Half are for what the process is for: the kubelet's sockets, history, devices.
    """
    return most if descriptors is None else max(1, min(most, descriptors // 2))


class Visitor:
    """One connection from its first moment on: a task that establishes it, then what came of that."""

    __slots__ = ("_task", "transport")

    def __init__(self, task: "asyncio.Task[None] | None" = None) -> None:
        self._task = task
        self.transport: asyncio.WriteTransport | None = None

    def end(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self._task is not None:
            self._task.cancel()


class Crowd:
    """At most `most` visitors. A visitor is idle unless a request of it is being answered."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._all: set[Visitor] = set()
        self._idle: dict[Visitor, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for one more."""
        return len(self._all) >= self.most

    def enter(self, visitor: Visitor) -> None:
        """One more, idle."""
        self._all.add(visitor)
        self._idle[visitor] = None

    def busy(self, visitor: Visitor) -> None:
        """A request of it has begun."""
        self._idle.pop(visitor, None)

    def idle(self, visitor: Visitor) -> None:
        """Its request was answered."""
        if visitor in self._all:
            self._idle[visitor] = None

    def leave(self, visitor: Visitor) -> None:
        """It is gone."""
        self._all.discard(visitor)
        self._idle.pop(visitor, None)

    def evict(self) -> bool:
        """End the one that has been idle for longest; False where nobody is idle."""
        visitor = next(iter(self._idle), None)
        if visitor is None:
            return False
        self.leave(visitor)
        visitor.end()
        return True

    def end(self) -> None:
        """End all of them."""
        for visitor in tuple(self._all):
            self.leave(visitor)
            visitor.end()
