"""Output of `devicelens who` and `devicelens history`: the present holders, and holdings in the past."""

import sys
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from exporter.cli.common import NoMatchError, as_json, say, warn_unless_fresh
from exporter.cli.query import current_mapping, history
from exporter.cli.select import HolderQuery, device_matcher, resource_among, select, there_are
from exporter.cli.sources import ChosenSource
from exporter.cli.table import Cell, Row, columns, print_table, rows, unix_time
from exporter.views.schema import BoundEntry, HistoryDocument, PastEntry
from exporter.views.wording import lasting, rfc3339, spelled

_ALL: Final = 100_000
"""Holdings of one moment: all that an exporter has."""
_COLUMNS: Final = ("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER")
_RANGE_COLUMNS: Final = (*_COLUMNS, "FROM", "TO", "HELD FOR")
_MOMENT_COLUMNS: Final = (*_COLUMNS, "SINCE", "UNTIL")
_WIDE_COLUMNS: Final = ("NODE", "PARENT", "UID", "WORKLOAD", "CLAIM", "CERTAINTY")
_EXACT: Final = 1.0
"""Seconds between two bounds that are shown as one time."""


def print_holders(query: HolderQuery, at: float | None, source: ChosenSource, *, output: str) -> None:
    """Print who holds which device, now or (Prometheus) at unix time `at`.

    Raises NoMatchError, AskError and BadParameter.
    """
    answer = current_mapping(source, at)
    for note in answer.notes:
        say(note)
    if not answer.fleet:
        warn_unless_fresh(answer.nodes[0])
    found = select(answer, query)
    wide = output == "wide"
    if output == "json":
        click.echo(as_json(found.document))
    elif query.filters or any(node.devices or node.claims for node in found.nodes):
        print_table(columns(found, wide=wide), rows(found, query, wide=wide), sys.stdout, unlimited=wide)
    elif found.fleet:
        say(f"{found.origin} has no devices")
    else:
        say(f"{found.nodes[0].node} has no devices of device plugins")


def print_holders_at(query: HolderQuery, at: float, source: ChosenSource, *, output: str) -> None:
    """Print who held which device at unix time `at`. Raises NoMatchError, AskError and BadParameter."""
    document = _holders_at(history(source, HolderQuery(pod=query.pod), limit=_ALL, at=at), query)
    _say_gaps(document)
    when = f"at {rfc3339(at)}"
    if not document.holdings and (query.filters or not document.complete):
        if document.complete:
            raise NoMatchError(query.no_match(document.node, "was held", when))
        raise NoMatchError(f"it is unknown who held which device on {document.node} {when}")
    if not document.holdings and output != "json":
        say(f"no device was held on {document.node} {when}")
        return
    now, wide = unix_time(document.at), output == "wide"
    found = [(*_holding(entry, now), *(_wide_cells(entry) if wide else ())) for entry in document.holdings]
    found.sort(key=lambda row: [cell.text for cell in row])
    _print(document, _MOMENT_COLUMNS, found, output=output)


def _holders_at(document: HistoryDocument, query: HolderQuery) -> HistoryDocument:
    """The holdings that `query` matches, with parts of ids as in `devicelens who`."""
    found = list(document.holdings)
    if query.resource:
        known = {*document.resources, *(entry.driver for entry in found if entry.driver)}
        name = resource_among(known, query.resource)
        if name is None:
            raise NoMatchError(
                f"the history of {spelled(document.node)} has no resource {spelled(query.resource)!r}: "
                f"{there_are(known)}"
            )
        found = [entry for entry in found if name in {entry.resource, entry.driver}]
    if query.device:
        matches = device_matcher([(one.device, one.parent, one.device) for one in found], query.device)
        found = [one for one in found if matches(one.device, one.parent, one.device)]
    return msgspec.structs.replace(document, holdings=tuple(found))


def print_holdings(
    query: HolderQuery,
    first: float | None,
    last: float | None,
    source: ChosenSource,
    *,
    limit: int,
    output: str,
) -> None:
    """Print up to `limit` holdings between unix times `first` and `last`, newest first; None is no bound.

    Raises NoMatchError, AskError and BadParameter.
    """
    document = history(source, query, limit=limit, **{"from": first, "to": last})
    _say_gaps(document)
    if not document.holdings and (query.filters or not document.complete):
        raise NoMatchError(query.no_match(document.node, "was held", "in that time"))
    if not document.holdings and output != "json":
        say(f"no device was held on {document.node} in that time")
        return
    now, wide = unix_time(document.latest), output == "wide"
    found = [
        (*_holding(entry, now), Cell(held_for(entry, now)), *(_wide_cells(entry) if wide else ()))
        for entry in document.holdings
    ]
    _print(document, _RANGE_COLUMNS, found, output=output)
    if document.next is not None:
        say(f"there are more: these are the newest {len(document.holdings)}; use --limit or --to")


def _print(document: HistoryDocument, names: Sequence[str], found: Sequence[Row], *, output: str) -> None:
    wide = output == "wide"
    if output == "json":
        click.echo(as_json(document))
    else:
        print_table((*names, *(_WIDE_COLUMNS if wide else ())), found, sys.stdout, unlimited=wide)


def _say_gaps(document: HistoryDocument) -> None:
    if document.trouble:
        say(f"the history of {document.node} is not in its file: {document.trouble}")
    if document.unseen_left_out:
        say(f"{document.unseen_left_out} more gaps are earlier than these")
    for gap in document.unseen:
        between = _between(gap.since, gap.until)
        reason = _GAP_REASONS.get(gap.why, spelled(gap.why))
        say(f"nobody looked {between} ({reason}): holders in that time are unknown")


_GAP_REASONS: Final = {
    "exporter_down": "the exporter was down",
    "kubelet_silent": "the kubelet did not answer",
    "paused": "the exporter did not run",
    "clock_set": "the clock was set",
    "not_recorded": "it could not be recorded",
    "before_history": "history begins later",
    "not_yet": "in the future",
}


def _between(since: str | None, until: str | None) -> str:
    if since is None:
        return "at all" if until is None else f"before {spelled(until)}"
    return f"after {spelled(since)}" if until is None else f"from {spelled(since)} to {spelled(until)}"


def _holding(entry: PastEntry, now: float | None) -> Row:
    resource = entry.resource or entry.driver or ""
    device = entry.device if entry.pool is None else f"{entry.pool}/{entry.device}"
    return (
        Cell.raw(resource, resource.rpartition("/")[2]),
        Cell.of_id(f"{device} ({entry.share_id})" if entry.share_id else device),
        Cell(_state(entry)),
        Cell.raw(f"{entry.namespace}/{entry.pod}"),
        Cell.raw(entry.container),
        Cell(start(entry.start), _ago(entry.start.not_after, now)),
        Cell(end(entry.end), _ago(None if entry.end is None else entry.end.not_before, now)),
    )


def _ago(stamp: str | None, now: float | None) -> str:
    at = unix_time(stamp)
    return "" if at is None or now is None else f"{lasting(now - at)} ago"


def _wide_cells(entry: PastEntry) -> Row:
    workload = f"{entry.workload_kind}/{entry.workload}" if entry.workload_kind else ""
    claim = f"{entry.claim_namespace}/{entry.claim}" if entry.claim else ""
    bounds = [entry.start.certainty, *([entry.end.certainty] if entry.end is not None else [])]
    certainty = ", ".join([*bounds, *(["assumed"] if entry.assumed else [])])
    texts = (entry.pod_uid or "", workload, claim, certainty)
    return (Cell.raw(entry.node), Cell.of_id(entry.parent or ""), *map(Cell.raw, texts))


def _state(entry: PastEntry) -> str:
    if entry.certain is not None:
        return "held" if entry.certain else "perhaps"
    if entry.end is None:
        return "held"
    return "in doubt" if entry.end.certainty == "in_doubt" else "ended"


def start(bound: BoundEntry) -> str:
    """When a holding began: `2026-10-28T22:41:03Z`, `…..…` between two polls, or `before …`."""
    if bound.not_before is None:
        return f"before {_to_the_second(bound.not_after)}"
    return _range(bound)


def end(bound: BoundEntry | None) -> str:
    """When a holding ended, likewise; "" while it lasts."""
    if bound is None:
        return ""
    if bound.not_after is None:
        return f"last seen {_to_the_second(bound.not_before)}"
    return _range(bound)


_CAUSES: Final = {"while_down": ", exporter down", "while_silent": ", kubelet silent"}


def _range(bound: BoundEntry) -> str:
    first, last = unix_time(bound.not_before), unix_time(bound.not_after)
    cause = _CAUSES.get(bound.certainty, "")
    one, other = _to_the_second(bound.not_before), _to_the_second(bound.not_after)
    if first is None or last is None or last - first <= _EXACT:
        return f"{other}{cause}"
    if one[:10] == other[:10]:  # the same day
        other = other.partition("T")[2]
    return f"{one}..{other}{cause}"


def _to_the_second(stamp: str | None) -> str:
    shown = spelled(stamp or "?")
    head, dot, _ = shown.partition(".")
    return f"{head}Z" if dot and shown.endswith("Z") else shown


def held_for(entry: PastEntry, now: float | None) -> str:
    """How long the device was held at least: from the first poll with the holder to the last, or `now`."""
    began = unix_time(entry.start.not_after)
    last = now if entry.end is None else unix_time(entry.end.not_before)
    return "" if began is None or last is None else lasting(last - began)
