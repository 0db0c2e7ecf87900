"""exporter.views.wording: what a person reads."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.mapping.names import most_similar
from exporter.views.wording import (
    clock_time,
    count_states,
    counted,
    lasting,
    listed,
    parse_moment,
    parse_time,
    ranges,
    rfc3339,
    size,
    text,
)
from runtime.text import is_hostile

HOUR, DAY = 3600, 86400


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (HOUR - 1, "59 min"),
        (HOUR, "1 h"),
        (2 * HOUR + 300, "2 h 5 min"),
        (DAY, "1 d"),
        (3 * DAY + HOUR, "3 d 1 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    assert lasting(seconds) == words


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (1_793_227_263.25, "22:41:03"),
        (1_793_227_263 - DAY, "27 Oct 22:41"),
        (1_793_227_263 - 400 * DAY, "2025-09-23 22:41"),
    ],
)
def test_a_clock_time_is_short_for_today(at: float, shown: str) -> None:
    assert clock_time(at, 1_793_227_263.25) == shown


def test_rfc_3339_is_utc_with_milliseconds() -> None:
    assert rfc3339(1_793_227_263.25) == "2026-10-28T22:41:03.250Z"
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"


@given(st.text(max_size=400), st.integers(8, 100))
def test_text_has_no_hidden_characters_and_is_bounded(raw: str, limit: int) -> None:
    found = text(raw, limit)
    assert len(found.shown) <= limit
    assert not any(map(is_hostile, found.shown + found.whole))
    assert bool(found.whole) == (found.shown.count("…") > raw.count("…") or len(found.whole) > limit)


def test_a_long_text_keeps_both_its_ends() -> None:
    found = text("A" * 50 + "the end", limit=30)
    assert found.shown.startswith("AAAA")
    assert found.shown.endswith("the end")
    assert found.whole == "A" * 50 + "the end"


@given(st.sets(st.integers(0, 300)))
def test_ranges_are_what_the_kernel_writes(numbers: set[int]) -> None:
    read: set[int] = set()
    for part in filter(None, ranges(numbers).split(",")):
        first, _, last = part.partition("-")
        read |= set(range(int(first), int(last or first) + 1))
    assert read == numbers


def test_ranges_of_neighbours_are_joined() -> None:
    assert ranges([8, 0, 2, 1, 3, 3]) == "0-3,8"


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 B"), (1023, "1023 B"), (200 << 20, "200 MiB"), (3 << 29, "1.5 GiB")]
)
def test_sizes_are_in_binary_units(number: int, shown: str) -> None:
    assert size(number) == shown


def test_counts_and_lists() -> None:
    assert counted(1, "device") == "1 device"
    assert counted(0, "device") == "0 devices"
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c", "d"], limit=2) == "a, b and 2 more"


@pytest.mark.parametrize(
    ("held", "held_unhealthy", "free", "unavailable", "words"),
    [
        (2, 1, 1, 1, "2 held (1 of them unhealthy), 1 free, 1 unavailable"),
        (2, 2, 0, 0, "2 held (all unhealthy)"),
        (1, 1, 3, 0, "1 held (unhealthy), 3 free"),
        (0, 0, 0, 4, "4 unavailable"),
        (3, 0, None, 0, "3 held, free ones unknown"),
        (0, 0, 0, 0, ""),
    ],
)
def test_states_of_a_total_exclude_each_other(
    held: int, held_unhealthy: int, free: int | None, unavailable: int, words: str
) -> None:
    assert count_states(held=held, held_unhealthy=held_unhealthy, free=free, unavailable=unavailable) == words


BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("03:12", "2026-11-21T02:12:00+00:00"),
        ("11:00:00", "2026-11-21T10:00:00+00:00"),
        ("11:00:01", "2026-11-20T10:00:01+00:00"),
        ("3:12", "2026-11-21T02:12:00+00:00"),
        ("2026-11-20 03:12", "2026-11-20T02:12:00+00:00"),
        ("2026-07-20T03:12", "2026-07-20T01:12:00+00:00"),
        ("2026-11-20", "2026-11-19T23:00:00+00:00"),
        ("2026-11-20T03:12:00Z", "2026-11-20T03:12:00+00:00"),
        ("2026-11-20 03:12:00-05:00", "2026-11-20T08:12:00+00:00"),
        ("-1h30m", "2026-11-21T08:30:00+00:00"),
        ("now", "2026-11-21T10:00:00+00:00"),
        ("1795255920", "2026-11-21T10:12:00+00:00"),
    ],
)
def test_a_time_as_people_type_it(text: str, expected: str) -> None:
    found = parse_time(text, NOW, BERLIN)
    assert datetime.fromtimestamp(found, UTC).isoformat() == expected


def test_a_clock_time_across_the_end_of_summer_time() -> None:
    # The clock went back an hour at 3 that morning; the day before was summer time.
    now = datetime(2026, 10, 25, 12, 0, tzinfo=timezone(timedelta(hours=1))).timestamp()
    at = parse_time("12:30", now, BERLIN)
    assert datetime.fromtimestamp(at, BERLIN).isoformat() == "2026-10-24T12:30:00+02:00"


@pytest.mark.parametrize("text", ["", "25:00", "3:1", "yesterday", "2026-13-01", "0000-00-00", "\u0663:00"])
def test_malformed_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="found"):
        parse_time(text, NOW, BERLIN)


@pytest.mark.parametrize(
    "text",
    [
        *("-1h30m", "1795249800", "2026-11-21T08:30:00Z", "2026-11-21T09:30:00+01:00"),
        "2026-11-21T09:30:00 01:00",  # a plus sign that an address lost
    ],
)
def test_a_moment_has_its_zone(text: str) -> None:
    assert parse_moment(text, NOW) == NOW - 5400


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "-1x", "1e9", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1969-12-31T23:59:59Z"),
        *("-90000d", "\u0663", "2026-11-20T03:12:00"),
    ],
)
def test_malformed_moments_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("GPU-9", ["GPU-0", "GPU-1"]),
        ("default/render-1", ["batch/render-1"]),
        ("zzz", []),
        ("", []),
    ],
)
def test_similar_names_share_their_beginning_or_end(wanted: str, found: list[str]) -> None:
    names = ["GPU-0", "GPU-1", "GPU-1", "batch/render-1", "x"]
    assert [name for (name,) in most_similar(wanted, ((name, (name,)) for name in names))] == found
