"""Queries of a kubelet's PodResources socket, without an exporter."""

import asyncio
import time
from pathlib import Path

import click

from exporter.cli.common import AskError, NoMatchError
from exporter.cli.select import MappingAnswer, NodeDocument, exclusive_cpus
from exporter.cli.sources import ChosenSource
from exporter.mapping.anomalies import find
from exporter.mapping.device_ids import read_id
from exporter.mapping.restart_guard import YOUNG_SOCKET
from exporter.mapping.snapshot import build
from exporter.mapping.state import Moment, State
from exporter.views import documents
from exporter.views.documents import explained
from exporter.views.explain import AmbiguousDevice, UnknownDevice
from exporter.views.schema import Envelope, ExplainDocument
from kubelet.podresources import KubeletClient, KubeletError
from runtime.flags import default_node_name
from runtime.text import visible


def current_mapping(source: ChosenSource) -> MappingAnswer:
    """`fetch_mapping`, outside of an event loop."""
    return asyncio.run(fetch_mapping(source))


async def fetch_mapping(source: ChosenSource) -> MappingAnswer:
    """Who holds which device, in the shape of an exporter's documents. Raises AskError and BadParameter."""
    moment, notes = await _fetch_moment(source)
    devices = documents.devices(moment)
    node = NodeDocument(
        **{name: getattr(devices, name) for name in Envelope.__struct_fields__},
        devices=devices.devices,
        claims=documents.claims(moment).claims,
        cpus=exclusive_cpus(documents.pods(moment).pods),
    )
    return MappingAnswer((node,), f"the kubelet at {visible(str(source.socket))}", notes=notes)


def explanation(source: ChosenSource, resource: str, device: str) -> tuple[ExplainDocument, tuple[str, ...]]:
    """The explanation of one device, and warnings. Raises NoMatchError, AskError and BadParameter."""
    moment, notes = asyncio.run(_fetch_moment(source))
    try:
        return explained(moment, device, resource, reader=read_id), notes
    except AmbiguousDevice as error:
        raise click.BadParameter(visible(str(error)), param_hint="DEVICE") from error
    except UnknownDevice as error:
        raise NoMatchError(str(error)) from error


async def _fetch_moment(source: ChosenSource) -> tuple[Moment, tuple[str, ...]]:
    """The kubelet's answer, and warnings about it. A kubelet does not report since when a device is held."""
    path, timeout, now = source.socket, source.timeout, time.time()
    try:
        # List has the holders. GetAllocatableResources gets half of the time, so that its failure is noted.
        async with (
            KubeletClient(path, timeout=timeout, allocatable_timeout=timeout / 2) as client,
            asyncio.timeout(timeout),
        ):
            answer = await client.fetch()
    except KubeletError as error:
        # Messages about the path name it.
        at = "" if str(path.parent) in error.message else f" at {visible(str(path))}"
        reason = visible(f"{error.method}: {error.code}: {error.message}")
        raise AskError(f"the kubelet{at} cannot be queried: {reason}") from error
    except ValueError as error:  # the path is too long for a socket
        raise click.BadParameter(visible(str(error)), param_hint="--socket") from error
    except TimeoutError:
        raise AskError(f"the kubelet at {visible(str(path))}: no answer within {timeout:g} s") from None
    snapshot = build(answer.listed, answer.allocatable)
    state = State(
        generation=1,
        snapshot=snapshot,
        taken_at=now,
        changed_at=now,
        anomalies=find(snapshot),
        api_version=answer.api_version,
        notes=answer.notes,
    )
    return Moment(state, default_node_name(), now, stale_after=timeout), (
        *answer.notes,
        *_restarted(path, now),
    )


def _restarted(path: Path, now: float) -> tuple[str, ...]:
    """A kubelet that has just restarted lists no pods until it has them from the API server."""
    try:
        age = now - path.stat().st_mtime
    except OSError:
        return ()
    if not 0 <= age < YOUNG_SOCKET:
        return ()
    return (f"the kubelet restarted {age:.0f} s ago and may not list all pods yet: ask again",)
