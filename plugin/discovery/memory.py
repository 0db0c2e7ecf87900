"""What sources remember of a host from look to look, shared by all that ask for the same.

A family's members each have sources of their own, and so has a resource before and after a reload;
what one of them saw must count for the others.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from plugin.discovery.host import HostRoot

S = TypeVar("S")


class Memory(Generic[S]):
    """A kind of source's memories; each lives as long as somebody uses it."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._hosts: WeakKeyDictionary[HostRoot, WeakValueDictionary[object, S]] = WeakKeyDictionary()

    def of(self, host: HostRoot, key: object) -> S:
        """The memory of `host` for whoever comes with this `key`. Keep it for as long as it is to last."""
        with self._lock:
            memories = self._hosts.setdefault(host, WeakValueDictionary())
            memory = memories.get(key)
            if memory is None:
                memory = memories[key] = self._make()
            return memory
