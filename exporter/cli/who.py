"""The command `devicelens who`: which pod holds which device, now or at a moment."""

import time
from itertools import chain
from typing import Any

import click
from click.shell_completion import CompletionItem

from exporter.cli.common import EPILOG, TIME_FORMATS, OutputFlags, output_flags, parse_time_flag
from exporter.cli.completion import complete_namespace, complete_node, complete_pod, complete_what
from exporter.cli.select import STATES, parse_query
from exporter.cli.sources import SourceFlags, choose_source, source_flags
from runtime.text import parse_duration, quoted

_SHORTEST: float = 0.2
_WATCH: tuple[str, ...] = ("--watch", "-w")


class _Interval(click.ParamType[Any]):
    """The optional duration of --watch; 0 without one."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if not value:
            return 0.0
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds < _SHORTEST:
            self.fail(f"found {value!r}, expected at least {_SHORTEST:g}s", param, ctx)
        return seconds


class _States(click.ParamType[Any]):
    """Some of STATES, separated by commas."""

    name = "states"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        words = value.split(",")
        for word in words:
            if word not in STATES:
                self.fail(f"found {quoted(word)}, expected {', '.join(STATES)}", param, ctx)
        return words

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 -- click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem[Any]]:
        given, comma, _ = incomplete.rpartition(",")
        words = [f"{given}{comma}{state}" for state in STATES if state not in given.split(",")]
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


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
    metavar="[NAMESPACE/]NAME",
    help="Only what this pod holds, including exclusive CPUs.",
    shell_complete=complete_pod,
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Only what pods of this namespace hold.",
    shell_complete=complete_namespace,
)
@click.option(
    "--state",
    "states",
    type=_States(),
    multiple=True,
    metavar="free,held,unhealthy",
    help="Only devices in one of these states; a held device may be unhealthy, too.",
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
@output_flags("table", "wide", "json")
@click.pass_context
def who(
    ctx: click.Context,
    /,
    *,
    what: str,
    pod: str | None,
    namespace: str | None,
    states: tuple[list[str], ...],
    at: str | None,
    watch: float | None,
    output: OutputFlags,
    **flags: Any,
) -> None:
    """Which pod holds which device.

    RESOURCE is a resource name or DeviceClass that a container asked for, or the part after its slash if only
    one ends so; or a DRA driver, or cpu. DEVICE is a whole id, the id of the parent device, a UUID, PCI
    address or CDI name, or a part of one. =DEVICE searches all resources.
    """
    query = parse_query(what, pod, namespace, chain.from_iterable(states))
    source = choose_source(ctx, SourceFlags(**flags))
    if at is not None and source.kind == "kubelet":
        raise click.UsageError("--at and --socket: a kubelet has no history, query an exporter")
    if at is not None and watch is not None:
        raise click.UsageError("--at and --watch: the past does not change")
    if watch is not None:
        if output.fail_if_stale:
            raise click.UsageError("--fail-if-stale and --watch: a watch runs until interrupted")
        from exporter.cli.watch import follow  # noqa: PLC0415 -- imports asyncio and rich

        follow(source, query, interval=watch, output=output)
        return
    moment = parse_time_flag(at, "--at", time.time())
    from exporter.cli import holdings  # noqa: PLC0415 -- imports an HTTP client

    if moment is None or source.kind != "exporter":
        holdings.print_holders(query, moment, source, output)
        return
    if output.fail_if_stale:
        raise click.UsageError("--fail-if-stale and --at: history does not become stale")
    holdings.print_holders_at(query, moment, source, output)
