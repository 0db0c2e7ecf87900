"""exporter.history.coverage: covered spans and their gaps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history.coverage import (
    CoverageGap,
    CoveredSpan,
    GapReason,
    coverage_gaps,
    without_answers,
)

SPANS = [
    CoveredSpan(1, 100.0, 200.0),
    CoveredSpan(2, 260.0, 300.0, GapReason.DOWN),
    CoveredSpan(3, 330.0, 400.0, GapReason.SILENT),
]
DOWN = CoverageGap(200.0, 260.0, GapReason.DOWN)
SILENT = CoverageGap(300.0, 330.0, GapReason.SILENT)


@pytest.mark.parametrize(
    ("since", "until", "gaps"),
    [
        # Of a moment, the whole gap around it.
        (99.0, 99.0, [CoverageGap(None, 100.0, GapReason.BEFORE)]),
        (100.0, 100.0, []),
        (150.0, 150.0, []),
        (200.0, 200.0, []),
        (230.0, 230.0, [DOWN]),
        (310.0, 310.0, [SILENT]),
        (400.0, 400.0, []),
        (401.0, 401.0, [CoverageGap(400.0, None, GapReason.LATER)]),
        # Of a range, the gaps within it.
        (110.0, 190.0, []),
        (None, 190.0, []),
        (50.0, 190.0, [CoverageGap(50.0, 100.0, GapReason.BEFORE)]),
        (150.0, 230.0, [DOWN._replace(until=230.0)]),
        (210.0, 320.0, [DOWN._replace(since=210.0), SILENT._replace(until=320.0)]),
        (None, 500.0, [DOWN, SILENT, CoverageGap(400.0, 500.0, GapReason.LATER)]),
        (10.0, 20.0, [CoverageGap(10.0, 20.0, GapReason.BEFORE)]),
        (500.0, 600.0, [CoverageGap(500.0, 600.0, GapReason.LATER)]),
    ],
)
def test_gaps_of_a_moment_and_of_a_range(since: float | None, until: float, gaps: list[CoverageGap]) -> None:
    assert list(coverage_gaps(SPANS, since, until, GapReason.LATER)) == gaps


def test_without_polls_everything_is_a_gap() -> None:
    for since, until, first, last in ((None, 10.0, None, 10.0), (5.0, 5.0, None, None)):
        found = list(coverage_gaps([], since, until, GapReason.SILENT))
        assert found == [CoverageGap(first, last, GapReason.SILENT)]


@pytest.mark.parametrize(
    ("gaps", "started", "at", "found"),
    [
        (
            [CoverageGap(None, 100.0, GapReason.BEFORE), DOWN],
            230.0,
            None,
            [
                CoverageGap(None, 100.0, GapReason.BEFORE),
                CoverageGap(200.0, 230.0, GapReason.DOWN),
                CoverageGap(230.0, 260.0, GapReason.SILENT),
            ],
        ),
        ([DOWN], 150.0, None, [CoverageGap(200.0, 260.0, GapReason.SILENT)]),
        ([DOWN, SILENT], 290.0, None, [DOWN, SILENT]),
        (
            [CoverageGap(None, None, GapReason.BEFORE)],
            50.0,
            40.0,
            [CoverageGap(None, 50.0, GapReason.BEFORE)],
        ),
        (
            [CoverageGap(None, None, GapReason.BEFORE)],
            50.0,
            60.0,
            [CoverageGap(50.0, None, GapReason.SILENT)],
        ),
    ],
)
def test_the_kubelet_did_not_answer_only_while_the_exporter_ran(
    gaps: list[CoverageGap], started: float, at: float | None, found: list[CoverageGap]
) -> None:
    assert list(without_answers(gaps, started, at)) == found


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=6),
    st.integers(0, 80),
    st.integers(0, 30),
    st.integers(-5, 90),
)
def test_every_moment_is_covered_or_in_a_gap(
    drawn: list[tuple[int, int]], since: int, length: int, at: int
) -> None:
    watches = [CoveredSpan(n, s, s + lasted, GapReason.DOWN) for n, (s, lasted) in enumerate(sorted(drawn))]
    looked = any(w.since <= at <= w.until for w in watches)
    assert bool(list(coverage_gaps(watches, float(at), float(at), GapReason.LATER))) == (not looked)
    until = since + length
    if length and since < at < until:
        gaps = list(coverage_gaps(watches, float(since), float(until), GapReason.LATER))
        strictly = [gap for gap in gaps if (gap.since or 0) < at < (gap.until or 1e9)]
        touching = [gap for gap in gaps if (gap.since or 0) <= at <= (gap.until or 1e9)]
        assert len(strictly) <= 1
        assert bool(touching) if not looked else not strictly
