import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.hosttree import HostTree
from plugin.discovery.host import HostRoot
from plugin.discovery.sysfs_tree import MAX_TEXT, SysfsDirectory, SysfsTree, clean

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(st.one_of(NAMES, st.just(".."), st.just(".")), min_size=1, max_size=6).map("/".join)
LINKS = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join),
    st.tuples(st.booleans(), PATHS).map(lambda made: ("/" if made[0] else "") + made[1]),
    max_size=6,
)


@settings(max_examples=40)
@given(LINKS, st.lists(PATHS, min_size=1, max_size=4))
def test_links_are_followed_below_the_host_root(links: dict[str, str], paths: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="dl", dir="/tmp") as made:
        root = Path(made)
        for path, target in links.items():
            place = root / path
            if any(parent.is_symlink() for parent in (place, *place.parents)):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.symlink_to(target)
        host, sysfs = HostRoot(root), SysfsTree(HostRoot(root))
        for path in paths:
            try:
                expected = host.real(f"/{path}")
            except OSError:
                with pytest.raises(OSError, match="Too many levels"):
                    sysfs.real(f"/{path}")
            else:
                assert sysfs.real(f"/{path}") == expected


def test_a_path_of_a_thousand_parts_is_no_trouble(host: Path) -> None:
    assert SysfsTree(HostRoot(host)).real("/a" * 2000) == "/a" * 2000
    assert SysfsTree(HostRoot(host)).directory("/a" * 2000) is None


def test_the_root_itself_is_a_directory() -> None:
    sysfs = SysfsTree(HostRoot(Path("/")))
    assert "sys" in sysfs.names("/") or "proc" in sysfs.names("/")
    assert sysfs.directory("/") is not None
    assert sysfs.real("/") == "/"


def with_file(host: Path, content: str | bytes) -> SysfsDirectory:
    """A directory of sysfs with one file."""
    HostTree(host).file("/sys/x/file", content)
    directory = SysfsTree(HostRoot(host)).directory("/sys/x")
    assert directory is not None
    return directory


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"0x8086\n", "0x8086"),
        (b"", ""),
        (b"  x \n\n", "x"),
        (b"\x1b[2Jred\x07", "[2Jred"),
        (b"a\nb", "a b"),
        (b"\xff\xfe", "��"),
        ("a\u202eb\u2028c".encode(), "a b c"),
        (b"\x00" * 5000, ""),
        (b"x" * 5000, "x" * MAX_TEXT),
    ],
)
def test_texts_are_small_and_clean(host: Path, content: bytes, expected: str) -> None:
    directory = with_file(host, content)
    assert directory.text("file") == expected
    assert directory.text("nothing") == ""


@given(st.text(max_size=400))
def test_clean_text_stays_as_it_is(text: str) -> None:
    once = clean(text)
    assert clean(once) == once
    assert len(once) <= MAX_TEXT
    assert "\x1b" not in once
    assert "\n" not in once


@pytest.mark.parametrize(
    ("text", "number"), [("7\n", 7), ("-1", None), ("", None), ("0x7", None), ("٣", None), ("9" * 30, None)]
)
def test_numbers_are_whole_and_not_negative(host: Path, text: str, number: int | None) -> None:
    assert with_file(host, text).number("file") == number


def test_names_that_are_not_utf_8_are_no_trouble(host: Path) -> None:
    HostTree(host).directory("/sys/class/net")
    os.mkdir(bytes(host) + b"/sys/class/net/\xff")  # noqa: PTH102 -- a name that no str has
    sysfs = SysfsTree(HostRoot(host))
    (name,) = sysfs.names("/sys/class/net")
    found = sysfs.directory(f"/sys/class/net/{name}")
    assert found is not None
    assert clean(found.name) == ""
