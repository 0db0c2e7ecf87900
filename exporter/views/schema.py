"""The JSON API's documents as msgspec structs. The commands decode and write the same structs.

Times are RFC 3339 in UTC. An unknown value is null, never an empty string: a whole device's `parent`, a
`pod_uid` that no source provides, `healthy` where the kubelet does not report allocatable devices.

The docstrings are the schemas' descriptions in the OpenAPI document; `make openapi` renews it. What a list
has thousands of is `gc=False`: the garbage collector need not visit what cannot be part of a cycle.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType


# Documented only, not enforced on decoding: a newer exporter may send more words.
def one_of(*words: str | None) -> Meta:
    """One of several words, with None among them where the member may be null."""
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
    Meta(description="NUMA node numbers, sorted; empty where unknown."),
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
KINDS = (
    *("double_held", "no_longer_offered", "numa_split", "plugin_gone", "stale", "tainted_held"),
    *("unattributed", "unhealthy_held", "unprepared"),
)
"""The kinds of anomaly of exporter.mapping, and `stale` for a mapping that is too old."""
KindWord = Annotated[str, one_of(*KINDS)]


class ErrorEntry(Struct, frozen=True):
    """Why the last refresh failed, and since when."""

    method: str
    code: str
    message: str
    since: Time


class Envelope(Struct, frozen=True, kw_only=True):
    """The members that every answer about the mapping begins with."""

    node: str
    generation: Annotated[
        Count,
        Meta(description="Grows by one with each change of the mapping; restarts with the process."),
    ]
    taken_at: Annotated[
        Time | None, Meta(description="When the exporter requested this mapping from the kubelet.")
    ]
    age_seconds: Annotated[Seconds | None, Meta(description="Age of the mapping at the Date of this answer.")]
    freshness: FreshnessWord
    error: ErrorEntry | None


class ListEnvelope(Envelope, frozen=True, kw_only=True):
    """The members that every list begins with; the last member of a list's document has its items."""

    next: Annotated[
        str | None,
        Meta(description="The `cursor` of the next page; null on the last page, and without `limit`."),
    ] = None


class WorkloadEntry(Struct, frozen=True, gc=False):
    """A pod's owner: a Deployment, a CronJob, the Node of a static pod, or the pod itself."""

    kind: str
    name: str


class HolderEntry(Struct, frozen=True, gc=False):
    """A container that holds a device. `since_exact` is false where the container already held the device
    when the exporter first saw it. `workload` is null where the pod's owner is unknown. `confirmed` is false
    where the kubelet has restarted and not listed the pod since. `chosen` is the physical device that another
    scheduler (HAMi, Volcano) chose for the pod; `provable` is false where that one cannot be told.
    `requested_as` is what the container asked by: the resource; for a claimed device the extended resource,
    else the DeviceClass; null where unknown.
    """

    namespace: str
    pod: str
    container: str
    pod_uid: str | None
    since: Time | None
    since_exact: bool
    workload: WorkloadEntry | None = None
    confirmed: bool = True
    chosen: str | None = None
    provable: bool = True
    requested_as: str | None = None


class PluginEntry(Struct, frozen=True, gc=False):
    """What a device's own plugin reports. `answers` is false where this is the plugin's last report and it
    does not respond now. `reason` is why the device is unhealthy, `since` when its health last changed.
    """

    source: str
    answers: bool
    health: HealthWord
    reason: str | None
    since: Time | None
    attributes: dict[str, str]
    last_allocated: Time | None


class IdentityEntry(Struct, frozen=True, gc=False):
    """The physical device by the names that other programs have for it; "" for what is not known. Shares and
    slices have their physical device's PCI address. `driver` is the DRA driver of a claimed device, else the
    kernel's.
    """

    uuid: str
    pci_address: str
    model: str
    driver: str


class TaintEntry(Struct, frozen=True, gc=False):
    """A taint of a device: NoSchedule keeps new pods away, NoExecute ends pods too, others change nothing."""

    key: str
    value: str
    effect: str
    since: Time | None


class ThroughEntry(Struct, frozen=True, gc=False):
    """A container that has a device through a ResourceClaim. `request` is the claim's request, `requested_as`
    the extended resource, else the DeviceClass; null while the claim is unknown. `admin`: the claim is for
    administration, which is not holding; null while the claim is unknown.
    """

    namespace: str
    pod: str
    container: str
    claim_namespace: str
    claim: str
    share_id: str | None
    request: str | None
    requested_as: str | None
    admin: bool | None


class ReservedEntry(Struct, frozen=True, gc=False):
    """A claim that a device is allocated by, and that no listed container uses."""

    claim_namespace: str
    claim: str


class ClaimedEntry(Struct, frozen=True, gc=False):
    """What DRA says about a device. `capacity`, `attributes`, `taints` and `shareable` (several claims may
    hold it) are those of its ResourceSlice; `shareable` is null where no slice has the device.
    `alternative`: another partition of the same physical device is counted in its place. `through` are all
    containers with a claim for it, also for administration. `reserved` are claims that it is allocated by and
    that no listed container uses, such as those of init containers: it is not free.
    """

    driver: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]
    capacity: dict[str, str]
    attributes: dict[str, str]
    taints: tuple[TaintEntry, ...]
    shareable: bool | None
    alternative: bool
    through: tuple[ThroughEntry, ...]
    reserved: tuple[ReservedEntry, ...] = ()


class DeviceEntry(Struct, frozen=True, gc=False):
    """A device that is allocatable, held, reported by its plugin, published by its DRA driver, or no longer
    offered. `plugin` is null where no plugin reports it, `claimed` where it is not a DRA driver's,
    `identity` where nothing is known of the physical device. `no_longer_offered_since` is null unless the
    kubelet offered the device or a pod held it once, and no answer names it any more. `free`: a pod can get
    the device, which no pod holds; null where only held devices of the resource are known.
    """

    resource: str
    device: str
    parent: str | None
    numa_nodes: NumaNodes
    healthy: bool | None
    holders: tuple[HolderEntry, ...]
    plugin: PluginEntry | None = None
    no_longer_offered_since: Time | None = None
    identity: IdentityEntry | None = None
    claimed: ClaimedEntry | None = None
    free: bool | None = None


class DevicesDocument(ListEnvelope, frozen=True, kw_only=True):
    """/api/v1/devices, by resource and device."""

    devices: tuple[DeviceEntry, ...]


class HeldDeviceEntry(Struct, frozen=True, gc=False):
    """A device that a container holds. `parent` is the one that another scheduler chose for the pod, if any;
    `provable` is false where that one cannot be told. `requested_as` as in HolderEntry.
    """

    resource: str
    device: str
    parent: str | None
    healthy: bool | None
    since: Time | None
    since_exact: bool
    provable: bool = True
    requested_as: str | None = None


class HeldClaimEntry(Struct, frozen=True, gc=False):
    """A claim through which a container holds a device, which is among its devices too."""

    claim_namespace: str
    claim: str
    driver: str
    pool: str
    device: str
    share_id: str | None
    since: Time | None = None
    since_exact: bool = False


class MemoryEntry(Struct, frozen=True, gc=False):
    """Memory of one type that is pinned to NUMA nodes."""

    type: str
    numa_nodes: NumaNodes
    bytes: Count


class ContainerEntry(Struct, frozen=True, gc=False):
    """A container that holds devices, exclusive CPUs or pinned memory, or administers devices."""

    name: str
    devices: tuple[HeldDeviceEntry, ...]
    claims: tuple[HeldClaimEntry, ...]
    cpu_ids: tuple[Count, ...]
    memory: tuple[MemoryEntry, ...]
    numa_nodes: NumaNodes


class PodEntry(Struct, frozen=True, gc=False):
    """A pod that holds something. `workload`, `phase`, `priority_class` and `labels` are null where no source
    identifies the pod; `labels` are those that --pod-labels allows. `confirmed` is false where the kubelet
    has restarted and not listed the pod since.
    """

    namespace: str
    name: str
    uid: str | None
    containers: tuple[ContainerEntry, ...]
    workload: WorkloadEntry | None = None
    phase: str | None = None
    priority_class: str | None = None
    labels: dict[str, str] | None = None
    confirmed: bool = True


class PodsDocument(ListEnvelope, frozen=True, kw_only=True):
    """/api/v1/pods, by namespace and name."""

    pods: tuple[PodEntry, ...]


class ClaimHolderEntry(Struct, frozen=True):
    """A container, and the claim through which it holds a device. `since_exact` is false where the container
    already held the device when the exporter first saw it. `confirmed` is false where the kubelet has
    restarted and not listed the pod since.
    """

    claim_namespace: str
    claim: str
    namespace: str
    pod: str
    container: str
    pod_uid: str | None
    since: Time | None = None
    since_exact: bool = False
    confirmed: bool = True


class ClaimEntry(Struct, frozen=True):
    """A device allocated through ResourceClaims (DRA)."""

    driver: str
    pool: str
    device: str
    share_id: str | None
    cdi_devices: tuple[str, ...]
    holders: tuple[ClaimHolderEntry, ...]


class ClaimsDocument(ListEnvelope, frozen=True, kw_only=True):
    """/api/v1/claims, by driver, pool, device and share."""

    claims: tuple[ClaimEntry, ...]


class ResourceEntry(Struct, frozen=True):
    """Counts of a resource's devices; null where only held devices are known: the kubelet does not report
    allocatable devices, or no ResourceSlice names those of the DRA driver.

    `allocated` (held), `free` and `unavailable` exclude each other and sum up to `known`. `unhealthy` are all
    that are not allocatable: `unavailable` but those reserved, and `held_unhealthy`. `alternatives` are
    further partitions in whose place others of the same physical device are counted.
    """

    resource: str
    known: Count
    allocatable: Count | None
    allocated: Count
    unhealthy: Count | None
    free: Count | None
    unavailable: Count | None
    held_unhealthy: Count | None
    alternatives: Count = 0


class ResourcesDocument(ListEnvelope, frozen=True, kw_only=True):
    """/api/v1/resources, by name."""

    resources: tuple[ResourceEntry, ...]


class AnomalyHolderEntry(Struct, frozen=True):
    """The container that an anomaly affects."""

    namespace: str
    pod: str
    container: str
    pod_uid: str | None


class PodName(Struct, frozen=True):
    """A pod's namespace and name."""

    namespace: str
    pod: str


class AnomalyEntry(Struct, frozen=True):
    """One anomaly, with the evidence as a sentence. `since` is when it was first seen.

    `devices` and `pods` are those that take part (64 at most); `numa_nodes` are those that could have held
    the whole container.
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


class AnomaliesDocument(ListEnvelope, frozen=True, kw_only=True):
    """/api/v1/anomalies."""

    anomalies: tuple[AnomalyEntry, ...]


class Counts(Struct, frozen=True):
    """Totals of the node. `free`, `unhealthy`, `unavailable` and `held_unhealthy` are of the resources whose
    free devices are known; null where those of none are.

    `held`, `free` and `unavailable` exclude each other; they sum up to `devices` where all are known.
    `unhealthy` are all that are not allocatable: `unavailable` but those reserved, and `held_unhealthy`.
    `claimed_devices` are those that pods hold through claims. `unconfirmed_pods` hold something that the
    kubelet has not listed since its restart.
    """

    resources: Count
    devices: Count
    held: Count
    free: Count | None
    unhealthy: Count | None
    unavailable: Count | None
    held_unhealthy: Count | None
    claimed_devices: Count
    containers: Count
    pods: Count
    anomalies: Count
    unconfirmed_pods: Count = 0


class PluginStatusEntry(Struct, frozen=True):
    """A plugin that the exporter queries (--plugin.url): its resources, when it first reported them
    (`told_at`), and why it does not respond.
    """

    source: str
    answers: bool
    resources: tuple[str, ...]
    told_at: Time | None
    silent_since: Time | None
    problem: str | None


class SourceEntry(Struct, frozen=True):
    """A source of facts about claimed devices: `name` is slices, claims or cdi. `problem` says what is not
    known without it, and which right or mount would give it; null while it works.
    """

    name: str
    up: bool
    problem: str | None


class StatusDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/status: the exporter itself. `counts` is null until the kubelet has answered."""

    api_version: str | None
    notes: tuple[str, ...]
    triggers: tuple[str, ...]
    poll_interval_seconds: Seconds
    stale_after_seconds: Seconds
    version: str
    counts: Counts | None
    plugins: tuple[PluginStatusEntry, ...] = ()
    sources: tuple[SourceEntry, ...] = ()


class ReadingEntry(Struct, frozen=True):
    """How a device id is read: rule, kind, and the share (`replica`) or slice (`partition`) of `parent`."""

    rule: str
    kind: Annotated[str, one_of("whole", "replica", "partition")]
    parent: str | None
    replica: str | None
    partition: str | None


class NumaEntry(Struct, frozen=True):
    """NUMA nodes and their source: kubelet, plugin, driver (its ResourceSlice), or null where unknown."""

    nodes: NumaNodes
    told_by: Annotated[str | None, one_of("kubelet", "plugin", "driver", None)]


class HealthEntry(Struct, frozen=True):
    """Health of a device, or of a physical device: then the worst of its parts, since the first of these.
    `words` and `reason` say why; where parts differ, they count and name the affected ones. `source` is who
    reports it.
    """

    health: Annotated[str, one_of("healthy", "unhealthy", "unknown")]
    words: str
    reason: str | None
    since: Time | None
    source: str | None


class ExplainDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/explain?device=ID&resource=NAME: one device, in sentences and in facts.

    `subject` is device, or parent (the physical device behind shares or slices, which the kubelet does not
    list itself): `entry`, `numa` and `resource` are null then. `siblings` are the other devices of the same
    parent, `parts` the devices whose parent this is; 100 of each at most. `elsewhere` are other resources
    with a device of the same id, `claims` those that hold the device. `why_nobody` says why no pod is the
    device's holder; null where one is.

    `severity` is the worst that is known: critical (unhealthy), warning (another anomaly), unknown (the
    health is unknown, or the mapping is stale), ok. The first sentence says it.
    """

    sentences: tuple[str, ...]
    subject: Annotated[str, one_of("device", "parent")]
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
    severity: Annotated[str, one_of("ok", "unknown", "warning", "critical")] = "unknown"
    health: HealthEntry | None = None


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


class BoundEntry(Struct, frozen=True, gc=False):
    """Bounds of a holding's start or end: after the last refresh that did not show the change, and not after
    the first that did. `certainty` says how it was observed: at_once, between_polls, while_silent (the
    kubelet did not answer), while_down (the exporter did not run), held_already (present in the first refresh
    ever), in_doubt (not listed just after a restart, when the kubelet's List may be incomplete).
    """

    not_before: Time | None
    not_after: Time | None
    certainty: CertaintyWord


class PastEntry(Struct, frozen=True, kw_only=True, gc=False):
    """One holding: device, holder, start and end. `end` is null while it lasts.

    `requested_as` is what the container asked by: the resource, for a claimed device the extended resource or
    the DeviceClass, null while that is not known. A claimed device has the claim, of several the first;
    `driver` and `pool` only where a version before 0.1.0 recorded it. `assumed` is true where there was a gap
    in observation and no pod uid proves that it is still the same pod. `certain`, for a query of one moment
    (`at`), says whether the device was surely held then; null for a range.
    """

    id: int
    node: str
    resource: str
    device: str
    parent: str | None
    requested_as: str | None
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


class PastDeviceEntry(Struct, frozen=True):
    """A device that no pod held at the queried moment: free, unhealthy, or unknown where there was a gap in
    observation or a change between two refreshes. `healthy` is null where the health was not known: of a free
    claimed device history knows only its taints.
    """

    resource: str
    device: str
    parent: str | None
    state: Annotated[str, one_of("free", "unhealthy", "unknown")]
    healthy: bool | None


class UnseenEntry(Struct, frozen=True):
    """A gap in observation: holdings that began and ended within it are unknown. `since` is null for a gap
    without a start, `until` for one that has not ended.
    """

    since: Time | None
    until: Time | None
    why: GapWord


class MatchedEntry(Struct, frozen=True):
    """How the query's name `given` of one `parameter` was matched. `whole`: history has this name. Otherwise
    holdings of `count` names are in the answer (null: of more than 256): a resource by the part after its
    slash, a device or a pod by a part of its name. `names` are the first of them; `near` are similar names
    where there are none.
    """

    parameter: str
    given: str
    whole: bool
    count: Count | None
    names: tuple[str, ...]
    near: tuple[str, ...]


class HistoryDocument(Envelope, frozen=True, kw_only=True):
    """/api/v1/history, newest first.

    `at`, or `since` and `until`, repeat the query. History covers `earliest` to `latest` except for the gaps:
    `complete` says that the queried time has none, and `unseen` lists them (the latest of many;
    `unseen_left_out` counts the rest). `next` is the cursor of the next page. `resources` are all resources
    in history. `kept_in` is file or memory; `trouble` says why history is not in its file or not up to date.
    `matched` says how the resource, the device, and the pod of the query were matched.

    At a moment `devices` follow the last of `holdings`, on further pages too: the devices that no pod held,
    without the partitions of a physical device that another one stood for. `devices_recorded` is false where
    history does not have the devices of this time, and null for a range, a query by driver, claim or pod, and
    while holdings follow on the next page. `held_only` are the resources of which only held devices were
    known: no ResourceSlice named the others.
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
    matched: tuple[MatchedEntry, ...] = ()
    devices: tuple[PastDeviceEntry, ...] = ()
    devices_recorded: bool | None = None
    held_only: tuple[str, ...] = ()


class EndpointEntry(Struct, frozen=True):
    """An address, its summary, and its query parameters."""

    href: str
    summary: str
    parameters: tuple[str, ...]


class IndexDocument(Struct, frozen=True):
    """/api/v1: every address. `openapi` is the address of the OpenAPI document. `pages` are the addresses of
    the HTML pages, as URI templates (RFC 6570).
    """

    node: str
    version: str
    openapi: str
    endpoints: tuple[EndpointEntry, ...]
    pages: dict[str, str]


class DeviceName(Struct, frozen=True):
    """A device's resource and id: ids are unique within a resource only."""

    resource: str
    device: str


class Problem(Struct, frozen=True, kw_only=True):
    """An error (RFC 9457). `detail` is one sentence for a person and may change between versions; programs
    read `status` and the other members.
    """

    type: str
    title: str
    status: int
    detail: str


class QueryProblem(Problem, frozen=True, kw_only=True):
    """A query parameter that cannot be honoured: its name, the value found, and what was expected. `devices`
    are the candidates where an id is ambiguous.
    """

    parameter: str
    found: str | UnsetType = UNSET
    expected: str | UnsetType = UNSET
    devices: tuple[DeviceName, ...] | UnsetType = UNSET


class UnknownDeviceProblem(Problem, frozen=True, kw_only=True):
    """There is no such device. `nearest` are the devices with the most similar ids."""

    node: str
    nearest: tuple[DeviceName, ...]


class UnavailableProblem(Problem, frozen=True, kw_only=True):
    """Not available now: Retry-After is the number of seconds to wait. `freshness` is unknown until the
    kubelet has answered for the first time.
    """

    node: str | UnsetType = UNSET
    freshness: str | UnsetType = UNSET


class NotAcceptableProblem(Problem, frozen=True, kw_only=True):
    """The Accept header allows none of the `available` media types."""

    available: tuple[str, ...]
