"""exporter.mapping.state: how far the mapping can be trusted."""

import pytest

from exporter.mapping.state import Failure, Freshness, State

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
