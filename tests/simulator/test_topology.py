"""The topology manager's choice of NUMA nodes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.topology import (
    ANY,
    NONE,
    POLICIES,
    Hint,
    Policy,
    admits,
    affinity,
    counted_hints,
    device_hints,
    masks,
)

TWO = (0, 1)


def test_masks_come_narrow_first() -> None:
    assert masks(TWO) == (frozenset({0}), frozenset({1}), frozenset({0, 1}))


def test_devices_without_topology_do_not_care() -> None:
    assert device_hints(TWO, {"a": None, "b": None}, ["a"], [], 1) == ANY


def test_too_few_devices_give_no_hint() -> None:
    assert device_hints(TWO, {"a": (0,), "b": (1,)}, ["a"], [], 2) == NONE


def test_one_node_is_preferred_where_one_could_serve_even_if_it_is_taken() -> None:
    numa: dict[str, Sequence[int] | None] = {"a": (0,), "b": (0,), "c": (1,), "d": (1,)}
    hints = device_hints(TWO, numa, ["a", "c", "d"], [], 2)
    assert hints == (Hint(frozenset({1}), preferred=True), Hint(frozenset({0, 1}), preferred=False))
    spread = device_hints(TWO, numa, ["a", "c"], [], 2)
    assert spread == (Hint(frozenset({0, 1}), preferred=False),)


def test_devices_of_init_containers_must_be_within_the_mask() -> None:
    numa: dict[str, Sequence[int] | None] = {"a": (0,), "b": (0,), "c": (1,), "d": (1,)}
    assert {h.mask for h in device_hints(TWO, numa, ["b", "c", "d"], ["a"], 2)} == {
        frozenset({0}),
        frozenset({0, 1}),
    }


def test_devices_and_cpus_meet_on_a_common_node() -> None:
    devices = device_hints(TWO, {"a": (1,), "b": (0,)}, ["a"], [], 1)
    cpus = counted_hints(TWO, {0: 4, 1: 4}, {0: 4, 1: 4}, 2)
    assert affinity("best-effort", TWO, [devices, cpus]) == Hint(frozenset({1}), preferred=True)


def test_what_cannot_meet_is_spread_and_not_preferred() -> None:
    devices = (Hint(frozenset({0}), preferred=True),)
    cpus = (Hint(frozenset({1}), preferred=True),)
    assert affinity("best-effort", TWO, [devices, cpus]) == Hint(frozenset(TWO), preferred=False)


@pytest.mark.parametrize(
    ("policy", "lets_in"),
    [("none", True), ("best-effort", True), ("restricted", False), ("single-numa-node", False)],
)
def test_policies_differ_on_what_is_not_preferred(policy: Policy, lets_in: bool) -> None:
    spread = device_hints(TWO, {"a": (0,), "b": (0,), "c": (1,)}, ["a", "c"], [], 2)
    assert admits(policy, affinity(policy, TWO, [spread])) is lets_in


def test_single_numa_node_refuses_what_restricted_lets_in() -> None:
    # Two devices that are on different nodes by nature: both nodes are as narrow as it gets.
    needs_both = device_hints(TWO, {"a": (0,), "b": (1,)}, ["a", "b"], [], 2)
    assert admits("restricted", affinity("restricted", TWO, [needs_both]))
    assert not admits("single-numa-node", affinity("single-numa-node", TWO, [needs_both]))


def hints() -> st.SearchStrategy[list[Hint]]:
    hint = st.builds(Hint, st.sampled_from(masks((0, 1, 2))), preferred=st.booleans())
    return st.one_of(st.just(list(ANY)), st.just(list(NONE)), st.lists(hint, min_size=1, max_size=4))


@given(st.sampled_from(POLICIES), st.lists(hints(), max_size=3))
def test_an_affinity_is_within_the_node_and_preferred_only_if_all_agree(
    policy: Policy, providers: list[list[Hint]]
) -> None:
    best = affinity(policy, (0, 1, 2), providers)
    assert best.mask is None or best.mask <= {0, 1, 2}
    if best.preferred and policy != "none":
        assert all(any(h.preferred for h in provider) for provider in providers)
    if policy == "best-effort" and providers:
        assert best.mask
