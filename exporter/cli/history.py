"""The command `devicelens history`: who held which device, from when to when."""

import time
from typing import Any

import click

from exporter.cli.common import EPILOG, TIME_FORMATS, OutputFlags, output_flags, parse_time_flag
from exporter.cli.completion import complete_namespace, complete_pod, complete_what
from exporter.cli.select import parse_query
from exporter.cli.sources import SourceFlags, choose_source, refuse_prometheus, source_flags


@click.command(epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE[=DEVICE]]", default="", shell_complete=complete_what)
@click.option(
    "--pod", metavar="[NAMESPACE/]NAME", help="Only what this pod held.", shell_complete=complete_pod
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Only what pods of this namespace held.",
    shell_complete=complete_namespace,
)
@click.option("--from", "since", metavar="TIME", help=f"Holdings after this time: {TIME_FORMATS}.")
@click.option("--to", "until", metavar="TIME", help="Holdings before this time.")
@click.option("--at", metavar="TIME", help="The holders at this time, as devicelens who --at.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Number of holdings, newest first.",
)
@click.option("--step", hidden=True)
@source_flags()
@output_flags("table", "wide", "json", sort=False, stale=False)
@click.pass_context
def history(
    ctx: click.Context,
    /,
    *,
    what: str,
    pod: str | None,
    namespace: str | None,
    since: str | None,
    until: str | None,
    at: str | None,
    limit: int,
    step: str | None,
    output: OutputFlags,
    **flags: Any,
) -> None:
    """Who held which device, from when to when. Times are in UTC.

    RESOURCE is a resource name, or the part after its slash if only one resource ends so; or a DRA driver, or
    the extended resource or DeviceClass that a container asked for. DEVICE is a whole id, the id of the
    parent device, or a part of an id. =DEVICE searches all resources.
    """
    query = parse_query(what, pod, namespace)
    source = choose_source(ctx, SourceFlags(**flags))
    if source.kind == "prometheus":
        refuse_prometheus(
            ctx,
            "use --url with the exporter of a node, devicelens who --prometheus URL --at TIME, or a query of "
            "devicelens_device_owner_info over time",
        )
    if source.kind == "kubelet":
        raise click.UsageError("--socket: a kubelet has no history, query an exporter")
    if step is not None:
        raise click.UsageError("--step: an exporter records each change, there is no step")
    if at is not None and (since is not None or until is not None):
        raise click.UsageError("--at: expected either --at, or --from and --to")
    now = time.time()
    moment = parse_time_flag(at, "--at", now)
    first, last = parse_time_flag(since, "--from", now), parse_time_flag(until, "--to", now)
    if first is not None and last is not None and first > last:
        raise click.BadParameter(f"found {since!r}, expected a time before that of --to", param_hint="--from")
    from exporter.cli import holdings  # noqa: PLC0415 -- imports an HTTP client

    if moment is not None:
        holdings.print_holders_at(query, moment, source, output)
    else:
        holdings.print_holdings(query, first, last, source, limit=limit, output=output)
