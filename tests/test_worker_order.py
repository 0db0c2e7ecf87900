"""Each worker starts with long tests."""

from hypothesis import given
from hypothesis import strategies as st

from harness.worker_order import ordered_for

GROUPS = st.lists(st.lists(st.integers(), min_size=1, max_size=6), max_size=12)


@given(GROUPS, GROUPS, st.integers(1, 8))
def test_nothing_is_lost_and_groups_stay_together(
    first: list[list[int]], then: list[list[int]], workers: int
) -> None:
    named = [[("first", g, n) for n in range(len(group))] for g, group in enumerate(first)]
    others = [[("then", g, n) for n in range(len(group))] for g, group in enumerate(then)]
    order = ordered_for(named, others, workers)
    everything = [item for group in (*named, *others) for item in group]
    assert sorted(order) == sorted(everything)
    places = {item: place for place, item in enumerate(order)}
    for group in named:
        assert [places[item] for item in group] == list(
            range(places[group[0]], places[group[0]] + len(group))
        )
    assert [item for item in order if item[0] == "then"] == [item for group in others for item in group]


def test_each_worker_begins_with_one_that_takes_long() -> None:
    order = ordered_for([["a", "b"], ["c"], ["d"], ["e"], ["f"]], [[str(n) for n in range(14)]], 4)
    # xdist gives each an equal part: the twenty, by five.
    assert ["".join(order[part : part + 2]) for part in (0, 5, 10, 15)] == ["ab", "cf", "d6", "e10"]
