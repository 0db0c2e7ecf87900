"""The bucket that all callers share, on a clock that only the test moves."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.podresources import TokenBucket


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_of_ten_and_then_one_each_hundredth_of_a_second() -> None:
    clock = Clock()
    bucket = TokenBucket(clock)
    assert [bucket.allow() for _ in range(12)] == [True] * 10 + [False] * 2
    clock.now += 0.0101
    assert [bucket.allow() for _ in range(2)] == [True, False]
    clock.now += 3600
    assert [bucket.allow() for _ in range(12)] == [True] * 10 + [False] * 2


@given(st.lists(st.floats(0, 5), max_size=200))
def test_never_more_than_burst_and_rate_allow(steps: list[float]) -> None:
    clock = Clock()
    bucket = TokenBucket(clock)
    passed = 0
    for step in steps:
        clock.now += step
        passed += bucket.allow()
    assert passed <= 10 + 100 * sum(steps) + 1e-6
