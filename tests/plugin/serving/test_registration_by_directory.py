"""Registered by directory: the kubelet finds the socket, and finds it again."""

from pathlib import Path
from typing import Any

import pytest

from harness.scripted import pod
from harness.served import Node, Serve, configuration, static
from kubelet.registration import PluginWatcherServicer
from plugin.serving.context import Patience
from simulator import SimulatedKubelet

GPU = "example.com/gpu"
OTHER = "example.com/other"


BOTH = configuration(static(GPU, "gpu0"), static(OTHER, "her0"))
ONE = configuration(static(GPU, "gpu0"))


def registry(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "k/plugins_registry").iterdir())


def only_socket(root: Path) -> Path:
    (name,) = registry(root)
    return root / "k/plugins_registry" / name


async def test_the_kubelet_finds_each_resource_and_none_is_left_in_the_end(node: Node, root: Path) -> None:
    async with node.serve(BOTH, method="registry", ready={GPU: 1, OTHER: 1}) as served:
        assert len(registry(root)) == 2
        assert not any(name.startswith(".") for name in registry(root))
        assert list((root / "k/device-plugins").glob("devicelens-*.sock")) == []
        await node.kubelet.add_pod(pod("p", GPU))
        await served.until(lambda: served.status(GPU).registered)
        status = served.status(GPU)
        assert (status.streams, status.ready, status.counters.registrations) == (1, True, 1)
        assert node.kubelet.calls["Register"] == 0
    assert registry(root) == []


async def test_a_broken_stream_renews_the_socket(node: Node, root: Path) -> None:
    patience = Patience(no_stream=5.0, lost_stream=0.2)
    async with node.serve(ONE, method="registry", patience=patience, ready={GPU: 1}) as served:
        before = only_socket(root)
        made = before.stat().st_mtime_ns
        # A kubelet does so by itself when another plugin of the resource leaves.
        process = node.kubelet._process  # pyright: ignore[reportPrivateUsage]
        await process.in_life(lambda life: life.manager.deregister(GPU))
        await node.allocatable(GPU, 0)
        await node.allocatable(GPU)
        assert only_socket(root) == before
        assert before.stat().st_mtime_ns != made
        await served.until(lambda: served.status(GPU).registered)


async def test_a_refusal_has_the_words_of_the_kubelet(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PluginWatcherServicer.GetInfo

    async def odd(self: PluginWatcherServicer, request: Any, context: Any) -> object:
        info = await real(self, request, context)
        if info.name == GPU:
            info.supported_versions[:] = ["v9"]
        return info

    monkeypatch.setattr(PluginWatcherServicer, "GetInfo", odd)
    patience = Patience(refused=0.3)
    async with node.serve(BOTH, method="registry", patience=patience, ready={OTHER: 1}) as served:
        await served.until(lambda: "manager version, v1beta1" in served.status(GPU).state)
        assert not served.status(GPU).ready
        assert served.status(GPU).counters.registration_errors >= 1
        await served.until(lambda: served.status(OTHER).ready)
        monkeypatch.undo()
        # The socket is made anew after a while, and then the kubelet asks again.
        await node.allocatable(GPU)
        await served.until(lambda: served.status(GPU).ready)


async def test_a_directory_that_is_missing_is_waited_for(root: Path, serve: Serve) -> None:
    (root / "k/device-plugins").mkdir(parents=True)
    async with serve(ONE, method="registry") as served:
        await served.until(lambda: "plugins_registry is not there" in served.status(GPU).state)
        async with SimulatedKubelet(root / "k") as kubelet:
            await kubelet.wait_until(lambda k: k.allocatable(GPU) == 1)
            assert kubelet.violations == ()
