"""The command `devicelens explain`: one device, in sentences and in facts."""

from collections.abc import Iterator
from typing import Any, Final

import click

from exporter.cli.common import (
    EPILOG,
    NoMatchError,
    OutputFlags,
    as_json,
    claims_of,
    exit_if_stale,
    output_flags,
    say,
    taints_of,
    unconfirmed,
    warn_unless_fresh,
)
from exporter.cli.completion import complete_device
from exporter.cli.sources import SourceFlags, choose_source, refuse_prometheus, source_flags
from exporter.views.schema import DeviceEntry, ExplainDocument
from exporter.views.wording import lasting, ranges, spelled
from runtime.text import shortened, visible

_RELATIVES: Final = 10
"""Siblings and parts in the default output; -o wide and JSON have more."""


@click.command(epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE=]DEVICE", shell_complete=complete_device)
@click.option("--at", hidden=True, metavar="TIME")
@source_flags()
@output_flags("text", "wide", "json", headers=False, sort=False)
@click.pass_context
def explain(ctx: click.Context, /, *, what: str, at: str | None, output: OutputFlags, **flags: Any) -> None:
    """One device: how its id reads, who holds it, and why it has a holder or none.

    DEVICE is a whole id, a parent's id, a claimed device's name or CDI name, a UUID, or a part of an id.
    RESOURCE is needed if several resources have a device with this id; the part after its slash is enough.
    """
    resource, device = parse_device(what)
    source = choose_source(ctx, SourceFlags(**flags))
    if source.kind == "prometheus":
        refuse_prometheus(
            ctx, "use --url with the exporter of the device's node, or devicelens who --prometheus URL"
        )
    if at is not None:
        raise click.UsageError("--at: explain has the present only; use devicelens who --at or history")
    from exporter.cli.query import explanation  # noqa: PLC0415 -- imports an HTTP client

    try:
        document, notes = explanation(source, resource, device)
    except NoMatchError:
        short, equals, rest = device.partition("=")
        if resource or what.startswith("=") or not (short and equals and rest):
            raise
        # No id contains `gpu=7c1f`, so this is device 7c1f of gpu.
        document, notes = explanation(source, short, rest)
    for note in notes:
        say(note)
    with exit_if_stale(stale=warn_unless_fresh(document, output) and output.fail_if_stale):
        if output.json:
            click.echo(as_json(document))
            return
        for sentence in document.sentences:
            click.echo(spelled(sentence))
        click.echo()
        for name, value in facts(document, relatives=None if output.wide else _RELATIVES):
            click.echo(f"{name:<12} {spelled(value)}")


def parse_device(text: str) -> tuple[str, str]:
    """Resource and device of DEVICE, =DEVICE or RESOURCE=DEVICE. A device id may contain `=`: what precedes
    the first one is a resource only if it has the form of one. Raises BadParameter if there is no device.
    """
    resource, equals, device = text.partition("=")
    if equals and device and (not resource or resource.count("/") == 1):
        return resource, device
    if text in {"", "="}:
        raise click.BadParameter(f"found {visible(text)!r}, expected a device's id", param_hint="DEVICE")
    return "", text


def facts(document: ExplainDocument, *, relatives: int | None = None) -> Iterator[tuple[str, str]]:
    """The facts behind the sentences, as names and values, with at most `relatives` siblings and parts."""
    yield "device", document.device
    if document.resource is not None:
        yield "resource", document.resource
    for resource in document.elsewhere:
        yield "also in", resource
    reading = document.reading
    number = f" {shortened(reading.replica)}" if reading.replica else ""
    partition = f", partition {shortened(reading.partition)}" if reading.partition else ""
    yield "read as", f"{reading.kind}{number}{partition} (rule {reading.rule})"
    if document.parent is not None:
        yield "parent", shortened(document.parent)
    if document.entry is not None:
        yield from _of_device(document.entry)
    yield from _health(document)
    if document.numa is not None and document.numa.told_by is not None:
        yield "numa", f"{ranges(document.numa.nodes)} (from the {document.numa.told_by})"
    for name, known in (("sibling", document.siblings), ("part", document.parts)):
        for relative in known[:relatives]:
            holders = ", ".join(f"{h.namespace}/{h.pod}" for h in relative.holders)
            yield name, f"{shortened(relative.device)} {holders or '(no holder)'}"
        if relatives is not None and len(known) > relatives:
            yield name, f"… and {len(known) - relatives} more: -o wide"
    age = "" if document.age_seconds is None else f", {lasting(document.age_seconds)} old"
    yield "mapping", f"{document.freshness}{age}, of {document.node}"


def _health(document: ExplainDocument) -> Iterator[tuple[str, str]]:
    """The health of a claimed device, and of a physical device that the kubelet lists by its parts only."""
    entry, health = document.entry, document.health
    if health is None or (entry is not None and entry.claimed is None):
        return
    since = "" if health.since is None else f", since {health.since}"
    yield "health", f"{health.words}{'' if health.reason is None else f': {health.reason}'}{since}"


def _of_claimed(entry: DeviceEntry) -> Iterator[tuple[str, str]]:
    """What DRA says about a device."""
    claimed = entry.claimed
    if claimed is None:
        return
    yield "driver", claimed.driver
    yield "pool", claimed.pool
    for one in claimed.through:
        if one.admin:
            yield "admin", f"{one.namespace}/{one.pod} {one.container}, by {one.claim_namespace}/{one.claim}"
    yield from (("taint", taint) for taint in taints_of(entry))
    yield from (("attribute", f"{name}={value}") for name, value in claimed.attributes.items())
    yield from (("capacity", f"{name}={value}") for name, value in claimed.capacity.items())


def _of_device(entry: DeviceEntry) -> Iterator[tuple[str, str]]:
    if entry.claimed is None:
        yield "allocatable", {True: "yes", False: "no", None: "not known"}[entry.healthy]
    for holder in entry.holders:
        since = (
            "" if holder.since is None else f", since {'' if holder.since_exact else 'before '}{holder.since}"
        )
        yield "holder", f"{holder.namespace}/{holder.pod} {holder.container}{since}{unconfirmed(holder)}"
        if holder.pod_uid is not None:
            yield "  uid", holder.pod_uid
        if holder.workload is not None:
            yield "  workload", f"{holder.workload.kind}/{holder.workload.name}"
        if claims := claims_of(entry, holder):
            yield "  claim", claims
        if holder.requested_as not in {None, entry.resource}:
            yield "  asked for", holder.requested_as or ""
    yield from _of_claimed(entry)
    plugin = entry.plugin
    if plugin is None:
        return
    reason = "" if plugin.reason is None else f": {plugin.reason}"
    silent = "" if plugin.answers else " (last report)"
    yield "plugin", f"{plugin.health}{reason}, by {plugin.source}{silent}"
    if plugin.last_allocated is not None:
        yield "allocated", plugin.last_allocated
    for name, value in plugin.attributes.items():
        yield "attribute", f"{name}={value}"
