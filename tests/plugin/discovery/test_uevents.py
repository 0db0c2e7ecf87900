"""Uevents through a socket pair that stands in for the kernel's."""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.waiting import until_holds
from plugin.discovery import uevents as module
from plugin.discovery.uevents import MAX_BYTES, Uevents, kernel_socket, restriction, subsystem_of


def message(subsystem: str, devpath: str = "/devices/x") -> bytes:
    return f"add@{devpath}\0ACTION=add\0DEVPATH={devpath}\0SUBSYSTEM={subsystem}\0".encode()


class Kernel:
    """Sockets whose messages come from the port that a test gives, or fail to be received."""

    def __init__(self) -> None:
        self.opened = 0
        self.results: deque[int | OSError] = deque()
        self._near: socket.socket | None = None

    def open(self) -> socket.socket:
        self.close()
        self.opened += 1
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._near = near
        results = self.results

        class Received(socket.socket):
            def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, Any]:
                content = super().recvfrom(bufsize, flags)[0]
                result = results.popleft()
                if isinstance(result, OSError):
                    raise result
                return content, (result, 1)

        return Received(fileno=far.detach())

    def send(self, *messages: bytes, result: int | OSError = 0) -> None:
        """`result`: the sender's port, 0 for the kernel, or the error of the receiver."""
        assert self._near is not None
        for each in messages:
            self.results.append(result)
            self._near.send(each)

    def close(self) -> None:
        if self._near is not None:
            self._near.close()


@asynccontextmanager
async def running(
    kernel: Kernel, open_socket: Callable[[], socket.socket] | None = None, **more: Path
) -> AsyncGenerator[Uevents]:
    uevents = Uevents(open_socket or kernel.open, **more)
    task = asyncio.create_task(uevents.run())
    try:
        yield uevents
    finally:
        task.cancel()
        await asyncio.wait({task})
        kernel.close()


async def test_followers_are_called_for_the_events_of_their_subsystems() -> None:
    kernel, usb, pci = Kernel(), list[int](), list[int]()
    async with running(kernel) as uevents:
        assert kernel.opened == 0, "no socket is open before the first follower"
        with uevents.following(frozenset({"pci", "net"}), lambda: pci.append(1)):
            with uevents.following(frozenset({"usb"}), lambda: usb.append(1)):
                await until_holds(lambda: usb and pci)  # for events from before the socket was open
                kernel.send(
                    *[message("usb", f"/devices/{n}") for n in range(100)], b"garbage", message("block")
                )
                await until_holds(lambda: len(usb) > 1)
                assert (len(usb), len(pci)) == (2, 1), "one call for many events"
                kernel.send(message("usb"), result=4711)  # not from the kernel
                kernel.send(message("net"))
                await until_holds(lambda: len(pci) > 1)
                assert len(usb) == 2
                kernel.send(message("block"), result=OSError(errno.ENOBUFS, "No buffer space available"))
                await until_holds(lambda: (len(usb), len(pci)) == (3, 3))
            kernel.send(message("usb"), message("net"))
            await until_holds(lambda: len(pci) == 4)
        assert (len(usb), kernel.opened) == (3, 1)


async def test_a_socket_that_fails_is_opened_anew() -> None:
    kernel, calls = Kernel(), list[int]()
    async with running(kernel) as uevents:
        with uevents.following(frozenset({"usb"}), lambda: calls.append(1)):
            await until_holds(lambda: calls)
            kernel.send(message("usb"), result=OSError(errno.EIO, "Input/output error"))
            await until_holds(lambda: kernel.opened == 2)
            kernel.send(message("usb"))
            await until_holds(lambda: len(calls) >= 3)


async def test_sockets_that_fail_one_after_another_are_opened_with_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    opened = asyncio.Event()
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("plugin.discovery.uevents.asyncio.sleep", paused)
    kernel = Kernel()

    def failing() -> socket.socket:
        made = kernel.open()
        kernel.send(message("usb"), result=OSError(errno.EIO, "Input/output error"))
        if kernel.opened >= 4:
            opened.set()
        return made

    async with running(kernel, failing) as uevents:
        with uevents.following(frozenset({"usb"}), lambda: None):
            async with asyncio.timeout(20):
                await opened.wait()
    assert pauses == [module.AGAIN] * (kernel.opened - 1)
    assert caplog.messages.count("uevent socket failed, opening a new one") == 1


async def test_a_kernel_without_a_socket_is_reported_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.005)
    kernel, refusals, calls = Kernel(), list[int](), list[int]()
    permitted = False

    def refuse() -> socket.socket:
        if permitted:
            return kernel.open()
        refusals.append(1)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    async with running(kernel, refuse) as uevents:
        with uevents.following(frozenset({"usb"}), lambda: calls.append(1)):
            await until_holds(lambda: len(refusals) >= 5)
            assert uevents.refused_because == "Operation not permitted"
            permitted = True
            await until_holds(lambda: calls)
    assert caplog.messages.count("no uevents, devices are found by periodic scans") == 1


def processes(root: Path, uid_map: str = "0 0 4294967295") -> tuple[Path, Path, Path]:
    """Directories as /proc has them: of this process, of one in its network namespace, of one elsewhere."""
    for name in ("own", "near", "far"):
        (root / name / "ns").mkdir(parents=True)
        (root / name / "uid_map").write_text(f"         {uid_map}\n")
    (root / "own/ns/net").touch()
    os.link(root / "own/ns/net", root / "near/ns/net")
    (root / "far/ns/net").touch()
    return root / "own", root / "near", root / "far"


def test_events_are_missing_in_other_namespaces(tmp_path: Path) -> None:
    own, near, far = processes(tmp_path)
    net, usb = frozenset({"net", "pci"}), frozenset({"usb"})
    assert restriction(net, own, near) is None
    assert "hostNetwork" in (restriction(net, own, far) or "")
    assert restriction(usb, own, far) is None
    assert restriction(net, own, tmp_path / "none") is None
    inside, _, _ = processes(tmp_path / "u", uid_map="0 100000 65536")
    assert "user namespace" in (restriction(usb, inside, far) or "")


async def test_missing_events_of_interfaces_are_reported(tmp_path: Path) -> None:
    own, _, far = processes(tmp_path)
    kernel = Kernel()
    async with running(kernel, own=own, first=far) as uevents:
        with uevents.following(frozenset({"usb"}), lambda: None):
            await until_holds(lambda: kernel.opened)
            assert uevents.refused_because is None
            with uevents.following(frozenset({"net"}), lambda: None):
                refused = str(uevents.refused_because)
                assert "hostNetwork" in refused


def test_the_socket_of_the_kernel() -> None:
    try:
        kernel = kernel_socket()
    except OSError as error:
        pytest.skip(f"no socket for the kernel's uevents: {error}")
    with kernel:
        assert kernel.getsockname()[1] == module.KERNEL_GROUP


LOOP = b"/devices/virtual/block/loop7"
ADD = b"add@" + LOOP + b"\0ACTION=add\0DEVPATH=" + LOOP + b"\0SUBSYSTEM=block\0SEQNUM=42\0"


@pytest.mark.parametrize(
    ("content", "subsystem"),
    [
        (ADD, "block"),
        (b"bind@/x\0ACTION=bind\0", ""),
        (b"", None),
        (b"libudev\0\xfe\xed\xca\xfe", None),
        (b"add@relative\0ACTION=add\0", None),
        (b"add@/x\0ACTION=remove\0", None),
        (b"add@/x", None),
        (b"@/x\0ACTION=\0", None),
        (b"add /x\0ACTION=add\0", None),
        (ADD + b"x" * MAX_BYTES, None),
    ],
    ids=range(10),
)
def test_the_subsystem_of_a_message(content: bytes, subsystem: str | None) -> None:
    assert subsystem_of(content) == subsystem


@given(st.binary(max_size=300))
def test_any_message_is_read(content: bytes) -> None:
    subsystem_of(content)
    subsystem_of(b"add@/x\0ACTION=add\0" + content)
