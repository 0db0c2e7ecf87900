"""Two plugins for one resource: an upgrade, an accident, a plugin of somebody else."""

import errno
import os
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from harness.served import Node, Served
from plugin.devices.device import HeldIds
from plugin.serving.context import Pace, RegistrationMethod
from plugin.serving.kubelet_state import KubeletState
from plugin.serving.reconciler import Reconciler
from plugin.serving.sockets import Lease, SocketNames
from simulator.devices import Device
from simulator.scripted import ScriptedPlugin

COLA = "myway5.com/cola"
CONFIGURATION = (
    f"version: 1\nresources:\n  - name: {COLA}\n    discover: [{{files: {{directory: /etc/colas}}}}]\n"
)


@pytest.mark.parametrize("method", ["socket", "registry"])
async def test_a_second_plugin_stands_by_and_takes_over(
    node: Node, colas: Path, method: RegistrationMethod
) -> None:
    async with AsyncExitStack() as end_of_first:
        first = await end_of_first.enter_async_context(
            node.serve(CONFIGURATION, method=method, ready={COLA: 1})
        )
        async with node.serve(CONFIGURATION, method=method) as second:
            await second.until(lambda: "another process on this node" in second.status(COLA).state)
            assert second.status(COLA).ready
            # Restarts change nothing between the two.
            await node.kubelet.restart()
            await node.kubelet.wait_until(lambda k: k.allocatable(COLA) == 1 and k.streams(COLA) == 1)
            await first.until(lambda: first.status(COLA).registered)
            assert not second.status(COLA).registered
            await end_of_first.aclose()
            await until_served(second)
            (colas / "b").touch()
            await node.allocatable(COLA, 2)


async def until_served(served: Served) -> None:
    """Wait until the kubelet has it registered with a stream."""
    await served.until(lambda: served.status(COLA).registered and served.status(COLA).streams == 1)


async def test_an_older_plugin_of_another_vendor_leaves(node: Node, colas: Path) -> None:
    async with ScriptedPlugin(node.kubelet.root, COLA, [Device("a")]) as foreign:
        await foreign.register()
        await node.allocatable(COLA)
        async with node.serve(CONFIGURATION, pace=Pace(verify=60.0)) as served:
            await until_served(served)
            # The kubelet takes the old stream's end for ours, and cuts ours too.
            await foreign.stop()
            await served.registered(COLA, 2)
            await node.allocatable(COLA)
            assert served.status(COLA).counters.registrations == 2


@pytest.mark.parametrize("killed", [False, True])
async def test_a_newer_plugin_of_another_vendor_leaves(
    node: Node, colas: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shorter than the pause before a check, as on a node: an answer from before that plugin proves nothing.
    monkeypatch.setattr("plugin.serving.kubelet_state.SHARED_FOR", 0.05)
    # One that ends in order removes its socket, which inotify reports; else a check finds it.
    pace = Pace(verify=0.3 if killed else 60.0, verify_again=0.1)
    async with node.serve(CONFIGURATION, pace=pace) as served:
        await until_served(served)
        async with ScriptedPlugin(node.kubelet.root, COLA, [Device("x"), Device("y")]) as foreign:
            await foreign.register()
            await node.allocatable(COLA, 2)
            if killed:
                foreign.end_streams()
                await node.allocatable(COLA)
                assert foreign.path.exists()
        await node.allocatable(COLA)
        await until_served(served)


async def test_a_newer_plugin_stays(
    node: Node, colas: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "devicelens")
    checks, check = [0], Reconciler._lasting_suspicion  # pyright: ignore[reportPrivateUsage] -- nothing else counts

    async def counted(reconciler: Reconciler) -> object:
        checks[0] += 1
        return await check(reconciler)

    monkeypatch.setattr(Reconciler, "_lasting_suspicion", counted)
    async with node.serve(CONFIGURATION, pace=Pace(verify=0.05, verify_again=0.01)) as served:
        await until_served(served)
        async with ScriptedPlugin(node.kubelet.root, COLA, [Device("x"), Device("y")]) as foreign:
            await foreign.register()
            await node.allocatable(COLA, 2)
            await served.until(lambda: "another plugin serves the resource" in caplog.messages)
            assert served.status(COLA).counters.registrations == 1
            # Without a healthy device there is no verdict.
            (colas / "a").unlink()
            await served.until(lambda: served.healthy(COLA) == [])
            before = checks[0]
            await served.until(lambda: checks[0] >= before + 4)
            assert "another plugin serves the resource: over" not in caplog.messages
            (colas / "a").touch()
            await served.until(lambda: served.healthy(COLA) == ["a"])
        await node.allocatable(COLA)
        await served.until(lambda: "another plugin serves the resource: over" in caplog.messages)


async def test_a_restart_during_a_check(
    node: Node, colas: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def answer_before_the_plugin_is_back(_state: KubeletState) -> HeldIds:
        nonlocal calls
        calls += 1
        if calls > 3:
            return {COLA: frozenset({"a"})}
        await node.kubelet.restart()
        await node.allocatable(COLA)
        return {}

    monkeypatch.setattr(KubeletState, "allocatable", answer_before_the_plugin_is_back)
    async with node.serve(CONFIGURATION, pace=Pace(verify=0.2, verify_again=0.01)) as served:
        await served.until(lambda: calls > 3)
        await until_served(served)
    assert "no device is allocatable, registering again" not in caplog.messages


async def test_renewals_back_off(node: Node, colas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KubeletState, "allocatable", nothing)
    began = time.monotonic()
    async with node.serve(CONFIGURATION, pace=Pace(verify=0.2, verify_again=0.01)) as served:
        await served.until(lambda: served.status(COLA).counters.registrations >= 4)
        # At once, then after 0.2 and after 0.4 s more.
        assert time.monotonic() - began > 0.6
        await node.allocatable(COLA)


async def nothing(_state: KubeletState) -> HeldIds:
    return {}


async def test_a_lease_has_one_holder_and_its_file_goes_with_it(root: Path) -> None:
    path = root / ".lease"
    first, second = Lease(path), Lease(path)
    await first.acquire(lambda: pytest.fail("nobody else has it"))
    assert not second.try_acquire()
    first.release()
    await second.acquire(lambda: pytest.fail("nobody else has it"))
    assert path.exists()
    second.release()
    assert not path.exists()
    second.release()


async def test_where_there_can_be_no_lease_it_says_so(root: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        await Lease(root / "none/.lease").acquire(lambda: None)
    assert caught.value.errno == errno.ENOENT


def names(directory: Path, resource: str = COLA) -> SocketNames:
    tokens = iter(f"{n:08d}" for n in range(100))
    return SocketNames(directory, resource, lambda: next(tokens))


def test_socket_names_say_whose_they_are_and_are_never_used_again(root: Path) -> None:
    made = names(root)
    one, two = made.fresh(), made.fresh()
    assert one != two
    assert one.name.startswith("devicelens-myway5.com_cola-")
    assert made.lease.name.startswith(".devicelens-myway5.com_cola-")
    assert names(root, "myway5.com/cola.").lease != made.lease


@pytest.mark.parametrize("length", [5, 40, 60, 75])
def test_socket_paths_fit_into_what_the_kernel_takes(length: int) -> None:
    directory = Path("/" + "d" * (length - 1))
    for resource in (COLA, "a.b/c", "x" * 200 + ".com/" + "y" * 63):
        assert len(bytes(names(directory, resource).fresh())) <= 107


def test_a_directory_that_leaves_no_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a path of at most"):
        names(Path("/" + "d" * 90))


def test_sockets_of_a_process_that_was_killed_are_removed_and_no_others(root: Path) -> None:
    made = names(root)
    stale, served = made.fresh(), made.fresh()
    foreign, file = root / "foreign.sock", root / made.fresh().name
    file.write_text("not a socket")
    with socket.socket(socket.AF_UNIX) as listens:
        listens.bind(str(served))
        listens.listen()
        for path in (stale, foreign):
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(path))
        assert made.remove_stale() == [stale]
    assert {path.name for path in root.iterdir()} == {served.name, foreign.name, file.name}
    assert os.path.lexists(served)


def test_a_stale_socket_vanishes_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = SocketNames(root, COLA, lambda: "00000000")
    stale = names.fresh()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(stale))
    real = Path.iterdir

    def removed_since(directory: Path) -> list[Path]:
        found = list(real(directory))
        stale.unlink()
        return found

    monkeypatch.setattr(Path, "iterdir", removed_since)
    assert names.remove_stale() == []
