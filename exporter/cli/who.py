"""The command `devicelens who`: which pod holds which device, now or at a moment."""

import sys
import time
from typing import Any

import click

from exporter.cli.common import EPILOG, TIME_FORMATS, as_json, parse_time_flag, say, warn_unless_fresh
from exporter.cli.completion import complete_node, complete_pod, complete_what
from exporter.cli.select import HolderQuery, parse_query, select
from exporter.cli.sources import ChosenSource, SourceFlags, choose_source, source_flags
from runtime.flags import parse_duration

AUTO: float = 0.0
"""--watch without a duration."""
_SHORTEST: float = 0.2
_WATCH: tuple[str, ...] = ("--watch", "-w")


class _Interval(click.ParamType[Any]):
    """The optional duration of --watch."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if not value:
            return AUTO
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds < _SHORTEST:
            self.fail(f"found {value!r}, expected at least {_SHORTEST:g}s", param, ctx)
        return seconds


class WatchCommand(click.Command):
    """Accepts `--watch`, `--watch 5s` and `--watch=5s`: the next word is its value if it is a duration."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments as click does."""
        return super().parse_args(ctx, with_watch_value(args))


def with_watch_value(args: list[str]) -> list[str]:
    """The arguments with --watch and its duration, or "", in one word."""
    found: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*found, word, *rest]
        if word not in _WATCH:
            found.append(word)
        elif rest and _is_duration(rest[0]):
            found.append(f"--watch={rest.pop(0)}")
        else:
            found.append("--watch=")
    return found


def _is_duration(text: str) -> bool:
    try:
        parse_duration(text)
    except ValueError:
        return False
    return True


@click.command(cls=WatchCommand, epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE[=DEVICE]]", default="", shell_complete=complete_what)
@click.option(
    "--pod",
    metavar="NAMESPACE/NAME",
    help="Only what this pod holds, including exclusive CPUs.",
    shell_complete=complete_pod,
)
@click.option(
    "--at",
    metavar="TIME",
    help=f"The holders at that time, from an exporter's history or Prometheus: {TIME_FORMATS}.",
)
@click.option(
    *_WATCH,
    "watch",
    type=_Interval(),
    default=None,
    metavar="[DURATION]",
    help="Show changes until interrupted: an exporter sends them at once; a kubelet is polled every 2s, "
    "Prometheus every 15s, or as given.",
)
@source_flags(complete_node)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("table", "wide", "json")),
    default="table",
    show_default=True,
    help="Output format.",
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

    RESOURCE is a resource name, or the part after its slash if only one resource ends so; or a DRA driver, or
    cpu. DEVICE is a whole id, the id of the parent device, or a part of an id. =DEVICE searches all
    resources.
    """
    query = parse_query(what, pod)
    source = choose_source(ctx, SourceFlags(**flags))
    if at is not None and source.kind == "kubelet":
        raise click.UsageError("--at and --socket: a kubelet has no history, query an exporter")
    if at is not None and watch is not None:
        raise click.UsageError("--at and --watch: the past does not change")
    if watch is not None:
        from exporter.cli.watch import follow  # noqa: PLC0415 -- imports asyncio, aiohttp and rich

        follow(source, query, interval=watch, output=output)
        return
    moment = parse_time_flag(at, "--at", time.time())
    if moment is not None and source.kind == "exporter":
        from exporter.cli.holdings import print_holders_at  # noqa: PLC0415 -- imports asyncio, aiohttp, rich

        print_holders_at(query, moment, source, output=output)
        return
    _print_holders(source, query, moment, output=output)


def _print_holders(source: ChosenSource, query: HolderQuery, at: float | None, *, output: str) -> None:
    from exporter.cli.query import current_mapping  # noqa: PLC0415 -- imports asyncio and aiohttp

    answer = current_mapping(source, at)
    for note in answer.notes:
        say(note)
    if not answer.fleet:
        warn_unless_fresh(answer.nodes[0].document)
    found = select(answer, query)
    if output == "json":
        click.echo(as_json(found.document))
    elif query.filters or any(node.document.devices or node.document.claims for node in found.nodes):
        from exporter.cli.table import columns, print_table, rows  # noqa: PLC0415 -- imports rich

        wide = output == "wide"
        print_table(columns(found, wide=wide), rows(found, query, wide=wide), sys.stdout, unlimited=wide)
    elif found.fleet:
        say(f"{found.origin} has no devices")
    else:
        say(f"{found.nodes[0].document.node} has no devices of device plugins")
