"""A kubelet's answer, made into the document that an exporter would give."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from exporter.cli.http import AskError
from exporter.cli.select import Answer, MappingDocument, Told
from exporter.cli.sources import cpus_of
from exporter.mapping.anomalies import find
from exporter.mapping.restart_guard import DISTRUST
from exporter.mapping.snapshot import build
from exporter.mapping.state import State
from exporter.views import documents
from exporter.views.documents import Moment
from exporter.views.matching import Wanted
from exporter.views.query import Filters
from kubelet.podresources import Answer as Answered
from kubelet.podresources import KubeletClient, KubeletError
from runtime.text import visible


def present(path: Path, *, node: str, timeout: float, clock: Callable[[], float]) -> Answer:
    """Who holds what. Raises as `look` does."""
    moment, notes = look(path, node=node, timeout=timeout, clock=clock)
    devices = documents.devices(moment, Filters())
    document = MappingDocument(
        **{name: getattr(devices, name) for name in devices.__struct_fields__},
        claims=documents.claims(moment, Wanted()).claims,
        cpus=tuple(cpus_of(documents.pods(moment, Filters()).pods)),
    )
    return Answer((Told(document),), f"the kubelet at {visible(str(path))}", notes=notes)


def look(
    path: Path, *, node: str, timeout: float, clock: Callable[[], float]
) -> tuple[Moment, tuple[str, ...]]:
    """What the kubelet at the socket `path` says within `timeout` seconds, and notes on what it cannot tell.

    Since when a device is held is not known: the kubelet does not say. Raises AskError; ValueError for a
    path that is too long for a socket.
    """
    now = clock()
    try:
        answer = asyncio.run(_ask(path, timeout))
    except KubeletError as error:
        # What is wrong with the path names it by itself.
        at = "" if str(path.parent) in error.message else f" at {visible(str(path))}"
        why = visible(f"{error.method}: {error.code}: {error.message}")
        raise AskError(f"the kubelet{at} cannot be asked: {why}") from error
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
    return Moment(state, node, now, stale_after=timeout), (*answer.notes, *_doubts(path, now))


def _doubts(path: Path, now: float) -> tuple[str, ...]:
    """A kubelet lists no pod until it has heard from the API server, and answers all the same."""
    try:
        age = now - path.stat().st_mtime
    except OSError:
        return ()
    if not 0 <= age < DISTRUST:
        return ()
    return (f"the kubelet came back {age:.0f} s ago and may not list all pods yet: ask again",)


async def _ask(path: Path, timeout: float) -> Answered:  # noqa: ASYNC109 -- the client has one for each call, this is for all
    # Who holds what is told by the first of two calls: the second must leave time to say so.
    async with (
        KubeletClient(path, timeout=timeout, allocatable_timeout=timeout / 2) as client,
        asyncio.timeout(timeout),
    ):
        return await client.fetch()
