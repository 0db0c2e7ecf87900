"""The command `devicelens history`: allocations and releases in a time range.

What an exporter remembers, over HTTP, page by page.

Who held what at a moment: `devicelens who --at` and `devicelens history --at`.

The past as a table. Everything from outside is spelled out.
"""

import os
import sys
import time
from typing import Any, Final, TextIO
from urllib.parse import urlencode

import click
import msgspec

from exporter.cli.common import EPILOG, CouldNot, Nothing, question_of, say
from exporter.cli.completion import complete_pod, complete_what
from exporter.cli.http import AskError, Deadline, Door, NobodyError, RefusedError, fetch
from exporter.cli.select import (
    EXPECTED,
    Ambiguous,
    FleetHistoryDocument,
    NothingMatches,
    Question,
    devices_like,
    nothing,
    resource_among,
    there_are,
    time_of,
)
from exporter.cli.show import as_json, free, print_rows, unix
from exporter.cli.sources import Source, chosen, source_flags
from exporter.cli.table.fit import Cell, Column
from exporter.cli.table.terminal import Look, look
from exporter.cli.table.width import tame
from exporter.cli.who import answer_now
from exporter.history.query import MAX_LIMIT
from exporter.views.schema import BoundEntry, HistoryDocument, PastEntry
from exporter.views.wording import lasting, rfc3339, spelled
from runtime.flags import DURATION

ALL = 100 * MAX_LIMIT
"""Rows that are asked for where all are wanted: those of one moment."""


def recall(
    door: Door, question: Question, *, limit: int, timeout: float, **times: float | None
) -> HistoryDocument:
    """Up to `limit` holdings, newest first, in one document, within `timeout` seconds. `times` are at, from
    and to, unix.

    Of the question, what the exporter finds by itself: the pod, the resource's whole name or its last part,
    and the device by its whole id. Raises AskError, Ambiguous and NothingMatches.
    """
    deadline = Deadline(timeout)
    asked = {name: _written(at) for name, at in times.items() if at is not None}
    if question.pod is not None:
        asked |= {"namespace": question.pod.namespace, "pod": question.pod.name}
    if question.device:
        asked["device"] = question.device
    if question.resource:
        known = _page(door, asked | {"limit": "1"}, deadline)
        resource = resource_among(known.resources, question.resource)
        # A claimed device is of a driver.
        asked |= {"driver": question.resource} if resource is None else {"resource": resource}
    whole: HistoryDocument | None = None
    holdings: list[PastEntry] = []
    while whole is None or (whole.next is not None and len(holdings) < limit):
        page = {"limit": str(min(MAX_LIMIT, limit - len(holdings)))}
        if whole is not None and whole.next is not None:
            page["cursor"] = whole.next
        whole = _page(door, asked | page, deadline)
        holdings.extend(whole.holdings)
    return msgspec.structs.replace(whole, holdings=tuple(holdings))


def _written(at: float) -> str:
    """Unix time as the API takes it."""
    return f"{at:.6f}"


def _page(door: Door, asked: dict[str, str], deadline: Deadline) -> HistoryDocument:
    where = f"/api/v1/history?{urlencode(asked, errors='surrogateescape')}"
    return fetch(door, where, HistoryDocument, deadline)


def recall_moment(door: Door, question: Question, *, at: float, timeout: float) -> HistoryDocument:
    """Who held what at unix time `at`, of what `question` is about.

    Raises AskError, Ambiguous and NothingMatches.
    """
    document = recall(door, Question(pod=question.pod), limit=ALL, timeout=timeout, at=at)
    found = list(document.holdings)
    if question.resource:
        known = {*document.resources, *(entry.driver for entry in found if entry.driver)}
        name = resource_among(known, question.resource)
        if name is None:
            raise NothingMatches(
                f"the history of {spelled(document.node)} knows no resource {spelled(question.resource)!r}: "
                f"{there_are(known)}"
            )
        found = [entry for entry in found if name in {entry.resource, entry.driver}]
    if question.device:
        found = devices_like(found, question.device)
    return msgspec.structs.replace(document, holdings=tuple(found))


def gaps(document: HistoryDocument) -> list[str]:
    """What must be known of the answer's limits, in plain sentences."""
    told: list[str] = []
    if document.trouble:
        told.append(f"the history of {document.node} is not in its file: {document.trouble}")
    if document.unseen_left_out:
        told.append(f"{document.unseen_left_out} more gaps are earlier than these")
    told.extend(
        f"nobody looked {_between(gap.since, gap.until)} ({_WHY.get(gap.why, spelled(gap.why))}): "
        "who held what then is not known"
        for gap in document.unseen
    )
    return told


_WHY = {
    "exporter_down": "the exporter was down",
    "kubelet_silent": "the kubelet did not answer",
    "paused": "the exporter did not get to look",
    "clock_set": "the clock was set",
    "not_recorded": "it could not be recorded",
    "before_history": "history begins later",
    "not_yet": "it is yet to come",
}


def _between(since: str | None, until: str | None) -> str:
    match since, until:
        case None, None:
            return "at all"
        case None, end:
            return f"before {spelled(end or '')}"
        case start, None:
            return f"after {spelled(start)}"
        case start, end:
            return f"from {spelled(start or '')} to {spelled(end or '')}"


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


def answer_from_the_past(question: Question, moment: float, source: Source, *, output: str) -> None:
    """Print who held what at unix time `moment`, by an exporter's history. Raises as commands end."""
    try:
        document = recall_moment(source.door(), question, at=moment, timeout=source.timeout)
    except Ambiguous as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    except NothingMatches as error:
        raise Nothing(str(error)) from error
    except AskError as error:
        raise CouldNot(str(error)) from error
    for sentence in gaps(document):
        say(sentence)
    when = f"at {rfc3339(moment)}"
    if not document.holdings and (question.any or not document.complete):
        known = nothing(question, document.node, "was held", when)
        unknown = f"it is not known who held what on {document.node} {when}"
        raise Nothing(known if document.complete else unknown)
    if output == "json":
        click.echo(as_json(document))
    elif document.holdings:
        left_out = print_moment(document, sys.stdout, look(sys.stdout, os.environ), wide=output == "wide")
        if left_out:
            say(left_out)
    else:
        say(f"nothing was held on {document.node} {when}")


_DAY = 86400.0


@click.command(epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE[=DEVICE]]", default="", shell_complete=complete_what)
@click.option("--pod", metavar="NAMESPACE/NAME", help="Only what this pod held.", shell_complete=complete_pod)
@click.option("--from", "since", metavar="TIME", help=f"What was held after: {EXPECTED}.")
@click.option("--to", "until", metavar="TIME", help="What was held before.")
@click.option("--at", "at", metavar="TIME", help="What was held at that moment, as devicelens who has it.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Holdings that are told, the newest first.",
)
@click.option(
    "--step",
    type=DURATION,
    default=None,
    metavar="DURATION",
    help="With --prometheus: how close it is looked at; by itself from 15s to 5m, as the range is long.",
)
@source_flags()
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "wide", "json")),
    default="table",
    show_default=True,
    help="How to answer.",
)
@click.pass_context
def history(
    ctx: click.Context,
    /,
    *,
    what: str,
    pod: str | None,
    since: str | None,
    until: str | None,
    at: str | None,
    limit: int,
    step: float | None,
    output: str,
    **flags: Any,
) -> None:
    """Who held which device, from when to when. Times are in UTC.

    RESOURCE is a resource's name, or the part after its slash where only one ends so. DEVICE is a whole
    id, or that of the device behind replicas and slices. =DEVICE looks in every resource.
    """
    question = question_of(what, pod)
    source = chosen(ctx, **flags)
    if source.kind == "kubelet":
        raise click.UsageError("--socket: a kubelet does not know the past, ask an exporter or Prometheus")
    if step is not None and source.kind != "prometheus":
        raise click.UsageError("--step: expected --prometheus, for an exporter knows each change")
    if step is not None and not 1.0 <= step <= 300.0:
        raise click.BadParameter(f"found {step:g}s, expected 1s to 5m", param_hint="--step")
    if at is not None and (since is not None or until is not None):
        raise click.UsageError("--at: expected either that, or --from and --to")
    now = time.time()
    moment, first, last = time_of(at, "--at", now), time_of(since, "--from", now), time_of(until, "--to", now)
    if first is not None and last is not None and first > last:
        raise click.BadParameter(f"found {since!r}, expected a time before that of --to", param_hint="--from")
    if moment is not None:
        if source.kind == "prometheus":
            answer_now(source, question, moment, output=output)
        else:
            answer_from_the_past(question, moment, source, output=output)
    elif source.kind == "prometheus":
        until_when = min(now if last is None else last, now)
        since_when = until_when - _DAY if first is None else first
        if first is None:
            say("of the day before: --from asks for more")
        _of_fleet(source, question, since_when, until_when, step=step, limit=limit, output=output)
    else:
        _of_exporter(source, question, first, last, limit=limit, output=output)


def _of_exporter(
    source: Source, question: Question, first: float | None, last: float | None, *, limit: int, output: str
) -> None:
    try:
        document = recall(
            source.door(), question, limit=limit, timeout=source.timeout, **{"from": first, "to": last}
        )
    except Ambiguous as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    except RefusedError as error:
        raise click.UsageError(error.detail) from error
    except AskError as error:
        raise CouldNot(str(error)) from error
    for sentence in gaps(document):
        say(sentence)
    if not document.holdings and (question.any or not document.complete):
        raise Nothing(nothing(question, document.node, "was held", "in that time, as far as it was looked"))
    if output == "json":
        click.echo(as_json(document))
    elif document.holdings:
        wide = output == "wide"
        _tell(print_history(document, sys.stdout, look(sys.stdout, os.environ), wide=wide))
    else:
        say(f"nothing was held on {document.node} in that time")
    if document.next is not None:
        say(f"there are more: these are the newest {len(document.holdings)}; ask with --limit or --to")


def _of_fleet(
    source: Source,
    question: Question,
    first: float,
    last: float,
    *,
    step: float | None,
    limit: int,
    output: str,
) -> None:
    from exporter.cli.prometheus import ranges  # noqa: PLC0415 -- for this way alone
    from exporter.cli.prometheus.client import Prometheus  # noqa: PLC0415 -- as above
    from exporter.cli.prometheus.fleet import Scope  # noqa: PLC0415 -- as above

    if first >= last:
        raise click.BadParameter("found a time that is yet to come", param_hint="--from")
    prometheus = Prometheus(source.door(), timeout=source.timeout)
    scope = Scope(source.matchers, source.node)
    try:
        scrape = ranges.scrape_interval(prometheus, scope, last)
        asked = ranges.grid(first, last, step, scrape)
        document = ranges.history(prometheus, scope, question, asked, limit=limit, scrape=scrape)
    except Ambiguous as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    except ranges.TooMuch as error:
        raise click.UsageError(str(error)) from error
    except (NothingMatches, NobodyError) as error:
        raise Nothing(str(error)) from error
    except AskError as error:
        raise CouldNot(str(error)) from error
    for note in document.notes:
        say(note)
    if output == "json":
        click.echo(as_json(document))
    else:
        _tell(print_fleet(document, sys.stdout, look(sys.stdout, os.environ), wide=output == "wide"))
    if not document.complete:
        say(f"there are more: these are the newest {len(document.holdings)}; ask with --limit or --to")


def _tell(left_out: str) -> None:
    if left_out:
        say(left_out)
