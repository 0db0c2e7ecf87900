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


def test_a_group_of_faults_is_a_line(tmp_path: Path) -> None:
    text = _written(tmp_path, hang=ROW, slow=ROW | {"times": 5, "recover": [3.0]})
    assert "a used-up rate limit | 2 | 25 | 0 | 20 | 3.0 |" in text
    assert "25 faults of 2 kinds, 380 answers compared, 2468 owners named: 0 wrong, 20 missing. 4 had" in text
    assert "Left behind" not in text


def test_what_leaked_is_below_the_table(tmp_path: Path) -> None:
    text = _written(tmp_path, hang=ROW | {"leaks": ["exporter: tasks 3 to 9"], "recover": []})
    assert "| never |" in text
    assert "- It hangs: exporter: tasks 3 to 9" in text


def test_groups_of_faults_have_an_order(tmp_path: Path) -> None:
    rows = {
        name: ROW | {"name": name, "group": group}
        for name, group in (("a", "Clients"), ("b", "New"), ("c", "The kubelet"))
    }
    text = _written(tmp_path, **rows)
    assert text.index("| The kubelet") < text.index("| Clients") < text.index("| New")


def test_the_soak_leaves_the_faults_section_alone(tmp_path: Path) -> None:
    assert "a used-up rate limit | 1 |" in _written(tmp_path, hang=ROW)
    (tmp_path / "hang.json").unlink()
    figures = {"pods": 4000, "scrape, median, ms": ["0.3", "0.4"]}
    growth = {"refreshes": 10000, "compared": {"exporter, memory, MiB": ["60", "61"]}}
    text = _written(tmp_path, soak=ROW | {"name": "soak", "figures": figures}, growth=growth)
    assert "a used-up rate limit | 1 |" in text
    assert "4000 pods" in text
    assert "| scrape, median, ms | 0.3 | 0.4 |" in text
    assert "| memory, MiB | 60.5 → 61.0 | 60.5 → 60.5 |" in text
    assert "|  | exporter |\n| --- | --- |\n| memory, MiB | 60 → 61 |" in text
