"""What the commands that ask have in common: flags, exit codes, the one clear line when it cannot."""

from collections.abc import Callable
from typing import IO, Any, Final, TypeVar

import click

from exporter.cli.select import Pod, Question, parse_pod, parse_what
from exporter.views.schema import Envelope
from runtime.flags import DURATION, flag
from runtime.text import visible

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL: Final = "http://127.0.0.1:10190"

EPILOG: Final = """\b
Exit status:
  0  found, or everything was asked for
  1  could not ask: the line on standard error says why
  2  wrong usage
  3  nothing matches
"""


class CouldNot(click.ClickException):
    """It could not be asked: one line on standard error, status 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the line."""
        say(self.message, file)


class Nothing(CouldNot):
    """Nothing matches: one line on standard error, status 3."""

    exit_code = 3


def timeout_flag() -> Callable[[F], F]:
    """--timeout."""
    return flag(
        "--timeout",
        type=DURATION,
        default="5s",
        metavar="DURATION",
        help="How long the answer may take; 30s from --prometheus.",
    )


def say(message: str, file: IO[Any] | None = None) -> None:
    """One line on standard error."""
    click.echo(f"devicelens: {visible(message)}", file=file, err=file is None)


def question_of(what: str, pod: str | None) -> Question:
    """What is asked for. Raises BadParameter."""
    try:
        resource, device = parse_what(what)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="RESOURCE") from error
    return Question(resource, device, pod_of(pod))


def pod_of(pod: str | None) -> Pod | None:
    """The pod of --pod. Raises BadParameter."""
    try:
        return None if pod is None else parse_pod(pod)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--pod") from error


def warn(document: Envelope) -> None:
    """Say so where the mapping is not fresh."""
    if document.freshness == "fresh":
        return
    age = "" if document.age_seconds is None else f", {document.age_seconds:.0f} s old"
    taken = "" if document.taken_at is None else f", of {document.taken_at}"
    error = document.error
    why = (
        "" if error is None else f"; {error.method} fails since {error.since}: {error.code}: {error.message}"
    )
    say(f"the mapping of {document.node} is {document.freshness}{age}{taken}{why}")
