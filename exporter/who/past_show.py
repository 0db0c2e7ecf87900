"""The past as a table. Everything from outside is spelled out."""

from typing import Final, TextIO

from exporter.web.api.history_schema import BoundEntry, HistoryDocument, PastEntry
from exporter.web.words import lasting, spelled
from exporter.who.model import FleetHistoryDocument
from exporter.who.show import free, print_rows, unix
from exporter.who.table.fit import Cell, Column
from exporter.who.table.terminal import Look
from exporter.who.table.width import tame

_WHAT: Final = (
    Column("RESOURCE", drop=4, least=8),
    Column("DEVICE", least=10),
    Column("STATE", drop=2),
    Column("NAMESPACE/POD", least=13),
    Column("CONTAINER", drop=6, least=9),
)
_HISTORY: Final = (*_WHAT, Column("FROM", drop=1), Column("TO", drop=1), Column("AT LEAST", drop=5))
_AT: Final = (*_WHAT, Column("SINCE", drop=1), Column("UNTIL", drop=3))
_FURTHER: Final = (
    *(Column("NODE"), Column("PARENT"), Column("UID"), Column("WORKLOAD"), Column("CLAIM")),
    Column("CERTAINTY"),
)
"""Of the wide table."""
_NARROW: Final = 1.0
"""Seconds between two bounds up to which one time tells both."""


def print_history(document: HistoryDocument, out: TextIO, look: Look, *, wide: bool) -> str:
    """Holdings, with both their ends and how long they lasted. Returns what is not shown, in a sentence."""
    now = unix(document.latest or "")
    columns = (*_HISTORY, *(_FURTHER if wide else ()))
    rows = [
        (*_cells(entry, now), Cell(at_least(entry, now)), *(_further(entry) if wide else ()))
        for entry in document.holdings
    ]
    return print_rows(columns, rows, out, free(look, wide=wide))


def print_fleet(document: FleetHistoryDocument, out: TextIO, look: Look, *, wide: bool) -> str:
    """Holdings of a fleet, by node. Returns what is not shown, in a sentence."""
    now = unix(document.until)
    names = sorted({name for entry in document.holdings for name in entry.labels})
    columns = (
        *(Column(name.upper(), drop=7, least=6) for name in names),
        *(Column("NODE", drop=1, least=8), *_HISTORY, *(_FURTHER[1:] if wide else ())),
    )
    rows = [
        (
            *(Cell(tame(spelled(entry.labels.get(name, "")))) for name in names),
            Cell(tame(spelled(entry.node))),
            *_cells(entry, now),
            Cell(at_least(entry, now)),
            *(_further(entry)[1:] if wide else ()),
        )
        for entry in document.holdings
    ]
    return print_rows(columns, rows, out, free(look, wide=wide))


def print_moment(document: HistoryDocument, out: TextIO, look: Look, *, wide: bool) -> str:
    """Who held what at one moment, in the order in which the present is told: by resource and device."""
    now = unix(document.at or "")
    columns = (*_AT, *(_FURTHER if wide else ()))
    rows = [(*_cells(entry, now), *(_further(entry) if wide else ())) for entry in document.holdings]
    ordered = sorted(rows, key=lambda row: [cell.text for cell in row])
    return print_rows(columns, ordered, out, free(look, wide=wide))


def _cells(entry: PastEntry, now: float | None) -> tuple[Cell, ...]:
    resource, state = spelled(entry.resource or entry.driver or ""), _state(entry)
    begun, ended = start(entry.start), end(entry.end)
    return (
        Cell(tame(resource), tame(resource.rpartition("/")[2])),
        Cell(tame(spelled(_device(entry)))),
        Cell(state, style=state),
        Cell(tame(spelled(f"{entry.namespace}/{entry.pod}"))),
        Cell(tame(spelled(entry.container))),
        Cell(begun, _ago(entry.start.not_after, now)),
        Cell(ended, _ago(None if entry.end is None else entry.end.not_before, now)),
    )


def _ago(stamp: str | None, now: float | None) -> str:
    """A time in short: how long it is ago."""
    at = unix(stamp or "")
    return "" if at is None or now is None else f"{lasting(now - at)} ago"


def _further(entry: PastEntry) -> tuple[Cell, ...]:
    workload = f"{entry.workload_kind}/{entry.workload}" if entry.workload_kind else ""
    claim = f"{entry.claim_namespace}/{entry.claim}" if entry.claim else ""
    bounds = [entry.start.certainty, *([entry.end.certainty] if entry.end is not None else [])]
    certainty = ", ".join([*bounds, *(["assumed"] if entry.assumed else [])])
    texts = (entry.node, entry.parent or "", entry.pod_uid or "", workload, claim, certainty)
    return tuple(Cell(tame(spelled(text))) for text in texts)


def _device(entry: PastEntry) -> str:
    """A claimed device with its pool; a device plugin's as it is called."""
    named = entry.device if entry.pool is None else f"{entry.pool}/{entry.device}"
    return f"{named} ({entry.share_id})" if entry.share_id else named


def _state(entry: PastEntry) -> str:
    if entry.certain is not None:
        return "held" if entry.certain else "perhaps"
    if entry.end is None:
        return "held"
    return "in doubt" if entry.end.certainty == "in_doubt" else "ended"


def start(bound: BoundEntry) -> str:
    """When it began: `2026-10-28T22:41:03Z`, `… to …` between two looks, or `before …`."""
    if bound.not_before is None:
        return f"before {_short(bound.not_after)}"
    return _range(bound)


def end(bound: BoundEntry | None) -> str:
    """When it ended, likewise; "" while it lasts."""
    if bound is None:
        return ""
    if bound.not_after is None:
        return f"last seen {_short(bound.not_before)}"
    return _range(bound)


_HOW = {"while_down": ", exporter down", "while_silent": ", kubelet silent"}


def _range(bound: BoundEntry) -> str:
    first, last = unix(bound.not_before or ""), unix(bound.not_after or "")
    how = _HOW.get(bound.certainty, "")
    if first is None or last is None or last - first <= _NARROW:
        return f"{_short(bound.not_after)}{how}"
    one, other = _short(bound.not_before), _short(bound.not_after)
    # The day is told once.
    other = other.partition("T")[2] if one[:10] == other[:10] else other
    return f"{one}..{other}{how}"


def _short(stamp: str | None) -> str:
    """A time to the second; it is in UTC."""
    shown = spelled(stamp or "?")
    head, dot, _ = shown.partition(".")
    return f"{head}Z" if dot and shown.endswith("Z") else shown


def at_least(entry: PastEntry, now: float | None) -> str:
    """How long it was held by what was seen: from the first look with it to the last, `now` if it goes on."""
    began = unix(entry.start.not_after or "")
    last = now if entry.end is None else unix(entry.end.not_before or "")
    return "" if began is None or last is None else lasting(last - began)
