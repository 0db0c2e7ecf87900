import pytest

from harness.hosttree import HostTree
from harness.machines import Machine
from harness.usb import UsbBus
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings
from plugin.discovery.sysfs import Sysfs, SysfsFile
from plugin.discovery.sysfs_tree import numa_nodes

QUEUES = "/sys/bus/dsa/devices/dsa*/wq*"
DSA = "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0"


@pytest.fixture
def tree(tree: HostTree) -> HostTree:
    tree.link("/sys/bus/dsa/devices/dsa0", DSA)
    tree.files(DSA, numa_node=1)
    for name in ("wq0.0", "wq0.1", "wq0.10", "wq0.2"):
        state = "disabled" if name == "wq0.1" else "enabled"
        tree.files(f"{DSA}/{name}", state=state, type="user", mode="shared", size=16)
        tree.link(f"{DSA}/{name}/subsystem", "/sys/bus/dsa")
    return tree


def scan(tree: HostTree, written: Sysfs) -> Findings:
    return written.scan(HostRoot(tree.root))


def names(findings: Findings) -> list[str]:
    return [found.name for found in findings.found]


def test_directories_are_kept_where_their_files_are_as_expected(tree: HostTree) -> None:
    findings = scan(tree, Sysfs([QUEUES], keep=[SysfsFile("state", equals="enabled")]))
    assert names(findings) == ["wq0.0", "wq0.2", "wq0.10"]
    assert findings.subsystems == {"dsa"}
    assert findings.follow == ()
    found = findings.found[0]
    assert (found.path, found.sysfs) == ("/sys/bus/dsa/devices/dsa0/wq0.0", f"{DSA}/wq0.0")
    assert found.claim == f"sysfs:{DSA}/wq0.0"
    assert numa_nodes(HostRoot(tree.root), found) == (1,)
    assert scan(tree, Sysfs([QUEUES], keep=[SysfsFile("state", equals="x")])).notes == (
        "none of 4 directories is kept",
    )
    assert scan(tree, Sysfs(["/sys/bus/nope/devices/*"])).notes == (
        "nothing matches /sys/bus/nope/devices/*",
    )


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (SysfsFile("state"), 4),
        (SysfsFile("nope"), 0),
        (SysfsFile("state", one_of=["disabled", "x"]), 1),
        (SysfsFile("state", matches="(en|dis)abled"), 4),
        (SysfsFile("state", matches="able"), 0),
        (SysfsFile("../numa_node", equals="1"), 4),
        (SysfsFile("st*e", equals="disabled"), 1),
        (SysfsFile("subsystem", equals="dsa"), 4),
    ],
)
def test_conditions_of_files(tree: HostTree, keep: SysfsFile, expected: int) -> None:
    assert len(scan(tree, Sysfs([QUEUES], keep=[keep])).found) == expected


def test_attributes_come_from_paths_files_and_links(tree: HostTree) -> None:
    tree.link(f"{DSA}/wq0.0/driver", "/sys/bus/dsa/drivers/user")
    tree.directory("/sys/bus/dsa/drivers/user")
    tree.link(f"{DSA}/wq0.0/dangling", "/sys/nowhere/there")
    tree.file(f"{DSA}/wq0.0/hostile", "a\x1b[31m\x00b\n" + "x" * 9000)
    written = Sysfs(
        [QUEUES],
        pattern=r".*/dsa(?P<dsa>\d+)/wq\d+\.(?P<queue>[01])(?P<none>x)?",
        keep=[SysfsFile("mode", matches="(?P<mode_start>s)hared")],
        attrs={
            "driver": "driver",
            "missing": "nope",
            "dangling": "dangling",
            "size": ["nope", "si*", "mode"],
            "hostile": "hostile",
            "node": "../numa_node",
            "directory": "../wq0.1",
        },
        locate={"state_file": ["nope", "st*"], "nothing": "nope"},
    )
    findings = scan(tree, written)
    assert names(findings) == ["wq0.0", "wq0.1"]
    attrs = dict(findings.found[0].attrs)
    assert attrs.pop("hostile") == ("a [31m b " + "x" * 9000)[:256]
    assert attrs == {
        "dsa": "0",
        "queue": "0",
        "none": "",
        "mode_start": "s",
        "driver": "user",
        "missing": "",
        "dangling": "",
        "size": "16",
        "node": "1",
        "directory": "",
        "state_file": f"{DSA}/wq0.0/state",
        "nothing": "",
    }


def test_nodes_are_those_of_the_directory_and_below_it(tree: HostTree) -> None:
    base = f"{DSA}/wq0.0"
    tree.files(f"{base}/dsa!wq0.0", dev="237:0")
    tree.file(f"{base}/dsa!wq0.0/uevent", "MAJOR=237\nMINOR=0\nDEVNAME=dsa/wq0.0\n")
    tree.files(f"{base}/a/b/deep", dev="237:9")
    tree.files(f"{base}/plain!name", dev="237:8")
    tree.link(f"{base}/linked", f"{DSA}/wq0.2")
    tree.files(f"{DSA}/wq0.2", dev="237:2")

    def nodes(depth: int) -> tuple[str, ...]:
        return scan(tree, Sysfs([QUEUES], pattern=r".*wq0\.0", depth=depth)).found[0].nodes

    assert nodes(0) == ()
    assert nodes(1) == ("/dev/dsa/wq0.0", "/dev/plain/name")
    assert nodes(3) == ("/dev/deep", "/dev/dsa/wq0.0", "/dev/plain/name")


def test_a_node_is_found_by_its_numbers_where_the_kernel_does_not_say_its_name(tree: HostTree) -> None:
    tree.files(f"{DSA}/wq0.0", dev="237:0")
    tree.file("/dev/somewhere/queue")
    tree.link("/dev/char/237:0", "/dev/somewhere/queue")
    assert scan(tree, Sysfs([QUEUES])).found[0].nodes == ("/dev/somewhere/queue",)


def test_one_directory_that_several_paths_lead_to_is_one_device(tree: HostTree) -> None:
    tree.link("/sys/bus/dsa/devices/wq0.0", f"{DSA}/wq0.0")
    findings = scan(tree, Sysfs(["/sys/bus/dsa/devices/wq*", QUEUES]))
    assert [f.path for f in findings.found] == [
        "/sys/bus/dsa/devices/wq0.0",
        *(f"/sys/bus/dsa/devices/dsa0/wq0.{n}" for n in (1, 2, 10)),
    ]


def test_claims_of_pci_functions_and_usb_devices(tree: HostTree, machine: Machine, bus: UsbBus) -> None:
    path = machine.function("0000:3b:00.0", "10de", "20b0", "030200")
    tree.link(f"{path}/subsystem", "/sys/bus/pci")
    bus.plug("1-2", "0403", "6001")
    tree.directory("/sys/bus/usb")
    (function,) = scan(tree, Sysfs(["/sys/bus/pci/devices/*"])).found
    device, interface = scan(tree, Sysfs(["/sys/bus/usb/devices/*"])).found
    assert (function.claim, device.claim) == ("pci:0000:3b:00.0", "usb:1-2")
    assert interface.claim.startswith("sysfs:")


def test_a_directory_is_resolved_with_its_current_files(tree: HostTree) -> None:
    source = Sysfs([QUEUES], keep=[SysfsFile("state", equals="enabled")], attrs={"size": "size"})
    here = HostRoot(tree.root)
    found = source.scan(here).found[0]
    assert source.resolve(here, found) == found
    tree.files(f"{DSA}/wq0.0", size=32)
    now = source.resolve(here, found)
    assert now is not None
    assert now.attrs["size"] == "32"
    tree.files(f"{DSA}/wq0.0", state="disabled")
    assert source.resolve(here, found) is None
    (tree.root / "sys/bus/dsa/devices/dsa0").unlink()
    assert source.resolve(here, found) is None


def test_outside_of_sysfs_directories_are_followed(tree: HostTree) -> None:
    tree.file("/opt/cards/one/ready", "yes")
    tree.file("/opt/cards/two")
    findings = scan(tree, Sysfs(["/opt/cards/*"], keep=[SysfsFile("ready")]))
    assert names(findings) == ["one"]
    assert findings.follow == (("/opt/cards", "*"),)


def test_links_and_steps_up_do_not_leave_the_hosts_root(tree: HostTree) -> None:
    (tree.root.parent / "secret").write_text("s")
    tree.link(f"{DSA}/wq0.0/out", "../../../../../../../../secret")
    written = Sysfs([QUEUES], attrs={"a": "../../../../../../../secret", "b": "out"})
    assert dict(scan(tree, written).found[0].attrs) == {"a": "", "b": ""}
