"""The drawing: what is sure is solid, what is not is not, and nothing leaves its place."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.history.coverage import CoverageGap, GapReason
from exporter.web.pages.timeline import (
    BARS,
    LANES,
    WIDTHS,
    Bar,
    Lane,
    Piece,
    Scale,
    Span,
    Stretch,
    Timeline,
    place_labels,
    text_width,
    ticks,
    timeline,
)

ONE = (Lane("g"),)


def stretch(
    earliest: float | None, since: float, until: float, latest: float, *, state: str = "ended", key: str = "k"
) -> Stretch:
    return Stretch(
        key, "g", ("ns/pod", "pod"), "/pods/ns/pod", "t", "d", earliest, since, until, latest, state
    )


def drawn(*stretches: Stretch, since: float = 0.0, until: float = 1000.0) -> Timeline:
    return timeline(stretches, ONE, since=since, until=until, now=1000.0)


def number(text: str) -> float:
    assert text.endswith("%")
    return float(text[:-1])


def ends(span: Span) -> tuple[float, float]:
    x = number(span.x)
    return x, round(x + number(span.width), 3)


def test_exact_ends_are_solid_and_uncertain_ones_are_not() -> None:
    (bar,) = drawn(stretch(100, 200, 600, 700)).bars
    assert ends(bar.whole) == (10, 70)
    assert bar.sure is not None
    assert ends(bar.sure) == (20, 60)
    assert [ends(span) for span in bar.unsure] == [(10, 20), (60, 70)]
    assert bar.edges == ("10%", "70%")
    (exact,) = drawn(stretch(200, 200, 600, 600)).bars
    assert (exact.unsure, exact.sure) == ((), exact.whole)


def test_what_no_look_showed_for_sure_is_not_solid_anywhere() -> None:
    (bar,) = drawn(stretch(100, 400, 300, 500)).bars
    assert bar.sure is None
    assert [ends(span) for span in bar.unsure] == [(10, 50)]


def test_what_is_held_reaches_now_and_has_no_end() -> None:
    found = drawn(stretch(500, 500, 1000, 1000, state="held"))
    (bar,) = found.bars
    assert ends(bar.whole) == (50, 100)
    assert bar.edges == ("50%",)
    assert found.now == "100%"


def test_what_goes_on_is_not_sure_beyond_the_last_look() -> None:
    (bar,) = drawn(stretch(500, 500, 800, 1000, state="held")).bars
    assert [ends(span) for span in bar.unsure] == [(80, 100)]


def test_a_beginning_that_nobody_knows_has_no_edge() -> None:
    (bar,) = drawn(stretch(None, 300, 600, 600)).bars
    assert [ends(span) for span in bar.unsure] == [(0, 30)]
    assert bar.edges == ("60%",)


def test_what_began_and_ended_outside_is_cut_without_an_edge() -> None:
    (bar,) = drawn(stretch(-500, -500, 2000, 2000)).bars
    assert (ends(bar.whole), bar.edges) == ((0, 100), ())
    assert drawn(stretch(-500, -500, -400, -300)).bars == ()
    assert drawn(stretch(1100, 1100, 1200, 1300)).bars == ()
    assert drawn(stretch(0, 1, 2, 3), since=5000, until=6000).now == ""


def test_what_is_too_short_to_be_seen_has_an_edge() -> None:
    (bar,) = drawn(stretch(500, 500, 500.001, 500.001), until=1e6).bars
    assert bar.edges


def test_holdings_at_the_same_time_are_below_one_another() -> None:
    found = drawn(
        stretch(0, 0, 500, 500, key="a"),
        stretch(400, 400, 900, 900, key="b"),
        stretch(600, 600, 900, 900, key="c"),
    )
    rows = {bar.stretch.key: bar.y for bar in found.bars}
    assert rows["a"] == rows["c"] < rows["b"]
    assert found.foot > rows["b"] + 20


def test_rows_have_names_in_the_order_that_is_given_and_empty_ones_are_left_out() -> None:
    groups = (Lane("b", "second", "/b"), Lane("none", "none"), Lane("a", "first"))
    stretches = [replace(stretch(0, 0, 9, 9, key=key), lane=key) for key in "ab"]
    found = timeline(stretches, groups, since=0, until=10, now=10)
    assert [lane.name for lane, _ in found.headers] == ["second", "first"]
    assert found.headers[0][1] < found.bars[0].y < found.headers[1][1] < found.bars[1].y


def test_gaps_are_shaded_as_far_as_they_are_seen() -> None:
    silent = (
        CoverageGap(None, 100, GapReason.BEFORE),
        CoverageGap(400, 500, GapReason.SILENT),
        CoverageGap(900, None, GapReason.DOWN),
        CoverageGap(2000, None, GapReason.LOST),
    )
    found = timeline((), ONE, silent, since=0, until=1000, now=1000)
    assert [(ends(span), why) for span, why in found.shades] == [
        ((0, 10), GapReason.BEFORE),
        ((40, 50), GapReason.SILENT),
        ((90, 100), GapReason.DOWN),
    ]


def test_the_drawing_is_bounded_and_says_what_it_leaves_out() -> None:
    many = [stretch(i, i, i + 0.9, i + 0.9, key=f"k{i:04}") for i in range(BARS + 40)]
    found = drawn(*many)
    assert (len(found.bars), found.left_out) == (BARS, 40)
    assert found.bars[-1].stretch.key == f"k{BARS + 39:04}", "the latest are kept"
    beside = [stretch(0, 0, 1000, 1000, key=f"k{i}") for i in range(LANES + 7)]
    assert (len(drawn(*beside).bars), drawn(*beside).left_out) == (LANES, 7)
    rows = [replace(s, lane=s.key) for s in beside]
    found = timeline(rows, tuple(Lane(s.key, s.key) for s in rows), since=0, until=1000, now=1000)
    assert (len(found.bars), found.left_out) == (LANES, 7)


def test_a_mark_is_where_the_moment_is() -> None:
    assert timeline((), ONE, since=0, until=100, now=100, mark=25).mark == "25%"
    assert timeline((), ONE, since=0, until=100, now=100, mark=125).mark == ""


times = st.floats(-1e5, 1e5)


@given(
    st.lists(
        st.tuples(st.none() | times, times, times, times, st.sampled_from(["held", "ended", "doubt"])),
        max_size=30,
    ),
    times,
    st.floats(0, 1e5),
)
def test_everything_stays_within_the_drawing_and_nothing_covers_anything(
    found: list[tuple[float | None, float, float, float, str]], since: float, span: float
) -> None:
    stretches = [
        Stretch(f"k{i}", "g", ("ns/p", "p"), "/", "t", "d", earliest, first, last, max(last, latest), state)
        for i, (earliest, first, last, latest, state) in enumerate(found)
    ]
    drawing = timeline(stretches, ONE, since=since, until=since + span, now=since + span)
    for bar in drawing.bars:
        for part in (bar.whole, *bar.unsure, *([bar.sure] if bar.sure else [])):
            assert 0 <= number(part.x) <= 100
            assert 0 <= number(part.width) <= 100.001
            assert number(part.x) + number(part.width) <= 100.01
        assert all(0 <= number(edge) <= 100 for edge in bar.edges)
        assert bar.y + 20 <= drawing.foot
    for one, other in _neighbours(drawing.bars):
        assert ends(one.whole)[1] <= ends(other.whole)[0] + 0.01


def _neighbours(bars: Iterable[Bar]) -> list[tuple[Bar, Bar]]:
    lanes: dict[int, list[Bar]] = {}
    for bar in bars:
        lanes.setdefault(bar.y, []).append(bar)
    pairs: list[tuple[Bar, Bar]] = []
    for lane in lanes.values():
        lane.sort(key=lambda bar: ends(bar.whole))
        pairs += list(pairwise(lane))
    return pairs


# --- labels


def test_a_name_is_written_in_its_bar_where_it_fits_and_beside_it_where_there_is_room() -> None:
    wide, short = place_labels([(0, 50, ("namespace/pod", "pod")), (60, 61, ("namespace/other", "other"))])
    assert [(label.text, label.inside) for label, _ in wide] == [("namespace/pod", True)]
    assert {label.inside for label, _ in short} == {False}
    assert short[-1][0].anchor == "start"


def test_a_name_goes_to_the_left_where_the_right_is_full() -> None:
    _, last = place_labels([(0, 10, ("a",)), (99, 100, ("namespace/pod", "pod"))])
    assert {label.anchor for label, _ in last} == {"end"}


def test_a_shorter_name_is_better_than_none_and_a_part_of_it_too() -> None:
    between: list[Piece] = [
        (0, 49, ("x",)),
        (49, 60, ("namespace/long-name-of-a-pod", "long-name")),
        (60, 100, ("y",)),
    ]
    labels = place_labels(between)[1]
    by_width = {width: label.text for label, widths in labels for width in widths.split()}
    assert by_width["w3"] == "long-name"
    assert by_width["w1"].endswith("…")
    assert "w0" not in by_width


@given(
    st.lists(st.tuples(st.floats(0, 100), st.text(min_size=1, max_size=30)), max_size=12),
)
def test_labels_never_cover_one_another(found: list[tuple[float, str]]) -> None:
    cuts = sorted(x for x, _ in found)
    pieces: list[Piece] = [
        (x, min(100.0, x + 0.5 * ((cuts[i + 1] if i + 1 < len(cuts) else 100.0) - x)), (name,))
        for i, (x, (_, name)) in enumerate(zip(cuts, found, strict=True))
    ]
    placed = place_labels(pieces)
    for number_, width in enumerate(WIDTHS):
        spans: list[tuple[float, float]] = []
        for labels in placed:
            shown = [label for label, widths in labels if f"w{number_}" in widths.split()]
            assert len(shown) <= 1
            for label in shown:
                x = float(label.x[:-1]) * width / 100
                room = text_width(label.text)
                spans.append((x, x + room) if label.anchor == "start" else (x - room, x))
        spans.sort()
        assert all(a[1] <= b[0] + 0.1 for a, b in pairwise(spans))
        assert all(first >= -0.1 and last <= width + 0.1 for first, last in spans)


# --- ticks


@pytest.mark.parametrize(
    ("since", "until", "labels"),
    [
        (0, 60, ["1 Jan", "00:00:10", "00:00:20", "00:00:30", "00:00:40", "00:00:50", "00:01:00"]),
        (3600, 7200, ["01:00", "01:10", "01:20", "01:30", "01:40", "01:50", "02:00"]),
        (82800, 90000, ["23:00", "23:15", "23:30", "23:45", "2 Jan", "00:15", "00:30", "00:45", "01:00"]),
        (0, 7 * 86400, ["1 Jan", "2 Jan", "3 Jan", "4 Jan", "5 Jan", "6 Jan", "7 Jan", "8 Jan"]),
    ],
)
def test_ticks_are_round_times(since: float, until: float, labels: list[str]) -> None:
    assert [tick.label for tick in ticks(Scale(since, until), 9)] == labels


@given(st.floats(0, 4e9), st.floats(0, 4e9), st.integers(1, 20))
def test_ticks_are_few_within_and_in_order(since: float, span: float, most: int) -> None:
    found = ticks(Scale(since, since + span), most)
    places = [number(tick.x) for tick in found]
    assert len(found) <= most
    assert all(0 <= place <= 100 for place in places)
    assert places == sorted(places)
