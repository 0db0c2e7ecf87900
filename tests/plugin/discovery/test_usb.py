import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.markdown import fences
from harness.reference import DOCUMENT, whole
from harness.served import Node, nodes
from harness.usb import UsbBus
from plugin.config.load import load
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings, Found
from plugin.discovery.sysfs_tree import numa_nodes
from plugin.discovery.usb import Plugged, SerialNames, Usb, UsbScanner


@pytest.fixture
def bus(bus: UsbBus) -> UsbBus:
    root_hub = f"{bus.controller}/usb1"
    bus.tree.files(root_hub, idVendor="1d6b", idProduct="0002", busnum=1, devnum=1, bDeviceClass="09")
    bus.tree.link("/sys/bus/usb/devices/usb1", root_hub)
    return bus


def scan(here: HostRoot, **selectors: list[str]) -> Findings:
    return UsbScanner(Usb(**selectors)).scan(here)


def named(findings: Findings) -> dict[str, Found]:
    return {found.name: found for found in findings.found}


def test_a_device_has_its_attributes_its_node_and_its_childrens(bus: UsbBus, here: HostRoot) -> None:
    hub = bus.plug("1-2", "05e3", "0608", code="09")
    inner = bus.plug("1-2.4", "0403", "6001", "A50285BI", address=17, driver="ftdi_sio")
    bus.child(inner, "ttyUSB3/tty/ttyUSB3", "tty", "ttyUSB3")
    bus.child(inner, "0003:0403:6001.0001/hidraw/hidraw0", "hidraw", "hidraw0")
    bus.child(inner, "input/input5/event12", "input", "input/event12")
    bus.child(inner, "input/input5/event3", "input", "input/event3")
    bus.tree.files(f"{inner}/net/wwan0", ifindex=7)
    bus.tree.files(f"{hub}/power", dev="x")
    findings = scan(here)
    (found,) = findings.found
    assert (found.name, found.path, found.claim) == ("A50285BI", "/dev/bus/usb/001/017", "usb:1-2.4")
    assert dict(found.attrs) == {
        "vendor": "0403",
        "product": "6001",
        "serial": "A50285BI",
        "manufacturer": "ACME",
        "product_name": "Thing",
        "port": "1-2.4",
        "bus": "1",
        "address": "17",
        "class": "00",
        "classes": "ff",
        "speed": "480",
        "drivers": "ftdi_sio",
        "tty": "/dev/ttyUSB3",
        "input": "/dev/input/event3,/dev/input/event12",
        "video4linux": "",
        "hidraw": "/dev/hidraw0",
        "sound": "",
        "block": "",
        "net": "wwan0",
    }
    assert found.nodes == (
        "/dev/bus/usb/001/017",
        "/dev/hidraw0",
        "/dev/input/event3",
        "/dev/input/event12",
        "/dev/ttyUSB3",
    )
    assert numa_nodes(here, found) == (1,)
    assert {"usb", "tty", "video4linux"} <= findings.subsystems
    assert set(findings.follow) == {("/dev/bus/usb", "*"), ("/dev/bus/usb/001", "*")}


def test_a_disk_has_its_partitions(bus: UsbBus, here: HostRoot) -> None:
    inner = bus.plug("1-1", "0781", "5581", "S", interface="08")
    disk = "host6/target6:0:0/6:0:0:0/block/sdb"
    bus.child(inner, disk, "block", "sdb")
    bus.child(inner, f"{disk}/sdb1", "block", "sdb1")
    assert named(scan(here))["S"].attrs["block"] == "/dev/sdb,/dev/sdb1"


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ({}, ["1-3", "A1", "A2"]),
        ({"vendors": ["0x0403"]}, ["A1", "A2"]),
        ({"vendors": ["403"], "products": ["6015"]}, ["A2"]),
        ({"serials": ["*2"]}, ["A2"]),
        ({"ports": ["1-3", "1-1"]}, ["1-3", "A1"]),
        ({"ports": ["2-*"]}, []),
        ({"classes": ["e"]}, ["1-3"]),
        ({"classes": ["03"]}, ["A2"]),
        ({"with_nodes": ["tty", "net"]}, ["A1"]),
        ({"with_nodes": ["video*"]}, ["1-3"]),
    ],
)
def test_usb_selects(
    bus: UsbBus, here: HostRoot, selectors: dict[str, list[str]], expected: list[str]
) -> None:
    bus.child(bus.plug("1-1", "0403", "6001", "A1"), "ttyUSB0/tty/ttyUSB0", "tty", "ttyUSB0")
    bus.plug("1-2", "0403", "6015", "A2", address=6, code="03")
    camera = bus.plug("1-3", "046d", "0825", address=7, interface="0e")
    bus.child(camera, "video4linux/video0", "video4linux", "video0")
    findings = scan(here, **selectors)
    assert [found.name for found in findings.found] == expected
    assert findings.notes == (() if expected else ("none of 3 USB devices is selected",))


@pytest.mark.parametrize(
    ("serial", "name"),
    [
        ("", "1-4"),
        ("   ", "1-4"),
        ("1-1", "1-4"),
        ("\x01\x02", "1-4"),
        ("A\x1b[31mB\u202eC" + "x" * 500, ("A [31mB C" + "x" * 500)[:256]),
    ],
)
def test_the_name_is_a_clean_serial_number_or_the_port(
    bus: UsbBus, here: HostRoot, serial: str, name: str
) -> None:
    bus.plug("1-4", "0403", "6001", serial)
    assert list(named(scan(here))) == [name]


def test_a_device_keeps_its_id_wherever_it_is_plugged_in(bus: UsbBus, here: HostRoot) -> None:
    bus.plug("1-1", "0403", "6001", "A1", address=5)
    source = UsbScanner(Usb())
    (found,) = source.scan(here).found
    assert source.resolve(here, found) == found
    bus.unplug("1-1")
    assert source.resolve(here, found) is None
    inner = bus.plug("1-2", "0403", "6001", "A1", address=9)
    bus.child(inner, "ttyUSB1/tty/ttyUSB1", "tty", "ttyUSB1")
    now = source.resolve(here, found)
    assert now is not None
    assert (now.name, now.nodes) == ("A1", ("/dev/bus/usb/001/009", "/dev/ttyUSB1"))
    (again,) = source.scan(here).found
    assert again == now


def test_a_device_without_a_serial_number_is_the_one_at_its_port(bus: UsbBus, here: HostRoot) -> None:
    bus.plug("1-1", "0403", "6001", address=5)
    source = UsbScanner(Usb())
    (found,) = source.scan(here).found
    bus.unplug("1-1")
    bus.plug("1-1", "0403", "6001", address=6)
    now = source.resolve(here, found)
    assert now is not None
    assert now.path == "/dev/bus/usb/001/006"
    bus.unplug("1-1")
    bus.plug("1-1", "046d", "0825", address=7)
    assert source.resolve(here, found) is None


def test_two_devices_with_one_serial_number_have_two_names(bus: UsbBus, here: HostRoot) -> None:
    bus.plug("1-2", "0403", "6001", "0001", address=5)
    source = UsbScanner(Usb())
    (first,) = source.scan(here).found
    assert first.name == "0001"
    bus.plug("1-1", "1a86", "7523", "0001", address=6)
    assert {f.name: f.attrs["port"] for f in source.scan(here).found} == {"0001": "1-2", "1-1": "1-1"}
    # A resource that selects one of them alone has the same names.
    assert list(named(scan(here, vendors=["1a86"]))) == ["1-1"]
    bus.unplug("1-2")
    assert source.resolve(here, first) is None
    assert list(named(source.scan(here))) == ["1-1"]
    bus.plug("1-2", "0403", "6001", "0001", address=7)
    assert set(named(source.scan(here))) == {"1-1", "0001"}
    for port in ("1-1", "1-2"):
        bus.unplug(port)
    bus.plug("1-3", "0403", "6001", "0001", address=8)
    assert list(named(source.scan(here))) == ["1-3"]


async def test_the_documents_example_gives_every_port_of_every_adapter(node: Node, bus: UsbBus) -> None:
    section = DOCUMENT.read_text().partition("\n### usb\n")[2]
    example = next(text for kind, text in fences(section) if kind == "yaml")
    text = whole(example).decode()
    (plan,) = load(text.encode(), "docs/configuration.md")
    two_ports = bus.plug("1-1", "0403", "6010", "A", address=5)
    bus.child(two_ports, "ttyUSB0/tty/ttyUSB0", "tty", "ttyUSB0")
    bus.child(two_ports, "ttyUSB1/tty/ttyUSB1", "tty", "ttyUSB1")
    bus.child(bus.plug("1-2", "0403", "6001", "B", address=6), "ttyUSB2/tty/ttyUSB2", "tty", "ttyUSB2")
    async with node.serve(text, ready={plan.name: 2}):
        answer = await node.allocate(plan.name, "A", "B")
        ttys = [f"/dev/ttyUSB{n}" for n in range(3)]
        assert answer.nodes == nodes("rw", "/dev/bus/usb/001/005", *ttys[:2], "/dev/bus/usb/001/006", ttys[2])
        assert answer.env == {"SERIAL_PORTS": ",".join(ttys)}


def test_garbage_is_no_device(bus: UsbBus, here: HostRoot) -> None:
    bus.plug("1-1", "0403", "6001", "A1")
    for name, text in (("idVendor", b""), ("idVendor", b"\xff\x00zz"), ("devnum", b"x"), ("busnum", b"-1\n")):
        path = f"{bus.place('1-1')}/{name}"
        before = (bus.tree.root / path.lstrip("/")).read_bytes()
        bus.tree.file(path, text)
        assert scan(here).found == ()
        bus.tree.file(path, before)
    bus.tree.link("/sys/bus/usb/devices/1-9", "/sys/devices/gone")
    bus.tree.file("/sys/bus/usb/devices/1-8", "a file")
    bus.tree.file(f"{bus.place('1-1')}/uevent", "DEVNAME=../../etc/shadow\nDEVNAME")
    (found,) = scan(here).found
    assert found.nodes == ("/dev/bus/usb/001/005",)


def test_a_host_without_usb(here: HostRoot) -> None:
    findings = scan(here)
    assert (findings.found, findings.notes) == ((), ("/sys/bus/usb/devices is not there",))


PORTS = st.sampled_from(["1-1", "1-2", "1-3"])


@settings(max_examples=50)
@given(st.lists(st.dictionaries(PORTS, st.sampled_from(["", "1", "2"])), max_size=6))
def test_names_are_unique_and_stay(scans: list[dict[str, str]]) -> None:
    names = SerialNames()
    before: dict[str, str] = {}
    stayed: dict[str, str] = {}
    for scanned in scans:
        named = names.names([Plugged(p, ("0403", "6001"), serial) for p, serial in sorted(scanned.items())])
        assert named.keys() == scanned.keys()
        assert len(set(named.values())) == len(named)
        for port, serial in scanned.items():
            assert named[port] in {serial, port}
            if before.get(port) == serial and port in stayed:
                assert named[port] == stayed[port]
        before, stayed = scanned, named
