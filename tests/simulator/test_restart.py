"""Restarts: what stays, what goes, and in which order, against what was recorded on a real kubelet."""

import asyncio
import re
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from asyncinotify import Inotify, Mask

from harness.recordings import RECORDINGS
from harness.scripted import R, pod, registered
from simulator import SimulatedKubelet
from simulator.devices import Device
from simulator.model import AdmissionError, Phase, PodSpec
from simulator.process import RootInUseError

TWO = (Device("a", numa=(0,)), Device("b", numa=(1,)))

DIRECTORIES = ("pod-resources", "device-plugins", "plugins_registry")
OF_INTEREST = (
    Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CLOSE_WRITE | Mask.CLOSE_NOWRITE
    | Mask.OPEN | Mask.ACCESS
)  # fmt: skip


class Events:
    """What inotify said of a kubelet's directories, in order, names of temporary files as N."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def add(self, directory: str, event: str, name: str) -> None:
        self.seen.append((directory, event, re.sub(r"^\d+$", "N", name)))

    def of(self, directory: str, *events: str) -> list[tuple[str, str]]:
        return [(e, name) for d, e, name in self.seen if d == directory and (not events or e in events)]


@contextmanager
def watched(root: Path) -> Generator[Events]:
    events = Events()
    with Inotify(sync_timeout=0) as inotify:
        for directory in DIRECTORIES:
            inotify.add_watch(root / directory, OF_INTEREST)
        yield events
        for event in inotify:
            assert event.watch is not None
            mask = event.mask & OF_INTEREST
            is_directory = ",ISDIR" if event.mask & Mask.ISDIR else ""
            (name,) = [m.name for m in Mask if m in mask and m.value.bit_count() == 1]
            events.add(Path(event.watch.path).name, str(name) + is_directory, str(event.name or ""))


def recorded(path: Path) -> Events:
    events = Events()
    for line in path.read_text().splitlines():
        _, directory, what, name = line.split(" ", 3)
        plain = what.removesuffix(",CLOSE").replace("CLOSE_NOWRITE,CLOSE,ISDIR", "CLOSE_NOWRITE,ISDIR")
        events.add(Path(directory).name, plain, name.replace("held.example_foo.sock", "plugin.sock"))
    return events


async def test_the_directories_see_what_was_recorded_on_a_real_kubelet(kubelet: SimulatedKubelet) -> None:
    async with registered(kubelet, R, TWO, socket="plugin.sock"):
        with watched(kubelet.root) as ours:
            await kubelet.restart()
    real = recorded(RECORDINGS / "inotify-kubelet-restart.txt")
    names = ("CREATE", "DELETE", "MOVED_FROM", "MOVED_TO")
    assert ours.of("pod-resources") == real.of("pod-resources")
    assert ours.of("pod-resources", "MOVED_TO") == [("MOVED_TO", "kubelet.sock")]
    # The two sockets go in the order in which the directory happens to give them.
    assert sorted(ours.of("device-plugins", "DELETE")) == sorted(real.of("device-plugins", "DELETE"))
    assert ours.of("device-plugins", "CREATE", "MOVED_TO") == real.of("device-plugins", "CREATE", "MOVED_TO")
    assert [kind for kind, _ in ours.of("device-plugins", *names)] == ["DELETE", "DELETE", "CREATE"]
    reads = ("OPEN", "ACCESS", "CLOSE_NOWRITE")
    assert ours.of("device-plugins", *reads)[:3] == real.of("device-plugins", *reads)
    directories = [(d, event) for d, event, _ in ours.seen if event in names]
    assert directories == sorted(directories, key=lambda seen: DIRECTORIES.index(seen[0]))


async def test_holders_stay_and_capacity_is_none_until_the_plugin_is_back(kubelet: SimulatedKubelet) -> None:
    async with registered(kubelet, R, TWO) as plugin:
        await kubelet.add_pod(pod())
        before = kubelet.holdings()
        await kubelet.restart()
        assert (kubelet.capacity(R), kubelet.allocatable(R), kubelet.resources()) == (0, 0, (R,))
        assert kubelet.holdings() == before
        await kubelet.wait_until(lambda _: plugin.streams == 0)
        # Its socket is gone, so it has to come back under a new one.
        assert not plugin.path.exists()
    async with registered(kubelet, R, TWO, socket="again.sock") as again:
        (held,) = before
        await kubelet.add_pod(pod("q"))
        assert {h.device for h in kubelet.holdings()} == {"a", "b"}
        with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
            await kubelet.add_pod(pod("r"))
        assert held in kubelet.holdings()
        assert again.allocated != []


@pytest.mark.parametrize("keeps", [False, True])
async def test_restored_devices_come_without_topology_unless_told_otherwise(root: Path, keeps: bool) -> None:
    async with (
        SimulatedKubelet(root, topology_after_restart=keeps) as kubelet,
        registered(kubelet, R, TWO) as plugin,
    ):
        await kubelet.add_pod(pod())

        def has_topology() -> bool:
            return kubelet.pod_resources().pod_resources[0].containers[0].devices[0].HasField("topology")

        assert has_topology()
        await kubelet.restart()
        assert has_topology() is keeps
        await plugin.stop()
        await plugin.serve()
        await plugin.register()
        await kubelet.wait_until(lambda k: k.allocatable(R) == 2)
        assert has_topology()


async def test_while_it_is_down_its_sockets_are_there_and_refuse(root: Path) -> None:
    kubelet = SimulatedKubelet(root, pods_api=True)
    await kubelet.start()
    sockets = kubelet.paths().values()
    assert len(sockets) == 3
    assert all(listens(path) for path in sockets)
    restarting = asyncio.create_task(kubelet.restart(down_for=3600))
    await kubelet.wait_until(lambda _: not any(listens(path) for path in sockets))
    assert all(stat.S_ISSOCK(path.stat().st_mode) for path in sockets)
    with pytest.raises(RootInUseError, match="another simulated kubelet runs here"):
        await SimulatedKubelet(root).start()
    adding = asyncio.create_task(kubelet.add_pod(PodSpec("p")))
    await asyncio.sleep(0)
    # Its end waits for nothing that is under way.
    async with asyncio.timeout(20):
        await kubelet.stop()
    assert not any(path.exists() for path in sockets)
    for task in (restarting, adding):
        with pytest.raises(RuntimeError, match="does not run"):
            await task


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


async def test_a_pod_that_comes_while_it_is_down_waits(kubelet: SimulatedKubelet) -> None:
    restarting = asyncio.create_task(kubelet.restart(down_for=0.2))
    await kubelet.wait_until(lambda k: not k.is_up)
    await kubelet.add_pod(PodSpec("late"))
    assert restarting.done()
    assert kubelet.pods()[0].phase is Phase.RUNNING


async def test_a_restart_goes_on_when_nobody_waits_for_it(kubelet: SimulatedKubelet) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(kubelet.restart(down_for=1.0), 0.05)
    assert not kubelet.is_up
    await kubelet.wait_until(lambda k: k.is_up)
    await kubelet.add_pod(PodSpec("without"))


async def test_regular_files_stay_and_every_socket_goes(kubelet: SimulatedKubelet) -> None:
    directory = kubelet.root / "device-plugins"
    (directory / "notes.txt").write_text("mine")
    (directory / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as orphan:
        orphan.bind(str(directory / "orphan.sock"))
        (directory / "link.sock").symlink_to(directory / "orphan.sock")
        await kubelet.restart()
    left = {path.name for path in directory.iterdir()}
    # A link to a socket that is gone already is no socket any more: it may stay, as with a kubelet.
    assert left - {"link.sock"} == {"notes.txt", "folder", "kubelet.sock"}


async def test_another_process_reads_the_checkpoint_and_forgets_pods_it_does_not_know(root: Path) -> None:
    async with SimulatedKubelet(root) as first, registered(first, R, TWO):
        await first.add_pod(pod())
    async with SimulatedKubelet(root) as second:
        assert (second.resources(), second.capacity(R)) == ((R,), 0)
        async with registered(second, R, TWO):
            await second.add_pod(pod("q", count=2))


@pytest.mark.parametrize("content", [b"", b"{", b'{"Data":{}}'])
async def test_a_corrupt_checkpoint_is_told_and_done_without(root: Path, content: bytes) -> None:
    told: list[str] = []

    def on_event(event: str, **_fields: object) -> None:
        told.append(event)

    (root / "device-plugins").mkdir()
    (root / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(content)
    async with SimulatedKubelet(root, on_event=on_event) as kubelet:
        assert kubelet.resources() == ()
    assert told == ["cannot read the checkpoint, starting without"]


class TestRoot:
    async def test_a_directory_in_use_is_refused(self, kubelet: SimulatedKubelet) -> None:
        with pytest.raises(RootInUseError, match="a kubelet serves"):
            await SimulatedKubelet(kubelet.root).start()
        assert kubelet.paths()["registration"].exists()

    async def test_stopping_removes_the_sockets_and_leaves_the_checkpoint(self, root: Path) -> None:
        async with SimulatedKubelet(root, pods_api=True) as kubelet, registered(kubelet, R, TWO):
            pass
        left = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
        assert left == {".simulator/lock", "device-plugins/kubelet_internal_checkpoint"}
        await kubelet.stop()

    @pytest.mark.parametrize("nodes", [0, 9])
    def test_no_kubelet_starts_with_such_numa_nodes(self, root: Path, nodes: int) -> None:
        with pytest.raises(ValueError, match=f"numa_nodes: found {nodes}, expected 1 to 8"):
            SimulatedKubelet(root, numa_nodes=nodes)

    def test_a_root_too_long_for_sockets_is_refused(self, root: Path) -> None:
        with pytest.raises(ValueError, match="too long for the sockets below it"):
            SimulatedKubelet(root / ("d" * 100))
