"""runtime.clock: it runs steadily, and follows the wall clock only at `advance`."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.clock import Clock


def test_a_clock_begins_with_the_wall_clocks_time() -> None:
    assert Clock(wall=lambda: 1000.0, monotonic=lambda: 5.0).now() == 1000.0


def test_a_clock_does_not_follow_a_jump_until_it_is_advanced() -> None:
    wall, monotonic = [1000.0], [5.0]
    clock = Clock(wall=lambda: wall[0], monotonic=lambda: monotonic[0])
    wall[0] -= 3600
    monotonic[0] += 7
    assert clock.now() == 1007.0
    assert clock.wall() == -2600.0
    assert clock.drift() == -3607.0
    clock.advance(clock.drift())
    assert clock.now() == -2600.0
    monotonic[0] += 1
    assert clock.now() == -2599.0


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(-10_000, 10_000), st.integers(0, 100)), max_size=10))
def test_a_clock_never_runs_back_between_two_advances(moments: list[tuple[int, int]]) -> None:
    wall, monotonic = [1_000_000.0], [0.0]
    clock = Clock(wall=lambda: wall[0], monotonic=lambda: monotonic[0])
    for jump, passed in moments:
        before = clock.now()
        wall[0] += jump
        monotonic[0] += passed
        assert clock.now() == before + passed
    clock.advance(clock.drift())
    assert clock.now() == wall[0]
