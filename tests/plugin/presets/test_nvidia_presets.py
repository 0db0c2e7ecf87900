"""Presets of NVIDIA's devices: what a kubelet is shown of a host tree, and the exact answers to Allocate."""

import threading
from pathlib import Path

import pytest

from harness.machines import Machine
from harness.nvml import A100, A100_MIG, A100_UUID, H100, H100_UUID, SLICES, FakeNvml, divide, show_gpu
from harness.served import Answer, Listed, Node, nodes
from harness.waiting import until_holds
from simulator.rpc import RpcError

CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
H100_HERE = H100.replace("00010000:AF", "00000000:AF")


@pytest.fixture(autouse=True)
def machine(machine: Machine) -> Machine:
    """Two GPUs, on two NUMA nodes."""
    made = machine
    made.function("0000:3b:00.0", "10de", "20b0", "030200", driver="nvidia", numa=0)
    made.function("0000:af:00.0", "10de", "2330", "030200", driver="nvidia", numa=1)
    for name in (*CONTROL, "/dev/nvidia0", "/dev/nvidia1"):
        made.tree.file(name)
    return made


async def test_nvidia_by_nvml(node: Node, nvml: FakeNvml) -> None:
    nvml.reports(A100, H100_HERE)
    async with node.serve("nvidia"):
        assert await node.devices("nvidia.com/gpu", 2) == {A100_UUID: Listed(0), H100_UUID: Listed(1)}
        assert await node.allocate("nvidia.com/gpu", H100_UUID) == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": H100_UUID}, nodes=nodes("rw", *CONTROL, "/dev/nvidia1")
        )
        assert await node.allocate("nvidia.com/gpu", H100_UUID, A100_UUID) == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": f"{A100_UUID},{H100_UUID}"},
            nodes=nodes("rw", *CONTROL, "/dev/nvidia0", "/dev/nvidia1"),
        )


@pytest.mark.usefixtures("no_nvml")
async def test_nvidia_by_the_files_of_the_driver(node: Node, host: Path, machine: Machine) -> None:
    show_gpu(machine.tree, "0000:3b:00.0", 0, A100_UUID)
    show_gpu(machine.tree, "0000:af:00.0", 1, "GPU-????????-????-????-????-????????????")
    (host / "dev/nvidia-modeset").unlink()
    (host / "dev/nvidia-uvm-tools").unlink()
    async with node.serve("nvidia"):
        assert await node.devices("nvidia.com/gpu", 1) == {A100_UUID: Listed(0)}
        assert await node.allocate("nvidia.com/gpu", A100_UUID) == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": A100_UUID},
            nodes=nodes("rw", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"),
        )


@pytest.mark.usefixtures("no_nvml")
async def test_nvidia_waits_for_a_driver(node: Node, host: Path, machine: Machine) -> None:
    for name in ("nvidia0", "nvidia1"):
        (host / "dev" / name).unlink()
    async with node.serve("nvidia") as served:
        await served.until(lambda: "no driver is loaded" in served.status("nvidia.com/gpu").state)
        assert served.status("nvidia.com/gpu").ready
        show_gpu(machine.tree, "0000:3b:00.0", 0, A100_UUID)
        machine.tree.file("/dev/nvidia0")
        assert await node.devices("nvidia.com/gpu", 1) == {A100_UUID: Listed(0)}
        (host / "dev/nvidia0").unlink()
        await node.allocatable("nvidia.com/gpu", 0)
        with pytest.raises(RpcError, match="/dev/nvidia0 is not there"):
            await node.allocate("nvidia.com/gpu", A100_UUID)
        machine.tree.file("/dev/nvidia0")
        await node.allocatable("nvidia.com/gpu", 1)


async def test_nvidia_beside_nvidia_mig(node: Node, machine: Machine, nvml: FakeNvml) -> None:
    divide(machine.tree, 1, 7)
    nvml.reports(A100_MIG, H100_HERE, *SLICES[:2])
    text = "version: 1\nresources: [{preset: nvidia}, {preset: nvidia-mig}]"
    big, small = (line.split()[2] for line in SLICES[:2])
    async with node.serve(text):
        assert await node.devices("nvidia.com/gpu", 1) == {H100_UUID: Listed(1)}
        assert await node.devices("nvidia.com/mig-3g.20gb", 1) == {big: Listed(0)}
        assert await node.devices("nvidia.com/mig-1g.5gb", 1) == {small: Listed(0)}
        assert await node.allocate("nvidia.com/mig-1g.5gb", small) == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": small},
            nodes=nodes(
                "rw",
                *CONTROL,
                "/dev/nvidia0",
                "/dev/nvidia-caps/nvidia-cap66",
                "/dev/nvidia-caps/nvidia-cap67",
            ),
        )


@pytest.mark.usefixtures("no_nvml")
async def test_nvidia_mig_by_the_files_of_the_driver(node: Node, machine: Machine) -> None:
    show_gpu(machine.tree, "0000:3b:00.0", 0, A100_UUID)
    divide(machine.tree, 1, 7)
    async with node.serve("nvidia-mig"):
        name = "nvidia.com/mig-unknown"
        assert await node.devices(name, 2) == {"nvidia0/gi1": Listed(0), "nvidia0/gi7": Listed(0)}
        assert await node.allocate(name, "nvidia0/gi7", "nvidia0/gi1") == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": f"MIG-{A100_UUID}/1/0,MIG-{A100_UUID}/7/0"},
            nodes=nodes(
                "rw",
                *CONTROL,
                "/dev/nvidia0",
                *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (12, 13, 66, 67)),
            ),
        )


GKE_MOUNTS = (
    ("/home/kubernetes/bin/nvidia", "/usr/local/nvidia", True),
    ("/home/kubernetes/bin/nvidia/vulkan/icd.d", "/etc/vulkan/icd.d", True),
)


@pytest.mark.usefixtures("no_nvml")
async def test_gke_nvidia_by_nodes_alone(node: Node, machine: Machine) -> None:
    machine.tree.directory("/home/kubernetes/bin/nvidia/vulkan/icd.d")
    async with node.serve("gke-nvidia"):
        assert await node.devices("nvidia.com/gpu", 2) == {"nvidia0": Listed(), "nvidia1": Listed()}
        assert await node.allocate("nvidia.com/gpu", "nvidia1") == Answer(
            nodes=nodes("mrw", "/dev/nvidia1", *CONTROL), mounts=GKE_MOUNTS
        )


@pytest.mark.usefixtures("no_nvml")
async def test_gke_nvidia_gives_slices_of_divided_gpus(node: Node, machine: Machine) -> None:
    machine.tree.directory("/home/kubernetes/bin/nvidia/vulkan/icd.d")
    show_gpu(machine.tree, "0000:3b:00.0", 0, A100_UUID)
    show_gpu(machine.tree, "0000:af:00.0", 1, H100_UUID)
    divide(machine.tree, 1, 7)
    async with node.serve("gke-nvidia"):
        assert await node.devices("nvidia.com/gpu", 3) == {
            "nvidia0/gi1": Listed(0),
            "nvidia0/gi7": Listed(0),
            "nvidia1": Listed(1),
        }
        assert await node.allocate("nvidia.com/gpu", "nvidia0/gi1") == Answer(
            nodes=nodes(
                "mrw",
                "/dev/nvidia0",
                "/dev/nvidia-caps/nvidia-cap12",
                "/dev/nvidia-caps/nvidia-cap13",
                *CONTROL,
            ),
            mounts=GKE_MOUNTS,
        )


async def test_an_xid_makes_a_gpu_unhealthy_for_a_while(node: Node, nvml: FakeNvml) -> None:
    preset = "preset: nvidia, health: [{xid: {ignore: [13], quiet: 1h}}]"
    name, other = "nvidia.com/gpu", "a.b/other"
    more = f"name: {other}, exclusive: false, id: 'other-{{{{ device.name }}}}'"
    nvml.reports(A100, H100_HERE)
    before = listeners()
    async with node.serve(f"version: 1\nresources: [{{{preset}}}, {{{preset}, {more}}}]") as served:
        for resource in (name, other):
            await node.devices(resource, 2)
        (listener,) = listeners() - before  # one for both
        # An application's own error comes first, and changes nothing.
        nvml.reports(A100, H100_HERE, "event 1 0 13 - -", "event 2 1 79 - -")
        await node.offers({name: 1, other: 1})
        assert node.listed(name) == {A100_UUID: Listed(0), H100_UUID: Listed(1, healthy=False)}
        with pytest.raises(RpcError, match="XID 79"):
            await node.allocate(name, H100_UUID)
        served.hands.ahead += 3600.0
        nvml.reports(A100, H100_HERE, "event 3 0 13 - -")
        await node.offers({name: 2, other: 2})
    await until_holds(lambda: not listener.is_alive())


def listeners() -> set[threading.Thread]:
    """The threads that receive fault events; those of an earlier test may still end."""
    return {thread for thread in threading.enumerate() if thread.name == "faults"}
