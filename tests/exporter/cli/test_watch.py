"""devicelens who --watch: changes between answers, their output, and when the source is queried."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from io import StringIO

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import structs
from msgspec.structs import replace

from exporter.cli.common import AskError, OutputFlags
from exporter.cli.select import HolderQuery, MappingAnswer, NamespacedPod, NodeDocument
from exporter.cli.sources import ChosenSource
from exporter.cli.watch import (
    ChangeLines,
    ChangeTracker,
    HolderChange,
    LiveTable,
    Update,
    as_json_line,
    as_line,
    updates,
)
from exporter.cli.who import with_watch_value
from exporter.views.schema import DeviceEntry, HolderEntry
from harness.hostile import CORPUS
from harness.mappings import claimed, device, holder, mapping
from runtime.flags import parse_address
from runtime.text import is_hostile

AT = "2026-10-28T22:41:03.250Z"
SINCE = "2026-10-28T22:31:03.250Z"


held_by = partial(holder, since=SINCE)


def node(*devices: DeviceEntry, name: str = "n", freshness: str = "fresh") -> NodeDocument:
    (found,) = mapping(*devices, node=name).nodes
    return structs.replace(found, freshness=freshness)


def answer(*nodes: NodeDocument, fleet: bool = False) -> MappingAnswer:
    return MappingAnswer(nodes, "the exporter at x", fleet=fleet)


def claim(since: str = SINCE, *, exact: bool = True) -> NodeDocument:
    return node(claimed("7", holder("a", since=since, exact=exact), pool="p"))


def advance(tracker: ChangeTracker, *nodes: NodeDocument, fleet: bool = False) -> list[tuple[str, str, str]]:
    return [(c.event, c.device, c.pod) for c in tracker.advance(answer(*nodes, fleet=fleet))]


def read(text: str) -> NodeDocument:
    """`0:a,b 1!`: the device 0 is held by the pods a and b, and 1 is unhealthy."""
    found: list[DeviceEntry] = []
    for word in text.split():
        name, _, pods = word.removesuffix("!").partition(":")
        holders = map(held_by, filter(None, pods.split(",")))
        found.append(device(name, *holders, healthy=not word.endswith("!")))
    return node(*found)


CHANGES = {
    # The first answer has holdings and unhealthy devices.
    ("", "0:a 1 2:b!"): "held 0 a, held 2 b, unhealthy 2 b",
    ("0:a 1", "0 1:b"): "released 0 a, allocated 1 b",
    ("0 1:b", "0! 1:b!"): "unhealthy 0, unhealthy 1 b",
    ("0! 1:b!", "1:b"): "healthy 0, healthy 1 b",
    # The health of a shared device names no holder.
    ("0", "0:a,b!"): "allocated 0 a, allocated 0 b, unhealthy 0",
}


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_changes_between_two_answers(before: str, after: str) -> None:
    tracker = ChangeTracker()
    if before:
        advance(tracker, read(before))
    changes = advance(tracker, read(after))
    assert ", ".join(" ".join(filter(None, change)) for change in changes) == CHANGES[before, after]
    assert advance(tracker, read(after)) == []


def test_a_claimed_device_that_was_allocated_again_has_another_start() -> None:
    tracker = ChangeTracker()
    advance(tracker, claim(SINCE))
    assert advance(tracker, claim(SINCE)) == []
    assert advance(tracker, claim(AT)) == [("released", "p/7", "a"), ("allocated", "p/7", "a")]
    assert advance(tracker, claim(SINCE, exact=False)) == []


@pytest.mark.parametrize(
    ("before", "after", "another"),
    [
        (held_by("a", uid="1"), held_by("a", uid="2"), True),
        (held_by("a", uid="1"), held_by("a"), False),
        (held_by("a"), held_by("a", uid="1"), False),
        (held_by("a"), held_by("a", since=AT), True),
        (held_by("a"), held_by("a", since=AT, exact=False), False),
        (held_by("a", uid="1"), held_by("a", uid="1", since=AT), False),
        (held_by("a", since=None), held_by("a"), False),
    ],
)
def test_a_successor_of_the_same_name_is_another(
    before: HolderEntry, after: HolderEntry, *, another: bool
) -> None:
    tracker = ChangeTracker()
    advance(tracker, node(device("0", before)))
    expected = [("released", "0", "a"), ("allocated", "0", "a")] if another else []
    assert advance(tracker, node(device("0", after))) == expected


def test_of_a_pod_only_what_it_holds() -> None:
    tracker = ChangeTracker(NamespacedPod("ml", "a"))
    both = node(device("0", held_by("a"), held_by("b")), *claim().devices)
    assert advance(tracker, both) == [("held", "p/7", "a"), ("held", "0", "a")]
    assert advance(tracker, node(device("0", held_by("a")))) == [("released", "p/7", "a")]


def test_an_unconfirmed_holder_is_marked_in_each_line() -> None:
    tracker = ChangeTracker()
    carried = structs.replace(held_by("a"), confirmed=False)
    lines: list[str] = []
    for shown in (
        node(device("0", carried)),
        node(device("0", carried, healthy=False)),
        node(device("0", held_by("a"), healthy=False)),
        node(device("0", held_by("a"))),
    ):
        changes = tracker.advance(answer(shown))
        lines += [as_line(change, AT, fleet=False).partition("  ")[2] for change in changes]
        assert all(json.loads(as_json_line(one, AT))["confirmed"] is one.confirmed for one in changes)
    assert [line.split() for line in lines] == [
        ["held", "nvidia.com/gpu", "0", "ml/a", "main", "unconfirmed"],
        ["unhealthy", "nvidia.com/gpu", "0", "ml/a", "main", "unconfirmed"],
        # That the kubelet lists the pod again is no change of the holder.
        ["healthy", "nvidia.com/gpu", "0", "ml/a", "main"],
    ]


@pytest.mark.parametrize("how", ["gone", "stale"])
def test_a_node_without_data_has_released_nothing(how: str) -> None:
    tracker = ChangeTracker()
    one, other = node(device("0", held_by("a")), name="n1"), node(device("0", held_by("b")), name="n2")
    advance(tracker, one, fleet=True)
    assert advance(tracker, one, other, fleet=True) == [("held", "0", "b")], "a new node has held it before"
    less = [one] if how == "gone" else [one, node(name="n2", freshness="stale")]
    lost = tracker.advance(answer(*less, fleet=True))
    assert [(c.event, c.place[0]) for c in lost] == [("lost", "n2")]
    assert advance(tracker, *less, fleet=True) == []
    back = node(device("0", held_by("c")), name="n2")
    assert advance(tracker, one, back, fleet=True) == [
        ("back", "", ""),
        ("released", "0", "b"),
        ("allocated", "0", "c"),
    ]


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS.keys())
def test_hostile_names_are_inert_in_lines_and_in_json(text: str) -> None:
    change = HolderChange("allocated", (text, (("cluster", text),)), AT, text, text, text, text, text, text)
    line = as_line(change, AT, fleet=True)
    assert not any(is_hostile(character) for character in line)
    document = as_json_line(change, AT)
    assert document.isascii()
    assert document.isprintable()
    read = json.loads(document)
    assert (read["device"], read["labels"], read["event"]) == (text, {"cluster": text}, "allocated")


def test_a_line_reads_from_left_to_right() -> None:
    change = HolderChange("released", ("n", ()), AT, "x/gpu", "0", "ml", "a", "main")
    assert as_line(change, AT, fleet=False) == "2026-10-28T22:41:03Z  released   x/gpu  0  ml/a  main"
    assert as_line(change, AT, fleet=True) == "2026-10-28T22:41:03Z  released   n  x/gpu  0  ml/a  main"
    lost = HolderChange("lost", ("n", ()))
    assert as_line(lost, AT, fleet=False) == "2026-10-28T22:41:03Z  lost       n"


def test_losing_the_source_is_reported_once_and_that_it_is_back(capsys: pytest.CaptureFixture[str]) -> None:
    out = StringIO()
    lines = ChangeLines(out, HolderQuery(), json_lines=False)
    one = answer(node(device("0", held_by("a"))))
    lines.update(one)
    for _ in range(3):
        lines.fail("http://x: connection refused")
    for again in (one, replace(one, notes=("beware",)), replace(one, notes=("beware",))):
        lines.update(again)
    assert len(out.getvalue().splitlines()) == 1
    assert capsys.readouterr().err.splitlines() == [
        "devicelens: http://x: connection refused; trying again",
        "devicelens: the exporter at x answers again",
        "devicelens: beware",
    ]


def test_a_mapping_that_becomes_stale_and_fresh_again_has_a_line_of_each() -> None:
    tracker = ChangeTracker()
    told = [
        advance(tracker, node(device("0", held_by("a")), freshness=freshness))
        for freshness in ("fresh", "ageing", "stale", "stale", "fresh", "unknown")
    ]
    assert told == [
        [("held", "0", "a")],
        [],
        [("stale", "", "")],
        [],
        [("fresh", "", "")],
        [("stale", "", "")],
    ]


def test_a_state_keeps_the_changes_of_devices_that_were_or_are_in_it() -> None:
    out = StringIO()
    lines = ChangeLines(out, HolderQuery(states=frozenset({"unhealthy"})), json_lines=False)
    for text in ("0:a 1:b!", "0:a! 1:b!", "0 1:b", "0:c 1"):
        lines.update(answer(read(text)))
    assert [line.split()[1:4:2] for line in out.getvalue().splitlines()] == [
        ["held", "1"],
        ["unhealthy", "1"],
        ["unhealthy", "0"],
        ["released", "0"],
        ["healthy", "0"],
        ["healthy", "1"],
    ]


class LiveOutput(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_live_table_marks_changes_and_says_why_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    out, now = LiveOutput(), [1000.0]
    view = LiveTable(out, HolderQuery(), OutputFlags(), clock=lambda: now[0])

    def drawn() -> list[str]:
        text = out.getvalue()
        out.seek(0)
        out.truncate()
        return [
            line.split("\x1b[2K")[-1].rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
        ]

    try:
        drawn()
        partition = claimed("2", free=False, alternative=True)
        view.update(answer(node(device("0"), device("1"), partition)))
        first = drawn()
        assert any("the exporter at x: 0 of 2 devices held, as of 00:16:40Z" in line for line in first)
        assert not any(line.startswith("*") for line in first)
        view.update(answer(node(device("0", held_by("a")), device("1"), partition)))
        assert [line.split()[:2] for line in drawn() if line.startswith("*")] == [["*", "nvidia.com/gpu"]]
        now[0] += 20
        view.fail("http://x: connection refused\x1b[2J")
        failed = drawn()
        assert any(
            "as of 00:16:40Z: http://x: connection refused\\x1b[2J; trying again" in one for one in failed
        )
        assert not any(line.startswith("*") for line in failed)
        view.update(answer(node(device("0"), freshness="stale")))
        assert "\x1b[1;31mthe exporter at x: 0 of 1 device held, as of 00:17:00Z, stale" in out.getvalue()
    finally:
        view.close()
    assert "\x1b[?25h" in out.getvalue(), "the cursor is shown again"


def test_a_live_table_is_filtered_sorted_and_without_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    out = LiveOutput()
    given = OutputFlags(no_headers=True, sort_by="pod")
    view = LiveTable(out, HolderQuery(states=frozenset({"held"})), given, clock=lambda: 1000.0)
    try:
        view.update(answer(node(device("0", held_by("b")), device("1"), device("2", held_by("a")))))
    finally:
        view.close()
    drawn = [line.split()[1:2] for line in out.getvalue().splitlines() if line.startswith(" ")]
    assert drawn[-2:] == [["2"], ["0"]]
    assert "NAMESPACE" not in out.getvalue()
    assert ": 2 of 2 devices held" in out.getvalue()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--watch"], ["--watch="]),
        (["-w", "gpu"], ["--watch=", "gpu"]),
        (["--watch", "5s", "gpu"], ["--watch=5s", "gpu"]),
        (["--watch=5s"], ["--watch=5s"]),
        (["--watch", "--pod", "a/b"], ["--watch=", "--pod", "a/b"]),
        (["--", "--watch"], ["--", "--watch"]),
        (["gpu", "-w", "500ms"], ["gpu", "--watch=500ms"]),
    ],
)
def test_the_duration_after_watch_may_be_left_out(words: list[str], found: list[str]) -> None:
    assert with_watch_value(words) == found


def events(*generations: int) -> bytes:
    return b": ping\r\n\r\n" + b"".join(b"event: generation\r\ndata: %d\r\n\r\n" % one for one in generations)


class Exporter:
    """Serves streams of events one after another, and documents with a generation."""

    def __init__(self, *streams: list[int] | int) -> None:
        self.streams = list(streams)
        self.generation = 0
        self.queries = 0

    async def events(self, request: web.Request) -> web.StreamResponse:
        stream = self.streams.pop(0) if self.streams else []
        if isinstance(stream, int):
            return web.Response(status=stream)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if stream:
            self.generation = stream[0]
            await response.write(events(*stream))
        else:
            await asyncio.Event().wait()
        return response

    async def document(self, request: web.Request) -> web.Response:
        self.queries += request.path.endswith("/devices")
        plain = msgspec.to_builtins(node(device("0", held_by("a"))))
        return web.json_response({**plain, "generation": self.generation, "pods": []})

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[ChosenSource]:
        app = web.Application()
        app.router.add_get("/api/v1/events", self.events)
        app.router.add_get("/api/v1/{document}", self.document)
        async with TestServer(app, shutdown_timeout=0.0) as server:
            yield ChosenSource("exporter", parse_address(str(server.make_url("/"))), timeout=10.0)


async def first_updates(source: ChosenSource, count: int, interval: float = 0.0) -> list[Update]:
    found: list[Update] = []
    async with asyncio.timeout(20), aclosing(updates(source, interval)) as stream:
        async for update in stream:
            found.append(update)
            if len(found) == count:
                break
    return found


async def test_a_restarted_exporter_counts_generations_anew() -> None:
    # The event with generation 6 arrived during the query, and is older than its answer.
    exporter = Exporter([7, 6], [2])
    async with exporter.serve() as source:
        found = await first_updates(source, 3)
    assert [type(one) for one in found] == [MappingAnswer, AskError, MappingAnswer]
    assert isinstance(found[2], MappingAnswer)
    assert found[2].nodes[0].generation == 2
    assert str(found[1]).endswith("it ended the event stream")


@pytest.mark.parametrize("status", [404, 503])
async def test_an_exporter_without_events_is_polled(status: int) -> None:
    async with Exporter(status).serve() as source:
        note, update = await first_updates(source, 2)
    assert str(note).startswith("polling every 5 s, because there is no event stream")
    assert isinstance(update, MappingAnswer)


async def test_a_failing_source_is_queried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.cli.watch.RETRIES", (0.0,))
    exporter = Exporter(500)
    async with exporter.serve() as source:
        found = await first_updates(source, 3, 0.01)
        assert [type(one) for one in found] == [MappingAnswer] * 3
        assert exporter.queries == 3
        refused = await first_updates(source, 1)
        assert isinstance(refused[0], AskError)
        assert "500 Internal Server Error" in refused[0].message
    failed = await first_updates(source, 2, 0.01)
    assert all(isinstance(one, AskError) and "connection refused" in one.message for one in failed)
