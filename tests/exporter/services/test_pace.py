"""How often the kubelet is asked, and how soon again."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.services.pace import Pace, Timing
from exporter.services.partners import Trigger

TIMING = Timing(interval=5.0, stale_after=60.0)


@given(st.lists(st.floats(0, 0.4), min_size=1, max_size=200))
def test_no_sequence_of_reasons_makes_more_than_twenty_calls_a_second(pauses: list[float]) -> None:
    pace, now, calls = Pace(TIMING), 100.0, list[float]()
    for pause in pauses:
        now += pause
        now += pace.wait(now)
        pace.listed(now)
        calls.append(now)
    for begin in calls:
        # A burst of four may come on top of what is spaced.
        assert sum(begin <= call < begin + 1.0 for call in calls) <= 20 + 4
    assert all(later - earlier >= 0.0049 for earlier, later in pairwise(calls))


def test_a_call_after_silence_waits_for_nothing() -> None:
    pace = Pace(TIMING)
    assert pace.wait(100.0) == 0.0
    pace.listed(100.0)
    assert pace.wait(101.0) == 0.0


@given(st.integers(1, 10_000), st.booleans())
def test_a_failure_is_followed_by_another_try_within_the_interval(failures: int, unsettled: bool) -> None:
    pace = Pace(TIMING)
    pace.failures = failures
    due, cause = pace.due(100.0, 0.0, unsettled=unsettled)
    assert cause is Trigger.RETRY
    assert 100.0 < due <= 100.0 + TIMING.interval


@pytest.mark.parametrize("luck", [0.5, 1.0])
def test_retries_come_soon_then_seldom_never_seldomer_than_the_timer(
    luck: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(low: float, high: float) -> float:
        assert (low, high) == (0.5, 1.0)
        return luck

    monkeypatch.setattr("random.uniform", choose)
    pace, pauses = Pace(TIMING), list[float]()
    for failures in range(1, 2000):
        pace.failures = failures
        pauses.append(pace.due(0.0, 0.0, unsettled=False)[0])
    assert pauses[:6] == pytest.approx([luck * seconds for seconds in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)])
    assert set(pauses[6:]) == {5.0 * luck}


@given(st.integers(0, 100))
def test_what_is_not_believed_yet_is_asked_again_soon_and_after_a_while_seldom(failures: int) -> None:
    pace = Pace(TIMING)
    pace.failures = failures + 1
    pause = pace.due(0.0, 0.0, unsettled=True)[0]
    assert pause == (0.2 if (failures + 1) * 0.2 < 10 else 2.0)


def test_without_failures_the_timer_is_due() -> None:
    assert Pace(TIMING).due(103.0, 100.0, unsettled=False) == (105.0, Trigger.TIMER)


def test_where_only_allocatable_fails_it_is_asked_again_before_the_timer() -> None:
    pace = Pace(TIMING)
    pace.allocatable_failures = 1
    due, cause = pace.due(100.0, 100.0, unsettled=False)
    assert (100.05 <= due <= 100.1, cause) == (True, Trigger.RETRY)


def test_at_the_rate_limit_no_reason_is_good_enough_for_a_while() -> None:
    pace = Pace(TIMING)
    pace.failures = 3
    assert pace.held_off(100.0) == 0.0
    pace.hold_off(100.0)
    assert 0.2 <= pace.held_off(100.0) <= 0.4
    assert pace.held_off(101.0) == 0.0
