"""The command: flags, exit codes, and the one clear line when it cannot."""

import sys
import time
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec
from click.core import ParameterSource

from daemon.flags import DURATION, default_node_name, flag
from daemon.text import visible
from exporter.core.address import parse_address
from exporter.web.schema import DevicesDocument
from exporter.who.ask import AskError
from exporter.who.ask import fetch as fetch_from_exporter
from exporter.who.select import Ambiguous, NothingMatches, Question, parse_pod, parse_what, select
from exporter.who.show import as_json, print_table

DEFAULT_URL: Final = "http://127.0.0.1:10190"

_EPILOG: Final = """\b
Exit status:
  0  found, or everything was asked for
  1  could not ask: the line on standard error says why
  2  wrong usage
  3  nothing matches
"""


class _CouldNot(click.ClickException):
    """It could not be asked: one line on standard error, status 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        _say(self.message, file)


class _Nothing(_CouldNot):
    """Nothing matches: one line on standard error, status 3."""

    exit_code = 3


@click.command(epilog=_EPILOG)
@click.argument("what", metavar="[RESOURCE[=DEVICE]]", default="")
@click.option("--pod", metavar="NAMESPACE/NAME", help="Only what this pod holds.")
@flag("--url", default=DEFAULT_URL, metavar="URL", help="An exporter: http://…, https://… or unix:PATH.")
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
@flag("--timeout", type=DURATION, default="5s", metavar="DURATION", help="How long the answer may take.")
@click.pass_context
def who(
    ctx: click.Context,
    *,
    what: str,
    pod: str | None,
    url: str,
    socket: Path | None,
    output: str,
    timeout: float,
) -> None:
    """Which pod holds which device.

    RESOURCE is a resource's name, or the part after its slash where only one ends so. DEVICE is a whole
    id, that of the device behind it, or a part of an id. =DEVICE looks in every resource.
    """
    question = _question(what, pod)
    if timeout <= 0:
        raise click.BadParameter("found 0, expected a duration above 0", param_hint="--timeout")
    if socket is not None and ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--url and --socket: expected one of them")
    try:
        document = _from_exporter(url, timeout) if socket is None else _from_kubelet(socket, timeout)
    except AskError as error:
        raise _CouldNot(str(error)) from error
    _warn(document)
    try:
        found = msgspec.structs.replace(document, devices=select(document, question))
    except Ambiguous as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    except NothingMatches as error:
        raise _Nothing(str(error)) from error
    if output == "json":
        click.echo(as_json(found))
    elif found.devices:
        print_table(found, question.pod, wide=output == "wide", out=sys.stdout)
    else:
        _say(f"{found.node} has no devices of device plugins")


def _question(what: str, pod: str | None) -> Question:
    try:
        resource, device = parse_what(what)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    try:
        return Question(resource, device, None if pod is None else parse_pod(pod))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--pod") from error


def _from_exporter(url: str, timeout: float) -> DevicesDocument:
    try:
        address = parse_address(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--url") from error
    return fetch_from_exporter(address, "/api/v1/devices", DevicesDocument, timeout=timeout)


def _from_kubelet(socket: Path, timeout: float) -> DevicesDocument:
    from exporter.who import kubelet  # noqa: PLC0415 -- gRPC takes a while to import

    try:
        document, notes = kubelet.fetch(socket, node=default_node_name(), timeout=timeout, clock=time.time)
    except ValueError as error:
        raise click.BadParameter(visible(str(error)), param_hint="--socket") from error
    for note in notes:
        _say(note)
    return document


def _warn(document: DevicesDocument) -> None:
    """Say so where the mapping is not fresh."""
    if document.freshness == "fresh":
        return
    age = "" if document.age_seconds is None else f", {document.age_seconds:.0f} s old"
    taken = "" if document.taken_at is None else f", of {document.taken_at}"
    error = document.error
    why = (
        "" if error is None else f"; {error.method} fails since {error.since}: {error.code}: {error.message}"
    )
    _say(f"the mapping of {document.node} is {document.freshness}{age}{taken}{why}")


def _say(message: str, file: IO[Any] | None = None) -> None:
    click.echo(f"devicelens: {visible(message)}", file=file, err=file is None)
