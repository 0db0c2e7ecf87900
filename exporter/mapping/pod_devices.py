"""What a pod's object says about its devices, out of the fields of any source. Pure.

Text that is longer than Kubernetes allows is left out. Field by field, a source gives plain text; most pods
have none of these fields.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from exporter.mapping.dra import (
    NO_DEVICES,
    ContainerClaim,
    ExtendedClaim,
    ExtendedRequest,
    PodClaim,
    PodDevices,
    ResourceHealth,
)
from exporter.mapping.scheduler_annotations import chosen_devices

CLAIMS: Final = 64
"""Claims of one pod."""
USES: Final = 256
"""Claims of one pod's containers."""
REQUESTS: Final = 64
"""Requests for extended resources of one pod."""
HEALTH: Final = 512
"""Devices of one pod whose health is kept."""

_NAME: Final = 253
_RESOURCE: Final = 317
"""Characters of a resource: a domain of 253, a slash, and 63."""
_TEXT: Final = 1024
"""Characters of a resource id and of a health message (kubelet: messages have 1024 at most)."""
_HEALTH: Final = frozenset({"Healthy", "Unhealthy", "Unknown"})


def pod_devices(
    *,
    annotations: Mapping[str, str],
    init_containers: Sequence[str],
    containers: Sequence[str],
    claims: Iterable[tuple[str, str]],
    uses: Iterable[tuple[str, str, str]],
    generated: Iterable[tuple[str, str]],
    extended_claim: str,
    extended: Iterable[tuple[str, str, str]],
    health: Iterable[tuple[str, str, str, str, str]],
) -> PodDevices:
    """The devices of a pod; NO_DEVICES itself if the pod's object says nothing.

    `init_containers` and `containers` are names, in the order of the spec. `claims` are the spec's (name,
    resourceClaimName), `uses` the (container, name, request) of its containers' resources.claims, `generated`
    the (name, resourceClaimName) of status.resourceClaimStatuses. `extended_claim` and `extended`, its
    (container, resource, request), are of status.extendedResourceClaimStatus. `health` has the fields of
    ResourceHealth.
    """
    named = _claims(claims, generated)
    served = _extended(extended_claim, extended)
    reported = _health(health)
    chosen, unreadable = chosen_devices(annotations, init_containers, containers)
    if not (named or served or reported or chosen or unreadable):
        return NO_DEVICES
    return PodDevices(named, served, reported, chosen, unreadable, _uses(uses))


def _claims(claims: Iterable[tuple[str, str]], generated: Iterable[tuple[str, str]]) -> tuple[PodClaim, ...]:
    found = [(name, claim) for name, claim in islice(claims, CLAIMS) if _named(name)]
    if not found:
        return ()
    names = dict(islice(generated, CLAIMS))
    return tuple(PodClaim(name, _bounded(claim or names.get(name, ""))) for name, claim in found)


def _uses(uses: Iterable[tuple[str, str, str]]) -> tuple[ContainerClaim, ...]:
    return tuple(
        ContainerClaim(container, reference, request)
        for container, reference, request in islice(uses, USES)
        if _named(container) and _named(reference) and len(request) <= _NAME
    )


def _extended(claim: str, requests: Iterable[tuple[str, str, str]]) -> ExtendedClaim | None:
    if not _named(claim):
        return None
    return ExtendedClaim(
        claim,
        tuple(
            ExtendedRequest(container, resource, request)
            for container, resource, request in islice(requests, REQUESTS)
            if _named(container) and 0 < len(resource) <= _RESOURCE and _named(request)
        ),
    )


def _health(reported: Iterable[tuple[str, str, str, str, str]]) -> tuple[ResourceHealth, ...]:
    """Sorted: the order of a status means nothing, and unchanged health must compare equal."""
    return tuple(
        sorted(
            ResourceHealth(
                container,
                name,
                resource_id,
                health if health in _HEALTH else "Unknown",
                message[:_TEXT],
            )
            for container, name, resource_id, health, message in islice(reported, HEALTH)
            if _named(container) and 0 < len(name) <= _RESOURCE and 0 < len(resource_id) <= _TEXT
        )
    )


def _named(name: str) -> bool:
    return 0 < len(name) <= _NAME


def _bounded(name: str) -> str:
    return name if len(name) <= _NAME else ""
