"""Sources of devices on real machines: those in tests/data/machines, and their captures where at hand."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from plugin.discovery.host import HostRoot
from plugin.discovery.infiniband import Infiniband
from plugin.discovery.kfd import Kfd
from plugin.discovery.kfd_topology import compute_nodes, xgmi_links
from plugin.discovery.net import Net
from plugin.discovery.pci import Pci
from plugin.discovery.source import Found
from plugin.discovery.sysfs_tree import SysfsTree, numa_nodes

CAPTURES = Path(__file__).parents[4] / "shared" / "captures"


def versions(machine: str, capture: str) -> list[str]:
    """The machine in tests/data, and its full capture where this checkout has that beside it."""
    return [machine, *([capture] if (CAPTURES / capture).exists() else [])]


def host(version: str, root: Path) -> HostRoot:
    """The machine's host tree below `root`."""
    tree = HostTree(root / "host")
    if ".tar." not in version:
        tree.load(version)
        return HostRoot(tree.root)
    # Ten times as fast as tarfile: there are thousands of small files.
    subprocess.run(["tar", "-xf", CAPTURES / version, "-C", root], check=True)
    topologies = list(root.glob("testdata/*/topology"))
    if topologies:
        shutil.move(topologies[0], tree.at("/sys/class/kfd/kfd/topology"))
        return HostRoot(tree.root)
    return HostRoot(next(path.parent for path in (root / "sys", *root.glob("*/sys")) if path.is_dir()))


@pytest.fixture(
    scope="module", params=versions("two-socket-infiniband", "two-socket-mlx4-infiniband.tar.bz2")
)
def two_socket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HostRoot:
    return host(request.param, tmp_path_factory.mktemp("two-socket"))


@pytest.fixture(scope="module", params=versions("nvidia-accelerator", "nvidia-accelerator-pci.tar.gz"))
def accelerator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HostRoot:
    return host(request.param, tmp_path_factory.mktemp("nvidia"))


def found(root: HostRoot, kind: Any, **written: object) -> dict[str, Found]:
    source = msgspec.convert(written, kind).scanner()
    items = source.scan(root).found
    for item in items:
        assert source.resolve(root, item) == item
    return {item.name: item for item in items}


def test_infiniband_of_a_machine_with_two_sockets(two_socket: HostRoot) -> None:
    devices = found(two_socket, Infiniband, vendors=["15b3"])
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
    functions = found(two_socket, Net, default_route=True)
    assert {
        name: (f.attrs["interface"], f.attrs["driver"], f.attrs["link_type"]) for name, f in functions.items()
    } == {
        "0000:02:00.0": ("eth0", "igb", "ether"),
        "0000:02:00.3": ("eth1", "igb", "ether"),
        "0000:82:00.0": ("ib0", "mlx4_core", "infiniband"),
    }
    assert functions["0000:02:00.0"].attrs["label"] == "LOM 1G I350-BT2 (LAN1)"
    assert [numa_nodes(two_socket, f) for f in functions.values()] == [(0,), (0,), (1,)]
    assert list(found(two_socket, Net, default_route=True, rdma=True)) == ["0000:82:00.0"]
    # The links to virtual interfaces lead nowhere.
    assert found(two_socket, Net, kinds=["virtual", "hardware"]) == {}


def test_pci_of_a_machine_with_two_sockets(two_socket: HostRoot) -> None:
    assert len(found(two_socket, Pci)) >= 11
    (phi,) = found(two_socket, Pci, classes=["0b40"], devices=["225c"]).values()
    assert (phi.name, phi.attrs["vendor"], phi.attrs["driver"]) == ("0000:83:00.0", "8086", "mic")
    assert numa_nodes(two_socket, phi) == (1,)


def test_pci_of_a_guest_with_an_accelerator(accelerator: HostRoot) -> None:
    (gpu,) = found(accelerator, Pci, vendors=["10de"]).values()
    assert (gpu.attrs["device"], gpu.attrs["class"], gpu.attrs["driver"]) == ("15f8", "030200", "nvidia")
    assert numa_nodes(accelerator, gpu) == (), "-1 is no node"
    # A guest has a function for each of its network cards, and sysfs of this one shows no interfaces.
    assert list(found(accelerator, Net)) == list(found(accelerator, Pci, classes=["02"]))


@pytest.mark.parametrize("version", versions("amd-kfd", "amd-kfd-topology.tar.gz"))
def test_compute_nodes_of_an_amd_machine(version: str, tmp_path: Path) -> None:
    nodes, notes = compute_nodes(SysfsTree(host(version, tmp_path)))
    assert notes == ()
    assert [(n.number, n.render_minor, n.location) for n in nodes] == [
        (1, 128, "0000:19:00.0"),
        (2, 129, "0000:19:00.0"),
    ]
    assert nodes[0].attributes()["unique_id"] == f"{14073402507705256556:016x}"


MI308 = versions("amd-kfd-mi308", "amd-kfd-topology-mi308.tar.gz")
"""The part in tests/data has the first two of the machine's eight GPUs."""


@pytest.mark.parametrize("version", MI308)
def test_compute_nodes_of_partitions(version: str, tmp_path: Path) -> None:
    nodes, notes = compute_nodes(SysfsTree(host(version, tmp_path)))
    assert notes == ()
    assert len(nodes) == (8 if version == MI308[0] else 32)
    assert {n.gfx for n in nodes} == {"gfx942"}
    places = [n.location for n in nodes]
    assert len(set(places)) == len(nodes)
    assert {p for p in places if p.startswith("0000:0a")} == {f"0000:0a:00.{n}" for n in range(4)}


@pytest.mark.parametrize("version", MI308)
def test_partitions_of_an_amd_machine_are_joined_with_their_functions(version: str, tmp_path: Path) -> None:
    """The topology has no cards: the test makes them as the driver does, one of four on the function."""
    root = host(version, tmp_path)
    machine = Machine(HostTree(root.here("/")))
    nodes, _ = compute_nodes(SysfsTree(root))
    for number, node in enumerate(nodes):
        address = node.location[:-1] + "0"
        if node.location.endswith(".0"):
            path = machine.function(address, "1002", "74a2", "120000", driver="amdgpu", numa=number // 16)
            machine.tree.files(path, current_compute_partition="CPX", current_memory_partition="NPS1")
        else:
            path = f"/sys/devices/platform/amdgpu_xcp_{number}"
        machine.card(number, path, render=node.render_minor)
    devices = found(root, Kfd)
    assert len(devices) == len(nodes)
    whole = [d for d in devices.values() if not d.attrs["partition"]]
    assert len(whole) == len(nodes) // 4
    assert len({d.claim for d in devices.values()}) == len(nodes)
    for device in devices.values():
        own = next(d for d in whole if d.attrs["address"] == device.attrs["address"])
        assert numa_nodes(root, device) == numa_nodes(root, own)
        assert device.attrs["compute_partition"] == "cpx"
        assert device.attrs["unique_id"] == own.attrs["unique_id"]


@pytest.mark.parametrize("version", MI308)
def test_links_of_partitions(version: str, tmp_path: Path) -> None:
    root = host(version, tmp_path)
    nodes, _ = compute_nodes(SysfsTree(root))
    links = xgmi_links(root)
    assert set(links) == {f"/dev/dri/renderD{node.render_minor}" for node in nodes}
    assert all(len(others) == len(nodes) - 1 for others in links.values())
    gpus = {f"/dev/dri/renderD{node.render_minor}": node.location[:-2] for node in nodes}
    within = {strength for a, o in links.items() for b, strength in o.items() if gpus[a] == gpus[b]}
    between = {strength for a, o in links.items() for b, strength in o.items() if gpus[a] != gpus[b]}
    assert min(within) > max(between) > 0


@pytest.mark.parametrize("version", versions("amd-kfd", "amd-kfd-topology.tar.gz"))
def test_a_machine_without_xgmi_has_no_links(version: str, tmp_path: Path) -> None:
    assert xgmi_links(host(version, tmp_path)) == {}
    assert xgmi_links(HostRoot(tmp_path / "empty")) == {}
