"""`devicelens plugin` as a process: what it leaves on the host, and how it is registered by directory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.processes import Process
from harness.waiting import until
from simulator import SimulatedKubelet
from simulator.model import ContainerSpec, PodSpec

GPU = "example.com/gpu"
OTHER = "example.com/other"
SPEC = "vendor.example-gpu_devicelens_example.com_gpu.json"


def flags(root: Path, *more: str) -> tuple[str, ...]:
    return (
        "plugin",
        *("--kubelet.root", str(root / "k"), "--host-root", str(root / "h"), "--node-name", "n"),
        *("--web.listen-address", f"unix:{root / 'p.sock'}", "--config", str(root / "plugin.yaml"), *more),
    )


def configure(root: Path, *resources: str) -> None:
    """Written beside and renamed, as editors do."""
    entries = {
        GPU: f"""\
  - name: {GPU}
    discover: [{{static: {{devices: [{{name: gpu0}}]}}}}]
    cdi: {{kind: vendor.example/gpu, env: {{GPU: "{{{{ resource }}}}"}}}}
    allocate: {{files: [{{host: /run/gpu/conf, container: /etc/gpu, content: x}}]}}
""",
        OTHER: f"  - {{name: {OTHER}, discover: [{{static: {{devices: [{{name: o}}]}}}}]}}\n",
    }
    new = root / "plugin.yaml.new"
    new.write_text("version: 1\nresources:\n" + "".join(entries[name] for name in resources))
    new.rename(root / "plugin.yaml")


async def allocatable(kubelet: SimulatedKubelet, resource: str) -> None:
    await kubelet.wait_until(lambda k: k.allocatable(resource) == 1, limit=20.0)


def pod(name: str) -> PodSpec:
    return PodSpec(namespace="default", name=name, containers=(ContainerSpec("c", resources={GPU: 1}),))


@pytest.fixture
async def kubelet(root: Path, host: Path) -> AsyncIterator[SimulatedKubelet]:
    async with SimulatedKubelet(root / "k") as running:
        yield running
        assert running.violations == ()


async def test_what_pods_need_outlives_the_process_and_goes_with_the_resource(
    kubelet: SimulatedKubelet, root: Path, host: Path
) -> None:
    spec, file = host / "var/run/cdi" / SPEC, host / "run/gpu/conf"
    configure(root, GPU, OTHER)
    plugin = Process(*flags(root))
    async with plugin:
        await kubelet.wait_until(lambda k: k.allocatable(GPU) == 1, limit=20.0)
        await kubelet.add_pod(pod("p"))
        assert spec.exists()
        assert file.read_text() == "x"
        assert await plugin.stop() == 0
        assert spec.exists()
        assert file.exists()
        # /run is empty after a reboot, and pods start again.
        spec.unlink()
        file.unlink()
        await plugin.start()
        await kubelet.wait_until(lambda k: k.allocatable(GPU) == 1, limit=20.0)

        async def back() -> bool:
            return spec.exists() and file.exists()

        await until("what the pod needs", back, limit=20, pause=0.05)
        configure(root, OTHER)

        async def gone() -> bool:
            return not spec.exists() and not file.exists() and not file.parent.exists()

        await until("an empty host", gone, limit=20, pause=0.05)
        assert not list((root / "k/device-plugins").glob(".devicelens-*.json"))


async def test_registered_by_directory_it_is_found_again_after_every_end(
    kubelet: SimulatedKubelet, root: Path
) -> None:
    configure(root, GPU, OTHER)
    plugin = Process(*flags(root, "--kubelet.registration", "registry"))
    async with plugin:
        for end in (plugin.kill, plugin.stop, plugin.kill):
            for name in (GPU, OTHER):
                await allocatable(kubelet, name)
            await end()
            await kubelet.wait_until(lambda k: k.allocatable(GPU) == 0)
            await plugin.start()
        await kubelet.wait_until(lambda k: k.allocatable(GPU) == 1, limit=20.0)
        assert len(list((root / "k/plugins_registry").iterdir())) == 2
        await kubelet.restart()
        await kubelet.wait_until(lambda k: k.allocatable(GPU) == 1 and k.allocatable(OTHER) == 1)
        assert await plugin.stop() == 0
    assert list((root / "k/plugins_registry").iterdir()) == []


async def test_from_one_way_of_registering_to_the_other(kubelet: SimulatedKubelet, root: Path) -> None:
    configure(root, GPU)
    for way, killed in (("socket", False), ("registry", True), ("socket", True), ("registry", False)):
        plugin = Process(*flags(root, "--kubelet.registration", way))
        async with plugin:
            await kubelet.wait_until(lambda k: k.allocatable(GPU) == 1, limit=20.0)
            assert bool(list((root / "k/plugins_registry").iterdir())) is (way == "registry")
            assert bool(list((root / "k/device-plugins").glob("devicelens-*"))) is (way == "socket")
            await (plugin.kill() if killed else plugin.stop())
        await kubelet.wait_until(lambda k: k.allocatable(GPU) == 0)
