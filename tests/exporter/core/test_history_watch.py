"""exporter.history.coverage: "nobody held it" is never claimed of a time at which nobody looked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history.coverage import Gap, Sight, Times, Unseen, Watch, unseen

WATCHES = [Watch(1, 100.0, 200.0), Watch(2, 260.0, 300.0, Gap.DOWN), Watch(3, 330.0, 400.0, Gap.SILENT)]

GAPS = [Unseen(200.0, 260.0, Gap.DOWN), Unseen(300.0, 330.0, Gap.SILENT)]


@pytest.mark.parametrize(
    ("at", "gap"),
    [
        (99.0, Unseen(None, 100.0, Gap.BEFORE)),
        (100.0, None),
        (150.0, None),
        (200.0, None),
        (230.0, Unseen(200.0, 260.0, Gap.DOWN)),
        (310.0, Unseen(300.0, 330.0, Gap.SILENT)),
        (400.0, None),
        (401.0, Unseen(400.0, None, Gap.LATER)),
    ],
)
def test_of_a_moment_the_whole_gap_is_told_that_it_lies_in(at: float, gap: Unseen | None) -> None:
    assert list(unseen(WATCHES, at, at, Gap.LATER)) == ([] if gap is None else [gap])


@pytest.mark.parametrize(
    ("since", "until", "gaps"),
    [
        (110.0, 190.0, []),
        (None, 190.0, []),
        (50.0, 190.0, [Unseen(50.0, 100.0, Gap.BEFORE)]),
        (150.0, 230.0, [Unseen(200.0, 230.0, Gap.DOWN)]),
        (210.0, 320.0, [Unseen(210.0, 260.0, Gap.DOWN), Unseen(300.0, 320.0, Gap.SILENT)]),
        (None, 500.0, [*GAPS, Unseen(400.0, 500.0, Gap.LATER)]),
        (10.0, 20.0, [Unseen(10.0, 20.0, Gap.BEFORE)]),
        (500.0, 600.0, [Unseen(500.0, 600.0, Gap.LATER)]),
    ],
)
def test_of_a_range_the_gaps_within_it_are_told(
    since: float | None, until: float, gaps: list[Unseen]
) -> None:
    assert list(unseen(WATCHES, since, until, Gap.LATER)) == gaps


def test_without_any_look_nothing_is_claimed() -> None:
    assert list(unseen([], None, 10.0, Gap.SILENT)) == [Unseen(None, 10.0, Gap.SILENT)]
    assert list(unseen([], 5.0, 5.0, Gap.SILENT)) == [Unseen(None, None, Gap.SILENT)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=6),
    st.integers(0, 80),
    st.integers(0, 30),
    st.integers(-5, 90),
)
def test_every_moment_is_either_in_a_watch_or_in_a_gap(
    drawn: list[tuple[int, int]], since: int, length: int, at: int
) -> None:
    watches = [Watch(n, s, s + lasted, Gap.DOWN) for n, (s, lasted) in enumerate(sorted(drawn))]
    looked = any(w.since <= at <= w.until for w in watches)
    assert bool(list(unseen(watches, float(at), float(at), Gap.LATER))) == (not looked)
    until = since + length
    if length and since < at < until:
        gaps = list(unseen(watches, float(since), float(until), Gap.LATER))
        strictly = [gap for gap in gaps if (gap.since or 0) < at < (gap.until or 1e9)]
        touching = [gap for gap in gaps if (gap.since or 0) <= at <= (gap.until or 1e9)]
        assert len(strictly) <= 1
        assert bool(touching) if not looked else not strictly


def test_looks_follow_one_another_until_too_much_time_has_passed() -> None:
    sight = Sight(16.0)
    assert sight.look(Times(0.0, 0.1, 0.1), {}, told=False).before is None
    assert sight.look(Times(5.0, 5.1, 5.1), None, told=False).gap is None
    failing = [sight.failing]
    sight.fail()
    failing.append(sight.failing)
    assert sight.look(Times(15.0, 15.1, 15.1), None, told=True).gap is None
    assert [*failing, sight.failing] == [False, True, False]
    assert sight.look(Times(40.0, 40.1, 40.1), None, told=False).gap is Gap.PAUSED
    sight.fail()
    assert sight.look(Times(70.0, 70.1, 70.1), None, told=False).gap is Gap.SILENT
    assert sight.look(Times(75.0, 3675.1, 75.1), None, told=False).gap is Gap.CLOCK
    assert sight.last == Times(75.0, 3675.1, 75.1)
