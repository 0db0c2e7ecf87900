"""docs/reliability.md, made from the JSON documents that the fault suite and the soak write."""

import argparse
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.report import machine, put_section

DOCUMENT: Final = Path(__file__).parents[1] / "docs" / "reliability.md"
_HEAD: Final = """\
# Reliability

`make faults` (about twenty minutes) and `make soak` write this page: what goes wrong on nodes is done to the
real processes beside a simulated kubelet. A short form of both is part of `make test`; `tests/faults` states
what must hold during each fault.

During each fault a reader compares every owner in `/metrics` and `/api/v1/devices`, twenty times a second,
with the pods that really hold the devices, while pods come and go. At the end both processes must exit with
status 0 and have no more descriptors, threads, or tasks than before.
"""
_FAULTS: Final = "Faults"
_SOAK: Final = "A day in fast motion"
_GROWTH: Final = "Ten thousand refreshes"
_WORDS: Final = """\
*times*: how often the fault was caused. *wrong*: owners that were not owners, or that a stale mapping named.
*missing*: owners, labels, counts, or answers that were absent and should not have been. *recovery*: seconds
from the end of the fault until all readers saw the complete mapping, median and worst.
"""
_GROUPS: Final = (
    "The kubelet",
    "What the kubelet answers",
    "The kubelet's socket",
    "Watching",
    "History's disk",
    "Time",
    "The processes",
    "Clients",
)
Row = Mapping[str, Any]


def faults(rows: Iterable[Row]) -> str:
    """The section of all faults."""
    known = list(rows)
    looks = sum(row["scrapes"] + row["documents"] for row in known)
    owners = sum(row["owners"] for row in known)
    total = (
        f"{sum(row['times'] for row in known)} faults of {len(known)} kinds, {looks} answers compared, "
        f"{owners} owners named: {sum(map(_wrong, known))} wrong, {sum(map(_missing, known))} missing. "
        f"{sum(row['late'] for row in known)} had the uid of a former pod of the same name for up to a "
        "second, where only the Pods API can distinguish the two."
    )
    parts = [_WORDS, machine(), "", total]
    for group in sorted({row["group"] for row in known}, key=_order):
        parts += ["", f"### {group}", "", *_table(row for row in known if row["group"] == group)]
    return "\n".join(parts)


def _order(group: str) -> tuple[int, str]:
    return (_GROUPS.index(group) if group in _GROUPS else len(_GROUPS), group)


def _wrong(row: Row) -> int:
    return int(row["wrong"])


def _missing(row: Row) -> int:
    return sum(int(row[name]) for name in ("missing", "unlabelled", "fallen", "unanswered"))


def _table(rows: Iterable[Row]) -> list[str]:
    head = ("fault", "times", "wrong", "missing", "recovery, s")
    return [_line(head), _line(["---"] * len(head)), *(_line(_cells(row)) for row in rows)]


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _cells(row: Row) -> Sequence[object]:
    figures = "".join(f"; {name}: {value}" for name, value in row["figures"].items())
    leaks = f" **{'; '.join(row['leaks'])}**" if row["leaks"] else ""
    return (
        *(f"{row['what']}{figures}{leaks}", row["times"]),
        *(_wrong(row), _missing(row), _recovered(row["recover"])),
    )


def _recovered(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f}, {max(seconds):.2f}" if seconds else "never"


def soak(row: Row) -> str:
    """The section of the soak."""
    figures: Mapping[str, Any] = row["figures"]
    happened = [f"{value} {name}" for name, value in figures.items() if not isinstance(value, list)]
    words = (
        f"{row['seconds']:.0f} seconds with {', '.join(happened)}. "
        f"{row['scrapes'] + row['documents']} answers compared, {row['owners']} owners named: "
        f"{_wrong(row)} wrong, {_missing(row)} missing. The table "
        "compares the node at rest, before and after; CPU is that of the exporter."
    )
    compared: dict[str, Sequence[object]] = {
        f"{process}, {key}{', MiB' if key == 'memory' else ''}": (row["before"][process][key], now)
        for process in ("exporter", "plugin")
        for key, now in row["after"][process].items()
    }
    compared |= {name: value for name, value in figures.items() if isinstance(value, list)}
    return _comparison(words, compared)


def growth(row: Row) -> str:
    """The section of the growth run."""
    words = (
        f"{row['refreshes']} refreshes, each caused by a change in the kubelet's directory and scraped at "
        "least once. The floor is a bare Python process with the same libraries."
    )
    return _comparison(words, row["compared"])


def _comparison(words: str, compared: Mapping[str, Sequence[object]]) -> str:
    head = (_line(("", "at the start", "at the end")), _line(["---"] * 3))
    return "\n".join(
        (words, "", machine(), "", *head, *(_line((name, *pair)) for name, pair in compared.items()))
    )


def main(directory: Path, document: Path = DOCUMENT) -> None:
    """Write the sections for which there are rows."""
    rows: dict[str, Row] = {
        path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))
    }
    for name, title, write in (("soak", _SOAK, soak), ("growth", _GROWTH, growth)):
        if name in rows:
            put_section(document, _HEAD, title, write(rows.pop(name)))
    if rows:
        put_section(document, _HEAD, _FAULTS, faults(rows.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the rows are")
    main(parser.parse_args().directory)
