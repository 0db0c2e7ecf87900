"""Presets of NVIDIA's devices: what a kubelet is shown of a host tree, and the exact answers to Allocate."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from harness.nvml import A100, A100_MIG, A100_UUID, H100, H100_UUID, FakeNvml, with_nvml, without_nvml
from harness.preset import Answer, Listed, nodes, serving_preset, serving_text
from simulator.rpc import RpcError

CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
H100_HERE = H100.replace("00010000:AF", "00000000:AF")
SLICES = (
    "slice 0 MIG-aaaaaaaa-0000-0000-0000-000000000001 1 0 3 3 19968",
    "slice 0 MIG-aaaaaaaa-0000-0000-0000-000000000002 7 0 1 1 4864",
)


@pytest.fixture
def machine(host: Path) -> Machine:
    """Two GPUs, on two NUMA nodes."""
    made = Machine(HostTree(host))
    made.function("0000:3b:00.0", "10de", "20b0", "030200", driver="nvidia", numa=0)
    made.function("0000:af:00.0", "10de", "2330", "030200", driver="nvidia", numa=1)
    for name in (*CONTROL, "/dev/nvidia0", "/dev/nvidia1"):
        made.tree.file(name)
    return made


@pytest.fixture
def nvml(machine: Machine) -> Iterator[FakeNvml]:
    with with_nvml(machine.tree) as fake:
        yield fake


@pytest.fixture
def no_nvml() -> Iterator[None]:
    with without_nvml():
        yield


def shown(machine: Machine, address: str, minor: int, uuid: str) -> None:
    machine.tree.file(
        f"/proc/driver/nvidia/gpus/{address}/information",
        f"Model: \t\t NVIDIA A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n",
    )


def divided(machine: Machine) -> None:
    for name, number in (("gi1", 12), ("gi1/ci0", 13), ("gi7", 66), ("gi7/ci0", 67)):
        machine.tree.file(
            f"/proc/driver/nvidia/capabilities/gpu0/mig/{name}/access", f"DeviceFileMinor: {number}\n"
        )
        machine.tree.file(f"/dev/nvidia-caps/nvidia-cap{number}")


async def test_nvidia_by_nvml(root: Path, host: Path, nvml: FakeNvml) -> None:
    nvml.tells(A100, H100_HERE)
    async with serving_preset(root, host, "nvidia") as served:
        assert await served.devices("nvidia.com/gpu", 2) == {A100_UUID: Listed(0), H100_UUID: Listed(1)}
        assert await served.allocate("nvidia.com/gpu", H100_UUID) == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": H100_UUID}, nodes=nodes("rw", *CONTROL, "/dev/nvidia1")
        )
        assert await served.allocate("nvidia.com/gpu", H100_UUID, A100_UUID) == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": f"{A100_UUID},{H100_UUID}"},
            nodes=nodes("rw", *CONTROL, "/dev/nvidia0", "/dev/nvidia1"),
        )


@pytest.mark.usefixtures("no_nvml")
async def test_nvidia_by_what_the_driver_shows_without_what_is_optional(
    root: Path, host: Path, machine: Machine
) -> None:
    shown(machine, "0000:3b:00.0", 0, A100_UUID)
    shown(machine, "0000:af:00.0", 1, "GPU-????????-????-????-????-????????????")
    (host / "dev/nvidia-modeset").unlink()
    (host / "dev/nvidia-uvm-tools").unlink()
    async with serving_preset(root, host, "nvidia") as served:
        assert await served.devices("nvidia.com/gpu", 1) == {A100_UUID: Listed(0)}
        assert await served.allocate("nvidia.com/gpu", A100_UUID) == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": A100_UUID},
            nodes=nodes("rw", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"),
        )


@pytest.mark.usefixtures("no_nvml")
async def test_nvidia_takes_up_a_driver_that_comes_later(root: Path, host: Path, machine: Machine) -> None:
    for name in ("nvidia0", "nvidia1"):
        (host / "dev" / name).unlink()
    async with serving_preset(root, host, "nvidia") as served:
        await served.served.until(
            lambda: "no driver is loaded" in served.served.status("nvidia.com/gpu").state
        )
        assert served.served.status("nvidia.com/gpu").ready
        shown(machine, "0000:3b:00.0", 0, A100_UUID)
        machine.tree.file("/dev/nvidia0")
        assert await served.devices("nvidia.com/gpu", 1) == {A100_UUID: Listed(0)}
        (host / "dev/nvidia0").unlink()
        await served.kubelet.wait_until(lambda k: k.allocatable("nvidia.com/gpu") == 0)
        with pytest.raises(RpcError, match="/dev/nvidia0 is not there"):
            await served.allocate("nvidia.com/gpu", A100_UUID)
        machine.tree.file("/dev/nvidia0")
        await served.kubelet.wait_until(lambda k: k.allocatable("nvidia.com/gpu") == 1)


async def test_nvidia_is_shared_by_replicas(root: Path, host: Path, nvml: FakeNvml) -> None:
    nvml.tells(A100)
    text = "version: 1\nresources: [{preset: nvidia, share: {replicas: 2}}]"
    async with serving_text(root, host, text) as served:
        assert set(await served.devices("nvidia.com/gpu", 2)) == {f"{A100_UUID}::0", f"{A100_UUID}::1"}
        answer = await served.allocate("nvidia.com/gpu", f"{A100_UUID}::1")
        assert answer.env == {"NVIDIA_VISIBLE_DEVICES": A100_UUID}


async def test_nvidia_by_cdi_names(root: Path, host: Path, nvml: FakeNvml) -> None:
    nvml.tells(A100)
    text = """\
version: 1
resources:
  - preset: nvidia
    allocate: {env: {NVIDIA_VISIBLE_DEVICES: void}, devices: [], cdi: ["nvidia.com/gpu={{ device.id }}"]}
"""
    async with serving_text(root, host, text) as served:
        await served.devices("nvidia.com/gpu", 1)
        answer = await served.allocate("nvidia.com/gpu", A100_UUID)
        assert answer == Answer(env={"NVIDIA_VISIBLE_DEVICES": "void"}, cdi=(f"nvidia.com/gpu={A100_UUID}",))


async def test_nvidia_leaves_gpus_in_mig_mode_to_nvidia_mig(
    root: Path, host: Path, machine: Machine, nvml: FakeNvml
) -> None:
    divided(machine)
    nvml.tells(A100_MIG, H100_HERE, *SLICES)
    text = "version: 1\nresources: [{preset: nvidia}, {preset: nvidia-mig}]"
    big, small = (line.split()[2] for line in SLICES)
    async with serving_text(root, host, text) as served:
        assert await served.devices("nvidia.com/gpu", 1) == {H100_UUID: Listed(1)}
        assert await served.devices("nvidia.com/mig-3g.20gb", 1) == {big: Listed(0)}
        assert await served.devices("nvidia.com/mig-1g.5gb", 1) == {small: Listed(0)}
        assert await served.allocate("nvidia.com/mig-1g.5gb", small) == Answer(
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
async def test_nvidia_mig_by_what_the_driver_shows(root: Path, host: Path, machine: Machine) -> None:
    shown(machine, "0000:3b:00.0", 0, A100_UUID)
    divided(machine)
    async with serving_preset(root, host, "nvidia-mig") as served:
        name = "nvidia.com/mig-unknown"
        assert await served.devices(name, 2) == {"nvidia0/gi1": Listed(0), "nvidia0/gi7": Listed(0)}
        assert await served.allocate(name, "nvidia0/gi7", "nvidia0/gi1") == Answer(
            env={"NVIDIA_VISIBLE_DEVICES": f"MIG-{A100_UUID}/1/0,MIG-{A100_UUID}/7/0"},
            nodes=nodes(
                "rw",
                *CONTROL,
                "/dev/nvidia0",
                *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (12, 13, 66, 67)),
            ),
        )


async def test_nvidia_mig_as_one_resource(root: Path, host: Path, machine: Machine, nvml: FakeNvml) -> None:
    divided(machine)
    nvml.tells(A100_MIG, *SLICES)
    text = "version: 1\nresources: [{preset: nvidia-mig, name: nvidia.com/gpu}]"
    async with serving_text(root, host, text) as served:
        assert len(await served.devices("nvidia.com/gpu", 2)) == 2


GKE_MOUNTS = (
    ("/home/kubernetes/bin/nvidia", "/usr/local/nvidia", True),
    ("/home/kubernetes/bin/nvidia/vulkan/icd.d", "/etc/vulkan/icd.d", True),
)


@pytest.mark.usefixtures("no_nvml")
async def test_gke_nvidia_by_nodes_alone(root: Path, host: Path, machine: Machine) -> None:
    machine.tree.directory("/home/kubernetes/bin/nvidia/vulkan/icd.d")
    async with serving_preset(root, host, "gke-nvidia") as served:
        assert await served.devices("nvidia.com/gpu", 2) == {"nvidia0": Listed(), "nvidia1": Listed()}
        assert await served.allocate("nvidia.com/gpu", "nvidia1") == Answer(
            nodes=nodes("mrw", "/dev/nvidia1", *CONTROL), mounts=GKE_MOUNTS
        )


@pytest.mark.usefixtures("no_nvml")
async def test_gke_nvidia_gives_slices_of_gpus_that_are_divided(
    root: Path, host: Path, machine: Machine
) -> None:
    machine.tree.directory("/home/kubernetes/bin/nvidia/vulkan/icd.d")
    shown(machine, "0000:3b:00.0", 0, A100_UUID)
    shown(machine, "0000:af:00.0", 1, H100_UUID)
    divided(machine)
    async with serving_preset(root, host, "gke-nvidia") as served:
        assert await served.devices("nvidia.com/gpu", 3) == {
            "nvidia0/gi1": Listed(0),
            "nvidia0/gi7": Listed(0),
            "nvidia1": Listed(1),
        }
        assert await served.allocate("nvidia.com/gpu", "nvidia0/gi1") == Answer(
            nodes=nodes(
                "mrw",
                "/dev/nvidia0",
                "/dev/nvidia-caps/nvidia-cap12",
                "/dev/nvidia-caps/nvidia-cap13",
                *CONTROL,
            ),
            mounts=GKE_MOUNTS,
        )


@pytest.mark.usefixtures("no_nvml")
async def test_gke_nvidia_shared_is_one_for_a_container(root: Path, host: Path, machine: Machine) -> None:
    machine.tree.directory("/home/kubernetes/bin/nvidia/vulkan/icd.d")
    (host / "dev/nvidia1").unlink()
    text = """\
version: 1
resources:
  - {preset: gke-nvidia, share: {replicas: 4, id: "{{ id }}/vgpu{{ n }}", max_per_container: 1}}
"""
    async with serving_text(root, host, text) as served:
        assert set(await served.devices("nvidia.com/gpu", 4)) == {f"nvidia0/vgpu{n}" for n in range(4)}
        assert (await served.allocate("nvidia.com/gpu", "nvidia0/vgpu3")).nodes[0][0] == "/dev/nvidia0"
        with pytest.raises(RpcError, match="at most 1"):
            await served.allocate("nvidia.com/gpu", "nvidia0/vgpu0", "nvidia0/vgpu1")


async def test_an_xid_makes_a_gpu_unhealthy_until_it_has_been_quiet_for_a_while(
    root: Path, host: Path, nvml: FakeNvml
) -> None:
    text = "version: 1\nresources: [{preset: nvidia, health: [{xid: {ignore: [13], quiet: 2s}}]}]"
    name = "nvidia.com/gpu"
    nvml.tells(A100, H100_HERE)
    async with serving_text(root, host, text) as served:
        await served.devices(name, 2)
        # An application's own error comes first, and changes nothing.
        nvml.tells(A100, H100_HERE, "event 1 0 13 - -", "event 2 1 79 - -")
        await served.kubelet.wait_until(lambda k: k.allocatable(name) == 1)
        assert served.now(name) == {A100_UUID: Listed(0), H100_UUID: Listed(1, healthy=False)}
        with pytest.raises(RpcError, match="XID 79"):
            await served.allocate(name, H100_UUID)
        await served.kubelet.wait_until(lambda k: k.allocatable(name) == 2)


async def test_an_xid_of_a_slice_is_that_slices_alone_and_a_gpus_is_all_its_slices(
    root: Path, host: Path, machine: Machine, nvml: FakeNvml
) -> None:
    divided(machine)
    text = "version: 1\nresources: [{preset: nvidia-mig, name: nvidia.com/gpu, health: [{xid: {quiet: 1h}}]}]"
    name = "nvidia.com/gpu"
    big, small = (line.split()[2] for line in SLICES)
    nvml.tells(A100_MIG, *SLICES)
    async with serving_text(root, host, text) as served:
        await served.devices(name, 2)
        nvml.tells(A100_MIG, *SLICES, "event 1 0 94 7 0")
        await served.kubelet.wait_until(lambda k: k.allocatable(name) == 1)
        assert served.now(name) == {big: Listed(0), small: Listed(0, healthy=False)}
        nvml.tells(A100_MIG, *SLICES, "event 2 0 95 - -")
        await served.kubelet.wait_until(lambda k: k.allocatable(name) == 0)
