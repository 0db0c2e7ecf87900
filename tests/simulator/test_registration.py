"""Plugins that register, leave, hand over, and say nonsense."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness.scripted import R, pod, registered
from kubelet.pb.pluginregistration.v1 import api_pb2 as registration
from simulator import Faults, RegistrationFaults, SimulatedKubelet
from simulator.devices import Device
from simulator.model import AdmissionError
from simulator.scripted import ScriptedPlugin

THREE = (Device("a"), Device("b"), Device("c"))


async def test_a_plugin_registers_lists_and_leaves(kubelet: SimulatedKubelet) -> None:
    async with registered(kubelet, R, THREE) as plugin:
        plugin.send([*THREE[:2], Device("c", "Unhealthy"), Device("d")])
        await kubelet.wait_until(lambda k: k.capacity(R) == 4)
        assert (kubelet.allocatable(R), kubelet.resources(), kubelet.streams(R)) == (3, (R,), 1)
    await kubelet.wait_until(lambda k: k.allocatable(R) == 0)
    assert (kubelet.capacity(R), kubelet.streams(R)) == (4, 0)


@pytest.mark.parametrize(
    ("version", "resource", "said"),
    [
        (
            "v1beta2",
            R,
            'requested API version "v1beta2" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        ("", R, 'requested API version "" is not supported by kubelet. Supported version is ["v1beta1"]'),
        ("v1beta1", "camera", 'the ResourceName "camera" is invalid'),
        ("v1beta1", "kubernetes.io/camera", 'the ResourceName "kubernetes.io/camera" is invalid'),
    ],
)
async def test_a_wrong_registration_is_refused_in_the_kubelets_words(
    kubelet: SimulatedKubelet, version: str, resource: str, said: str
) -> None:
    async with ScriptedPlugin(kubelet.root, resource, THREE) as plugin:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.register(version=version)
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNKNOWN, said)
    assert kubelet.resources() == ()


async def test_a_registration_that_does_not_decode_is_refused_in_the_kubelets_words(
    kubelet: SimulatedKubelet,
) -> None:
    async with grpc.aio.insecure_channel(f"unix:{kubelet.root}/device-plugins/kubelet.sock") as channel:
        register: Any = channel.unary_unary("/v1beta1.Registration/Register")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await register(b"\x0a\x02\xff\xfe")
    assert (refused.value.code(), refused.value.details()) == (
        grpc.StatusCode.INTERNAL,
        "grpc: error unmarshalling request: string field contains invalid UTF-8",
    )


async def test_a_plugin_that_does_not_serve_holds_register_up_until_the_dial_times_out(root: Path) -> None:
    async with SimulatedKubelet(root, dial_timeout=0.2) as kubelet:
        plugin = ScriptedPlugin(root, R, THREE)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.register()
        assert refused.value.details() == "failed to dial device plugin: context deadline exceeded"
        assert (kubelet.resources(), kubelet.streams(R)) == ((), 0)


async def test_a_plugin_that_fails_to_say_its_options_is_refused(kubelet: SimulatedKubelet) -> None:
    async with ScriptedPlugin(kubelet.root, R, THREE) as plugin:
        other = kubelet.root / "device-plugins" / "other.sock"
        server = grpc.aio.server()
        server.add_insecure_port(f"unix:{other}")
        await server.start()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.register(endpoint="other.sock")
        await server.stop(None)
    details = refused.value.details()
    assert details is not None
    assert details.startswith("failed to get device plugin options: rpc error: code = Unimplemented desc = ")


async def test_in_the_handover_race_the_new_plugin_loses_its_stream_too(kubelet: SimulatedKubelet) -> None:
    four = (*THREE, Device("d"))
    async with (
        registered(kubelet, R, THREE, socket="old.sock") as old,
        registered(kubelet, R, four, socket="new.sock") as new,
    ):
        await old.stop()
        await kubelet.wait_until(lambda k: k.allocatable(R) == 0)
        await kubelet.wait_until(lambda _: new.streams == 0)
        assert (kubelet.capacity(R), kubelet.streams(R)) == (4, 0)
        await new.register()
        await kubelet.wait_until(lambda k: k.allocatable(R) == 4)


async def test_when_the_newer_plugin_leaves_the_older_one_is_not_told(kubelet: SimulatedKubelet) -> None:
    async with registered(kubelet, R, THREE, socket="old.sock") as old:
        async with registered(kubelet, R, (Device("x"),), socket="new.sock"):
            pass
        await kubelet.wait_until(lambda k: k.allocatable(R) == 0)
        await kubelet.wait_until(lambda k: k.streams(R) == 1)
        assert old.streams == 1
        # What it sends still counts, but nothing of it can be allocated: its endpoint is stopped.
        old.send(THREE)
        await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
        with pytest.raises(AdmissionError, match="has been stopped"):
            await kubelet.add_pod(pod())
        assert old.allocated == []
    # Nor is its end noticed, for it was not in the books any more.
    await kubelet.wait_until(lambda k: k.streams(R) == 0)
    assert kubelet.allocatable(R) == 3


async def test_of_one_plugin_registered_twice_both_streams_go_with_the_first(
    kubelet: SimulatedKubelet,
) -> None:
    async with ScriptedPlugin(kubelet.root, R, THREE) as plugin:
        await plugin.register()
        # The kubelet dials back before it answers.
        assert kubelet.calls["GetDevicePluginOptions"] == 1
        await kubelet.wait_until(lambda _: plugin.streams == 1)
        await plugin.register()
        await kubelet.wait_until(lambda k: plugin.streams == 2 and k.allocatable(R) == 3)
        assert kubelet.streams(R) == 2
        plugin.end_oldest_stream()
        await kubelet.wait_until(lambda k: plugin.streams == 0 and k.allocatable(R) == 0)


async def test_after_a_registration_that_failed_nobody_notices_the_end_of_the_present_plugin(
    root: Path,
) -> None:
    async with SimulatedKubelet(root, dial_timeout=3.0) as kubelet:
        async with registered(kubelet, R, THREE) as plugin:
            with pytest.raises(grpc.aio.AioRpcError):
                await plugin.register(endpoint="nobody.sock")
        await kubelet.wait_until(lambda k: k.streams(R) == 0)
        assert kubelet.allocatable(R) == 3


@pytest.mark.parametrize("message", [b"\x0a\x04\x0a\x02\xff\xfe", b"not a protocol buffer"])
async def test_a_list_that_does_not_decode_ends_the_endpoint(
    kubelet: SimulatedKubelet, message: bytes
) -> None:
    async with registered(kubelet, R, THREE) as plugin:
        plugin.send_raw(message)
        await kubelet.wait_until(lambda k: k.allocatable(R) == 0)
        await kubelet.wait_until(lambda k: k.streams(R) == 0)
        assert kubelet.capacity(R) == 3


async def test_a_list_beyond_four_mebibytes_ends_the_endpoint(kubelet: SimulatedKubelet) -> None:
    async with registered(kubelet, R, THREE) as plugin:
        plugin.send([Device(f"{n:04}" + "x" * 1000) for n in range(5000)])
        await kubelet.wait_until(lambda k: k.allocatable(R) == 0)


async def test_register_can_be_slow_hung_refusing_and_gone(kubelet: SimulatedKubelet) -> None:
    async with ScriptedPlugin(kubelet.root, R, THREE) as plugin:
        await kubelet.set_faults(Faults(registration=RegistrationFaults(error="UNAVAILABLE")))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await plugin.register()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

        await kubelet.set_faults(Faults(registration=RegistrationFaults(gone=True)))
        assert not (kubelet.root / "device-plugins" / "kubelet.sock").exists()
        assert (kubelet.root / "pod-resources" / "kubelet.sock").exists()

        await kubelet.set_faults(Faults(registration=RegistrationFaults(hang=True)))
        hung = asyncio.create_task(plugin.register())
        await kubelet.wait_until(lambda k: k.calls["Register"] == 2)
        await asyncio.wait((hung,), timeout=0.1)
        assert not hung.done()
        kubelet.faults = Faults()
        await hung
        await kubelet.wait_until(lambda k: k.allocatable(R) == 3)


class TestByDirectory:
    async def test_a_socket_in_the_directory_is_registered(self, kubelet: SimulatedKubelet) -> None:
        async with ScriptedPlugin(kubelet.root, R, THREE, directory="plugins_registry") as plugin:
            await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
            await kubelet.wait_until(lambda _: plugin.notified)
            assert [(s.plugin_registered, s.error) for s in plugin.notified] == [(True, "")]
        await kubelet.wait_until(lambda k: k.allocatable(R) == 0)

    async def test_a_name_with_a_dot_is_ignored(self, kubelet: SimulatedKubelet) -> None:
        hidden = ScriptedPlugin(
            kubelet.root, "example.com/hidden", THREE, directory="plugins_registry", socket=".hidden.sock"
        )
        async with hidden, ScriptedPlugin(kubelet.root, R, THREE, directory="plugins_registry"):
            await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
            assert (kubelet.calls["GetInfo"], kubelet.resources()) == (1, (R,))

    @pytest.mark.parametrize(
        ("info", "said"),
        [
            (
                registration.PluginInfo(type="CSIPlugin", name=R, supported_versions=["v1beta1"]),
                "no handler registered for plugin type: CSIPlugin",
            ),
            (
                registration.PluginInfo(type="DevicePlugin", name=R, supported_versions=["v1", "v2"]),
                "manager version, v1beta1, is not among plugin supported versions [v1 v2]",
            ),
            (
                registration.PluginInfo(type="DevicePlugin", name="x", supported_versions=["v1beta1"]),
                'invalid name of device plugin socket: the ResourceName "x" is invalid',
            ),
        ],
    )
    async def test_a_wrong_plugin_is_told_why(
        self, kubelet: SimulatedKubelet, info: registration.PluginInfo, said: str
    ) -> None:
        async with ScriptedPlugin(kubelet.root, R, THREE, directory="plugins_registry", info=info) as plugin:
            await kubelet.wait_until(lambda _: plugin.notified)
            assert not plugin.notified[0].plugin_registered
            assert plugin.notified[0].error.startswith("RegisterPlugin error -- ")
            assert said in plugin.notified[0].error
        assert kubelet.resources() == ()

    async def test_one_that_does_not_say_who_it_is_within_a_second_is_asked_again(
        self, kubelet: SimulatedKubelet
    ) -> None:
        class Slow(ScriptedPlugin):
            asked = 0

            async def say_who(self) -> registration.PluginInfo:
                self.asked += 1
                if self.asked == 1:
                    await asyncio.Event().wait()
                return self.info

        async with Slow(kubelet.root, R, THREE, directory="plugins_registry") as plugin:
            await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
            assert (plugin.asked, kubelet.calls["GetInfo"]) == (2, 2)

    async def test_a_stream_that_broke_is_not_retried_until_the_socket_is_made_anew(
        self, kubelet: SimulatedKubelet
    ) -> None:
        async with ScriptedPlugin(kubelet.root, R, THREE, directory="plugins_registry") as plugin:
            await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
            plugin.end_streams()
            await kubelet.wait_until(lambda k: k.allocatable(R) == 0)
            # A second plugin that comes later is seen: the directory has been looked at since.
            async with ScriptedPlugin(
                kubelet.root, "example.com/later", THREE, directory="plugins_registry", socket="later.sock"
            ):
                await kubelet.wait_until(lambda k: k.allocatable("example.com/later") == 3)
            assert kubelet.calls["ListAndWatch"] == 2
            await plugin.stop()
            await plugin.serve()
            await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
            assert kubelet.calls["ListAndWatch"] == 3

    async def test_after_a_restart_it_is_registered_again_by_itself(self, kubelet: SimulatedKubelet) -> None:
        async with ScriptedPlugin(kubelet.root, R, THREE, directory="plugins_registry") as plugin:
            await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
            await kubelet.restart()
            await kubelet.wait_until(lambda k: k.allocatable(R) == 3)
            assert plugin.path.exists()
