"""The kernel's uevents: what it says when a device comes, goes or changes. Parsing alone.

The kernel's uevents by its netlink socket: one for a process, opened when somebody wants them.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.log import Episode, Log

MAX_BYTES: Final = 64 * 1024
"""The kernel sends 2 KiB of variables at most, and a header."""


@dataclass(frozen=True, slots=True)
class Uevent:
    """`action`: add, remove, change, bind, unbind, move, online, offline; `devpath` is below /sys."""

    action: str
    devpath: str
    subsystem: str


def parse(message: bytes) -> Uevent | None:
    """The event in a message of the kernel's; None for anything else, such as what udev sends on.

    kernel: `ACTION@DEVPATH`, then `KEY=VALUE` pieces, each ended by a NUL.
    """
    if len(message) > MAX_BYTES:
        return None
    header, *pieces = message.decode("utf-8", "replace").split("\0")
    action, at, devpath = header.partition("@")
    if not at or not action.isalpha() or not devpath.startswith("/"):
        return None
    values = {key: value for key, _, value in (piece.partition("=") for piece in pieces)}
    if values.get("ACTION") != action:
        return None
    return Uevent(action, devpath, values.get("SUBSYSTEM", ""))


NETLINK_KOBJECT_UEVENT: Final = 15
KERNEL_GROUP: Final = 1
"""The kernel's own events; what udev makes of them goes to another group."""
BUFFER: Final = 2 * 1024 * 1024
"""Bytes that may wait: a thousand functions that come at once are half a megabyte."""
AT_ONCE: Final = 256
"""Events taken in before anything else gets its turn."""
RETRY: Final = 30.0
"""Seconds between attempts to open the socket."""
AGAIN: Final = 1.0
"""Seconds after which another is opened in the place of one that failed: the next may fail at once too."""
CALM: Final = 60.0
"""Seconds for which sockets that fail one after another are not told of again."""

_SO_RCVBUFFORCE: Final = 33
_OF_NAMESPACES: Final = frozenset({"net", "infiniband"})
_WHOLE_RANGE: Final = "4294967295"

_log = Log("uevents")


class Uevents:
    """Calls whoever follows a subsystem when the kernel says something of it. Run `run()`."""

    def __init__(
        self,
        open_socket: Callable[[], socket.socket] | None = None,
        *,
        own: Path = Path("/proc/self"),
        first: Path = Path("/proc/1"),
    ) -> None:
        """`own`, `first`: the directories in /proc of this process and of the host's first one."""
        self._open_socket = open_socket or kernel_socket
        self._own = own
        self._first = first
        self._followers: dict[object, tuple[frozenset[str], Callable[[], None]]] = {}
        self._wanted = asyncio.Event()
        self._closed = asyncio.Event()
        self._open = False
        self._refused = Episode(_log, "no uevents, devices are looked for now and then")
        self._failed = Episode(_log, "the socket of uevents failed, another is opened", calm=CALM)

    @property
    def refused_because(self) -> str | None:
        """Why there are none, or not all; None while there are, and while nobody wants them."""
        return self._refused.reason

    @contextmanager
    def following(self, subsystems: frozenset[str], changed: Callable[[], None]) -> Generator[None]:
        """Call `changed` after each event of one of `subsystems`, and after events that were lost."""
        key = object()
        self._followers[key] = subsystems, changed
        self._wanted.set()
        if self._open:
            self._judge()
        try:
            yield
        finally:
            del self._followers[key]

    async def run(self) -> None:
        """Deliver events until cancelled. The socket is opened for the first follower, and stays open."""
        await self._wanted.wait()
        while True:
            try:
                kernel = self._open_socket()
            except OSError as error:
                self._refused.failed(error.strerror or str(error))
                await asyncio.sleep(RETRY)
                continue
            self._open = True
            self._judge()
            try:
                await self._read(kernel)
            finally:
                self._open = False
            await asyncio.sleep(AGAIN)

    def _judge(self) -> None:
        wanted = frozenset(name for names, _ in self._followers.values() for name in names)
        limit = restriction(wanted, self._own, self._first)
        if limit is None:
            self._refused.recovered()
        else:
            self._refused.failed(limit, level="info")

    async def _read(self, kernel: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._closed.clear()
        with kernel:
            kernel.setblocking(False)  # noqa: FBT003 -- socket's own
            loop.add_reader(kernel, self._take, kernel)
            try:
                # Between the first look and now something may have happened.
                self._tell(None)
                await self._closed.wait()
            finally:
                loop.remove_reader(kernel)

    def _take(self, kernel: socket.socket) -> None:
        """Take in what is there, and tell each follower once of all of it."""
        subsystems: set[str] = set()
        for _ in range(AT_ONCE):
            try:
                message, sender = kernel.recvfrom(MAX_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                # ENOBUFS: more came than was taken in. What it was is not known any more.
                if error.errno != errno.ENOBUFS:
                    self._failed.failed(error.strerror or str(error))
                    self._closed.set()
                self._tell(None)
                return
            # Anybody with the right may send to the group; the kernel alone has no port.
            if _is_kernel(sender):
                event = parse(message)
                if event is not None:
                    subsystems.add(event.subsystem)
        self._failed.recovered()
        if subsystems:
            self._tell(subsystems)

    def _tell(self, subsystems: set[str] | None) -> None:
        for wanted, changed in tuple(self._followers.values()):
            if subsystems is None or not wanted.isdisjoint(subsystems):
                changed()


def kernel_socket() -> socket.socket:
    """A socket that receives the kernel's uevents. Raises OSError where there can be none."""
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_KOBJECT_UEVENT)
    try:
        try:
            kernel.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, BUFFER)
        except PermissionError:
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        kernel.bind((0, KERNEL_GROUP))
    except OSError:
        kernel.close()
        raise
    return kernel


def restriction(subsystems: frozenset[str], own: Path, first: Path) -> str | None:
    """What is not told of `subsystems` although there is a socket; None where nothing is known of that.

    `own`, `first`: the directories in /proc of this process and of the host's first one. kernel: events of
    network interfaces go to their own network namespace alone; into a namespace that belongs to another
    user namespace than the first one go no others.
    """
    with suppress(OSError):
        if (own / "uid_map").read_text().split()[:3] != ["0", "0", _WHOLE_RANGE]:
            return "the kernel tells nothing in a user namespace of its own"
    with suppress(OSError):
        here, there = (own / "ns/net").stat(), (first / "ns/net").stat()
        if subsystems & _OF_NAMESPACES and not os.path.samestat(here, there):
            return "not in the host's network namespace, where the kernel tells of interfaces (hostNetwork)"
    return None


def _is_kernel(sender: object) -> bool:
    return isinstance(sender, tuple) and sender[0] == 0
