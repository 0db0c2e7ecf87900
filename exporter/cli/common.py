"""What the commands share: flags of the output, exit codes, errors, notes on standard error, JSON."""

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import IO, Any, Final, TypeVar, cast

import click
import msgspec

from exporter.views.schema import DeviceEntry, Envelope, HolderEntry
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
  4  the mapping is stale, with --fail-if-stale
"""

TIME_FORMATS: Final = LOOSELY.format(zone="this machine's zone")
"""What `parse_time_flag` accepts, for help texts and messages."""


SORT_KEYS: Final = ("since", "device", "pod")
"""The values of --sort-by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """The flags of the output. `sort_by` is one of SORT_KEYS, None for the order of the source."""

    output: str = "table"
    no_headers: bool = False
    sort_by: str | None = None
    fail_if_stale: bool = False

    @property
    def wide(self) -> bool:
        """Whether the output is a table with all columns."""
        return self.output == "wide"

    @property
    def json(self) -> bool:
        """Whether the output is JSON."""
        return self.output == "json"


def output_flags(
    *formats: str, headers: bool = True, sort: bool = True, stale: bool = True
) -> Callable[[F], F]:
    """The options of OutputFlags, which the command gets as `output`; the first of `formats` is the default
    of -o. A command without headers, order or freshness does not have the flag.
    """
    kind = click.Choice(formats)
    options = [
        click.option(
            "-o", "--output", type=kind, default=formats[0], show_default=True, help="Output format."
        )
    ]
    if headers:
        words = "No headers, no counts and no warning above the table: for scripts."
        options.append(click.option("--no-headers", is_flag=True, help=words))
    if sort:
        words = "Order of the table: the longest held first, by device id, or by pod."
        options.append(click.option("--sort-by", type=click.Choice(SORT_KEYS), help=words))
    if stale:
        words = "Exit with 4 if the mapping is stale."
        options.append(click.option("--fail-if-stale", is_flag=True, help=words))

    def decorate(command: F) -> F:
        @wraps(command)
        def collected(*arguments: Any, **values: Any) -> Any:
            own = {name: values.pop(name) for name in OutputFlags.__slots__ if name in values}
            return command(*arguments, output=OutputFlags(**own), **values)

        for option in reversed(options):
            option(collected)
        return cast("F", collected)

    return decorate


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


STALE: Final = frozenset({"stale", "unknown"})
"""The words of `freshness` for a mapping that must not be relied on."""


def warn_unless_fresh(document: Envelope, output: OutputFlags) -> bool:
    """Print the age of a mapping, and why it is not refreshed; returns whether it is stale."""
    if document.freshness == "fresh":
        return False
    age = "" if document.age_seconds is None else f", {document.age_seconds:.0f} s old"
    taken = "" if document.taken_at is None else f", of {document.taken_at}"
    error = document.error
    reason = (
        ""
        if error is None
        else f"; {error.method} has failed since {error.since}: {error.code}: {error.message}"
    )
    note = f"the mapping of {document.node} is {document.freshness}{age}{taken}{reason}"
    stale = document.freshness in STALE
    if not (stale and print_warning(note, output) and sys.stdout.isatty() and sys.stderr.isatty()):
        say(note)
    return stale


def print_warning(note: str, output: OutputFlags) -> bool:
    """Print `note` above an output for people, on standard output; returns whether it was printed."""
    if output.json or output.no_headers:
        return False
    click.echo(f"Warning: {visible(note)}")
    return True


class StaleError(NoMatchError):
    """Nothing matches in a stale mapping: the command exits with 4."""

    exit_code = 4


@contextmanager
def exit_if_stale(*, stale: bool) -> Generator[None]:
    """End with exit status 4 after the output if the mapping is `stale`, also where nothing matches."""
    try:
        yield
    except NoMatchError as error:
        if not stale:
            raise
        raise StaleError(error.message) from error
    if stale:
        raise click.exceptions.Exit(StaleError.exit_code)


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


def unconfirmed(holder: HolderEntry | None) -> str:
    """Marks for a holder that the kubelet has not listed since its restart, and for one whose physical device
    another scheduler chose and cannot be told.
    """
    if holder is None:
        return ""
    return f"{'' if holder.confirmed else ', unconfirmed'}{'' if holder.provable else ', not provable'}"


def claims_of(device: DeviceEntry, holder: HolderEntry) -> str:
    """The claims through which `holder` holds a device, with the share of each that has one."""
    names = (holder.namespace, holder.pod, holder.container)
    return ", ".join(
        f"{one.claim_namespace}/{one.claim}{f' ({one.share_id})' if one.share_id else ''}"
        for one in (() if device.claimed is None else device.claimed.through)
        if not one.admin and (one.namespace, one.pod, one.container) == names
    )


def taints_of(device: DeviceEntry) -> list[str]:
    """The taints of a claimed device, as kubectl writes those of a node: `example.com/xid=79:NoExecute`."""
    return [
        f"{one.key}{f'={one.value}' if one.value else ''}:{one.effect}"
        for one in (() if device.claimed is None else device.claimed.taints)
    ]
