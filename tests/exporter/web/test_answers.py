"""Accept and If-None-Match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.web.answers import accepts, names, refuses_plain

JSON = "application/json"


@pytest.mark.parametrize(
    ("accept", "allowed"),
    [
        (None, True),
        ("", True),
        ("*/*", True),
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/*;q=0.1", True),
        ("text/html, application/json;q=0.001", True),
        ("text/html,*/*;q=0.8", True),
        ("application/json;q=0, */*", False),
        ("*/*, application/json;q=0", False),
        ("application/*;q=0, */*", False),
        ("application/*;q=0, application/json", True),
        ("*/*;q=0", False),
        ("*/*;q=0.000", False),
        ("text/html", False),
        ("application/problem+json", False),
        ("text/html, application/xml", False),
        ("application/json;q=0;version=1, application/json", True),
        # What cannot be read counts as not said.
        ("nonsense", True),
        (";;,,", True),
        ("application/json;q=high", True),
        ("text/html;q=2", True),
        ("nonsense, text/html", False),
    ],
)
def test_a_media_type_is_allowed_by_the_most_specific_range(accept: str | None, allowed: bool) -> None:
    assert accepts(accept, JSON) is allowed


@pytest.mark.parametrize(
    ("header", "refused"),
    [
        (None, False),
        ("", False),
        ("gzip", False),
        ("gzip, identity;q=0", True),
        ("gzip;q=1, *;q=0", True),
        ("*;q=0, identity;q=0.1", False),
        ("Identity ; q=0.0", True),
        ("identity;q=nonsense", False),
    ],
)
def test_an_answer_as_it_is_may_be_refused(header: str | None, refused: bool) -> None:
    assert refuses_plain(header) is refused


@pytest.mark.parametrize(
    ("header", "known"),
    [
        (None, False),
        ("", False),
        ("*", True),
        (" * ", True),
        ('"*"', False),
        ('W/"1-a"', True),
        ('"1-a"', True),
        ('"x", W/"1-a"', True),
        ('"x" , ,, "1-a" ,', True),
        ('"x","1-a"', True),
        ('"with, comma", "1-a"', True),
        ('"1-a', False),
        ("1-a", False),
        ('w/"1-a"', False),
        ('"1-A"', False),
        ('nonsense, "1-a"', False),
        ('"x" "1-a"', False),
        ('*, "x"', False),
    ],
)
def test_a_tag_is_known_where_it_is_named(header: str | None, known: bool) -> None:
    assert names(header, "1-a") is known


TAG = st.text(st.characters(min_codepoint=0x23, max_codepoint=0x7E), max_size=20)


@given(st.lists(TAG, max_size=6), TAG)
def test_any_list_of_tags_is_read(tags: list[str], tag: str) -> None:
    assert names(", ".join(f'W/"{t}"' for t in tags), tag) is (tag in tags)


@given(st.text(), st.text(max_size=5))
def test_anything_is_read_in_time(header: str, tag: str) -> None:
    assert names(header, tag) in {True, False}
    assert accepts(header, JSON) in {True, False}
