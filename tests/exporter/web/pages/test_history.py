"""The history page's form: input is read, or refused at its field and kept."""

from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.history.query import HistoryQuery
from exporter.history.record import HoldingFacts
from exporter.views.query import QueryError, device_link
from exporter.web.pages.history import read_form
from exporter.web.pages.past import PRESETS, fitted, preset_value, time_range
from harness.lives import key
from harness.page_reader import Client, read_page
from harness.past import Past

NOW = datetime(2026, 10, 28, 22, 41, 3, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("typed", "at"),
    [
        ("03:12", "2026-10-28 03:12"),
        ("23:00", "2026-10-27 23:00"),
        ("2026-10-27 03:12", "2026-10-27 03:12"),
        ("2026-10-27T04:12+01:00", "2026-10-27 03:12"),
        ("-1h30m", "2026-10-28 21:11:03"),
        ("now", "2026-10-28 22:41:03"),
        ("1793200000", "2026-10-28 15:06:40"),
    ],
)
def test_times_are_in_utc_by_default(typed: str, at: str) -> None:
    time = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
    moment = read_form([("at", typed)], NOW).question
    span = read_form([("from", "-60d"), ("to", typed)], NOW).question
    assert moment is not None
    assert span is not None
    assert (moment.since, moment.until) == (time, time)
    assert (span.since, span.until) == (NOW - 60 * 86400, None if time == NOW else time)


def test_the_default_is_the_last_day_without_an_end() -> None:
    form = read_form([("pod", " p-0 "), ("to", ""), ("namespace", "")], NOW)
    assert form.question == HistoryQuery(pod="p-0", parts=True, since=NOW - 86400, until=None)
    assert form.span.label == "24 h"
    labels = [
        read_form(pairs, NOW).span.label
        for pairs in ([("from", "-168h")], [("from", "-2h")], [("from", "-1h"), ("to", "now")])
    ]
    assert labels == ["7 d", "", ""]


@pytest.mark.parametrize(
    ("pairs", "field", "words"),
    [
        ({"at": "yesterday"}, "at", "found 'yesterday', expected 2026-11-20T03:12:00Z"),
        ({"at": "25:00"}, "at", "found '25:00'"),
        ({"from": "-1h", "at": "-2h"}, "at", "either a moment, or from and to"),
        ({"from": "-1h", "to": "-2h"}, "from", "expected a time before the end of the range"),
        ({"from": "x", "to": "y", "at": "z"}, "to", "found 'y'"),
        ({"limit": "0"}, "limit", "found '0', expected a number from 1 to 1000"),
        ({"cursor": "x"}, "cursor", "start at the first page"),
        ({"container": "main"}, "container", "needs a pod, a uid or a device"),
        ({"device": "x" * 513}, "device", "at most 512 characters"),
        ({"q": "x"}, "", "query parameter 'q'"),
        ({"from": "\u202e<b>"}, "from", "found '\\u202e<b>'"),
    ],
)
def test_a_problem_is_at_its_field_and_the_input_is_kept(
    pairs: dict[str, str], field: str, words: str
) -> None:
    form = read_form(pairs.items(), NOW)
    assert form.question is None
    assert words in form.problems[field]
    assert form.typed == {name: value[:512] for name, value in pairs.items() if name != "q"}
    assert len(form.problems) == (3 if "y" in pairs.values() else 1), "every problem is there at once"


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["at", "from", "to", "cursor", "limit", "device", "pod", "uid", "zz"]),
            st.text(max_size=30),
        )
    )
)
def test_any_address_is_a_query_or_has_a_problem(pairs: list[tuple[str, str]]) -> None:
    form = read_form(pairs, NOW)
    assert (form.question is None) == bool(form.problems)
    assert form.span.since <= form.span.until


@settings(max_examples=50)
@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from(["-1h", "03:12", "now"]))
def test_the_address_of_a_form_reads_as_the_form(device: str, pod: str, since: str) -> None:
    form = read_form([("device", device), ("pod", pod), ("from", since)], NOW)
    again = read_form(parse_qsl(urlsplit(form.address()).query), NOW)
    assert (again.question, again.problems) == (form.question, form.problems)


def test_an_address_keeps_the_input_except_changes() -> None:
    pairs = [("device", "a/b"), ("driver", "d"), ("from", "-1h"), ("limit", "5"), ("cursor", "0x1p+0.1")]
    form = read_form(pairs, NOW)
    assert form.address() == "/history?driver=d&device=a%2Fb&from=-1h&limit=5"
    assert form.address(**{"from": "", "at": "03:12"}) == "/history?driver=d&device=a%2Fb&at=03%3A12&limit=5"
    assert read_form([], NOW).address() == "/history"


async def test_claimed_devices_are_devices_like_others(
    client: Client, past: Past, world: SimpleNamespace
) -> None:
    holding = key("pool-a/gpu-0", "train-1", "gpu.example.com")
    facts = HoldingFacts(
        *("", "", "", "gpu-whole", ""), "ns", "train-1-gpu-x7k2p", "share-1", "nvidia.com/gpu"
    )
    past.life.known = {"gpu-1": None, "gpu-2": True}
    past.look()
    past.look((holding, facts))
    world.now = at = past.life.wall
    world.publish()
    for query in ("resource=nvidia.com/gpu", "resource=gpu.example.com", "claim=train-1-gpu-x7k2p"):
        found = await read_page(client, f"/history?{query}")
        words = "of gpu-whole, requested as nvidia.com/gpu, share share-1, claim ns/train-1-gpu-x7k2p"
        assert f"pool-a/gpu-0 gpu.example.com , {words}" in found.text
        assert device_link("gpu.example.com", "pool-a/gpu-0") in found.values("href")
    then = await read_page(client, f"/history?at={at}")
    assert "gpu-1 example.com/gpu free health unknown" in then.text
    assert then.text.count("health unknown") == 1
    past.life.held_only = True
    past.look()
    world.now = at = past.life.wall
    world.publish()
    then = await read_page(client, f"/history?at={at}")
    assert "No pod held 2 devices: 2 unknown. Of example.com/gpu only held devices are known" in then.text


def test_ranges_of_presets() -> None:
    assert time_range({}, NOW).label == "24 h"
    for label, seconds in PRESETS.items():
        span = time_range({"from": preset_value(label)}, NOW)
        assert span.label == label
        assert span.until - span.since == pytest.approx(seconds)
    for pairs, words in (({"from": "now"}, "before the end of the range"), ({"to": "x"}, "found 'x'")):
        with pytest.raises(QueryError, match=words):
            time_range(pairs, NOW)


def test_a_preset_is_drawn_from_the_beginning_of_history() -> None:
    day = time_range({}, NOW)
    drawn = fitted(day, NOW - 100)
    assert (drawn.until, NOW - 110 < drawn.since < NOW - 100) == (NOW, True)
    assert fitted(day, NOW - 1e6) == fitted(day, None) == day
    typed = time_range({"from": "-2h"}, NOW)
    assert fitted(typed, NOW - 100) == typed
    assert fitted(day, NOW).since < NOW
