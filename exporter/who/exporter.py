"""An exporter as a source: its devices, claims and exclusive CPUs, all of one generation."""

from exporter.web.api.schema import ClaimsDocument, DevicesDocument, PodEntry, PodsDocument
from exporter.who.ask import MissingError, fetch
from exporter.who.door import Deadline, Door
from exporter.who.model import Answer, CpusEntry, MappingDocument, Told

_TRIES = 5
"""Of asking anew where something changed between two questions."""


def present(door: Door, *, timeout: float) -> Answer:
    """Who holds what, within `timeout` seconds. Raises AskError."""
    deadline = Deadline(timeout)
    attempt = 0
    while True:
        attempt += 1
        devices = fetch(door, "/api/v1/devices", DevicesDocument, deadline)
        claims, pods, notes = _further(door, deadline)
        generations = frozenset(one.generation for one in (devices, claims, pods) if one is not None)
        if len(generations) == 1 or attempt == _TRIES:
            break
    if len(generations) > 1:
        # It changes quicker than it can be asked: each part is true, of moments that are close.
        notes = (*notes, "devices and claims are of moments a little apart, for they change all the time")
    document = MappingDocument(
        **{name: getattr(devices, name) for name in devices.__struct_fields__},
        claims=() if claims is None else claims.claims,
        cpus=() if pods is None else tuple(cpus_of(pods.pods)),
    )
    return Answer((Told(document),), f"the exporter at {door.address}", notes=notes)


def _further(
    door: Door, deadline: Deadline
) -> tuple[ClaimsDocument | None, PodsDocument | None, tuple[str, ...]]:
    """What an older exporter may not know of."""
    try:
        claims = fetch(door, "/api/v1/claims", ClaimsDocument, deadline)
        pods = fetch(door, "/api/v1/pods", PodsDocument, deadline)
    except MissingError:
        return None, None, ("this exporter is older: it tells neither claimed devices nor exclusive CPUs",)
    return claims, pods, ()


def cpus_of(pods: tuple[PodEntry, ...]) -> list[CpusEntry]:
    """The containers with CPUs of their own."""
    return [
        CpusEntry(
            *(pod.namespace, pod.name, container.name, pod.uid),
            *(len(container.cpu_ids), container.cpu_ids, container.numa_nodes),
        )
        for pod in pods
        for container in pod.containers
        if container.cpu_ids
    ]
