"""Output of `devicelens who` and `devicelens history`: the present holders, and holdings in the past."""

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import click
import msgspec

from exporter.cli.common import (
    STALE,
    NoMatchError,
    OutputFlags,
    as_json,
    exit_if_stale,
    print_warning,
    say,
    warn_unless_fresh,
)
from exporter.cli.query import current_mapping, history
from exporter.cli.select import (
    HolderQuery,
    MappingAnswer,
    device_matcher,
    narrow,
    resource_among,
    select,
    there_are,
    unknown_states,
)
from exporter.cli.sources import ChosenSource
from exporter.cli.table import (
    NO_CELL,
    Cell,
    Row,
    SortedRow,
    Table,
    holders_table,
    print_table,
    sorted_rows,
    unix_time,
)
from exporter.views.schema import BoundEntry, HistoryDocument, PastDeviceEntry, PastEntry
from exporter.views.wording import (
    NOT_PUBLISHED,
    NOT_RECORDED,
    count_unheld,
    counted,
    lasting,
    listed,
    rfc3339,
    spelled,
)

_ALL: Final = 100_000
"""Holdings of one moment: all that an exporter has."""
_COLUMNS: Final = ("RESOURCE", "DEVICE", "STATE", "NAMESPACE/POD", "CONTAINER")
_RANGE_COLUMNS: Final = (*_COLUMNS, "FROM", "TO", "HELD FOR")
_MOMENT_COLUMNS: Final = (*_COLUMNS, "SINCE", "UNTIL")
_WIDE_COLUMNS: Final = ("NODE", "PARENT", "UID", "WORKLOAD", "CLAIM", "REQUESTED AS", "CERTAINTY")
_SIMILAR: Final = 3
"""Names that a message suggests."""
_EXACT: Final = 1.0
"""Seconds between two bounds that are shown as one time."""


def print_holders(query: HolderQuery, at: float | None, source: ChosenSource, output: OutputFlags) -> None:
    """Print who holds which device, now or (Prometheus) at unix time `at`.

    Raises NoMatchError, AskError and BadParameter.
    """
    answer = current_mapping(source, at)
    for note in answer.notes:
        say(note)
    with exit_if_stale(stale=_warn_of_stale(answer, output) and output.fail_if_stale):
        found = select(answer, query)
        if unknown := unknown_states(narrow(answer, query), query.states):
            say(unknown)
        if output.json:
            click.echo(as_json(found.document))
        elif query.filters or any(node.devices for node in found.nodes):
            table = holders_table(found, query, wide=output.wide, sort_by=output.sort_by)
            print_table(table, sys.stdout, output)
        elif found.fleet:
            say(f"{found.origin} has no devices")
        else:
            say(f"{found.nodes[0].node} has no devices")


def _warn_of_stale(answer: MappingAnswer, output: OutputFlags) -> bool:
    """Warn of stale and missing mappings; returns whether there are any. A fleet's notes name them on
    standard error.
    """
    if not answer.fleet:
        return warn_unless_fresh(answer.nodes[0], output)
    stale = [spelled(node.place) for node in answer.nodes if node.freshness in STALE]
    if stale:
        print_warning(f"the mapping of {listed(stale)} is stale: the holders are unknown", output)
    if answer.incomplete:
        print_warning("an exporter could not query its kubelet yet: the holders are unknown", output)
    return bool(stale) or answer.incomplete


def print_holders_at(query: HolderQuery, at: float, source: ChosenSource, output: OutputFlags) -> None:
    """Print who held which device at unix time `at`. Raises NoMatchError, AskError and BadParameter."""
    document = _holders_at(history(source, HolderQuery(pod=query.pod), limit=_ALL, at=at), query)
    _say_gaps(document)
    when = f"at {rfc3339(at)}"
    unknown = "" if query.pod is not None else _unknown(document, query.states, when)
    nothing = not document.holdings and not document.devices
    if nothing and (query.filters or not document.complete):
        if not document.complete:
            raise NoMatchError(f"it is unknown who held which device on {document.node} {when}")
        held = "was there" if query.states - {"held"} and query.pod is None else "was held"
        unrecorded = unknown if not document.devices_recorded or document.held_only else ""
        raise NoMatchError(unrecorded or f"{query.no_match(document.node, held, when)}{_near(document)}")
    if unknown:
        say(unknown)
    if nothing and not output.json:
        say(f"no device was held on {document.node} {when}")
        return
    now = unix_time(document.at)
    found = [
        SortedRow(
            (*_holding(entry, now), *(_wide_cells(entry) if output.wide else ())),
            *(entry.device, f"{entry.namespace}/{entry.pod}", unix_time(entry.start.not_after)),
        )
        for entry in document.holdings
    ]
    found += [
        SortedRow(_unheld(entry, document.node, wide=output.wide), entry.device, "", None)
        for entry in document.devices
    ]
    found.sort(key=lambda one: [cell.text for cell in one.row])
    _print(document, _MOMENT_COLUMNS, sorted_rows(found, output.sort_by), output, _count(document))


def _count(document: HistoryDocument) -> str:
    """`6 devices: 2 held, 1 perhaps, 2 free, 1 unknown`."""
    sure = {(entry.resource, entry.device) for entry in document.holdings if entry.certain}
    known = {(entry.resource, entry.device) for entry in document.holdings}
    perhaps = len(known) - len(sure)
    states = [f"{len(sure)} held"] * bool(sure) + [f"{perhaps} perhaps"] * bool(perhaps)
    unheld = count_unheld(Counter(entry.state for entry in document.devices))
    total = counted(len(known) + len(document.devices), "device")
    return f"{total}: {', '.join((*states, *unheld))}"


def _unknown(document: HistoryDocument, states: Collection[str], when: str) -> str:
    """A warning where `states` (none: all) ask for more than history has; "" elsewhere."""
    asked = sorted({"free", "unhealthy"}.intersection(states or {"free"}))
    if asked and document.complete and not document.devices_recorded:
        words = " or ".join(asked)
        return f"it is unknown which devices of {spelled(document.node)} were {words} {when}: {NOT_RECORDED}"
    if asked and document.held_only:
        names = listed([spelled(name) for name in document.held_only])
        return f"it is unknown which devices of {names} were {' or '.join(asked)} {when}: {NOT_PUBLISHED}"
    return "history does not say which held devices were unhealthy" if "unhealthy" in states else ""


def _holders_at(document: HistoryDocument, query: HolderQuery) -> HistoryDocument:
    """The holdings that `query` matches, with parts of ids as in `devicelens who`."""
    found = list(document.holdings) if not query.states or "held" in query.states else []
    devices = [one for one in document.devices if not query.states or one.state in query.states]
    held_only = document.held_only
    if query.resource:
        known = document.resources
        name = resource_among(known, query.resource)
        if name is None:
            raise NoMatchError(
                f"the history of {spelled(document.node)} has no resource {spelled(query.resource)!r}: "
                f"{there_are(known)}"
            )
        found = [entry for entry in found if name in {entry.resource, entry.requested_as}]
        devices = [entry for entry in devices if entry.resource == name]
        held_only = tuple(one for one in held_only if one == name)
    if query.device:
        names = [(one.device, one.parent, one.device) for one in found]
        names += [(one.device, one.parent, one.device) for one in devices]
        matches = device_matcher(names, query.device)
        found = [one for one in found if matches(one.device, one.parent, one.device)]
        devices = [one for one in devices if matches(one.device, one.parent, one.device)]
    return msgspec.structs.replace(
        document, holdings=tuple(found), devices=tuple(devices), held_only=held_only
    )


def print_holdings(
    query: HolderQuery,
    first: float | None,
    last: float | None,
    source: ChosenSource,
    *,
    limit: int,
    output: OutputFlags,
) -> None:
    """Print up to `limit` holdings between unix times `first` and `last`, newest first; None is no bound.

    Raises NoMatchError, AskError and BadParameter.
    """
    document = history(source, query, limit=limit, **{"from": first, "to": last})
    _say_gaps(document)
    if not document.holdings and (query.filters or not document.complete):
        raise NoMatchError(f"{query.no_match(document.node, 'was held', 'in that time')}{_near(document)}")
    if not document.holdings and not output.json:
        say(f"no device was held on {document.node} in that time")
        return
    now = unix_time(document.latest)
    found = [
        (*_holding(entry, now), Cell(held_for(entry, now)), *(_wide_cells(entry) if output.wide else ()))
        for entry in document.holdings
    ]
    _print(document, _RANGE_COLUMNS, found, output)
    if document.next is not None:
        say(f"there are more: these are the newest {len(document.holdings)}; use --limit or --to")


def _print(
    document: HistoryDocument,
    names: Sequence[str],
    found: Sequence[Row],
    output: OutputFlags,
    counts: str = "",
) -> None:
    if output.json:
        click.echo(as_json(document))
    else:
        table = Table((*names, *(_WIDE_COLUMNS if output.wide else ())), found, counts)
        print_table(table, sys.stdout, output)


def _near(document: HistoryDocument) -> str:
    """`; did you mean a or b?`: names of history like those of the query."""
    near = [spelled(name) for match in document.matched for name in (*match.names, *match.near)]
    return f"; did you mean {' or '.join(near[:_SIMILAR])}?" if near else ""


def _say_gaps(document: HistoryDocument) -> None:
    if document.trouble:
        say(f"the history of {document.node} is not in its file: {document.trouble}")
    if document.unseen_left_out:
        say(f"{document.unseen_left_out} more gaps are earlier than these")
    for gap in document.unseen:
        between = _between(gap.since, gap.until)
        reason = _GAP_REASONS.get(gap.why, spelled(gap.why))
        say(f"holders {between} are unknown: {reason}")


_GAP_REASONS: Final = {
    "exporter_down": "the exporter was not running",
    "kubelet_silent": "the kubelet did not answer",
    "paused": "the exporter did not run",
    "clock_set": "the clock was set",
    "not_recorded": "it could not be recorded",
    "before_history": "the record begins later",
    "not_yet": "in the future",
}


def _between(since: str | None, until: str | None) -> str:
    if since is None:
        return "of any time" if until is None else f"before {spelled(until)}"
    return f"after {spelled(since)}" if until is None else f"from {spelled(since)} to {spelled(until)}"


def _holding(entry: PastEntry, now: float | None) -> Row:
    return (
        Cell.raw(entry.resource, entry.resource.rpartition("/")[2]),
        Cell.of_id(f"{entry.device} ({entry.share_id})" if entry.share_id else entry.device),
        Cell(_state(entry)),
        Cell.raw(f"{entry.namespace}/{entry.pod}"),
        Cell.raw(entry.container),
        Cell(start(entry.start), _ago(entry.start.not_after, now)),
        Cell(end(entry.end), _ago(None if entry.end is None else entry.end.not_before, now)),
    )


def _unheld(entry: PastDeviceEntry, node: str, *, wide: bool) -> Row:
    resource = Cell.raw(entry.resource, entry.resource.rpartition("/")[2])
    cells = [resource, Cell.of_id(entry.device), Cell.raw(entry.state)]
    cells += [NO_CELL] * (len(_MOMENT_COLUMNS) - len(cells))
    if wide:
        cells += [Cell.raw(node), Cell.of_id(entry.parent or "")]
        cells += [NO_CELL] * (len(_MOMENT_COLUMNS) + len(_WIDE_COLUMNS) - len(cells))
    return tuple(cells)


def _ago(stamp: str | None, now: float | None) -> str:
    at = unix_time(stamp)
    return "" if at is None or now is None else f"{lasting(now - at)} ago"


def _wide_cells(entry: PastEntry) -> Row:
    workload = f"{entry.workload_kind}/{entry.workload}" if entry.workload_kind else ""
    claim = f"{entry.claim_namespace}/{entry.claim}" if entry.claim else ""
    bounds = [entry.start.certainty, *([entry.end.certainty] if entry.end is not None else [])]
    certainty = ", ".join([*bounds, *(["assumed"] if entry.assumed else [])])
    texts = (entry.pod_uid or "", workload, claim, entry.requested_as or "", certainty)
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
