"""The command `devicelens anomalies`: what an operator must act on, and the evidence."""

import sys
from typing import Any

import click

from exporter.cli.common import (
    EPILOG,
    OutputFlags,
    as_json,
    exit_if_stale,
    output_flags,
    say,
    warn_unless_fresh,
)
from exporter.cli.sources import SourceFlags, choose_source, refuse_prometheus, source_flags


@click.command(epilog=EPILOG)
@source_flags()
@output_flags("table", "wide", "json")
@click.pass_context
def anomalies(ctx: click.Context, /, *, output: OutputFlags, **flags: Any) -> None:
    """What needs attention on the exporter's node: a held device that is unhealthy, a device with several
    holders, a container split across NUMA nodes, a plugin that is gone, and a mapping that is stale.
    """
    source = choose_source(ctx, SourceFlags(**flags))
    if source.kind == "prometheus":
        refuse_prometheus(ctx, "use --url with the exporter of a node, or a query of devicelens_anomaly_info")
    if source.kind == "kubelet":
        raise click.UsageError("--socket: a kubelet reports no anomalies, query an exporter")
    from exporter.cli.query import anomalies as query  # noqa: PLC0415 -- imports an HTTP client
    from exporter.cli.table import anomalies_table, print_table  # noqa: PLC0415 -- imports a part of rich

    document = query(source)
    with exit_if_stale(stale=warn_unless_fresh(document, output) and output.fail_if_stale):
        if output.json:
            click.echo(as_json(document))
            return
        if not document.anomalies:
            say(f"no anomalies on {document.node}")
            return
        table = anomalies_table(document, wide=output.wide, sort_by=output.sort_by)
        print_table(table, sys.stdout, output)
