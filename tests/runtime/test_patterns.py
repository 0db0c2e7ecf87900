import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.patterns import MAX_TEXT, compiled, fullmatch, pattern_problem


@pytest.mark.parametrize(
    ("pattern", "text", "groups"),
    [
        (r"video\d+", "video10", {}),
        (r"tty(USB|ACM)(?P<n>[0-9]+)", "ttyACM3", {"n": "3"}),
        (r"(?P<a>.*)-(?P<b>.*)-(?P<c>.*)", "x-y-z", {"a": "x", "b": "y", "c": "z"}),
        (r"nvme(?P<c>\d+)n(?P<n>\d+)(p(?P<p>\d+))?", "nvme0n1", {"c": "0", "n": "1", "p": None}),
        (r"(?i:card)\d{1,3}", "CARD12", {}),
        (r"a.b", "a\nb", {}),
        ("", "", {}),
    ],
)
def test_a_match_is_of_the_whole_text(pattern: str, text: str, groups: dict[str, str | None]) -> None:
    match = fullmatch(pattern, text)
    assert match is not None
    assert match.groupdict() == groups
    assert set(compiled(pattern).groupindex) == set(groups)
    assert fullmatch(pattern, f"{text}!!") is None or pattern.endswith("(?P<c>.*)")


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"(a)\1", "invalid escape sequence"),
        (r"video(", "missing )"),
        (r"[z-a]", "invalid character class range"),
        (r"(?=a)b", "invalid perl operator"),
        (r"((a{100}){100}){100}", "invalid repetition size"),
        ("a" * 2000, "at most 1024 characters"),
        ("\udc80", "Unicode"),
    ],
)
def test_invalid_patterns_are_refused(pattern: str, problem: str) -> None:
    found = pattern_problem(pattern)
    assert found is not None
    assert found.startswith("expected a regular expression")
    assert problem in found


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|aa)+b", "(?:a?){16}a{16}b", "a*a*a*b", "(.*a){12}b", "(?:(?:a?)*)*b"]
)
def test_patterns_that_never_end_elsewhere_end(pattern: str) -> None:
    # A backtracking engine would take longer than the test may.
    assert fullmatch(pattern, "a" * MAX_TEXT) is None


def test_a_text_that_is_too_long_or_no_unicode_matches_nothing() -> None:
    assert fullmatch("a*", "a" * MAX_TEXT) is not None
    assert fullmatch("a*", "a" * (MAX_TEXT + 1)) is None
    assert fullmatch(".*", "video\udc80") is None


@pytest.mark.parametrize(
    ("pattern", "start"),
    [
        (r"video\d+", "video"),
        (r"^i2c-\d+$", "i2c-"),
        ("(foo|fob)x", "fo"),
        (r"\d{1,500}(\w{1,500}){2}", ""),
        ("(?i)abc", ""),
        (".*", ""),
        ("\u00e9+x", "\u00e9"),
    ],
)
def test_every_match_begins_with_the_prefix(pattern: str, start: str) -> None:
    assert compiled(pattern).prefix == start


@given(st.text("abx1", max_size=5), st.sampled_from(["", "x", "[0-9]*", ".*", "(b|c)?"]))
def test_the_prefix_begins_each_text_that_matches(text: str, rest: str) -> None:
    pattern = text[:2] + rest
    if fullmatch(pattern, text) is not None:
        assert text.startswith(compiled(pattern).prefix)
