"""Pod watchers: the events that a source of pod identities yields, and how its pods become identities.

Names that are longer than Kubernetes allows are refused: they would become Prometheus labels.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final, Protocol

from msgspec import Struct, field

from exporter.mapping.dra import NO_DEVICES, PodDevices
from exporter.mapping.identity import UNKNOWN, PodIdentity, Workload
from exporter.mapping.model import PodKey
from exporter.mapping.pod_devices import pod_devices
from exporter.mapping.scheduler_annotations import is_choice
from kubelet.pb.core.v1 import pod_pb2
from runtime.patterns import Pattern


class StreamOpened(Struct, frozen=True):
    """The watch is open. `anew`: drop everything that was reported before."""

    anew: bool


class PodSeen(Struct, frozen=True):
    """A pod appeared or changed. `known`: the kubelet has it, or had it."""

    identity: PodIdentity
    known: bool = True


class PodGone(Struct, frozen=True):
    """The kubelet is done with a pod, or the API server deleted it."""

    key: PodKey
    uid: str


class PodsListed(Struct, frozen=True):
    """A list of all pods, requested at `begun`. `asked` is the same time if the list is no older than the
    request, None if it may come from a cache. Times are the event loop's.
    """

    pods: tuple[PodSeen, ...]
    begun: float
    asked: float | None


class PodsUnchanged(Struct, frozen=True):
    """All reported pods were unchanged at `asked`."""

    asked: float


class UnreadableEvent(Struct, frozen=True):
    """An event does not decode: all pods must be listed."""

    reason: str


PodEvent = StreamOpened | PodSeen | PodGone | PodsListed | PodsUnchanged | UnreadableEvent


class PodWatchError(Exception):
    """A watch failed: `code` is gRPC's name, an HTTP status or a word; `message` is for a person.

    `absent`: this node does not serve the source, which may be intended. `starting`: it will serve the source
    in a moment, as usual after a start. `wait`: seconds for which the server asked not to be called.
    """

    def __init__(
        self, code: str, message: str, *, absent: bool = False, starting: bool = False, wait: float = 0.0
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.absent = absent
        self.starting = starting
        self.wait = wait


class PodWatcher(Protocol):
    """A source of pod identities. One `follow` runs at a time."""

    @property
    def name(self) -> str:
        """The value of `--pods.source` that selects this source."""
        ...

    @property
    def words(self) -> str:
        """The source for a person."""
        ...

    @property
    def lasting(self) -> bool:
        """Whether its reports hold while it is disconnected. The kubelet's end with its process."""
        ...

    def follow(self) -> AsyncGenerator[PodEvent]:
        """Yield events until the watch fails. Raises PodWatchError."""
        ...

    async def confirm(self, *, thorough: bool) -> PodsListed | PodsUnchanged | None:
        """Which pods exist now; None if `follow` will yield the answer. Raises PodWatchError.

        `thorough`: the last reports cannot be right.
        """
        ...

    def interrupt(self) -> None:
        """Make `follow` fail: its stream seems to hang."""
        ...


NAME_LIMIT: Final = 253
"""Characters of an object's name. The Deployment controller cuts its name to fit its ReplicaSet's."""
LABELS_LIMIT: Final = 32
"""Labels of one pod that are kept; the allow-list is for the few that a team groups by."""

_LABEL_NAME: Final = 317
"""Characters of a label's name: a domain of 253, a slash, and 63."""
_LABEL_VALUE: Final = 63
_UID: Final = 128
_PHASES: Final = frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})

# Annotations: where the kubelet got a pod from; in the API server, the mirror of a static pod.
_SOURCE: Final = "kubernetes.io/config.source"
_MIRROR: Final = "kubernetes.io/config.mirror"


class LabelFilter:
    """--pod-labels: keeps labels whose whole name matches a regular expression."""

    def __init__(self, pattern: Pattern | None) -> None:
        """None: no label is kept."""
        self._pattern = pattern
        self._matches = lru_cache(maxsize=4096)(self._match)

    def __call__(self, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """The allowed labels, by name."""
        if self._pattern is None:
            return ()
        found = [
            (name, value)
            for name, value in sorted(labels.items())
            if len(name) <= _LABEL_NAME and len(value) <= _LABEL_VALUE and self._matches(name)
        ]
        return tuple(found[:LABELS_LIMIT])

    def _match(self, name: str) -> bool:
        return self._pattern is not None and self._pattern.fullmatch(name) is not None


class Owner(Struct, rename="camel"):
    """One of a pod's owner references. `controller`: the one that manages it; there is one at most."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    controller: bool = False


class ApiMeta(Struct, rename="camel"):
    """An object's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class ApiContainerClaim(Struct):
    """A container's use of one of its pod's claims."""

    name: str = ""
    request: str = ""


class ApiResources(Struct):
    """What a container asks for."""

    claims: list[ApiContainerClaim] | None = None


class ApiContainer(Struct):
    """A container of a pod's spec."""

    name: str = ""
    resources: ApiResources | None = None


class ApiClaim(Struct, rename="camel"):
    """A claim that a pod names, in its spec or in its status."""

    name: str = ""
    resource_claim_name: str | None = None


class ApiPodSpec(Struct, rename="camel"):
    """A pod's spec."""

    node_name: str = ""
    priority_class_name: str = ""
    containers: list[ApiContainer] | None = None
    init_containers: list[ApiContainer] | None = None
    resource_claims: list[ApiClaim] | None = None


class ApiHealth(Struct):
    """Health of one device of a container."""

    id: str = field(default="", name="resourceID")
    health: str = ""
    message: str | None = None


class ApiResourceStatus(Struct):
    """Health of a container's devices of one resource or claim."""

    name: str = ""
    resources: list[ApiHealth] | None = None


class ApiContainerStatus(Struct, rename="camel"):
    """A container's status."""

    name: str = ""
    allocated_resources_status: list[ApiResourceStatus] | None = None


class ApiExtendedRequest(Struct, rename="camel"):
    """A container's request for an extended resource that DRA serves."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ApiExtendedClaim(Struct, rename="camel"):
    """The claim for a pod's extended resources that DRA serves."""

    resource_claim_name: str = ""
    request_mappings: list[ApiExtendedRequest] | None = None


class ApiPodStatus(Struct, rename="camel"):
    """A pod's status. The kubelet sets `start_time` when it accepts the pod."""

    phase: str = ""
    start_time: str | None = None
    container_statuses: list[ApiContainerStatus] | None = None
    init_container_statuses: list[ApiContainerStatus] | None = None
    resource_claim_statuses: list[ApiClaim] | None = None
    extended_resource_claim_status: ApiExtendedClaim | None = None


class ApiPod(Struct):
    """A pod as the API server sends it."""

    metadata: ApiMeta = field(default_factory=ApiMeta)
    spec: ApiPodSpec = field(default_factory=ApiPodSpec)
    status: ApiPodStatus = field(default_factory=ApiPodStatus)


def of_message(pod: pod_pb2.Pod, allowed: LabelFilter) -> PodIdentity | None:
    """The identity of a pod of the kubelet's Pods API; None without a valid name or uid."""
    meta = pod.metadata
    return _identity(
        (meta.namespace, meta.name, meta.uid),
        phase=pod.status.phase,
        priority_class=pod.spec.priorityClassName,
        node=pod.spec.nodeName,
        static=meta.annotations.get(_SOURCE, "api") in {"file", "http"},
        owners=[Owner(o.apiVersion, o.kind, o.name, o.controller) for o in meta.ownerReferences],
        labels=meta.labels,
        allowed=allowed,
        created=float(meta.creationTimestamp.seconds),
        devices=_devices_of_message(pod),
    )


def of_object(pod: ApiPod, allowed: LabelFilter) -> PodIdentity | None:
    """The identity of a pod of the API server; for a mirror pod that of its static pod."""
    meta = pod.metadata
    mirrored = (meta.annotations or {}).get(_MIRROR, "")
    return _identity(
        (meta.namespace, meta.name, mirrored or meta.uid),
        phase=pod.status.phase,
        priority_class=pod.spec.priority_class_name,
        node=pod.spec.node_name,
        static=bool(mirrored),
        owners=meta.owner_references or (),
        labels=meta.labels or {},
        allowed=allowed,
        created=meta.creation_timestamp.timestamp() if meta.creation_timestamp is not None else 0.0,
        devices=_devices_of_object(pod),
    )


def _devices_of_message(pod: pod_pb2.Pod) -> PodDevices:
    annotations, spec, status = pod.metadata.annotations, pod.spec, pod.status
    reported = [
        container
        for container in (*status.initContainerStatuses, *status.containerStatuses)
        if container.allocatedResourcesStatus
    ]
    served = status.HasField("extendedResourceClaimStatus")
    if not (reported or served or spec.resourceClaims or any(map(is_choice, annotations))):
        return NO_DEVICES
    extended = status.extendedResourceClaimStatus
    return pod_devices(
        annotations=annotations,
        init_containers=[one.name for one in spec.initContainers],
        containers=[one.name for one in spec.containers],
        claims=((one.name, one.resourceClaimName) for one in spec.resourceClaims),
        uses=(
            (container.name, one.name, one.request)
            for container in (*spec.initContainers, *spec.containers)
            for one in container.resources.claims
        ),
        generated=((one.name, one.resourceClaimName) for one in status.resourceClaimStatuses),
        extended_claim=extended.resourceClaimName,
        extended=((one.containerName, one.resourceName, one.requestName) for one in extended.requestMappings),
        health=(
            (container.name, of.name, one.resourceID, one.health, one.message)
            for container in reported
            for of in container.allocatedResourcesStatus
            for one in of.resources
        ),
    )


def _devices_of_object(pod: ApiPod) -> PodDevices:
    annotations, spec, status = pod.metadata.annotations or {}, pod.spec, pod.status
    reported = [
        container
        for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        if container.allocated_resources_status
    ]
    extended = status.extended_resource_claim_status
    if not (reported or extended or spec.resource_claims or any(map(is_choice, annotations))):
        return NO_DEVICES
    extended = extended or ApiExtendedClaim()
    return pod_devices(
        annotations=annotations,
        init_containers=[one.name for one in spec.init_containers or ()],
        containers=[one.name for one in spec.containers or ()],
        claims=((one.name, one.resource_claim_name or "") for one in spec.resource_claims or ()),
        uses=(
            (container.name, one.name, one.request)
            for container in (*(spec.init_containers or ()), *(spec.containers or ()))
            if container.resources is not None
            for one in container.resources.claims or ()
        ),
        generated=((one.name, one.resource_claim_name or "") for one in status.resource_claim_statuses or ()),
        extended_claim=extended.resource_claim_name,
        extended=(
            (one.container_name, one.resource_name, one.request_name)
            for one in extended.request_mappings or ()
        ),
        health=(
            (container.name, of.name, one.id, one.health, one.message or "")
            for container in reported
            for of in container.allocated_resources_status or ()
            for one in of.resources or ()
        ),
    )


def _identity(
    names: tuple[str, str, str],
    *,
    phase: str,
    priority_class: str,
    node: str,
    static: bool,
    owners: Sequence[Owner],
    labels: Mapping[str, str],
    allowed: LabelFilter,
    created: float,
    devices: PodDevices,
) -> PodIdentity | None:
    namespace, name, uid = names
    if not (0 < len(namespace) <= NAME_LIMIT and 0 < len(name) <= NAME_LIMIT and 0 < len(uid) <= _UID):
        return None
    found = workload(name, owners, labels, created=created, static_on=(node or "?") if static else "")
    return PodIdentity(
        namespace,
        name,
        uid,
        phase=phase if phase in _PHASES else "",
        workload=found if max(map(len, found)) <= NAME_LIMIT else UNKNOWN,
        priority_class=priority_class if len(priority_class) <= NAME_LIMIT else "",
        labels=allowed(labels),
        created=created,
        static=static,
        devices=devices,
    )


_MINUTE: Final = 60.0
_LATE: Final = 365 * 86400.0
"""Seconds for which a Job may create pods. Dates such as 20261121 would be minutes of 2008."""
_EARLY: Final = 3600.0
"""Seconds by which the clocks of the control plane may differ."""

_TEMPLATE_HASHES: Final = (
    ("pod-template-hash", "Deployment"),
    ("rollouts-pod-template-hash", "Rollout"),
)


def workload(
    pod: str,
    owners: Sequence[Owner],
    labels: Mapping[str, str],
    *,
    created: float = 0.0,
    static_on: str = "",
) -> Workload:
    """The workload of the pod named `pod`: the object that people name.

    A pod references its controller only: a ReplicaSet and not its Deployment, a Job and not its CronJob. Both
    are derived from names, without a request:

    - Deployment controller: a ReplicaSet is named <deployment>-<hash>, and its pods carry the hash in the
      label pod-template-hash (Argo Rollouts does the same with its own label);
    - CronJob controller: a Job is named <cronjob>-<minutes>, the scheduled time in minutes since 1970 (before
      Kubernetes 1.21 in seconds).

    `created` is the pod's creationTimestamp in unix time, 0 if unknown. `static_on` is the node's name for a
    static pod.
    """
    if static_on:
        return Workload("Node", static_on)
    owner = next((one for one in owners if one.controller), owners[0] if len(owners) == 1 else None)
    if owner is None:
        return Workload("Pod", pod)
    group = owner.api_version.rpartition("/")[0]
    name, _, suffix = owner.name.rpartition("-")
    if name and suffix:
        if owner.kind == "ReplicaSet" and group in {"apps", "extensions"} and len(owner.name) < NAME_LIMIT:
            for label, kind in _TEMPLATE_HASHES:
                if labels.get(label) == suffix:
                    return Workload(kind, name)
        if owner.kind == "Job" and group == "batch" and _is_schedule(suffix, created):
            return Workload("CronJob", name)
    return Workload(owner.kind, owner.name)


def _is_schedule(suffix: str, created: float) -> bool:
    """Whether the end of a Job's name is a time, in minutes or seconds, shortly before `created`."""
    if created <= 0 or not (suffix.isascii() and suffix.isdigit()) or suffix[0] == "0":
        return False
    return any(
        len(suffix) == length and -_EARLY <= created - int(suffix) * unit <= _LATE
        for length, unit in ((8, _MINUTE), (10, 1.0))
    )
