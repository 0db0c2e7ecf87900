"""How often the kubelet is asked, and how soon again."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.refresh.protocols import Trigger
from exporter.refresh.triggers import CallPacer, RefreshTiming

TIMING = RefreshTiming(interval=5.0, stale_after=60.0)


@given(st.lists(st.floats(0, 0.4), min_size=1, max_size=200))
def test_no_sequence_of_reasons_makes_more_than_twenty_calls_a_second(pauses: list[float]) -> None:
    pace, now, calls = CallPacer(TIMING), 100.0, list[float]()
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
    pace = CallPacer(TIMING)
    assert pace.wait(100.0) == 0.0
    pace.listed(100.0)
    assert pace.wait(101.0) == 0.0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200))
def test_a_failure_is_followed_by_another_try_within_the_interval(kinds: list[tuple[bool, bool]]) -> None:
    pace = CallPacer(TIMING)
    for limited, unsettled in kinds:
        pace.failed(100.0, limited=limited, unsettled=unsettled)
    due, cause = pace.due(100.0, 0.0)
    assert cause is Trigger.RETRY
    assert 100.0 < due <= 100.0 + TIMING.interval
    assert pace.held_off(100.0) <= TIMING.interval


@pytest.mark.parametrize("luck", [0.5, 1.0])
def test_retries_come_soon_then_seldom_never_seldomer_than_the_timer(
    luck: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(low: float, high: float) -> float:
        assert (low, high) == (0.5, 1.0)
        return luck

    monkeypatch.setattr("random.uniform", choose)
    pace, pauses = CallPacer(TIMING), list[float]()
    for _ in range(1, 2000):
        pace.failed(0.0)
        pauses.append(pace.due(0.0, 0.0)[0])
    assert pauses[:6] == pytest.approx([luck * seconds for seconds in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)])
    assert set(pauses[6:]) == {5.0 * luck}


@pytest.mark.parametrize("failures_before", [0, 1, 1000])
def test_what_is_not_believed_yet_is_asked_again_soon_and_after_a_while_seldom(failures_before: int) -> None:
    """However long the kubelet was away before."""
    pace, pauses = CallPacer(TIMING), list[float]()
    for _ in range(failures_before):
        pace.failed(0.0)
    for _ in range(100):
        pace.failed(0.0, unsettled=True)
        pauses.append(pace.due(0.0, 0.0)[0])
    assert pauses == [0.2] * 49 + [2.0] * 51


def test_without_failures_the_timer_is_due() -> None:
    assert CallPacer(TIMING).due(103.0, 100.0) == (105.0, Trigger.TIMER)


def test_where_only_allocatable_fails_it_is_asked_again_before_the_timer() -> None:
    pace = CallPacer(TIMING)
    pace.allocatable_failed(100.0)
    due, cause = pace.due(100.0, 100.0)
    assert (100.05 <= due <= 100.1, cause) == (True, Trigger.RETRY)
    assert pace.held_off(100.0) == 0.0
    pace.allocatable_succeeded(100.0)
    assert pace.due(103.0, 100.0) == (105.0, Trigger.TIMER)


def test_at_the_rate_limit_no_reason_is_good_enough_for_a_while() -> None:
    pace = CallPacer(TIMING)
    assert pace.held_off(100.0) == 0.0
    for _ in range(3):
        pace.failed(100.0, limited=True)
    assert 0.2 <= pace.held_off(100.0) <= 0.4
    assert pace.held_off(101.0) == 0.0


@pytest.mark.parametrize("unsettled", [False, True])
def test_one_refusal_at_the_rate_limit_after_a_kubelet_that_was_away_holds_up_little(unsettled: bool) -> None:
    """All clients of a kubelet that comes back ask at once, so refusals are likely just then."""
    pace = CallPacer(TIMING)
    for _ in range(50):
        pace.failed(100.0, unsettled=unsettled)
    pace.failed(100.0, limited=True)
    assert 0.05 <= pace.held_off(100.0) <= 0.1


def test_refusals_are_counted_from_the_last_answer_on() -> None:
    pace = CallPacer(TIMING)
    for _ in range(9):
        pace.failed(100.0, limited=True)
    pace.failed(100.0, unsettled=True)
    pace.failed(200.0, limited=True)
    assert 0.05 <= pace.held_off(200.0) <= 0.1


def test_refusals_of_allocatable_alone_are_counted_while_list_is_answered() -> None:
    pace = CallPacer(TIMING)
    for _ in range(3):
        pace.succeeded()
        pace.allocatable_failed(100.0, limited=True)
    assert 0.2 <= pace.held_off(100.0) <= 0.4
