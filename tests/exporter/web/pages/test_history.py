"""The history page's form: input is read, or refused at its field and kept."""

from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.history.query import HistoryQuery
from exporter.views.query import QueryError
from exporter.web.pages.history import read_form
from exporter.web.pages.past import PRESETS, fitted, preset_value, time_range

NOW = datetime(2026, 10, 28, 22, 41, 3, tzinfo=UTC).timestamp()


def clock(hour: int, minute: int, day: int = 28) -> float:
    return datetime(2026, 10, day, hour, minute, tzinfo=UTC).timestamp()


def question(**pairs: str) -> HistoryQuery:
    form = read_form(pairs.items(), NOW)
    assert form.problems == {}
    assert form.question is not None
    return form.question


@pytest.mark.parametrize(
    ("typed", "at"),
    [
        ("03:12", clock(3, 12)),
        ("23:00", clock(23, 0, day=27)),
        ("2026-10-27 03:12", clock(3, 12, day=27)),
        ("2026-10-27T03:12", clock(3, 12, day=27)),
        ("2026-10-27T04:12+01:00", clock(3, 12, day=27)),
        ("-1h30m", NOW - 5400),
        ("now", NOW),
        ("1793200000", 1793200000.0),
    ],
)
def test_a_moment_is_typed_as_people_do_in_utc(typed: str, at: float) -> None:
    asked = question(at=typed)
    assert (asked.since, asked.until) == (at, at)
    asked = question(**{"from": "-60d", "to": typed})
    assert (asked.since, asked.until) == (NOW - 60 * 86400, None if at == NOW else at)


def test_without_a_time_it_is_the_last_day_to_its_open_end() -> None:
    form = read_form([("pod", " p-0 "), ("to", ""), ("namespace", "")], NOW)
    assert form.question == HistoryQuery(pod="p-0", since=NOW - 86400, until=None)
    assert form.span.label == "24 h"
    assert read_form([("from", "-168h")], NOW).span.label == "7 d"
    assert read_form([("from", "-2h")], NOW).span.label == ""
    assert read_form([("from", "-1h"), ("to", "now")], NOW).span.label == ""


@pytest.mark.parametrize(
    ("pairs", "field", "words"),
    [
        ({"at": "yesterday"}, "at", "found 'yesterday', expected 2026-11-20T03:12:00Z"),
        ({"at": "25:00"}, "at", "found '25:00'"),
        ({"from": "-1h", "at": "-2h"}, "at", "either a moment, or from and to"),
        ({"from": "-1h", "to": "-2h"}, "from", "expected a time before the end of the range"),
        ({"limit": "0"}, "limit", "found '0', expected a number from 1 to 1000"),
        ({"cursor": "x"}, "cursor", "start at the first page"),
        ({"container": "main"}, "container", "needs a pod, a uid or a device"),
        ({"device": "x" * 513}, "device", "at most 512 characters"),
        ({"q": "x"}, "", "query parameter 'q'"),
        ({"from": "\u202e<b>"}, "from", "found '\\u202e<b>'"),
    ],
)
def test_what_cannot_be_read_is_told_at_its_field(pairs: dict[str, str], field: str, words: str) -> None:
    form = read_form(pairs.items(), NOW)
    assert form.question is None
    assert words in form.problems[field]
    for name, value in pairs.items():
        if name != "q":
            assert form.typed[name] == value[:512]


def test_every_wrong_time_is_told_at_once() -> None:
    assert set(read_form([("from", "x"), ("to", "y"), ("at", "z")], NOW).problems) == {"from", "to", "at"}


texts = st.text(max_size=30)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["at", "from", "to", "cursor", "limit", "device", "pod", "uid", "zz"]), texts
        )
    )
)
def test_any_address_is_a_question_or_has_a_problem(pairs: list[tuple[str, str]]) -> None:
    form = read_form(pairs, NOW)
    assert (form.question is None) == bool(form.problems)
    assert form.span.since <= form.span.until


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from(["-1h", "03:12", "now"]))
def test_the_address_of_a_question_asks_the_same(device: str, pod: str, since: str) -> None:
    form = read_form([("device", device), ("pod", pod), ("from", since)], NOW)
    again = read_form(parse_qsl(urlsplit(form.address()).query), NOW)
    assert again.question == form.question
    assert again.problems == form.problems


def test_an_address_keeps_what_was_asked_and_changes_what_is_to_be_changed() -> None:
    form = read_form(
        [("device", "a/b"), ("driver", "d"), ("from", "-1h"), ("limit", "5"), ("cursor", "0x1p+0.1")], NOW
    )
    assert form.address() == "/history?driver=d&device=a%2Fb&from=-1h&limit=5"
    assert form.address(**{"from": "", "at": "03:12"}) == "/history?driver=d&device=a%2Fb&at=03%3A12&limit=5"
    assert read_form([], NOW).address() == "/history"


def test_a_preset_is_recognised_by_its_value() -> None:
    assert time_range({}, NOW).label == "24 h"
    for label, seconds in PRESETS.items():
        span = time_range({"from": preset_value(label)}, NOW)
        assert span.label == label
        assert span.until - span.since == pytest.approx(seconds)


def test_the_time_before_history_is_not_drawn_for_a_preset() -> None:
    day = time_range({}, NOW)
    drawn = fitted(day, NOW - 100)
    assert drawn.until == NOW
    assert NOW - 110 < drawn.since < NOW - 100
    assert fitted(day, NOW - 1e6) == day
    assert fitted(day, None) == day
    typed = time_range({"from": "-2h"}, NOW)
    assert fitted(typed, NOW - 100) == typed
    assert fitted(day, NOW).since < NOW


def test_a_range_that_is_none_is_refused() -> None:
    with pytest.raises(QueryError, match="before the end of the range"):
        time_range({"from": "now"}, NOW)
    with pytest.raises(QueryError, match="found 'x'"):
        time_range({"to": "x"}, NOW)
