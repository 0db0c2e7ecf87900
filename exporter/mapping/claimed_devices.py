"""Devices that pods hold through ResourceClaims (DRA): their names, facts, and holders.

A claimed device is a Device like any other. Its name never depends on its holder: the resource is the driver,
or the attribute devicelens.dev/resource of its slice; the device is `pool/device`, or the device alone where
the pool has the node's name. Rules of Kubernetes:

- pods that share a claim repeat its devices in List; each is counted once;
- List names all devices of a claim for each container that uses any request of the claim: the claim and the
  pod's object say which container has which;
- List gives each device of a claim the CDI names of the devices before it, too;
- the claim says that a request is for administration, which is not holding, and the pod's status which
  extended resource a request serves;
- a device may be allocated by a claim that no running container uses: it is not free;
- partitions that consume the same counters are alternatives: they are never summed.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from exporter.mapping.dra import (
    NO_DRA,
    AllocatedDevice,
    Claim,
    ClaimName,
    DraView,
    PodDevices,
    PublishedDevice,
    PublishedName,
    all_of,
)
from exporter.mapping.listing import ListedPods, Nodes, PodPart
from exporter.mapping.model import Claimed, ClaimHolding, Device, DeviceKey, Holder, PodKey, by_claim
from exporter.mapping.partitions import alternatives
from kubelet.pb.podresources.v1 import api_pb2

DEVICE_RESOURCE: Final = "devicelens.dev/resource"
"""Attribute of a slice's device: the resource by which devicelens shows the device."""

PodsWithClaims = Mapping[PodKey, tuple[PodDevices, ...]]
"""What the objects of pods with claims say, of all pods of one name. A claim's name is of one pod alone, or
names the same claim for all of them, so that no uid needs to be proven.
"""

K = TypeVar("K")
_Group = tuple[str, str, str]
"""Driver, pool and physical device of partitions."""


class ClaimFacts(Struct, frozen=True, eq=False, dict=True):
    """What the sources of DRA facts and the pods' objects say, by the keys of this node's devices.

    `named` are the names of devices with the attribute devicelens.dev/resource: their last known resource.
    """

    node: str = ""
    view: DraView = NO_DRA
    pods: PodsWithClaims = field(default_factory=lambda: MappingProxyType({}))
    named: Mapping[PublishedName, str] = field(default_factory=lambda: MappingProxyType({}))

    def key(self, name: PublishedName) -> DeviceKey:
        """The key of a device."""
        driver, pool, device = name
        resource = self.named.get(name, driver) if self.named else driver
        return DeviceKey(resource, device if pool == self.node else f"{pool}/{device}")

    def keys(self, listed: Iterable[api_pb2.DynamicResource]) -> set[DeviceKey]:
        """The keys of listed devices."""
        return {self.key(_name(one)) for resource in listed for one in resource.claim_resources}

    @cached_property
    def published(self) -> Mapping[DeviceKey, PublishedDevice]:
        """The devices of ResourceSlices."""
        return {self.key(name): device for name, device in self.view.published.items()}

    @cached_property
    def resources(self) -> frozenset[str]:
        """The resources whose devices ResourceSlices name."""
        return frozenset({*self.view.drivers, *[key.resource for key in self.published]})

    @cached_property
    def _groups(self) -> Mapping[_Group, tuple[DeviceKey, ...]]:
        groups: dict[_Group, list[DeviceKey]] = {}
        for key, device in self.published.items():
            if device.consumes:
                groups.setdefault(_group(device), []).append(key)
        return {group: tuple(keys) for group, keys in groups.items()}

    def siblings(self, keys: Iterable[DeviceKey]) -> set[DeviceKey]:
        """The partitions of the same physical devices as `keys`."""
        if not self._groups:
            return set()
        devices = [device for key in keys if (device := self.published.get(key)) is not None]
        groups = {_group(device) for device in devices if device.consumes}
        return {key for group in groups for key in self._groups[group]}

    def parent(self, claimed: Claimed) -> str:
        """The physical device behind a partition, as devices of this node are called."""
        device = claimed.published
        if device is None or not device.parent:
            return ""
        return self.key(device.name._replace(device=device.parent)).device

    def allocated(
        self, resource: api_pb2.DynamicResource
    ) -> Mapping[tuple[PublishedName, str], AllocatedDevice]:
        """What the claim says about its devices, by name and share; empty while the claim is not known."""
        claim = self.view.claims.get(ClaimName(resource.claim_namespace, resource.claim_name))
        return {} if claim is None else {(one.name, one.share_id): one for one in claim.devices}

    def extended_resource(self, holder: Holder, claim: str, request: str) -> str:
        """The extended resource that a container asked for, "" for none or if it is not known which."""
        names = {
            one.resource
            for pod in self.pods.get(holder[:2], ())
            if pod.extended is not None and pod.extended.claim == claim
            for one in pod.extended.requests
            if one.container == holder.container and request in {"", one.request}
        }
        return names.pop() if len(names) == 1 else ""

    def may_use(self, holder: Holder, claim: str, request: str) -> bool:
        """Whether a container may have the devices of a claim's request. True unless its pod says no."""
        pods = self.pods.get(holder[:2], ())
        answers = [one.uses_request(holder.pod, holder.container, claim, request) for one in pods]
        return not answers or any(one is not False for one in answers)

    @cached_property
    def allocated_by(self) -> Mapping[DeviceKey, tuple[ClaimName, ...]]:
        """The known claims that each device is allocated by, sorted; not those for administration."""
        found: dict[DeviceKey, set[ClaimName]] = {}
        for claim in self.view.claims.values():
            for one in claim.devices:
                if not one.admin:
                    found.setdefault(self.key(one.name), set()).add(claim.name)
        return {key: tuple(sorted(names)) for key, names in found.items()}

    def _cdi_differs(self, was: "ClaimFacts", part: PodPart) -> bool:
        now, before = self.view.cdi, was.view.cdi
        return any(
            now.get(cdi.name) is not before.get(cdi.name)
            for container in part.message.containers
            for resource in container.dynamic_resources
            for one in resource.claim_resources
            for cdi in one.cdi_devices
        )

    def published_otherwise(self, was: "ClaimFacts", known: Container[DeviceKey]) -> set[DeviceKey]:
        """The devices that slices describe otherwise than in `was`, which has the same names, and of those
        `known` the ones that other claims have. An unchanged device is the same object.
        """
        now, before = self.published, was.published
        found = set() if now is before else set(_other_objects(now, before))
        if self.view.claims is not was.view.claims:
            other = {key for key, _ in self.allocated_by.items() ^ was.allocated_by.items()}
            found |= {key for key in other if key in now or key in known}
        return found

    def names_alike(self, other: "ClaimFacts") -> bool:
        """Whether every device has the same key."""
        return self.named is other.named or self.named == other.named

    def pods_that_differ(self, was: "ClaimFacts", parts: Mapping[PodKey, PodPart]) -> set[PodKey]:
        """The pods of `parts` of which a claim, or what the pod's object says, is not as in `was`."""
        now, before = self.view.claims, was.view.claims
        pods: set[PodKey] = set()
        if now is not before:
            pods = {
                key
                for key, part in parts.items()
                if part.claims and any(now.get(claim) is not before.get(claim) for claim in part.claims)
            }
        if self.view.cdi is not was.view.cdi:
            pods |= {key for key, part in parts.items() if part.claims and self._cdi_differs(was, part)}
        if self.pods is not was.pods:
            either = self.pods.keys() | was.pods.keys()
            pods |= {key for key in either if self.pods.get(key) != was.pods.get(key)} & parts.keys()
        return pods


NO_CLAIMS: Final = ClaimFacts()
"""Nothing is known beside List."""


def claim_facts(node: str, view: DraView, pods: PodsWithClaims, last: ClaimFacts) -> ClaimFacts:
    """The facts after `last`, the same object if nothing changed."""
    pods = last.pods if pods == last.pods else pods
    if view is last.view and pods is last.pods and node == last.node:
        return last
    named = last.named
    if view.published is not last.view.published:
        own = _named(view.published)
        # A device keeps its name when its slice is gone: the kubelet deletes slices when it starts.
        kept = {name: resource for name, resource in named.items() if name not in view.published} | own
        if kept != named:
            named = MappingProxyType(kept if len(kept) <= 2 * len(view.published) + _NAMES else own)
    found = ClaimFacts(node, view, pods, named)
    if named is last.named and node == last.node:
        published = last.published
        if view.published is not last.view.published:
            other = _other_objects(view.published, last.view.published)
            gone = {found.key(name) for name in other} & published.keys()
            published = {key: device for key, device in published.items() if key not in gone}
            published |= {found.key(name): view.published[name] for name in other if name in view.published}
        force_setattr(found, "published", published)
    return found


def _named(published: Mapping[PublishedName, PublishedDevice]) -> dict[PublishedName, str]:
    """The resources that slices give devices by attribute. Devices of two drivers that would have one name
    keep their drivers' names.
    """
    own = {name: device.resource for name, device in published.items() if device.resource}
    if len({name.driver for name in own}) < 2:
        return own
    keys = {name: (resource, name.pool, name.device) for name, resource in own.items()}
    count = Counter(keys.values())
    return {name: own[name] for name, key in keys.items() if count[key] == 1}


def _other_objects(now: Mapping[K, object], before: Mapping[K, object]) -> Iterable[K]:
    """The keys that are in one of the two alone, or have another object."""
    gone = [key for key in before if key not in now]
    return [*gone, *[key for key, one in now.items() if before.get(key) is not one]]


_NAMES: Final = 4096
"""Names of devices without a slice that are kept."""


def _name(listed: api_pb2.ClaimResource) -> PublishedName:
    return PublishedName(listed.driver_name, listed.pool_name, listed.device_name)


def _group(device: PublishedDevice) -> _Group:
    driver, pool, name = device.name
    return driver, pool, device.parent or name


def _with_cdi_names(listed: api_pb2.ClaimResource) -> tuple["Counter[str]", api_pb2.ClaimResource]:
    return Counter([device.name for device in listed.cdi_devices]), listed


def _by_names(entry: tuple["Counter[str]", api_pb2.ClaimResource]) -> tuple[object, ...]:
    """Sort key of a claim's devices: each has more CDI names in List than the one before it."""
    names, listed = entry
    return names.total(), sorted(names.elements()), listed.pool_name, listed.device_name


def contradicted(listed: ListedPods, claims: Mapping[ClaimName, Claim]) -> Iterable[ClaimName]:
    """The claims that List gives devices which they do not have."""
    for pod in listed.with_claims():
        for container in pod.containers:
            for resource in container.dynamic_resources:
                claim = claims.get(ClaimName(resource.claim_namespace, resource.claim_name))
                if claim is not None:
                    names = {one.name for one in claim.devices}
                    if any(_name(one) not in names for one in resource.claim_resources):
                        yield claim.name


def _own_names(names: "Counter[str]", before: "Counter[str] | None") -> Iterable[str]:
    """The CDI names of a device, without those of the one before it that List repeats."""
    return (names - before if before is not None and before <= names else names) or names


class ClaimHoldings:
    """Collects what containers hold through claims."""

    def __init__(self, facts: ClaimFacts) -> None:
        self._facts = facts
        self.names: dict[DeviceKey, PublishedName] = {}
        self._through: dict[DeviceKey, set[ClaimHolding]] = {}
        self._cdi: dict[DeviceKey, set[str]] = {}
        self._bearers: dict[str, set[DeviceKey]] = {}
        """The devices that bear each CDI name: those of one request may have one name."""
        self._of_claim: dict[tuple[PodKey, str, str], set[DeviceKey]] = {}
        """The devices of a pod's claim that bear a CDI name. Pods use claims of their own namespace."""

    def add(self, holder: Holder, listed: Iterable[api_pb2.DynamicResource]) -> bool:
        """Add one container's claims. Whether they have any device."""
        found = False
        for resource in listed:
            allocated = self._facts.allocated(resource)
            before: dict[str, Counter[str]] = {}
            for cdi, one in sorted(map(_with_cdi_names, resource.claim_resources), key=_by_names):
                name = _name(one)
                own, before[name.driver] = _own_names(cdi, before.get(name.driver)), cdi
                known = allocated.get((name, one.share_id))
                if known and not self._facts.may_use(holder, resource.claim_name, known.request):
                    continue
                key = self._facts.key(name)
                self.names[key] = name
                self._through.setdefault(key, set()).add(self._holding(holder, resource, one.share_id, known))
                for cdi_name in own:
                    self._cdi.setdefault(key, set()).add(cdi_name)
                    self._bearers.setdefault(cdi_name, set()).add(key)
                    named = holder[:2], resource.claim_name, cdi_name
                    self._of_claim.setdefault(named, set()).add(key)
                found = True
        return found

    def _holding(
        self,
        holder: Holder,
        resource: api_pb2.DynamicResource,
        share_id: str,
        known: AllocatedDevice | None,
    ) -> ClaimHolding:
        request = "" if known is None else known.request
        extended = self._facts.extended_resource(holder, resource.claim_name, request)
        return ClaimHolding(
            holder,
            resource.claim_namespace,
            resource.claim_name,
            share_id,
            request,
            extended or ("" if known is None else known.device_class),
            None if known is None else known.admin,
        )

    def device(self, key: DeviceKey) -> Claimed | None:
        """DRA's facts of a device; None for a device that neither a claim nor a slice has."""
        published, name = self._facts.published.get(key), self.names.get(key)
        if published is None and name is None:
            return None
        through = tuple(sorted(self._through.get(key, ()), key=by_claim))
        holding = {one[1:3] for one in through}
        reserved = [claim for claim in self._facts.allocated_by.get(key, ()) if claim not in holding]
        cdi = tuple(sorted(self._cdi.get(key, ())))
        known = self._facts.view.cdi
        own = [known[one] for one in cdi if one in known and self._bearers[one] == {key}] if known else []
        return Claimed(
            published.name if published is not None else name or PublishedName("", "", ""),
            published,
            cdi,
            all_of(own),
            through,
            self._shared_cdi(key, cdi),
            tuple(reserved),
        )

    def _shared_cdi(self, key: DeviceKey, cdi: Iterable[str]) -> tuple[tuple[str, int], ...]:
        claims = {(one.holder[:2], one.claim) for one in self._through.get(key, ())}
        found = [(name, max([len(self._of_claim.get((*one, name), ())) for one in claims])) for name in cdi]
        return tuple([(name, number) for name, number in found if number > 1])

    def numa_nodes(self, keys: Collection[DeviceKey]) -> dict[DeviceKey, Nodes]:
        """The NUMA nodes that slices give `keys` and the devices that were added."""
        published = self._facts.published
        found = {key: published[key].numa_nodes for key in {*keys, *self.names} if key in published}
        return {key: nodes for key, nodes in found.items() if nodes}

    def by_holder(self) -> Mapping[Holder, Mapping[DeviceKey, str]]:
        """The devices of each holder, and what it asked for each by: the driver where that is not known."""
        found: dict[Holder, dict[DeviceKey, str]] = {}
        for key, through in self._through.items():
            for one in sorted(through, key=by_claim):
                if not one.admin:
                    held = found.setdefault(one.holder, {})
                    held[key] = held.get(key) or one.requested_as
        return {
            holder: {key: name or self.names[key].driver for key, name in held.items()}
            for holder, held in found.items()
        }


def with_alternatives(devices: dict[DeviceKey, Device], facts: ClaimFacts) -> dict[DeviceKey, Device]:
    """`devices` with those marked that another partition of their physical device stands for.

    All partitions of a physical device must be among them, or none.
    """
    groups: dict[_Group, list[DeviceKey]] = {}
    for key in devices.keys() & facts.published.keys() if facts.view.published else ():
        device = facts.published[key]
        if device.consumes:
            groups.setdefault(_group(device), []).append(key)
    for keys in groups.values():
        members = [facts.published[key] for key in sorted(keys)]
        held = {facts.published[key].name for key in keys if devices[key].holders or devices[key].reserved}
        spare = alternatives(members, held, facts.view.counters)
        for key in keys:
            if facts.published[key].name in spare:
                devices[key] = replace(devices[key], alternative=True)
    return devices
