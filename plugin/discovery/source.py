"""What a source of devices is, and what a scan of one returns.

A source is one module of this package: the keys that a configuration sets for it (a `SourceConfig`), the
attributes of its devices, the host paths that it reads, and its scanner. `registry` lists all sources.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import ClassVar, Final, Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary, WeakValueDictionary

from msgspec import Struct, field
from msgspec.structs import replace

from plugin.discovery.host import HostRoot, node_of
from plugin.fields import ConfigStruct
from runtime.text import named, quoted

_LINKS: Final = frozenset({"/sys/bus", "/sys/class", "/sys/dev"})
"""Directories whose entries are links into /sys/devices."""
MOST_NOT_SELECTED: Final = 256
"""Candidates of one source that are kept with the reason; further ones are counted."""
STANDARD_DIRECTORIES: Final = ("/dev", "/sys/devices", "/proc/driver", "/proc/1/net", *sorted(_LINKS))
"""Host directories that every Linux has. A missing one means that it is not mounted below the host root."""


class Found(Struct, frozen=True, gc=False):
    """One device as a source found it on the host.

    `path` is a host path, empty if the device has none. `absent` says why a configured device is not
    there, and is empty if it is there. `nodes` are the host paths of its device nodes, in natural order.
    `sysfs` is its directory in /sys, where the search for its NUMA node starts, unless the source itself
    gives `numa_node`. `claim` identifies the physical device across all resources; if it is empty, `path`
    does.
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


class Mismatch(Struct, frozen=True):
    """Why a candidate is not selected: its values for a `key` of the source, and the expected ones.

    `found` None: the key selects by what names the candidate anyway. The text is made where it is shown.
    """

    key: str
    expected: Sequence[str]
    found: Sequence[str] | None = None

    def __str__(self) -> str:
        expected = named([quoted(text) for text in self.expected])
        expected = f"expected {'one of ' if len(self.expected) > 1 else ''}{expected}"
        if self.found is None:
            return f"{self.key}: {expected}"
        found = named([quoted(text) for text in self.found if text]) or "nothing"
        return f"{self.key}: found {found}, {expected}"


class NotSelected(Struct, frozen=True):
    """Candidates that are not selected: (name, reason) of the first ones; `more` are counted only."""

    first: tuple[tuple[str, Mismatch | str], ...] = ()
    more: int = 0


class Candidates:
    """Sorts the candidates of one scan: `found` are the selected ones."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self._not_selected: list[tuple[str, Mismatch | str]] = []
        self._more = 0

    def add(self, name: str, result: Found | Mismatch | str | None) -> None:
        """`result`: the device, or why it is not selected; None where there is no candidate (any more)."""
        if isinstance(result, Found):
            self.found.append(result)
        elif result is not None and len(self._not_selected) < MOST_NOT_SELECTED:
            self._not_selected.append((name, result))
        elif result is not None:
            self._more += 1

    @property
    def not_selected(self) -> NotSelected:
        """The others."""
        return NotSelected(tuple(self._not_selected), self._more)


def selected(result: Found | Mismatch | str | None) -> Found | None:
    """The device, if it is selected."""
    return result if isinstance(result, Found) else None


class Findings(Struct, frozen=True):
    """The result of a scan.

    `follow` are (host directory, fnmatch pattern of entries) pairs and `subsystems` are the kernel's uevent
    subsystems (`pci`, `usb`, `net`, …): their changes call for another scan. `notes` say why there may be
    fewer devices than expected, for example that a directory is missing. Entries of the directories in
    `entrywise` can be scanned one by one (`EntryScanner`). `not_selected` is for people alone.
    """

    found: tuple[Found, ...]
    follow: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    subsystems: frozenset[str] = frozenset()
    entrywise: frozenset[str] = frozenset()
    not_selected: NotSelected = NotSelected()


class Scanner(Protocol):
    """Scans a host for the devices of one configured source. Blocking."""

    def scan(self, host: HostRoot) -> Findings:
        """All devices that are there now. Raises OSError if they cannot be determined."""
        ...

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """The current state of one device, for Allocate; None if it is gone. Raises OSError.

        Allocate waits for it, so it reads the files of this one device only. An unchanged device is
        returned as the same object.
        """
        ...


@runtime_checkable
class EntryScanner(Protocol):
    """A scanner for which one directory entry is one device, whatever the other entries are."""

    def scan_entry(self, host: HostRoot, directory: str, name: str) -> Found | None:
        """The device of one entry; None if the entry is no device (any more).

        Raises OSError, and RescanNeededError if the entry alone does not decide.
        """
        ...


class RescanNeededError(Exception):
    """More than one entry may have changed: only a full scan is right."""


class Fault(Struct, frozen=True):
    """An error event of a device, such as an NVIDIA XID.

    `subjects` are claims (`pci:0000:3b:00.0`), device names or attribute values (a UUID); the fault
    concerns every device with one of them, and all devices if the set is empty. `at` is monotonic time.
    """

    subjects: frozenset[str]
    code: int
    text: str
    at: float


class FaultSource(Protocol):
    """Receives fault events from a driver, in a thread of its own."""

    def listen(
        self, report: Callable[[Fault], None], state: Callable[[str], None], stop: threading.Event
    ) -> None:
        """Call `report` for each fault until `stop` is set, which is checked at least once a second.

        `state` gets the reason while no events can be received (no library, no driver), and an empty text
        once they can; repeated calls with the same text are fine. Expected failures are not raised.
        """
        ...


class SourceConfig(ConfigStruct, frozen=True):
    """The keys that a configuration sets for one source. Every source has one subclass.

    Its docstring and those of its fields become the reference and the JSON Schema.
    """

    identifies_devices: ClassVar[bool] = True
    """Whether equal configurations always find the same physical devices."""
    checks_paths: ClassVar[bool] = False
    """Whether it finds a device only while the device's path and nodes exist."""
    reports_faults: ClassVar[bool] = False
    """Whether `fault_source` returns one; the probe `xid` needs it."""

    def scanner(self) -> Scanner:
        """A scanner for this configuration: the configuration itself, unless scans need a state."""
        return self

    def scan(self, host: HostRoot) -> Findings:
        """As `Scanner.scan`. Every source has this method, or a scanner of its own."""
        raise NotImplementedError

    def resolve(self, host: HostRoot, found: Found) -> Found | None:
        """As `Scanner.resolve`. By default a device stays the same while its path exists."""
        return same_path(host, found)

    def attributes(self) -> frozenset[str] | None:
        """The names of its devices' attributes; None if any name is possible."""
        raise NotImplementedError

    def host_paths(self) -> Iterable[str]:
        """The host paths, or patterns of them, that a scan reads."""
        raise NotImplementedError

    def fault_source(self, host: HostRoot) -> FaultSource | None:  # noqa: ARG002 -- for subclasses
        """A receiver of its devices' faults; None if the source has no fault events."""
        return None

    def links(self, host: HostRoot) -> Mapping[str, Mapping[str, int]]:  # noqa: ARG002 -- for subclasses
        """The strengths (from 1) of direct links between devices by both ends: a claim, path, or node.

        Blocking. What cannot be read is left out.
        """
        return {}

    def host_directories(self) -> frozenset[str]:
        """The standard directories that must be mounted below the host root for a scan to find devices."""
        needed = frozenset(
            directory
            for path in self.host_paths()
            for directory in STANDARD_DIRECTORIES
            if path == directory or path.startswith(f"{directory}/")
        )
        return needed | {"/sys/devices"} if needed & _LINKS else needed


def same_path(host: HostRoot, found: Found) -> Found | None:
    """`Scanner.resolve` for devices that are identified by their path alone."""
    if not found.path:
        return found
    try:
        node = node_of(host.stat(found.path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if node == found.rdev else replace(found, rdev=node)


def selection_notes(found: Sized, seen: int, kind: str, none: str) -> tuple[str, ...]:
    """Why a scan found nothing: none of `seen` devices of a kind is selected, or there are `none`."""
    if found:
        return ()
    return (f"none of {seen} {kind} is selected" if seen else none,)


S = TypeVar("S")


class Shared(Struct, Generic[S], weakref=True, eq=False):
    """A value that several threads use; hold `lock` meanwhile."""

    value: S
    lock: threading.Lock = field(default_factory=threading.Lock)


class SharedState(Generic[S]):
    """State that equal scanners share, across the resources of a family and across reloads.

    A state lives as long as a scanner holds it.
    """

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._hosts: WeakKeyDictionary[HostRoot, WeakValueDictionary[object, Shared[S]]] = WeakKeyDictionary()

    def of(self, host: HostRoot, key: object) -> Shared[S]:
        """The state for `key` on `host`. The caller keeps it for as long as it is needed."""
        with self._lock:
            states = self._hosts.setdefault(host, WeakValueDictionary())
            state = states.get(key)
            if state is None:
                state = states[key] = Shared(self._make())
            return state
