"""The command `devicelens who`.

The present, or a fleet's past moment, of whichever source was chosen.
"""

import os
import sys
import time
from typing import Any

import click

from exporter.cli.common import EPILOG, CouldNot, Nothing, question_of, say, warn
from exporter.cli.completion import complete_pod, complete_what
from exporter.cli.http import AskError, Door, NobodyError
from exporter.cli.select import EXPECTED, Ambiguous, Answer, NothingMatches, Question, select, time_of
from exporter.cli.show import as_json, document_of, print_answer
from exporter.cli.sources import Source, chosen, source_flags
from exporter.cli.table.terminal import look
from exporter.cli.watch.flag import WatchCommand, watch_flag
from runtime.flags import default_node_name
from runtime.text import visible


def present(source: Source, at: float | None = None) -> Answer:
    """Who holds what, now or (Prometheus alone) at unix time `at`.

    Raises what a command ends with: CouldNot, Nothing, BadParameter.
    """
    try:
        return asked(source, at)
    except NobodyError as error:
        if source.matchers or source.node:
            raise Nothing(str(error)) from error
        raise CouldNot(str(error)) from error
    except AskError as error:
        raise CouldNot(str(error)) from error


def asked(source: Source, at: float | None = None) -> Answer:
    """The same; raises AskError where it could not be asked."""
    match source.kind:
        case "exporter":
            from exporter.cli import sources  # noqa: PLC0415 -- each source for itself

            return sources.present(source.door(), timeout=source.timeout)
        case "kubelet":
            return _of_kubelet(source)
        case _:
            return _of_fleet(source, source.door(), at)


def _of_kubelet(source: Source) -> Answer:
    from exporter.cli import kubelet  # noqa: PLC0415 -- gRPC takes a while to import

    try:
        return kubelet.present(
            source.kubelet(), node=default_node_name(), timeout=source.timeout, clock=time.time
        )
    except ValueError as error:
        raise click.BadParameter(visible(str(error)), param_hint="--socket") from error


def _of_fleet(source: Source, door: Door, at: float | None) -> Answer:
    from exporter.cli.prometheus.client import Prometheus  # noqa: PLC0415 -- for this way alone
    from exporter.cli.prometheus.fleet import Scope, present  # noqa: PLC0415 -- as above

    return present(Prometheus(door, timeout=source.timeout), Scope(source.matchers, source.node), at)


@click.command(cls=WatchCommand, epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE[=DEVICE]]", default="", shell_complete=complete_what)
@click.option(
    "--pod",
    metavar="NAMESPACE/NAME",
    help="Only what this pod holds, exclusive CPUs too.",
    shell_complete=complete_pod,
)
@click.option(
    "--at", "at", metavar="TIME", help=f"As it was then, by an exporter's history or Prometheus: {EXPECTED}."
)
@watch_flag()
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
def who(
    ctx: click.Context,
    /,
    *,
    what: str,
    pod: str | None,
    at: str | None,
    watch: float | None,
    output: str,
    **flags: Any,
) -> None:
    """Which pod holds which device.

    RESOURCE is a resource's name, or the part after its slash where only one ends so; or a DRA driver, or
    cpu. DEVICE is a whole id, that of the device behind it, or a part of an id. =DEVICE looks in every
    resource.
    """
    question = question_of(what, pod)
    source = chosen(ctx, **flags)
    if at is not None and source.kind == "kubelet":
        raise click.UsageError("--at and --socket: a kubelet does not know the past, ask an exporter")
    if at is not None and watch is not None:
        raise click.UsageError("--at and --watch: the past does not change")
    if watch is not None:
        from exporter.cli.watch.cli import follow  # noqa: PLC0415 -- what is needed for this alone

        follow(source, question, interval=watch, output=output)
        return
    moment = time_of(at, "--at", time.time())
    if moment is not None and source.kind == "exporter":
        from exporter.cli.history import answer_from_the_past  # noqa: PLC0415 -- as above

        answer_from_the_past(question, moment, source, output=output)
        return
    answer_now(source, question, moment, output=output)


def answer_now(source: Source, question: Question, moment: float | None, *, output: str) -> None:
    """Print who holds what, or, by Prometheus, who held what at unix time `moment`."""
    answer = present(source, moment)
    for note in answer.notes:
        say(note)
    if not answer.fleet:
        warn(answer.told[0].document)
    try:
        found = select(answer, question)
    except Ambiguous as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    except NothingMatches as error:
        raise Nothing(str(error)) from error
    if output == "json":
        click.echo(as_json(document_of(found)))
        return
    if any(told.document.devices or told.document.claims or question.any for told in found.told):
        left_out = print_answer(
            found, question, wide=output == "wide", out=sys.stdout, look=look(sys.stdout, os.environ)
        )
        if left_out:
            say(left_out)
    else:
        say(_empty(found))


def _empty(answer: Answer) -> str:
    if answer.fleet:
        return f"{answer.origin} knows of no devices"
    return f"{answer.told[0].document.node} has no devices of device plugins"
