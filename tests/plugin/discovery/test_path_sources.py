import os
from pathlib import Path

import pytest

from harness.hosttree import HostTree
from plugin.discovery.files import Files
from plugin.discovery.glob import Glob
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Findings, Found, Scanner
from plugin.discovery.static import Static, StaticDevice
from plugin.discovery.sysfs_tree import numa_nodes


def scan(source: Scanner, host: Path) -> Findings:
    return source.scan(HostRoot(host))


def paths(findings: Findings) -> list[str]:
    return [found.path for found in findings.found]


def test_files_are_the_regular_files_of_a_directory_hidden_ones_and_links_too(host: Path) -> None:
    colas = host / "etc/colas"
    (colas / "sub").mkdir(parents=True)
    for name in ("cola10", "cola2", ".hidden"):
        (colas / name).touch()
    (colas / "link").symlink_to("cola2")
    (colas / "dangling").symlink_to("nothing")
    os.mkfifo(colas / "fifo")
    findings = scan(Files("/etc/colas"), host)
    assert [f.name for f in findings.found] == [".hidden", "cola2", "cola10", "link"]
    assert findings.follow == (("/etc/colas", "*"),)


def test_without_files_a_directory_is_empty_missing_or_an_error(host: Path) -> None:
    assert scan(Files("/etc/colas"), host).notes == ("/etc/colas is not there",)
    (host / "etc/colas").mkdir(parents=True)
    assert scan(Files("/etc/colas"), host).notes == ("/etc/colas has no regular file",)
    (host / "colas").touch()
    with pytest.raises(NotADirectoryError):
        scan(Files("/colas"), host)


def test_a_config_map_volume_is_a_directory_of_files(host: Path, tree: HostTree) -> None:
    tree.file("/etc/colas/..2026/cola1")
    tree.link("/etc/colas/..data", "..2026")
    tree.link("/etc/colas/cola1", "..data/cola1")
    assert [f.name for f in scan(Files("/etc/colas"), host).found] == ["cola1"]


def test_glob_matches_as_a_shell_does(host: Path, tree: HostTree) -> None:
    for name in ("video0", "video10", "video2", ".video", "snd/pcm0", "ttyUSB0"):
        tree.file(f"/dev/{name}")
    tree.link("/dev/video9", "nothing")
    assert paths(scan(Glob(["/dev/video*"]), host)) == ["/dev/video0", "/dev/video2", "/dev/video10"]
    assert paths(scan(Glob(["/dev/*/pcm[0-9]", "/dev/tty???0"]), host)) == [
        "/dev/snd/pcm0",
        "/dev/ttyUSB0",
    ]
    assert paths(scan(Glob(["/dev/.v*", "/dev/video2", "/dev/vid*2"]), host)) == [
        "/dev/.video",
        "/dev/video2",
    ]
    assert scan(Glob(["/nope/*", "/dev/x"]), host) == Findings(
        (),
        (("/nope", "*"), ("/dev", "x")),
        ("nothing matches /nope/*, /dev/x",),
        entrywise=frozenset({"/nope", "/dev"}),
    )


def test_directories_that_glob_follows(host: Path) -> None:
    (host / "sys/class/x/one").mkdir(parents=True)
    (host / "sys/class/x/two").mkdir()
    follow = scan(Glob(["/sys/class/x/*/device"]), host).follow
    assert set(follow) == {
        ("/sys/class/x", "*"),
        ("/sys/class/x/one", "device"),
        ("/sys/class/x/two", "device"),
    }


def test_glob_keeps_the_name_of_a_link(host: Path, tree: HostTree) -> None:
    tree.file("/dev/ttyUSB0")
    tree.link("/dev/serial/by-id/usb-x", "/dev/ttyUSB0")
    (found,) = scan(Glob(["/dev/serial/by-id/*"]), host).found
    assert (found.path, found.attrs) == ("/dev/serial/by-id/usb-x", {"target": "/dev/ttyUSB0"})


def test_a_device_node_has_its_numbers(host: Path, tree: HostTree) -> None:
    tree.node("/dev/video0", "char", 81, 0)
    (found,) = scan(Glob(["/dev/video*"]), host).found
    assert found.rdev == ("char", 81, 0)
    assert found.attrs == {"type": "char", "major": "81", "minor": "0"}
    (written,) = scan(Static([StaticDevice("x", path="/dev/video0")]), host).found
    assert (written.rdev, written.absent) == (("char", 81, 0), "")


def test_a_static_device_is_absent_without_its_path(host: Path, tree: HostTree) -> None:
    source = Static([StaticDevice("Dev-1"), StaticDevice("fuse", path="/dev/fuse", numa=1, attrs={"a": "b"})])
    findings = scan(source, host)
    assert [(f.name, f.absent, f.numa_node) for f in findings.found] == [
        ("Dev-1", "", None),
        ("fuse", "/dev/fuse is not there", 1),
    ]
    assert findings.follow == (("/dev", "fuse"),)
    tree.file("/dev/fuse")
    assert scan(source, host).found[1].absent == ""


def on_a_function(tree: HostTree, **numa_by_level: str) -> Found:
    """A device 81:0 on a PCI function, with `numa_node` files at the levels that are named."""
    bridge = "/sys/devices/pci0000:00/0000:00:01.0"
    levels = {"pci": f"{bridge}/0000:3b:00.0", "bridge": bridge}
    node = tree.directory(f"{levels['pci']}/video4linux/video0")
    tree.link("/sys/dev/char/81:0", f"/{node.relative_to(tree.root)}")
    for level, text in numa_by_level.items():
        tree.file(f"{levels[level]}/numa_node", text)
    return Found("video0", "/dev/video0", rdev=("char", 81, 0))


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ({"bridge": "1\n"}, (1,)),
        ({"pci": "0\n", "bridge": "1\n"}, (0,)),
        ({"pci": "-1\n", "bridge": "1\n"}, (1,)),
        ({"bridge": "-1\n"}, ()),
        ({"bridge": "x\n"}, ()),
        ({"bridge": "99999\n"}, ()),
        ({"bridge": "1024\n"}, ()),
        ({"bridge": ""}, ()),
        ({}, ()),
    ],
)
def test_the_numa_node_is_the_nearest_in_sysfs(
    tree: HostTree, levels: dict[str, str], expected: tuple[int, ...]
) -> None:
    assert numa_nodes(HostRoot(tree.root), on_a_function(tree, **levels)) == expected


def test_other_paths_have_no_numa_node(host: Path) -> None:
    assert numa_nodes(HostRoot(host), Found("x", "/x")) == ()
    assert numa_nodes(HostRoot(host), Found("x", "/x", rdev=("block", 8, 0))) == ()
    (host / "sys/dev/char").mkdir(parents=True)
    (host / "numa_node").write_text("1")
    (host / "sys/dev/char/81:0").symlink_to("/")  # out of sysfs
    assert numa_nodes(HostRoot(host), Found("x", rdev=("char", 81, 0))) == ()
