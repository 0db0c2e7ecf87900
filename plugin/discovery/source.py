"""What a source of devices is.

What sources remember of a host from look to look, shared by all that ask for the same.

A family's members each have sources of their own, and so has a resource before and after a reload;
what one of them saw must count for the others.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary, WeakValueDictionary

from plugin.devices.device import Found
from plugin.discovery.host import HostRoot, node_of


@dataclass(frozen=True, slots=True)
class Findings:
    """What a source found, and the host directories whose changes may change it.

    `follow` maps a directory to patterns (as fnmatch takes them) of the entries that matter.
    `notes` say why there may be less than one would think: a directory that is missing, for one.
    `subsystems` are those of the kernel's uevents (`pci`, `usb`, `net`, `infiniband`, …) that call for
    another look. Of a directory in `entrywise` a single entry can be looked at (`Entrywise`): a device's
    path is the directory and the entry's name there, and it depends on nothing else.
    """

    found: tuple[Found, ...]
    follow: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    subsystems: frozenset[str] = frozenset()
    entrywise: frozenset[str] = field(default=frozenset(), compare=False)


class Source(Protocol):
    """A place where devices are found."""

    def discover(self, host: HostRoot) -> Findings:
        """Everything that is there now. Blocking. Raises OSError where it cannot be known."""
        ...

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """`found` as it is at this moment, for Allocate; None where it is not there any more.

        Blocking, and quick: it looks at this one device. What cannot change while the path is there is
        given back as it is. Raises OSError.
        """
        ...


@runtime_checkable
class Entrywise(Protocol):
    """A source that can look at one entry of a directory, where another would look at everything."""

    def look_at(self, host: HostRoot, directory: str, name: str) -> Found | None:
        """The device that the entry is now; None where it is none. Blocking.

        Raises OSError, and MoreChangedError where the entry alone does not tell.
        """
        ...


class MoreChangedError(Exception):
    """More than one entry may have changed: everything is to be looked at."""


def same_path(host: HostRoot, found: Found) -> Found | None:
    """What `resolve` says of a device that is its path: as it was found, while the path is there."""
    if not found.path:
        return found
    try:
        node = node_of(host.stat(found.path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if node == found.rdev else replace(found, rdev=node)


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
