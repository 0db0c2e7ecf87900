"""The key figures of docs/benchmarks.md."""

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.report import Figure, write_section

ALLOCATION = "allocation to the first scrape that shows it"
RARE = "the same, 99th percentile"
SECTION = "Allocate to /metrics"


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "benchmarks.md"
    path.write_text(
        f"# Old\n\n## Figures\n\n| {ALLOCATION} | 1 ms | | | |\n| exporter, CPU at rest | 0.4 % | | | |\n"
    )
    monkeypatch.setattr(report, "DOCUMENT", path)
    monkeypatch.setattr(report, "OUTPUT", tmp_path / "bench")
    return path


def test_a_section_renews_its_own_key_figures(document: Path) -> None:
    samples, floor = [10.0, 12.0, 30.0], [6.0]
    figures = [
        Figure("allocation", samples, "ms", floor),
        Figure("allocation: p99", [30.0], "ms", aim="at most 50 ms"),
        *(
            Figure(f"release, {how}", [5.0], "ms")
            for how in ("with the Pods API", "with cgroups", "at the next poll")
        ),
        Figure("further", [5.0], "ms"),
    ]
    write_section(SECTION, "Words.", figures)
    lines = [line for line in document.read_text().splitlines() if line.startswith("| ")]
    assert lines == [
        "| | measured | floor | ratio | target |",
        f"| {ALLOCATION} | 12 ms (30) | 6 ms | 2.00 |  |",
        f"| {RARE} | 30 ms |  |  | at most 50 ms |",
        "| release to the first scrape that shows it | 5 ms |  |  |  |",
        "| the same, by pods' cgroups | 5 ms |  |  |  |",
        "| the same, at the next poll | 5 ms |  |  |  |",
        "| exporter, CPU at rest | 0.4 % | | | |",
    ]
    written = (document.parent / "bench/allocate-to-metrics.txt").read_text()
    assert "| further | 5 ms |  |  |  |" in written


def test_a_key_figure_that_is_not_measured_is_an_error(document: Path) -> None:
    before = document.read_text()
    with pytest.raises(KeyError, match="allocation"):
        write_section(SECTION, "Words.", [Figure("release", [5.0], "ms")])
    assert document.read_text() == before
