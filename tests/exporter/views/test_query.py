"""exporter.views.query: addresses read and written."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.views.query import (
    ANOMALY_FILTERS,
    Filters,
    PageQuery,
    QueryError,
    RowGroup,
    Sort,
    SortColumn,
    StateFilter,
    address,
    no_parameters,
    parse_list,
    parse_page,
)
from exporter.views.schema import KINDS
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


@settings(max_examples=60)
@given(QUERIES)
def test_every_query_has_an_address_that_reads_as_it(query: PageQuery) -> None:
    written = address(query)
    found = parse_page(parse_qsl(urlsplit(written).query))
    assert found == query
    assert address(found) == written, "one query, one address"


def test_empty_fields_of_a_form_are_not_given() -> None:
    empty = [
        (name, "")
        for name in ("q", "resource", "namespace", "pod", "device", "state", "sort", "group", "page")
    ]
    assert parse_page(empty) == PageQuery()
    assert address(PageQuery()) == "/"
    assert not parse_page([("q", "  ")]).filters.any


PARAMETERS = (
    "one of q, resource, namespace, pod, device, state, driver, pool, claim, sort, group, page, per_page"
)
COLUMNS = "one of device, resource, state, pod, since, numa, with a - before it"


@pytest.mark.parametrize(
    ("pairs", "parameter", "found", "expected"),
    [
        ([("colour", "red")], "colour", "red", PARAMETERS),
        ([("ressource", "x")], "ressource", "x", f"{PARAMETERS}, did you mean 'resource'?"),
        ([("x" * 4000, "1")], "x" * 79 + "…", "1", PARAMETERS),
        ([("state", "broken")], "state", "broken", "one of held, free, unhealthy"),
        ([("q", "a"), ("q", "b")], "q", "b", "it once"),
        ([("q", "x" * 513)], "q", "x" * 79 + "…", "at most 512 characters"),
        ([("\x1b[2J", "\u202e")], "\\x1b[2J", "\\u202e", "one of"),
        ([("sort", "colour")], "sort", "colour", COLUMNS),
        ([("sort", "--pod")], "sort", "--pod", COLUMNS),
        ([("group", "node")], "group", "node", "one of none, device, pod"),
        *(
            ([("per_page", value)], "per_page", value, "a number from 1 to 1000")
            for value in ("0", "-1", "1.5", "x", "²", "1001", "9" * 40)
        ),
    ],
)
def test_a_wrong_parameter_is_named(
    pairs: list[tuple[str, str]], parameter: str, found: str, expected: str
) -> None:
    with pytest.raises(QueryError) as caught:
        parse_page(pairs)
    assert (caught.value.parameter, caught.value.found) == (parameter, found)
    assert caught.value.expected.startswith(expected)
    assert str(caught.value).startswith("query parameter ")


def test_an_unknown_kind_of_anomaly_is_refused() -> None:
    with pytest.raises(QueryError, match=f"'kind': found 'broken', expected one of {', '.join(KINDS)}"):
        parse_list([("kind", "broken")], ANOMALY_FILTERS)


def test_an_address_without_parameters() -> None:
    no_parameters([])
    with pytest.raises(QueryError, match="'q': found 'x', expected no parameters here"):
        no_parameters([("q", "x")])


def test_another_order_starts_at_the_first_page_and_keeps_the_rest() -> None:
    query = PageQuery(Filters(q="x"), page=3, group=RowGroup.POD)
    assert address(query.sorted_by(Sort(SortColumn.SINCE, descending=True))) == "/?q=x&sort=-since&group=pod"
    assert address(query.unfiltered()) == "/?group=pod"


def test_the_default_order_is_that_of_the_groups() -> None:
    assert PageQuery().order == Sort(SortColumn.RESOURCE)
    assert PageQuery(group=RowGroup.DEVICE).order == Sort(SortColumn.RESOURCE)
    assert PageQuery(group=RowGroup.POD).order == Sort(SortColumn.POD)
    assert PageQuery(group=RowGroup.POD, sort=Sort(SortColumn.NUMA)).order == Sort(SortColumn.NUMA)
