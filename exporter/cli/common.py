"""Exit codes, errors, notes on standard error, and JSON output of the commands."""

import json
from collections.abc import Callable
from typing import IO, Any, Final, TypeVar

import click
import msgspec

from exporter.views.schema import Envelope
from exporter.views.wording import LOOSELY, parse_time
from runtime.text import visible

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL: Final = "http://127.0.0.1:10190"

EPILOG: Final = """\b
Exit status:
  0  found, or no filter was given
  1  the query failed: the line on standard error gives the reason
  2  wrong usage
  3  nothing matches
"""

TIME_FORMATS: Final = LOOSELY.format(zone="this machine's zone")
"""What `parse_time_flag` accepts, for help texts and messages."""


def output_option(*formats: str) -> Callable[[F], F]:
    """The option -o; the first of `formats` is its default."""
    kind = click.Choice(formats)
    return click.option(
        "-o", "--output", type=kind, default=formats[0], show_default=True, help="Output format."
    )


class AskError(click.ClickException):
    """The source cannot be queried. The command prints the message as one line and exits with 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        say(self.message, file)


class NoMatchError(AskError):
    """No device or holding matches. The command prints the message as one line and exits with 3."""

    exit_code = 3


def say(message: str, file: IO[Any] | None = None) -> None:
    """Print one line on standard error."""
    click.echo(f"devicelens: {visible(message)}", file=file, err=file is None)


def warn_unless_fresh(document: Envelope) -> None:
    """Print the age of the node's mapping, and why it is not refreshed."""
    if document.freshness == "fresh":
        return
    age = "" if document.age_seconds is None else f", {document.age_seconds:.0f} s old"
    taken = "" if document.taken_at is None else f", of {document.taken_at}"
    error = document.error
    reason = (
        ""
        if error is None
        else f"; {error.method} has failed since {error.since}: {error.code}: {error.message}"
    )
    say(f"the mapping of {document.node} is {document.freshness}{age}{taken}{reason}")


def as_json(document: msgspec.Struct) -> str:
    """The document as indented JSON in ASCII: other characters are escaped, because a terminal may interpret
    them.
    """
    text = json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=True)
    return text.replace("\x7f", "\\u007f")


def parse_time_flag(text: str | None, flag: str, now: float) -> float | None:
    """Unix time of the flag's value; None if the flag is not given. Raises BadParameter."""
    if text is None:
        return None
    try:
        return parse_time(text, now)
    except ValueError as error:
        raise click.BadParameter(f"{error}, expected {TIME_FORMATS}", param_hint=flag) from None
