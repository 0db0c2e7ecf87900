"""Ends of holdings and gaps in words: nothing is made exact by being shown."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.history.coverage import CoverageGap, GapReason
from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow
from exporter.web.pages import periods
from exporter.web.pages.periods import in_words

NOW = datetime(2026, 10, 28, 22, 41, 3, tzinfo=UTC).timestamp()
KEY = HoldingKey("r/x", "", "", "dev", "", "", "", "ns", "pod", "main")


def row(start: Bound, end: Bound | None = None, missed: Bound | None = None) -> HoldingRow:
    return HoldingRow(1, KEY, HoldingFacts(), start, end, missed)


@pytest.mark.parametrize(
    ("bound", "words", "sure"),
    [
        (Bound(NOW - 10.4, NOW - 10, Certainty.AT_ONCE), "22:40:53", True),
        (Bound(NOW - 10.4, NOW - 10, Certainty.BETWEEN_POLLS), "22:40:53", True),
        (
            Bound(NOW - 15, NOW - 10, Certainty.BETWEEN_POLLS),
            "between 22:40:48 and 22:40:53 (between two looks)",
            False,
        ),
        (
            Bound(NOW - 86400, NOW - 10, Certainty.WHILE_DOWN),
            "between 27 Oct 22:41:03 and 22:40:53 (the exporter was down)",
            False,
        ),
        (
            Bound(NOW - 60, NOW - 10, Certainty.WHILE_SILENT),
            "between 22:40:03 and 22:40:53 (the kubelet did not answer)",
            False,
        ),
        (
            Bound(None, NOW - 10, Certainty.HELD_ALREADY),
            "before 22:40:53 (it was held already at the first look)",
            False,
        ),
        (Bound(NOW - 10, None, Certainty.WHILE_DOWN), "after 22:40:53 (the exporter was down)", False),
        (Bound(None, None, Certainty.WHILE_DOWN), "at an unknown time", False),
    ],
)
def test_an_end_is_told_as_well_as_it_is_known(bound: Bound, words: str, *, sure: bool) -> None:
    end = periods.began(row(bound), NOW)
    assert in_words(end) == words
    assert end.sure is sure


def test_a_time_is_told_to_the_second_whatever_its_day() -> None:
    for ago, clock in ((0, "22:41:03"), (86400, "27 Oct 22:41:03"), (400 * 86400, "2025-09-23 22:41:03")):
        assert periods.stamp(NOW - ago, NOW).clock == clock
    assert periods.stamp(NOW - 90, NOW).iso == "2026-10-28T22:39:33.000Z"
    assert periods.stamp(NOW - 90, NOW).ago == "1 min"


def test_what_is_held_has_no_end_and_what_is_in_doubt_was_last_seen() -> None:
    start = Bound(NOW - 100, NOW - 100, Certainty.AT_ONCE)
    assert periods.ended(row(start), NOW) is None
    end = periods.ended(row(start, missed=Bound(NOW - 20, NOW, Certainty.WHILE_DOWN)), NOW)
    assert end is not None
    assert in_words(end).startswith("last seen 22:40:43 (not seen since the exporter started")
    assert not end.sure


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ((NOW - 100, NOW - 100), (NOW - 40, NOW - 40), "1 min"),
        ((NOW - 100.5, NOW - 100), (NOW - 40.4, NOW - 40), "59 s"),
        ((NOW - 15, NOW - 10), (NOW - 5, NOW), "5 s to 15 s"),
        ((NOW - 15, NOW - 10), (NOW - 15, NOW - 10), "at most 5 s"),
        ((None, NOW - 10), (NOW - 5, NOW), "at least 5 s"),
        ((NOW - 95, NOW - 90), (NOW - 5, NOW), "1 min"),
        ((NOW - 15, NOW - 10), None, "10 s to 15 s"),
        ((None, NOW - 10), None, "at least 10 s"),
        ((NOW - 15, NOW - 10), (NOW - 5, None), "at least 5 s"),
    ],
)
def test_how_long_it_lasted_has_two_bounds(
    start: tuple[float | None, float | None], end: tuple[float | None, float | None] | None, words: str
) -> None:
    last = None if end is None else Bound(*end, Certainty.BETWEEN_POLLS)
    assert periods.lasted(row(Bound(*start, Certainty.BETWEEN_POLLS), last), NOW) == words


@pytest.mark.parametrize(
    ("since", "until", "when"),
    [
        (NOW - 60, NOW, ("22:40:03", "22:41:03")),
        (None, NOW, (None, "22:41:03")),
        (NOW, None, ("22:41:03", None)),
        (None, None, (None, None)),
    ],
)
@pytest.mark.parametrize("why", list(GapReason))
def test_a_gap_is_told_with_its_reason(
    since: float | None, until: float | None, when: tuple[str | None, str | None], why: GapReason
) -> None:
    told_of = periods.silence(CoverageGap(since, until, why), NOW)
    assert told_of.why == periods.REASONS[why]
    assert (told_of.since and told_of.since.clock, told_of.until and told_of.until.clock) == when
    assert told_of.lasted == ("1 min" if all(when) else "")


times = st.none() | st.floats(0, 4e9)


@given(st.tuples(times, times), st.tuples(times, times), st.sampled_from(list(Certainty)), st.floats(0, 4e9))
def test_whatever_is_known_can_be_told(
    start: tuple[float | None, float | None],
    last: tuple[float | None, float | None],
    certainty: Certainty,
    now: float,
) -> None:
    found = row(Bound(*start, certainty), Bound(*last, certainty))
    end = periods.ended(found, now)
    assert end is not None
    assert in_words(periods.began(found, now))
    assert in_words(end)
    assert "-" not in periods.lasted(found, now)
