"""docs/reliability.md, made from the JSON documents that the fault suite and the soak write."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.report import machine, put_sections

DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "reliability.md"
_HEAD: Final = """\
# Reliability

devicelens promises, during each fault below:

- No reader ever sees an owner that is not the owner. A mapping older than `--stale-after` names nobody.
- Scrapes and pages are answered from the last good mapping while the kubelet is not there.
- The complete mapping is back soon after the fault, without a restart or a person.
- Both processes leak no descriptors, threads, or tasks, and end with status 0.

`make faults` (about twenty minutes) causes the faults against the real processes beside a simulated kubelet,
and `make soak` runs a node's day and ten thousand refreshes. Both write this page; `build/faults` has the
result of each fault, and `tests/faults` states what must hold. Meanwhile pods come and go, and twenty times a
second a reader compares every owner in `/metrics` and `/api/v1/devices` with the pods that really hold the
devices. `make test` includes a short form of both.
"""
_FAULTS: Final = "Faults"
_SOAK: Final = "A day in fast motion"
_GROWTH: Final = "Ten thousand refreshes"
_WORDS: Final = """\
*wrong*: owners that were not owners, or that a stale mapping named. *missing*: owners, labels, counts, or
answers that were absent and should not have been. *recovery*: seconds from the end of the fault until all
readers saw the complete mapping, at worst.
"""
_GROUPS: Final[Mapping[str, str]] = {
    "The kubelet": "restarts, hangs, refused calls, a used-up rate limit",
    "What the kubelet answers": "garbage, 17 MiB, missing pods, doubled devices",
    "The kubelet's socket": "moved away, replaced, without permissions",
    "Watching": "no inotify instances or watches, a full queue",
    "History's disk": "full, failing, read-only, overwritten",
    "Time": "wall clock jumps of an hour",
    "The processes": "SIGKILL, SIGSTOP, SIGTERM, two versions at once",
    "Clients": "500 connections, slow readers, no descriptors, malformed requests",
}
"""The groups of faults in the order of the table, and what is in them."""
Row = Mapping[str, Any]


def faults(rows: Iterable[Row]) -> str:
    """The section of all faults, one line for each group."""
    known = list(rows)
    answers = sum(row["scrapes"] + row["documents"] for row in known)
    total = (
        f"{sum(row['times'] for row in known)} faults of {len(known)} kinds, {answers} answers compared, "
        f"{sum(row['owners'] for row in known)} owners named: {sum(map(_wrong, known))} wrong, "
        f"{sum(map(_missing, known))} missing. {sum(row['late'] for row in known)} had the uid of a former "
        "pod of the same name for up to a second, where only the Pods API can distinguish the two."
    )
    head = ("what fails", "kinds", "faults", "wrong", "missing", "recovery, s")
    groups = sorted({row["group"] for row in known}, key=_order)
    lines = [_group(group, [row for row in known if row["group"] == group]) for group in groups]
    leaks = [f"- {row['what']}: {'; '.join(row['leaks'])}" for row in known if row["leaks"]]
    left = ["", "Left behind:", "", *leaks] if leaks else []
    return "\n".join([_WORDS, total, "", *_table(head, lines), *left])


def _order(group: str) -> tuple[int, str]:
    known = list(_GROUPS)
    return (known.index(group) if group in known else len(known), group)


def _group(name: str, rows: Sequence[Row]) -> Sequence[object]:
    recoveries = [seconds for row in rows for seconds in row["recover"]]
    return (
        f"{name}: {_GROUPS[name]}" if name in _GROUPS else name,
        len(rows),
        sum(row["times"] for row in rows),
        sum(map(_wrong, rows)),
        sum(map(_missing, rows)),
        f"{max(recoveries):.1f}" if all(row["recover"] for row in rows) else "never",
    )


def _wrong(row: Row) -> int:
    return int(row["wrong"])


def _missing(row: Row) -> int:
    return sum(int(row[name]) for name in ("missing", "unlabelled", "fallen", "unanswered"))


def _table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = (head, ["---"] * len(head), *rows)
    return [f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |" for cells in lines]


def soak(row: Row) -> str:
    """The section of the soak."""
    figures: Mapping[str, Any] = row["figures"]
    happened = [f"{value} {name}" for name, value in figures.items() if not isinstance(value, list)]
    words = (
        f"{row['seconds']:.0f} seconds with {', '.join(happened)}. "
        f"{row['scrapes'] + row['documents']} answers compared, {row['owners']} owners named: "
        f"{_wrong(row)} wrong, {_missing(row)} missing. The tables "
        "compare the node at rest, before and after; CPU is that of the exporter."
    )
    counted = {
        f"{process}, {key}{', MiB' if key == 'memory' else ''}": (row["before"][process][key], now)
        for process in ("exporter", "plugin")
        for key, now in row["after"][process].items()
    }
    times = [(name, *value) for name, value in figures.items() if isinstance(value, list)]
    return "\n".join((words, "", *_comparison(counted), "", *_table(("", "before", "after"), times)))


def growth(row: Row) -> str:
    """The section of the growth run."""
    words = (
        f"{row['refreshes']} refreshes, each caused by a change in the kubelet's directory and scraped at "
        "least once. The floor is a bare Python process with the same libraries."
    )
    return "\n".join((words, "", *_comparison(row["compared"])))


def _comparison(compared: Mapping[str, Sequence[object]]) -> list[str]:
    """A column for each process, a row for each quantity, as `before → after`.

    The keys of `compared` are `process, quantity`.
    """
    named = {tuple(name.split(", ", 1)): " → ".join(map(str, pair)) for name, pair in compared.items()}
    processes = list(dict.fromkeys(process for process, _ in named))
    quantities = dict.fromkeys(quantity for _, quantity in named)
    rows = [(quantity, *(named[process, quantity] for process in processes)) for quantity in quantities]
    return _table(("", *processes), rows)


def main(directory: Path, document: Path = DOCUMENT) -> None:
    """Write the sections for which there are rows."""
    rows: dict[str, Row] = {
        path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))
    }
    sections = {"Machine": machine()}
    for name, title, write in (("soak", _SOAK, soak), ("growth", _GROWTH, growth)):
        if name in rows:
            sections[title] = write(rows.pop(name))
    if rows:
        sections[_FAULTS] = faults(rows.values())
    put_sections(document, _HEAD, sections)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the rows are")
    main(parser.parse_args().directory)
