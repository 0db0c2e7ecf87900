from hypothesis import given
from hypothesis import strategies as st

from plugin.discovery.group import GroupMember, Key, assign, complete, leader_of

ONE = GroupMember("/x")
MAYBE = GroupMember("/x", optional=True)


def test_the_nth_path_of_each_member_makes_the_nth_group() -> None:
    assert assign((ONE, ONE), (["c0", "c1", "c2"], ["p0", "p1"]), {}) == {
        ("c0", 0): ("c0", "p0"),
        ("c1", 0): ("c1", "p1"),
    }


def test_a_path_may_be_shared_up_to_its_limit() -> None:
    shared = (GroupMember("/x", limit=2), ONE)
    assert leader_of(shared) == 1
    assert assign(shared, (["fuse"], ["a", "b", "c"]), {}) == {
        ("a", 0): ("fuse", "a"),
        ("b", 0): ("fuse", "b"),
    }
    assert assign((GroupMember("/x", limit=10), ONE), (["fuse"], ["a", "b", "c"]), {}).keys() == {
        ("a", 0),
        ("b", 0),
        ("c", 0),
    }


def test_where_all_is_shared_there_are_as_many_groups_as_the_most_paths() -> None:
    members = (GroupMember("/x", limit=10), GroupMember("/x", limit=10))
    assert assign(members, (["x"], ["a", "b", "c"]), {}) == {
        ("x", 0): ("x", "a"),
        ("x", 1): ("x", "b"),
        ("x", 2): ("x", "c"),
    }


def test_a_group_is_complete_without_what_is_optional() -> None:
    assert assign((ONE, MAYBE), (["a", "b"], []), {}) == {("a", 0): ("a", ""), ("b", 0): ("b", "")}
    assert assign((MAYBE, MAYBE), (["x"], ["y", "z"]), {}) == {("", 0): ("x", "y"), ("", 1): ("", "z")}
    assert assign((MAYBE,), ([],), {}) == {}


def test_a_group_keeps_its_paths_when_another_goes() -> None:
    members = (ONE, ONE)
    before = assign(members, (["c0", "c1", "c2"], ["p0", "p1", "p2"]), {})
    after = assign(members, (["c0", "c2"], ["p0", "p1", "p2"]), before)
    assert after == {("c0", 0): ("c0", "p0"), ("c2", 0): ("c2", "p2")}


def test_an_optional_path_that_comes_and_goes_changes_no_group_but_its_own() -> None:
    members = (ONE, MAYBE)
    first = assign(members, (["a", "b"], ["x"]), {})
    assert first == {("a", 0): ("a", "x"), ("b", 0): ("b", "")}
    gone = assign(members, (["a", "b"], []), first)
    assert gone == {("a", 0): ("a", ""), ("b", 0): ("b", "")}
    assert assign(members, (["a", "b"], ["x", "y"]), gone) == {("a", 0): ("a", "x"), ("b", 0): ("b", "y")}


def test_a_group_that_lost_a_path_stays_incomplete_and_takes_the_next_free_one() -> None:
    members = (ONE, ONE)
    before = assign(members, (["c0"], ["ttyUSB0"]), {})
    broken = assign(members, (["c0"], []), before)
    assert broken == {("c0", 0): ("c0", "")}
    assert not complete(members, broken["c0", 0])
    assert assign(members, (["c0"], ["ttyUSB1"]), broken) == {("c0", 0): ("c0", "ttyUSB1")}


PATHS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=4, unique=True).map(sorted)
MEMBERS = st.lists(
    st.builds(GroupMember, st.just("/x"), st.integers(1, 3), st.booleans()), min_size=1, max_size=3
)


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
