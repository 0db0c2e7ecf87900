"""What a source of identity tells, and how it fails.

Pods as the sources have them, made into identities. Pure.

What is too long to be a name in Kubernetes is not taken: it would be a label of Prometheus' series.
"""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, Protocol

from msgspec import Struct, field

from exporter.mapping.identity import NAME_LIMIT, UNKNOWN, Owner, PodIdentity, workload
from exporter.mapping.model import PodKey
from kubelet.pb.core.v1 import pod_pb2


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """It tells from here on. `anew`: what it told before does not count any more."""

    anew: bool


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod came or changed. `known`: the kubelet has it, or has had it."""

    identity: PodIdentity
    known: bool = True


@dataclass(frozen=True, slots=True)
class PodGone:
    """The kubelet has done with a pod, or the API server has."""

    key: PodKey
    uid: str


@dataclass(frozen=True, slots=True)
class PodsListed:
    """All pods there are. `asked`: when the question was put, by the event loop's clock, where the answer
    is younger than that; None where it may be older.
    """

    pods: tuple[PodSeen, ...]
    begun: float
    asked: float | None


@dataclass(frozen=True, slots=True)
class PodsUnchanged:
    """All pods that were told of are what they were at `asked`."""

    asked: float


@dataclass(frozen=True, slots=True)
class UnreadableEvent:
    """Something was told that cannot be understood: what there is must be listed."""

    reason: str


PodEvent = StreamOpened | PodSeen | PodGone | PodsListed | PodsUnchanged | UnreadableEvent


class PodWatchError(Exception):
    """A source fell silent: a `code` (gRPC's name, an HTTP status, or a word) and `message` for a person.

    `absent`: there is no such source on this node, which need not be a fault. `wait`: seconds for which
    it asked to be left alone.
    """

    def __init__(self, code: str, message: str, *, absent: bool = False, wait: float = 0.0) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.absent = absent
        self.wait = wait


class PodWatcher(Protocol):
    """Where identities come from. One `follow` at a time."""

    @property
    def name(self) -> str:
        """As --pods.source has it."""
        ...

    @property
    def words(self) -> str:
        """What it is, for a person."""
        ...

    @property
    def lasting(self) -> bool:
        """Whether what it told holds while it is silent: the kubelet's word is its own life's."""
        ...

    def follow(self) -> AsyncGenerator[PodEvent]:
        """What it tells, until it fails. Raises PodWatchError."""
        ...

    async def confirm(self, *, thorough: bool) -> PodsListed | PodsUnchanged | None:
        """Which pods there are at this moment; None if `follow` will tell. Raises PodWatchError.

        `thorough`: what it told last cannot be right.
        """
        ...

    def interrupt(self) -> None:
        """Have `follow` fail: its stream seems to hang."""
        ...


LABELS_LIMIT: Final = 32
"""Labels of one pod that are told; the allow-list is for the few that a team groups by."""

_LABEL_NAME: Final = 317
"""Characters of a label's name: a domain of 253, a slash, and 63."""
_LABEL_VALUE: Final = 63
_UID: Final = 128
_PHASES: Final = frozenset({"Pending", "Running", "Succeeded", "Failed", "Unknown"})

# kubelet: whence it has a pod, in its own eyes; and in the API server's the mirror of a static pod.
_SOURCE: Final = "kubernetes.io/config.source"
_MIRROR: Final = "kubernetes.io/config.mirror"


class LabelFilter:
    """Which labels of pods are told: those whose whole name matches a regular expression."""

    def __init__(self, pattern: re.Pattern[str] | None) -> None:
        """None: no label is told."""
        self._pattern = pattern
        self._matches = lru_cache(maxsize=4096)(self._match)

    def __call__(self, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """The allowed ones, by name."""
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


class ApiOwner(Struct):
    """An ownerReference."""

    apiVersion: str = ""  # noqa: N815 -- the API's names, here and below
    kind: str = ""
    name: str = ""
    controller: bool = False


class ApiMeta(Struct):
    """What is needed of an object's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815
    creationTimestamp: datetime | None = None  # noqa: N815
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: list[ApiOwner] | None = None  # noqa: N815


class ApiPodSpec(Struct):
    """What is needed of a pod's spec."""

    nodeName: str = ""  # noqa: N815
    priorityClassName: str = ""  # noqa: N815


class ApiPodStatus(Struct):
    """What is needed of a pod's status. `startTime` is the kubelet's, from when it took the pod on."""

    phase: str = ""
    startTime: str | None = None  # noqa: N815


class ApiPod(Struct):
    """A pod as the API server tells it."""

    metadata: ApiMeta = field(default_factory=ApiMeta)
    spec: ApiPodSpec = field(default_factory=ApiPodSpec)
    status: ApiPodStatus = field(default_factory=ApiPodStatus)


def of_message(pod: pod_pb2.Pod, allowed: LabelFilter) -> PodIdentity | None:
    """The identity of a pod as the kubelet tells it; None for one without a proper name or uid."""
    meta = pod.metadata
    static = meta.annotations.get(_SOURCE, "api") in {"file", "http"}
    return _identity(
        (meta.namespace, meta.name, meta.uid),
        phase=pod.status.phase,
        priority_class=pod.spec.priorityClassName,
        node=pod.spec.nodeName,
        static=static,
        owners=[Owner(o.apiVersion, o.kind, o.name, o.controller) for o in meta.ownerReferences],
        labels=meta.labels,
        told=allowed(meta.labels),
        created=float(meta.creationTimestamp.seconds),
    )


def of_object(pod: ApiPod, allowed: LabelFilter) -> PodIdentity | None:
    """The identity of a pod as the API server tells it. Of a mirror, that of the static pod behind it."""
    meta = pod.metadata
    mirrored = (meta.annotations or {}).get(_MIRROR, "")
    labels = meta.labels or {}
    return _identity(
        (meta.namespace, meta.name, mirrored or meta.uid),
        phase=pod.status.phase,
        priority_class=pod.spec.priorityClassName,
        node=pod.spec.nodeName,
        static=bool(mirrored),
        owners=[Owner(o.apiVersion, o.kind, o.name, o.controller) for o in meta.ownerReferences or ()],
        labels=labels,
        told=allowed(labels),
        created=meta.creationTimestamp.timestamp() if meta.creationTimestamp is not None else 0.0,
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
    told: tuple[tuple[str, str], ...],
    created: float,
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
        labels=told,
        created=created,
        static=static,
    )
