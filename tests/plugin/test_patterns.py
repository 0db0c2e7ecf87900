import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugin.patterns import MAX_TEXT, fullmatch, pattern_problem


@pytest.mark.parametrize(
    "pattern",
    [
        r"video\d+",
        r"tty(USB|ACM)(?P<n>[0-9]+)",
        r"usb\d+|\d+-\d+(\.\d+)*(:\d+\.\d+)?",
        r"(?:foo|bar)*x",
        r"(?P<a>.*)-(?P<b>.*)-(?P<c>.*)",
        r"\d+-\d+-\d+-\d+-\d+\.\d+",
        r"([0-9a-f]{2}:)*[0-9a-f]{2}",
        r"pci(-\d+[a-f]*\.)*x",
        r"nvme(?P<controller>\d+)n(?P<namespace>\d+)(p\d+)?",
        r"^i2c-\d+$",
        r"(?i:card)\d{1,3}",
        "",
    ],
)
def test_usual_patterns_are_valid(pattern: str) -> None:
    assert pattern_problem(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(a+)+b", "repeats in repeats"),
        (r"(a*)*b", "repeats in repeats"),
        (r"(a|aa)+b", "repeats in repeats"),
        (r"(\w+\s?)*!", "repeats in repeats"),
        (r"(?:x?)+y", "repeats in repeats"),
        (r"(.\d+)*x", "repeats in repeats"),
        (r"(-\d*\d*)*x", "repeats in repeats"),
        (r"(a{1,3}){2,40}b", "repeats in repeats"),
        (r".*.*.*.*x", "at most 3 repeats"),
        (r"(a)\1", "references"),
        (r"video(", "missing )"),
        (r"[z-a]", "bad character range"),
        ("a" * 2000, "at most 1024 characters"),
        ("(" * 500 + ")" * 500, "regular expression"),
    ],
)
def test_slow_and_invalid_patterns_are_refused(pattern: str, said: str) -> None:
    problem = pattern_problem(pattern)
    assert problem is not None
    assert problem.startswith("expected a regular expression")
    assert said in problem


def test_a_text_that_is_too_long_matches_nothing() -> None:
    assert fullmatch("a*", "a" * MAX_TEXT) is not None
    assert fullmatch("a*", "a" * (MAX_TEXT + 1)) is None


@contextmanager
def no_longer_than(seconds: float) -> Generator[None]:
    """Fails after so many seconds of the processor: the load of the machine does not count."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


PIECES = st.sampled_from(["a", "b", ".", r"\d", "[ab]", "[^a]", "(a|b)", "(ab|a)", "(a)", "x?", "-"])
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}"])


def _pattern(parts: list[tuple[str, str]]) -> str:
    return "".join(piece + repeat for piece, repeat in parts if not (repeat and piece.endswith("?")))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(PIECES, REPEATS), min_size=1, max_size=4).map(_pattern),
    st.lists(st.tuples(PIECES, REPEATS), max_size=3).map(_pattern),
    REPEATS,
)
def test_valid_patterns_are_fast_on_long_texts(inner: str, rest: str, repeat: str) -> None:
    pattern = f"({inner}){repeat}{rest}!"
    if pattern_problem(pattern) is not None:
        return
    for text in ("a" * 50, "ab" * 25, "1" * 50, "-a" * 25):
        with no_longer_than(2.0):
            assert re.fullmatch(pattern, text) is None
