"""exporter.views.paging: the pages of a list that changes meanwhile, and cursors."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.views.paging import CURSOR, KEY_BYTES, Paging, place, read_cursor, write_cursor
from exporter.views.query import TEXT_LIMIT

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
LONG = "x" * (KEY_BYTES - 2)
NAMES = (
    st.sampled_from(["", "a", "a\0", "b", LONG, LONG + "a", LONG + "aé", LONG + "aéb"])
    | st.text(max_size=3)
    | st.text(st.characters(categories=["Cs"]), max_size=2)
)
KEYS = st.tuples(NAMES, NAMES)
Key = tuple[str, str]


def _key(item: Key) -> Key:
    return item


@QUICK
@given(
    st.sets(KEYS, max_size=30),
    st.lists(st.tuples(st.sets(KEYS, max_size=3), st.integers(0, 30)), max_size=5),
    st.integers(1, 5),
)
def test_pages_repeat_and_lose_nothing_while_items_come_and_go(
    present: set[Key], changes: list[tuple[set[Key], int]], limit: int
) -> None:
    always, ever, seen = set(present), set(present), list[Key]()
    coming, paging = iter(changes), Paging(limit)
    while True:
        found, following = paging.of(sorted(present), _key)
        seen += found
        if following is None:
            break
        assert len(found) >= limit
        assert len(following) <= TEXT_LIMIT
        came, gone = next(coming, (set[Key](), 0))
        present = (present | came) - set(sorted(present)[gone : gone + 2])
        always, ever = always & present, ever | present
        paging = Paging(limit, read_cursor(following))
    assert seen == sorted(set(seen)), "each once and in order"
    assert always <= set(seen) <= ever


@QUICK
@given(st.sets(KEYS, max_size=30), st.integers(1, 5), st.booleans())
def test_all_pages_joined_are_the_list(items: set[Key], limit: int, filtered: bool) -> None:
    def keep(item: Key) -> bool:
        return not filtered or len(item[0]) != 1

    whole, pages = Paging().of(sorted(items), _key, keep), list[Key]()
    assert whole == ([item for item in sorted(items) if keep(item)], None)
    found, following = Paging(limit).of(sorted(items), _key, keep)
    while True:
        pages += found
        places = {place(item) for item in found}
        assert len(found) <= limit or len(places) < len(found), "more only where keys begin alike"
        if following is None:
            break
        found, following = Paging(limit, read_cursor(following)).of(sorted(items), _key, keep)
        assert found, "next is null on the last page"
    assert pages == whole[0]


@QUICK
@given(KEYS, KEYS)
def test_places_have_the_order_of_their_keys(one: Key, other: Key) -> None:
    one, other = sorted((one, other))
    assert place(one) <= place(other)
    assert read_cursor(write_cursor(place(one))) == place(one)


@QUICK
@given(st.text("0aF.", max_size=9) | st.text())
def test_a_cursor_is_any_text_of_its_form(text: str) -> None:
    if re.fullmatch(CURSOR, text, re.ASCII):
        assert write_cursor(read_cursor(text)) == text
    else:
        with pytest.raises(ValueError, match="expected what an earlier answer gave as next"):
            read_cursor(text)
