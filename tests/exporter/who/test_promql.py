"""Matchers read from a command line and written into a query: nothing else can become part of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cli.prometheus.promql import (
    Matcher,
    any_of,
    escaped,
    literally,
    one_of,
    parse_matchers,
    selector,
)
from harness.hostile import CORPUS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{cluster="a"}', (Matcher("cluster", "=", "a"),)),
        ('cluster="a"', (Matcher("cluster", "=", "a"),)),
        ("cluster='a'", (Matcher("cluster", "=", "a"),)),
        (
            ' { a = "1" , b!="2",c=~"x.*",d!~"y|z", } ',
            (
                Matcher("a", "=", "1"),
                Matcher("b", "!=", "2"),
                Matcher("c", "=~", "x.*"),
                Matcher("d", "!~", "y|z"),
            ),
        ),
        (r'a="say \"hi\" \\ \n\x41B"', (Matcher("a", "=", 'say "hi" \\ \nAB'),)),
        ('a="it\'s"', (Matcher("a", "=", "it's"),)),
        ('a=""', (Matcher("a", "=", ""),)),
        ('a="}"', (Matcher("a", "=", "}"),)),
    ],
)
def test_matchers_are_read(text: str, found: tuple[Matcher, ...]) -> None:
    assert parse_matchers(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{}",
            "cluster",
            "cluster=a",
            '{cluster="a"',
            'cluster="a"}',
            '1a="b"',
            'a=="b"',
            'a="b" b="c"',
        ),
        *(
            'a="b"} or up{x="y"',
            'a="b"} or vector(1) #',
            'a="b\n"',
            '__name__="up"',
            r'a="\q"',
            r'a="\ud800"',
        ),
        *('a="b",,c="d"', 'a="' + "x" * 5000 + '"', ",", '"my.label"="x"', "a=`b`", '{{a="b"}}'),
    ],
)
def test_what_is_no_matcher_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="found "):
        parse_matchers(text)


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(
    sorted(CORPUS.values())
)


@given(st.sampled_from(["=", "!=", "=~", "!~"]), _TEXTS)
def test_a_matcher_written_is_read_as_it_was(operator: str, value: str) -> None:
    matcher = Matcher("label", operator, value)
    written = str(matcher)
    assert written.isprintable()
    if len(written) <= 4096:
        assert parse_matchers(written) == (matcher,)
        assert parse_matchers(f'{{a="b",{written}}}')[1] == matcher


@given(_TEXTS)
def test_a_quoted_text_ends_at_its_own_quote_alone(value: str) -> None:
    """Every quote within is behind an odd number of backslashes."""
    at, inside = 0, escaped(value)
    while at < len(inside):
        assert inside[at] != '"'
        at += 2 if inside[at] == "\\" else 1
    assert at == len(inside), "the last backslash does not take the closing quote with it"


def test_texts_as_regular_expressions_match_themselves_alone() -> None:
    assert literally("GPU-0::1 (a.b|c)[d]{e}^$\\*+?") == r"GPU-0::1 \(a\.b\|c\)\[d\]\{e\}\^\$\\\*\+\?"
    assert str(one_of("device", ["a"])) == 'device="a"'
    assert str(one_of("device", ["b|", "a."])) == r'device=~"a\\.|b\\|"'


def test_selectors() -> None:
    assert selector("x") == "x{}"
    assert selector("x", [Matcher("a", "=", "b")]) == 'x{a="b"}'
    assert any_of(["x", "y"], [Matcher("a", "!=", "")]) == '{__name__=~"x|y",a!=""}'
