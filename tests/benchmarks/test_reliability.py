"""docs/reliability.md as it is made of rows."""

import json
from pathlib import Path
from typing import Any

from benchmarks import reliability

COUNTED = {"descriptors": 20, "threads": 8, "tasks": 11, "memory": 60.5}
ROW: dict[str, Any] = {
    "name": "hang",
    "group": "The kubelet",
    "what": "It hangs",
    "holds": "The mapping | is kept",
    "times": 20,
    "seconds": 300.0,
    "scrapes": 100,
    "documents": 90,
    "owners": 1234,
    "wrong": 0,
    "late": 2,
    "missing": 1,
    "unlabelled": 2,
    "fallen": 3,
    "withdrawn": 7,
    "unanswered": 4,
    "changes": 50,
    "recover": [0.5, 0.1, 2.25],
    "before": {"exporter": COUNTED, "plugin": COUNTED},
    "after": {"exporter": COUNTED | {"memory": 61.0}, "plugin": COUNTED},
    "leaks": [],
    "problems": [],
    "figures": {"calls a second": 12.5},
}


def _written(directory: Path, **rows: Any) -> str:
    for name, row in rows.items():
        (directory / f"{name}.json").write_text(json.dumps(row))
    document = directory / "reliability.md"
    reliability.main(directory, document)
    return document.read_text()


def test_a_fault_is_a_line_of_its_groups_table(tmp_path: Path) -> None:
    text = _written(tmp_path, hang=ROW)
    assert "| It hangs; calls a second: 12.5 | 20 | 0 | 10 | 0.50, 2.25 |" in text
    assert "20 faults of 1 kinds, 190 answers compared, 1234 owners named: 0 wrong, 10 missing. 2 had" in text


def test_what_leaked_is_in_its_line(tmp_path: Path) -> None:
    assert "**exporter: tasks 3 to 9**" in _written(
        tmp_path, hang=ROW | {"leaks": ["exporter: tasks 3 to 9"]}
    )


def test_groups_follow_one_another_as_they_are_meant_to(tmp_path: Path) -> None:
    rows = {
        name: ROW | {"name": name, "group": group}
        for name, group in (("a", "Clients"), ("b", "New"), ("c", "The kubelet"))
    }
    text = _written(tmp_path, **rows)
    assert text.index("### The kubelet") < text.index("### Clients") < text.index("### New")


def test_the_soak_leaves_the_faults_section_alone(tmp_path: Path) -> None:
    assert "It hangs" in _written(tmp_path, hang=ROW)
    (tmp_path / "hang.json").unlink()
    figures = {"pods": 4000, "scrape, median, ms": ["0.3", "0.4"]}
    growth = {"refreshes": 10000, "compared": {"exporter, memory, MiB": ["60", "61"]}}
    text = _written(tmp_path, soak=ROW | {"name": "soak", "figures": figures}, growth=growth)
    assert "It hangs" in text
    assert "4000 pods" in text
    assert "| scrape, median, ms | 0.3 | 0.4 |" in text
    assert "| exporter, memory, MiB | 60.5 | 61.0 |" in text
    assert "| exporter, memory, MiB | 60 | 61 |" in text
