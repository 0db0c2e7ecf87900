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
def test_the_age_is_never_negative(taken_at: float | None, age: float | None) -> None:
    assert State(taken_at=taken_at).age(105.0) == age


async def test_who_follows_begins_with_the_present_and_ends_with_the_last() -> None:
    states = StateStore()
    seen: list[int] = []

    async def follow() -> None:
        async for state in states.follow():
            seen.append(state.generation)
            await asyncio.sleep(0)
            if state.generation == 9:
                return

    followers = [asyncio.create_task(follow()) for _ in range(2)]
    await asyncio.sleep(0)
    assert seen == [0, 0]
    for generation in range(1, 10):
        states.publish(State(generation=generation))
        if generation % 3 == 0:
            await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await asyncio.gather(*followers)
    assert seen[-1] == 9
    assert states.state.generation == 9


async def test_what_is_published_while_a_follower_is_busy_reaches_it_afterwards() -> None:
    states = StateStore()
    following = states.follow()
    assert (await anext(following)).generation == 0
    states.publish(State(generation=1))
    states.publish(State(generation=2))
    async with asyncio.timeout(20):
        assert (await anext(following)).generation == 2


async def test_the_same_state_is_not_told_twice() -> None:
    states = StateStore()
    following = states.follow()
    state = await anext(following)
    states.publish(state)
    waiting = asyncio.ensure_future(anext(following))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    states.publish(State(generation=1))
    async with asyncio.timeout(20):
        assert (await waiting).generation == 1
