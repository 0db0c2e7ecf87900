"""The command `devicelens explain`: one device, in sentences and in facts."""

import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlencode

import click

from exporter.cli.common import EPILOG, CouldNot, Nothing, say, warn
from exporter.cli.completion import complete_device
from exporter.cli.http import AskError, Deadline, NobodyError, RefusedError, UnknownError, fetch
from exporter.cli.select import EXPECTED, time_of
from exporter.cli.show import as_json
from exporter.cli.sources import Source, chosen, source_flags
from exporter.views.schema import DeviceEntry, ExplainDocument
from exporter.views.wording import lasting, ranges, spelled
from runtime.flags import default_node_name
from runtime.text import visible

_RELATIVES: Final = 10
"""Siblings and parts that are told; -o wide and JSON have more."""


@click.command(epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE=]DEVICE", shell_complete=complete_device)
@click.option("--at", "at", metavar="TIME", help=f"As it was then, by Prometheus: {EXPECTED}.")
@source_flags()
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "wide", "json")),
    default="text",
    show_default=True,
    help="How to answer.",
)
@click.pass_context
def explain(ctx: click.Context, /, *, what: str, at: str | None, output: str, **flags: Any) -> None:
    """One device: how its id was read, who holds it, and why it is, or is not, attributed to a pod.

    DEVICE is a whole id, that of the device behind others, the name of a claimed device, or a part of one
    id. RESOURCE is needed where several have a device of this id; it may be the part after its slash.
    """
    resource, device = parse_device(what)
    source = chosen(ctx, **flags)
    if at is not None and source.kind != "prometheus":
        raise click.UsageError(
            "--at: expected --prometheus, for others explain the present alone; "
            "devicelens history tells an exporter's past"
        )
    moment = time_of(at, "--at", time.time())

    try:
        document, notes = _asked(source, what, resource, device, moment)
    except AskError as error:
        raise CouldNot(str(error)) from error
    for note in notes:
        say(note)
    if source.kind != "prometheus":
        warn(document)
    if output == "json":
        click.echo(as_json(document))
        return
    for sentence in document.sentences:
        click.echo(spelled(sentence))
    click.echo()
    for name, value in facts(document, relatives=None if output == "wide" else _RELATIVES):
        click.echo(f"{name:<12} {spelled(value)}")


Explained = tuple[ExplainDocument, tuple[str, ...]]
"""A document, and notes on it."""


def _asked(source: Source, what: str, resource: str, device: str, moment: float | None) -> Explained:
    try:
        return _ask(source, resource, device, moment)
    except Nothing:
        short, equals, rest = device.partition("=")
        if resource or what.startswith("=") or not (short and equals and rest):
            raise
        # No id has `gpu=7c1f` in it: it is gpu's device 7c1f, then.
        return _ask(source, short, rest, moment)


def _ask(source: Source, resource: str, device: str, moment: float | None) -> Explained:
    match source.kind:
        case "exporter":
            return _from_exporter(source, resource, device), ()
        case "kubelet":
            return _from_kubelet(source, resource, device)
        case _:
            return _from_fleet(source, resource, device, moment)


def parse_device(text: str) -> tuple[str, str]:
    """Resource and device of `DEVICE`, `=DEVICE` or `RESOURCE=DEVICE`. An id may have a `=` too: what is
    before the first one is a resource only if it may be one. Raises BadParameter for no device at all.
    """
    resource, equals, device = text.partition("=")
    if equals and device and (not resource or resource.count("/") == 1):
        return resource, device
    if text in {"", "="}:
        raise click.BadParameter(f"found {visible(text)!r}, expected a device's id", param_hint="DEVICE")
    return "", text


def _from_exporter(source: Source, resource: str, device: str) -> ExplainDocument:
    asked = {"device": device} | ({"resource": resource} if resource else {})
    where = f"/api/v1/explain?{urlencode(asked, errors='surrogateescape')}"
    try:
        return fetch(source.door(), where, ExplainDocument, Deadline(source.timeout))
    except RefusedError as error:
        raise click.BadParameter(error.detail, param_hint="DEVICE") from error
    except UnknownError as error:
        raise Nothing(error.detail) from error


def _from_kubelet(source: Source, resource: str, device: str) -> Explained:
    from exporter.cli import kubelet  # noqa: PLC0415 -- gRPC takes a while to import
    from exporter.mapping.device_ids import read_id  # noqa: PLC0415 -- as above
    from exporter.views.documents import explained  # noqa: PLC0415 -- as above
    from exporter.views.explain import AmbiguousDevice, UnknownDevice  # noqa: PLC0415 -- for this way alone

    try:
        moment, notes = kubelet.look(
            source.kubelet(), node=default_node_name(), timeout=source.timeout, clock=time.time
        )
    except ValueError as error:
        raise click.BadParameter(visible(str(error)), param_hint="--socket") from error
    try:
        return explained(moment, device, resource, reader=read_id), notes
    except AmbiguousDevice as error:
        raise click.BadParameter(visible(str(error)), param_hint="DEVICE") from error
    except UnknownDevice as error:
        raise Nothing(str(error)) from error


def _from_fleet(source: Source, resource: str, device: str, at: float | None) -> Explained:
    from exporter.cli.prometheus.client import Prometheus  # noqa: PLC0415 -- for this way alone
    from exporter.cli.prometheus.explaining import Several, Unknown, explained  # noqa: PLC0415 -- as above
    from exporter.cli.prometheus.fleet import Scope  # noqa: PLC0415 -- as above

    prometheus = Prometheus(source.door(), timeout=source.timeout)
    try:
        return explained(prometheus, Scope(source.matchers, source.node), device, resource, at)
    except Several as error:
        raise click.BadParameter(visible(str(error)), param_hint="DEVICE") from error
    except (Unknown, NobodyError) as error:
        raise Nothing(str(error)) from error


def facts(document: ExplainDocument, *, relatives: int | None = None) -> Iterator[tuple[str, str]]:
    """What the sentences say, as names and values; of siblings and parts no more than `relatives`."""
    yield "device", document.device
    if document.resource is not None:
        yield "resource", document.resource
    for resource in document.elsewhere:
        yield "also in", resource
    reading = document.reading
    number = f" {reading.replica}" if reading.replica else ""
    partition = f", partition {reading.partition}" if reading.partition else ""
    yield "read as", f"{reading.kind}{number}{partition} (rule {reading.rule})"
    if document.parent is not None:
        yield "parent", document.parent
    if document.entry is not None:
        yield from _of_device(document.entry)
    if document.numa is not None and document.numa.told_by is not None:
        yield "numa", f"{ranges(document.numa.nodes)} (told by the {document.numa.told_by})"
    for name, known in (("sibling", document.siblings), ("part", document.parts)):
        for relative in known[:relatives]:
            holders = ", ".join(f"{h.namespace}/{h.pod}" for h in relative.holders)
            yield name, f"{relative.device} {holders or '(nobody)'}"
        if relatives is not None and len(known) > relatives:
            yield name, f"… and {len(known) - relatives} more: -o wide"
    for claim in document.claims:
        yield "claimed", f"{claim.driver} {claim.pool} {claim.device}"
    age = "" if document.age_seconds is None else f", {lasting(document.age_seconds)} old"
    yield "mapping", f"{document.freshness}{age}, of {document.node}"


def _of_device(entry: DeviceEntry) -> Iterator[tuple[str, str]]:
    healthy = {True: "yes", False: "no", None: "not known"}[entry.healthy]
    yield "allocatable", healthy
    for holder in entry.holders:
        since = (
            "" if holder.since is None else f", since {'' if holder.since_exact else 'before '}{holder.since}"
        )
        yield "holder", f"{holder.namespace}/{holder.pod} {holder.container}{since}"
        if holder.pod_uid is not None:
            yield "  uid", holder.pod_uid
        if holder.workload is not None:
            yield "  workload", f"{holder.workload.kind}/{holder.workload.name}"
    plugin = entry.plugin
    if plugin is None:
        return
    reason = "" if plugin.reason is None else f": {plugin.reason}"
    silent = "" if plugin.answers else " (its last word)"
    yield "plugin", f"{plugin.health}{reason}, by {plugin.source}{silent}"
    if plugin.last_allocated is not None:
        yield "given out", plugin.last_allocated
    for name, value in plugin.attributes.items():
        yield "attribute", f"{name}={value}"
