"""ResourceClaims as the API server sends them (v1, v1beta2, v1beta1), and what is kept of one. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from exporter.mapping.dra import AllocatedDevice, Claim, ClaimName, PublishedName
from exporter.mapping.published import NAME_LIMIT, is_name

_RESULTS: Final = 256
"""Devices of a claim that are kept. Kubernetes: 32."""
_RESERVED: Final = 1024
"""Pods of a claim that are kept. Kubernetes: 256."""


class _Meta(Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _SubRequest(Struct, rename="camel"):
    name: str = ""
    device_class_name: str = ""


class _Request(Struct, rename="camel"):
    """A request. v1beta1 has the class beside the name."""

    name: str = ""
    device_class_name: str = ""
    exactly: _SubRequest | None = None
    first_available: list[_SubRequest] | None = None


class _Requests(Struct):
    requests: list[_Request] | None = None


class _Spec(Struct):
    devices: _Requests = field(default_factory=_Requests)


class _Result(Struct, rename="camel"):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = field(default=None, name="shareID")
    admin_access: bool | None = None


class _Results(Struct):
    results: list[_Result] | None = None


class _Allocation(Struct):
    devices: _Results = field(default_factory=_Results)


class _Consumer(Struct):
    resource: str = ""
    uid: str = ""


class _Status(Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class ResourceClaim(Struct):
    """A ResourceClaim of the API server."""

    metadata: _Meta
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)


def claim_of(found: ResourceClaim) -> Claim:
    """What is kept of a claim. A claim that is not allocated has no devices; results with names that
    Kubernetes does not allow are left out.
    """
    classes = _classes(found)
    allocation = found.status.allocation
    results = (allocation.devices.results or ()) if allocation is not None else ()
    reserved = found.status.reserved_for or ()
    return Claim(
        ClaimName(found.metadata.namespace, found.metadata.name),
        found.metadata.uid[:NAME_LIMIT],
        tuple(
            AllocatedDevice(
                PublishedName(one.driver, one.pool, one.device),
                share_id=(one.share_id or "")[:NAME_LIMIT],
                request=one.request.partition("/")[0][:NAME_LIMIT],
                device_class=classes.get(one.request, ""),
                admin=one.admin_access is True,
            )
            for one in results[:_RESULTS]
            if all(map(is_name, (one.driver, one.pool, one.device)))
        ),
        frozenset(one.uid[:NAME_LIMIT] for one in reserved[:_RESERVED] if one.resource == "pods"),
    )


def _classes(found: ResourceClaim) -> Mapping[str, str]:
    """The DeviceClass of each request, and of each `request/subrequest` of a prioritised list."""
    classes: dict[str, str] = {}
    for request in found.spec.devices.requests or ():
        one = request.exactly
        classes[request.name] = request.device_class_name if one is None else one.device_class_name
        for sub in request.first_available or ():
            classes[f"{request.name}/{sub.name}"] = sub.device_class_name
    return {name: found for name, found in classes.items() if is_name(found)}
