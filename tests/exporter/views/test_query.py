"""exporter.views.query: addresses read and written."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.views.query import (
    Filters,
    PageQuery,
    QueryError,
    RowGroup,
    Sort,
    SortColumn,
    StateFilter,
    address,
    no_parameters,
    parse_filters,
    parse_page,
)
from runtime.text import visible

TEXTS = st.text(max_size=60).map(str.strip)


QUERIES = st.builds(
    PageQuery,
    st.builds(
        Filters,
        **{name: TEXTS.map(visible) for name in ("q", "resource", "namespace", "pod", "device")},
        state=st.none() | st.sampled_from(StateFilter),
    ),
    page=st.integers(1, 1_000_000),
    per_page=st.integers(1, 1000),
    sort=st.none() | st.builds(Sort, st.sampled_from(SortColumn), descending=st.booleans()),
    group=st.sampled_from(RowGroup),
)


@given(QUERIES)
def test_every_query_has_an_address_that_reads_as_it(query: PageQuery) -> None:
    written = address(query)
    found = parse_page(parse_qsl(urlsplit(written).query))
    assert found == query
    assert address(found) == written, "one query, one address"


@given(st.dictionaries(st.sampled_from(["q", "resource", "namespace", "pod", "device"]), TEXTS))
def test_an_address_reads_as_it_was_written(texts: dict[str, str]) -> None:
    query = parse_page(texts.items())
    assert parse_page(parse_qsl(urlsplit(address(query)).query)) == query


def test_the_fields_that_a_form_leaves_empty_count_as_not_given() -> None:
    empty = [
        (name, "")
        for name in ("q", "resource", "namespace", "pod", "device", "state", "sort", "group", "page")
    ]
    assert parse_page(empty) == PageQuery()
    assert address(PageQuery()) == "/"
    assert not parse_page([("q", "  ")]).filters.any


@pytest.mark.parametrize(
    ("pairs", "parameter", "found", "expected"),
    [
        ([("colour", "red")], "colour", "red", "one of q, resource, namespace, pod, device, state"),
        ([("state", "broken")], "state", "broken", "one of held, free, unhealthy"),
        ([("q", "a"), ("q", "b")], "q", "b", "it once"),
        ([("q", "x" * 513)], "q", "x" * 79 + "…", "at most 512 characters"),
        ([("\x1b[2J", "\u202e")], "\\x1b[2J", "\\u202e", "one of"),
    ],
)
def test_what_cannot_be_honoured_is_named(
    pairs: list[tuple[str, str]], parameter: str, found: str, expected: str
) -> None:
    with pytest.raises(QueryError) as caught:
        parse_filters(pairs)
    assert caught.value.parameter == parameter
    assert caught.value.found == found
    assert caught.value.expected.startswith(expected)
    assert str(caught.value).startswith("query parameter ")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", "²", "1001", "9" * 400])
def test_a_number_of_rows_is_from_1_to_1000(value: str) -> None:
    with pytest.raises(QueryError, match=r"per_page.*expected a number from 1 to 1000"):
        parse_page([("per_page", value)])


def test_where_nothing_is_asked_nothing_may_be() -> None:
    no_parameters([])
    with pytest.raises(QueryError, match="'q': found 'x', expected no parameters here"):
        no_parameters([("q", "x")])


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("sort", "colour", "one of device, resource, state, pod, since, numa, with a - before it"),
        ("sort", "--pod", "one of device"),
        ("group", "node", "one of none, device, pod"),
    ],
)
def test_an_order_or_a_group_that_there_is_not_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_page([(name, value)])
    assert (caught.value.parameter, caught.value.found) == (name, value)
    assert caught.value.expected.startswith(expected)


def test_another_order_begins_at_the_first_page_and_keeps_the_rest() -> None:
    query = PageQuery(Filters(q="x"), page=3, group=RowGroup.POD)
    assert address(query.sorted_by(Sort(SortColumn.SINCE, descending=True))) == "/?q=x&sort=-since&group=pod"
    assert address(query.unfiltered()) == "/?group=pod"


def test_where_nothing_is_said_rows_are_sorted_by_what_they_stand_together_for() -> None:
    assert PageQuery().order == Sort(SortColumn.RESOURCE)
    assert PageQuery(group=RowGroup.DEVICE).order == Sort(SortColumn.RESOURCE)
    assert PageQuery(group=RowGroup.POD).order == Sort(SortColumn.POD)
    assert PageQuery(group=RowGroup.POD, sort=Sort(SortColumn.NUMA)).order == Sort(SortColumn.NUMA)
