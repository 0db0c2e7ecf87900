"""exporter.web.pages.periods: ages are filled in when a page is sent."""

from hypothesis import given
from hypothesis import strategies as st

from exporter.views.wording import lasting, text
from exporter.web.pages.periods import NOW, day, filled, later, when

START = 1_793_227_263.25


@given(st.floats(0, 4e9), st.floats(0, 1e6))
def test_a_place_is_filled_with_what_the_words_say_then(at: float, passed: float) -> None:
    now = at + passed
    assert filled(later(at, at).ago.encode(), now).decode() == lasting(now - at)


def test_the_present_is_told_to_the_millisecond() -> None:
    assert filled(f'data-now="{NOW}"'.encode(), START) == b'data-now="1793227263.25"'


def test_but_for_its_age_a_moment_is_the_same() -> None:
    one, other = when(START - 60, START, exact=False), later(START - 60, START, exact=False)
    assert (one.iso, one.clock, one.exact) == (other.iso, other.clock, other.exact)
    assert one.ago == "1 min"


@given(st.text(), st.text(max_size=8))
def test_nothing_from_outside_is_a_place(before: str, name: str) -> None:
    hostile = text(f"{before}\x02now\x02{name}\x021e9\x02").shown.encode()
    assert filled(hostile, START) == hostile


def test_what_is_not_a_place_is_left_alone() -> None:
    assert (
        filled(b"\x02\x02 \x02nan\x02 \x02inf\x02 \x021_0\x02", START)
        == b"\x02\x02 \x02nan\x02 \x02inf\x02 \x021_0\x02"
    )


def test_a_day_is_one_in_utc() -> None:
    midnight = 1_793_232_000.0
    assert day(midnight - 0.001) + 1 == day(midnight)
