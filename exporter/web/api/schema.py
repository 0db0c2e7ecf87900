"""The shapes of the JSON API's documents. `devicelens who` decodes and writes the same.

Times are RFC 3339 in UTC. What is not known is null, never an empty text: a whole device's `parent`, a
`pod_uid` that no source tells, `healthy` where the kubelet cannot tell what is allocatable.
"""

from typing import Annotated

from msgspec import Meta, Struct


# Said of the shapes, and not checked when they are read: a newer exporter may know more words.
def one_of(*words: str | None) -> Meta:
    """One of several words; None among them where it may be null."""
    return Meta(extra_json_schema={"enum": list(words)})


Time = Annotated[
    str,
    Meta(
        description="RFC 3339, in UTC, with milliseconds.",
        examples=["2026-11-20T03:12:00.250Z"],
        extra_json_schema={"format": "date-time", "pattern": r"Z$"},
    ),
]
Seconds = Annotated[float, Meta(description="Seconds.", extra_json_schema={"minimum": 0})]
Count = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
NumaNodes = Annotated[
    tuple[Annotated[int, Meta(extra_json_schema={"minimum": 0})], ...],
    Meta(description="Numbers of NUMA nodes, sorted; none where nothing tells."),
]
FreshnessWord = Annotated[
    str,
    Meta(
        description="fresh: the last refresh succeeded. ageing: it failed, and the mapping is younger than "
        "--stale-after. stale: it is older. unknown: the kubelet has not answered yet.",
    ),
    one_of("fresh", "ageing", "stale", "unknown"),
]
HealthWord = Annotated[str, one_of("Healthy", "Unhealthy")]
KINDS = ("double_held", "numa_split", "plugin_gone", "stale", "unattributed", "unhealthy_held")
"""The kinds of anomaly (exporter.core.anomalies, exporter.core.judgement), and a stale mapping's."""
KindWord = Annotated[str, one_of(*KINDS)]


class ErrorEntry(Struct, frozen=True):
    """Why the last refresh failed, and since when."""

    method: str
    code: str
    message: str
    since: Time


class Envelope(Struct, frozen=True, kw_only=True):
    """What every answer about the mapping begins with."""

    node: str
    generation: Annotated[
        Count,
        Meta(description="Grows by one with each change of what is told; begins anew with each process."),
    ]
    taken_at: Annotated[Time | None, Meta(description="When the kubelet was asked for the mapping.")]
    age_seconds: Annotated[
        Seconds | None, Meta(description="How old the mapping was at the Date of this answer.")
    ]
    freshness: FreshnessWord
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
    since: Time | None
    since_exact: bool
    workload: WorkloadEntry | None = None


class PluginEntry(Struct, frozen=True):
    """What a device's plugin tells of it. `answers` false: its last word, for it is silent now. `reason` is
    why it is unhealthy, `since` when its health last changed.
    """

    source: str
    answers: bool
    health: HealthWord
    reason: str | None
    since: Time | None
    attributes: dict[str, str]
    last_allocated: Time | None


class DeviceEntry(Struct, frozen=True):
    """A device that is allocatable or held, or that its plugin tells of; `plugin` is null where none does."""

    resource: str
    device: str
    parent: str | None
    numa_nodes: NumaNodes
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
    since: Time | None
    since_exact: bool


class HeldClaimEntry(Struct, frozen=True):
    """A claimed device, from its holder's side."""

    claim_namespace: str
    claim: str
    driver: str
    pool: str
    device: str
    share_id: str | None
    since: Time | None = None
    since_exact: bool = False


class MemoryEntry(Struct, frozen=True):
    """Memory of one type, pinned to NUMA nodes."""

    type: str
    numa_nodes: NumaNodes
    bytes: Count


class ContainerEntry(Struct, frozen=True):
    """A container that holds something."""

    name: str
    devices: tuple[HeldDeviceEntry, ...]
    claims: tuple[HeldClaimEntry, ...]
    cpu_ids: tuple[Count, ...]
    memory: tuple[MemoryEntry, ...]
    numa_nodes: NumaNodes


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
    """A container, and the claim through which it holds a device. `since_exact` false: it held it already
    when it was first seen.
    """

    claim_namespace: str
    claim: str
    namespace: str
    pod: str
    container: str
    pod_uid: str | None
    since: Time | None = None
    since_exact: bool = False


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
    known: Count
    allocatable: Count | None
    allocated: Count
    unhealthy: Count | None
    free: Count | None


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

    kind: KindWord
    resource: str | None
    device: str | None
    holder: AnomalyHolderEntry | None
    evidence: str
    since: Time | None = None
    devices: tuple[str, ...] = ()
    pods: tuple[PodName, ...] = ()
    numa_nodes: NumaNodes = ()


class AnomaliesDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/anomalies."""

    anomalies: tuple[AnomalyEntry, ...]


class Counts(Struct, frozen=True):
    """How much of everything there is; null where the kubelet cannot tell what is allocatable."""

    resources: Count
    devices: Count
    held: Count
    free: Count | None
    unhealthy: Count | None
    claimed_devices: Count
    containers: Count
    pods: Count
    anomalies: Count


class PluginStatusEntry(Struct, frozen=True):
    """A plugin that is asked: since when it says what it says, of which resources; or why it is silent."""

    source: str
    answers: bool
    resources: tuple[str, ...]
    told_at: Time | None
    silent_since: Time | None
    problem: str | None


class StatusDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/status: about the exporter. `counts` is null until the kubelet has answered."""

    api_version: str | None
    notes: tuple[str, ...]
    triggers: tuple[str, ...]
    poll_interval_seconds: Seconds
    stale_after_seconds: Seconds
    version: str
    counts: Counts | None
    plugins: tuple[PluginStatusEntry, ...] = ()
