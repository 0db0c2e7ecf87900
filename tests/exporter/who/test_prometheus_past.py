"""Series over time made into holdings: true to what happened, as far as a grid of moments can be."""

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cli.prometheus import labels
from exporter.cli.prometheus.answers import Line
from exporter.cli.prometheus.client import POINTS
from exporter.cli.prometheus.past import Held, Looks, What, Where, holdings, looks
from exporter.cli.prometheus.ranges import Range, TooMuch, grid, parts

STEP = 10.0
NODE = {"node": "n", "instance": "10.0.0.1:1", "job": "devicelens"}
WHERE = Where("n", ())
GPU = {"resource": "x/gpu", "device": "0", "namespace": "ml", "pod": "a", "container": "c"}
WHAT = What("x/gpu", "0", "ml", "a", "c")


def line(values: Mapping[float, float], **metric: str) -> Line:
    return Line(NODE | metric, tuple((at, repr(value)) for at, value in sorted(values.items())))


def told(times: Sequence[float]) -> Line:
    return line(dict.fromkeys(times, 4.0), resource="x/gpu")


def held(
    values: Mapping[float, float], times: Sequence[float], counter: Mapping[float, float] | None = None
) -> list[Held]:
    counters = [] if counter is None else [line(counter)]
    found = looks([told(times)], counters)
    return holdings(labels.HELD_SINCE, [line(values, **GPU)], found)


TIMES = tuple(STEP * i for i in range(1, 11))


def test_one_holding_from_its_first_sight_to_its_last() -> None:
    values = dict.fromkeys(TIMES[2:6], 25.0)
    assert held(values, TIMES) == [Held(WHERE, WHAT, 30.0, 60.0, 25.0)]


def test_given_back_and_taken_again_between_two_looks_is_two() -> None:
    values = {20.0: 15.0, 30.0: 15.0, 40.0: 36.0, 50.0: 36.0}
    assert held(values, TIMES) == [
        Held(WHERE, WHAT, 20.0, 30.0, 15.0),
        Held(WHERE, WHAT, 40.0, 50.0, 36.0),
    ]


def test_gone_for_a_look_is_two_even_of_one_value() -> None:
    values = {20.0: 15.0, 40.0: 15.0}
    assert [(one.first, one.last) for one in held(values, TIMES)] == [(20.0, 20.0), (40.0, 40.0)]


def test_a_restarted_exporter_that_forgot_begins_no_holding() -> None:
    values = {20.0: 15.0, 30.0: 15.0, 40.0: 36.0, 50.0: 36.0}
    counter = {20.0: 100.0, 30.0: 101.0, 40.0: 1.0, 50.0: 2.0}
    assert held(values, TIMES, counter) == [Held(WHERE, WHAT, 20.0, 50.0, 15.0, assumed=True)]


def test_a_time_at_which_nothing_was_told_ends_nothing() -> None:
    times = (10.0, 20.0, 60.0, 70.0)
    assert held(dict.fromkeys(times, 5.0), times) == [Held(WHERE, WHAT, 10.0, 70.0, 5.0)]
    assert looks([told(times)], [])[WHERE].gaps(10.0, 100.0, STEP) == [(20.0, 60.0), (70.0, None)]
    assert looks([told(times)], [])[WHERE].gaps(-30.0, 70.0, STEP) == [(None, 10.0), (20.0, 60.0)]
    assert Looks().gaps(0.0, 1.0, 1.0) == [(None, None)]


def test_two_targets_of_one_node_are_one_look() -> None:
    other = {"instance": "10.0.0.2:1"}
    first, second = dict.fromkeys(TIMES[:4], 5.0), dict.fromkeys(TIMES[4:], 48.0)
    found = looks([told(TIMES[:4]), Line(NODE | other | {"resource": "x/gpu"}, told(TIMES[4:]).values)], [])
    lines = [line(first, **GPU), line(second, **GPU | other)]
    # An exporter that took another's place and knows nothing of before.
    assert holdings(labels.HELD_SINCE, lines, found) == [Held(WHERE, WHAT, 10.0, 100.0, 5.0, assumed=True)]


def test_claims_have_no_time_of_their_own() -> None:
    claim = {"driver": "d", "pool": "p", "device": "0", "claim_namespace": "ml", "claim": "w"}
    metric = claim | {"namespace": "ml", "pod": "a", "container": "c"}
    found = holdings(
        labels.CLAIM_INFO, [line(dict.fromkeys(TIMES[2:4], 1.0), **metric)], looks([told(TIMES)], [])
    )
    assert [(one.what.driver, one.first, one.last, one.since) for one in found] == [("d", 30.0, 40.0, None)]


@st.composite
def _lives(draw: st.DrawFn) -> list[tuple[float, float]]:
    """Times from which and until which one pod held a device, one after another."""
    edges = sorted(draw(st.sets(st.integers(1, 400), max_size=12)))
    return [(float(a), float(b)) for a, b in zip(edges[::2], edges[1::2], strict=False)]


@given(_lives(), st.sets(st.integers(1, 40), max_size=6))
def test_what_is_found_is_true_and_nothing_that_a_look_shows_is_missing(
    lives: list[tuple[float, float]], blind: set[int]
) -> None:
    times = [STEP * i for i in range(1, 41) if i not in blind]
    values = {at: begin for at in times for begin, end in lives if begin <= at < end}
    found = held(values, times) if values else []
    shown = [life for life in lives if any(life[0] <= at < life[1] for at in times)]
    assert sum(len([at for at in times if one.first <= at <= one.last]) for one in found) == len(values)
    # Each is one life, but where nobody looked between two of them.
    assert [(one.since, one.first, one.last) for one in found] == [
        (begin, min(at for at in times if begin <= at), max(at for at in times if at < end))
        for begin, end in shown
    ]


@pytest.mark.parametrize(
    ("since", "until", "step", "scrape", "expected"),
    [
        (0.0, 600.0, None, 30.0, 30.0),
        (0.0, 600.0, None, None, 15.0),
        (0.0, 86400.0, None, 15.0, 44.0),
        (0.0, 30 * 86400.0, None, 15.0, 300.0),
        (0.0, 600.0, 5.0, 30.0, 5.0),
        (0.0, 600.0, None, 0.2, 1.0),
    ],
)
def test_the_grid_is_as_close_as_the_range_wants(
    since: float, until: float, step: float | None, scrape: float | None, expected: float
) -> None:
    assert grid(since, until, step, scrape).step == pytest.approx(expected)


@given(
    st.floats(1e9, 2e9),
    st.floats(1.0, 90 * 86400.0),
    st.sampled_from([None, 1.0, 15.0, 300.0]),
    st.integers(0, 5000),
)
def test_parts_are_the_grid_without_a_gap_and_none_is_too_long(
    since: float, length: float, step: float | None, series: int
) -> None:
    asked = grid(since, since + length, step, None)
    try:
        found = parts(asked, series)
    except TooMuch:
        assert asked.count * max(series, 91) > 100_000_000
        return
    assert asked.start <= since
    assert asked.end <= since + length + 1e-3
    assert since + length - asked.end < asked.step + 1e-3
    moments = 0
    expected = asked.start
    for start, end in found:
        assert start == pytest.approx(expected, abs=1e-3)
        count = round((end - start) / asked.step) + 1
        assert count <= POINTS
        moments += count
        expected = end + asked.step
    assert moments == asked.count
    assert math.isclose(found[-1][1], asked.end, abs_tol=1e-3)


def test_a_range_of_one_moment_is_one_part() -> None:
    assert parts(Range(10.0, 5.0, 1), 1) == [(10.0, 10.0)]


def test_what_nobody_could_wait_for_is_refused() -> None:
    with pytest.raises(TooMuch, match="take --node, --selector, a shorter time or a longer --step"):
        parts(Range(0.0, 15.0, 200_000), 1_000_000)
