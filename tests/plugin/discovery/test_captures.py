"""Trees that real machines gave, where this checkout has them beside it."""

import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from plugin.config import model
from plugin.devices.device import Found
from plugin.discovery.host import HostRoot
from plugin.discovery.kfd import compute_nodes
from plugin.discovery.registry import source_of
from plugin.discovery.sysfs_tree import Sysfs, numa_nodes

CAPTURES = Path(__file__).parents[4] / "shared/captures"


def unpacked(name: str, into: Path) -> Path:
    """A capture's files below `into`. Skips where the capture is not there."""
    archive = CAPTURES / name
    if not archive.exists():
        pytest.skip(f"../shared/captures/{name} is not there")
    with tarfile.open(archive) as content:
        content.extractall(into, filter="tar")
    return into


@pytest.fixture(scope="module")
def two_socket(tmp_path_factory: pytest.TempPathFactory) -> HostRoot:
    root = unpacked("two-socket-mlx4-infiniband.tar.bz2", tmp_path_factory.mktemp("two-socket"))
    return HostRoot(next(root.iterdir()))


@pytest.fixture(scope="module")
def accelerator(tmp_path_factory: pytest.TempPathFactory) -> HostRoot:
    return HostRoot(unpacked("nvidia-accelerator-pci.tar.gz", tmp_path_factory.mktemp("nvidia")))


def found(host: HostRoot, kind: Any, **written: object) -> dict[str, Found]:
    source = source_of(msgspec.convert(written, kind))
    items = source.discover(host).found
    for item in items:
        assert source.resolve(host, item) == item
    return {item.name: item for item in items}


def test_infiniband_of_a_machine_with_two_sockets(two_socket: HostRoot) -> None:
    devices = found(two_socket, model.Infiniband, vendors=["15b3"])
    (adapter,) = devices.values()
    expected = {
        "rdma": "mlx4_0",
        "interface": "ib0",
        "address": "0000:82:00.0",
        "driver": "mlx4_core",
        "link_type": "infiniband",
        "states": "ACTIVE",
        "node_guid": "0002:c903:00f9:bfa0",
        "board": "DEL0A30000019",
    }
    assert expected.items() <= dict(adapter.attrs).items()
    assert adapter.nodes == tuple(f"/dev/infiniband/{n}0" for n in ("issm", "umad", "uverbs"))
    assert numa_nodes(two_socket, adapter) == (1,)
    assert adapter.claim == "pci:0000:82:00.0"


def test_network_of_a_machine_with_two_sockets(two_socket: HostRoot) -> None:
    functions = found(two_socket, model.Net, default_route=True)
    assert {
        name: (f.attrs["interface"], f.attrs["driver"], f.attrs["link_type"]) for name, f in functions.items()
    } == {
        "0000:02:00.0": ("eth0", "igb", "ether"),
        "0000:02:00.3": ("eth1", "igb", "ether"),
        "0000:82:00.0": ("ib0", "mlx4_core", "infiniband"),
    }
    assert functions["0000:02:00.0"].attrs["label"] == "LOM 1G I350-BT2 (LAN1)"
    assert [numa_nodes(two_socket, f) for f in functions.values()] == [(0,), (0,), (1,)]
    assert list(found(two_socket, model.Net, default_route=True, rdma=True)) == ["0000:82:00.0"]
    # The capture's links to virtual interfaces lead nowhere.
    assert found(two_socket, model.Net, kinds=["virtual", "hardware"]) == {}


def test_pci_of_a_machine_with_two_sockets(two_socket: HostRoot) -> None:
    assert len(found(two_socket, model.Pci)) > 100
    (phi,) = found(two_socket, model.Pci, classes=["0b40"], devices=["225c"]).values()
    assert (phi.name, phi.attrs["vendor"], phi.attrs["driver"]) == ("0000:83:00.0", "8086", "mic")
    assert numa_nodes(two_socket, phi) == (1,)


def test_pci_of_a_guest_with_an_accelerator(accelerator: HostRoot) -> None:
    (gpu,) = found(accelerator, model.Pci, vendors=["10de"]).values()
    assert (gpu.attrs["device"], gpu.attrs["class"], gpu.attrs["driver"]) == ("15f8", "030200", "nvidia")
    assert numa_nodes(accelerator, gpu) == (), "-1 is no node"
    # A guest has a function for each of its network cards, and sysfs of this one shows no interfaces.
    assert list(found(accelerator, model.Net)) == list(found(accelerator, model.Pci, classes=["02"]))


@pytest.fixture(params=["amd-kfd-topology", "amd-kfd-topology-mi308"])
def compute(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A tree whose compute topology is the capture's."""
    name = str(request.param)
    (topology,) = (unpacked(f"{name}.tar.gz", tmp_path / "unpacked") / "testdata").glob("*/topology")
    at = tmp_path / "host/sys/class/kfd/kfd"
    at.mkdir(parents=True)
    topology.rename(at / "topology")
    return name, tmp_path / "host"


def test_compute_nodes_of_amd_machines(compute: tuple[str, Path]) -> None:
    name, host = compute
    nodes, notes = compute_nodes(Sysfs(HostRoot(host)))
    assert notes == ()
    if name == "amd-kfd-topology":
        assert [(n.number, n.render_minor, n.location) for n in nodes] == [
            (1, 128, "0000:19:00.0"),
            (2, 129, "0000:19:00.0"),
        ]
        assert nodes[0].attributes()["unique_id"] == f"{14073402507705256556:016x}"
    else:
        assert len(nodes) == 32
        assert {n.gfx for n in nodes} == {"gfx942"}
        places = [n.location for n in nodes]
        assert len(set(places)) == 32
        assert {p for p in places if p.startswith("0000:a4")} == {f"0000:a4:00.{n}" for n in range(4)}


def test_partitions_of_an_amd_machine_are_joined_with_their_functions(compute: tuple[str, Path]) -> None:
    """The capture has no cards: they are made as the driver makes them, one of each four on the function."""
    name, host = compute
    if name == "amd-kfd-topology":
        pytest.skip("this machine's GPU is not divided")
    machine = Machine(HostTree(host))
    nodes, _ = compute_nodes(Sysfs(HostRoot(host)))
    for number, node in enumerate(nodes):
        address = node.location[:-1] + "0"
        if node.location.endswith(".0"):
            path = machine.function(address, "1002", "74a2", "120000", driver="amdgpu", numa=number // 16)
            machine.tree.files(path, current_compute_partition="CPX", current_memory_partition="NPS1")
        else:
            path = f"/sys/devices/platform/amdgpu_xcp_{number}"
        machine.card(number, path, render=node.render_minor)
    devices = found(HostRoot(host), model.Kfd)
    assert len(devices) == len(nodes)
    whole = [d for d in devices.values() if not d.attrs["partition"]]
    assert len(whole) == 8
    assert len({d.claim for d in devices.values()}) == len(nodes)
    for device in devices.values():
        own = next(d for d in whole if d.attrs["address"] == device.attrs["address"])
        assert numa_nodes(HostRoot(host), device) == numa_nodes(HostRoot(host), own)
        assert device.attrs["compute_partition"] == "cpx"
        assert device.attrs["unique_id"] == own.attrs["unique_id"]
