import os

import pytest

from harness.hosttree import HostTree
from plugin.discovery.glob import Glob
from plugin.discovery.host import HostRoot
from plugin.discovery.regex import Regex
from plugin.discovery.source import Findings, Scanner


def scan(tree: HostTree, pattern: str, directory: str = "/dev", depth: int = 1) -> Findings:
    return Regex(pattern, directory, depth).scan(HostRoot(tree.root))


def test_the_whole_name_must_match_and_groups_are_attributes(tree: HostTree) -> None:
    for name in ("video0", "video10", "video2", "xvideo1", "video1x", "vbi0"):
        tree.file(f"/dev/{name}")
    tree.directory("/dev/video77")
    tree.link("/dev/video99", "nothing")
    findings = scan(tree, r"video(?P<number>\d+)(?P<more>y)?")
    assert [(f.name, f.path, dict(f.attrs)) for f in findings.found] == [
        (f"video{n}", f"/dev/video{n}", {"number": n, "more": ""}) for n in ("0", "2", "10")
    ]
    assert findings.follow == (("/dev", "video*"),)
    assert findings.notes == ()


def test_directories_are_scanned_to_the_configured_depth(tree: HostTree) -> None:
    for name in ("snd/controlC0", "snd/by-id/usb", "bus/usb/001/002", "loop0", "bus/usb/001/deeper/003"):
        tree.file(f"/dev/{name}")
    tree.link("/dev/linked", "/dev/snd")

    def names(depth: int) -> list[str]:
        return [f.name for f in scan(tree, ".*", depth=depth).found]

    assert names(1) == ["loop0"]
    assert names(2) == ["loop0", "snd/controlC0"]
    assert names(4) == ["bus/usb/001/002", "loop0", "snd/by-id/usb", "snd/controlC0"]
    assert [f.path for f in scan(tree, r"bus/usb/\d+/\d+", depth=8).found] == ["/dev/bus/usb/001/002"]
    assert ("/dev/bus/usb/001", "*") in scan(tree, "x", depth=4).follow


def test_a_path_is_resolved_with_its_current_target(tree: HostTree) -> None:
    here = HostRoot(tree.root)
    tree.file("/dev/ttyUSB0")
    tree.link("/dev/serial/adapter", "/dev/ttyUSB0")
    sources: tuple[Scanner, ...] = (
        Regex("ad(?P<rest>.*)", "/dev/serial"),
        Glob(["/dev/serial/*"]),
    )
    before = [source.scan(here).found[0] for source in sources]
    for source, found in zip(sources, before, strict=True):
        assert source.resolve(here, found) is found
    tree.file("/dev/ttyUSB1")
    (tree.root / "dev/serial/adapter").unlink()
    for source, found in zip(sources, before, strict=True):
        assert source.resolve(here, found) is None
    tree.link("/dev/serial/adapter", "/dev/ttyUSB1")
    for source, found in zip(sources, before, strict=True):
        now = source.resolve(here, found)
        assert now is not None
        assert (now.name, now.attrs) == ("adapter", {**found.attrs, "target": "/dev/ttyUSB1"})


def test_notes_without_matches(tree: HostTree) -> None:
    assert scan(tree, "x", "/nope").notes == ("/nope is not there",)
    tree.directory("/dev")
    assert scan(tree, "x.").notes == ("nothing in /dev matches x.",)
    tree.file("/file")
    with pytest.raises(NotADirectoryError):
        scan(tree, "x", "/file")
    assert [f.path for f in scan(tree, "fi.*", "/").found] == ["/file"]
    tree.file("/dev/a")
    assert [f.path for f in scan(tree, "a", "/dev/").found] == ["/dev/a"]


def test_hostile_names_are_matched_as_they_are(tree: HostTree) -> None:
    tree.directory("/dev")
    os.mkfifo(os.fsencode(tree.root / "dev") + b"/v\xff")
    tree.file("/dev/v\n")
    tree.file("/dev/" + "v" * 255)
    assert len(scan(tree, "v.*").found) == 2
    assert [f.name for f in scan(tree, r"v\n").found] == ["v\n"]
