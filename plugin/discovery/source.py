"""What a source of devices is.

What sources remember of a host from look to look, shared by all that ask for the same.

A family's members each have sources of their own, and so has a resource before and after a reload;
what one of them saw must count for the others.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary, WeakValueDictionary

from plugin.discovery.host import HostRoot, node_of


@dataclass(frozen=True, slots=True)
class Found:
    """One device as a source found it on the host.

    `path` is the host's path, empty where the source knows none. `absent` says why a device that is
    written down is not there; empty where it is. `numa_node` is what the source itself was told.
    `nodes` are the device nodes that belong to it, host paths in natural order. `sysfs` is its directory
    below /sys, from which its NUMA node is looked for. `claim` names the physical thing for all
    resources of the process: two devices of the same claim are the same; empty: `path`, if any.
    """

    name: str
    path: str = ""
    attrs: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""
    numa_node: int | None = None
    rdev: tuple[str, int, int] | None = None
    """("char" or "block", major, minor) of a device node."""
    nodes: tuple[str, ...] = ()
    sysfs: str = ""
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a source found, and the host directories whose changes may change it.

    `follow` maps a directory to patterns (as fnmatch takes them) of the entries that matter.
    `notes` say why there may be less than one would think: a directory that is missing, for one.
    `subsystems` are those of the kernel's uevents (`pci`, `usb`, `net`, `infiniband`, …) that call for
    another look. Of a directory in `entrywise` a single entry can be looked at (`EntryScanner`): a device's
    path is the directory and the entry's name there, and it depends on nothing else.
    """

    found: tuple[Found, ...]
    follow: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    subsystems: frozenset[str] = frozenset()
    entrywise: frozenset[str] = field(default=frozenset(), compare=False)


class Scanner(Protocol):
    """A place where devices are found."""

    def scan(self, host: HostRoot) -> Findings:
        """Everything that is there now. Blocking. Raises OSError where it cannot be known."""
        ...

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """`found` as it is at this moment, for Allocate; None where it is not there any more.

        Blocking, and quick: it looks at this one device. What cannot change while the path is there is
        given back as it is. Raises OSError.
        """
        ...


@runtime_checkable
class EntryScanner(Protocol):
    """A source that can look at one entry of a directory, where another would look at everything."""

    def scan_entry(self, host: HostRoot, directory: str, name: str) -> Found | None:
        """The device that the entry is now; None where it is none. Blocking.

        Raises OSError, and RescanNeededError where the entry alone does not tell.
        """
        ...


class RescanNeededError(Exception):
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


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong with a device, as whoever listens for such events tells it.

    `subjects`: what the device is called: its claim (`pci:0000:3b:00.0`), its name, or the value of one of
    its attributes (a UUID); a device that is called by any of them is meant, by an empty set every device.
    `code` is the event's number, such as an XID; `text` says in words what happened; `at` is steady time.
    """

    subjects: frozenset[str]
    code: int
    text: str
    at: float


class FaultSource(Protocol):
    """Listens for faults: one for a process, in a thread of its own."""

    def listen(
        self, tell: Callable[[Fault], None], say: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Call `tell` for each fault until `stop` is set; looks at it at least once a second.

        `say` is called with why nothing can be heard (no library, no driver), and with an empty text once
        it works; as often as one likes, for it is told when it changes. Raises nothing that can be foreseen.
        """
        ...
