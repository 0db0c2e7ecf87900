"""exporter.mapping.state: freshness, and the store that followers read."""

import asyncio

import pytest

from exporter.mapping.state import Failure, Freshness, State, StateStore

FAILURE = Failure("List", "UNAVAILABLE", "the kubelet is not up", 90.0)


@pytest.mark.parametrize(
    ("taken_at", "failure", "now", "freshness"),
    [
        (None, None, 100.0, Freshness.UNKNOWN),
        (None, FAILURE, 100.0, Freshness.UNKNOWN),
        (100.0, None, 100.0, Freshness.FRESH),
        (100.0, None, 160.0, Freshness.FRESH),
        (100.0, FAILURE, 160.0, Freshness.AGEING),
        (100.0, None, 160.001, Freshness.STALE),
        (100.0, FAILURE, 160.001, Freshness.STALE),
        (100.0, None, 40.0, Freshness.FRESH),
    ],
)
def test_freshness_is_decided_by_age_and_the_last_refresh(
    taken_at: float | None, failure: Failure | None, now: float, freshness: Freshness
) -> None:
    assert State(taken_at=taken_at, failure=failure).freshness(now, 60.0) is freshness


@pytest.mark.parametrize(("taken_at", "age"), [(None, None), (100.0, 5.0), (110.0, 0.0)])
def test_age_is_never_negative(taken_at: float | None, age: float | None) -> None:
    assert State(taken_at=taken_at).age(105.0) == age


async def test_each_follower_gets_the_present_state_and_then_the_latest() -> None:
    states = StateStore()
    followers = [states.follow() for _ in range(2)]
    for following in followers:
        assert (await anext(following)).generation == 0
    states.publish(State(generation=1))
    states.publish(State(generation=2))
    async with asyncio.timeout(20):
        for following in followers:
            assert (await anext(following)).generation == 2
    states.publish(states.state)
    waiting = asyncio.ensure_future(anext(followers[0]))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done(), "the same state is not yielded twice"
    states.publish(State(generation=3))
    async with asyncio.timeout(20):
        assert (await waiting).generation == 3
