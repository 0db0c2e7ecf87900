"""The command `devicelens history`: allocations and releases in a time range."""

import sys
import time

import click

from exporter.who.ask import AskError, RefusedError
from exporter.who.common import (
    EPILOG,
    CouldNot,
    Nothing,
    exporter_at,
    question_of,
    say,
    some_time,
    timeout_flag,
    url_flag,
)
from exporter.who.moments import EXPECTED, time_of
from exporter.who.past import gaps, recall
from exporter.who.past_show import print_history
from exporter.who.select import Ambiguous, nothing
from exporter.who.show import as_json


@click.command(epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE[=DEVICE]]", default="")
@click.option("--pod", metavar="NAMESPACE/NAME", help="Only what this pod held.")
@click.option("--from", "since", metavar="TIME", help=f"What was held after: {EXPECTED}.")
@click.option("--to", "until", metavar="TIME", help="What was held before.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Holdings that are told, the newest first.",
)
@url_flag()
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "json")),
    default="table",
    show_default=True,
    help="How to answer.",
)
@timeout_flag()
def history(
    *,
    what: str,
    pod: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    url: str,
    output: str,
    timeout: float,
) -> None:
    """Who held which device, from when to when. Times are in UTC.

    RESOURCE is a resource's name, or the part after its slash where only one ends so. DEVICE is a whole
    id, or that of the device behind replicas and slices. =DEVICE looks in every resource.
    """
    question = question_of(what, pod)
    some_time(timeout)
    now = time.time()
    first, last = time_of(since, "--from", now), time_of(until, "--to", now)
    if first is not None and last is not None and first > last:
        raise click.BadParameter(f"found {since!r}, expected a time before that of --to", param_hint="--from")
    address = exporter_at(url)
    try:
        document = recall(address, question, limit=limit, timeout=timeout, **{"from": first, "to": last})
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
        print_history(document, sys.stdout)
    else:
        say(f"nothing was held on {document.node} in that time")
    if document.next is not None:
        say(f"there are more: these are the newest {len(document.holdings)}; ask with --limit or --to")
