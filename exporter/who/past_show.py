"""The past as a table. Everything from outside is spelled out."""

from typing import TextIO

from exporter.web.api.history_schema import BoundEntry, HistoryDocument, PastEntry
from exporter.web.words import lasting, spelled, text
from exporter.who.show import print_rows, unix

_CUT = 120
_HISTORY = ("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "FROM", "TO", "AT LEAST")
_AT = ("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER", "SINCE", "UNTIL")
_NARROW = 1.0
"""Seconds between two bounds up to which one time tells both."""


def print_history(document: HistoryDocument, out: TextIO) -> None:
    """Holdings, with both their ends and how long they lasted."""
    now = unix(document.latest or "")
    rows = [(*_cells(entry), at_least(entry, now)) for entry in document.holdings]
    print_rows(_HISTORY, rows, out)


def print_moment(document: HistoryDocument, out: TextIO) -> None:
    """Who held what at one moment, in the order in which the present is told: by resource and device."""
    print_rows(_AT, sorted(_cells(entry) for entry in document.holdings), out)


def _cells(entry: PastEntry) -> tuple[str, ...]:
    cells = (
        spelled(entry.resource or entry.driver or ""),
        spelled(_device(entry)),
        _state(entry),
        spelled(f"{entry.namespace}/{entry.pod}"),
        spelled(entry.container),
        start(entry.start),
        end(entry.end),
    )
    return tuple(text(cell, limit=_CUT).shown for cell in cells)


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
