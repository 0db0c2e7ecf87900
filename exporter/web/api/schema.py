"""The shapes of the JSON API's documents. `devicelens who` decodes and writes the same.

Times are RFC 3339 in UTC. What is not known is null, never an empty text: a whole device's `parent`, a
`pod_uid` that no source tells, `healthy` where the kubelet cannot tell what is allocatable.
"""

from msgspec import Struct


class ErrorEntry(Struct, frozen=True):
    """Why the last refresh failed, and since when."""

    method: str
    code: str
    message: str
    since: str


class Envelope(Struct, frozen=True, kw_only=True):
    """What every answer about the mapping begins with."""

    node: str
    generation: int
    taken_at: str | None
    age_seconds: float | None
    freshness: str
    error: ErrorEntry | None


class WorkloadEntry(Struct, frozen=True):
    """What a pod belongs to: a Deployment, a CronJob, the Node of a static pod, or the pod itself."""

    kind: str
    name: str


class HolderEntry(Struct, frozen=True):
    """A container that holds a device. `since_exact` false: it held it already when it was first seen.
    `workload` is null where it is not known who the pod is.
    """

    namespace: str
    pod: str
    container: str
    pod_uid: str | None
    since: str | None
    since_exact: bool
    workload: WorkloadEntry | None = None


class PluginEntry(Struct, frozen=True):
    """What a device's plugin tells of it. `answers` false: its last word, for it is silent now. `reason` is
    why it is not healthy, `since` when its health last changed.
    """

    source: str
    answers: bool
    health: str
    reason: str | None
    since: str | None
    attributes: dict[str, str]
    last_allocated: str | None


class DeviceEntry(Struct, frozen=True):
    """A device that is allocatable or held, or that its plugin tells of; `plugin` is null where none does."""

    resource: str
    device: str
    parent: str | None
    numa_nodes: tuple[int, ...]
    healthy: bool | None
    holders: tuple[HolderEntry, ...]
    plugin: PluginEntry | None = None


class DevicesDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/devices, by resource and device."""

    devices: tuple[DeviceEntry, ...]


class HeldDeviceEntry(Struct, frozen=True):
    """A device, from its holder's side."""

    resource: str
    device: str
    parent: str | None
    healthy: bool | None
    since: str | None
    since_exact: bool


class HeldClaimEntry(Struct, frozen=True):
    """A claimed device, from its holder's side."""

    claim_namespace: str
    claim: str
    driver: str
    pool: str
    device: str
    share_id: str | None


class MemoryEntry(Struct, frozen=True):
    """Memory of one type, pinned to NUMA nodes."""

    type: str
    numa_nodes: tuple[int, ...]
    bytes: int


class ContainerEntry(Struct, frozen=True):
    """A container that holds something."""

    name: str
    devices: tuple[HeldDeviceEntry, ...]
    claims: tuple[HeldClaimEntry, ...]
    cpu_ids: tuple[int, ...]
    memory: tuple[MemoryEntry, ...]
    numa_nodes: tuple[int, ...]


class PodEntry(Struct, frozen=True):
    """A pod that holds something. What tells who it is is null where that is not known; `labels` are those
    that --pod-labels allows.
    """

    namespace: str
    name: str
    uid: str | None
    containers: tuple[ContainerEntry, ...]
    workload: WorkloadEntry | None = None
    phase: str | None = None
    priority_class: str | None = None
    labels: dict[str, str] | None = None


class PodsDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/pods, by namespace and name."""

    pods: tuple[PodEntry, ...]


class ClaimHolderEntry(Struct, frozen=True):
    """A container, and the claim through which it holds a device."""

    claim_namespace: str
    claim: str
    namespace: str
    pod: str
    container: str
    pod_uid: str | None


class ClaimEntry(Struct, frozen=True):
    """A device given through ResourceClaims."""

    driver: str
    pool: str
    device: str
    share_id: str | None
    cdi_devices: tuple[str, ...]
    holders: tuple[ClaimHolderEntry, ...]


class ClaimsDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/claims, by driver, pool, device and share."""

    claims: tuple[ClaimEntry, ...]


class ResourceEntry(Struct, frozen=True):
    """Counts of a resource's devices; null where the kubelet cannot tell what is allocatable."""

    resource: str
    known: int
    allocatable: int | None
    allocated: int
    unhealthy: int | None
    free: int | None


class ResourcesDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/resources, by name."""

    resources: tuple[ResourceEntry, ...]


class AnomalyHolderEntry(Struct, frozen=True):
    """The container that an anomaly hits."""

    namespace: str
    pod: str
    container: str
    pod_uid: str | None


class PodName(Struct, frozen=True):
    """A pod."""

    namespace: str
    pod: str


class AnomalyEntry(Struct, frozen=True):
    """One thing that is wrong, with the evidence in words. `since`: when it was first seen.

    The facts behind the words: the devices and pods that are part of it (64 at most), and the NUMA nodes
    that could have served.
    """

    kind: str
    resource: str | None
    device: str | None
    holder: AnomalyHolderEntry | None
    evidence: str
    since: str | None = None
    devices: tuple[str, ...] = ()
    pods: tuple[PodName, ...] = ()
    numa_nodes: tuple[int, ...] = ()


class AnomaliesDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/anomalies."""

    anomalies: tuple[AnomalyEntry, ...]


class Counts(Struct, frozen=True):
    """How much of everything there is; null where the kubelet cannot tell what is allocatable."""

    resources: int
    devices: int
    held: int
    free: int | None
    unhealthy: int | None
    claimed_devices: int
    containers: int
    pods: int
    anomalies: int


class PluginStatusEntry(Struct, frozen=True):
    """A plugin that is asked: since when it says what it says, of which resources; or why it is silent."""

    source: str
    answers: bool
    resources: tuple[str, ...]
    told_at: str | None
    silent_since: str | None
    problem: str | None


class StatusDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/status: about the exporter. `counts` is null until the kubelet has answered."""

    api_version: str | None
    notes: tuple[str, ...]
    triggers: tuple[str, ...]
    poll_interval_seconds: float
    stale_after_seconds: float
    version: str
    counts: Counts | None
    plugins: tuple[PluginStatusEntry, ...] = ()
