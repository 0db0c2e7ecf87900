import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.patterns import MAX_TEXT, fullmatch, pattern_problem


@pytest.mark.parametrize(
    "pattern",
    [
        r"video\d+",
        r"tty(USB|ACM)(?P<n>[0-9]+)",
        r"usb\d+|\d+-\d+(\.\d+)*(:\d+\.\d+)?",
        r"(?:foo|bar)*x",
        r"(?P<a>[^-]*)-(?P<b>[^-]*)-(?P<c>.*)",
        r".*-(?P<b>.*)",
        r".*(sda|sdb|nvme|mmc).*",
        r"(?!.*(?:boot|swap)).*",
        r"a*a*b",
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
        (r"(a)\1", "references"),
        (r"video(", "missing )"),
        (r"[z-a]", "bad character range"),
        ("a" * 2000, "at most 1024 characters"),
        ("(" * 500 + ")" * 500, "regular expression"),
    ],
)
def test_invalid_patterns_are_refused(pattern: str, said: str) -> None:
    problem = pattern_problem(pattern)
    assert problem is not None
    assert problem.startswith("expected a regular expression")
    assert said in problem


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+b",
        r"(a*)*b",
        r"(a|a)*b",
        r"(a|aa)+b",
        r"(x+x+)+y",
        r"(.*a){12}",
        r"([a-zA-Z]+)*!",
        r"(\w+\s?)*!",
        r"(?:x?)+y",
        r"(.\d+)*x",
        r"(-\d*\d*)*x",
        r"(a{1,3}){2,40}b",
        r"^(([a-z])+.)+[A-Z]([a-z])+$",
        r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}(([a-z]{2,3})|([a-z]{2,3}[.]{1}[a-z]{2,3}))$",
        r"(?:a?){16}a{16}",
        "a?" * 16 + "a" * 16,
        "(a|a)" * 20,
        "(|)" * 64,
        r"(a|a){16}",
        r"((a|a){16}){16}",
        r"a*a*a*b",
        r".*.*.*.*x",
        r"(?P<a>.*)-(?P<b>.*)-(?P<c>.*)",
        r"(?i:(ax|Ax)*)b",
        r"(?i)(\xe5x|\xc5x)*b",
        r"(?:(?:\b){60000}){60000}",
        r"(?:(?=(?:(?=a*)a)*)a)*",
        r"(?:(?>a*b)|a)*",
    ],
)
def test_patterns_of_many_ways_are_refused(pattern: str) -> None:
    assert "may match a text in more than 2048 ways" in str(pattern_problem(pattern))


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


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "A",
        ".",
        r"\d",
        "[ab]",
        "[^a]",
        "(a|b)",
        "(ab|a)",
        "(a|a)",
        "(a|)",
        "(?=a*)",
        "(?>a*)",
        "-",
        r"\b",
    ]
)
REPEATS = st.sampled_from(["", "", "*", "+", "?", "*?", "*+", "{2}", "{1,3}", "{16}", "{1,}"])
PATTERNS = st.recursive(
    st.tuples(PIECES, REPEATS).map("".join),
    lambda parts: st.tuples(
        st.lists(parts, min_size=1, max_size=4),
        st.sampled_from(["", "|"]),
        st.sampled_from(["(", "(?:", "(?i:"]),
        REPEATS,
    ).map(lambda made: f"{made[2]}{made[1].join(made[0])}){made[3]}"),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PATTERNS, min_size=1, max_size=5).map("".join))
def test_valid_patterns_are_fast_on_long_texts(pattern: str) -> None:
    pattern += "!"
    if pattern_problem(pattern) is not None:
        return
    for text in ("a", "ab", "1", "-a", "aA", "b"):
        with no_longer_than(4.0):
            assert re.fullmatch(pattern, text * (MAX_TEXT // len(text))) is None
