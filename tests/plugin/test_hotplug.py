"""Real devices of the kernel's, plugged and unplugged: seen by what the kernel says, long before a rescan."""

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from harness.served import Served, serving
from plugin.discovery.uevents import kernel_socket
from plugin.serving.context import Pace
from simulator import SimulatedKubelet

NAME = "a.b/plugged"
SEEN_WITHIN = 20.0
"""Seconds, where a rescan would need a hundred; what was needed is printed."""

LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81


def configuration(discover: str, more: str = "") -> str:
    return (
        f"version: 1\nresources:\n- name: {NAME}\n  advertise_empty: true\n  discover: [{discover}]\n{more}"
    )


@asynccontextmanager
async def watched(root: Path, host: Path, text: str) -> AsyncGenerator[tuple[SimulatedKubelet, Served]]:
    """Serve a configuration with rescans so rare that they are never what sees something."""
    async with (
        SimulatedKubelet(root / "k") as kubelet,
        serving(root / "k", host, text, pace=Pace(rescan=1000.0)) as served,
    ):
        await served.until(lambda: served.status(NAME).streams == 1)
        # What begins to be followed is looked at once more: until then nothing has to be seen by events.
        await served.quiet(NAME)
        yield kubelet, served


async def seen(kubelet: SimulatedKubelet, what: str, count: int, began: float) -> None:
    """The kubelet takes so many devices for healthy."""
    await kubelet.wait_until(lambda k: k.allocatable(NAME) == count, limit=SEEN_WITHIN)
    print(f"{what}: {1000 * (time.monotonic() - began):.1f} ms")


@pytest.fixture
def uevents() -> None:
    """Skips where the kernel does not tell this process of devices."""
    try:
        kernel_socket().close()
    except OSError as error:
        pytest.skip(f"no socket for the kernel's uevents: {error}")


@pytest.fixture
def loop_device() -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """A loop device that is not there yet, with how to add and to remove it."""
    # Others' tests may run on this machine at the same time.
    first = 1000 + 10 * (os.getpid() % 50_000)
    number = next(n for n in range(first, first + 10) if not Path(f"/dev/loop{n}").exists())
    try:
        control = os.open("/dev/loop-control", os.O_RDWR)
        fcntl.ioctl(control, LOOP_CTL_ADD, number)
        fcntl.ioctl(control, LOOP_CTL_REMOVE, number)
    except OSError as error:
        pytest.skip(f"the kernel adds no loop device: {error}")
    try:
        yield (
            Path(f"/dev/loop{number}"),
            lambda: void(fcntl.ioctl(control, LOOP_CTL_ADD, number)),
            lambda: void(fcntl.ioctl(control, LOOP_CTL_REMOVE, number)),
        )
    finally:
        with suppress(OSError):
            fcntl.ioctl(control, LOOP_CTL_REMOVE, number)
        os.close(control)


def void(_: object) -> None:
    """Nothing of interest."""


async def test_a_loop_device_is_seen_by_its_node(
    root: Path, loop_device: tuple[Path, Callable[[], None], Callable[[], None]]
) -> None:
    path, add, remove = loop_device
    add()
    if not path.exists():
        pytest.skip("the kernel makes no nodes here: /dev is no devtmpfs")
    remove()
    async with watched(root, Path("/"), configuration(f"glob: {{paths: [{path}]}}")) as (kubelet, served):
        for _ in range(2):
            began = time.monotonic()
            add()
            await seen(kubelet, "loop device, node", 1, began)
            (entry,) = served.status(NAME).advertised
            assert entry.known.device.attrs["type"] == "block"
            began = time.monotonic()
            remove()
            await seen(kubelet, "loop device, node gone", 0, began)


@pytest.mark.usefixtures("uevents")
async def test_a_loop_device_is_seen_by_its_uevent(
    root: Path, loop_device: tuple[Path, Callable[[], None], Callable[[], None]]
) -> None:
    path, add, remove = loop_device
    source = f"sysfs: {{paths: [/sys/block/{path.name}], subsystems: [block]}}"
    async with watched(root, Path("/"), configuration(source)) as (kubelet, _):
        began = time.monotonic()
        add()
        await seen(kubelet, "loop device, uevent", 1, began)
        began = time.monotonic()
        remove()
        await seen(kubelet, "loop device, uevent of its end", 0, began)


async def test_a_pseudo_terminal_is_seen(root: Path) -> None:
    probe, other = os.openpty()
    name = Path(os.ttyname(other))
    os.close(other)
    os.close(probe)
    if name.parent != Path("/dev/pts"):
        pytest.skip(f"pseudo-terminals are not in /dev/pts: {name}")
    # The kernel gives the lowest free number; others' terminals are none of ours.
    pattern = f"glob: {{paths: [{name}]}}"
    async with watched(root, Path("/"), configuration(pattern)) as (kubelet, _):
        began = time.monotonic()
        master, slave = os.openpty()
        try:
            if Path(os.ttyname(slave)) != name:
                pytest.skip("somebody else opened a terminal meanwhile")
            await seen(kubelet, "pseudo-terminal", 1, began)
        finally:
            os.close(slave)
            began = time.monotonic()
            os.close(master)
        await seen(kubelet, "pseudo-terminal gone", 0, began)


INTERFACE = f"dl{os.getpid()}"
"""No other test's on this machine; a name has at most 15 characters."""


@contextmanager
def interface(name: str, *kind: str) -> Generator[None]:
    """A virtual interface in this network namespace, for a while."""
    command = ["ip", "link", "add", name, "type", *kind]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no interface of type {kind[0]} can be made: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)


@pytest.mark.usefixtures("uevents")
@pytest.mark.parametrize("kind", ["dummy", "veth"])
async def test_a_network_interface_is_seen(root: Path, kind: str) -> None:
    try:
        with interface(INTERFACE, kind):
            pass
    except FileNotFoundError:
        pytest.skip("there is no program ip: apt-get install iproute2")
    source = f"net: {{kinds: [virtual], interfaces: [{INTERFACE}]}}"
    async with watched(root, Path("/"), configuration(source)) as (kubelet, _):
        began = time.monotonic()
        with interface(INTERFACE, kind):
            await seen(kubelet, f"{kind} interface", 1, began)
            began = time.monotonic()
        await seen(kubelet, f"{kind} interface gone", 0, began)


def up(name: str, *, state: str = "up") -> None:
    """Set an interface up, or down."""
    subprocess.run(["ip", "link", "set", name, state], check=True)


async def test_carrier_that_is_lost_makes_an_interface_unhealthy(root: Path) -> None:
    """Nothing tells of it: it is asked for."""
    end, peer = f"{INTERFACE}a", f"{INTERFACE}b"
    with interface(end, "veth", "peer", "name", peer):
        up(end)
        up(peer)
        more = '  health: [{carrier: "{{ device.attrs.interface }}", interval: 200ms}]\n'
        source = f"net: {{kinds: [virtual], interfaces: [{end}]}}"
        async with watched(root, Path("/"), configuration(source, more)) as (kubelet, served):
            await kubelet.wait_until(lambda k: k.allocatable(NAME) == 1)
            for name, reason in ((peer, f"{end} has no carrier"), (end, f"{end} is down")):
                began = time.monotonic()
                up(name, state="down")
                await seen(kubelet, "carrier lost, asked every 200 ms", 0, began)
                (entry,) = served.status(NAME).advertised
                assert entry.known.reason == reason
                began = time.monotonic()
                up(name)
                await seen(kubelet, "carrier is back", 1, began)


async def test_a_fifo_is_seen(root: Path, host: Path) -> None:
    (host / "run").mkdir()
    async with watched(root, host, configuration("glob: {paths: [/run/pipe*]}")) as (kubelet, _):
        for count in (1, 2):
            began = time.monotonic()
            try:
                os.mkfifo(host / f"run/pipe{count}")
            except OSError as error:
                if error.errno == errno.EPERM:
                    pytest.skip("this file system has no FIFOs")
                raise
            await seen(kubelet, "FIFO", count, began)
        began = time.monotonic()
        (host / "run/pipe1").unlink()
        await seen(kubelet, "FIFO gone", 1, began)
