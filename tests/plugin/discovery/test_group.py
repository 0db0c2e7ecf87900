import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.hosttree import HostTree
from plugin.discovery.group import Group, GroupMember, GroupScanner, Key, assign, complete
from plugin.discovery.host import HostRoot
from plugin.discovery.source import Found

SOUND = Group(
    [GroupMember("/dev/snd/controlC*", name="control"), GroupMember("/dev/snd/pcmC*D0c", name="capture")]
)


def named(source: GroupScanner, here: HostRoot) -> dict[str, Found]:
    return {found.name: found for found in source.scan(here).found}


def test_paths_that_belong_together_are_one_device(tree: HostTree, here: HostRoot) -> None:
    for number in (0, 1, 10):
        tree.file(f"/dev/snd/controlC{number}")
        tree.file(f"/dev/snd/pcmC{number}D0c")
    findings = GroupScanner(SOUND).scan(here)
    assert [(f.name, f.path, f.attrs["capture"]) for f in findings.found] == [
        (f"controlC{n}", f"/dev/snd/controlC{n}", f"/dev/snd/pcmC{n}D0c") for n in (0, 1, 10)
    ]
    assert set(findings.follow) == {("/dev/snd", "controlC*"), ("/dev/snd", "pcmC*D0c")}


def test_a_device_is_absent_while_something_that_it_needs_is_gone(tree: HostTree, here: HostRoot) -> None:
    for name in ("controlC0", "controlC1", "pcmC0D0c", "pcmC1D0c"):
        tree.file(f"/dev/snd/{name}")
    source = GroupScanner(SOUND)
    before = named(source, here)
    (tree.root / "dev/snd/pcmC0D0c").unlink()
    found = named(source, here)
    assert found["controlC0"].absent == "/dev/snd/pcmC*D0c: nothing is free of what matches"
    assert found["controlC1"] == before["controlC1"]
    assert source.resolve(here, before["controlC0"]) is None
    assert source.resolve(here, found["controlC0"]) == found["controlC0"]
    tree.file("/dev/snd/pcmC0D0c")
    assert named(source, here) == before
    (tree.root / "dev/snd/controlC0").unlink()
    assert list(named(source, here)) == ["controlC1"]


def test_another_source_of_the_same_members_remembers_the_same(tree: HostTree, here: HostRoot) -> None:
    tree.file("/dev/snd/controlC0")
    tree.file("/dev/snd/pcmC0D0c")
    first = GroupScanner(SOUND)
    first.scan(here)
    (tree.root / "dev/snd/pcmC0D0c").unlink()
    assert list(named(GroupScanner(SOUND), here)) == ["controlC0"]
    assert named(GroupScanner(SOUND), HostRoot(tree.root)) == {}


def test_nodes_and_optional_paths_of_a_group(tree: HostTree, here: HostRoot) -> None:
    tree.node("/dev/a", "char", 10, 1)
    tree.file("/dev/data")
    tree.node("/dev/extra", "char", 10, 2)
    written = Group(
        [GroupMember("/dev/a"), GroupMember("/dev/data", limit=3), GroupMember("/dev/extra", optional=True)]
    )
    source = GroupScanner(written)
    (found,) = source.scan(here).found
    assert (found.name, found.nodes) == ("a", ("/dev/a", "/dev/extra"))
    assert dict(found.attrs) == {"member0": "/dev/a", "member1": "/dev/data", "member2": "/dev/extra"}
    assert source.resolve(here, found) is found
    (tree.root / "dev/extra").unlink()
    now = source.resolve(here, found)
    assert now is not None
    assert (now.nodes, now.attrs["member2"]) == (("/dev/a",), "")
    (after,) = source.scan(here).found
    assert (after.name, after.nodes) == ("a", ("/dev/a",))


def test_a_group_is_counted_out(tree: HostTree, here: HostRoot) -> None:
    tree.file("/dev/fuse")
    names = list(named(GroupScanner(Group([GroupMember("/dev/fuse")], count=3)), here))
    assert names == ["fuse-0", "fuse-1", "fuse-2"]


def test_a_name_is_the_path_below_the_patterns_directory(tree: HostTree, here: HostRoot) -> None:
    for directory in ("one", "two"):
        tree.file(f"/dev/{directory}/node")
    assert list(named(GroupScanner(Group([GroupMember("/dev/*/node")])), here)) == ["one/node", "two/node"]
    shared = Group([GroupMember("/dev/*/node", limit=2), GroupMember("/dev/[ot]*/node", limit=2)])
    assert list(named(GroupScanner(shared), here)) == ["one/node-0", "two/node-0"]


def test_a_group_of_optional_paths_is_numbered(tree: HostTree, here: HostRoot) -> None:
    tree.file("/dev/ttyS0")
    members = [GroupMember("/dev/ttyS0", optional=True), GroupMember("/dev/ttyUSB0", optional=True)]
    source = GroupScanner(Group(members))
    assert list(named(source, here)) == ["0"]
    tree.file("/dev/ttyUSB0")
    (found,) = source.scan(here).found
    assert found.attrs["member1"] == "/dev/ttyUSB0"
    (tree.root / "dev/ttyS0").unlink()
    assert list(named(source, here)) == ["0"]
    (tree.root / "dev/ttyUSB0").unlink()
    assert source.resolve(here, found) is None
    findings = source.scan(here)
    assert (findings.found, findings.notes) == ((), ("nothing matches /dev/ttyS0, /dev/ttyUSB0",))


ONE = GroupMember("/x")
MAYBE = GroupMember("/x", optional=True)
TWICE = GroupMember("/x", limit=2)
OFTEN = GroupMember("/x", limit=10)


@pytest.mark.parametrize(
    ("members", "scans", "groups"),
    [
        ((ONE, ONE), ["c0 c1 c2, p0 p1"], ["c0:c0 p0, c1:c1 p1"]),
        ((TWICE, ONE), ["fuse, a b c"], ["a:fuse a, b:fuse b"]),
        ((OFTEN, ONE), ["fuse, a b c"], ["a:fuse a, b:fuse b, c:fuse c"]),
        ((OFTEN, OFTEN), ["x, a b c"], ["x:x a, x:x b, x:x c"]),
        ((ONE, MAYBE), ["a b, "], ["a:a -, b:b -"]),
        ((MAYBE, MAYBE), ["x, y z"], [":x y, :- z"]),
        ((MAYBE,), [""], [""]),
        # A group keeps its paths when another goes.
        ((ONE, ONE), ["c0 c1 c2, p0 p1 p2", "c0 c2, p0 p1 p2"], ["", "c0:c0 p0, c2:c2 p2"]),
        # An optional path that comes and goes changes its own group alone.
        ((ONE, MAYBE), ["a b, x", "a b, ", "a b, x y"], ["a:a x, b:b -", "a:a -, b:b -", "a:a x, b:b y"]),
        # A group that lost a path stays incomplete, and takes the next free one.
        ((ONE, ONE), ["c, p0", "c, ", "c, p1"], ["c:c p0", "c:c -", "c:c p1"]),
    ],
    ids=range(10),
)
def test_paths_are_assigned_to_groups(
    members: tuple[GroupMember, ...], scans: list[str], groups: list[str]
) -> None:
    """A scan: the paths of each member. Groups: the leading path, and the paths; `-` for none."""
    before: dict[Key, tuple[str, ...]] = {}
    for present, expected in zip(scans, groups, strict=True):
        before = assign(members, [paths.split() for paths in present.split(",")], before)
        found = [f"{key[0]}:{' '.join(path or '-' for path in paths)}" for key, paths in before.items()]
        assert not expected or ", ".join(found) == expected
        assert len({*before}) == len(found)


PATHS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=4, unique=True).map(sorted)
MEMBERS = st.lists(
    st.builds(GroupMember, st.just("/x"), st.integers(1, 3), st.booleans()), min_size=1, max_size=3
)


@settings(max_examples=50)
@given(st.data())
def test_no_path_is_used_more_often_than_it_may_and_groups_keep_theirs(data: st.DataObject) -> None:
    members = tuple(data.draw(MEMBERS))
    before: dict[Key, tuple[str, ...]] = {}
    for _ in range(4):
        present = [[f"{index}{path}" for path in data.draw(PATHS)] for index in range(len(members))]
        groups = assign(members, present, before)
        for index, member in enumerate(members):
            used = [paths[index] for paths in groups.values() if paths[index]]
            assert set(used) <= set(present[index])
            assert all(used.count(path) <= member.limit for path in used)
        for key, paths in groups.items():
            assert complete(members, paths) or key in before
            for old, new, there in zip(before.get(key, paths), paths, present, strict=True):
                assert new == old or old not in there or old == ""
        assert assign(members, present, groups) == groups
        before = groups
