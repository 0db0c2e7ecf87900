"""The shapes of the JSON API's documents. `devicelens who` decodes and writes the same.

Times are RFC 3339 in UTC. What is not known is null, never an empty text: a whole device's `parent`, a
`pod_uid` that no source tells, `healthy` where the kubelet cannot tell what is allocatable.

The shape of /api/v1/explain. `devicelens explain` decodes and writes the same.

The shape of /api/v1/history. `devicelens history` and `devicelens who --at` read the same.

As everywhere, times are RFC 3339 in UTC, and what is not known is null.

The shapes in which the API speaks of itself: its index, and what went wrong (RFC 9457).
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType


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
"""The kinds of anomaly (exporter.mapping.anomalies, exporter.mapping.anomalies), and a stale mapping's."""
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


class ReadingEntry(Struct, frozen=True):
    """How an id was read: by which rule, as whole, replica or partition; as which one, and of what."""

    rule: str
    kind: Annotated[str, one_of("whole", "replica", "partition")]
    parent: str | None
    replica: str | None
    partition: str | None


class NumaEntry(Struct, frozen=True):
    """NUMA nodes, and who tells: kubelet, plugin, or null for nobody."""

    nodes: NumaNodes
    told_by: Annotated[str | None, one_of("kubelet", "plugin", None)]


class ExplainDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/explain?device=ID&resource=NAME: one device, in `sentences` first and in facts after.

    `subject` is device, parent (what is behind shares or parts, and no device that the kubelet knows by
    itself) or claimed (given through ResourceClaims); `entry`, `numa` and `resource` are null for the last
    two. `siblings` are the other devices of its parent, `parts` those whose parent it is; 100 of each at
    most. `elsewhere` are further resources that have a device of this id. `why_nobody` says why no pod is
    named as its holder, null where one is.
    """

    sentences: tuple[str, ...]
    subject: Annotated[str, one_of("device", "parent", "claimed")]
    resource: str | None
    device: str
    reading: ReadingEntry
    parent: str | None
    parent_reading: ReadingEntry | None
    elsewhere: tuple[str, ...]
    entry: DeviceEntry | None
    numa: NumaEntry | None
    attributed: bool
    why_nobody: str | None
    siblings: tuple[DeviceEntry, ...]
    parts: tuple[DeviceEntry, ...]
    claims: tuple[ClaimEntry, ...]
    anomalies: tuple[AnomalyEntry, ...]


CertaintyWord = Annotated[
    str, one_of("at_once", "between_polls", "while_silent", "while_down", "held_already", "in_doubt")
]
GapWord = Annotated[
    str,
    one_of(
        *("exporter_down", "kubelet_silent", "paused", "clock_set"),
        *("not_recorded", "before_history", "not_yet"),
    ),
]


class BoundEntry(Struct, frozen=True):
    """When a holding began or ended: not before the last look that did not show it, and not after the first
    that did. `certainty` says how it came to be known: at_once, between_polls, while_silent (the kubelet did
    not answer), while_down (the exporter), held_already (it was there in the first look ever), in_doubt (not
    seen just after a start, when the kubelet may not list all yet).
    """

    not_before: Time | None
    not_after: Time | None
    certainty: CertaintyWord


class PastEntry(Struct, frozen=True, kw_only=True):
    """One holding: what, by whom, from when to when. `end` is null while it lasts.

    A device plugin's device has `resource`, a claimed one `driver`, `pool` and the claim. `assumed`: for
    some time nobody looked, and no uid proves that it is still the same pod. `certain` tells of a question
    of one moment whether it was surely held then; it is null in the answer for a range.
    """

    id: int
    node: str
    resource: str | None
    device: str
    parent: str | None
    driver: str | None
    pool: str | None
    share_id: str | None
    claim_namespace: str | None
    claim: str | None
    namespace: str
    pod: str
    pod_uid: str | None
    container: str
    workload_kind: str | None
    workload: str | None
    start: BoundEntry
    end: BoundEntry | None
    assumed: bool
    certain: bool | None


class UnseenEntry(Struct, frozen=True):
    """A time at which nobody looked: whatever was held and given back within it is not known. `since` is null
    where it goes back without end, `until` where it has none yet.
    """

    since: Time | None
    until: Time | None
    why: GapWord


class HistoryDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/history, newest first.

    `at`, or `since` and `until`, are what was asked for. It is known who held what from `earliest` to
    `latest`, but for the gaps: `complete` says that there are none in the time that was asked for, and
    `unseen` lists those that there are (the latest of them, if they are many: `unseen_left_out`). `next` is
    the cursor of what follows. `resources` are all that history knows. `kept_in` is file or memory;
    `trouble` says why it is not the file, or not up to date.
    """

    at: Time | None
    since: Time | None
    until: Time | None
    earliest: Time | None
    latest: Time | None
    complete: bool
    unseen: tuple[UnseenEntry, ...]
    unseen_left_out: Count
    holdings: tuple[PastEntry, ...]
    next: str | None
    resources: tuple[str, ...]
    kept_in: Annotated[str, one_of("file", "memory")]
    trouble: str | None


class EndpointEntry(Struct, frozen=True):
    """An address: what is there, and the query parameters that it knows."""

    href: str
    summary: str
    parameters: tuple[str, ...]


class IndexDocument(Struct, frozen=True):
    """/api/v1: what there is. `openapi` is the address of the document that describes it all. `pages` are the
    addresses of the HTML pages for people, as URI templates (RFC 6570).
    """

    node: str
    version: str
    openapi: str
    endpoints: tuple[EndpointEntry, ...]
    pages: dict[str, str]


class DeviceName(Struct, frozen=True):
    """A device's name: ids are unique within a resource only."""

    resource: str
    device: str


class Problem(Struct, frozen=True, kw_only=True):
    """What went wrong (RFC 9457). `detail` is one sentence for a person, and may be worded otherwise in
    another version; programs look at `status` and at the members beside it.
    """

    type: str
    title: str
    status: int
    detail: str


class QueryProblem(Problem, frozen=True, kw_only=True):
    """A query parameter that cannot be honoured: which, what was found, what was expected. `devices` are
    those that may be meant, where an id is not enough to tell them apart.
    """

    parameter: str
    found: str | UnsetType = UNSET
    expected: str | UnsetType = UNSET
    devices: tuple[DeviceName, ...] | UnsetType = UNSET


class UnknownDeviceProblem(Problem, frozen=True, kw_only=True):
    """There is no such device. `nearest` are those whose ids are most like it."""

    node: str
    nearest: tuple[DeviceName, ...]


class UnavailableProblem(Problem, frozen=True, kw_only=True):
    """Not now: Retry-After says when to ask again, in seconds. `freshness` is unknown until the kubelet has
    answered for the first time.
    """

    node: str | UnsetType = UNSET
    freshness: str | UnsetType = UNSET


class NotAcceptableProblem(Problem, frozen=True, kw_only=True):
    """The Accept header allows nothing of what is `available`."""

    available: tuple[str, ...]
