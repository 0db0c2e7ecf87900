"""The command `devicelens explain`: one device, in sentences and in facts."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import click
from click.core import ParameterSource

from daemon.flags import default_node_name
from daemon.text import visible
from exporter.core.explain import AmbiguousDevice, UnknownDevice
from exporter.core.ids import read
from exporter.web.api.explain_schema import ExplainDocument
from exporter.web.api.schema import DeviceEntry
from exporter.web.words import lasting, ranges, spelled
from exporter.who.ask import AskError, RefusedError, UnknownError
from exporter.who.ask import fetch as fetch_from_exporter
from exporter.who.common import (
    EPILOG,
    CouldNot,
    Nothing,
    exporter_at,
    say,
    some_time,
    timeout_flag,
    url_flag,
    warn,
)
from exporter.who.show import as_json


@click.command(epilog=EPILOG)
@click.argument("what", metavar="[RESOURCE=]DEVICE")
@url_flag()
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A kubelet's PodResources socket, asked instead of an exporter.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="How to answer.",
)
@timeout_flag()
@click.pass_context
def explain(
    ctx: click.Context, *, what: str, url: str, socket: Path | None, output: str, timeout: float
) -> None:
    """One device: how its id was read, who holds it, and why it is, or is not, attributed to a pod.

    DEVICE is a whole id, that of the device behind others, the name of a claimed device, or a part of one
    id. RESOURCE is needed where several have a device of this id; it may be the part after its slash.
    """
    resource, device = parse_device(what)
    some_time(timeout)
    if socket is not None and ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--url and --socket: expected one of them")

    def ask(resource: str, device: str) -> ExplainDocument:
        if socket is None:
            return _from_exporter(url, resource, device, timeout)
        return _from_kubelet(socket, resource, device, timeout)

    try:
        try:
            document = ask(resource, device)
        except Nothing:
            short, equals, rest = device.partition("=")
            if resource or what.startswith("=") or not (short and equals and rest):
                raise
            # No id has `gpu=7c1f` in it: it is gpu's device 7c1f, then.
            document = ask(short, rest)
    except AskError as error:
        raise CouldNot(str(error)) from error
    warn(document)
    if output == "json":
        click.echo(as_json(document))
        return
    for sentence in document.sentences:
        click.echo(spelled(sentence))
    click.echo()
    for name, value in facts(document):
        click.echo(f"{name:<12} {spelled(value)}")


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


def _from_exporter(url: str, resource: str, device: str, timeout: float) -> ExplainDocument:
    asked = {"device": device} | ({"resource": resource} if resource else {})
    where = f"/api/v1/explain?{urlencode(asked, errors='surrogateescape')}"
    try:
        return fetch_from_exporter(exporter_at(url), where, ExplainDocument, timeout=timeout)
    except RefusedError as error:
        raise click.BadParameter(error.detail, param_hint="DEVICE") from error
    except UnknownError as error:
        raise Nothing(error.detail) from error


def _from_kubelet(socket: Path, resource: str, device: str, timeout: float) -> ExplainDocument:
    from exporter.web.api.explain_documents import explained  # noqa: PLC0415 -- for this way alone
    from exporter.who import kubelet  # noqa: PLC0415 -- gRPC takes a while to import

    try:
        moment, notes = kubelet.look(socket, node=default_node_name(), timeout=timeout, clock=time.time)
    except ValueError as error:
        raise click.BadParameter(visible(str(error)), param_hint="--socket") from error
    for note in notes:
        say(note)
    try:
        return explained(moment, device, resource, reader=read)
    except AmbiguousDevice as error:
        raise click.BadParameter(visible(str(error)), param_hint="DEVICE") from error
    except UnknownDevice as error:
        raise Nothing(str(error)) from error


def facts(document: ExplainDocument) -> Iterator[tuple[str, str]]:
    """What the sentences say, as names and values."""
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
    for name, relatives in (("sibling", document.siblings), ("part", document.parts)):
        for relative in relatives:
            holders = ", ".join(f"{h.namespace}/{h.pod}" for h in relative.holders)
            yield name, f"{relative.device} {holders or '(nobody)'}"
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
