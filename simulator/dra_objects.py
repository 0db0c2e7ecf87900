"""Objects of resource.k8s.io/v1 as an API server keeps them: ResourceSlices, DeviceClasses, and claims.

Objects are the API's JSON documents. `ObjectStore` is the cluster's memory: the simulated API server,
scheduler, and kubelet share it. The functions below it make the documents that tests and the demo need.
"""

import random
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

Object = dict[str, Any]
"""A document of the API."""
Attribute = str | int | bool

API_VERSION: Final = "resource.k8s.io/v1"
SLICES: Final = "resourceslices"
CLAIMS: Final = "resourceclaims"
TEMPLATES: Final = "resourceclaimtemplates"
CLASSES: Final = "deviceclasses"
KINDS: Final = {
    SLICES: "ResourceSlice",
    CLAIMS: "ResourceClaim",
    TEMPLATES: "ResourceClaimTemplate",
    CLASSES: "DeviceClass",
}
EXTENDED_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim that the scheduler made for a pod's extended resources."""

_SUFFIX: Final = "bcdfghjklmnpqrstvwxz2456789"
"""The characters that Kubernetes takes for the random ends of names."""
_FIRST_VERSION: Final = 1000


class ConflictError(Exception):
    """An object exists already, or is not the version that an update changes (Kubernetes: 409)."""


class Change(NamedTuple):
    """One event of a watch. `kind` is ADDED, MODIFIED or DELETED."""

    kind: str
    resource: str
    object: Object


class ObjectStore:
    """Objects by resource, namespace and name, with one resourceVersion for all. Callers get copies."""

    def __init__(self, wall: Callable[[], float], rng: random.Random) -> None:
        """`wall`: seconds since the Unix epoch. `rng` makes the ends of generated names."""
        self._wall = wall
        self._rng = rng
        self._objects: dict[str, dict[tuple[str, str], Object]] = {resource: {} for resource in KINDS}
        self.version = _FIRST_VERSION
        self.followers: set[Callable[[Change], None]] = set()

    def next_version(self) -> str:
        """The resourceVersion of the next change."""
        self.version += 1
        return str(self.version)

    def create(self, resource: str, document: Object) -> Object:
        """Keep a new object; gives it a uid, and a name by generateName. Raises ConflictError."""
        made = deepcopy(document)
        meta = made.setdefault("metadata", {})
        if not meta.get("name"):
            meta["name"] = self.generated(meta.get("generateName") or f"{resource}-")
        meta.setdefault("uid", str(uuid.uuid4()))
        meta["creationTimestamp"] = rfc3339(self._wall())
        meta["generation"] = 1
        key = _key(made)
        if key in self._objects[resource]:
            raise ConflictError(f'{resource} "{meta["name"]}" already exists')
        return self._keep("ADDED", resource, {"apiVersion": API_VERSION, "kind": KINDS[resource]} | made)

    def update(self, resource: str, document: Object) -> Object:
        """Replace an object. Raises KeyError without one, ConflictError for an older resourceVersion."""
        key = _key(document)
        before = self._objects[resource][key]["metadata"]
        made = deepcopy(document)
        version = made["metadata"].get("resourceVersion")
        if version not in {None, before["resourceVersion"]}:
            raise ConflictError(f'{resource} "{key[1]}": the object has been modified')
        made["metadata"] = before | made["metadata"] | {"generation": before["generation"] + 1}
        return self._keep("MODIFIED", resource, made)

    def delete(self, resource: str, name: str, namespace: str = "") -> None:
        """Remove an object. Raises KeyError."""
        gone = self._objects[resource].pop((namespace, name))
        gone["metadata"]["resourceVersion"] = self.next_version()
        self._tell(Change("DELETED", resource, gone))

    def get(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """An object by its name."""
        found = self._objects[resource].get((namespace, name))
        return deepcopy(found) if found is not None else None

    def all(self, resource: str) -> list[Object]:
        """Every object of a resource, by namespace and name."""
        return [deepcopy(found) for _, found in sorted(self._objects[resource].items())]

    def delete_slices(self, node: str, driver: str = "") -> None:
        """Remove the node's slices, all or those of one driver, as a kubelet does."""
        for one in self.all(SLICES):
            if one["spec"].get("nodeName") == node and driver in {"", one["spec"]["driver"]}:
                self.delete(SLICES, one["metadata"]["name"])

    def generated(self, prefix: str) -> str:
        """A name as the API server generates one: `prefix` and five characters."""
        return prefix + "".join(self._rng.choices(_SUFFIX, k=5))

    def _keep(self, kind: str, resource: str, made: Object) -> Object:
        made["metadata"]["resourceVersion"] = self.next_version()
        for one in made.get("spec", {}).get("devices", ()) if resource == SLICES else ():
            for found in one.get("taints", ()):
                found.setdefault("timeAdded", rfc3339(self._wall()))
        self._objects[resource][_key(made)] = made
        self._tell(Change(kind, resource, made))
        return deepcopy(made)

    def _tell(self, change: Change) -> None:
        for follower in tuple(self.followers):
            follower(change)


def _key(document: Object) -> tuple[str, str]:
    meta = document["metadata"]
    return meta.get("namespace", ""), meta["name"]


def rfc3339(at: float) -> str:
    """A time as the API writes it, in whole seconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# Documents


def device(
    name: str,
    *,
    attributes: Mapping[str, Attribute] | None = None,
    capacity: Mapping[str, str] | None = None,
    taints: Sequence[Object] = (),
    shareable: bool = False,
    consumes: Mapping[str, Mapping[str, str]] | None = None,
) -> Object:
    """A device of a slice.

    `capacity` and the counters that it `consumes` (by counter set) are quantities. `shareable`: several
    claims may have it, each with a share of the capacity.
    """
    made: Object = {"name": name}
    if attributes:
        made["attributes"] = {key: {_type(value): value} for key, value in attributes.items()}
    if capacity:
        made["capacity"] = {key: {"value": value} for key, value in capacity.items()}
    if taints:
        made["taints"] = [dict(one) for one in taints]
    if shareable:
        made["allowMultipleAllocations"] = True
    if consumes:
        made["consumesCounters"] = [
            {"counterSet": name, "counters": _values(counters)} for name, counters in consumes.items()
        ]
    return made


def _type(value: Attribute) -> str:
    return {bool: "bool", int: "int", str: "string"}[type(value)]


def _values(quantities: Mapping[str, str]) -> Object:
    return {name: {"value": value} for name, value in quantities.items()}


def taint(key: str, value: str = "", effect: str = "NoSchedule", since: str = "") -> Object:
    """A taint of a device; `since` as the API writes times."""
    return (
        {"key": key, "effect": effect}
        | ({"value": value} if value else {})
        | ({"timeAdded": since} if since else {})
    )


def resource_slice(
    driver: str,
    node: str,
    devices: Iterable[Object],
    *,
    pool: str = "",
    generation: int = 1,
    count: int = 1,
    counters: Mapping[str, Mapping[str, str]] | None = None,
    name: str = "",
) -> Object:
    """A slice of `pool` (empty: named as the node), one of `count`. `counters`: quantities by counter set.

    Raises ValueError for devices and counters together.
    """
    offered = list(devices)
    if offered and counters:
        raise ValueError("a slice has either devices or shared counters")
    spec: Object = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count},
    }
    if not counters:
        spec["devices"] = offered
    else:
        spec["sharedCounters"] = [{"name": n, "counters": _values(c)} for n, c in counters.items()]
    return {
        "metadata": {"generateName": f"{node}-{driver}-"} | ({"name": name} if name else {}),
        "spec": spec,
    }


def device_class(
    name: str,
    *,
    driver: str = "",
    attributes: Mapping[str, Attribute] | None = None,
    extended_resource: str = "",
) -> Object:
    """A class that selects devices by driver and by equal attributes, in one CEL selector."""
    terms = [f'device.driver == "{driver}"'] if driver else []
    for attribute, value in (attributes or {}).items():
        domain, _, rest = attribute.rpartition("/")
        literal = f'"{value}"' if isinstance(value, str) else str(value).lower()
        terms.append(f'device.attributes["{domain or driver}"].{rest} == {literal}')
    spec: Object = {"selectors": [{"cel": {"expression": " && ".join(terms)}}]} if terms else {}
    if extended_resource:
        spec["extendedResourceName"] = extended_resource
    return {"metadata": {"name": name}, "spec": spec}


def request(
    name: str,
    device_class_name: str,
    count: int = 1,
    *,
    every: bool = False,
    admin: bool = False,
    capacity: Mapping[str, str] | None = None,
    tolerations: Sequence[Object] = (),
) -> Object:
    """A request for `count` devices of a class, or for `every` one.

    `capacity`: of each device that several claims share.
    """
    exactly: Object = {
        "deviceClassName": device_class_name,
        "allocationMode": "All" if every else "ExactCount",
    }
    if not every:
        exactly["count"] = count
    if admin:
        exactly["adminAccess"] = True
    if capacity:
        exactly["capacity"] = {"requests": dict(capacity)}
    if tolerations:
        exactly["tolerations"] = [dict(one) for one in tolerations]
    return {"name": name, "exactly": exactly}


def first_available(name: str, *alternatives: Object) -> Object:
    """A prioritised list: the first of `alternatives` (requests) that fits is given."""
    return {"name": name, "firstAvailable": [{"name": one["name"], **one["exactly"]} for one in alternatives]}


def claim(name: str, *requests: Object, namespace: str = "default") -> Object:
    """A ResourceClaim that nobody has allocated."""
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": list(requests)}},
    }


def claim_template(name: str, *requests: Object, namespace: str = "default") -> Object:
    """A ResourceClaimTemplate."""
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


def allocated(
    document: Object,
    *results: Object,
    pods: Iterable[tuple[str, str]] = (),
    at: float | None = None,
    node: str = "",
) -> Object:
    """A copy of a claim with an allocation.

    `pods` that the claim is reserved for, by name and uid. `at`: when it was allocated. `node` that it is on.
    """
    made = deepcopy(document)
    allocation: Object = {"devices": {"results": [dict(one) for one in results]}}
    if at is not None:
        allocation["allocationTimestamp"] = rfc3339(at)
    if node:
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    reserved = [{"resource": "pods", "name": name, "uid": uid} for name, uid in pods]
    made["status"] = {"allocation": allocation} | ({"reservedFor": reserved} if reserved else {})
    return made


def result(
    request_name: str,
    driver: str,
    pool: str,
    device_name: str,
    *,
    share_id: str = "",
    consumed: Mapping[str, str] | None = None,
    admin: bool = False,
) -> Object:
    """One allocated device of a claim."""
    made: Object = {"request": request_name, "driver": driver, "pool": pool, "device": device_name}
    if share_id:
        made["shareID"] = share_id
    if consumed:
        made["consumedCapacity"] = dict(consumed)
    if admin:
        made["adminAccess"] = True
    return made
