"""runtime.log: one event is one line whatever it carries; a failure that lasts is logged once."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.log import LEVELS, Episode, Log, configure

Level = Literal["debug", "info", "warn", "error"]

QUICK = settings(max_examples=40)

_ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)
_HOSTILE = _ANY_TEXT | st.sampled_from(
    [
        *("", "\\", 'a\\"', "a\\", 'x" level="error', "\n", "\r\nlevel=error", "\x1b[2J", "a=b", "\u2028"),
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
def test_an_event_is_one_line_that_reads_back_as_logged(event: str, first: str, second: str) -> None:
    line = _written("logfmt", event, first=first, second=second)
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    assert line.encode()
    pairs = _logfmt(line[:-1])
    assert list(pairs) == ["ts", "level", "component", "msg", "first", "second"]
    assert (pairs["level"], pairs["msg"], pairs["first"], pairs["second"]) == ("info", event, first, second)
    line = _written("json", event, first=first)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    document = json.loads(line)
    assert (document["msg"], document["first"]) == (event, first)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_json_stays_json_for_numbers_that_json_has_not(number: float) -> None:
    def refuse(constant: str) -> Any:
        pytest.fail(f"{constant} is not JSON")

    line = _written("json", "measured", seconds=number)
    assert json.loads(line, parse_constant=refuse)["seconds"] == str(number)


def _read(form: str, line: str) -> dict[str, str]:
    assert len(line.splitlines()) == 1
    pairs: dict[str, str] = json.loads(line) if form == "json" else _logfmt(line[:-1])
    return pairs


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_field_is_bounded_and_never_replaces_the_level_or_the_time(form: str) -> None:
    fields = {"level": "error", "ts": "never", "component": "other", "msg": "no"}
    line = _written(form, "event", **fields, text="x" * 1_000_000 + "the end")
    assert len(line) < 10_000
    pairs = _read(form, line)
    assert pairs["text"].endswith("xthe end")
    assert (pairs["level"], pairs["component"], pairs["msg"]) == ("info", "part", "event")
    assert pairs["ts"] != "never"
    assert {name: pairs[f"{name}_"] for name in fields} == fields


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_message_of_a_library_with_its_traceback_is_one_line_too(form: str) -> None:
    stream = io.StringIO()
    configure("info", form, stream)
    try:
        int("boom\nlevel=info")
    except ValueError:
        logging.getLogger("aiohttp.server").exception("Error\nhandling %s", "request")
    pairs = _read(form, stream.getvalue())
    assert (pairs["component"], pairs["level"]) == ("aiohttp.server", "error")
    assert pairs["msg"] == "Error\nhandling request"
    assert "ValueError: " in pairs["exception"]


@pytest.mark.parametrize("level", LEVELS)
def test_events_below_the_level_are_dropped(level: str) -> None:
    stream = io.StringIO()
    configure(level, "logfmt", stream)
    log = Log("part")
    for name in LEVELS:
        getattr(log, name)("event")
    logging.getLogger("library").info("chatter")
    written = [_logfmt(line)["level"] for line in stream.getvalue().splitlines()]
    assert written == list(LEVELS[LEVELS.index(level) :])


def test_another_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("info", "logfmt", first)
    configure("info", "json", second)
    Log("part").info("event")
    assert first.getvalue() == ""
    assert json.loads(second.getvalue())["msg"] == "event"


def _logged(steps: list[str | None]) -> list[dict[str, str]]:
    """The lines of an episode with failures (their reasons) and recoveries (None)."""
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


def test_an_episode_is_logged_when_it_starts_changes_and_ends() -> None:
    assert _logged([None, "a", "a", "a", "b", "b", None, None, "a", None]) == [
        {"level": "warn", "msg": "it fails", "reason": "a"},
        {"level": "warn", "msg": "it fails", "reason": "b"},
        {"level": "info", "msg": "it fails: over", "failures": "5"},
        {"level": "warn", "msg": "it fails", "reason": "a"},
        {"level": "info", "msg": "it fails: over", "failures": "1"},
    ]


def test_reasons_that_alternate_are_logged_after_the_calm(monkeypatch: pytest.MonkeyPatch) -> None:
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
    lines = [_logfmt(line) for line in stream.getvalue().splitlines()]
    assert [line.get("reason", line.get("failures")) for line in lines] == ["a", "b", "100", "b"]


@QUICK
@given(st.lists(st.sampled_from(["a", "b", None]), max_size=12))
def test_an_episode_has_as_many_lines_as_changes(steps: list[str | None]) -> None:
    changes = sum(after != before for before, after in zip([None, *steps], steps, strict=False))
    assert len(_logged(steps)) == changes


@pytest.mark.parametrize(
    ("steps", "shown", "levels"),
    [
        # A failure that becomes more severe is logged again.
        ("debug debug warn warn debug over", "debug", "debug warn info"),
        ("info warn over info over", "debug", "info warn info info info"),
        ("error over", "info", "error info"),
        # One that was never severe ends at the level at which it began.
        ("debug over", "debug", "debug debug"),
        ("debug over debug over", "info", ""),
        ("warn over debug over", "info", "warn info"),
    ],
)
def test_an_episode_has_the_level_of_its_failure(steps: str, shown: str, levels: str) -> None:
    stream = io.StringIO()
    configure(shown, "logfmt", stream)
    episode = Episode(Log("part"), "it fails", calm=60.0)
    for step in steps.split():
        if step == "over":
            episode.recovered()
        else:
            episode.failed("so", level=cast("Level", step))
    assert [_logfmt(line)["level"] for line in stream.getvalue().splitlines()] == levels.split()
