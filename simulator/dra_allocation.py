"""Which devices a claim is given: first fit, in the order of the slices. Pure.

Enough of Kubernetes' structured allocator to be read in a minute: selectors are equalities joined by `&&`,
and a request that fits is never taken back for a later one.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple

from simulator.dra_objects import Object, result

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"

_UNITS: Final = {
    unit: Decimal(1024) ** n for n, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
} | {unit: Decimal(1000) ** n for n, unit in enumerate(("m", "", "k", "M", "G", "T", "P", "E"), -1)}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]*)")
_TERM: Final = re.compile(
    r'device\.(?:driver|attributes\["(?P<domain>[^"]+)"\]\.(?P<name>\w+)) == (?P<value>"[^"]*"|\w+)'
)


class UnschedulableError(Exception):
    """A claim does not fit on the node; says why."""


class DeviceName(NamedTuple):
    """A device, unique in the cluster."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True, slots=True)
class Published:
    """A device that a slice offers."""

    name: DeviceName
    document: Object

    def repelling(self, tolerations: Sequence[Object], effects: Iterable[str]) -> Iterator[Object]:
        """Taints of these effects that are not tolerated."""
        for one in self.document.get("taints", ()):
            if one["effect"] in effects and not any(_tolerates(t, one) for t in tolerations):
                yield one


def quantity(text: str | int) -> Decimal:
    """A quantity of the API (40Gi, 500m, 3). Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"found {text!r}, expected a quantity")
    return Decimal(found[1]) * _UNITS[found[2]]


def published(slices: Iterable[Object]) -> dict[DeviceName, Published]:
    """The devices of each pool's newest generation, if it is complete, in the order of the slices."""
    return {
        (name := DeviceName(spec["driver"], spec["pool"]["name"], one["name"])): Published(name, one)
        for spec in _complete(slices)
        for one in spec.get("devices", ())
    }


def _complete(slices: Iterable[Object]) -> list[Object]:
    """Specs of the slices that count."""
    pools: dict[tuple[str, str], list[Object]] = {}
    for one in slices:
        pools.setdefault((one["spec"]["driver"], one["spec"]["pool"]["name"]), []).append(one["spec"])
    complete: list[Object] = []
    for specs in pools.values():
        generation = max(spec["pool"]["generation"] for spec in specs)
        newest = [spec for spec in specs if spec["pool"]["generation"] == generation]
        if len(newest) == newest[0]["pool"]["resourceSliceCount"]:
            complete += newest
    return complete


@dataclass(slots=True)
class Devices:
    """What the node's slices offer, and what is taken of it."""

    published: Mapping[DeviceName, Published]
    counters: Mapping[tuple[str, str, str], Mapping[str, Decimal]]
    """By driver, pool and counter set."""
    taken: set[DeviceName] = field(default_factory=set[DeviceName])
    consumed: list[tuple[DeviceName, Mapping[str, str]]] = field(
        default_factory=list[tuple[DeviceName, Mapping[str, str]]]
    )
    """Capacity of shared devices."""

    @classmethod
    def of(cls, slices: Sequence[Object], claims: Iterable[Object]) -> "Devices":
        """Of the node's slices and of every claim."""
        counters = {
            (spec["driver"], spec["pool"]["name"], one["name"]): _amounts(one["counters"])
            for spec in _complete(slices)
            for one in spec.get("sharedCounters", ())
        }
        devices = cls(published(slices), counters)
        for claim in claims:
            for one in results(claim):
                devices.take(one)
        return devices

    def take(self, one: Object) -> None:
        """A result of an allocation; admin access takes nothing."""
        if one.get("adminAccess"):
            return
        name = name_of(one)
        if "shareID" in one:
            self.consumed.append((name, one.get("consumedCapacity", {})))
        else:
            self.taken.add(name)

    def result(self, name: DeviceName, request_name: str, request: Object) -> Object | None:
        """The device as a result for a request; None where it is taken, or not enough of it is left."""
        if request.get("adminAccess"):
            return result(request_name, *name, admin=True)
        document = self.published[name].document
        if name in self.taken or not self._counters_suffice(name):
            return None
        if not document.get("allowMultipleAllocations"):
            return result(request_name, *name)
        share = _share(document, request)
        used = [consumed for other, consumed in self.consumed if other == name]
        for what, value in document.get("capacity", {}).items():
            total = sum((quantity(consumed.get(what, 0)) for consumed in used), quantity(share[what]))
            if total > quantity(value["value"]):
                return None
        return result(request_name, *name, share_id=str(uuid.uuid4()), consumed=share)

    def _counters_suffice(self, name: DeviceName) -> bool:
        """Whether its counter sets have enough left, beside what taken devices consume of them."""
        if any(other == name for other, _ in self.consumed):
            return True
        in_use = self.taken | {other for other, _ in self.consumed} | {name}
        used: dict[tuple[str, str, str, str], Decimal] = {}
        for other in in_use & self.published.keys():
            for key, amount in _consumption(self.published[other]):
                used[key] = used.get(key, Decimal(0)) + amount
        return all(
            used[key] <= self.counters.get(key[:3], {}).get(key[3], Decimal(0))
            for key, _ in _consumption(self.published[name])
        )


def allocate(claim: Object, devices: Devices, classes: Mapping[str, Object]) -> list[Object]:
    """Results for every request of a claim, which `devices` then has as taken. Raises UnschedulableError."""
    found: list[Object] = []
    for request in claim["spec"]["devices"]["requests"]:
        found += _request(request, devices, classes)
    return found


def _request(request: Object, devices: Devices, classes: Mapping[str, Object]) -> list[Object]:
    name = request["name"]
    alternatives = [(f"{name}/{one['name']}", one) for one in request.get("firstAvailable", ())]
    problem = ""
    for request_name, wanted in alternatives or [(name, request["exactly"])]:
        before = (set(devices.taken), list(devices.consumed))
        try:
            return _exactly(request_name, wanted, devices, classes)
        except UnschedulableError as error:
            devices.taken, devices.consumed = before
            problem = problem or str(error)
    raise UnschedulableError(problem)


def _exactly(name: str, request: Object, devices: Devices, classes: Mapping[str, Object]) -> list[Object]:
    device_class = classes.get(request["deviceClassName"])
    if device_class is None:
        raise UnschedulableError(f"request {name}: device class {request['deviceClassName']} does not exist")
    selects = _selector([*device_class["spec"].get("selectors", ()), *request.get("selectors", ())])
    tolerations = request.get("tolerations", ())
    every = request.get("allocationMode") == "All"
    count = request.get("count", 1)
    found: list[Object] = []
    for one in devices.published.values():
        if not every and len(found) == count:
            break
        if not selects(one):
            continue
        made = None
        if request.get("adminAccess") or not any(one.repelling(tolerations, (NO_SCHEDULE, NO_EXECUTE))):
            made = devices.result(one.name, name, request)
        if made is not None:
            if tolerations:
                made["tolerations"] = list(tolerations)
            devices.take(made)
            found.append(made)
        elif every:
            raise UnschedulableError(f"request {name}: {'/'.join(one.name)} is not free")
    if not found or (not every and len(found) < count):
        raise UnschedulableError(f"request {name}: {len(found)} of {count} devices are free")
    return found


def results(claim: Object) -> list[Object]:
    """The devices that a claim is given; none before it is allocated."""
    allocation: Object = claim.get("status", {}).get("allocation", {})
    found: list[Object] = allocation.get("devices", {}).get("results", [])
    return found


def name_of(one: Object) -> DeviceName:
    """The device of a result."""
    return DeviceName(one["driver"], one["pool"], one["device"])


def _selector(selectors: Iterable[Object]) -> Callable[[Published], bool]:
    """What CEL selectors choose. Raises ValueError for one that is more than equalities."""
    terms: list[tuple[str, str, str]] = []
    for selector in selectors:
        for term in selector["cel"]["expression"].split(" && "):
            found = _TERM.fullmatch(term)
            if found is None:
                raise ValueError(f"selector: found {term!r}, expected an equality of driver or attribute")
            terms.append((found["domain"] or "", found["name"] or "", found["value"]))

    def selects(device: Published) -> bool:
        return all(_equal(device, *term) for term in terms)

    return selects


def _equal(device: Published, domain: str, name: str, literal: str) -> bool:
    if not name:
        return literal == f'"{device.name.driver}"'
    attributes = device.document.get("attributes", {})
    # Kubernetes: an attribute without a domain is in the driver's own.
    value = attributes.get(f"{domain}/{name}", attributes.get(name) if domain == device.name.driver else None)
    for kind, content in (value or {}).items():
        return literal == (f'"{content}"' if kind in {"string", "version"} else str(content).lower())
    return False


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect", "") not in {"", taint["effect"]}:
        return False
    if toleration.get("key", "") not in {"", taint["key"]}:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _amounts(counters: Mapping[str, Object]) -> dict[str, Decimal]:
    return {name: quantity(one["value"]) for name, one in counters.items()}


def _consumption(one: Published) -> Iterator[tuple[tuple[str, str, str, str], Decimal]]:
    """What a device consumes, by driver, pool, counter set and counter."""
    for consumes in one.document.get("consumesCounters", ()):
        for counter, amount in _amounts(consumes["counters"]).items():
            yield (one.name.driver, one.name.pool, consumes["counterSet"], counter), amount


def _share(document: Object, request: Object) -> dict[str, str]:
    """The capacity that a request consumes: what it asks for, else the device's default, else all of it."""
    wanted = request.get("capacity", {}).get("requests", {})
    return {
        name: wanted.get(name) or value.get("requestPolicy", {}).get("default") or value["value"]
        for name, value in document.get("capacity", {}).items()
    }
