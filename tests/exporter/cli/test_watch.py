"""devicelens who --watch: what changed between two answers, as lines and as JSON, and how it is asked."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from typing import cast

import pytest
from msgspec.structs import replace as replaced

from exporter.cli.http import AskError, Deadline, Door
from exporter.cli.select import Answer, MappingDocument, Pod, Told
from exporter.cli.table.terminal import Look
from exporter.cli.watch.changes import Change, Event, Memory, Where
from exporter.cli.watch.feed import Feed, Fresh, Lost
from exporter.cli.watch.flag import with_value
from exporter.cli.watch.lines import Lines
from exporter.cli.watch.stream import Sent, events
from exporter.cli.watch.words import as_json_line, as_line
from exporter.views.schema import ClaimEntry, ClaimHolderEntry, DeviceEntry, HolderEntry
from harness.hostile import CORPUS
from runtime.flags import parse_address
from runtime.text import is_hostile

AT = "2026-10-28T22:41:03.250Z"
SINCE = "2026-10-28T22:31:03.250Z"


def holder(pod: str, *, uid: str | None = None, since: str | None = SINCE, exact: bool = True) -> HolderEntry:
    return HolderEntry("ml", pod, "main", uid, since, exact)


def device(name: str, *holders: HolderEntry, healthy: bool | None = True) -> DeviceEntry:
    return DeviceEntry("x/gpu", name, None, (), healthy, holders)


def told(
    *devices: DeviceEntry, node: str = "n", freshness: str = "fresh", claims: tuple[ClaimEntry, ...] = ()
) -> Told:
    return Told(
        MappingDocument(
            node=node,
            generation=1,
            taken_at=AT,
            age_seconds=1.0,
            freshness=freshness,
            error=None,
            devices=devices,
            claims=claims,
        )
    )


def answer(*nodes: Told, fleet: bool = False) -> Answer:
    return Answer(nodes, "the exporter at x", fleet=fleet)


def advance(memory: Memory, *nodes: Told, fleet: bool = False) -> list[tuple[str, str, str]]:
    return [(c.event.value, c.device, c.pod) for c in memory.advance(answer(*nodes, fleet=fleet))]


def test_the_first_answer_tells_what_is_held_and_ill() -> None:
    memory = Memory()
    first = told(device("0", holder("a")), device("1"), device("2", holder("b"), healthy=False))
    assert advance(memory, first) == [("held", "0", "a"), ("held", "2", "b"), ("unhealthy", "2", "b")]
    assert advance(memory, first) == []


def test_what_is_given_back_and_taken() -> None:
    memory = Memory()
    advance(memory, told(device("0", holder("a")), device("1")))
    assert advance(memory, told(device("0"), device("1", holder("b")))) == [
        ("released", "0", "a"),
        ("allocated", "1", "b"),
    ]
    assert advance(memory, told(device("0", healthy=False), device("1", holder("b"), healthy=False))) == [
        ("unhealthy", "0", ""),
        ("unhealthy", "1", "b"),
    ]
    assert advance(memory, told(device("1", holder("b")))) == [("healthy", "0", ""), ("healthy", "1", "b")]


@pytest.mark.parametrize(
    ("before", "after", "another"),
    [
        (holder("a", uid="1"), holder("a", uid="2"), True),
        (holder("a", uid="1"), holder("a"), False),
        (holder("a"), holder("a", uid="1"), False),
        (holder("a"), holder("a", since="2026-10-28T22:40:00Z"), True),
        (holder("a"), holder("a", since="2026-10-28T22:40:00Z", exact=False), False),
        (holder("a", uid="1"), holder("a", uid="1", since="2026-10-28T22:40:00Z"), False),
        (holder("a", since=None), holder("a"), False),
    ],
)
def test_a_successor_of_the_same_name_is_another(
    before: HolderEntry, after: HolderEntry, *, another: bool
) -> None:
    memory = Memory()
    advance(memory, told(device("0", before)))
    expected = [("released", "0", "a"), ("allocated", "0", "a")] if another else []
    assert advance(memory, told(device("0", after))) == expected


def test_a_shared_device_has_a_line_for_each_holder_and_its_health_names_none() -> None:
    memory = Memory()
    advance(memory, told(device("0")))
    both = device("0", holder("a"), holder("b"))
    assert advance(memory, told(both)) == [("allocated", "0", "a"), ("allocated", "0", "b")]
    assert advance(memory, told(device("0", *both.holders, healthy=False))) == [("unhealthy", "0", "")]


def test_of_a_pod_only_what_it_holds() -> None:
    memory = Memory(Pod("ml", "a"))
    claim = ClaimEntry("d", "p", "7", None, (), (ClaimHolderEntry("ml", "w", "ml", "a", "main", None),))
    assert advance(memory, told(device("0", holder("a"), holder("b")), claims=(claim,))) == [
        ("held", "p/7", "a"),
        ("held", "0", "a"),
    ]
    assert advance(memory, told(device("0", holder("a")))) == [("released", "p/7", "a")]


def test_a_claimed_device_that_was_given_back_and_got_again_is_told_by_when_it_began() -> None:
    def claimed(since: str | None, *, exact: bool = True) -> Told:
        through = ClaimHolderEntry("ml", "w", "ml", "a", "main", None, since, exact)
        return told(claims=(ClaimEntry("d", "p", "7", None, (), (through,)),))

    memory = Memory()
    advance(memory, claimed(SINCE))
    assert advance(memory, claimed(SINCE)) == []
    assert advance(memory, claimed(AT)) == [("released", "p/7", "a"), ("allocated", "p/7", "a")]
    assert advance(memory, claimed(SINCE, exact=False)) == []


@pytest.mark.parametrize("how", ["gone", "stale"])
def test_a_node_of_which_nothing_is_known_has_given_nothing_back(how: str) -> None:
    memory = Memory()
    one, other = told(device("0", holder("a")), node="n1"), told(device("0", holder("b")), node="n2")
    advance(memory, one, other, fleet=True)
    less = [one] if how == "gone" else [one, told(node="n2", freshness="stale")]
    lost = memory.advance(answer(*less, fleet=True))
    assert [(c.event, c.where.node) for c in lost] == [(Event.LOST, "n2")]
    assert advance(memory, *less, fleet=True) == []
    back = told(device("0", holder("c")), node="n2")
    assert advance(memory, one, back, fleet=True) == [
        ("back", "", ""),
        ("released", "0", "b"),
        ("allocated", "0", "c"),
    ]


def test_a_node_that_comes_later_is_told_as_it_is() -> None:
    memory = Memory()
    advance(memory, told(node="n1"), fleet=True)
    later = told(device("0", holder("a")), node="n2")
    assert advance(memory, told(node="n1"), later, fleet=True) == [("held", "0", "a")]


@pytest.mark.parametrize("text", CORPUS.values(), ids=CORPUS.keys())
def test_hostile_names_are_inert_in_lines_and_in_json(text: str) -> None:
    change = Change(
        Event.ALLOCATED, Where(text, (("cluster", text),)), AT, text, text, text, text, text, text
    )
    line = as_line(change, AT, Look(), fleet=True)
    assert not any(is_hostile(character) for character in line)
    document = as_json_line(change, AT)
    assert document.isascii()
    assert document.isprintable()
    read = json.loads(document)
    assert (read["device"], read["labels"], read["event"]) == (text, {"cluster": text}, "allocated")


def test_a_line_reads_from_left_to_right() -> None:
    change = Change(Event.RELEASED, Where("n"), AT, "x/gpu", "0", "ml", "a", "main")
    assert as_line(change, AT, Look(), fleet=False) == "2026-10-28T22:41:03Z  released   x/gpu  0  ml/a  main"
    assert (
        as_line(change, AT, Look(), fleet=True) == "2026-10-28T22:41:03Z  released   n  x/gpu  0  ml/a  main"
    )
    lost = Change(Event.LOST, Where("n"))
    assert as_line(lost, AT, Look(), fleet=False) == "2026-10-28T22:41:03Z  lost       n"


def test_losing_the_source_is_said_once_and_that_it_is_back() -> None:
    out, said = StringIO(), list[str]()
    lines = Lines(out, Look(), pod=None, json=False, clock=lambda: 0.0, tell=said.append)
    lines.answered(answer(told(device("0", holder("a")))))
    for _ in range(3):
        lines.lost("http://x: connection refused")
    lines.answered(answer(told(device("0", holder("a")))))
    assert said == ["http://x: connection refused; trying again", "the exporter at x answers again"]
    assert len(out.getvalue().splitlines()) == 1
    noted = replace(answer(told(device("0", holder("a")))), notes=("beware",))
    lines.answered(noted)
    lines.answered(noted)
    assert said[2:] == ["beware"]


def test_events_are_read_as_browsers_read_them() -> None:
    stream = [
        *(b": ping - 1\r\n", b"\r\n"),
        *(b"id: x\r\n", b"event: generation\r\n", b"data: 7\r\n", b"retry: 2000\r\n", b"\r\n"),
        *(b"data:a\n", b"data: b\n", b"\n"),
        *(b"event:refreshed\n", b"\n"),
        *(b"event: unfinished\n", b"data: x\n"),
    ]
    assert list(events(stream)) == [Sent("generation", "7"), Sent("message", "a\nb"), Sent("refreshed", "")]


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
    assert with_value(words) == found


class Streams:
    """A door to an exporter that ends its streams."""

    def __init__(self, *streams: list[bytes]) -> None:
        self.address = parse_address("http://x:1")
        self._streams = iter(streams)
        self._over = threading.Event()

    def stream(self, where: str, deadline: Deadline, *, silence: float) -> Iterator[bytes]:
        found = next(self._streams, None)
        if found is None:
            self._over.wait(60)
        yield from found or ()

    def end(self) -> None:
        self._over.set()


def test_an_exporter_that_was_started_anew_counts_anew() -> None:
    def generation(number: int) -> list[bytes]:
        return [b"event: generation\n", f"data: {number}\n".encode(), b"\n"]

    first, second = answer(told(device("0"))), answer(told(device("1")))
    first, second = (
        replace(one, told=(replace(one.told[0], document=replaced(one.told[0].document, generation=number)),))
        for one, number in ((first, 7), (second, 2))
    )
    answers = iter([first, second])
    # Of the first stream the event that came while it was asked is old; of the second none is.
    door = Streams([*generation(7), *generation(6)], generation(2))
    feed = Feed(lambda: next(answers), kind="exporter", interval=0.0, timeout=1.0, door=cast("Door", door))
    feed.start()
    try:
        news = [feed.news.get(timeout=20) for _ in range(3)]
        assert [type(one) for one in news] == [Fresh, Lost, Fresh]
        assert isinstance(news[2], Fresh)
        assert news[2].answer is second
    finally:
        feed.stop()
        door.end()


def test_whoever_cannot_be_asked_is_asked_again_and_all_the_time() -> None:
    asked = threading.Semaphore(0)
    answers: list[Answer | AskError] = [AskError("no"), answer(told(device("0")))]

    def ask() -> Answer:
        asked.release()
        if len(answers) > 1:
            found = answers.pop(0)
            if isinstance(found, AskError):
                raise found
        assert isinstance(answers[0], Answer)
        return answers[0]

    feed = Feed(ask, kind="kubelet", interval=0.2, timeout=1.0, door=None)
    feed.start()
    try:
        first, second = feed.news.get(timeout=20), feed.news.get(timeout=10)
        assert isinstance(first, Lost)
        assert first.why == "no"
        assert isinstance(second, Fresh)
        assert isinstance(feed.news.get(timeout=20), Fresh)
        assert all(asked.acquire(timeout=20) for _ in range(3))
    finally:
        feed.stop()
