"""exporter.cli.table: rows, tables for terminals and pipes, and nothing hostile in them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest
from rich.cells import cell_len

from exporter.cli.common import NoMatchError, as_json
from exporter.cli.select import CpusEntry, HolderQuery, MappingAnswer, NamespacedPod, select
from exporter.cli.table import Cell, columns, print_table, rows
from exporter.views.schema import ClaimEntry, ClaimHolderEntry, HolderEntry
from harness.hostile import CORPUS, LONG
from harness.mappings import claim, device, holder, mapping
from runtime.text import is_hostile, shortened


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def _plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def table(
    shown: MappingAnswer,
    pod: NamespacedPod | None = None,
    *,
    wide: bool = False,
    out: StringIO | None = None,
) -> list[str]:
    out = StringIO() if out is None else out
    cells = rows(shown, HolderQuery(pod=pod), wide=wide)
    print_table(columns(shown, wide=wide), cells, out, unlimited=wide)
    return out.getvalue().splitlines()


def test_the_table_has_a_row_for_each_holder_and_each_free_device() -> None:
    since = "2026-10-28T22:31:03.250Z"
    shown = mapping(
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
    assert len(table(shown, NamespacedPod("ml", "two"))) == 5, "of a shared device the pod's own row alone"


def test_the_wide_table_has_parent_numa_and_uid() -> None:
    entry = HolderEntry("ml", "one", "main", "uid-1", "2026-10-28T22:31:03.250Z", since_exact=True)
    lines = table(mapping(device("GPU-1::0", entry, parent="GPU-1")), wide=True)
    assert lines[0].split() == [
        *("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE", "PARENT", "NUMA", "UID"),
        *("WORKLOAD", "CLAIM", "REASON"),
    ]
    assert lines[1].split()[5:] == ["2026-10-28T22:31:03.250Z", "(10", "min)", "GPU-1", "0", "uid-1"]


@pytest.mark.parametrize("wide", [False, True])
def test_a_very_long_id_is_shortened_in_the_middle_and_whole_in_json(*, wide: bool) -> None:
    shown = mapping(
        device(f"{LONG}::0", holder("one"), parent=LONG),
        device("GPU-1"),
        claims=(claim(f"{LONG}-7"),),
    )
    lines = table(shown, wide=wide)
    assert max(map(len, lines)) < 600
    assert all(shortened(name) in lines[at] for at, name in ((1, f"{LONG}::0"), (3, f"worker-3/{LONG}-7")))
    assert "::0  held" in lines[1]
    assert LONG in as_json(shown.nodes[0])


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the variables that decide about colours and width."""
    for name in ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def setenv(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return setenv


@pytest.mark.parametrize(
    ("settings", "colour"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"CLICOLOR": "0"}, False),
        ({"TERM": "dumb", "CLICOLOR_FORCE": "1"}, True),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_the_environment_decides_about_colours(
    setenv: Callable[..., None], settings: dict[str, str], *, colour: bool
) -> None:
    setenv(**settings)
    shown = mapping(device("GPU-0", holder("one"), healthy=False))
    coloured, piped = table(shown, out=Terminal()), table(shown)
    assert ("\x1b[1;31munhealthy\x1b[0m" in coloured[1]) is colour
    assert ("\x1b[1;31m" in piped[1]) is (colour and "CLICOLOR_FORCE" in settings)
    assert [_plain(line).split() for line in coloured] == [_plain(line).split() for line in piped]


@pytest.mark.parametrize("columns_of_terminal", [24, 40, 60, 70, 80, 100, 132, 300])
def test_a_terminal_shows_every_text_whole_within_its_width(
    setenv: Callable[..., None], columns_of_terminal: int
) -> None:
    setenv(COLUMNS=str(columns_of_terminal), NO_COLOR="1")
    ids = [f"GPU-8d1c2a90-4d3e-4b8a-9a55-0e6b8f1d2c{i:02x}" for i in range(8)]
    shown = mapping(*(device(name, holder("llama-70b-pretraining-0"), healthy=False) for name in ids))
    lines = table(shown, out=Terminal())
    assert max(map(cell_len, lines)) <= columns_of_terminal
    if columns_of_terminal >= 70:
        at, to = lines[0].index("DEVICE"), lines[0].index("STATE")
        assert "".join(line[at:to].rstrip() for line in lines[1:]) == "".join(ids)
    wide = table(shown, wide=True, out=Terminal())
    assert all(any(name in line for line in wide) for name in ids)


def test_a_table_that_does_not_fit_uses_short_forms(setenv: Callable[..., None]) -> None:
    since = "2026-10-28T22:31:03.250Z"
    shown = mapping(device("GPU-" + "x" * 30, holder("one", since=since)))
    setenv(COLUMNS="90", NO_COLOR="1")
    assert table(shown, out=Terminal())[1].split() == [
        "gpu",
        "GPU-" + "x" * 30,
        "held",
        "ml/one",
        "main",
        "10",
        "min",
    ]
    setenv(COLUMNS="200")
    assert "nvidia.com/gpu" in table(shown, out=Terminal())[1]


@pytest.mark.parametrize(
    ("exact", "wide", "words"),
    [
        (True, False, "22:31:03Z (10 min)"),
        (False, False, "before 22:31:03Z (10 min)"),
        (False, True, "before 2026-10-28T22:31:03.250Z (10 min)"),
    ],
)
def test_the_start_of_a_claimed_device_is_shown_as_of_others(
    exact: bool,
    wide: bool,
    words: str,
) -> None:
    claimed = claim("gpu-7", since="2026-10-28T22:31:03.250Z", exact=exact)
    line = table(mapping(claims=(claimed,)), wide=wide)[1]
    assert re.split(r"  +", line)[5] == words
    assert "since" not in table(mapping(claims=(claim("gpu-7"),)), wide=wide)[1]


def test_claims_and_cpus_of_a_pod_are_rows_too() -> None:
    cpus = CpusEntry("ml", "one", "main", None, 2, (2, 3), (0,))
    shown = mapping(device("GPU-1", holder("one")), claims=(claim("gpu-7"),), cpus=(cpus,))
    assert [line.split()[:3] for line in table(shown)[1:]] == [
        ["nvidia.com/gpu", "GPU-1", "held"],
        ["gpu.example.com", "worker-3/gpu-7", "held"],
    ]
    pod = NamespacedPod("ml", "one")
    of_pod = select(shown, HolderQuery(pod=pod))
    assert table(of_pod, pod)[-1].split() == ["cpu", "2-3", "held", "ml/one", "main"]
    assert len(table(of_pod, pod)) == 4
    with pytest.raises(NoMatchError):
        select(shown, HolderQuery(pod=NamespacedPod("ml", "two")))


@pytest.mark.parametrize("name", CORPUS.values(), ids=CORPUS.keys())
def test_hostile_names_are_inert_everywhere(setenv: Callable[..., None], name: str) -> None:
    entry = HolderEntry(name, name, name, name, name, since_exact=True)
    claimed = ClaimHolderEntry(name, name, name, name, name, name, name)
    fleet = mapping(
        device(name, entry, resource=name, parent=name),
        claims=(ClaimEntry(name, name, name, name, (), (claimed,)),),
        cpus=(CpusEntry(name, name, name, None, 2, None),),
        node=name,
        labels={"cluster": name},
    )
    one = replace(fleet, fleet=False)
    setenv(COLUMNS="60", CLICOLOR="0")
    for shown, wide, out in ((fleet, False, Terminal()), (fleet, True, StringIO()), (one, True, Terminal())):
        lines = table(shown, NamespacedPod(name, name), wide=wide, out=out)
        assert not any(is_hostile(character) for line in lines for character in line)
        assert wide or max(map(cell_len, lines)) <= 60
    text = as_json(one.document).replace("\n", "")
    assert text.isascii()
    assert text.isprintable()
    (entry,) = json.loads(text)["devices"]
    assert (entry["device"], entry["holders"][0]["pod"]) == (name, name)


def test_stacked_marks_do_not_reach_other_lines() -> None:
    assert Cell.raw(CORPUS["combining"]).text.count("\u0300") <= 3
    assert "\\U00000300" in Cell.raw(CORPUS["combining"]).text


def test_markup_of_the_table_s_library_is_text() -> None:
    assert "[red]x[/red] :smile:" in table(mapping(device("[red]x[/red] :smile:")))[1]
