"""exporter.cli.table: rows, tables for terminals and pipes, and nothing hostile in them."""

import json
import re
import sys
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace
from rich.cells import cell_len

from exporter.cli.common import NoMatchError, OutputFlags, as_json, warn_unless_fresh
from exporter.cli.select import CpusEntry, HolderQuery, MappingAnswer, NamespacedPod, select
from exporter.cli.table import Cell, anomalies_table, holders_table, print_table
from exporter.cli.terminal import LEFT_OUT_FIRST, LEFT_OUT_LAST, fitted
from exporter.views.schema import (
    AnomaliesDocument,
    AnomalyEntry,
    AnomalyHolderEntry,
    ClaimedEntry,
    DeviceEntry,
    HolderEntry,
    PluginEntry,
    PodName,
    TaintEntry,
    ThroughEntry,
)
from harness.hostile import CORPUS, LONG
from harness.mappings import claimed, device, holder, mapping
from harness.scene import GPU
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
    **flags: Any,
) -> list[str]:
    """The lines of the table, without the counts after it."""
    lines = output(shown, pod, wide=wide, out=out, **flags)
    return lines[: lines.index("")]


def output(
    shown: MappingAnswer,
    pod: NamespacedPod | None = None,
    *,
    wide: bool = False,
    out: StringIO | None = None,
    **flags: Any,
) -> list[str]:
    out = StringIO() if out is None else out
    given = OutputFlags(output="wide" if wide else "table", **flags)
    found = holders_table(shown, HolderQuery(pod=pod), wide=wide, sort_by=given.sort_by)
    print_table(found, out, given)
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


def test_a_holder_whose_physical_device_is_not_provable_is_marked() -> None:
    shown = mapping(device("GPU-1", structs.replace(holder("one"), provable=False)))
    assert [re.split(" {2,}", line)[2] for line in table(shown)[1:]] == ["held, not provable"]


def test_an_unconfirmed_holder_is_marked() -> None:
    missing = structs.replace(holder("one"), confirmed=False)
    shown = mapping(
        device("GPU-1", missing), device("GPU-2", missing, healthy=False), device("GPU-3", holder("two"))
    )
    assert [re.split(" {2,}", line)[1:4] for line in table(shown)[1:]] == [
        ["GPU-1", "held, unconfirmed", "ml/one"],
        ["GPU-2", "unhealthy, unconfirmed", "ml/one"],
        ["GPU-3", "held", "ml/two"],
    ]


def test_the_wide_table_has_parent_numa_and_uid() -> None:
    entry = HolderEntry("ml", "one", "main", "uid-1", "2026-10-28T22:31:03.250Z", since_exact=True)
    lines = table(mapping(device("GPU-1::0", entry, parent="GPU-1")), wide=True)
    assert lines[0].split() == [
        *("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE", "PARENT", "NUMA", "UID"),
        *("WORKLOAD", "CLAIM", "REQUESTED", "AS", "REASON"),
    ]
    assert lines[1].split()[5:] == ["2026-10-28T22:31:03.250Z", "(10", "min)", "GPU-1", "0", "uid-1"]


def test_the_reason_of_a_device_that_is_no_longer_offered() -> None:
    at = "2026-10-28T22:31:03.250Z"
    gone = structs.replace(device("GPU-1", healthy=False), no_longer_offered_since=at)
    (node,) = mapping(gone, device("GPU-2", healthy=False)).nodes
    anomaly = AnomalyEntry("no_longer_offered", "nvidia.com/gpu", None, None, "…")
    node = structs.replace(node, anomalies=(anomaly,))
    first, second = table(MappingAnswer((node,), "x", fleet=False), wide=True)[1:]
    assert "unhealthy" in first
    assert first.endswith("no longer offered since 22:31:03Z")
    assert "no_longer_offered" not in second, "it is an anomaly of other devices"


@pytest.mark.parametrize("wide", [False, True])
def test_a_very_long_id_is_shortened_in_the_middle_and_whole_in_json(*, wide: bool) -> None:
    shown = mapping(
        device(f"{LONG}::0", holder("one"), parent=LONG),
        device("GPU-1"),
        claimed(f"{LONG}-7", holder("two"), pool="shelf"),
    )
    lines = table(shown, wide=wide)
    assert max(map(len, lines)) < 600
    assert all(shortened(name) in lines[at] for at, name in ((1, f"{LONG}::0"), (3, f"shelf/{LONG}-7")))
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


POD = "ml/llama-70b-pretraining-0"
POD_COLUMN = "NAMESPACE/POD"
NARROW = {
    # Short forms first, then CONTAINER and SINCE go.
    150: "gpu GPU-8d1c2a90-4d3e-4b8a-9a55-0e6b8f1d2c01 unhealthy POD main 10 min XID 79: the GPU has gone",
    112: "gpu GPU-8d1c2a90-4d3e-4b8a-9a55-0e6b8f1d2c01 unhealthy POD XID 79: the GPU has",
    # The middle of ids, RESOURCE, REASON and STATE.
    90: "gpu GPU-8d1c2a90…1d2c01 unhealthy POD XID 79: the GPU has",
    80: "GPU-8d1c2a90…1d2c01 unhealthy POD XID 79: the GPU has",
    60: "GPU-8d1c2a90-…f1d2c01 unhealthy POD",
    50: "GPU-8d1c2a90-4…f1d2c01 POD",
    40: "GPU-8d1…2c01 POD",
}
"""The row of an unhealthy device by the width of the terminal."""


def unhealthy(name: str, *holders: HolderEntry, reason: str | None = None) -> DeviceEntry:
    plugin = PluginEntry("unix:/p", True, "Unhealthy", reason, None, {}, None)
    return structs.replace(device(name, *holders, healthy=False), plugin=plugin)


@pytest.mark.parametrize("columns_of_terminal", [24, *NARROW, 300])
def test_a_narrow_terminal_loses_columns_but_no_part_of_a_pod_s_name(
    setenv: Callable[..., None], columns_of_terminal: int
) -> None:
    setenv(COLUMNS=str(columns_of_terminal), NO_COLOR="1")
    ids = [f"GPU-8d1c2a90-4d3e-4b8a-9a55-0e6b8f1d2c0{i}" for i in range(3)]
    who = holder("llama-70b-pretraining-0", since="2026-10-28T22:31:03.250Z")
    shown = mapping(
        device(ids[0], who), unhealthy(ids[1], who, reason="XID 79: the GPU has gone"), device(ids[2])
    )
    lines = table(shown, out=Terminal())
    assert max(map(cell_len, lines)) <= columns_of_terminal
    row = next((line for line in lines if line.split()[0].endswith("01") or "01 " in line), "")
    if columns_of_terminal in NARROW:
        assert row.split() == NARROW[columns_of_terminal].replace("POD", POD).split()
        assert sum(POD in line for line in lines) == 2
    wide = table(shown, wide=True, out=Terminal())
    assert all(any(name in line for line in wide) for name in ids)


LEFT_OUT = (*LEFT_OUT_FIRST, *LEFT_OUT_LAST)
COLUMNS = ("KIND", "RESOURCE", "DEVICE", "STATE", POD_COLUMN, "CONTAINER", "SINCE", "FROM", "TO", "REASON")


@given(
    widths=st.lists(st.integers(1, 90), min_size=len(COLUMNS), max_size=len(COLUMNS)),
    chosen=st.sets(st.sampled_from(COLUMNS)),
    width=st.integers(12, 300),
)
def test_a_table_fits_every_terminal_and_keeps_ids_and_pods(
    widths: list[int], chosen: set[str], width: int
) -> None:
    names = [name for name in COLUMNS if name in chosen | {"DEVICE", POD_COLUMN}]
    natural: dict[str, int] = dict(zip(COLUMNS, widths, strict=True))
    kept = {names[i]: columns for i, columns in fitted(names, [natural[n] for n in names], width).items()}
    assert sum(kept.values()) + 2 * (len(kept) - 1) <= width
    assert all(columns <= natural[name] for name, columns in kept.items())
    assert kept["DEVICE"] >= 1
    if natural[POD_COLUMN] + 2 + 8 <= width:
        assert kept[POD_COLUMN] == natural[POD_COLUMN]
    # A column goes only after those that are needed less.
    gone = [name for name in LEFT_OUT if name in names and name not in kept]
    assert gone == [name for name in LEFT_OUT if name in names][: len(gone)]


def test_the_longest_name_of_a_pod_is_whole(setenv: Callable[..., None]) -> None:
    setenv(COLUMNS="400", NO_COLOR="1")
    namespace, name = "n" * 63, "p" * 253
    shown = mapping(device("GPU-0" * 12, holder(name, namespace)))
    assert f"{namespace}/{name}" in table(shown, out=Terminal())[1]


def test_an_unhealthy_device_has_its_reason_and_a_healthy_node_no_column_for_it() -> None:
    well = mapping(device("GPU-0", holder("one")))
    assert "REASON" not in table(well)[0]
    ill = mapping(device("GPU-0", holder("one")), unhealthy("GPU-1", reason="XID 79\x1b[2J" + "x" * 200))
    lines = table(ill)
    assert lines[0].endswith("SINCE  REASON")
    reason = lines[2].split("unhealthy")[1].strip()
    assert reason.startswith("XID 79\\x1b[2Jxxx")
    assert len(reason) == 80
    assert table(ill, wide=True)[2].endswith("x" * 200)
    assert table(mapping(unhealthy("GPU-1")))[1].endswith("its plugin gives no reason")


COUNTS = {
    "5 devices: 3 held (1 of them unhealthy), 1 free, 1 unavailable": mapping(
        device("0", holder("one"), holder("two")),
        device("1", holder("one"), healthy=False),
        device("2"),
        device("3", healthy=False),
        claimed("gpu-7", holder("one")),
    ),
    "3 devices: 1 held, 1 free, 1 unknown": mapping(
        device("0", holder("one")), device("1"), device("2", healthy=None)
    ),
    "1 device: 1 held, free ones unknown": mapping(device("0", holder("one"), healthy=None)),
    "2 devices: 2 held, free ones unknown": mapping(
        claimed("0", holder("one"), free=None), claimed("1", holder("one"), free=None, healthy=True)
    ),
    "1 device: 1 held": mapping(claimed("0", holder("one"))),
    # Alternatives are partitions of one physical device: they are never summed.
    "4 devices: 1 held, 1 free, 2 unavailable, 1 alternative": mapping(
        claimed("0", holder("one")),
        claimed("1"),
        claimed("2", free=False, alternative=True),
        claimed("3", free=False),
        claimed("4", free=False, healthy=False),
    ),
}


@pytest.mark.parametrize("counts", COUNTS)
def test_the_last_line_counts_each_device_once(counts: str) -> None:
    assert output(COUNTS[counts])[-2:] == ["", counts]


def test_a_device_of_unknown_health_is_not_shown_as_free() -> None:
    assert table(mapping(device("0", healthy=None)))[1].split() == ["nvidia.com/gpu", "0", "unknown"]


@pytest.mark.parametrize("out", [StringIO, Terminal])
def test_without_headers_there_are_rows_alone(setenv: Callable[..., None], out: type[StringIO]) -> None:
    setenv(NO_COLOR="1", COLUMNS="100")
    shown = mapping(device("GPU-0", holder("one")), device("GPU-1"))
    assert output(shown, out=out(), no_headers=True) == [
        "nvidia.com/gpu  GPU-0  held  ml/one  main",
        "nvidia.com/gpu  GPU-1  free",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_warning_of_a_stale_mapping_is_on_a_terminal_once(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    (node,) = mapping(device("0")).nodes
    out, err = Terminal(), Terminal() if terminal else StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert warn_unless_fresh(structs.replace(node, freshness="stale"), OutputFlags())
    assert out.getvalue().startswith("Warning: the mapping of worker-3 is stale, 2 s old")
    assert (err.getvalue() == "") is terminal


@pytest.mark.parametrize(
    ("sort_by", "order"),
    [
        (None, ["gpu-2", "gpu-10", "gpu-1", "gpu-3"]),
        ("device", ["gpu-1", "gpu-2", "gpu-3", "gpu-10"]),
        # Without a pod or a start: last.
        ("pod", ["gpu-1", "gpu-10", "gpu-2", "gpu-3"]),
        ("since", ["gpu-2", "gpu-1", "gpu-10", "gpu-3"]),
    ],
)
def test_rows_are_sorted(sort_by: str | None, order: list[str]) -> None:
    early, late = "2026-10-28T20:00:00Z", "2026-10-28T22:00:00Z"
    shown = mapping(
        device("gpu-2", holder("b", since=early)),
        device("gpu-10", holder("a", "ml")),
        device("gpu-1", holder("z", "a", since=late)),
        device("gpu-3"),
    )
    assert [line.split()[1] for line in table(shown, sort_by=sort_by)[1:]] == order


def test_anomalies_are_a_table() -> None:
    one = AnomalyHolderEntry("ml", "one", "main", "uid-1")
    found = AnomaliesDocument(
        node="worker-3",
        generation=7,
        taken_at="2026-10-28T22:41:03.250Z",
        age_seconds=2.0,
        freshness="fresh",
        error=None,
        anomalies=(
            AnomalyEntry(
                *("plugin_gone", "nvidia.com/gpu", None, None, "none\x1b[2J"),
                devices=("GPU-1", "GPU-2"),
                pods=(PodName("ml", "b"), PodName("ml", "c"), PodName("ml", "d")),
            ),
            AnomalyEntry(
                *("unhealthy_held", "nvidia.com/gpu", "GPU-0", one, "not allocatable"),
                since="2026-10-28T22:31:03.250Z",
            ),
        ),
    )
    out = StringIO()
    print_table(anomalies_table(found, sort_by="since"), out, OutputFlags())
    assert [re.split(r"  +", line) for line in out.getvalue().splitlines()] == [
        ["KIND", "RESOURCE", "DEVICE", "NAMESPACE/POD", "SINCE", "EVIDENCE"],
        ["unhealthy_held", GPU, "GPU-0", "ml/one", "22:31:03Z (10 min)", "not allocatable"],
        ["plugin_gone", GPU, "GPU-1 and 1 more", "ml/b and 2 more", "none\\x1b[2J"],
        [""],
        ["2 anomalies: 1 plugin_gone, 1 unhealthy_held"],
    ]
    (row, _) = anomalies_table(found, wide=True, sort_by="since").rows
    assert [cell.text for cell in row][5:8] == ["main", "uid-1", ""]


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
    device = claimed("gpu-7", holder("one", since="2026-10-28T22:31:03.250Z", exact=exact))
    assert re.split(r"  +", table(mapping(device), wide=wide)[1])[5] == words
    assert "since" not in table(mapping(claimed("gpu-7", holder("one"))), wide=wide)[1]


def test_claimed_devices_are_devices_with_their_states() -> None:
    taint = TaintEntry("x.example/xid", "79", "NoExecute", None)
    shown = mapping(
        claimed("gpu-0", holder("one")),
        claimed("gpu-1"),
        claimed("gpu-2", healthy=False, free=False, taints=(taint,)),
        claimed("gpu-3", pool="shelf", free=False, alternative=True),
        claimed("gpu-4", free=False),
        claimed("gpu-5", free=None),
        claimed("gpu-6", holder("two"), healthy=False),
    )
    assert [re.split(r"  +", line) for line in table(shown)[1:]] == [
        ["gpu.example.com", "gpu-0", "held", "ml/one", "main"],
        ["gpu.example.com", "gpu-1", "free"],
        ["gpu.example.com", "gpu-2", "unhealthy", "x.example/xid=79:NoExecute"],
        ["gpu.example.com", "shelf/gpu-3", "alternative"],
        ["gpu.example.com", "gpu-4", "reserved"],
        ["gpu.example.com", "gpu-5", "unknown"],
        ["gpu.example.com", "gpu-6", "unhealthy", "ml/two", "main"],
    ]


def test_the_wide_table_has_the_claims_of_each_holder_and_what_it_asked_by() -> None:
    admin = ThroughEntry("ml", "one", "main", "obs", "all", None, "r", "big", admin=True)
    asking = holder("one", requested_as="nvidia.com/gpu")
    shown = mapping(
        claimed("gpu-7", asking, holder("two"), share="s-1", admin=(admin,)),
        claimed("gpu-8"),
        device("GPU-1", asking),
    )
    found = holders_table(shown, HolderQuery(), wide=True)
    columns = [found.names.index(name) for name in ("NAMESPACE/POD", "CLAIM", "REQUESTED AS")]
    assert [[row[column].text for column in columns] for row in found.rows] == [
        ["ml/one", "ml/wish (s-1)", "nvidia.com/gpu"],
        ["ml/two", "ml/wish (s-1)", ""],
        ["", "", ""],
        # The resource says it already.
        ["ml/one", "", ""],
    ]


def test_a_device_of_prometheus_that_is_not_free_is_unavailable() -> None:
    entry = structs.replace(device("gpu-1", healthy=None), free=False)
    assert table(mapping(entry))[1].split() == ["nvidia.com/gpu", "gpu-1", "unavailable"]


def test_claims_and_cpus_of_a_pod_are_rows_too() -> None:
    cpus = CpusEntry("ml", "one", "main", None, 2, (2, 3), (0,))
    shown = mapping(device("GPU-1", holder("one")), claimed("gpu-7", holder("one")), cpus=(cpus,))
    assert [line.split()[:3] for line in table(shown)[1:]] == [
        ["nvidia.com/gpu", "GPU-1", "held"],
        ["gpu.example.com", "gpu-7", "held"],
    ]
    pod = NamespacedPod("ml", "one")
    of_pod = select(shown, HolderQuery(pod=pod))
    assert table(of_pod, pod)[-1].split() == ["cpu", "2-3", "held", "ml/one", "main"]
    assert len(table(of_pod, pod)) == 4
    with pytest.raises(NoMatchError):
        select(shown, HolderQuery(pod=NamespacedPod("ml", "two")))


@pytest.mark.parametrize("name", CORPUS.values(), ids=CORPUS.keys())
def test_hostile_names_are_inert_everywhere(setenv: Callable[..., None], name: str) -> None:
    entry = HolderEntry(name, name, name, name, name, since_exact=True, requested_as=f"{name}!")
    through = ThroughEntry(name, name, name, name, name, name, name, name, admin=None)
    taint = TaintEntry(name, name, name, name)
    facts = ClaimedEntry(
        *(name, name, name, (name,), {name: name}, {name: name}, (taint,)),
        shareable=None,
        alternative=False,
        through=(through,),
    )
    fleet = mapping(
        structs.replace(device(name, entry, resource=name, parent=name, healthy=False), claimed=facts),
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
