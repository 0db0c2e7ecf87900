"""exporter.cli: what is asked for, where, and how it is shown. All of it pure."""

import json
import re
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.cli.select import (
    Ambiguous,
    Answer,
    CpusEntry,
    MappingDocument,
    NothingMatches,
    Pod,
    Question,
    Told,
    narrow,
    parse_pod,
    parse_what,
    select,
)
from exporter.cli.show import as_json, document_of, print_answer, rows
from exporter.cli.table.terminal import Look, look
from exporter.cli.table.width import width
from exporter.views.schema import ClaimEntry, ClaimHolderEntry, DeviceEntry, HolderEntry
from harness.hostile import CORPUS
from runtime.flags import parse_address
from runtime.text import is_hostile


def holder(pod: str, namespace: str = "ml", *, since: str | None = None, exact: bool = True) -> HolderEntry:
    return HolderEntry(namespace, pod, "main", None, since, exact)


def device(
    name: str,
    *holders: HolderEntry,
    resource: str = "nvidia.com/gpu",
    parent: str | None = None,
    healthy: bool | None = True,
) -> DeviceEntry:
    return DeviceEntry(resource, name, parent, (0,), healthy, holders)


def claim(
    name: str,
    pod: str = "one",
    *,
    driver: str = "gpu.example.com",
    since: str | None = None,
    exact: bool = True,
) -> ClaimEntry:
    through = ClaimHolderEntry("ml", "wish", "ml", pod, "main", None, since, since is not None and exact)
    return ClaimEntry(driver, "worker-3", name, None, (), (through,))


def document(
    *devices: DeviceEntry,
    claims: tuple[ClaimEntry, ...] = (),
    cpus: tuple[CpusEntry, ...] = (),
    node: str = "worker-3",
    labels: dict[str, str] | None = None,
) -> Answer:
    mapping = MappingDocument(
        node=node,
        generation=7,
        taken_at="2026-10-28T22:41:03.250Z",
        age_seconds=2.0,
        freshness="fresh",
        error=None,
        devices=devices,
        claims=claims,
        cpus=cpus,
    )
    return Answer((Told(mapping, labels or {}),), "the exporter at x", fleet=labels is not None)


def devices_of(answer: Answer) -> list[str]:
    return [device.device for told in answer.told for device in told.document.devices]


NODE = document(
    device("GPU-1", holder("one")),
    device("GPU-10", holder("ten"), healthy=False),
    device("GPU-2"),
    device(
        "GPU-3::0", holder("one"), holder("two", "other"), resource="nvidia.com/gpu.shared", parent="GPU-3"
    ),
    device("0", resource="intel.com/gpu"),
    device("fuse-0", resource="smarter/fuse"),
)


@pytest.mark.parametrize(
    ("question", "found"),
    [
        (Question(), ["GPU-1", "GPU-10", "GPU-2", "GPU-3::0", "0", "fuse-0"]),
        (Question("nvidia.com/gpu"), ["GPU-1", "GPU-10", "GPU-2"]),
        (Question("fuse"), ["fuse-0"]),
        (Question("gpu.shared"), ["GPU-3::0"]),
        (Question("nvidia.com/gpu", "GPU-1"), ["GPU-1"]),
        (Question("nvidia.com/gpu", "gpu-1"), ["GPU-1", "GPU-10"]),
        (Question("", "GPU-3"), ["GPU-3::0"]),
        (Question("", "-0"), ["fuse-0"]),
        (Question(pod=Pod("ml", "one")), ["GPU-1", "GPU-3::0"]),
        (Question("gpu.shared", pod=Pod("other", "two")), ["GPU-3::0"]),
    ],
)
def test_what_is_asked_for_is_found(question: Question, found: list[str]) -> None:
    assert devices_of(select(NODE, question)) == found


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            Question("tpu"),
            (
                "no resource 'tpu' on worker-3: there are intel.com/gpu, nvidia.com/gpu, "
                "nvidia.com/gpu.shared and smarter/fuse"
            ),
        ),
        (Question("GPU-10"), "there is no resource 'GPU-10', but a device: ask for =GPU-10"),
        (Question("fuse", "GPU"), "no device like 'GPU' of fuse on worker-3"),
        (Question(pod=Pod("ml", "on")), "no device on worker-3 is held by ml/on"),
    ],
)
def test_what_is_not_there_is_said(question: Question, words: str) -> None:
    with pytest.raises(NothingMatches) as caught:
        select(NODE, question)
    assert str(caught.value) == words


def test_a_short_name_that_two_resources_have_is_ambiguous() -> None:
    with pytest.raises(Ambiguous, match=r"'gpu' may be intel.com/gpu and nvidia.com/gpu: say which"):
        select(NODE, Question("gpu"))


def test_an_empty_node_is_an_answer_but_not_to_a_question() -> None:
    assert devices_of(select(document(), Question())) == []
    with pytest.raises(NothingMatches, match="there are none at all"):
        select(document(), Question("gpu"))


def test_what_was_copied_from_a_table_is_found() -> None:
    hostile = document(device("a\u202eb\x1b", holder("p\x9b", "n\u200b")))
    assert devices_of(select(hostile, Question("", "a\\u202eb\\x1b")))
    assert devices_of(select(hostile, Question(pod=Pod("n\\u200b", "p\\x9b"))))


def test_questions_are_read() -> None:
    assert parse_what("") == ("", "")
    assert parse_what("gpu") == ("gpu", "")
    assert parse_what("a/b=c=d") == ("a/b", "c=d")
    assert parse_what("=x") == ("", "x")
    assert parse_pod("ns/name") == Pod("ns", "name")
    for wrong in ("gpu=", "="):
        with pytest.raises(ValueError, match="expected RESOURCE or RESOURCE=DEVICE"):
            parse_what(wrong)
    for wrong in ("", "name", "/name", "ns/", "a/b/c"):
        with pytest.raises(ValueError, match="expected NAMESPACE/NAME"):
            parse_pod(wrong)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:10190", "http://127.0.0.1:10190"),
        ("http://node", "http://node:80"),
        ("https://node/", "https://node:443"),
        ("https://node:1/behind/a/proxy/", "https://node:1/behind/a/proxy"),
        ("http://[::1]:10190", "http://[::1]:10190"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:///run/x.sock", "unix:/run/x.sock"),
        ("unix:x.sock", "unix:x.sock"),
    ],
)
def test_addresses_are_read(text: str, shown: str) -> None:
    assert str(parse_address(text)) == shown


def test_a_password_is_sent_and_never_shown() -> None:
    address = parse_address("https://me:s%40cret@node:1")
    assert address.authorization == "Basic bWU6c0BjcmV0"
    assert "cret" not in str(address)
    assert "me" not in str(address)


@pytest.mark.parametrize(
    "text",
    [
        *("", "node:10190", "ftp://node", "http://", "http://:1", "http://node:port", "http://node:99999"),
        *("http://node/?q=1", "http://node/#x", "http://no de", "http://node/a b", "http://[::1", "unix:"),
        *("unix:" + "x" * 108, "unix:a\0b", "http://node/\x1b[2J"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^found "):
        parse_address(text)


def table(
    shown: Answer, pod: Pod | None = None, *, wide: bool = False, look: Look | None = None
) -> list[str]:
    out = StringIO()
    print_answer(shown, Question(pod=pod), wide=wide, out=out, look=look or Look())
    return out.getvalue().splitlines()


def test_the_table_has_a_row_for_each_holder_and_each_free_device() -> None:
    since = "2026-10-28T22:31:03.250Z"
    shown = document(
        device("GPU-1", holder("one", since=since), holder("two", since=since, exact=False)),
        device("GPU-2"),
        device("GPU-3", holder("three"), healthy=False),
        device("GPU-4", holder("four"), healthy=None),
    )
    assert table(shown) == [
        "RESOURCE        DEVICE  STATE      NAMESPACE/POD  CONTAINER  SINCE",
        "nvidia.com/gpu  GPU-1   held       ml/one         main       22:31:03Z (10 min)",
        "nvidia.com/gpu  GPU-1   held       ml/two         main       before 22:31:03Z (10 min)",
        "nvidia.com/gpu  GPU-2   free",
        "nvidia.com/gpu  GPU-3   unhealthy  ml/three       main",
        "nvidia.com/gpu  GPU-4   held       ml/four        main",
    ]
    assert len(table(shown, Pod("ml", "two"))) == 5, "of a shared device the pod's own row alone"


def test_the_wide_table_has_parent_numa_and_uid() -> None:
    entry = HolderEntry("ml", "one", "main", "uid-1", "2026-10-28T22:31:03.250Z", since_exact=True)
    lines = table(document(device("GPU-1::0", entry, parent="GPU-1")), wide=True)
    assert lines[0].split() == [
        *("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE", "PARENT", "NUMA", "UID"),
        *("WORKLOAD", "CLAIM", "REASON"),
    ]
    assert lines[1].split()[5:] == ["2026-10-28T22:31:03.250Z", "(10", "min)", "GPU-1", "0", "uid-1"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "colour"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "CLICOLOR": "0"}, False),
        ({"TERM": "dumb", "CLICOLOR_FORCE": "1"}, True),
        ({"TERM": "xterm", "CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colours_on_a_terminal_as_the_environment_wants(environment: dict[str, str], *, colour: bool) -> None:
    assert look(Terminal(), environment).colour is colour
    assert look(StringIO(), environment).colour is (colour and "CLICOLOR_FORCE" in environment)


def test_a_pipe_has_all_the_room_and_a_terminal_what_it_says() -> None:
    assert look(StringIO(), {"COLUMNS": "40"}).room is None
    assert look(Terminal(), {"COLUMNS": "40"}).room == 40
    for nonsense in ("", "0", "-3", "wide", "9" * 20):
        assert look(Terminal(), {"COLUMNS": nonsense}).room == 80


def test_the_unhealthy_stand_out_in_colour_and_the_text_is_the_same() -> None:
    shown = document(device("GPU-" + "x" * 50, holder("a-pod-with-a-long-name"), healthy=False))
    coloured = table(shown, look=Look(terminal=True, colour=True))
    assert "\x1b[1;31munhealthy\x1b[0m" in coloured[1]
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == table(shown)
    assert "GPU-" + "x" * 50 in table(shown)[1]


@pytest.mark.parametrize(
    ("exact", "wide", "words"),
    [
        (True, False, "22:31:03Z (10 min)"),
        (False, False, "before 22:31:03Z (10 min)"),
        (False, True, "before 2026-10-28T22:31:03.250Z (10 min)"),
    ],
)
def test_since_when_a_claimed_device_is_held_is_told_as_of_others(
    exact: bool,
    wide: bool,
    words: str,
) -> None:
    claimed = claim("gpu-7", since="2026-10-28T22:31:03.250Z", exact=exact)
    line = table(document(claims=(claimed,)), wide=wide)[1]
    assert re.split(r"  +", line)[5] == words
    assert "since" not in table(document(claims=(claim("gpu-7"),)), wide=wide)[1]


def test_claims_and_cpus_of_a_pod_are_rows_too() -> None:
    cpus = CpusEntry("ml", "one", "main", None, 2, (2, 3), (0,))
    shown = document(device("GPU-1", holder("one")), claims=(claim("gpu-7"),), cpus=(cpus,))
    assert [line.split()[:3] for line in table(shown)[1:]] == [
        ["nvidia.com/gpu", "GPU-1", "held"],
        ["gpu.example.com", "worker-3/gpu-7", "held"],
    ]
    pod = Pod("ml", "one")
    of_pod = select(shown, Question(pod=pod))
    assert table(of_pod, pod)[-1].split() == ["cpu", "2-3", "held", "ml/one", "main"]
    assert len(table(of_pod, pod)) == 4
    with pytest.raises(NothingMatches):
        select(shown, Question(pod=Pod("ml", "two")))


@pytest.mark.parametrize(
    ("question", "claimed"),
    [
        (Question("gpu.example.com"), ["gpu-7", "gpu-70"]),
        (Question("gpu.example.com", "gpu-7"), ["gpu-7"]),
        (Question("", "worker-3/gpu-70"), ["gpu-70"]),
        (Question("", "PU-7"), ["gpu-7", "gpu-70"]),
        (Question("nvidia.com/gpu"), []),
        (Question("cpu"), []),
    ],
)
def test_claimed_devices_are_found_by_driver_pool_and_name(question: Question, claimed: list[str]) -> None:
    cpus = CpusEntry("ml", "one", "main", None, 2, (2, 3), (0,))
    shown = document(device("GPU-1"), claims=(claim("gpu-7"), claim("gpu-70")), cpus=(cpus,))
    (told,) = select(shown, question).told
    assert [entry.device for entry in told.document.claims] == claimed
    assert bool(told.document.cpus) is (question.resource == "cpu")


def test_of_a_fleet_only_nodes_that_have_it_are_told_and_a_watcher_keeps_them_all() -> None:
    one = document(device("GPU-1"), node="a", labels={"cluster": "x"}).told[0]
    other = document(device("GPU-2"), node="a", labels={"cluster": "y"}).told[0]
    fleet = Answer((one, other), "Prometheus at x", fleet=True)
    asked = Question("", "GPU-2")
    assert [told.labels["cluster"] for told in select(fleet, asked).told] == ["y"]
    assert [len(told.document.devices) for told in narrow(fleet, asked).told] == [0, 1]
    assert narrow(fleet, Question("none")).told[0].document.devices == ()
    assert table(fleet)[0].split()[:3] == ["CLUSTER", "NODE", "RESOURCE"]
    with pytest.raises(NothingMatches, match="on any of 2 nodes"):
        select(fleet, Question("", "GPU-3"))


@pytest.mark.parametrize("name", CORPUS.values(), ids=CORPUS.keys())
def test_hostile_names_are_inert_and_fit_everywhere(name: str) -> None:
    entry = HolderEntry(name, name, name, name, name, since_exact=True)
    cpus = CpusEntry(name, name, name, None, 2, None)
    of_node = document(
        device(name, entry, resource=name, parent=name),
        claims=(
            ClaimEntry(
                name, name, name, name, (), (ClaimHolderEntry(name, name, name, name, name, name, name),)
            ),
        ),
        cpus=(cpus,),
        node=name,
        labels={"cluster": name},
    )
    pod = Pod(name, name)
    for shown in (of_node, replace(of_node, fleet=False)):
        for shape in (Look(), Look(terminal=True, colour=True, room=60), Look(terminal=True, room=300)):
            for wide in (False, True):
                for line in table(shown, pod, wide=wide, look=shape):
                    plain = re.sub(r"\x1b\[[0-9;]*m", "", line) if shape.colour else line
                    # What ends a text that is written from right to left is this command's own.
                    assert not any(is_hostile(c) for c in plain.replace("\u200e", ""))
                    assert wide or shape.room is None or width(plain.replace("\u200e", "")) <= shape.room
        text = as_json(document_of(shown)).replace("\n", "")
        assert text.isascii()
        assert text.isprintable()


@given(st.text(max_size=200), st.text(max_size=50), st.sampled_from([None, True, False]))
def test_nothing_from_outside_reaches_a_terminal_as_it_is(name: str, pod: str, healthy: bool | None) -> None:
    entry = HolderEntry(pod, name, pod, name, name, since_exact=True)
    shown = document(device(name, entry, resource=pod, parent=name, healthy=healthy))
    for wide in (False, True):
        for cells in rows(shown, Question(), wide=wide):
            assert not any(is_hostile(c) for cell in cells for c in cell.text)
        assert not any(is_hostile(c) for c in "".join(table(shown, wide=wide)))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_json_is_ascii_and_says_the_same(name: str) -> None:
    text = as_json(document_of(document(device(name, holder(name)))))
    assert text.replace("\n", "").isascii()
    assert text.replace("\n", "").isprintable()
    (entry,) = json.loads(text)["devices"]
    assert (entry["device"], entry["holders"][0]["pod"]) == (name, name)


def test_markup_of_the_table_s_library_is_text() -> None:
    assert "[red]x[/red] :smile:" in table(document(device("[red]x[/red] :smile:")))[1]
