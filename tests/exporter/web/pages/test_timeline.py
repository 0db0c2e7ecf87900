"""The drawing: certain parts are solid, uncertain ones are not, and nothing leaves its place."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from exporter.history.coverage import CoverageGap, GapReason
from exporter.web.pages.timeline import (
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
    names = ("ns/pod", "pod")
    return Stretch(key, "g", names, "/pods/ns/pod", "t", "d", earliest, since, until, latest, state)


def held(since: float, until: float, *, key: str = "k") -> Stretch:
    """Both ends are exact."""
    return stretch(since, since, until, until, key=key)


def drawn(*stretches: Stretch, since: float = 0.0, until: float = 1000.0) -> Timeline:
    return timeline(stretches, ONE, since=since, until=until, now=1000.0)


def number(text: str) -> float:
    assert text.endswith("%")
    return float(text[:-1])


def ends(span: Span) -> tuple[float, float]:
    x = number(span.x)
    return x, round(x + number(span.width), 3)


@pytest.mark.parametrize(
    ("one", "whole", "sure", "unsure", "edges"),
    [
        (stretch(100, 200, 600, 700), (10, 70), (20, 60), [(10, 20), (60, 70)], ("10%", "70%")),
        (held(200, 600), (20, 60), (20, 60), [], ("20%", "60%")),
        # No poll shows it for certain.
        (stretch(100, 400, 300, 500), (10, 50), None, [(10, 50)], ("10%", "50%")),
        # It lasts, and the last poll was now, or before.
        (stretch(500, 500, 1000, 1000, state="held"), (50, 100), (50, 100), [], ("50%",)),
        (stretch(500, 500, 800, 1000, state="held"), (50, 100), (50, 80), [(80, 100)], ("50%",)),
        # Its start is unknown.
        (stretch(None, 300, 600, 600), (0, 60), (30, 60), [(0, 30)], ("60%",)),
        (held(-500, 2000), (0, 100), (0, 100), [], ()),
    ],
    ids=["uncertain ends", "exact", "never certain", "held", "held, not polled", "unknown start", "cut"],
)
def test_a_bar_is_solid_where_polls_show_the_holding(
    one: Stretch,
    whole: tuple[float, float],
    sure: tuple[float, float] | None,
    *,
    unsure: list[tuple[float, float]],
    edges: tuple[str, ...],
) -> None:
    found = drawn(one)
    (bar,) = found.bars
    assert (ends(bar.whole), bar.sure and ends(bar.sure)) == (whole, sure)
    assert ([ends(span) for span in bar.unsure], bar.edges) == (unsure, edges)
    assert found.now == "100%"


def test_bars_outside_the_range_are_left_out_and_short_ones_have_an_edge() -> None:
    assert drawn(stretch(-500, -500, -400, -300)).bars == ()
    assert drawn(stretch(1100, 1100, 1200, 1300)).bars == ()
    assert drawn(stretch(0, 1, 2, 3), since=5000, until=6000).now == ""
    (bar,) = drawn(held(500, 500.001), until=1e6).bars
    assert bar.edges


def test_simultaneous_holdings_are_below_one_another() -> None:
    found = drawn(held(0, 500, key="a"), held(400, 900, key="b"), held(600, 900, key="c"))
    rows = {bar.stretch.key: bar.y for bar in found.bars}
    assert rows["a"] == rows["c"] < rows["b"] < found.foot - 20


def test_lanes_have_names_in_the_given_order_and_empty_ones_are_left_out() -> None:
    lanes = (Lane("b", "second", "/b"), Lane("none", "none"), Lane("a", "first"))
    stretches = [replace(held(0, 9, key=key), lane=key) for key in "ab"]
    found = timeline(stretches, lanes, since=0, until=10, now=10)
    assert [lane.name for lane, _ in found.headers] == ["second", "first"]
    assert found.headers[0][1] < found.bars[0].y < found.headers[1][1] < found.bars[1].y


def test_gaps_and_the_queried_moment_are_in_their_places() -> None:
    gaps = (
        CoverageGap(None, 100, GapReason.BEFORE),
        CoverageGap(400, 500, GapReason.SILENT),
        CoverageGap(900, None, GapReason.DOWN),
        CoverageGap(2000, None, GapReason.LOST),
    )
    found = timeline((), ONE, gaps, since=0, until=1000, now=1000, mark=250)
    assert [(ends(span), why) for span, why in found.shades] == [
        ((0, 10), GapReason.BEFORE),
        ((40, 50), GapReason.SILENT),
        ((90, 100), GapReason.DOWN),
    ]
    assert found.mark == "25%"
    assert timeline((), ONE, since=0, until=100, now=100, mark=125).mark == ""


def test_the_drawing_is_bounded_and_counts_the_rest() -> None:
    beside = [held(0, 1000, key=f"k{i}") for i in range(LANES + 7)]
    apart = [replace(one, lane=one.key) for one in beside]
    lanes = tuple(Lane(one.key, one.key) for one in apart)
    for found in (drawn(*beside), timeline(apart, lanes, since=0, until=1000, now=1000)):
        assert (len(found.bars), found.left_out) == (LANES, 7)


times = st.floats(-1e5, 1e5)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.none() | times, times, times, times, st.sampled_from(["held", "ended", "doubt"])),
        max_size=30,
    ),
    times,
    st.floats(0, 1e5),
)
def test_bars_stay_within_the_drawing_and_cover_no_other(
    found: list[tuple[float | None, float, float, float, str]], since: float, span: float
) -> None:
    stretches = [
        replace(stretch(earliest, first, last, max(last, latest), state=state), key=f"k{i}")
        for i, (earliest, first, last, latest, state) in enumerate(found)
    ]
    drawing = timeline(stretches, ONE, since=since, until=since + span, now=since + span)
    for bar in drawing.bars:
        for part in (bar.whole, *bar.unsure, *([bar.sure] if bar.sure else [])):
            assert number(part.x) >= 0
            assert number(part.width) >= 0
            assert number(part.x) + number(part.width) <= 100.01
        assert all(0 <= number(edge) <= 100 for edge in bar.edges)
        assert bar.y + 20 <= drawing.foot
    for one, other in _neighbors(drawing.bars):
        assert ends(one.whole)[1] <= ends(other.whole)[0] + 0.01


def _neighbors(bars: Iterable[Bar]) -> list[tuple[Bar, Bar]]:
    lines: dict[int, list[Bar]] = {}
    for bar in bars:
        lines.setdefault(bar.y, []).append(bar)
    return [pair for line in lines.values() for pair in pairwise(sorted(line, key=lambda b: ends(b.whole)))]


# --- labels ---------------------------------------------------------------------------------------------


def test_a_name_is_in_its_bar_after_it_or_before_it() -> None:
    wide, short = place_labels([(0, 50, ("namespace/pod", "pod")), (60, 61, ("namespace/other", "other"))])
    assert [(label.text, label.inside) for label, _ in wide] == [("namespace/pod", True)]
    assert {label.inside for label, _ in short} == {False}
    assert short[-1][0].anchor == "start"
    _, last = place_labels([(0, 10, ("a",)), (99, 100, ("namespace/pod", "pod"))])
    assert {label.anchor for label, _ in last} == {"end"}


def test_where_there_is_no_room_a_name_is_the_short_one_or_cut() -> None:
    name = ("namespace/long-name-of-a-pod", "long-name")
    labels = place_labels([(0, 49, ("x",)), (49, 60, name), (60, 100, ("y",))])[1]
    by_width = {width: label.text for label, widths in labels for width in widths.split()}
    assert by_width["w3"] == "long-name"
    assert by_width["w1"].endswith("…")
    assert "w0" not in by_width


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 100), st.text(min_size=1, max_size=30)), max_size=12))
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


# --- the axis -------------------------------------------------------------------------------------------


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


@settings(max_examples=50)
@given(st.floats(0, 4e9), st.floats(0, 4e9), st.integers(1, 20))
def test_ticks_are_few_within_the_range_and_in_order(since: float, span: float, most: int) -> None:
    places = [number(tick.x) for tick in ticks(Scale(since, since + span), most)]
    assert len(places) <= most
    assert all(0 <= place <= 100 for place in places)
    assert places == sorted(places)
