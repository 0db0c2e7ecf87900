"""The report of the benchmarks: every figure in build/bench, the key figures in docs/benchmarks.md.

Each figure stands beside its floor, measured in the same run, and as a ratio to the floor: times depend on
the machine, ratios much less. Each benchmark replaces its own figures and keeps the others.
"""

import fnmatch
import os
import platform
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
DOCUMENT: Final = _ROOT / "docs" / "benchmarks.md"
OUTPUT: Final = _ROOT / "build" / "bench"
_IMAGES: Final = DOCUMENT.parent / "images"
_HEAD: Final = """\
# Benchmarks

`make bench` measures what devicelens costs, in about twenty minutes on a machine that does nothing else. It
writes every figure to `build/bench`, and the key figures to this page. No test asserts a time.

A figure is a median, with the 90th percentile in parentheses. The floor is the least that the same machine
needs for the same task in the same run. Compare ratios, because times depend on the machine. The floors are:

- memory and start: a Python process that imports grpc.aio and aiohttp;
- allocation: the kubelet's own answer;
- scrapes and pages: a bare aiohttp application with the same bytes; in the browser, the page without
  scripts. An exporter in Go that calls the kubelet at each scrape (sriov-network-metrics-exporter) takes 13
  times this floor with 880 devices, 30 times with 2000, and 69 times with 8000;
- health under load: the same request without load;
- refreshes: decoding the kubelet's bytes and reading each field;
- history: a `SELECT` of the same rows;
- the plugin: a bare grpc.aio server; after a kubelet restart, one scripted registration.
"""
_COLUMNS: Final = "| | measured | floor | ratio | target |\n|---|---|---|---|---|"
_GROWTH: Final = """\
![Time of a refresh by number of pods](images/growth-refresh.svg)
![Time of a scrape by number of devices](images/growth-scrape.svg)
![Memory of the exporter by number of devices](images/growth-memory.svg)
![Time of a scrape by number of clients](images/growth-clients.svg)"""
KEY_FIGURES: Final[Mapping[str, tuple[str, str]]] = {
    "allocation to the first scrape that shows it": ("Allocate to /metrics", "allocation"),
    "the same, 99th percentile": ("Allocate to /metrics", "allocation: p99"),
    "release to the first scrape that shows it": ("Allocate to /metrics", "release, with the Pods API"),
    "the same, by pods' cgroups": ("Allocate to /metrics", "release, with cgroups"),
    "the same, at the next poll": ("Allocate to /metrics", "release, at the next poll"),
    "exporter, memory after refreshes and scrapes": ("At rest", "exporter, memory after *"),
    "exporter, CPU at rest": ("At rest", "exporter, CPU"),
    "exporter, start until ready": ("At rest", "exporter, ready"),
    "plugin, memory after refreshes and scrapes": ("At rest", "plugin, memory after *"),
    "plugin, CPU at rest": ("At rest", "plugin, CPU"),
    "exporter, most memory with 8192 devices": ("Growth: memory with devices", "8192 devices, most"),
    "exporter, most memory with the largest List": ("The largest answer", "many devices*after a scrape"),
    "refresh of 1250 pods, 10000 devices: one pod changed": ("Refresh", "1250 pods of 8, a pod changed"),
    "scrape of 880 devices, unchanged": ("Scrape", "880 devices, gzip, unchanged: time"),
    "the same, one poll in between": ("Scrape", "880 devices, gzip, polled: time"),
    "the same, after one pod changed": ("Scrape", "880 devices, gzip, changed: time"),
    "scrape of 8000 devices, after one pod changed": ("Scrape", "8000 devices, gzip, changed: time"),
    "one pod of 8000 devices changed: CPU": ("A change", "8000 devices: CPU, nobody scrapes"),
    "the same, until a scrape shows it: 99th percentile": (
        "A change",
        "8000 devices: until a scrape shows it: p99",
    ),
    "the same, longest hold of the event loop": (
        "A change",
        "8000 devices: longest hold of the event loop",
    ),
    "`/-/healthy` under load, 99th percentile": ("Health under load", "gzip, 10 changes a second: p99"),
    "history of 30 days: holders at a moment": ("History", "who held what at a moment: *"),
    "page of 10000 devices, first byte": ("Status page: first byte", "10000 devices, all, after a change"),
    "page of 10000 devices, usable in a browser": ("Status page: usable", "10000 devices"),
    "50 open pages of 2000 devices, CPU": ("Status page: open pages", "2000 devices: 50 pages"),
    "Allocate, resource of 10000 devices": ("Plugin: one resource of 10000 devices", "Allocate"),
    "list update, resource of 10000 devices": ("Plugin: one resource of 10000 devices", "list update"),
    "kubelet restart until 1000 devices are allocatable": (
        "Plugin: restarts of the kubelet",
        "until all are back",
    ),
}
"""Rows of the document by name, in this order: the section and the figure, as a pattern."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: samples of a measurement and of its floor, in `unit`, and the target (`aim`)."""

    what: str
    samples: Sequence[float]
    unit: str
    floor: Sequence[float] = ()
    aim: str = ""

    def row(self, name: str) -> str:
        """The row of a table, under this name."""
        middle = statistics.median(self.samples)
        measured = f"{_figures(middle)} {self.unit}"
        if len(self.samples) > 1:
            measured += f" ({_figures(percentile(self.samples, 0.9))})"
        floor = ratio = ""
        if self.floor:
            bare = statistics.median(self.floor)
            floor, ratio = f"{_figures(bare)} {self.unit}", f"{middle / bare:.2f}"
        return f"| {name} | {measured} | {floor} | {ratio} | {self.aim} |"


def _figures(value: float) -> str:
    """Three figures, and whole numbers from a thousand on."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def percentile(samples: Sequence[float], part: float) -> float:
    """The sample below which the fraction `part` (0 to 1) of all samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def write_section(
    title: str, words: str, figures: Iterable[Figure], charts: Mapping[str, str] | None = None
) -> None:
    """Print a section, write it to `OUTPUT`, and renew the document's key figures and charts from it.

    `charts`: file names and the SVG documents to write beside the document's other images. Raises KeyError
    for a key figure of this section that is not measured.
    """
    measured = {one.what: one for one in figures}
    body = "\n".join((words.strip(), "", _COLUMNS, *(one.row(one.what) for one in measured.values())))
    text = f"{title}\n\n{body}\n\n{machine()}\n"
    print(f"\n{text}", flush=True)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / f"{re.sub(r'[^a-z0-9]+', '-', title.lower())}.txt").write_text(text)
    for name, svg in (charts or {}).items():
        (_IMAGES / name).write_text(svg)
    put_sections(
        DOCUMENT,
        _HEAD,
        {"Figures": _key_figures(title, measured), "Growth": _GROWTH, "Machine": machine()},
    )


def _key_figures(title: str, measured: Mapping[str, Figure]) -> str:
    """The table of key figures: new rows for this section, the document's rows for the others."""
    document = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    rows = {name: line for line, name in re.findall(r"^(\| (.+?) \|.*)$", document, re.MULTILINE)}
    for name, (section, pattern) in KEY_FIGURES.items():
        if section == title:
            found = fnmatch.filter(measured, pattern)
            if not found:
                raise KeyError(f"{section}: no figure {pattern!r}")
            rows[name] = measured[found[0]].row(name)
    return "\n".join((_COLUMNS, *(rows[name] for name in KEY_FIGURES if name in rows)))


def put_sections(document: Path, head: str, new: Mapping[str, str]) -> None:
    """Replace the sections of these titles, or add them. `head` is the text above the first section."""
    text = document.read_text() if document.exists() else ""
    sections = dict(re.findall(r"^## (.+?)\n\n(.*?)\s*(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    sections |= new
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
