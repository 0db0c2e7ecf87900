"""Why a source does not select a candidate, for each source that has conditions."""

from typing import Any

import msgspec
import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from harness.nvml import A100_MIG, H100, H100_UUID, SLICES, FakeNvml
from harness.usb import UsbBus
from plugin.discovery.drm import Drm
from plugin.discovery.group import Group
from plugin.discovery.host import HostRoot
from plugin.discovery.infiniband import Infiniband
from plugin.discovery.kfd import Kfd
from plugin.discovery.net import Net
from plugin.discovery.nvidia import Nvidia
from plugin.discovery.pci import Pci
from plugin.discovery.source import MOST_NOT_SELECTED, Candidates, Findings, Found, Mismatch
from plugin.discovery.sysfs import Sysfs
from plugin.discovery.usb import Usb


def scan(here: HostRoot, source: Any, **written: object) -> Findings:
    findings: Findings = msgspec.convert(written, source).scanner().scan(here)
    return findings


def reasons(here: HostRoot, source: Any, **written: object) -> dict[str, str]:
    return {name: str(reason) for name, reason in scan(here, source, **written).not_selected.first}


@pytest.fixture
def mixed(machine: Machine) -> None:
    """A network card with one virtual function and an RDMA device, a GPU with a card, and a veth."""
    machine.routes()
    physical = machine.function("0000:3b:00.0", "15b3", "101d", "020000", driver="mlx5_core")
    machine.interface("ens1f0", physical)
    machine.rdma("mlx5_0", physical, 0)
    virtual = machine.function("0000:3b:00.1", "15b3", "101e", "020000")
    machine.virtual(physical, virtual, 0)
    gpu = machine.function("0000:19:00.0", "10de", "2330", "030200", driver="nvidia")
    machine.card(0, gpu)
    machine.interface("veth0", "/sys/devices/virtual")


PHYSICAL, VIRTUAL, GPU = "0000:3b:00.0", "0000:3b:00.1", "0000:19:00.0"
WITH_VFS = "with_vfs: found a function with virtual functions"


@pytest.mark.usefixtures("mixed")
@pytest.mark.parametrize(
    ("kind", "written", "expected"),
    [
        (Pci, {}, {PHYSICAL: WITH_VFS}),
        (
            Pci,
            {"vendors": ["0x15B3"], "devices": ["101e", "1"], "with_vfs": True},
            {
                GPU: "vendors: found '10de', expected '0x15B3'",
                PHYSICAL: "devices: found '101d', expected one of '101e', '1'",
            },
        ),
        (
            Pci,
            {"classes": ["0302"], "addresses": ["3b:*"]},
            {
                GPU: "addresses: expected '3b:*'",
                PHYSICAL: "classes: found '020000', expected '0302'",
                VIRTUAL: "classes: found '020000', expected '0302'",
            },
        ),
        (
            Pci,
            {"drivers": ["vfio-pci", "mlx5*"], "functions": "virtual"},
            {
                GPU: "drivers: found 'nvidia', expected one of 'vfio-pci', 'mlx5*'",
                PHYSICAL: "functions: found 'physical', expected 'virtual'",
                VIRTUAL: "drivers: found nothing, expected one of 'vfio-pci', 'mlx5*'",
            },
        ),
        (
            Pci,
            {"pf_names": ["ens1f0#1-3"], "vendors": ["15b3"], "with_vfs": True},
            {
                GPU: "vendors: found '10de', expected '15b3'",
                PHYSICAL: "pf_names: found nothing, expected 'ens1f0#1-3'",
                VIRTUAL: "pf_names: found 'ens1f0#0', expected 'ens1f0#1-3'",
            },
        ),
        (
            Pci,
            {"pf_addresses": ["3b:00.1"], "functions": "virtual"},
            {
                GPU: "functions: found 'physical', expected 'virtual'",
                PHYSICAL: "functions: found 'physical', expected 'virtual'",
                VIRTUAL: "pf_addresses: found '0000:3b:00.0#0', expected '3b:00.1'",
            },
        ),
        (
            Pci,
            {"pf_drivers": ["igb"], "vendors": ["15b3"], "devices": ["101e"]},
            {
                GPU: "vendors: found '10de', expected '15b3'",
                PHYSICAL: "devices: found '101d', expected '101e'",
                VIRTUAL: "pf_drivers: found 'mlx5_core', expected 'igb'",
            },
        ),
        # Functions that are no network functions are no candidates of `net`.
        (
            Net,
            {"interfaces": ["eth*"]},
            {PHYSICAL: WITH_VFS, VIRTUAL: "interfaces: found nothing, expected 'eth*'"},
        ),
        (
            Net,
            {"link_types": ["infiniband"], "with_vfs": True, "kinds": ["pci", "hardware"]},
            {
                PHYSICAL: "link_types: found 'ether', expected 'infiniband'",
                VIRTUAL: "link_types: found 'ether', expected 'infiniband'",
                "veth0": "kinds: found 'virtual', expected one of 'pci', 'hardware'",
            },
        ),
        (Net, {"rdma": False, "with_vfs": True}, {PHYSICAL: "rdma: found an RDMA device"}),
        (
            Net,
            {"rdma": True, "with_vfs": True, "kinds": ["pci", "virtual"]},
            {VIRTUAL: "rdma: found no RDMA device", "veth0": "rdma: found no RDMA device"},
        ),
        (
            Net,
            {"vendors": ["8086"], "kinds": ["virtual"]},
            {"veth0": "vendors: found nothing, expected '8086'"},
        ),
        (Infiniband, {"names": ["mlx5_1"]}, {"mlx5_0": "names: expected 'mlx5_1'"}),
        (Infiniband, {"interfaces": ["ib*"]}, {"mlx5_0": "interfaces: found 'ens1f0', expected 'ib*'"}),
        (
            Infiniband,
            {"link_types": ["infiniband"], "together": True},
            {"mlx5_0": "link_types: found 'ether', expected 'infiniband'"},
        ),
        (Infiniband, {"drivers": ["irdma"]}, {"mlx5_0": "drivers: found 'mlx5_core', expected 'irdma'"}),
        (Drm, {"names": ["card1"]}, {"card0": "names: expected 'card1'"}),
        (Drm, {"vendors": ["1002"]}, {"card0": "vendors: found '10de', expected '1002'"}),
        (
            Sysfs,
            {
                "paths": ["/sys/bus/pci/devices/*"],
                "pattern": "/sys/bus/pci/devices/0000:(?P<bus>3b).*",
                "keep": [{"file": "device", "one_of": ["0x101e", "0x2"]}, {"file": "sriov_numvfs"}],
            },
            {
                f"/sys/bus/pci/devices/{GPU}": (
                    "pattern: expected '/sys/bus/pci/devices/0000:(?P<bus>3b).*'"
                ),
                f"/sys/bus/pci/devices/{PHYSICAL}": (
                    "keep: device: found '0x101d', expected one of '0x101e', '0x2'"
                ),
                f"/sys/bus/pci/devices/{VIRTUAL}": "keep: sriov_numvfs is not there",
            },
        ),
    ],
)
def test_conditions_on_functions(
    here: HostRoot, kind: Any, written: dict[str, object], expected: dict[str, str]
) -> None:
    assert reasons(here, kind, **written) == expected


@pytest.mark.usefixtures("mixed")
def test_what_is_selected_has_no_reason(here: HostRoot) -> None:
    findings = scan(here, Pci, vendors=["15b3"], with_vfs=True)
    assert [item.name for item in findings.found] == [PHYSICAL, VIRTUAL]
    assert [name for name, _ in findings.not_selected.first] == [GPU]
    assert findings.not_selected.more == 0


def test_compute_nodes(tree: HostTree, here: HostRoot) -> None:
    tree.load("amd-kfd")
    found = reasons(here, Kfd)
    assert found == {"kfd node 1": "no card has renderD128", "kfd node 2": "no card has renderD129"}


def test_compute_nodes_with_cards(machine: Machine, here: HostRoot) -> None:
    gpu = machine.function("0000:0c:00.0", "1002", "74a1", "120000", driver="amdgpu")
    machine.card(1, gpu, render=129)
    machine.compute_node(1, drm_render_minor=129, location_id=0x0C00)
    assert reasons(here, Kfd, partitions=True) == {"0000:0c:00.0": "partitions: found a whole device"}
    assert reasons(here, Kfd, devices=["740f"]) == {"0000:0c:00.0": "devices: found '74a1', expected '740f'"}
    assert reasons(here, Kfd) == {}


def test_usb(bus: UsbBus, here: HostRoot) -> None:
    bus.plug("1-1", "0403", "6001", "A1")
    bus.plug("1-2", "046d", "0825", address=7, interface="0e")
    assert reasons(here, Usb, vendors=["0403"], products=["6015", "1"]) == {
        "A1": "products: found '6001', expected one of '6015', '1'",
        "1-2": "vendors: found '046d', expected '0403'",
    }
    assert reasons(here, Usb, serials=["B*"], ports=["1-1"]) == {
        "A1": "serials: found 'A1', expected 'B*'",
        "1-2": "serials: found nothing, expected 'B*'",
    }
    assert reasons(here, Usb, classes=["0e"], with_nodes=["video4linux"])["1-2"] == (
        "with_nodes: found nothing, expected 'video4linux'"
    )
    assert reasons(here, Usb, ports=["1-1"]) == {"1-2": "ports: found '1-2', expected '1-1'"}


def test_groups_that_lack_a_member(tree: HostTree, here: HostRoot) -> None:
    for name in ("controlC0", "controlC1", "controlC2", "pcmC1D0c"):
        tree.file(f"/dev/snd/{name}")
    members = [
        {"path": "/dev/snd/controlC*"},
        {"path": "/dev/snd/pcmC*"},
        {"path": "/dev/x*", "optional": True},
    ]
    findings = scan(here, Group, members=members)
    assert [item.name for item in findings.found] == ["controlC0"]
    lacking = "nothing is free of what matches /dev/snd/pcmC*"
    assert findings.not_selected.first == (("controlC1", lacking), ("controlC2", lacking))


def test_gpus_and_slices(here: HostRoot, nvml: FakeNvml) -> None:
    nvml.reports(H100)
    assert reasons(here, Nvidia) == {}
    assert reasons(here, Nvidia, kind="both") == {}
    assert reasons(here, Nvidia, kind="slices") == {
        H100_UUID: "kind: found a GPU without MIG slices, expected slices"
    }
    nvml.reports(A100_MIG, *SLICES)
    assert set(reasons(here, Nvidia).values()) == {"kind: found a MIG slice, expected a GPU"}
    assert len(reasons(here, Nvidia)) == len(SLICES)
    assert reasons(here, Nvidia, kind="both") == {}


def test_reasons_are_bounded_and_escaped() -> None:
    candidates = Candidates()
    for number in range(MOST_NOT_SELECTED + 44):
        candidates.add(f"d{number}", Mismatch("drivers", ["a"] * 20, ("\x1b[2J" + "x" * 9000,)))
    candidates.add("gone", None)
    candidates.add("there", Found("there"))
    assert [item.name for item in candidates.found] == ["there"]
    others = candidates.not_selected
    assert (len(others.first), others.more) == (MOST_NOT_SELECTED, 44)
    text = str(others.first[0][1])
    assert text.startswith("drivers: found '\\x1b[2Jxxx")
    assert text.endswith("'a', 'a' and 12 more")
    assert len(text) < 300
