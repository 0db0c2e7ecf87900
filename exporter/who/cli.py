"""The command `devicelens who`."""

import sys
import time
from pathlib import Path

import click
import msgspec
from click.core import ParameterSource

from daemon.flags import default_node_name
from daemon.text import visible
from exporter.web.api.schema import DevicesDocument
from exporter.who.ask import AskError
from exporter.who.ask import fetch as fetch_from_exporter
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
    warn,
)
from exporter.who.moments import EXPECTED
from exporter.who.past_cli import answer_from_the_past
from exporter.who.select import Ambiguous, NothingMatches, select
from exporter.who.show import as_json, print_table


@click.command(epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE[=DEVICE]]", default="")
@click.option("--pod", metavar="NAMESPACE/NAME", help="Only what this pod holds.")
@click.option("--at", "at", metavar="TIME", help=f"As it was then, by an exporter's history: {EXPECTED}.")
@url_flag()
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A kubelet's PodResources socket, asked instead of an exporter.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "wide", "json")),
    default="table",
    show_default=True,
    help="How to answer.",
)
@timeout_flag()
@click.pass_context
def who(
    ctx: click.Context,
    *,
    what: str,
    pod: str | None,
    at: str | None,
    url: str,
    socket: Path | None,
    output: str,
    timeout: float,
) -> None:
    """Which pod holds which device.

    RESOURCE is a resource's name, or the part after its slash where only one ends so. DEVICE is a whole
    id, that of the device behind it, or a part of an id. =DEVICE looks in every resource.
    """
    question = question_of(what, pod)
    some_time(timeout)
    if socket is not None and ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--url and --socket: expected one of them")
    if at is not None:
        if socket is not None:
            raise click.UsageError("--at and --socket: a kubelet does not know the past, ask an exporter")
        answer_from_the_past(question, at, url, timeout=timeout, as_table=output != "json")
        return
    try:
        document = _from_exporter(url, timeout) if socket is None else _from_kubelet(socket, timeout)
    except AskError as error:
        raise CouldNot(str(error)) from error
    warn(document)
    try:
        found = msgspec.structs.replace(document, devices=select(document, question))
    except Ambiguous as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    except NothingMatches as error:
        raise Nothing(str(error)) from error
    if output == "json":
        click.echo(as_json(found))
    elif found.devices:
        print_table(found, question.pod, wide=output == "wide", out=sys.stdout)
    else:
        say(f"{found.node} has no devices of device plugins")


def _from_exporter(url: str, timeout: float) -> DevicesDocument:
    return fetch_from_exporter(exporter_at(url), "/api/v1/devices", DevicesDocument, timeout=timeout)


def _from_kubelet(socket: Path, timeout: float) -> DevicesDocument:
    from exporter.who import kubelet  # noqa: PLC0415 -- gRPC takes a while to import

    try:
        document, notes = kubelet.fetch(socket, node=default_node_name(), timeout=timeout, clock=time.time)
    except ValueError as error:
        raise click.BadParameter(visible(str(error)), param_hint="--socket") from error
    for note in notes:
        say(note)
    return document
