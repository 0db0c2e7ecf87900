"""The kernel's uevents (a device was added, removed or changed), from one netlink socket per process."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from runtime.log import Episode, Log

MAX_BYTES: Final = 64 * 1024
"""More than a message of the kernel: a header and at most 2 KiB of variables."""


def subsystem_of(message: bytes) -> str | None:
    """The subsystem of the event in a message of the kernel; empty if it has none.

    None for anything else, such as udev's messages.

    kernel: `ACTION@DEVPATH`, then `KEY=VALUE` pieces, each terminated by NUL.
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
    return values.get("SUBSYSTEM", "")


NETLINK_KOBJECT_UEVENT: Final = 15
KERNEL_GROUP: Final = 1
"""The multicast group of the kernel; udev sends to another."""
BUFFER: Final = 2 * 1024 * 1024
"""Bytes of the receive buffer: a thousand functions that appear at once need half a megabyte."""
AT_ONCE: Final = 256
"""Events that are read before the event loop goes on."""
RETRY: Final = 30.0
"""Seconds between attempts to open the socket."""
AGAIN: Final = 1.0
"""Seconds between the failure of a socket and the next one."""
CALM: Final = 60.0
"""Seconds without a failure after which the failure is logged as over."""

_SO_RCVBUFFORCE: Final = 33
_OF_NAMESPACES: Final = frozenset({"net", "infiniband"})
_WHOLE_RANGE: Final = "4294967295"

_log = Log("uevents")


class Uevents:
    """Calls the followers of a subsystem when the kernel reports an event of it. Run `run()`."""

    def __init__(
        self,
        open_socket: Callable[[], socket.socket] | None = None,
        *,
        own: Path = Path("/proc/self"),
        first: Path = Path("/proc/1"),
    ) -> None:
        """`own`, `first`: the /proc directories of this process and of the host's process 1."""
        self._open_socket = open_socket or kernel_socket
        self._own = own
        self._first = first
        self._followers: dict[object, tuple[frozenset[str], Callable[[], None]]] = {}
        self._wanted = asyncio.Event()
        self._closed = asyncio.Event()
        self._open = False
        self._refused = Episode(_log, "no uevents, devices are found by periodic scans")
        self._failed = Episode(_log, "uevent socket failed, opening a new one", calm=CALM)

    @property
    def refused_because(self) -> str | None:
        """Why events are missing; None if none are missing, or without followers."""
        return self._refused.reason

    @contextmanager
    def following(self, subsystems: frozenset[str], changed: Callable[[], None]) -> Generator[None]:
        """Call `changed` after each event of one of `subsystems`, and after lost events."""
        key = object()
        self._followers[key] = subsystems, changed
        self._wanted.set()
        if self._open:
            self._report_restriction()
        try:
            yield
        finally:
            del self._followers[key]

    async def run(self) -> None:
        """Deliver events until cancelled. The first follower opens the socket."""
        await self._wanted.wait()
        while True:
            try:
                kernel = self._open_socket()
            except OSError as error:
                self._refused.failed(error.strerror or str(error))
                await asyncio.sleep(RETRY)
                continue
            self._open = True
            self._report_restriction()
            try:
                await self._read(kernel)
            finally:
                self._open = False
            await asyncio.sleep(AGAIN)

    def _report_restriction(self) -> None:
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
                # Something may have happened since the first scan.
                self._notify(None)
                await self._closed.wait()
            finally:
                loop.remove_reader(kernel)

    def _take(self, kernel: socket.socket) -> None:
        """Read the pending events, then call each follower once."""
        subsystems: set[str] = set()
        for _ in range(AT_ONCE):
            try:
                message, sender = kernel.recvfrom(MAX_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                # ENOBUFS: events were lost, of unknown subsystems.
                if error.errno != errno.ENOBUFS:
                    self._failed.failed(error.strerror or str(error))
                    self._closed.set()
                self._notify(None)
                return
            # Privileged processes can send to the group too; only the kernel has port 0.
            if _is_kernel(sender):
                subsystem = subsystem_of(message)
                if subsystem is not None:
                    subsystems.add(subsystem)
        self._failed.recovered()
        if subsystems:
            self._notify(subsystems)

    def _notify(self, subsystems: set[str] | None) -> None:
        for wanted, changed in tuple(self._followers.values()):
            if subsystems is None or not wanted.isdisjoint(subsystems):
                changed()


def kernel_socket() -> socket.socket:
    """A socket for the kernel's uevents. Raises OSError if it cannot be opened."""
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
    """Why events of `subsystems` do not reach this process's socket; None if they do, as far as known.

    `own`, `first`: the /proc directories of this process and of the host's process 1. kernel: events of
    network interfaces go to their own network namespace only, and a network namespace of another user
    namespace than the initial one gets no other events.
    """
    with suppress(OSError):
        if (own / "uid_map").read_text().split()[:3] != ["0", "0", _WHOLE_RANGE]:
            return "the kernel sends no events to other user namespaces"
    with suppress(OSError):
        here, there = (own / "ns/net").stat(), (first / "ns/net").stat()
        if subsystems & _OF_NAMESPACES and not os.path.samestat(here, there):
            return "not in the host's network namespace, which gets the events of interfaces (hostNetwork)"
    return None


def _is_kernel(sender: object) -> bool:
    return isinstance(sender, tuple) and sender[0] == 0
