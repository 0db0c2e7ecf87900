"""Charts of how cost grows."""

import itertools
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plot import Line, chart

SVG = "{http://www.w3.org/2000/svg}"
POINTS = st.lists(
    st.tuples(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=10, unique_by=lambda p: p[0]
).map(sorted)


@settings(max_examples=20)
@given(st.lists(POINTS, min_size=1, max_size=6))
def test_every_point_is_drawn_within_the_picture(curves: list[list[tuple[float, float]]]) -> None:
    drawn = ET.fromstring(chart("t", "x", "y", [Line(f"<{n}>", points) for n, points in enumerate(curves)]))
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    circles = list(drawn.iter(f"{SVG}circle"))
    assert len(circles) == sum(map(len, curves))
    assert all(0 <= float(c.attrib["cx"]) <= width and 0 <= float(c.attrib["cy"]) <= height for c in circles)


def test_what_grows_in_proportion_is_a_straight_line_of_even_steps() -> None:
    drawn = ET.fromstring(chart("t", "x", "y", [Line("one", [(n, 3.0 * n) for n in (1, 2, 4, 8)])]))
    places = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in drawn.iter(f"{SVG}circle")]
    steps = [(right[0] - left[0], right[1] - left[1]) for left, right in itertools.pairwise(places)]
    assert all(step == pytest.approx(steps[0], abs=0.2) for step in steps)
    assert steps[0][0] > 0 > steps[0][1]


def test_names_of_lines_that_end_together_stand_apart() -> None:
    lines = [Line(name, [(1, 1), (2, 1 + n / 1000)]) for n, name in enumerate(("a", "b", "c"))]
    drawn = ET.fromstring(chart("t", "x", "y", lines))
    places = sorted(float(t.attrib["y"]) for t in drawn.iter(f"{SVG}text") if t.text in {"a", "b", "c"})
    assert all(right - left >= 14.9 for left, right in itertools.pairwise(places))


@pytest.mark.parametrize(
    "lines", [[], [Line("none", [])], [Line("zero", [(1, 0)])], [Line("many", [(1, 1)])] * 7]
)
def test_what_cannot_be_drawn_is_refused(lines: list[Line]) -> None:
    with pytest.raises(ValueError, match="points above 0"):
        chart("t", "x", "y", lines)
