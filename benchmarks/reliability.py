"""docs/reliability.md, from what the fault suite and the soak have left: one JSON document for each."""

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

What goes wrong on nodes, done to the real processes beside a simulated kubelet, and what came of it. Written
by `make faults` (some twenty minutes) and `make soak`, which anyone can repeat; a short form of both is part
of `make test`. These figures come from a machine that had other things to do at the same time, so times are
what is left on a busy node, not the best there is.

All the while somebody reads `/metrics` and `/api/v1/devices` twenty times a second and compares every owner
that is named with who held the device at the moments that the answer may tell of. Pods come and go meanwhile,
several a second, and one stays. Each test sees that what it does strikes: connections are counted, a limit is
felt, another version's code runs. In the end both processes are told to end, and have to with status 0.
"""
_FAULTS: Final = "Faults"
_SOAK: Final = "A day in fast motion"
_GROWTH: Final = "Ten thousand refreshes"
_WORDS: Final = """\
*times*: how often it was done. *looks*: scrapes and documents that were compared meanwhile. *wrong*: owners
that were named and were none, or that a stale mapping named. *missing*: owners, labels, counts or answers
that should have been there and were not. *withdrawn*: scrapes in which the mapping was gone because it was
stale, as it has to be. *well again*: seconds from the fault's end until every place that tells owners told
the truth and the whole of it, median and worst. Where a pod ends just as the kubelet goes away, and nobody
but the kubelet knows pods, the exporter waits for ten seconds until it believes that the pod is gone: it
keeps the last mapping, and says how old it is. *exporter*, *plugin*: descriptors, threads, tasks and MiB
resident, after the first time and after the last.
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
_COUNTED: Final = ("descriptors", "threads", "tasks", "memory")
Row = Mapping[str, Any]


def faults(rows: Iterable[Row]) -> str:
    """The section of all faults."""
    known = list(rows)
    looks = sum(row["scrapes"] + row["documents"] for row in known)
    owners = sum(row["owners"] for row in known)
    total = (
        f"{sum(row['times'] for row in known)} faults of {len(known)} kinds, {looks} looks, {owners} owners "
        f"named, {sum(map(_wrong, known))} of them wrong; {sum(map(_missing, known))} missing. "
        f"{sum(row['late'] for row in known)} had their predecessor's uid for up to a second: a pod of the "
        "same name that held the very same devices, which only the Pods API tells apart."
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
    head = (
        *("what is done", "what must hold besides", "times", "looks", "wrong", "missing", "withdrawn"),
        *("well again, s", "exporter", "plugin"),
    )
    return [_line(head), _line(["---"] * len(head)), *(_line(_cells(row)) for row in rows)]


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _cells(row: Row) -> Sequence[object]:
    figures = "".join(f"; {name}: {value}" for name, value in row["figures"].items())
    leaks = f" **{'; '.join(row['leaks'])}**" if row["leaks"] else ""
    return (
        *(f"{row['what']}{figures}", f"{row['holds']}{leaks}", row["times"]),
        *(row["scrapes"] + row["documents"], _wrong(row), _missing(row), row["withdrawn"]),
        *(_recovered(row["recover"]), _census(row, "exporter"), _census(row, "plugin")),
    )


def _recovered(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f}, {max(seconds):.2f}" if seconds else "never"


def _census(row: Row, name: str) -> str:
    before, after = (
        " ".join(f"{row[when][name][key]:g}" for key in _COUNTED) for when in ("before", "after")
    )
    return f"{before} → {after}"


def soak(row: Row) -> str:
    """The section of the soak."""
    figures: Mapping[str, Any] = row["figures"]
    happened = [f"{value} {name}" for name, value in figures.items() if not isinstance(value, list)]
    words = (
        f"{row['seconds']:.0f} seconds in which there were {', '.join(happened)}. "
        f"{row['scrapes'] + row['documents']} looks, {row['owners']} owners named, {_wrong(row)} of them "
        f"wrong, {_missing(row)} missing. What is compared is that of a node at rest, before and after; "
        "times are the machine's, whatever else it did by then, and CPU is the exporter's own."
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
        "least once before the next. The floor is a bare Python process with the same libraries that was "
        "scraped as often."
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
