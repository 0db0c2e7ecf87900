"""exporter.who: what is asked for, where, and how it is shown. All of it pure."""

import json
import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.text import is_hostile
from exporter.core.address import parse_address
from exporter.web.api.schema import DeviceEntry, DevicesDocument, HolderEntry
from exporter.who.select import (
    Ambiguous,
    NothingMatches,
    Pod,
    Question,
    parse_pod,
    parse_what,
    select,
)
from exporter.who.show import as_json, print_table, rows


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


def document(*devices: DeviceEntry) -> DevicesDocument:
    return DevicesDocument(
        node="worker-3",
        generation=7,
        taken_at="2026-10-28T22:41:03.250Z",
        age_seconds=2.0,
        freshness="fresh",
        error=None,
        devices=devices,
    )


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
    assert [d.device for d in select(NODE, question)] == found


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
    assert select(document(), Question()) == ()
    with pytest.raises(NothingMatches, match="there are none at all"):
        select(document(), Question("gpu"))


def test_what_was_copied_from_a_table_is_found() -> None:
    hostile = document(device("a\u202eb\x1b", holder("p\x9b", "n\u200b")))
    assert select(hostile, Question("", "a\\u202eb\\x1b"))
    assert select(hostile, Question(pod=Pod("n\\u200b", "p\\x9b")))


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


def table(shown: DevicesDocument, pod: Pod | None = None, *, wide: bool = False) -> list[str]:
    out = StringIO()
    print_table(shown, pod, wide=wide, out=out)
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
        *("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE", "PARENT", "NUMA", "UID")
    ]
    assert lines[1].split()[5:] == ["2026-10-28T22:31:03.250Z", "(10", "min)", "GPU-1", "0", "uid-1"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal_and_ids_whole_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    shown = document(device("GPU-" + "x" * 50, holder("a-pod-with-a-long-name"), healthy=False))
    out = Terminal()
    print_table(shown, None, wide=False, out=out)
    assert "\x1b[" in out.getvalue()
    plain = "".join(table(shown))
    assert "\x1b" not in plain
    assert "GPU-" + "x" * 50 in plain
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert [line.split() for line in lines] == [line.split() for line in table(shown)]


@given(st.text(max_size=200), st.text(max_size=50), st.sampled_from([None, True, False]))
def test_nothing_from_outside_reaches_a_terminal_as_it_is(name: str, pod: str, healthy: bool | None) -> None:
    entry = HolderEntry(pod, name, pod, name, name, since_exact=True)
    shown = document(device(name, entry, resource=pod, parent=name, healthy=healthy))
    for wide in (False, True):
        for cells in rows(shown, None, wide=wide):
            assert not any(is_hostile(c) for cell in cells for c in cell)
        assert not any(is_hostile(c) for c in "".join(table(shown, wide=wide)))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_json_is_ascii_and_says_the_same(name: str) -> None:
    text = as_json(document(device(name, holder(name))))
    assert text.replace("\n", "").isascii()
    assert text.replace("\n", "").isprintable()
    (entry,) = json.loads(text)["devices"]
    assert (entry["device"], entry["holders"][0]["pod"]) == (name, name)


def test_markup_of_the_table_s_library_is_text() -> None:
    assert "[red]x[/red] :smile:" in table(document(device("[red]x[/red] :smile:")))[1]
