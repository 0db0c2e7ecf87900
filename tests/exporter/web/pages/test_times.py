"""Times on pages: ends of holdings and gaps in words, and ages that are filled in when a page is sent."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history.record import Bound, Certainty, HoldingFacts, HoldingKey, HoldingRow
from exporter.views.wording import lasting, text
from exporter.web.pages import times
from exporter.web.pages.times import NOW as NOW_PLACE
from exporter.web.pages.times import day, filled
from harness.scene import START

NOW = datetime(2026, 10, 28, 22, 41, 3, tzinfo=UTC).timestamp()
KEY = HoldingKey("r/x", "dev", "ns", "pod", "main")


def row(start: Bound, end: Bound | None = None, missed: Bound | None = None) -> HoldingRow:
    return HoldingRow(1, KEY, HoldingFacts(), start, end, missed)


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (Bound(NOW - 10.4, NOW - 10, Certainty.AT_ONCE), "22:40:53"),
        (Bound(NOW - 10.4, NOW - 10, Certainty.BETWEEN_POLLS), "22:40:53"),
        (
            Bound(NOW - 15, NOW - 10, Certainty.BETWEEN_POLLS),
            "between 22:40:48 and 22:40:53 (between two polls)",
        ),
        (
            Bound(NOW - 86400, NOW - 10, Certainty.WHILE_DOWN),
            "between 27 Oct 22:41:03 and 22:40:53 (the exporter was down)",
        ),
        (
            Bound(NOW - 60, NOW - 10, Certainty.WHILE_SILENT),
            "between 22:40:03 and 22:40:53 (the kubelet did not answer)",
        ),
        (
            Bound(None, NOW - 10, Certainty.HELD_ALREADY),
            "before 22:40:53 (already held at the first refresh)",
        ),
        (Bound(NOW - 10, None, Certainty.WHILE_DOWN), "after 22:40:53 (the exporter was down)"),
        (Bound(None, None, Certainty.WHILE_DOWN), "at an unknown time"),
    ],
)
def test_a_start_has_its_bounds_and_their_reason(bound: Bound, words: str) -> None:
    end = times.began(row(bound), NOW)
    assert str(end) == words


@pytest.mark.parametrize(
    ("ago", "clock"), [(0, "22:41:03"), (86400, "27 Oct 22:41:03"), (400 * 86400, "2025-09-23 22:41:03")]
)
def test_a_stamp_has_seconds_on_any_day(ago: int, clock: str) -> None:
    found = times.stamp(NOW - ago, NOW)
    assert (found.clock, filled(found.ago.encode(), NOW).decode()) == (clock, lasting(ago))
    assert times.stamp(NOW - 86400, NOW, seconds=False).clock == "27 Oct 22:41"


def test_a_present_holding_has_no_end_and_a_doubtful_one_was_last_seen() -> None:
    start = Bound(NOW - 100, NOW - 100, Certainty.AT_ONCE)
    assert times.ended(row(start), NOW) is None
    end = times.ended(row(start, missed=Bound(NOW - 20, NOW, Certainty.WHILE_DOWN)), NOW)
    assert str(end).startswith("last seen 22:40:43 (not listed since the exporter started")


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
def test_a_duration_has_two_bounds(
    start: tuple[float | None, float | None], end: tuple[float | None, float | None] | None, words: str
) -> None:
    last = None if end is None else Bound(*end, Certainty.BETWEEN_POLLS)
    assert times.lasted(row(Bound(*start, Certainty.BETWEEN_POLLS), last), NOW) == words


BOUNDS = st.none() | st.floats(0, 4e9)


@settings(max_examples=50)
@given(
    st.tuples(BOUNDS, BOUNDS), st.tuples(BOUNDS, BOUNDS), st.sampled_from(list(Certainty)), st.floats(0, 4e9)
)
def test_any_bounds_have_words(
    start: tuple[float | None, float | None],
    last: tuple[float | None, float | None],
    certainty: Certainty,
    now: float,
) -> None:
    found = row(Bound(*start, certainty), Bound(*last, certainty))
    end = times.ended(found, now)
    assert end is not None
    assert str(times.began(found, now))
    assert str(end)
    assert "-" not in times.lasted(found, now)


@settings(max_examples=50)
@given(st.floats(0, 4e9), st.floats(0, 1e6), st.text(), st.text(max_size=8))
def test_only_placeholders_are_filled(at: float, passed: float, before: str, name: str) -> None:
    now = at + passed
    assert filled(times.stamp(at, at).ago.encode(), now).decode() == lasting(now - at)
    hostile = text(f"{before}\x02now\x02{name}\x021e9\x02").shown.encode()
    assert filled(hostile, START) == hostile
    assert filled(f'data-now="{NOW_PLACE}"'.encode(), START) == b'data-now="1793227263.25"'
    malformed = b"\x02\x02 \x02nan\x02 \x02inf\x02 \x021_0\x02"
    assert filled(malformed, START) == malformed


def test_a_day_is_in_utc() -> None:
    midnight = 1_793_232_000.0
    assert day(midnight - 0.001) + 1 == day(midnight)
