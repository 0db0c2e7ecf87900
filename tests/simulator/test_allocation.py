"""The device manager's choice of devices."""

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from simulator.allocation import Offer, UnavailableError, begin, finish, split

Numa = dict[str, Sequence[int] | None]


def in_order(ids: Iterable[str]) -> list[str]:
    return sorted(ids)


def test_aligned_devices_are_asked_about_and_the_rest_is_not_offered() -> None:
    numa: Numa = {"a": (0,), "b": (0,), "c": (0,), "d": (1,)}
    choice = begin("r", 2, reusable=(), available=numa, numa=numa, mask=frozenset({0}), order=in_order)
    assert choice.offer is not None
    assert choice.offer.available == {"a", "b", "c"}
    assert finish(choice, ["c", "d", "a"], in_order) == {"a", "c"}


def test_nothing_is_asked_where_aligned_devices_settle_it() -> None:
    numa: Numa = {"a": (0,), "b": (0,), "c": (1,)}
    aligned = begin("r", 2, reusable=(), available=numa, numa=numa, mask=frozenset({0}), order=in_order)
    assert aligned.offer is None
    assert finish(aligned, [], in_order) == {"a", "b"}


def test_the_plugin_is_asked_even_for_all_there_is_where_nothing_is_aligned() -> None:
    """Seen on 1.36: one device free and one asked for, or two of two, and the plugin is asked."""
    numa: Numa = {"a": (0,), "b": (0,), "c": (1,)}
    everything = begin("r", 3, reusable=(), available=numa, numa=numa, mask=None, order=in_order)
    assert everything.offer == Offer(frozenset(numa), frozenset(), 3)
    assert finish(everything, [], in_order) == set(numa)


def test_aligned_devices_come_first_when_they_do_not_suffice() -> None:
    numa: Numa = {"a": (0,), "b": (1,), "c": (1,), "d": None}
    choice = begin("r", 2, reusable=(), available=numa, numa=numa, mask=frozenset({0}), order=in_order)
    assert choice.taken == {"a"}
    assert choice.offer is not None
    assert choice.offer.available == {"a", "b", "c", "d"}
    assert choice.offer.must_include == {"a"}
    assert finish(choice, ["d"], in_order) == {"a", "d"}
    assert finish(choice, [], in_order) == {"a", "b"}


def test_init_containers_devices_are_taken_first_and_must_be_included() -> None:
    numa: Numa = dict.fromkeys("abcd")
    choice = begin("r", 2, reusable=["d"], available=["a", "b", "c"], numa=numa, mask=None, order=in_order)
    assert choice.offer is not None
    assert choice.offer.must_include == {"d"}
    assert finish(choice, ["c", "d"], in_order) == {"c", "d"}


ids = st.sampled_from("abcdefgh")
nodes = st.one_of(st.none(), st.lists(st.integers(-1, 2), max_size=2).map(tuple))


@given(
    numa=st.dictionaries(ids, nodes, min_size=1),
    reusable=st.sets(ids, max_size=3),
    taken=st.sets(ids),
    mask=st.one_of(st.none(), st.frozensets(st.integers(0, 2), min_size=1)),
    preferred=st.lists(st.sampled_from([*"abcdefgh", "never advertised", ""])),
    required=st.integers(1, 8),
)
def test_whatever_a_plugin_prefers_the_choice_is_right(
    *,
    numa: Numa,
    reusable: set[str],
    taken: set[str],
    mask: frozenset[int] | None,
    preferred: list[str],
    required: int,
) -> None:
    available = numa.keys() - taken - reusable
    try:
        choice = begin(
            "r", required, reusable=reusable, available=available, numa=numa, mask=mask, order=in_order
        )
    except UnavailableError:
        assert len(available | reusable) < required
        return
    chosen = finish(choice, preferred, in_order)
    assert len(chosen) == required
    assert chosen <= available | reusable
    assert len(chosen & reusable) == min(len(reusable), required)
    aligned, unaligned, nowhere = split(numa, available, mask)
    assert aligned | unaligned | nowhere == available
    assert len(aligned) + len(unaligned) + len(nowhere) == len(available)
    fresh = chosen - reusable
    # Nothing from elsewhere while something aligned is left.
    assert not fresh - aligned or aligned <= fresh
    if choice.offer is not None and set(preferred) & choice.eligible:
        assert set(preferred) & chosen
