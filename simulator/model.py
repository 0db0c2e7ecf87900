"""What a caller asks of a simulated node (pods, containers, claims), and the result.

Claims that several pods share are listed once for each pod, as the kubelet lists them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class AdmissionError(Exception):
    """The kubelet refused a pod; `reason` and `message` are as in a real pod's status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class ContainerError(Exception):
    """A container of an admitted pod could not be started (PreStartContainer failed).

    The pod stays and keeps its devices, as with a real kubelet, which would try again and again.
    """


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One device that a ResourceClaim was given. `cdi`: names of CDI devices."""

    driver: str
    pool: str
    device: str
    cdi: tuple[str, ...] = ()
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """A ResourceClaim as allocated. Given to several containers or pods by the same name, it is shared."""

    name: str
    devices: tuple[ClaimDevice, ...]
    namespace: str = ""
    """Empty: the pod's own, the only one Kubernetes allows."""


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim of the pod that a container uses (resources.claims), whole or one `request` of it."""

    name: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim that a pod names (spec.resourceClaims): an existing `claim`, or one to make from `template`."""

    name: str
    claim: str = ""
    template: str = ""

    def __post_init__(self) -> None:
        if bool(self.claim) == bool(self.template):
            raise ValueError(f"claim {self.name}: expected either a claim or a template")


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container and what it asks for.

    `resources`: extended resource to number of devices. `exclusive_cpus`: whole CPUs (static CPU
    manager). `memory`: bytes pinned by type, "memory" or "hugepages-2Mi" (static memory manager).
    `claims` are as allocated, without a driver; `claim_refs` are claims of the pod that the scheduler
    allocates and a driver prepares. `sidecar`: among init containers, one that is restartable and keeps
    running.
    """

    name: str
    resources: Mapping[str, int] = field(default_factory=dict[str, int])
    exclusive_cpus: int = 0
    memory: Mapping[str, int] = field(default_factory=dict[str, int])
    claims: tuple[ClaimSpec, ...] = ()
    sidecar: bool = False
    claim_refs: tuple[ClaimRef, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a container needs a name")
        for what, amount in (*self.resources.items(), *self.memory.items()):
            if amount < 0:
                raise ValueError(f"container {self.name}: {what}: found {amount}, expected no less than 0")
        if self.exclusive_cpus < 0:
            raise ValueError(f"container {self.name}: exclusive_cpus: found {self.exclusive_cpus}")


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller that a pod belongs to."""

    kind: str
    name: str
    uid: str = ""
    api_version: str = "apps/v1"


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod as bound to this node. `qos_class` and `uid` are worked out where empty.

    Raises ValueError for a pod that an API server would not have taken.
    """

    name: str
    namespace: str = "default"
    containers: tuple[ContainerSpec, ...] = (ContainerSpec("main"),)
    init_containers: tuple[ContainerSpec, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    owner: Owner | None = None
    priority_class: str = ""
    qos_class: str = ""
    uid: str = ""
    resource_claims: tuple[PodClaim, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or not self.namespace:
            raise ValueError("a pod needs a name and a namespace")
        names = [container.name for container in self.all_containers()]
        if not self.containers:
            raise ValueError(f"pod {self.namespace}/{self.name}: it needs a container")
        if len(set(names)) != len(names):
            raise ValueError(f"pod {self.namespace}/{self.name}: two containers have the same name")
        if any(container.sidecar for container in self.containers):
            raise ValueError(f"pod {self.namespace}/{self.name}: only init containers can be sidecars")
        known = {one.name for one in self.resource_claims}
        if any(ref.name not in known for c in self.all_containers() for ref in c.claim_refs):
            raise ValueError(f"pod {self.namespace}/{self.name}: a container uses a claim that the pod lacks")

    def all_containers(self) -> tuple[ContainerSpec, ...]:
        """Every container in the order in which the kubelet admits and starts them."""
        return self.init_containers + self.containers

    def listed_containers(self) -> tuple[ContainerSpec, ...]:
        """Those that PodResources lists: sidecars, then app containers (seen in the recordings)."""
        return tuple(c for c in self.init_containers if c.sidecar) + self.containers


@dataclass(frozen=True, slots=True, order=True)
class Holding:
    """One device in one container's hands."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str


class Phase(StrEnum):
    """A pod's phase."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class ExtendedRequest:
    """A container's extended resource, and the request of the claim that serves it."""

    container: str
    resource: str
    request: str


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """The claim by which DRA serves a pod's extended resources (status.extendedResourceClaimStatus)."""

    claim: str
    requests: tuple[ExtendedRequest, ...]


@dataclass(frozen=True, slots=True)
class ResourceHealth:
    """One device in a container's allocatedResourcesStatus. `health` is Healthy, Unhealthy or Unknown."""

    resource_id: str
    health: str
    message: str = ""


Health = Mapping[str, Mapping[str, tuple[ResourceHealth, ...]]]
"""allocatedResourcesStatus by container, then by the name of a resource or `claim:NAME[/REQUEST]`."""


@dataclass(slots=True, eq=False)
class Pod:
    """A pod as the node has it. Times are seconds since the Unix epoch."""

    spec: PodSpec
    uid: str
    created: float
    phase: Phase = Phase.PENDING
    deleted: float | None = None
    taken_on: float | None = None
    """When the kubelet first dealt with it (status.startTime)."""
    reason: str = ""
    message: str = ""
    generated_claims: Mapping[str, str] = field(default_factory=dict[str, str])
    """Claims made from templates, by the pod's name for each (status.resourceClaimStatuses)."""
    extended: ExtendedClaim | None = None
    health: Health = field(default_factory=dict[str, Mapping[str, tuple[ResourceHealth, ...]]])

    @property
    def active(self) -> bool:
        """Whether the kubelet counts it: neither refused nor ended."""
        return self.phase in {Phase.PENDING, Phase.RUNNING}

    @property
    def static(self) -> bool:
        """Whether the kubelet has it from a file of its own (kubelet: annotated with where it is from)."""
        return self.spec.annotations.get("kubernetes.io/config.source", "api") != "api"

    @property
    def full_name(self) -> str:
        """Namespace and name."""
        return f"{self.spec.namespace}/{self.spec.name}"

    @property
    def qos_class(self) -> str:
        """Given, else Guaranteed for pods with exclusive CPUs or pinned memory, else BestEffort."""
        if self.spec.qos_class:
            return self.spec.qos_class
        pinned = any(c.exclusive_cpus or c.memory for c in self.spec.all_containers())
        return "Guaranteed" if pinned else "BestEffort"


@dataclass(slots=True)
class _Prepared:
    pods: set[str] = field(default_factory=set[str])
    times: int = 0


class Claims:
    """Which claims are prepared, for how many pods.

    The recordings show that each further pod that shares a claim adds its devices once more to what is
    listed, and its CDI names once more to the addition; containers of one pod add nothing. What was
    added stays until the last pod has gone.
    """

    def __init__(self) -> None:
        self._prepared: dict[tuple[str, str], _Prepared] = {}

    def prepare(self, pod_uid: str, spec: PodSpec) -> None:
        """A pod starts: prepare each of its claims once."""
        for key in {_key(claim, spec) for c in spec.all_containers() for claim in c.claims}:
            prepared = self._prepared.setdefault(key, _Prepared())
            if pod_uid not in prepared.pods:
                prepared.pods.add(pod_uid)
                prepared.times += 1

    def release(self, pod_uid: str) -> None:
        """A pod ended: claims without users are unprepared."""
        for key, prepared in tuple(self._prepared.items()):
            prepared.pods.discard(pod_uid)
            if not prepared.pods:
                del self._prepared[key]

    def listed(self, claim: ClaimSpec, spec: PodSpec) -> Iterable[tuple[ClaimDevice, tuple[str, ...]]]:
        """The claim's devices with their CDI names, repeated as a kubelet repeats them."""
        prepared = self._prepared.get(_key(claim, spec))
        for time in range(1, (prepared.times if prepared is not None else 0) + 1):
            for device in claim.devices:
                yield device, device.cdi * time


def _key(claim: ClaimSpec, spec: PodSpec) -> tuple[str, str]:
    return claim.namespace or spec.namespace, claim.name
