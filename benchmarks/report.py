"""The report of the benchmarks: printed, and written as sections of docs/benchmarks.md.

Each figure stands beside its floor, measured in the same run, and as a ratio to the floor: times depend on
the machine, ratios much less. Each benchmark replaces its own sections and keeps the others.
"""

import os
import platform
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_IMAGES: Final = DOCUMENT.parent / "images"
_HEAD: Final = """\
# Benchmarks

`make bench` writes this page in about twenty minutes, on a machine that does nothing else. Each figure is a
median, with the 90th percentile in parentheses. The floor is what the same machine needs in the same run for
the least that the task can take. Compare ratios, not times. No test asserts a time.
"""
_MACHINE: Final = "Machine"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: samples of a measurement and of its floor, in `unit`, and the target (`aim`)."""

    what: str
    samples: Sequence[float]
    unit: str
    floor: Sequence[float] = ()
    aim: str = ""

    def row(self) -> str:
        """The row of the table."""
        middle = statistics.median(self.samples)
        measured = f"{middle:.3g} {self.unit}"
        if len(self.samples) > 1:
            measured += f" ({percentile(self.samples, 0.9):.3g})"
        floor = ratio = ""
        if self.floor:
            bare = statistics.median(self.floor)
            floor, ratio = f"{bare:.3g} {self.unit}", f"{middle / bare:.2f}"
        return f"| {self.what} | {measured} | {floor} | {ratio} | {self.aim} |"


def percentile(samples: Sequence[float], part: float) -> float:
    """The sample below which the fraction `part` (0 to 1) of all samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def write_section(
    title: str, words: str, figures: Iterable[Figure], charts: Mapping[str, str] | None = None
) -> None:
    """Print a section, and replace the section of this title in the document.

    `charts`: file names and the SVG documents to write beside the document's other images.
    """
    rows = [
        "| | measured | floor | ratio | target |",
        "|---|---|---|---|---|",
        *(one.row() for one in figures),
    ]
    shown = [line for name in charts or () for line in (f"![{title}](images/{name})", "")]
    body = "\n".join((words.strip(), "", *shown, *rows))
    for name, svg in (charts or {}).items():
        (_IMAGES / name).write_text(svg)
    print(f"\n{title}\n\n{body}", flush=True)
    put_section(DOCUMENT, _HEAD, title, body)
    put_section(DOCUMENT, _HEAD, _MACHINE, machine())


def put_section(document: Path, head: str, title: str, body: str) -> None:
    """Replace the section of this title, or add it. `head` is the text above the first section."""
    text = document.read_text() if document.exists() else ""
    sections = dict(re.findall(r"^## (.+?)\n\n(.*?)\s*(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    sections[title] = body
    written = "".join(f"\n## {name}\n\n{section}\n" for name, section in sorted(sections.items()))
    document.write_text(head + written)


def machine() -> str:
    """The processors, memory, kernel, and library versions, in a sentence."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    parts = ", ".join(f"{name} {version(name)}" for name in ("grpcio", "protobuf", "aiohttp"))
    return (
        f"{len(os.sched_getaffinity(0))} CPUs ({model[1] if model else platform.machine()}), "
        f"{memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {parts}; at the end the load was "
        f"{os.getloadavg()[0]:.1f}."
    )
