"""The command `devicelens history`: allocations and releases in a time range."""

import os
import sys
import time
from typing import Any

import click

from daemon.flags import DURATION
from exporter.who.ask import RefusedError
from exporter.who.cli import answer_now
from exporter.who.common import EPILOG, CouldNot, Nothing, question_of, say
from exporter.who.complete import complete_pod, complete_what
from exporter.who.door import AskError, NobodyError
from exporter.who.moments import EXPECTED, time_of
from exporter.who.past import gaps, recall
from exporter.who.past_cli import answer_from_the_past
from exporter.who.past_show import print_fleet, print_history
from exporter.who.select import Ambiguous, NothingMatches, Question, nothing
from exporter.who.show import as_json
from exporter.who.sources import Source, chosen, source_flags
from exporter.who.table.terminal import look

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
    from exporter.who.prometheus import ranges  # noqa: PLC0415 -- for this way alone
    from exporter.who.prometheus.client import Prometheus  # noqa: PLC0415 -- as above
    from exporter.who.prometheus.fleet import Scope  # noqa: PLC0415 -- as above

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
