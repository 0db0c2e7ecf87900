"""Resources against a simulated kubelet: what a device goes through, and what a kubelet does."""

import asyncio
import errno
import shutil
import socket
import statistics
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness.served import Serve, Served, serving
from harness.stopwatch import Stopwatch
from kubelet.paths import socket_target
from kubelet.pb.deviceplugin.v1beta1 import api_pb2 as pb
from kubelet.pb.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from plugin.devices.device import Device
from plugin.devices.identify import IdentityChange
from plugin.discovery.files import Files
from plugin.discovery.source import Findings
from plugin.serving.context import Pace, Patience
from plugin.serving.scan import DeviceScanner, Resolved, ScanResult
from simulator import (
    AdmissionError,
    ContainerSpec,
    Faults,
    PodSpec,
    RegistrationFaults,
    SimulatedKubelet,
)
from simulator.scripted import ScriptedPlugin

COLA = "myway5.com/cola"
"""Sources, ids and environment as the preset has them."""


def configuration(*resources: str) -> str:
    return "version: 1\nresources:\n" + "".join(resources)


def cola(name: str = COLA, more: str = "") -> str:
    """The preset's language, for a resource of any name; ids differ from one resource to the other."""
    own = "" if name == COLA else f"{name.rpartition('/')[2]}-"
    return (
        f"  - name: {name}\n    discover: [{{files: {{directory: /etc/colas}}}}]\n"
        f'    id: "{own}{{{{ device.name }}}}"\n    exclusive: {str(name == COLA).lower()}\n'
        f"    allocate: {{env: {{COLA_DEVICES: \"{{{{ ids | join(',') }}}}\"}}}}\n{more}"
    )


def pod(name: str, **wishes: int) -> PodSpec:
    resources = {f"myway5.com/{resource}": count for resource, count in wishes.items()}
    return PodSpec(namespace="default", name=name, containers=(ContainerSpec("c", resources=resources),))


def reasons(served: Served) -> dict[str, str]:
    """Why each device of COLA is unhealthy; empty for those that are healthy."""
    return {entry.id: entry.known.reason for entry in served.status(COLA).advertised}


def sockets(root: Path) -> list[Path]:
    return sorted((root / "k/device-plugins").glob("devicelens-*.sock"))


async def test_a_file_becomes_a_device_is_allocated_vanishes_and_comes_back(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path
) -> None:
    (colas / "a").touch()
    async with serve(configuration(cola())) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        (colas / "b").touch()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
        await kubelet.add_pod(pod("p", cola=2))
        assert dict(kubelet.alloc_response("default", "p", "c", COLA).envs) == {"COLA_DEVICES": "a,b"}
        assert {holding.device for holding in kubelet.holdings()} == {"a", "b"}
        (colas / "a").unlink()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        assert kubelet.capacity(COLA) == 2
        assert reasons(served) == {
            "a": "not found any more",
            "b": "",
        }
        (colas / "a").touch()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
        await served.registered(COLA)
        tally = served.status(COLA).counters
        assert (tally.allocations, tally.allocation_errors, tally.registrations) == (1, 0, 1)
        assert dict(tally.transitions) == {"unhealthy": 1, "healthy": 1}
        assert tally.allocation_seconds.count == 1


async def test_a_kubelet_that_restarts_is_registered_with_at_once(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path
) -> None:
    (colas / "a").touch()
    async with serve(configuration(cola())):
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        await kubelet.add_pod(pod("p", cola=1))
        took: list[float] = []
        for down_for in (0.0, 0.05, 0.3):
            await kubelet.restart(down_for=down_for)
            up = Stopwatch()
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            took.append(up.seconds)
            assert [h.device for h in kubelet.holdings()] == ["a"]
        # A machine that is busy with others may be late once.
        assert statistics.median(took) < 0.5


async def test_a_kubelet_that_is_not_there_yet_is_waited_for(root: Path, serve: Serve, colas: Path) -> None:
    (colas / "a").touch()
    async with serve(configuration(cola())) as served:
        await served.until(lambda: "is not there" in served.status(COLA).state)
        assert not served.status(COLA).ready
        async with SimulatedKubelet(root / "k") as kubelet:
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            await served.until(lambda: served.status(COLA).ready)
        # It is gone for good: no stream is left, and it is waited for again.
        await served.until(lambda: served.status(COLA).streams == 0)
        async with SimulatedKubelet(root / "k") as kubelet:
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)


async def test_a_socket_that_is_removed_is_made_anew_under_another_name(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, root: Path
) -> None:
    (colas / "a").touch()
    async with serve(configuration(cola())) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        (before,) = sockets(root)
        before.unlink()
        await served.until(lambda: served.status(COLA).counters.registrations == 2)
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        (after,) = sockets(root)
        assert after != before
        assert after.stat().st_mode & 0o777 == 0o600


async def test_registering_goes_on_while_the_kubelet_hangs_or_refuses(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path
) -> None:
    (colas / "a").touch()
    await kubelet.set_faults(Faults(registration=RegistrationFaults(error="INTERNAL")))
    async with serve(configuration(cola())) as served:
        await served.until(lambda: served.status(COLA).counters.registration_errors >= 3)
        assert "INTERNAL" in served.status(COLA).state
        assert not served.status(COLA).ready
        await kubelet.set_faults(Faults())
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)


async def test_a_kubelet_s_socket_without_a_listener_is_reported_when_that_lasts(
    root: Path, serve: Serve, colas: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "devicelens")
    (colas / "a").touch()
    (root / "k/device-plugins").mkdir(parents=True)

    def told() -> list[tuple[str, str]]:
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        return [line for line in lines if line[1].startswith("cannot register")]

    async with serve(configuration(cola())) as served:
        await served.until(lambda: "is not there" in served.status(COLA).state)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(str(root / "k/device-plugins/kubelet.sock"))
            await served.until(lambda: served.status(COLA).counters.registration_errors >= 1)
            assert "UNAVAILABLE" in served.status(COLA).state
            assert told() == [] or served.status(COLA).counters.registration_errors > 6
            await served.until(lambda: served.status(COLA).counters.registration_errors >= 8)
        assert told() == [("WARNING", "cannot register")]
        (root / "k/device-plugins/kubelet.sock").unlink()
        async with SimulatedKubelet(root / "k") as kubelet:
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            await served.registered(COLA)
    assert told() == [("WARNING", "cannot register"), ("INFO", "cannot register: over")]


async def test_a_registration_that_hangs_holds_up_neither_the_streams_nor_a_restart(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path
) -> None:
    (colas / "a").touch()
    await kubelet.set_faults(Faults(registration=RegistrationFaults(hang=True)))
    async with serve(configuration(cola())) as served:
        await served.until(lambda: kubelet.calls["Register"] or served.status(COLA).state == "registering")
        # A hung call is given up when there is another kubelet, long before its own limit.
        restart = asyncio.create_task(kubelet.restart())
        await kubelet.set_faults(Faults())
        await restart
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)


async def read(stream: Any) -> list[tuple[str, str]]:
    """The next list of a stream: ids with their health."""
    message = await stream.read()
    assert isinstance(message, pb.ListAndWatchResponse)
    return [(device.ID, device.health) for device in message.devices]


class SilentKubelet(pb_grpc.RegistrationServicer):
    """Accepts every registration, and opens a stream only when it is told to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoints: list[str] = []

    async def Register(self, request: pb.RegisterRequest, context: object) -> pb.Empty:  # noqa: N802 -- the API's name
        self.endpoints.append(request.endpoint)
        return pb.Empty()


async def test_a_registration_without_a_stream_is_repeated_and_so_is_one_that_lost_it(
    root: Path, serve: Serve, colas: Path
) -> None:
    (colas / "a").touch()
    directory = root / "k/device-plugins"
    directory.mkdir(parents=True)
    kubelet = SilentKubelet(directory)
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(kubelet, server)
    server.add_insecure_port(socket_target(directory / "kubelet.sock"))
    await server.start()
    try:
        async with serve(configuration(cola()), patience=Patience(no_stream=0.2, lost_stream=0.1)) as served:
            await served.until(lambda: len(kubelet.endpoints) >= 3)
            assert served.status(COLA).state == "registered, but the kubelet has opened no stream"
            assert not served.status(COLA).ready
            # The socket served all along: registering again needs no other.
            assert len(set(kubelet.endpoints)) == 1
            target = socket_target(directory / kubelet.endpoints[0])
            async with grpc.aio.insecure_channel(target) as channel:
                stream = pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
                assert await read(stream) == [("a", "Healthy")]
                await served.until(lambda: served.status(COLA).ready)
                # One may have been on its way when the stream opened, and no other came after it.
                count = len(kubelet.endpoints) + 1
                await asyncio.sleep(0.7)
                assert len(kubelet.endpoints) <= count
                stream.cancel()
            await served.until(lambda: len(kubelet.endpoints) > count)
    finally:
        await server.stop(None)


async def test_every_stream_gets_every_update_and_begins_with_the_whole_list(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, root: Path
) -> None:
    (colas / "a").touch()
    async with serve(configuration(cola())) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        async with grpc.aio.insecure_channel(socket_target(sockets(root)[0])) as channel:
            stub = pb_grpc.DevicePluginStub(channel)
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
    await kubelet.wait_until(lambda k: k.allocatable(COLA) == 0)


async def test_no_devices_means_waiting_and_being_ready_and_once_registered_always_registered(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path
) -> None:
    text = configuration(cola(), cola("a.b/empty", "    advertise_empty: true\n"))
    async with serve(text) as served:
        await served.until(lambda: served.status("a.b/empty").registered)
        waiting = "waiting for devices: /etc/colas has no regular file"
        await served.until(lambda: served.status(COLA).state == waiting)
        assert served.status(COLA).ready
        await kubelet.wait_until(lambda k: k.resources() == ("a.b/empty",))
        (colas / "a").touch()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        (colas / "a").unlink()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 0)
        assert kubelet.capacity(COLA) == 1
        await served.until(lambda: served.status(COLA).registered)
        await kubelet.restart()
        await kubelet.wait_until(lambda k: k.capacity(COLA) == 1)


async def test_a_defect_in_one_resource_leaves_the_others_alone_and_is_survived(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (colas / "a").touch()
    look, look_at, broken = DeviceScanner.scan, DeviceScanner.scan_entries, {"a.b/broken"}

    def looking(self: DeviceScanner, not_before: float | None = None) -> ScanResult:
        if self.plan.name in broken:
            raise KeyError("a defect")
        return look(self, not_before)

    def looking_at(self: DeviceScanner, entries: Iterable[tuple[str, str]]) -> IdentityChange | None:
        if self.plan.name in broken:
            raise KeyError("a defect")
        return look_at(self, entries)

    monkeypatch.setattr(DeviceScanner, "scan", looking)
    monkeypatch.setattr(DeviceScanner, "scan_entries", looking_at)
    text = configuration(cola("a.b/broken"), cola())
    async with serve(text, pace=Pace(restart=(0.05,))) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        await served.until(lambda: "defect: KeyError: 'a defect'" in served.status("a.b/broken").state)
        assert not served.status("a.b/broken").ready
        broken.clear()
        await kubelet.wait_until(lambda k: k.allocatable("a.b/broken") == 1)
        broken.add(COLA)
        (colas / "b").touch()
        await kubelet.wait_until(lambda k: k.allocatable("a.b/broken") == 2)
        broken.clear()
        # It begins again, and nothing that was advertised has been forgotten.
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)


async def test_discovery_that_fails_changes_nothing_and_is_reported(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (colas / "a").touch()
    async with serve(configuration(cola()), pace=Pace(retry=0.05)) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        with monkeypatch.context() as broken:
            broken.setattr(Files, "scan", unreadable)
            broken.setattr(Files, "scan_entry", unreadable)
            (colas / "b").touch()
            failing = "discovery fails: /etc/colas: Permission denied"
            await served.until(lambda: failing in served.status(COLA).state)
            (colas / "a").unlink()
            await served.until(lambda: served.status(COLA).counters.discovery_errors >= 3)
            assert reasons(served) == {"a": ""}
            assert kubelet.allocatable(COLA) == 1
        await served.until(lambda: reasons(served) == {"a": "not found any more", "b": ""})
        assert served.status(COLA).state == "registered, streams open: 1, devices healthy: 1 of 2"


def unreadable(_source: Files, *_asked: object) -> Findings:
    raise PermissionError(errno.EACCES, "Permission denied", "/etc/colas")


async def test_a_tombstone_is_dropped_when_its_pod_is_gone_and_not_before(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path
) -> None:
    for name in ("a", "b", "c"):
        (colas / name).touch()
    async with serve(configuration(cola()), pace=Pace(release=0.05)) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 3)
        await kubelet.add_pod(pod("p", cola=3))
        for name in ("a", "b"):
            (colas / name).unlink()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        served.hands.ahead += 120.0
        asked = kubelet.calls["List"]
        await kubelet.wait_until(lambda k: k.calls["List"] >= asked + 2)
        assert kubelet.capacity(COLA) == 3
        await kubelet.delete_pod("default", "p")
        # The next allocation rewrites the checkpoint, which knows the ended pod until then.
        await kubelet.add_pod(pod("q", cola=1))
        served.hands.ahead += 120.0
        await kubelet.wait_until(lambda k: k.capacity(COLA) == 1)
        assert [entry.id for entry in served.status(COLA).advertised] == ["c"]


async def test_a_tombstone_is_kept_while_the_kubelet_does_not_say_who_holds_what(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path
) -> None:
    (colas / "a").touch()
    (colas / "b").touch()
    async with serve(configuration(cola()), pace=Pace(release=0.02)) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
        await kubelet.set_faults(Faults(error="UNAVAILABLE"))
        (colas / "a").unlink()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        served.hands.ahead += 120.0
        await asyncio.sleep(0.3)
        assert kubelet.capacity(COLA) == 2
        await kubelet.set_faults(Faults())
        served.hands.ahead += 120.0
        await kubelet.wait_until(lambda k: k.capacity(COLA) == 1)


async def test_what_a_pod_holds_from_before_is_never_dropped_by_a_plugin_that_starts(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path
) -> None:
    (colas / "a").touch()
    (colas / "b").touch()
    async with serve(configuration(cola())):
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
        await kubelet.add_pod(pod("p", cola=2))
    (colas / "a").unlink()
    async with serve(configuration(cola())) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        assert kubelet.capacity(COLA) == 2
        assert reasons(served) == {
            "a": "held by a pod, but not found",
            "b": "",
        }
    # Nothing is found at all, and the kubelet says nothing: its checkpoint does.
    (colas / "b").unlink()
    await kubelet.set_faults(Faults(error="UNAVAILABLE"))
    async with serve(configuration(cola())) as served:
        await served.until(lambda: {e.id for e in served.status(COLA).advertised} == {"a", "b"})
        await served.until(lambda: served.status(COLA).registered)
    await kubelet.set_faults(Faults())


async def test_what_a_pod_holds_from_before_is_taken_over_as_soon_as_the_kubelet_reports_it(
    serve: Serve, colas: Path, root: Path
) -> None:
    # Not the fixture's, which counts it against the plugin that nobody had told it.
    async with SimulatedKubelet(root / "k") as kubelet:
        (colas / "a").touch()
        (colas / "b").touch()
        async with serve(configuration(cola())):
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
            await kubelet.add_pod(pod("p", cola=1))
        (held,) = {holding.device for holding in kubelet.holdings()}
        (colas / held).unlink()
        checkpoint = root / "k/device-plugins/kubelet_internal_checkpoint"
        checkpoint.write_bytes(b"{")
        kubelet.faults = Faults(error="UNAVAILABLE")
        async with serve(configuration(cola()), pace=Pace(release=0.05)) as served:
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            assert held not in reasons(served)
            kubelet.faults = Faults()
            await served.until(lambda: reasons(served).get(held) == "held by a pod, but not found")
            await kubelet.wait_until(lambda k: k.capacity(COLA) == 2)


async def test_what_a_pod_holds_is_not_dropped_while_a_kubelet_that_came_back_lists_no_pod(
    root: Path, serve: Serve, colas: Path
) -> None:
    (colas / "a").touch()
    async with SimulatedKubelet(root / "k", sync_delay=3600) as kubelet:
        async with serve(configuration(cola())):
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
            await kubelet.add_pod(pod("p", cola=1))
        (colas / "a").unlink()
        await kubelet.restart()
        async with serve(configuration(cola())) as served:
            await served.until(lambda: {e.id for e in served.status(COLA).advertised} == {"a"})
            await kubelet.wait_until(lambda k: k.capacity(COLA) == 1)
            assert kubelet.allocatable(COLA) == 0
        assert kubelet.violations == ()


async def test_a_device_that_went_unnoticed_is_refused_by_allocate(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (colas / "a").touch()
    async with serve(configuration(cola())) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        monkeypatch.setattr(DeviceScanner, "resolve", gone)
        with pytest.raises(AdmissionError, match="'a' is unhealthy"):
            await kubelet.add_pod(pod("p", cola=1))
        assert served.status(COLA).counters.allocation_errors == 1


def gone(_scanner: DeviceScanner, devices: Sequence[Device]) -> Resolved:
    return Resolved((), tuple((device.id, "it is not there") for device in devices))


async def test_a_directory_that_is_replaced_is_found_again(root: Path, serve: Serve, colas: Path) -> None:
    (colas / "a").touch()
    async with serve(configuration(cola())) as served:
        for _ in range(2):
            async with SimulatedKubelet(root / "k") as kubelet:
                await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
                # A kubelet asks for the list before its answer to Register has arrived.
                await served.until(lambda: served.status(COLA).registered)
            shutil.rmtree(root / "k")
            await served.until(lambda: not served.status(COLA).registered)
            await served.until(lambda: "is not there" in served.status(COLA).state)
        assert served.status(COLA).counters.registrations == 2


async def test_without_inotify_everything_works_by_polling(
    kubelet: SimulatedKubelet, root: Path, host: Path, colas: Path
) -> None:
    (colas / "a").touch()
    async with serving(root / "k", host, configuration(cola()), use_inotify=False) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        (colas / "b").touch()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
        await kubelet.restart()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)
        sockets(root)[0].unlink()
        await served.until(lambda: served.status(COLA).counters.registrations == 3)
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)


async def test_a_scan_that_hangs_is_given_up_and_reported_while_everything_is_served_on(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (colas / "a").touch()
    release = threading.Event()

    def hang(*_arguments: object) -> None:
        release.wait(60)

    async with serve(configuration(cola()), pace=Pace(scan_limit=0.1, retry=0.05)) as served:
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        with monkeypatch.context() as hanging:
            # Whether all is looked at or the new file alone depends on what was seen until now.
            hanging.setattr(Files, "scan", hang)
            hanging.setattr(Files, "scan_entry", hang)
            (colas / "b").touch()
            await served.until(lambda: "an earlier call still hangs" in served.status(COLA).state)
        assert served.status(COLA).ready
        await kubelet.add_pod(pod("p", cola=1))
        await kubelet.restart()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1)
        release.set()
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 2)


async def test_ids_that_another_resource_has_too_are_reported(
    root: Path, serve: Serve, colas: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (colas / "a").touch()
    text = configuration(cola(), cola().replace(COLA, "a.b/twin").replace("true", "false"))
    async with SimulatedKubelet(root / "k") as kubelet, serve(text):
        await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1 and k.allocatable("a.b/twin") == 1)
    assert "two resources advertise the same device id" in caplog.messages


async def test_ending_leaves_nothing_behind_and_nothing_of_others_is_touched(
    kubelet: SimulatedKubelet, serve: Serve, colas: Path, root: Path
) -> None:
    (colas / "a").touch()
    directory = root / "k/device-plugins"
    (directory / ".devicelens-of-another.lock").touch()
    async with ScriptedPlugin(root / "k", "a.b/other"):
        before = {path.name for path in directory.iterdir()}
        async with serve(configuration(cola(), cola("a.b/second"))):
            await kubelet.wait_until(lambda k: k.allocatable(COLA) == 1 and k.allocatable("a.b/second") == 1)
            assert len(sockets(root)) == 2
        assert {path.name for path in directory.iterdir()} == before | {"kubelet_internal_checkpoint"}
