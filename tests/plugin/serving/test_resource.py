"""Resources against a simulated kubelet: what a device goes through, and what a kubelet does."""

import asyncio
import errno
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness.scripted import pod
from harness.served import Node, Serve, Served, configuration, plugin_sockets, plugin_stub
from kubelet.paths import socket_target
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from kubelet.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from plugin.devices.device import Device
from plugin.discovery.files import Files
from plugin.discovery.source import Findings
from plugin.serving.context import Pace, Patience
from plugin.serving.scan import DeviceScanner, Resolved, ScanResult
from simulator import AdmissionError, Faults, RegistrationFaults, SimulatedKubelet
from simulator.model import ContainerSpec, PodSpec

COLA = "myway5.com/cola"
"""Sources, ids and environment as the preset has them."""


def cola(name: str = COLA, more: str = "") -> str:
    """The preset's language, for a resource of any name; ids differ from one resource to the other."""
    own = "" if name == COLA else f"{name.rpartition('/')[2]}-"
    return (
        f"  - name: {name}\n    discover: [{{files: {{directory: /etc/colas}}}}]\n"
        f'    id: "{own}{{{{ device.name }}}}"\n    exclusive: {str(name == COLA).lower()}\n'
        f"    allocate: {{env: {{COLA_DEVICES: \"{{{{ ids | join(',') }}}}\"}}}}\n{more}"
    )


async def test_a_file_becomes_a_device_is_allocated_vanishes_and_comes_back(node: Node, colas: Path) -> None:
    async with node.serve(configuration(cola()), ready={COLA: 1}) as served:
        (colas / "b").touch()
        await node.allocatable(COLA, 2)
        await node.kubelet.add_pod(pod("p", COLA, 2))
        assert dict(node.kubelet.alloc_response("default", "p", "c", COLA).envs) == {"COLA_DEVICES": "a,b"}
        assert {holding.device for holding in node.kubelet.holdings()} == {"a", "b"}
        (colas / "a").unlink()
        await node.allocatable(COLA)
        assert node.kubelet.capacity(COLA) == 2
        assert served.reasons(COLA) == {
            "a": "not found any more",
            "b": "",
        }
        (colas / "a").touch()
        await node.allocatable(COLA, 2)
        await served.registered(COLA)
        tally = served.status(COLA).counters
        assert (tally.allocations, tally.allocation_errors, tally.registrations) == (1, 0, 1)
        assert dict(tally.transitions) == {"unhealthy": 1, "healthy": 1}
        assert tally.allocation_seconds.count == 1


@pytest.mark.parametrize("use_inotify", [True, False], ids=["inotify", "polling"])
async def test_every_change_is_followed(
    node: Node, colas: Path, use_inotify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if use_inotify:  # polling sees no socket that comes and goes between two polls
        monkeypatch.setattr("plugin.serving.registration.CHECK_INTERVAL", 3600.0)
    async with node.serve(
        configuration(cola()), use_inotify=use_inotify, pace=Pace(rescan=3600.0), ready={COLA: 1}
    ) as served:
        await node.kubelet.add_pod(pod("p", COLA))
        (colas / "b").touch()
        await node.allocatable(COLA, 2)
        await served.registered(COLA)
        for times, down_for in enumerate((0.0, 0.05, 0.3), start=2):
            await node.kubelet.restart(down_for=down_for)
            await node.allocatable(COLA, 2)
            await served.registered(COLA, times)  # a restart before the answer would be one less
            assert [h.device for h in node.kubelet.holdings()] == ["a"]
        (before,) = plugin_sockets(node.kubelet.root)
        before.unlink()
        await served.registered(COLA, 5)
        await node.allocatable(COLA, 2)
        (after,) = plugin_sockets(node.kubelet.root)
        assert after != before
        assert after.stat().st_mode & 0o777 == 0o600


async def test_a_kubelet_and_its_directory_come_and_go(root: Path, serve: Serve, colas: Path) -> None:
    async with serve(configuration(cola())) as served:
        for times in (1, 2):
            await served.until(lambda: "is not there" in served.status(COLA).state)
            assert not served.status(COLA).ready
            async with SimulatedKubelet(root / "k") as kubelet:
                await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
                await served.registered(COLA, times)
                await served.until(lambda: served.status(COLA).ready)
            await served.until(lambda: served.status(COLA).streams == 0)
            shutil.rmtree(root / "k")
        assert served.status(COLA).counters.registrations == 2


@pytest.mark.parametrize(
    "fault", [RegistrationFaults(error="INTERNAL"), RegistrationFaults(hang=True)], ids=["refuses", "hangs"]
)
async def test_a_registration_that_fails(node: Node, colas: Path, fault: RegistrationFaults) -> None:
    await node.kubelet.set_faults(Faults(registration=fault))
    async with node.serve(configuration(cola())) as served:
        await served.until(
            lambda: node.kubelet.calls["Register"] or served.status(COLA).state == "registering"
        )
        await served.until(lambda: fault.error in served.status(COLA).state)
        assert not served.status(COLA).ready
        # A call that hangs ends with the kubelet that hangs, long before its own limit.
        restart = asyncio.create_task(node.kubelet.restart())
        await node.kubelet.set_faults(Faults())
        await restart
        await node.allocatable(COLA)


@pytest.mark.usefixtures("colas")
async def test_a_deaf_socket(root: Path, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "devicelens")
    (root / "k/device-plugins").mkdir(parents=True)

    def logged() -> list[tuple[str, str]]:
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        return [line for line in lines if line[1].startswith("cannot register")]

    async with serve(configuration(cola())) as served:
        await served.until(lambda: "is not there" in served.status(COLA).state)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(str(root / "k/device-plugins/kubelet.sock"))
            await served.until(lambda: served.status(COLA).counters.registration_errors >= 1)
            assert "UNAVAILABLE" in served.status(COLA).state
            assert logged() == [] or served.status(COLA).counters.registration_errors > 6
            await served.until(lambda: served.status(COLA).counters.registration_errors >= 8)
        assert logged() == [("WARNING", "cannot register")]
        (root / "k/device-plugins/kubelet.sock").unlink()
        async with SimulatedKubelet(root / "k") as kubelet:
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            await served.registered(COLA)
    assert logged() == [("WARNING", "cannot register"), ("INFO", "cannot register: over")]


async def read(stream: Any) -> list[tuple[str, str]]:
    """The next list of a stream: ids with their health."""
    message = await stream.read()
    assert isinstance(message, pb.ListAndWatchResponse)
    return [(device.ID, device.health) for device in message.devices]


class SilentKubelet(pb_grpc.RegistrationServicer):
    """Accepts every registration, and opens no stream."""

    def __init__(self) -> None:
        self.endpoints: list[str] = []

    async def Register(self, request: pb.RegisterRequest, context: object) -> pb.Empty:  # noqa: N802 -- the API's name
        self.endpoints.append(request.endpoint)
        return pb.Empty()


async def test_a_registration_without_a_stream_is_repeated(root: Path, serve: Serve, colas: Path) -> None:
    (root / "k/device-plugins").mkdir(parents=True)
    kubelet = SilentKubelet()
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(kubelet, server)
    server.add_insecure_port(socket_target(root / "k/device-plugins/kubelet.sock"))
    await server.start()
    try:
        async with serve(configuration(cola()), patience=Patience(no_stream=0.2, lost_stream=0.1)) as served:
            await served.until(lambda: len(kubelet.endpoints) >= 3)
            assert served.status(COLA).state == "registered, but the kubelet has opened no stream"
            assert not served.status(COLA).ready
            # The socket served all along: registering again needs no other.
            assert len(set(kubelet.endpoints)) == 1
            async with plugin_stub(root / "k") as stub:
                stream = stub.ListAndWatch(pb.Empty())
                assert await read(stream) == [("a", "Healthy")]
                await served.until(lambda: served.status(COLA).ready)
                stream.cancel()
            # One attempt may have been under way when the stream opened.
            count = len(kubelet.endpoints) + 1
            await served.until(lambda: len(kubelet.endpoints) > count)
    finally:
        await server.stop(None)


async def test_every_stream_gets_every_update_and_begins_with_the_whole_list(node: Node, colas: Path) -> None:
    async with (
        node.serve(configuration(cola()), ready={COLA: 1}) as served,
        plugin_stub(node.kubelet.root) as stub,
    ):
        streams = [stub.ListAndWatch(pb.Empty()) for _ in range(3)]
        for stream in streams:
            assert await read(stream) == [("a", "Healthy")]
        assert served.status(COLA).streams == 4
        (colas / "b").touch()
        for stream in streams:
            assert await read(stream) == [("a", "Healthy"), ("b", "Healthy")]
        for stream in streams:
            stream.cancel()
        await served.until(lambda: served.status(COLA).streams == 1)
    await node.allocatable(COLA, 0)


async def test_a_resource_registers_with_its_first_device(node: Node, colas: Path) -> None:
    (colas / "a").unlink()
    text = configuration(cola(), cola("a.b/empty", "    advertise_empty: true\n"))
    async with node.serve(text) as served:
        await served.until(lambda: served.status("a.b/empty").registered)
        waiting = "waiting for devices: /etc/colas has no regular file"
        await served.until(lambda: served.status(COLA).state == waiting)
        assert served.status(COLA).ready
        await node.kubelet.wait_until(lambda k: k.resources() == ("a.b/empty",))
        (colas / "a").touch()
        await node.allocatable(COLA)
        (colas / "a").unlink()
        await node.allocatable(COLA, 0)
        assert node.kubelet.capacity(COLA) == 1
        await served.until(lambda: served.status(COLA).registered)
        await node.kubelet.restart()
        await node.kubelet.wait_until(lambda k: k.capacity(COLA) == 1)


async def test_a_defect_is_survived(node: Node, colas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, broken, defects = DeviceScanner.scan, {"a.b/broken"}, Counter[str]()

    def scan(self: DeviceScanner, not_before: float | None = None) -> ScanResult:
        if self.plan.name in broken:
            defects[self.plan.name] += 1
            raise KeyError("a defect")
        return real(self, not_before)

    monkeypatch.setattr(DeviceScanner, "scan", scan)
    text = configuration(cola("a.b/broken"), cola())
    async with node.serve(text, pace=Pace(restart=(0.05,), rescan=0.1), ready={COLA: 1}) as served:
        await served.until(lambda: "defect: KeyError: 'a defect'" in served.status("a.b/broken").state)
        assert not served.status("a.b/broken").ready
        broken.clear()
        await node.allocatable("a.b/broken")
        broken.add(COLA)
        await served.until(lambda: defects[COLA] >= 2)
        (colas / "b").touch()
        await node.allocatable("a.b/broken", 2)
        broken.clear()
        # It begins again, and nothing that was advertised has been forgotten.
        await node.allocatable(COLA, 2)


async def test_a_failed_scan_is_reported(node: Node, colas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node.serve(configuration(cola()), pace=Pace(retry=0.05), ready={COLA: 1}) as served:
        with monkeypatch.context() as broken:
            broken.setattr(Files, "scan", unreadable)
            broken.setattr(Files, "scan_entry", unreadable)
            (colas / "b").touch()
            failing = "discovery fails: /etc/colas: Permission denied"
            await served.until(lambda: failing in served.status(COLA).state)
            (colas / "a").unlink()
            await served.until(lambda: served.status(COLA).counters.discovery_errors >= 3)
            assert served.reasons(COLA) == {"a": ""}
            assert node.kubelet.allocatable(COLA) == 1
        await served.until(lambda: served.reasons(COLA) == {"a": "not found any more", "b": ""})
        over = "registered, streams open: 1, devices healthy: 1 of 2"
        await served.until(lambda: served.status(COLA).state == over)


def unreadable(_source: Files, *_: object) -> Findings:
    raise PermissionError(errno.EACCES, "Permission denied", "/etc/colas")


async def listed_again(kubelet: SimulatedKubelet) -> None:
    """Wait until the plugin has called List again."""
    calls = kubelet.calls["List"]
    await kubelet.wait_until(lambda k: k.calls["List"] > calls)


PATIENT = Pace(release=0.05, confirm=0.0)


async def test_a_tombstone_goes_after_its_pod(node: Node, colas: Path) -> None:
    for name in ("a", "b", "c"):
        (colas / name).touch()
    async with node.serve(configuration(cola()), pace=PATIENT, ready={COLA: 3}) as served:
        await node.kubelet.add_pod(pod("p", COLA, 3))
        for name in ("a", "b"):
            (colas / name).unlink()
        await node.allocatable(COLA)
        await outlast(node, served)
        assert node.kubelet.capacity(COLA) == 3
        # Nothing is allocated any more: the checkpoint keeps the entry of the ended pod.
        await node.kubelet.delete_pod("default", "p")
        served.hands.ahead += 120.0
        await node.kubelet.wait_until(lambda k: k.capacity(COLA) == 1)
        assert [entry.id for entry in served.status(COLA).advertised] == ["c"]


async def outlast(node: Node, served: Served) -> None:
    """Let every time limit pass, and the plugin compare what the kubelet says, several times."""
    for _ in range(4):
        served.hands.ahead += 120.0
        await listed_again(node.kubelet)


async def test_a_tombstone_of_an_init_container_stays_as_long_as_its_pod(node: Node, colas: Path) -> None:
    (colas / "b").touch()
    spec = PodSpec(
        name="p",
        containers=(ContainerSpec("c"),),
        init_containers=(ContainerSpec("i", resources={COLA: 1}),),
    )
    async with node.serve(configuration(cola()), pace=PATIENT, ready={COLA: 2}) as served:
        await node.kubelet.add_pod(spec)
        for name in ("a", "b"):
            (colas / name).unlink()
        await node.kubelet.wait_until(lambda k: k.allocatable(COLA) == 0)
        await node.kubelet.wait_until(lambda k: k.capacity(COLA) == 2)
        served.hands.ahead += 120.0
        await node.kubelet.wait_until(lambda k: k.capacity(COLA) == 1)  # the one that was free
        await outlast(node, served)
        assert node.kubelet.capacity(COLA) == 1


async def test_a_tombstone_stays_while_a_restarted_kubelet_has_no_pods(
    root: Path, serve: Serve, colas: Path
) -> None:
    async with SimulatedKubelet(root / "k", sync_delay=3600) as kubelet:
        node = Node(kubelet, serve)
        async with node.serve(configuration(cola()), pace=PATIENT, ready={COLA: 1}) as served:
            await kubelet.add_pod(pod("p", COLA))
            (colas / "a").unlink()
            await node.allocatable(COLA, 0)
            await listed_again(kubelet)
            await kubelet.restart()
            await served.registered(COLA, 2)
            await outlast(node, served)
            await kubelet.wait_until(lambda k: k.capacity(COLA) == 1)
        assert kubelet.violations == ()


async def test_a_tombstone_stays_while_the_kubelet_does_not_answer(node: Node, colas: Path) -> None:
    (colas / "b").touch()
    async with node.serve(configuration(cola()), pace=Pace(release=0.02), ready={COLA: 2}) as served:
        await node.kubelet.set_faults(Faults(error="UNAVAILABLE"))
        (colas / "a").unlink()
        await node.allocatable(COLA)
        for _ in range(2):
            served.hands.ahead += 120.0
            await listed_again(node.kubelet)
        assert node.kubelet.capacity(COLA) == 2
        await node.kubelet.set_faults(Faults())
        served.hands.ahead += 120.0
        await node.kubelet.wait_until(lambda k: k.capacity(COLA) == 1)


async def test_a_plugin_that_starts_adopts_held_devices(node: Node, colas: Path) -> None:
    (colas / "b").touch()
    async with node.serve(configuration(cola()), ready={COLA: 2}):
        await node.kubelet.add_pod(pod("p", COLA, 2))
    (colas / "a").unlink()
    async with node.serve(configuration(cola()), ready={COLA: 1}) as served:
        assert node.kubelet.capacity(COLA) == 2
        assert served.reasons(COLA) == {"a": "held by a pod, but not found", "b": ""}
    # Nothing is found at all, and the kubelet does not answer: its checkpoint has the ids.
    (colas / "b").unlink()
    await node.kubelet.set_faults(Faults(error="UNAVAILABLE"))
    async with node.serve(configuration(cola())) as served:
        await served.until(lambda: {e.id for e in served.status(COLA).advertised} == {"a", "b"})
        await served.until(lambda: served.status(COLA).registered)
    await node.kubelet.set_faults(Faults())


async def test_adoption_waits_for_the_kubelet(serve: Serve, colas: Path, root: Path) -> None:
    # Not the fixture's: it counts a missing id against a plugin that cannot have it.
    async with SimulatedKubelet(root / "k") as kubelet:
        (colas / "b").touch()
        async with serve(configuration(cola())):
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
            await kubelet.add_pod(pod("p", COLA))
        (held,) = {holding.device for holding in kubelet.holdings()}
        (colas / held).unlink()
        checkpoint = root / "k/device-plugins/kubelet_internal_checkpoint"
        checkpoint.write_bytes(b"{")
        kubelet.faults = Faults(error="UNAVAILABLE")
        async with serve(configuration(cola()), pace=Pace(release=0.05)) as served:
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            assert held not in served.reasons(COLA)
            kubelet.faults = Faults()
            await served.until(lambda: served.reasons(COLA).get(held) == "held by a pod, but not found")
            await kubelet.wait_until(lambda k: k.capacity(COLA) == 2)


async def test_adoption_from_the_checkpoint(root: Path, serve: Serve, colas: Path) -> None:
    async with SimulatedKubelet(root / "k", sync_delay=3600) as kubelet:
        async with serve(configuration(cola())):
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            await kubelet.add_pod(pod("p", COLA))
        (colas / "a").unlink()
        await kubelet.restart()
        async with serve(configuration(cola())) as served:
            await served.until(lambda: {e.id for e in served.status(COLA).advertised} == {"a"})
            await kubelet.wait_until(lambda k: k.capacity(COLA) == 1)
            assert kubelet.allocatable(COLA) == 0
        assert kubelet.violations == ()


async def test_allocate_resolves_devices(node: Node, colas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with node.serve(configuration(cola()), ready={COLA: 1}) as served:
        monkeypatch.setattr(DeviceScanner, "resolve", gone)
        with pytest.raises(AdmissionError, match="'a' is unhealthy"):
            await node.kubelet.add_pod(pod("p", COLA))
        assert served.status(COLA).counters.allocation_errors == 1


def gone(_scanner: DeviceScanner, devices: Sequence[Device]) -> Resolved:
    return Resolved((), tuple((device.id, "it is not there") for device in devices))


async def test_a_scan_that_hangs(node: Node, colas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(*_arguments: object) -> None:
        release.wait(60)

    async with node.serve(
        configuration(cola()), pace=Pace(scan_limit=0.1, retry=0.05), ready={COLA: 1}
    ) as served:
        with monkeypatch.context() as hanging:
            # Either a full scan follows or one of the new file alone.
            hanging.setattr(Files, "scan", hang)
            hanging.setattr(Files, "scan_entry", hang)
            (colas / "b").touch()
            await served.until(lambda: "an earlier call still hangs" in served.status(COLA).state)
        assert served.status(COLA).ready
        await node.kubelet.add_pod(pod("p", COLA))
        await node.kubelet.restart()
        await node.allocatable(COLA)
        release.set()
        await node.allocatable(COLA, 2)


@pytest.mark.usefixtures("colas")
async def test_conflicting_ids(root: Path, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    text = configuration(cola(), cola().replace(COLA, "a.b/twin").replace("true", "false"))
    async with SimulatedKubelet(root / "k") as kubelet, serve(text):
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1 and k.allocatable("a.b/twin") == 1)
    assert "two resources advertise the same device id" in caplog.messages
