"""Presets whose devices name their resources: what a kubelet is shown, and the exact answers to Allocate."""

from harness.hosttree import HostTree
from harness.served import Answer, Listed, Node, nodes
from harness.usb import UsbBus

REGION_ID = "69528db6eb31577a8c3668f9faa081f6"
AFU_ID = "d8424dc4a4a3c413f89e433683f9040b"
NONE_ID = "f" * 32


def dfl_port(tree: HostTree, number: int, afu: str, interface: str = REGION_ID, numa: int = 0) -> str:
    """A port of the kernel's own driver, and its management engine."""
    function = f"/sys/devices/pci0000:5e/0000:5e:00.{number}"
    tree.files(function, numa_node=numa)
    region = f"{function}/fpga_region/region{number}"
    port = f"{region}/dfl-port.{number}"
    tree.files(port, afu_id=afu, dev=f"243:{number}")
    tree.file(f"{port}/uevent", f"MAJOR=243\nMINOR={number}\nDEVNAME=dfl-port.{number}\n")
    engine = f"{region}/dfl-fme.{number}/dfl-fme-region.{number}/fpga_region/region{number + 10}"
    tree.files(engine, compat_id=interface)
    tree.link(f"/sys/class/fpga_region/region{number}", region)
    tree.file(f"/dev/dfl-port.{number}")
    return engine


async def test_intel_fpga_by_its_program_or_its_region(node: Node, tree: HostTree) -> None:
    dfl_port(tree, 0, AFU_ID, numa=1)
    dfl_port(tree, 1, AFU_ID)
    dfl_port(tree, 2, NONE_ID)
    dfl_port(tree, 3, NONE_ID, interface=NONE_ID)
    program, region = f"fpga.intel.com/af-{AFU_ID}", f"fpga.intel.com/region-{REGION_ID}"
    async with node.serve("intel-fpga"):
        assert await node.devices(program, 2) == {"dfl-port.0": Listed(1), "dfl-port.1": Listed(0)}
        assert await node.devices(region, 1) == {"dfl-port.2": Listed(0)}
        for name, device in ((program, "dfl-port.1"), (region, "dfl-port.2")):
            assert await node.allocate(name, device) == Answer(nodes=nodes("rw", f"/dev/{device}"))


async def test_intel_fpga_is_unhealthy_without_firmware(node: Node, tree: HostTree) -> None:
    engine = dfl_port(tree, 0, AFU_ID)
    name = f"fpga.intel.com/af-{AFU_ID}"
    async with node.serve("intel-fpga"):
        await node.devices(name, 1)
        tree.files(engine, compat_id=NONE_ID)
        await node.allocatable(name, 0)
        tree.files(engine, compat_id=REGION_ID)
        await node.allocatable(name, 1)


async def test_intel_fpga_of_the_older_driver(node: Node, tree: HostTree) -> None:
    card = "/sys/devices/pci0000:b2/0000:b2:00.0"
    physical = f"{card}/fpga/intel-fpga-dev.0"
    tree.files(card, numa_node=1)
    tree.files(f"{physical}/intel-fpga-port.0", afu_id=AFU_ID, dev="241:0")
    tree.files(f"{physical}/intel-fpga-fme.0/pr", interface_id=REGION_ID)
    tree.link("/sys/class/fpga/intel-fpga-dev.0", physical)
    part = "/sys/devices/pci0000:b2/0000:b2:01.0"
    tree.link(f"{part}/physfn", card)
    tree.files(f"{part}/fpga/intel-fpga-dev.1/intel-fpga-port.1", afu_id=AFU_ID, dev="241:1")
    tree.link("/sys/class/fpga/intel-fpga-dev.1", f"{part}/fpga/intel-fpga-dev.1")
    for number in (0, 1):
        tree.file(f"/dev/intel-fpga-port.{number}")
    async with node.serve("intel-fpga"):
        name = f"fpga.intel.com/af-{AFU_ID}"
        ids = ("intel-fpga-port.0", "intel-fpga-port.1")
        assert await node.devices(name, 2) == {ids[0]: Listed(1), ids[1]: Listed()}
        answer = await node.allocate(name, *ids)
        assert answer == Answer(nodes=nodes("rw", *(f"/dev/{i}" for i in ids)))


async def test_usb_is_a_resource_for_each_kind_of_device(node: Node, bus: UsbBus) -> None:
    inner = bus.plug("1-1", "0403", "6001", "A1", address=5)
    bus.child(inner, "ttyUSB0/tty/ttyUSB0", "tty", "ttyUSB0")
    bus.plug("1-2", "046d", "0825", address=6)
    bus.plug("1-3", "05e3", "0608", address=7, code="09")
    async with node.serve("usb"):
        name = "devicelens.dev/usb-0403-6001"
        assert await node.devices(name, 1) == {"A1": Listed(1)}
        assert await node.devices("devicelens.dev/usb-046d-0825", 1) == {"1-2": Listed(1)}
        assert await node.allocate(name, "A1") == Answer(
            nodes=nodes("rw", "/dev/bus/usb/001/005", "/dev/ttyUSB0")
        )


async def test_dev_is_a_resource_for_each_node(node: Node, tree: HostTree) -> None:
    for name in ("i2c-1", "spidev0.0", "video0", "ttyUSB0", "ttyS0", "null", "sda"):
        tree.file(f"/dev/{name}")
    async with node.serve("dev") as served:
        for name, device in (
            ("i2c-1", "i2c-1"),
            ("spidev0_0", "spidev0.0"),
            ("video0", "video0"),
            ("ttyUSB0", "ttyUSB0"),
        ):
            assert await node.devices(f"smarter-devices/{name}", 1) == {device: Listed()}
        assert await node.allocate("smarter-devices/spidev0_0", "spidev0.0") == Answer(
            nodes=nodes("rw", "/dev/spidev0.0")
        )
        assert {s.name for s in served.fleet.statuses()} >= {"smarter-devices/i2c-1"}
        assert not {s.name for s in served.fleet.statuses()} & {"smarter-devices/ttyS0"}


async def test_dev_of_nodes_in_directories_shared(node: Node, tree: HostTree) -> None:
    tree.file("/dev/snd/controlC0")
    text = """\
version: 1
resources:
  - preset: dev
    discover: [{regex: {pattern: "gpiochip[0-9]+|snd/.*", depth: 2}}]
    share: {replicas: 20}
"""
    async with node.serve(text):
        await node.devices("smarter-devices/snd_controlC0", 20)
        answer = await node.allocate("smarter-devices/snd_controlC0", "snd/controlC0::3")
        assert answer == Answer(nodes=nodes("rw", "/dev/snd/controlC0"))
