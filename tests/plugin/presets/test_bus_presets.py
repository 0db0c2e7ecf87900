"""Presets of devices on buses: what a kubelet is shown of a host tree, and the exact answers to Allocate."""

import json
import shutil
from pathlib import Path

import pytest

from harness.machines import Machine
from harness.served import Answer, Listed, Node, nodes
from simulator.rpc import RpcError


def gpu(machine: Machine, address: str, *, numa: int | None, card: int, render: int) -> str:
    path = machine.function(address, "1002", "74a1", "120000", driver="amdgpu", numa=numa)
    machine.card(card, path, render=render)
    return path


async def test_amd_gives_the_card_its_render_node_and_kfd(node: Node, machine: Machine) -> None:
    gpu(machine, "0000:19:00.0", numa=1, card=1, render=128)
    gpu(machine, "0000:3b:00.0", numa=-1, card=2, render=129)
    machine.card(0, machine.function("0000:02:00.0", "1a03", "2000", "030000", driver="ast"), render=None)
    machine.tree.file("/dev/kfd")
    async with node.serve("amd"):
        assert await node.devices("amd.com/gpu", 2) == {"0000:19:00.0": Listed(1), "0000:3b:00.0": Listed()}
        answer = await node.allocate("amd.com/gpu", "0000:3b:00.0", "0000:19:00.0")
        assert answer == Answer(
            nodes=nodes(
                "rw",
                "/dev/kfd",
                "/dev/dri/card1",
                "/dev/dri/card2",
                "/dev/dri/renderD128",
                "/dev/dri/renderD129",
            )
        )


async def test_amd_gives_the_partitions_that_compute(node: Node, machine: Machine) -> None:
    whole = gpu(machine, "0000:a4:00.0", numa=1, card=1, render=144)
    machine.tree.files(whole, current_compute_partition="CPX", current_memory_partition="NPS1")
    for number in (1, 2, 3):
        machine.card(1 + number, f"/sys/devices/platform/amdgpu_xcp_{number}", render=144 + number)
    machine.compute_node(0, cpu_cores_count=112, simd_count=0, drm_render_minor=0)
    for number in (0, 1, 2):  # the third partition's nodes are there, and it does not compute
        machine.compute_node(
            1 + number, simd_count=80, location_id=0xA400 + number, domain=0, drm_render_minor=144 + number
        )
    async with node.serve("amd"):
        assert await node.devices("amd.com/gpu", 3) == {
            "0000:a4:00.0": Listed(1),
            "amdgpu_xcp_1": Listed(1),
            "amdgpu_xcp_2": Listed(1),
        }
        assert await node.allocate("amd.com/gpu", "amdgpu_xcp_2") == Answer(
            nodes=nodes("rw", "/dev/kfd", "/dev/dri/card3", "/dev/dri/renderD146")
        )


async def test_amd_is_unhealthy_without_its_render_node(node: Node, host: Path, machine: Machine) -> None:
    gpu(machine, "0000:19:00.0", numa=0, card=0, render=128)
    machine.tree.file("/dev/kfd")
    async with node.serve("amd"):
        await node.devices("amd.com/gpu", 1)
        (host / "dev/dri/renderD128").unlink()
        await node.allocatable("amd.com/gpu", 0)
        assert node.listed("amd.com/gpu") == {"0000:19:00.0": Listed(0, healthy=False)}
        with pytest.raises(RpcError, match="/dev/dri/renderD128"):
            await node.allocate("amd.com/gpu", "0000:19:00.0")
        (host / "dev/dri/renderD128").touch()
        await node.allocatable("amd.com/gpu", 1)


async def test_intel_gpu_by_driver(node: Node, host: Path, machine: Machine) -> None:
    physical = machine.function("0000:02:00.0", "8086", "0bda", "038000", driver="i915", numa=1)
    machine.card(0, physical, render=128)
    for index in range(2):
        part = machine.function(f"0000:02:00.{index + 1}", "8086", "0bda", "038000", driver="i915", numa=1)
        machine.virtual(physical, part, index)
        machine.card(1 + index, part, render=129 + index)
    for link in (host / "dev/dri/by-path").iterdir():
        link.unlink()
    battlemage = machine.function("0000:03:00.0", "8086", "e20b", "030000", driver="xe", numa=0)
    machine.card(3, battlemage, render=131)
    machine.card(4, machine.function("0000:04:00.0", "10de", "2204", "030000", driver="nouveau"), render=132)
    async with node.serve("intel-gpu"):
        assert await node.devices("gpu.intel.com/i915", 2) == {"card1-0": Listed(1), "card2-0": Listed(1)}
        assert await node.devices("gpu.intel.com/xe", 1) == {"card3-0": Listed(0)}
        without_links = await node.allocate("gpu.intel.com/i915", "card1-0")
        assert without_links == Answer(nodes=nodes("rw", "/dev/dri/card1", "/dev/dri/renderD129"))
        assert await node.allocate("gpu.intel.com/xe", "card3-0") == Answer(
            nodes=nodes("rw", "/dev/dri/card3", "/dev/dri/renderD131"),
            mounts=tuple(
                (link, link, True)
                for link in (
                    "/dev/dri/by-path/pci-0000:03:00.0-card",
                    "/dev/dri/by-path/pci-0000:03:00.0-render",
                )
            ),
        )


async def test_intel_qat_gives_virtual_functions_of_vfio(node: Node, host: Path, machine: Machine) -> None:
    physical = machine.function("0000:6b:00.0", "8086", "4940", "0b4000", driver="4xxx", numa=1)
    parts: list[str] = []
    for index in range(4):
        driver = "vfio-pci" if index < 3 else "4xxxvf"
        part = machine.function(f"0000:6b:00.{index + 1}", "8086", "4941", "0b4000", driver=driver, numa=1)
        machine.virtual(physical, part, index)
        machine.iommu_group(part, 300 + index, "vfio-noiommu" if index == 2 else "")
        parts.append(part)
    # Somebody else's, bound to vfio-pci as well.
    machine.iommu_group(machine.function("0000:5e:00.0", "8086", "1572", "020000", driver="vfio-pci"), 9)
    for name in ("vfio", "300", "301", "noiommu-302", "9"):
        machine.tree.file(f"/dev/vfio/{name}")
    async with node.serve("intel-qat"):
        name = "qat.intel.com/generic"
        ids = [f"0000:6b:00.{n}" for n in (1, 2, 3)]
        assert await node.devices(name, 3) == dict.fromkeys(ids, Listed(1))
        assert await node.allocate(name, ids[1], ids[0]) == Answer(
            env={"QAT0": ids[0], "QAT1": ids[1]},
            nodes=nodes("rw", "/dev/vfio/vfio", "/dev/vfio/300", "/dev/vfio/301"),
        )
        assert await node.allocate(name, ids[2]) == Answer(
            env={"QAT0": ids[2]}, nodes=nodes("rw", "/dev/vfio/vfio", "/dev/vfio/noiommu-302")
        )
        machine.unbind(ids[0], parts[0])
        (host / "dev/vfio/300").unlink()
        await node.allocatable(name, 2)
        assert node.listed(name)[ids[0]] == Listed(1, healthy=False)
        machine.bind(ids[0], parts[0], "vfio-pci")
        machine.tree.file("/dev/vfio/300")
        await node.allocatable(name, 3)


async def test_intel_qat_in_a_virtual_machine(node: Node, machine: Machine) -> None:
    path = machine.function("0000:00:05.0", "8086", "4941", "0b4000", driver="vfio-pci", numa=-1)
    machine.iommu_group(path, 2)
    machine.tree.file("/dev/vfio/2")
    machine.tree.file("/dev/vfio/vfio")
    async with node.serve("intel-qat"):
        assert await node.devices("qat.intel.com/generic", 1) == {"0000:00:05.0": Listed()}


def nic(machine: Machine, bus: str, name: str, count: int, *, numa: int) -> list[str]:
    """A card with virtual functions that have no driver yet; returns their directories."""
    physical = machine.function(f"0000:{bus}:00.0", "15b3", "101d", "020000", driver="mlx5_core", numa=numa)
    machine.interface(name, physical)
    machine.tree.files(physical, sriov_totalvfs=8)
    parts: list[str] = []
    for index in range(count):
        part = machine.function(f"0000:{bus}:00.{index + 1}", "15b3", "101e", "020000", numa=numa)
        machine.virtual(physical, part, index)
        parts.append(part)
    return parts


def info(answer: Answer, name: str) -> object:
    text = answer.env[f"{name}_INFO"]
    made = json.loads(text)
    assert text == json.dumps(made, separators=(",", ":"), sort_keys=True)
    return made


async def test_sriov_divides_virtual_functions_into_pools(node: Node, host: Path, machine: Machine) -> None:
    parts = nic(machine, "3b", "ens1f0", 4, numa=1)
    machine.bind("0000:3b:00.1", parts[0], "vfio-pci")
    machine.iommu_group(parts[0], 88)
    machine.bind("0000:3b:00.2", parts[1], "mlx5_core")
    machine.interface("ens1f0v1", parts[1])
    machine.rdma("mlx5_2", parts[1], 2)
    machine.bind("0000:3b:00.3", parts[2], "iavf")
    machine.interface("ens1f0v2", parts[2])
    # The fourth has no driver, and is in no pool. Nor is the host's own way out, or a card without parts.
    machine.interface("eno1", machine.function("0000:01:00.0", "8086", "1521", "020000", driver="igb"))
    machine.routes("eno1")
    for name in ("vfio", "88"):
        machine.tree.file(f"/dev/vfio/{name}")
    prefix = "PCIDEVICE_DEVICELENS_DEV_SRIOV"
    async with node.serve("sriov"):
        assert await node.devices("devicelens.dev/sriov_vfio", 1) == {"0000:3b:00.1": Listed(1)}
        assert await node.devices("devicelens.dev/sriov_rdma", 1) == {"0000:3b:00.2": Listed(1)}
        assert await node.devices("devicelens.dev/sriov_net", 1) == {"0000:3b:00.3": Listed(1)}

        answer = await node.allocate("devicelens.dev/sriov_vfio", "0000:3b:00.1")
        assert answer.nodes == nodes("rw", "/dev/vfio/88", "/dev/vfio/vfio")
        assert answer.env.keys() == {f"{prefix}_VFIO", f"{prefix}_VFIO_INFO"}
        assert answer.env[f"{prefix}_VFIO"] == "0000:3b:00.1"
        assert info(answer, f"{prefix}_VFIO") == {
            "0000:3b:00.1": {
                "generic": {"deviceID": "0000:3b:00.1"},
                "vfio": {"dev-mount": "/dev/vfio/88", "mount": "/dev/vfio/vfio"},
            }
        }

        answer = await node.allocate("devicelens.dev/sriov_rdma", "0000:3b:00.2")
        infiniband = [f"/dev/infiniband/{n}" for n in ("issm2", "rdma_cm", "umad2", "uverbs2")]
        assert answer.nodes == nodes("rw", *infiniband)
        assert info(answer, f"{prefix}_RDMA") == {
            "0000:3b:00.2": {
                "generic": {"deviceID": "0000:3b:00.2"},
                "rdma": {
                    "issm": infiniband[0],
                    "rdma_cm": infiniband[1],
                    "rdma_dev": "mlx5_2",
                    "umad": infiniband[2],
                    "uverbs": infiniband[3],
                },
            }
        }

        answer = await node.allocate("devicelens.dev/sriov_net", "0000:3b:00.3")
        assert answer.nodes == ()
        assert info(answer, f"{prefix}_NET") == {"0000:3b:00.3": {"generic": {"deviceID": "0000:3b:00.3"}}}


async def test_sriov_for_some_functions_of_an_interface(node: Node, machine: Machine) -> None:
    for index, part in enumerate(nic(machine, "3b", "ens1f0", 6, numa=0)):
        machine.bind(f"0000:3b:00.{index + 1}", part, "iavf")
        machine.interface(f"ens1f0v{index}", part)
    machine.routes("eno1")
    text = """\
version: 1
resources:
  - preset: sriov
    of: devicelens.dev/sriov_net
    name: intel.com/first.pool
    discover: [{net: {vendors: ["0x15B3"], devices: ["101e"], pf_names: ["ens1f0#0-1,4", "nope"]}}]
"""
    async with node.serve(text):
        assert {*await node.devices("intel.com/first.pool", 3)} == {f"0000:3b:00.{n}" for n in (1, 2, 5)}
        answer = await node.allocate("intel.com/first.pool", "0000:3b:00.5", "0000:3b:00.1")
        assert answer.env["PCIDEVICE_INTEL_COM_FIRST_POOL"] == "0000:3b:00.1,0000:3b:00.5"
        assert info(answer, "PCIDEVICE_INTEL_COM_FIRST_POOL") == {
            address: {"generic": {"deviceID": address}} for address in ("0000:3b:00.1", "0000:3b:00.5")
        }


async def test_rdma_gives_the_connection_manager_too(node: Node, machine: Machine) -> None:
    for number, (address, numa) in enumerate((("0000:3b:00.0", 0), ("0000:86:00.0", 1))):
        path = machine.function(address, "15b3", "1017", "020000", driver="mlx5_core", numa=numa)
        machine.interface(f"ens{number}", path)
        machine.rdma(f"mlx5_{number}", path, number)
    async with node.serve("rdma"):
        assert await node.devices("tencent.com/rdma", 2) == {"mlx5_0": Listed(0), "mlx5_1": Listed(1)}
        assert await node.allocate("tencent.com/rdma", "mlx5_1") == Answer(
            nodes=nodes("rw", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm")
        )


async def test_rdma_shared_gives_all_adapters_at_once(node: Node, host: Path, machine: Machine) -> None:
    paths: list[str] = []
    for number in range(2):
        address = f"0000:3b:00.{number}"
        paths.append(machine.function(address, "15b3", "1017", "020000", driver="mlx5_core", numa=number))
        machine.interface(f"ens3f{number}", paths[number])
        machine.rdma(f"mlx5_{number}", paths[number], number)
    async with node.serve("rdma-shared"):
        name = "rdma/hca_shared_devices_a"
        assert await node.devices(name, 1000) == {str(n): Listed() for n in range(1000)}
        names = ("issm0", "issm1", "rdma_cm", "umad0", "umad1", "uverbs0", "uverbs1")
        assert await node.allocate(name, "999") == Answer(
            nodes=nodes("rwm", *(f"/dev/infiniband/{n}" for n in names))
        )
        # One that goes is not given any more, one that is left serves them all.
        (host / "sys/class/infiniband/mlx5_0").unlink()
        assert await node.allocate(name, "0") == Answer(
            nodes=nodes("rwm", *(f"/dev/infiniband/{n}" for n in names if not n.endswith("0")))
        )


async def test_rdma_shared_is_unhealthy_without_its_nodes(node: Node, host: Path, machine: Machine) -> None:
    name = "rdma/hca_shared_devices_a"
    path = machine.function("0000:3b:00.0", "15b3", "1017", "020000", driver="mlx5_core")
    machine.interface("ens3", path)
    machine.rdma("mlx5_0", path, 0)
    missing = host / "dev/infiniband/uverbs0"
    missing.unlink()
    async with node.serve("rdma-shared") as served:
        assert set((await node.devices(name, 1000)).values()) == {Listed(healthy=False)}
        assert set(served.reasons(name).values()) == {"/dev/infiniband/uverbs0 is not there"}
        missing.touch()
        await node.allocatable(name, 1000)
        (host / "dev/infiniband/umad0").unlink()
        await node.allocatable(name, 0)
        assert set(served.reasons(name).values()) == {"/dev/infiniband/umad0 is not there"}


async def test_rdma_shared_is_unhealthy_without_its_kernel_module(
    node: Node, host: Path, machine: Machine
) -> None:
    name = "rdma/hca_shared_devices_a"
    path = machine.function("0000:3b:00.0", "15b3", "1017", "020000", driver="mlx5_core")
    machine.rdma("mlx5_0", path, 0)
    shutil.rmtree(host / path.lstrip("/") / "infiniband_verbs")
    async with node.serve("rdma-shared") as served:
        await node.devices(name, 1000)
        (reason,) = set(served.reasons(name).values())
        assert reason == "health[0].exists: '{{ device.attrs.uverbs }}' is empty: nothing was found for it"


async def test_solarflare_needs_onload(node: Node, host: Path, machine: Machine) -> None:
    machine.function("0000:42:00.0", "1924", "0a03", "020000", driver="sfc", numa=1)
    machine.function("0000:42:00.1", "1924", "0a03", "120000", driver="sfc", numa=1)
    every = ("/dev/onload", "/dev/onload_cplane", "/dev/onload_epoll", "/dev/sfc_char", "/dev/sfc_affinity")
    for path in every:
        machine.tree.file(path)
    async with node.serve("solarflare"):
        assert await node.devices("solarflare.com/sfc", 1) == {"0000:42:00.0": Listed(1)}
        assert (await node.allocate("solarflare.com/sfc", "0000:42:00.0")).nodes == nodes("mrw", *every)
        (host / "dev/sfc_affinity").unlink()
        assert (await node.allocate("solarflare.com/sfc", "0000:42:00.0")).nodes == nodes("mrw", *every[:-1])
        (host / "dev/onload").unlink()
        await node.allocatable("solarflare.com/sfc", 0)
