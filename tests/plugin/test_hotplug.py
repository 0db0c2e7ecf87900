"""Real devices of the kernel, plugged and unplugged: seen by events alone, since no rescan follows."""

import fcntl
import os
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from harness.served import Served, configuration, serving
from plugin.discovery.uevents import kernel_socket
from plugin.serving.context import Pace
from simulator import SimulatedKubelet

NAME = "a.b/plugged"
LOOP_CTL_ADD, LOOP_CTL_REMOVE = 0x4C80, 0x4C81


def resource(discover: str, more: str = "") -> str:
    return f"- name: {NAME}\n  advertise_empty: true\n  discover: [{discover}]\n{more}"


Seen = Callable[[int], Awaitable[None]]
"""Waits until the kubelet counts so many healthy devices."""


@asynccontextmanager
async def watched(root: Path, text: str) -> AsyncGenerator[tuple[Seen, Served]]:
    """Serve a resource with rescans so rare that only events explain a change."""
    async with (
        SimulatedKubelet(root / "k") as kubelet,
        serving(root / "k", Path("/"), configuration(text), pace=Pace(rescan=1000.0)) as served,
    ):
        await served.until(lambda: served.status(NAME).streams == 1)
        # What begins to be followed is scanned once more: until then events need not be seen.
        await served.quiet(NAME)
        yield lambda count: kubelet.wait_until(lambda k: k.allocatable(NAME) == count), served


@pytest.fixture
def uevents() -> None:
    """Skips where the kernel sends this process no uevents."""
    try:
        kernel_socket().close()
    except OSError as error:
        pytest.skip(f"no socket for the kernel's uevents: {error}")


LoopDevice = tuple[Path, Callable[[], object], Callable[[], object]]
"""Its path, and how to add and to remove it."""


@pytest.fixture
def loop_device() -> Iterator[LoopDevice]:
    """A loop device that is not there yet."""
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
            lambda: fcntl.ioctl(control, LOOP_CTL_ADD, number),
            lambda: fcntl.ioctl(control, LOOP_CTL_REMOVE, number),
        )
    finally:
        with suppress(OSError):
            fcntl.ioctl(control, LOOP_CTL_REMOVE, number)
        os.close(control)


async def test_a_loop_device_is_seen_by_its_node(root: Path, loop_device: LoopDevice) -> None:
    path, add, remove = loop_device
    add()
    if not path.exists():
        pytest.skip("the kernel makes no nodes here: /dev is no devtmpfs")
    remove()
    async with watched(root, resource(f"glob: {{paths: [{path}]}}")) as (seen, served):
        for _ in range(2):
            add()
            await seen(1)
            (entry,) = served.status(NAME).advertised
            assert entry.known.device.attrs["type"] == "block"
            remove()
            await seen(0)


@pytest.mark.usefixtures("uevents")
async def test_a_loop_device_is_seen_by_its_uevent(root: Path, loop_device: LoopDevice) -> None:
    path, add, remove = loop_device
    source = f"sysfs: {{paths: [/sys/block/{path.name}], subsystems: [block]}}"
    async with watched(root, resource(source)) as (seen, _):
        add()
        await seen(1)
        remove()
        await seen(0)


INTERFACE = f"dl{os.getpid()}"
"""No other test's on this machine; a name has at most 15 characters."""


@contextmanager
def interface(name: str, *kind: str) -> Generator[None]:
    """A virtual interface in this network namespace, for a while."""
    command = ["ip", "link", "add", name, "type", *kind]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no program ip: apt-get install iproute2")
    if made.returncode:
        pytest.skip(f"no interface of type {kind[0]} can be made: {made.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)


@pytest.mark.usefixtures("uevents")
@pytest.mark.parametrize("kind", ["dummy", "veth"])
async def test_a_network_interface_is_seen(root: Path, kind: str) -> None:
    with interface(INTERFACE, kind):
        pass  # skips before a kubelet starts
    source = f"net: {{kinds: [virtual], interfaces: [{INTERFACE}]}}"
    async with watched(root, resource(source)) as (seen, _):
        with interface(INTERFACE, kind):
            await seen(1)
        await seen(0)


def up(name: str, *, state: str = "up") -> None:
    """Set an interface up, or down."""
    subprocess.run(["ip", "link", "set", name, state], check=True)


async def test_carrier_that_is_lost_makes_an_interface_unhealthy(root: Path) -> None:
    """No event reports it: a probe runs."""
    end, peer = f"{INTERFACE}a", f"{INTERFACE}b"
    with interface(end, "veth", "peer", "name", peer):
        up(end)
        up(peer)
        more = '  health: [{carrier: "{{ device.attrs.interface }}", interval: 200ms}]\n'
        source = f"net: {{kinds: [virtual], interfaces: [{end}]}}"
        async with watched(root, resource(source, more)) as (seen, served):
            await seen(1)
            for name, reason in ((peer, f"{end} has no carrier"), (end, f"{end} is down")):
                up(name, state="down")
                await seen(0)
                assert served.reasons(NAME) == {end: reason}
                up(name)
                await seen(1)
