"""runtime.log: one event is one line whatever it carries; a failure that lasts is told once."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.log import Episode, Log, configure

QUICK = settings(max_examples=100, deadline=None, derandomize=True)

_ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
_HOSTILE = _ANY_TEXT | st.sampled_from(
    [
        "",
        "\\",
        'a\\"',
        "a\\",
        'x" level="error',
        "\n",
        "\r\nlevel=error",
        "\x1b[2J",
        "a=b",
        "\u2028",
        "\ud800",
    ]
)
_PAIR = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "=\\]*)(?: |$)')


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("devicelens")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


def _written(form: str, event: str, **fields: object) -> str:
    stream = io.StringIO()
    configure("debug", form, stream)
    Log("part").info(event, **fields)
    return stream.getvalue()


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    plain = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))",
        lambda m: plain[m[4]] if m[4] else chr(int(m[1] or m[2] or m[3], 16)),
        value[1:-1],
    )


def _logfmt(line: str) -> dict[str, str]:
    """Reads a line as strictly as any logfmt reader: nothing may be left between the pairs."""
    pairs: dict[str, str] = {}
    at = 0
    while at < len(line):
        match = _PAIR.match(line, at)
        assert match is not None, line[at:]
        pairs[match[1]] = _unquoted(match[2])
        at = match.end()
    return pairs


def test_a_logfmt_line_reads_as_written() -> None:
    line = _written(
        "logfmt", "registered", resource="a.example/gpu", path=Path("/a b"), n=3, ok=True, no=None
    )
    assert re.fullmatch(
        r"ts=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=info component=part msg=registered "
        r'resource=a\.example/gpu path="/a b" n=3 ok=true\n',
        line,
    )


def test_a_json_line_reads_as_written() -> None:
    document = json.loads(_written("json", "registered", path=Path("/a b"), n=3, ok=True, no=None))
    assert document.pop("ts")
    assert document == {
        "level": "info",
        "component": "part",
        "msg": "registered",
        "path": "/a b",
        "n": 3,
        "ok": True,
    }


@QUICK
@given(event=_HOSTILE, first=_HOSTILE, second=_HOSTILE)
def test_logfmt_is_one_line_that_gives_back_what_was_logged(event: str, first: str, second: str) -> None:
    line = _written("logfmt", event, first=first, second=second)
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    assert line.encode()
    pairs = _logfmt(line[:-1])
    assert list(pairs) == ["ts", "level", "component", "msg", "first", "second"]
    assert pairs["level"] == "info"
    assert (pairs["msg"], pairs["first"], pairs["second"]) == (event, first, second)


@QUICK
@given(event=_HOSTILE, field=_HOSTILE)
def test_json_is_one_line_that_gives_back_what_was_logged(event: str, field: str) -> None:
    line = _written("json", event, field=field)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    document = json.loads(line)
    assert (document["msg"], document["field"]) == (event, field)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_json_stays_json_for_numbers_that_json_has_not(number: float) -> None:
    def refuse(constant: str) -> Any:
        pytest.fail(f"{constant} is not JSON")

    line = _written("json", "measured", seconds=number)
    assert json.loads(line, parse_constant=refuse)["seconds"] == str(number)


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_huge_value_is_cut(form: str) -> None:
    assert len(_written(form, "huge", text="x" * 1_000_000)) < 10_000


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_no_field_can_take_the_place_of_the_level_or_the_time(form: str) -> None:
    line = _written(form, "event", level="error", ts="never", component="other", msg="no")
    pairs = json.loads(line) if form == "json" else _logfmt(line[:-1])
    assert (pairs["level"], pairs["component"], pairs["msg"]) == ("info", "part", "event")
    assert pairs["ts"] != "never"
    assert (pairs["level_"], pairs["ts_"], pairs["component_"], pairs["msg_"]) == (
        "error",
        "never",
        "other",
        "no",
    )


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_librarys_own_message_with_its_traceback_is_one_line_too(form: str) -> None:
    stream = io.StringIO()
    configure("info", form, stream)
    try:
        int("boom\nlevel=info")
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error\nhandling %s", "request")
    line = stream.getvalue()
    assert len(line.splitlines()) == 1
    pairs = json.loads(line) if form == "json" else _logfmt(line[:-1])
    assert pairs["component"] == "aiohttp.server"
    assert pairs["level"] == "error"
    assert pairs["msg"] == "Error\nhandling request"
    assert "ValueError: " in pairs["exception"]


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("debug", ["debug", "info", "warn", "error"]),
        ("info", ["info", "warn", "error"]),
        ("warn", ["warn", "error"]),
        ("error", ["error"]),
    ],
)
def test_only_events_of_the_level_asked_for_are_told(level: str, told: list[str]) -> None:
    stream = io.StringIO()
    configure(level, "logfmt", stream)
    log = Log("part")
    for name in ("debug", "info", "warn", "error"):
        getattr(log, name)("event")
    logging.getLogger("library").info("chatter")
    assert [_logfmt(line)["level"] for line in stream.getvalue().splitlines()] == told


def test_to_configure_again_replaces_what_was() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", "logfmt", first)
    configure("info", "json", second)
    Log("part").info("event")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["msg"] == "event"


def _told(steps: list[str | None]) -> list[dict[str, str]]:
    """What an episode tells of failures (their reasons) and recoveries (None)."""
    stream = io.StringIO()
    configure("info", "logfmt", stream)
    episode = Episode(Log("part"), "it fails", where="here")
    for reason in steps:
        if reason is None:
            episode.recovered()
        else:
            episode.failed(reason)
        assert episode.reason == reason
    lines = [_logfmt(line) for line in stream.getvalue().splitlines()]
    for line in lines:
        del line["ts"], line["component"]
        assert line.pop("where") == "here"
    return lines


def test_an_episode_is_told_when_it_starts_changes_and_ends() -> None:
    assert _told([None, "a", "a", "a", "b", "b", None, None, "a", None]) == [
        {"level": "warn", "msg": "it fails", "reason": "a"},
        {"level": "warn", "msg": "it fails", "reason": "b"},
        {"level": "info", "msg": "it fails: over", "failures": "5"},
        {"level": "warn", "msg": "it fails", "reason": "a"},
        {"level": "info", "msg": "it fails: over", "failures": "1"},
    ]


def test_reasons_that_alternate_are_told_of_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("runtime.log.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    configure("info", "logfmt", stream)
    episode = Episode(Log("part"), "it fails", calm=60.0)
    for second, reason in enumerate(["a", "b"] * 50):
        now[0] = 100.0 + second
        episode.failed(reason)
        assert episode.reason == reason
    episode.recovered()
    episode.failed("b")
    told = [_logfmt(line) for line in stream.getvalue().splitlines()]
    assert [line.get("reason", line.get("failures")) for line in told] == ["a", "b", "100", "b"]


@QUICK
@given(st.lists(st.sampled_from(["a", "b", None]), max_size=12))
def test_an_episode_tells_as_many_lines_as_there_are_changes(steps: list[str | None]) -> None:
    changes = sum(after != before for before, after in zip([None, *steps], steps, strict=False))
    assert len(_told(steps)) == changes


def test_an_episode_may_be_as_loud_as_its_failure_is_grave() -> None:
    stream = io.StringIO()
    configure("info", "logfmt", stream)
    Episode(Log("part"), "it fails").failed("badly", level="error")
    assert _logfmt(stream.getvalue()[:-1])["level"] == "error"


def _levels(steps: list[Literal["debug", "info", "warn"] | None], shown: str = "debug") -> list[str]:
    """The levels at which an episode tells of a failure as grave as `steps` say; None: it is over."""
    stream = io.StringIO()
    configure(shown, "logfmt", stream)
    episode = Episode(Log("part"), "it fails", calm=60.0)
    for level in steps:
        if level is None:
            episode.recovered()
        else:
            episode.failed("so", level=level)
    return [_logfmt(line)["level"] for line in stream.getvalue().splitlines()]


def test_a_failure_that_becomes_graver_is_told_again() -> None:
    assert _levels(["debug", "debug", "warn", "warn", "debug", None]) == ["debug", "warn", "info"]
    assert _levels(["info", "warn", None, "info", None]) == ["info", "warn", "info", "info", "info"]


def test_a_failure_that_was_never_grave_ends_as_quietly_as_it_began() -> None:
    assert _levels(["debug", None]) == ["debug", "debug"]
    assert _levels(["debug", None, "debug", None], shown="info") == []
    assert _levels(["warn", None, "debug", None], shown="info") == ["warn", "info"]
