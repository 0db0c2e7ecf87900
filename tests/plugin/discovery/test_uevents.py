"""Uevents through a socket pair that stands in for the kernel's."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.discovery import uevents as module
from plugin.discovery.uevents import MAX_BYTES, Uevents, kernel_socket, restriction, subsystem_of


def message(subsystem: str, devpath: str = "/devices/x") -> bytes:
    return f"add@{devpath}\0ACTION=add\0DEVPATH={devpath}\0SUBSYSTEM={subsystem}\0".encode()


class Kernel:
    """Sockets whose messages come from whom the test says. `lose`: as after too many messages."""

    def __init__(self) -> None:
        self.opened = 0
        self.port = 0
        self.fails: OSError | None = None
        self._near: socket.socket | None = None

    def open(self) -> socket.socket:
        self.close()
        self.opened += 1
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._near = near
        kernel = self

        class Received(socket.socket):
            def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, Any]:
                if kernel.fails is not None:
                    error, kernel.fails = kernel.fails, None
                    raise error
                return super().recvfrom(bufsize, flags)[0], (kernel.port, 1)

        return Received(fileno=far.detach())

    def send(self, *messages: bytes) -> None:
        assert self._near is not None
        for each in messages:
            self._near.send(each)

    def close(self) -> None:
        if self._near is not None:
            self._near.close()


@asynccontextmanager
async def running(kernel: Kernel, **more: Path) -> AsyncGenerator[Uevents]:
    uevents = Uevents(kernel.open, **more)
    task = asyncio.create_task(uevents.run())
    try:
        yield uevents
    finally:
        task.cancel()
        await asyncio.wait({task})
        kernel.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_no_socket_is_opened_before_somebody_wants_it() -> None:
    kernel = Kernel()
    async with running(kernel) as uevents:
        await asyncio.sleep(0.02)
        assert kernel.opened == 0
        with uevents.following(frozenset({"usb"}), lambda: None):
            await until(lambda: kernel.opened)


async def test_who_follows_a_subsystem_is_told_once_of_a_storm() -> None:
    kernel, usb, pci = Kernel(), list[int](), list[int]()
    async with running(kernel) as uevents:
        with (
            uevents.following(frozenset({"usb"}), lambda: usb.append(1)),
            uevents.following(frozenset({"pci", "net"}), lambda: pci.append(1)),
        ):
            await until(lambda: usb and pci)  # whatever happened before the socket was there
            kernel.send(*[message("usb", f"/devices/{n}") for n in range(100)], b"garbage", message("block"))
            await until(lambda: len(usb) > 1)
            assert (len(usb), len(pci)) == (2, 1)
            kernel.send(message("net"))
            await until(lambda: len(pci) > 1)
        kernel.send(message("net"), message("usb"))
        await asyncio.sleep(0.02)
        assert (len(usb), len(pci)) == (2, 2)


async def test_only_the_kernel_is_believed() -> None:
    kernel, told = Kernel(), list[int]()
    async with running(kernel) as uevents:
        with uevents.following(frozenset({"usb"}), lambda: told.append(1)):
            await until(lambda: told)
            kernel.port = 4711
            kernel.send(message("usb"))
            await asyncio.sleep(0.02)
            assert len(told) == 1


async def test_after_messages_that_were_lost_everybody_looks() -> None:
    kernel, usb, pci = Kernel(), list[int](), list[int]()
    async with running(kernel) as uevents:
        with (
            uevents.following(frozenset({"usb"}), lambda: usb.append(1)),
            uevents.following(frozenset({"pci"}), lambda: pci.append(1)),
        ):
            await until(lambda: usb and pci)
            kernel.fails = OSError(errno.ENOBUFS, "No buffer space available")
            kernel.send(message("block"))
            await until(lambda: len(usb) == len(pci) == 2)
            assert kernel.opened == 1


async def test_a_socket_that_fails_is_opened_anew() -> None:
    kernel, told = Kernel(), list[int]()
    async with running(kernel) as uevents:
        with uevents.following(frozenset({"usb"}), lambda: told.append(1)):
            await until(lambda: told)
            kernel.fails = OSError(errno.EIO, "Input/output error")
            kernel.send(message("usb"))
            await until(lambda: kernel.opened == 2)
            kernel.send(message("usb"))
            await until(lambda: len(told) >= 3)


async def test_sockets_that_fail_one_after_another_are_not_opened_without_a_pause(
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
        kernel.fails = OSError(errno.EIO, "Input/output error")
        kernel.send(message("usb"))
        if kernel.opened >= 4:
            opened.set()
        return made

    uevents = Uevents(failing)
    task = asyncio.create_task(uevents.run())
    with uevents.following(frozenset({"usb"}), lambda: None):
        async with asyncio.timeout(20):
            await opened.wait()
    task.cancel()
    await asyncio.wait({task})
    kernel.close()
    assert pauses == [module.AGAIN] * (kernel.opened - 1)
    assert caplog.messages.count("uevent socket failed, opening a new one") == 1


async def test_a_kernel_without_a_socket_is_told_once_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY", 0.005)
    kernel, refusals = Kernel(), 5

    def refuse() -> socket.socket:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return kernel.open()

    uevents = Uevents(refuse)
    task = asyncio.create_task(uevents.run())
    told: list[int] = []
    with uevents.following(frozenset({"usb"}), lambda: told.append(1)):
        await until(lambda: uevents.refused_because)
        assert uevents.refused_because == "Operation not permitted"
        await until(lambda: told)
    task.cancel()
    await asyncio.wait({task})
    kernel.close()
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


def test_what_is_not_told_here_is_known(tmp_path: Path) -> None:
    own, near, far = processes(tmp_path)
    net, usb = frozenset({"net", "pci"}), frozenset({"usb"})
    assert restriction(net, own, near) is None
    assert "hostNetwork" in (restriction(net, own, far) or "")
    assert restriction(usb, own, far) is None
    assert restriction(net, own, tmp_path / "none") is None
    inside, _, _ = processes(tmp_path / "u", uid_map="0 100000 65536")
    assert "user namespace" in (restriction(usb, inside, far) or "")


async def test_it_is_said_once_that_interfaces_are_not_told_of(tmp_path: Path) -> None:
    own, _, far = processes(tmp_path)
    kernel = Kernel()
    async with running(kernel, own=own, first=far) as uevents:
        with uevents.following(frozenset({"usb"}), lambda: None):
            await until(lambda: kernel.opened)
            assert uevents.refused_because is None
            with uevents.following(frozenset({"net"}), lambda: None):
                refused = str(uevents.refused_because)
                assert "hostNetwork" in refused


def test_the_kernels_own_socket_opens_or_says_why() -> None:
    try:
        kernel = kernel_socket()
    except OSError as error:
        pytest.skip(f"no socket for the kernel's uevents: {error}")
    with kernel:
        assert kernel.getsockname()[1] == module.KERNEL_GROUP


LOOP = b"/devices/virtual/block/loop7"
ADD = b"add@" + LOOP + b"\0ACTION=add\0DEVPATH=" + LOOP + b"\0SUBSYSTEM=block\0SEQNUM=42\0"


def test_an_event_of_the_kernels() -> None:
    assert subsystem_of(ADD) == "block"
    assert subsystem_of(b"bind@/x\0ACTION=bind\0") == ""


def test_anything_else_is_none() -> None:
    for message in (
        b"",
        b"libudev\0\xfe\xed\xca\xfe",
        b"add@relative\0ACTION=add\0",
        b"add@/x\0ACTION=remove\0",
        b"add@/x",
        b"@/x\0ACTION=\0",
        b"add /x\0ACTION=add\0",
        ADD + b"x" * MAX_BYTES,
    ):
        assert subsystem_of(message) is None


@given(st.binary(max_size=300))
def test_no_message_is_too_odd(message: bytes) -> None:
    subsystem_of(message)
    subsystem_of(b"add@/x\0ACTION=add\0" + message)
