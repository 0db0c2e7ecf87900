"""The sources of buses: what they find in host trees, odd ones among them."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from plugin.discovery.drm import Drm
from plugin.discovery.host import HostRoot
from plugin.discovery.infiniband import Infiniband
from plugin.discovery.kfd import Kfd
from plugin.discovery.kfd_topology import ComputeNode
from plugin.discovery.net import Net, default_routes, default_routes_6
from plugin.discovery.pci import Pci
from plugin.discovery.source import Findings, Found, Scanner
from plugin.discovery.sysfs_tree import numa_nodes

NETWORK = "020000"


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.routes()
    return machine


class Scans:
    """A source with what is written for it, and what it finds."""

    def __init__(self, host: Path, kind: Any, **written: object) -> None:
        self.host = HostRoot(host)
        converted = msgspec.convert(written, kind)
        self.source: Scanner = converted.scanner()
        self.promised = converted.attributes()

    def findings(self) -> Findings:
        findings = self.source.scan(self.host)
        for item in findings.found:
            assert frozenset(item.attrs) == self.promised
            assert self.source.resolve(self.host, item) == item
        return findings

    def names(self) -> list[str]:
        return [item.name for item in self.findings().found]

    def one(self) -> Found:
        (found,) = self.findings().found
        return found


def virtual(machine: Machine, physical: str, index: int, **settings: Any) -> str:
    """A virtual function of the one at `physical`; returns its directory."""
    address = f"{physical.rpartition('/')[2][:-1]}{index + 1}"
    path = machine.function(address, "15b3", "101e", NETWORK, **settings)
    machine.virtual(physical, path, index)
    return path


def test_pci_attributes_and_nodes_of_a_function(host: Path, machine: Machine) -> None:
    physical = machine.function("0000:3b:00.0", "15b3", "101d", NETWORK, driver="mlx5_core")
    machine.interface("ens1f0np0", physical)
    path = virtual(machine, physical, 1, driver="vfio-pci", numa=1)
    machine.iommu_group(path, 42)
    machine.tree.directory(f"{path}/vfio-dev/vfio3")
    machine.tree.files(path, acpi_index=7, label="Slot 3")
    found = Scans(host, Pci, functions="virtual").one()
    assert found == Found(
        "0000:3b:00.2",
        attrs={
            "address": "0000:3b:00.2",
            "vendor": "15b3",
            "device": "101e",
            "class": "020000",
            "subsystem_vendor": "15b3",
            "subsystem_device": "0001",
            "revision": "01",
            "driver": "vfio-pci",
            "iommu_group": "42",
            "vfio": "/dev/vfio/42",
            "vfio_device": "/dev/vfio/devices/vfio3",
            "uio": "",
            "vfs": "0",
            "pf": "0000:3b:00.0",
            "vf": "1",
            "pf_driver": "mlx5_core",
            "pf_name": "ens1f0np0",
            "acpi_index": "7",
            "label": "Slot 3",
        },
        nodes=("/dev/vfio/42", "/dev/vfio/vfio"),
        sysfs="/sys/devices/pci0000:00/0000:3b:00.2",
        claim="pci:0000:3b:00.2",
    )
    assert numa_nodes(HostRoot(host), found) == (1,)


def mixed(machine: Machine) -> None:
    """Two cards, one divided in three, a GPU and a disk."""
    physical = machine.function("0000:3b:00.0", "15b3", "101d", NETWORK, driver="mlx5_core")
    machine.interface("ens1f0", physical)
    for index, driver in enumerate(("mlx5_core", "vfio-pci", "")):
        virtual(machine, physical, index, driver=driver)
    machine.interface("eno1", machine.function("0000:02:00.0", "8086", "1521", NETWORK, driver="igb"))
    machine.function("0000:19:00.0", "10de", "2330", "030200", driver="nvidia")
    machine.function("0001:01:00.0", "144d", "a808", "010802", driver="nvme")


@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        (Pci, {}, ["0000:02:00.0", "0000:19:00.0", *(f"0000:3b:00.{n}" for n in (1, 2, 3)), "0001:01:00.0"]),
        (Pci, {"with_vfs": True, "vendors": ["0x15B3"]}, [f"0000:3b:00.{n}" for n in range(4)]),
        (Pci, {"vendors": ["10de", "144d"]}, ["0000:19:00.0", "0001:01:00.0"]),
        (Pci, {"devices": ["0x101e"], "drivers": ["mlx5*"]}, ["0000:3b:00.1"]),
        (Pci, {"classes": ["03"]}, ["0000:19:00.0"]),
        (Pci, {"classes": ["0302", "0x010802"]}, ["0000:19:00.0", "0001:01:00.0"]),
        (Pci, {"addresses": ["3b:00.1", "0001:*"]}, ["0000:3b:00.1", "0001:01:00.0"]),
        (Pci, {"functions": "physical"}, ["0000:02:00.0", "0000:19:00.0", "0001:01:00.0"]),
        (Pci, {"functions": "virtual", "drivers": ["vfio-pci", "x"]}, ["0000:3b:00.2"]),
        (Pci, {"pf_names": ["ens1*#0,2-9"]}, ["0000:3b:00.1", "0000:3b:00.3"]),
        (Pci, {"pf_names": ["eno1"]}, []),
        (Pci, {"pf_addresses": ["3b:00.0#1"], "vendors": ["15b3"]}, ["0000:3b:00.2"]),
        (Pci, {"pf_drivers": ["igb"]}, []),
        (Pci, {"pf_drivers": ["mlx5_core"], "drivers": ["?*"]}, ["0000:3b:00.1", "0000:3b:00.2"]),
        (Net, {}, ["0000:02:00.0", "0000:3b:00.1", "0000:3b:00.2", "0000:3b:00.3"]),
        (Net, {"interfaces": ["eno*"]}, ["0000:02:00.0"]),
        (Net, {"with_vfs": True, "interfaces": ["ens1f0"]}, ["0000:3b:00.0"]),
        (Net, {"rdma": True}, ["0000:3b:00.1"]),
        (Net, {"rdma": False, "vendors": ["15b3"]}, ["0000:3b:00.2", "0000:3b:00.3"]),
        (Net, {"link_types": ["infiniband"]}, []),
        (Net, {"link_types": ["ether"], "drivers": ["vfio-pci"]}, ["0000:3b:00.2"]),
    ],
)
def test_pci_and_net_select(
    host: Path, machine: Machine, kind: type, written: dict[str, object], expected: list[str]
) -> None:
    mixed(machine)
    machine.rdma("mlx5_1", "/sys/devices/pci0000:00/0000:3b:00.1", 1)
    assert Scans(host, kind, **written).names() == expected


def test_net_leaves_out_interfaces_of_the_default_route(host: Path, machine: Machine) -> None:
    for number in range(5):
        path = machine.function(f"0000:0{number}:00.0", "8086", "1521", NETWORK, driver="igb")
        machine.interface(f"eth{number}", path)
    above = "/sys/devices/virtual"
    for name, lower in (("bond0", "eth1"), ("bond0.100", "bond0"), ("br-ex", "eth2")):
        at = machine.interface(name, f"{above}")
        machine.tree.link(f"{at}/lower_{lower}", f"/sys/class/net/{lower}")
    machine.routes("bond0.100", "br-ex", six=("eth3",))
    findings = Scans(host, Net).findings()
    assert [f.name for f in findings.found] == ["0000:00:00.0", "0000:04:00.0"]
    assert findings.notes == tuple(
        f"0000:0{n}:00.0 is left out: eth{n} has the host's default route" for n in (1, 2, 3)
    )
    assert len(Scans(host, Net, default_route=True).names()) == 5


def test_net_needs_the_routes_of_the_host(host: Path, machine: Machine) -> None:
    path = machine.function("0000:01:00.0", "8086", "1521", NETWORK, driver="vfio-pci")
    (host / "proc/1/net/route").unlink()
    assert Scans(host, Net).names() == ["0000:01:00.0"], "a function without an interface has no route"
    machine.interface("eth0", path)
    with pytest.raises(FileNotFoundError, match="default_route: true"):
        Scans(host, Net).findings()
    assert Scans(host, Net, default_route=True).names() == ["0000:01:00.0"]
    machine.routes()
    (host / "proc/1/net/ipv6_route").unlink()
    assert Scans(host, Net).names() == ["0000:01:00.0"], "a host without IPv6"


def test_an_interface_that_gets_the_default_route_is_not_allocated(host: Path, machine: Machine) -> None:
    machine.interface("eth0", machine.function("0000:01:00.0", "8086", "1521", NETWORK))
    scans = Scans(host, Net)
    found = scans.one()
    machine.routes("eth0")
    now = scans.source.resolve(scans.host, found)
    assert now is not None
    assert now.absent == "eth0 has the host's default route"


def test_routes_are_read_as_the_kernel_writes_them() -> None:
    table = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "eth1\t00000000\t00000000\t0000\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth2\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth3\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n"
        "eth4\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "eth5\t00000000\n\n"
        "eth6\t00000000\t0\tzz\t0\t0\t0\t00000000\n"
    )
    assert default_routes(table) == {"eth0"}
    zero = "0" * 32
    table = (
        f"{zero} 00 {zero} 00 fd000000000000000000000000000001 00000400 1 0 00000003     eth0\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
        f"{zero} 01 {zero} 00 {zero} 00000400 1 0 00000003     eth1\n"
        f"fe80{'0' * 28} 40 {zero} 00 {zero} 00000100 1 0 00000001     eth2\n"
        "rubbish\n"
    )
    assert default_routes_6(table) == {"eth0"}


def test_a_function_keeps_its_interface_s_name_while_that_is_with_a_pod(host: Path, machine: Machine) -> None:
    physical = machine.function("0000:3b:00.0", "15b3", "101d", NETWORK, driver="mlx5_core")
    path = virtual(machine, physical, 0, driver="mlx5_core")
    machine.interface("ens1f0v0", path, kind=32)
    machine.rdma("mlx5_2", path, 2)
    scans = Scans(host, Net, interfaces=["ens1f0v0"], link_types=["infiniband"], rdma=True)
    before = scans.one()
    assert before.attrs["interface"] == "ens1f0v0"
    away(host, path, "ens1f0v0", "mlx5_2")
    assert scans.one() == before
    # A new process finds the function, without the name.
    new = Scans(host, Net, functions="virtual").one()
    assert (new.name, new.attrs["interface"], new.attrs["link_type"]) == ("0000:3b:00.1", "", "ether")
    # With another driver it is another thing: what was seen does not hold any more.
    machine.unbind("0000:3b:00.1", path)
    machine.bind("0000:3b:00.1", path, "vfio-pci")
    assert scans.names() == []


def away(host: Path, path: str, interface: str, rdma: str) -> None:
    """Take an interface and an RDMA device out of the host's namespaces."""
    for name in (f"/sys/class/net/{interface}", f"/sys/class/infiniband/{rdma}"):
        (host / name.lstrip("/")).unlink()
    for name in ("net", "infiniband", "infiniband_verbs", "infiniband_mad"):
        shutil.rmtree(host / f"{path}/{name}".lstrip("/"))


def test_a_renamed_interface_has_its_new_name(host: Path, machine: Machine) -> None:
    path = machine.function("0000:01:00.0", "8086", "1521", NETWORK, driver="igb")
    machine.interface("eth0", path)
    scans = Scans(host, Net)
    assert scans.one().attrs["interface"] == "eth0"
    (host / "sys/class/net/eth0").unlink()
    shutil.rmtree(host / path.lstrip("/") / "net")
    machine.interface("lan0", path)
    assert scans.one().attrs["interface"] == "lan0"


def test_a_port_of_a_switch_s_representors_is_not_the_function_s_own(host: Path, machine: Machine) -> None:
    physical = machine.function("0000:3b:00.0", "15b3", "101d", NETWORK, driver="mlx5_core")
    machine.interface("ens1f0np0", physical, phys_port_name="p0")
    machine.interface("eth10", physical, phys_port_name="pf0vf0")
    machine.interface("eth11", physical, phys_port_name="c1pf0sf7")
    virtual(machine, physical, 0, driver="mlx5_core")
    assert Scans(host, Net, pf_names=["eth1*"]).names() == []
    assert Scans(host, Net, pf_names=["ens1f0np0#0"]).one().attrs["pf_name"] == "ens1f0np0"


def test_interfaces_without_a_pci_function_are_found_on_request(host: Path, machine: Machine) -> None:
    usb = machine.function("0000:00:14.0", "8086", "a36d", "0c0330", driver="xhci_hcd")
    machine.interface("enx1", f"{usb}/usb1/1-2/1-2:1.0")
    machine.interface("eth5", f"{machine.function('0000:3b:00.0', '15b3', 'a2d6', NETWORK)}/mlx5_core.sf.4")
    machine.interface(
        "eth0", f"{machine.function('0000:00:03.0', '1af4', '1041', NETWORK, driver='virtio-pci')}/virtio2"
    )
    for name in ("dummy0", "veth12", "lo"):
        machine.interface(name, "/sys/devices/virtual", kind=772 if name == "lo" else 1)
    machine.tree.file("/sys/class/net/bonding_masters", "\n")
    hardware = Scans(host, Net, kinds=["hardware"]).findings().found
    assert [(f.name, f.claim) for f in hardware] == [("enx1", "usb:1-2"), ("eth5", "net:eth5")]
    assert Scans(host, Net, kinds=["virtual"]).names() == ["dummy0", "veth12"]
    found = Scans(host, Net, kinds=["virtual", "pci"], interfaces=["dummy*", "eth0"]).findings().found
    assert [(f.name, f.claim, f.attrs["kind"], f.attrs["interface"]) for f in found] == [
        ("0000:00:03.0", "pci:0000:00:03.0", "pci", "eth0"),
        ("dummy0", "net:dummy0", "virtual", "dummy0"),
    ]
    assert Scans(host, Net, kinds=["virtual"], vendors=["8086"]).names() == []


def test_infiniband_is_joined_with_its_interface(host: Path, machine: Machine) -> None:
    path = machine.function("0000:3b:00.0", "15b3", "1003", NETWORK, driver="mlx4_core")
    machine.interface("ib0", path)
    machine.interface("ens1", path)
    machine.rdma("mlx4_0", path, 0)
    machine.tree.files(f"{path}/infiniband/mlx4_0/ports/1/gid_attrs/ndevs", **{"0": "ens1", "1": "gone"})
    machine.tree.files(f"{path}/infiniband/mlx4_0/ports/2", state="1: DOWN", link_layer="InfiniBand")
    found = Scans(host, Infiniband).one()
    expected = {
        "interface": "ens1",
        "link_type": "ether",
        "ports": "2",
        "states": "ACTIVE,DOWN",
        "uverbs": "/dev/infiniband/uverbs0",
        "address": "0000:3b:00.0",
    }
    assert expected.items() <= dict(found.attrs).items()
    assert found.nodes == tuple(f"/dev/infiniband/{n}" for n in ("issm0", "rdma_cm", "umad0", "uverbs0"))


def test_an_rdma_device_in_software_has_no_function(host: Path, machine: Machine) -> None:
    at = "/sys/devices/virtual/infiniband/rxe0"
    machine.tree.files(f"{at}/ports/1", state="4: ACTIVE", link_layer="Ethernet")
    machine.tree.link("/sys/class/infiniband/rxe0", at)
    machine.tree.files("/sys/class/infiniband_verbs/uverbs7", ibdev="rxe0")
    found = Scans(host, Infiniband).one()
    assert (found.claim, found.attrs["address"], found.nodes) == (
        "rdma:rxe0",
        "",
        ("/dev/infiniband/uverbs7",),
    )
    assert Scans(host, Infiniband, drivers=["*"]).names() == []


def test_all_together_are_one_device_while_there_is_one(host: Path, machine: Machine) -> None:
    scans = Scans(host, Infiniband, together=True)
    assert scans.findings().found == ()
    for number in range(2):
        machine.rdma(
            f"mlx5_{number}", machine.function(f"0000:3b:00.{number}", "15b3", "1017", NETWORK), number
        )
    found = scans.one()
    assert (found.name, found.claim, found.attrs["devices"]) == ("all", "", "mlx5_0,mlx5_1")
    assert len(found.nodes) == 7
    assert scans.source.resolve(scans.host, found) == found
    for number in range(2):
        (host / f"sys/class/infiniband/mlx5_{number}").unlink()
    assert scans.source.resolve(scans.host, found) is None


def test_drm_finds_cards_on_any_bus(host: Path, machine: Machine) -> None:
    machine.card(0, machine.function("0000:00:02.0", "8086", "9a49", "030000", driver="i915"))
    machine.card(1, f"{machine.function('0000:00:04.0', '1af4', '1050', '038000')}/virtio3", render=None)
    machine.card(2, "/sys/devices/platform/gpu", render=129)
    found = Scans(host, Drm).findings().found
    assert [(f.name, f.claim, f.path, f.nodes) for f in found] == [
        ("card0", "pci:0000:00:02.0", "/dev/dri/card0", ("/dev/dri/card0", "/dev/dri/renderD128")),
        ("card1", "pci:0000:00:04.0", "/dev/dri/card1", ("/dev/dri/card1",)),
        ("card2", "drm:gpu", "/dev/dri/card2", ("/dev/dri/card2", "/dev/dri/renderD129")),
    ]
    assert [f.attrs["device_name"] for f in found] == ["0000:00:02.0", "virtio3", "gpu"]
    assert Scans(host, Drm, names=["card[12]"], functions="physical").names() == ["card1", "card2"]
    assert Scans(host, Drm, drivers=["i915"]).one().attrs["render_minor"] == "128"


def test_kfd_joins_nodes_with_cards_and_partitions_with_their_function(host: Path, machine: Machine) -> None:
    whole = machine.function("0001:a4:00.0", "1002", "74a1", "120000", driver="amdgpu", numa=1)
    machine.tree.files(whole, current_compute_partition="CPX", current_memory_partition="NPS1")
    machine.card(0, whole, render=144)
    machine.card(1, "/sys/devices/platform/amdgpu_xcp_1", render=145)
    machine.compute_node(0, cpu_cores_count=8, drm_render_minor=0)
    same = {"simd_count": 80, "gfx_target_version": 90402, "domain": 1, "unique_id": 0x8D6124B3D9F7FC22}
    machine.compute_node(1, location_id=0xA400, drm_render_minor=144, **same)
    machine.compute_node(2, location_id=0xA401, drm_render_minor=145, **same)
    machine.compute_node(3, location_id=0xA402, drm_render_minor=146, **same)
    found = Scans(host, Kfd).findings().found
    assert [(f.name, f.claim, f.attrs["partition"], f.attrs["address"]) for f in found] == [
        ("0001:a4:00.0", "pci:0001:a4:00.0", "", "0001:a4:00.0"),
        ("amdgpu_xcp_1", "kfd:amdgpu_xcp_1", "amdgpu_xcp_1", "0001:a4:00.0"),
    ]
    expected = {
        "kfd_node": "2",
        "gpu_id": "1002",
        "gfx": "gfx942",
        "unique_id": "8d6124b3d9f7fc22",
        "compute_partition": "cpx",
        "memory_partition": "nps1",
        "render": "/dev/dri/renderD145",
    }
    assert expected.items() <= dict(found[1].attrs).items()
    assert found[1].nodes == ("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD145")
    assert numa_nodes(HostRoot(host), found[1]) == (1,)
    assert Scans(host, Kfd, partitions=False).names() == ["0001:a4:00.0"]


@pytest.mark.parametrize(
    ("version", "gfx"), [(90010, "gfx90a"), (90402, "gfx942"), (110_000, "gfx1100"), (0, "")]
)
def test_an_instruction_set_has_the_name_that_compilers_use(version: int, gfx: str) -> None:
    assert ComputeNode(1, "", {"gfx_target_version": version}).gfx == gfx


@pytest.mark.parametrize(
    ("kind", "without", "unselected"),
    [
        (Pci, "/sys/bus/pci/devices is not there", "none of 7 PCI functions is selected"),
        (Net, "/sys/bus/pci/devices is not there", "no network function or interface is selected"),
        (Infiniband, "/sys/class/infiniband has no device", "none of 1 RDMA devices is selected"),
        (Drm, "/sys/class/drm has no card", "none of 1 cards is selected"),
        (Kfd, "/sys/class/kfd/kfd/topology/nodes is not there", "none of 1 compute nodes is selected"),
    ],
)
def test_notes_of_a_scan_without_devices(
    host: Path, machine: Machine, kind: type, without: str, unselected: str
) -> None:
    findings = Scans(host, kind).findings()
    assert (findings.found, findings.notes) == ((), (without,))
    assert findings.subsystems
    mixed(machine)
    machine.card(0, "/sys/devices/pci0000:00/0000:19:00.0")
    machine.rdma("mlx5_0", "/sys/devices/pci0000:00/0000:3b:00.1", 0)
    machine.compute_node(1, location_id=0x1900, drm_render_minor=128)
    assert Scans(host, kind, vendors=["1234"]).findings().notes == (unselected,)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"link_types": ["ether"]}, ["mlx5_0"]),
        ({"interfaces": ["if1"]}, ["mlx5_1"]),
        ({"names": ["mlx5_*"], "vendors": ["15b3"], "drivers": ["mlx5*"]}, ["mlx5_0", "mlx5_1"]),
        ({"together": True, "link_types": ["ether", "infiniband"]}, ["all"]),
    ],
)
def test_infiniband_selects(
    host: Path, machine: Machine, written: dict[str, object], expected: list[str]
) -> None:
    for number, (layer, kind) in enumerate((("Ethernet", 1), ("InfiniBand", 32))):
        path = machine.function(f"0000:3b:00.{number}", "15b3", "1017", NETWORK, driver="mlx5_core")
        machine.interface(f"if{number}", path, kind=kind)
        machine.rdma(f"mlx5_{number}", path, number, layer=layer)
    assert Scans(host, Infiniband, **written).names() == expected


# Odd trees: the host changes during a scan, or a file is missing or damaged.

FUNCTION = "/sys/devices/pci0000:00/0000:3b:00.0"
Oddity = Callable[[Machine], None]


def _without(name: str) -> Oddity:
    return lambda machine: machine.tree.at(f"{FUNCTION}/{name}").unlink()


def _with(name: str, text: str | bytes) -> Oddity:
    return lambda machine: (machine.tree.file(f"{FUNCTION}/{name}", text), None)[1]


def _link(name: str, target: str) -> Oddity:
    return lambda machine: (machine.tree.link(f"{FUNCTION}/{name}", target), None)[1]


def _fifo(machine: Machine) -> None:
    machine.tree.at(f"{FUNCTION}/label").unlink(missing_ok=True)
    os.mkfifo(machine.tree.at(f"{FUNCTION}/label"))


ODD: dict[str, tuple[Oddity, dict[str, str] | None]] = {
    "no driver": (lambda _: None, {"driver": "", "vfio": ""}),
    "driver dangling": (_link("driver", "../../../bus/pci/drivers/igb"), {"driver": "igb"}),
    "driver no link": (_with("driver", "igb"), {"driver": ""}),
    "vendor gone": (_without("vendor"), None),
    "vendor empty": (_with("vendor", ""), None),
    "vendor rubbish": (_with("vendor", b"\xff\xfe\x00"), None),
    "class gone": (_without("class"), {"class": ""}),
    "class huge": (_with("class", "0" * 100_000), {"class": ""}),
    "revision gone": (_without("revision"), {"revision": ""}),
    "label huge": (_with("label", "x" * 100_000), {"label": "x" * 256}),
    "label a pipe": (_fifo, {"label": ""}),
    "physfn dangling": (_link("physfn", "../0000:3a:00.0"), {"pf": "0000:3a:00.0", "vf": "", "pf_name": ""}),
    "physfn elsewhere": (_link("physfn", "/etc/passwd"), {"pf": ""}),
    "iommu_group dangling": (_link("iommu_group", "/sys/kernel/x/17"), {"iommu_group": "17"}),
    "iommu_group no number": (_link("iommu_group", "../.."), {"vfio": ""}),
    "sriov_numvfs rubbish": (_with("sriov_numvfs", "many\n"), {"vfs": "0"}),
    "a link to itself": (_link("uio", "uio"), {"uio": ""}),
}


@pytest.mark.parametrize("oddity", ODD)
@pytest.mark.parametrize("kind", [Pci, Net])
def test_an_odd_function_has_the_attributes_that_can_be_read(
    host: Path, machine: Machine, oddity: str, kind: type
) -> None:
    machine.function("0000:3b:00.0", "8086", "1521", NETWORK, numa=1)
    machine.function("0000:5e:00.0", "8086", "1521", NETWORK)
    make, expected = ODD[oddity]
    make(machine)
    found = {f.name: f for f in Scans(host, kind).findings().found}
    assert "0000:5e:00.0" in found, "the next one is not its brother's keeper"
    if expected is None or (kind is Net and expected.get("class") == ""):
        assert "0000:3b:00.0" not in found
        return
    odd = found["0000:3b:00.0"]
    assert {key: odd.attrs[key] for key in expected} == expected
    assert numa_nodes(HostRoot(host), odd) == (1,)


def test_links_out_of_the_host_s_root_are_not_followed(host: Path, root: Path) -> None:
    outside = HostTree(root / "outside")
    Machine(outside).function("0000:3b:00.0", "8086", "1521", NETWORK)
    devices = HostTree(host).directory("/sys/bus/pci/devices")
    (devices / "0000:3b:00.0").symlink_to(root / "outside/sys/devices/pci0000:00/0000:3b:00.0")
    (devices / "0000:3b:00.1").symlink_to("../../../../../../../../../../.." + str(root / "outside"))
    (devices / "0000:3b:00.2").symlink_to("0000:3b:00.2")
    assert Scans(host, Pci).names() == []
    (root / "secret").write_text("secret")
    path = Machine(HostTree(host)).function("0000:5e:00.0", "8086", "1521", NETWORK)
    (host / path.lstrip("/") / "label").symlink_to(root / "secret")
    assert Scans(host, Pci).one().attrs["label"] == ""


def test_several_interfaces_and_several_functions_of_one_card(host: Path, machine: Machine) -> None:
    """Two functions that have their interfaces together: in sysfs these belong to the first."""
    for function in range(2):
        machine.function(f"0000:3b:00.{function}", "15b3", "101d", NETWORK, driver="mlx5_core")
    for name in ("ens1d1", "ens1"):
        machine.interface(name, FUNCTION)
    found = Scans(host, Net).findings().found
    assert [f.attrs["interfaces"] for f in found] == ["ens1,ens1d1", ""]
    assert Scans(host, Net, interfaces=["ens1d1"]).one().attrs["interface"] == "ens1"


@pytest.mark.parametrize("kind", [Pci, Net, Infiniband, Drm, Kfd])
@pytest.mark.parametrize("call", ["open", "scandir", "readlink", "read"])
def test_what_vanishes_during_a_scan_is_no_error(
    host: Path, machine: Machine, kind: type, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call in turn fails as it does for something that has just gone."""
    physical = machine.function("0000:3b:00.0", "15b3", "101d", NETWORK, driver="mlx5_core")
    path = virtual(machine, physical, 0, driver="mlx5_core")
    machine.interface("ens1f0v0", path)
    machine.rdma("mlx5_2", path, 2)
    machine.card(0, path)
    machine.compute_node(1, location_id=0x3B01, drm_render_minor=128)
    source: Scanner = msgspec.convert({"default_route": True} if kind is Net else {}, kind).scanner()
    real = getattr(os, call)
    gone = errno.ENODEV if call == "read" else errno.ENOENT
    wanted, made = 0, 0

    def fails(*arguments: Any, **settings: Any) -> Any:
        nonlocal made
        made += 1
        if made == wanted:
            raise OSError(gone, os.strerror(gone))
        return real(*arguments, **settings)

    monkeypatch.setattr(os, call, fails)
    while made >= wanted:
        wanted, made = wanted + 1, 0
        source.scan(HostRoot(host))
    assert wanted > 1
