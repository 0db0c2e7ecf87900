"""How benchmarks tell what they found: printed, and as sections of docs/benchmarks.md.

Each figure stands beside its floor, measured in the same run, and as a ratio to it: the ratio says more than
the time, which is the machine's. Each benchmark writes its own sections and leaves the others' alone. How
cost grows is drawn beside the table.
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

Written by `make bench`, which anyone can repeat: it needs what `make test` needs, some twenty minutes, and a
machine that does nothing else meanwhile. Each figure is the median of its samples, with the 10th and 90th
percentile behind it, beside its floor: what the same machine needed in the same run for the least that the
task can take. The ratio says more than the time, which is the machine's. No test asserts a time.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: samples of what was measured and of its floor, in `unit`; `aim` says what is wanted of it."""

    what: str
    samples: Sequence[float]
    unit: str
    floor: Sequence[float] = ()
    aim: str = ""

    def row(self) -> str:
        """As a row of a table."""
        ratio = statistics.median(self.samples) / statistics.median(self.floor) if self.floor else None
        told = "" if ratio is None else f"{ratio:.2f}"
        floor = _told(self.floor, self.unit) if self.floor else ""
        return f"| {self.what} | {_told(self.samples, self.unit)} | {floor} | {told} | {self.aim} |"


def percentile(samples: Sequence[float], part: float) -> float:
    """The sample below which `part` (0 to 1) of all are."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def tell(title: str, words: str, figures: Iterable[Figure], charts: Mapping[str, str] | None = None) -> None:
    """Print a section, and write it into the document in the place of the one of this title.

    `charts`: file names and the SVG documents that go there, beside the document's other images.
    """
    rows = [
        "| | measured | floor | ratio | wanted |",
        "|---|---|---|---|---|",
        *(one.row() for one in figures),
    ]
    shown = [line for name in charts or () for line in (f"![{title}](images/{name})", "")]
    body = "\n".join((words.strip(), "", machine(), "", *shown, *rows))
    for name, svg in (charts or {}).items():
        (_IMAGES / name).write_text(svg)
    print(f"\n{title}\n\n{body}", flush=True)
    put_section(DOCUMENT, _HEAD, title, body)


def put_section(document: Path, head: str, title: str, body: str) -> None:
    """Write a section in the place of the one of this title; `head` is what the document begins with."""
    text = document.read_text() if document.exists() else ""
    # The head is the code's; sections are found by their titles.
    sections = dict(re.findall(r"^## (.+?)\n\n(.*?)\s*(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    sections[title] = body
    told = "".join(f"\n## {name}\n\n{section}\n" for name, section in sorted(sections.items()))
    document.write_text(head + told)


def _told(samples: Sequence[float], unit: str) -> str:
    middle = f"{statistics.median(samples):.3g}"
    if len(samples) > 1:
        middle += f" ({percentile(samples, 0.1):.3g} to {percentile(samples, 0.9):.3g})"
    return f"{middle} {unit}"


def machine() -> str:
    """What it was measured on, in a sentence."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    parts = ", ".join(f"{name} {version(name)}" for name in ("grpcio", "protobuf", "aiohttp"))
    return (
        f"{len(os.sched_getaffinity(0))} CPUs ({model[1] if model else platform.machine()}), "
        f"{memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {parts}; at the end the load was "
        f"{os.getloadavg()[0]:.1f}."
    )
