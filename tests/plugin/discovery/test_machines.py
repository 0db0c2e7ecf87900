"""Sources of devices on the real machines of tests/data/machines."""

from typing import Any

import msgspec
import pytest

from harness.hosttree import HostTree
from plugin.discovery.host import HostRoot
from plugin.discovery.infiniband import Infiniband
from plugin.discovery.kfd import compute_nodes
from plugin.discovery.net import Net
from plugin.discovery.pci import Pci
from plugin.discovery.source import Found
from plugin.discovery.sysfs_tree import SysfsTree, numa_nodes


@pytest.fixture
def two_socket(tree: HostTree, here: HostRoot) -> HostRoot:
    tree.load("two-socket-infiniband")
    return here


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


def test_pci_of_a_guest_with_an_accelerator(tree: HostTree, here: HostRoot) -> None:
    tree.load("nvidia-accelerator")
    (gpu,) = found(here, Pci, vendors=["10de"]).values()
    assert (gpu.attrs["device"], gpu.attrs["class"], gpu.attrs["driver"]) == ("15f8", "030200", "nvidia")
    assert numa_nodes(here, gpu) == (), "-1 is no node"
    # A guest has a function for each of its network cards, and sysfs of this one shows no interfaces.
    assert list(found(here, Net)) == list(found(here, Pci, classes=["02"]))


def test_compute_nodes_of_an_amd_machine(tree: HostTree, here: HostRoot) -> None:
    tree.load("amd-kfd")
    nodes, notes = compute_nodes(SysfsTree(here))
    assert notes == ()
    assert [(n.number, n.render_minor, n.location) for n in nodes] == [
        (1, 128, "0000:19:00.0"),
        (2, 129, "0000:19:00.0"),
    ]
    assert nodes[0].attributes()["unique_id"] == f"{14073402507705256556:016x}"


def test_compute_nodes_of_partitions(tree: HostTree, here: HostRoot) -> None:
    tree.load("amd-kfd-mi308")
    nodes, notes = compute_nodes(SysfsTree(here))
    assert (notes, {n.gfx for n in nodes}) == ((), {"gfx942"})
    places = [n.location for n in nodes]
    assert len(set(places)) == len(places) == 8
    assert {p for p in places if p.startswith("0000:0a")} == {f"0000:0a:00.{n}" for n in range(4)}
