"""What Dynamic Resource Allocation (DRA) says about devices, claims, and pods. Pure data.

The sources (exporter.dra, exporter.pods) fill these records; the snapshot, health, and anomalies read them.
Text is bounded and checked by the source that brings it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace


class ClaimName(NamedTuple):
    """Namespace and name of a ResourceClaim."""

    namespace: str
    name: str


class PublishedName(NamedTuple):
    """A device as DRA names it: unique in its pool, the pool unique for its driver."""

    driver: str
    pool: str
    device: str


class Taint(NamedTuple):
    """A taint of a device. `since` is unix time, None if not given. Kubernetes: NoSchedule keeps new pods
    away, NoExecute ends pods too; other effects change nothing.
    """

    key: str
    value: str
    effect: str
    since: float | None = None

    @property
    def repels(self) -> bool:
        """Whether the scheduler keeps pods away from the device that do not tolerate the taint."""
        return self.effect in {"NoSchedule", "NoExecute"}


class CounterName(NamedTuple):
    """A counter of a physical device (sharedCounters), which its partitions consume."""

    driver: str
    pool: str
    counter_set: str
    counter: str


class Consumption(NamedTuple):
    """What a partition takes of one counter of a physical device."""

    counter_set: str
    counter: str
    amount: float


class PublishedDevice(Struct, frozen=True):
    """A device of a ResourceSlice.

    `resource` is the attribute devicelens.dev/resource, "" without it. `parent` is the physical device behind
    a partition, by its name in the pool, or the name of its counter set; "" for a whole device. `attributes`
    and `capacity` are sorted by name. `shareable`: several claims may have it (allowMultipleAllocations).
    `consumes` is sorted, empty for a device without shared counters.
    """

    name: PublishedName
    resource: str = ""
    uuid: str = ""
    pci_address: str = ""
    model: str = ""
    numa_nodes: tuple[int, ...] = ()
    parent: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    taints: tuple[Taint, ...] = ()
    shareable: bool = False
    consumes: tuple[Consumption, ...] = ()


class AllocatedDevice(NamedTuple):
    """A device of an allocated claim. `request` is without its subrequest. `admin`: for administration, which
    is not holding.
    """

    name: PublishedName
    share_id: str
    request: str
    device_class: str
    admin: bool


class Claim(Struct, frozen=True):
    """An allocated ResourceClaim, as the API server has it. `reserved_for` are uids of pods."""

    name: ClaimName
    uid: str
    devices: tuple[AllocatedDevice, ...] = ()
    reserved_for: frozenset[str] = frozenset()


class ExtendedRequest(NamedTuple):
    """A container's request for an extended resource, and the claim's request that serves it."""

    container: str
    resource: str
    request: str


class ExtendedClaim(NamedTuple):
    """The claim by which DRA serves a pod's extended resources (PodStatus.extendedResourceClaimStatus)."""

    claim: str
    requests: tuple[ExtendedRequest, ...]


class PodClaim(NamedTuple):
    """A claim that a pod names in its spec: the name there, and the ResourceClaim's."""

    reference: str
    claim: str


class ContainerClaim(NamedTuple):
    """A container's use of a claim of its pod. `request` is one of the claim's requests, "" for all."""

    container: str
    reference: str
    request: str


class ResourceHealth(NamedTuple):
    """One entry of ContainerStatus.allocatedResourcesStatus: `name` is a resource or `claim:NAME[/REQUEST]`,
    `resource_id` a device id or the first CDI name (`driver/pool/device` without any), `health` is Healthy,
    Unhealthy or Unknown.
    """

    container: str
    name: str
    resource_id: str
    health: str
    message: str = ""


class ChosenDevice(NamedTuple):
    """A physical device that another scheduler (HAMi, Volcano) chose for a container, by the pod's
    annotation. `device` is its UUID; `scheduler` is HAMi or Volcano.
    """

    scheduler: str
    container: str
    device: str


class PodDevices(Struct, frozen=True):
    """What a pod's object says about its devices. `health` is sorted. `uses` are the containers' claims.
    `unreadable` names an annotation of
    another scheduler that cannot be read: which device the pod uses is not provable then.
    """

    claims: tuple[PodClaim, ...] = ()
    extended: ExtendedClaim | None = None
    health: tuple[ResourceHealth, ...] = ()
    chosen: tuple[ChosenDevice, ...] = ()
    unreadable: str = ""
    uses: tuple[ContainerClaim, ...] = ()

    def uses_request(self, pod: str, container: str, claim: str, request: str) -> bool | None:
        """Whether `container` of the pod uses `request` of `claim`; None if the pod's object does not say so.

        kubelet: List names all devices of a claim for each container that uses any request of the claim.
        """
        if self.extended is not None and self.extended.claim == claim:
            served = {one[::2] for one in self.extended.requests}
            return (container, request) in served if request in {one for _, one in served} else None
        reference = self.reference(pod, claim)
        used = {one.request for one in self.uses if one[:2] == (container, reference)}
        return bool(used & {"", request}) if reference and used else None

    def reference(self, pod: str, claim: str) -> str:
        """The pod's name for `claim`, "" if it is unknown.

        Kubernetes: a claim that is made from a template is called <pod>-<reference>-<random>.
        """
        found = [one.reference for one in self.claims if one.claim == claim]
        generated = [one.reference for one in self.claims if claim.startswith(f"{pod}-{one.reference}-")]
        names = found or (generated if len(generated) == 1 else [])
        return names[0] if names else ""

    def keeping(self, before: "PodDevices") -> "PodDevices":
        """This, and the claims that were reported `before` and are missing now: a pod's claims never change.

        kubelet 1.36: the Pods API has the status that the kubelet itself reports, and the names of generated
        claims, which others write, only until the kubelet has reported one.
        """
        if before is NO_DEVICES or before is self:
            return self
        known = dict(before.claims)
        claims = tuple(
            PodClaim(one.reference, one.claim or known.get(one.reference, "")) for one in self.claims
        )
        extended = self.extended or before.extended
        if claims == self.claims and extended == self.extended:
            return self
        return replace(self, claims=claims, extended=extended)

    def claim_names(self) -> tuple[str, ...]:
        """The names of all claims of the pod, which are in its namespace."""
        own = [one.claim for one in self.claims if one.claim]
        return tuple(dict.fromkeys([*own, *([self.extended.claim] if self.extended is not None else [])]))


NO_DEVICES: Final = PodDevices()
"""Of nearly every pod."""


class CdiDevice(Struct, frozen=True):
    """What a CDI specification on the node says about one CDI device name. All sorted."""

    uuids: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()


def all_of(names: Sequence[CdiDevice]) -> CdiDevice | None:
    """What the specifications of all `names` of one device say; None without any."""
    if len(names) < 2:
        return names[0] if names else None
    parts = zip(*[(one.uuids, one.pci_addresses, one.device_nodes) for one in names], strict=True)
    return CdiDevice(*[tuple(sorted({text for texts in part for text in texts})) for part in parts])


class SourceStatus(NamedTuple):
    """Whether a source of DRA facts works. `name` is slices, claims or cdi; `problem` says what is not known
    and why, and which right or mount would help; "" if nothing.
    """

    name: str
    up: bool
    problem: str = ""


class DraView(Struct, frozen=True, eq=False):
    """All that the sources of DRA facts say, at one moment; the same objects while they do not change.

    `published` are the devices of each pool's newest complete generation. `counters` are the amounts that
    their partitions share. `drivers` have slices, or had some a moment ago: of other drivers only devices
    that a pod holds are known. `claims` are those that pods of
    this node name and that were read; `absent` were asked for and cannot be read, or do not exist.
    """

    published: Mapping[PublishedName, PublishedDevice] = field(
        default_factory=lambda: MappingProxyType(dict[PublishedName, PublishedDevice]())
    )
    counters: Mapping[CounterName, float] = field(
        default_factory=lambda: MappingProxyType(dict[CounterName, float]())
    )
    drivers: frozenset[str] = frozenset()
    claims: Mapping[ClaimName, Claim] = field(
        default_factory=lambda: MappingProxyType(dict[ClaimName, Claim]())
    )
    absent: frozenset[ClaimName] = frozenset()
    cdi: Mapping[str, CdiDevice] = field(default_factory=lambda: MappingProxyType(dict[str, CdiDevice]()))
    sources: tuple[SourceStatus, ...] = ()


NO_DRA: Final = DraView()
"""No source of DRA facts is used: devices of claims are known from List alone."""
