"""A pod's owner, shortened to what people name.

A pod names its controller alone: a ReplicaSet rather than the Deployment that a person knows, a Job rather
than its CronJob. Both controllers name what they make after themselves, and the pod tells enough to see
it without asking anybody:

- Deployment controller: a ReplicaSet is called <deployment>-<hash>, and its pods carry the hash in the
  label pod-template-hash (Argo Rollouts does the same with its own label);
- CronJob controller: a Job is called <cronjob>-<minutes>, the scheduled time in minutes since 1970
  (before Kubernetes 1.21 in seconds).

Where that does not fit, the owner is told as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

NAME_LIMIT: Final = 253
"""Characters of an object's name. The Deployment controller cuts its own name to fit its ReplicaSet's."""

_MINUTE: Final = 60.0
_LATE: Final = 365 * 86400.0
"""Seconds for which a Job may go on making pods. Dates such as 20261121 read as minutes of 2008."""
_EARLY: Final = 3600.0
"""Seconds by which the clocks of the control plane may differ, amply."""

_TEMPLATE_HASHES: Final = (
    ("pod-template-hash", "Deployment"),
    ("rollouts-pod-template-hash", "Rollout"),
)


class Owner(NamedTuple):
    """One of a pod's owner references. `controller`: the one that manages it; there is one at most."""

    api_version: str
    kind: str
    name: str
    controller: bool = True


class Workload(NamedTuple):
    """What people call it: a Deployment, a StatefulSet, a CronJob, the Node of a static pod, or the pod."""

    kind: str
    name: str


UNKNOWN: Final = Workload("", "")
"""Of a pod of which nothing is known."""


def workload(
    pod: str,
    owners: Sequence[Owner],
    labels: Mapping[str, str],
    *,
    created: float = 0.0,
    static_on: str = "",
) -> Workload:
    """The workload of the pod called `pod`.

    `created` is the pod's creationTimestamp in unix time, 0 where it is not known; `static_on` the node's
    name for a pod that its kubelet took from a file, which names no owner to the kubelet itself.
    """
    if static_on:
        return Workload("Node", static_on)
    owner = _controller(owners)
    if owner is None:
        return Workload("Pod", pod)
    group = owner.api_version.rpartition("/")[0]
    if owner.kind == "ReplicaSet" and group in {"apps", "extensions"}:
        return _of_replica_set(owner, labels)
    if owner.kind == "Job" and group == "batch":
        return _of_job(owner, created)
    return Workload(owner.kind, owner.name)


def _controller(owners: Sequence[Owner]) -> Owner | None:
    """The controller, or the only owner where none is said to be."""
    for owner in owners:
        if owner.controller:
            return owner
    return owners[0] if len(owners) == 1 else None


def _of_replica_set(owner: Owner, labels: Mapping[str, str]) -> Workload:
    name, dash, suffix = owner.name.rpartition("-")
    if name and dash and suffix and len(owner.name) < NAME_LIMIT:
        for label, kind in _TEMPLATE_HASHES:
            if labels.get(label) == suffix:
                return Workload(kind, name)
    return Workload(owner.kind, owner.name)


def _of_job(owner: Owner, created: float) -> Workload:
    name, dash, suffix = owner.name.rpartition("-")
    if name and dash and created > 0 and suffix.isascii() and suffix.isdigit() and suffix[0] != "0":
        for length, unit in ((8, _MINUTE), (10, 1.0)):
            if len(suffix) == length and -_EARLY <= created - int(suffix) * unit <= _LATE:
                return Workload("CronJob", name)
    return Workload(owner.kind, owner.name)
