"""What happens on the demo's node: pods that come and go, and now and then a device that fails.

Decides only; the demo does. Everything follows from the seed of `rng` and the order of the calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from simulator.demo_npu import EXTENDED_RESOURCE, NAMESPACE, TEMPLATE
from simulator.model import ClaimRef, ContainerSpec, Owner, PodClaim, PodSpec

_SUFFIX: Final = "bcdfghjklmnpqrstvwxz2456789"
"""The characters that Kubernetes takes for the random ends of names."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Something that people run: its pods' containers with what they ask for, and how many at most.

    `claim`: the ResourceClaimTemplate of a claim that all its containers use.
    """

    namespace: str
    name: str
    kind: str
    containers: Mapping[str, Mapping[str, int]]
    most: int
    claim: str = ""


WORKLOADS: Final = (
    Workload("vision", "doorbell", "Deployment", {"camera": {"example.com/camera": 1}}, 2),
    Workload(
        "vision",
        "recogniser",
        "Deployment",
        {"capture": {"example.com/camera": 1}, "infer": {"example.com/gpu": 1}},
        1,
    ),
    Workload("training", "resnet", "Job", {"trainer": {"example.com/gpu": 2, "example.com/nic": 1}}, 2),
    Workload("notebooks", "jupyter", "StatefulSet", {"notebook": {"example.com/gpu": 1}}, 2),
    Workload("network", "packet-gateway", "Deployment", {"dataplane": {"example.com/nic": 2}}, 1),
    Workload(NAMESPACE, "assistant", "Deployment", {"server": {}}, 1, claim=TEMPLATE),
    Workload(NAMESPACE, "embedder", "Deployment", {"server": {EXTENDED_RESOURCE: 1}}, 1),
)

FRAGILE: Final = ("dev/video1", "dev/video3", "dev/nic2")
"""Files below the host root whose devices fail now and then."""


@dataclass(frozen=True, slots=True)
class Arrive:
    """A pod comes."""

    pod: PodSpec


@dataclass(frozen=True, slots=True)
class Leave:
    """A pod goes."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The device behind this file fails."""

    path: str


@dataclass(frozen=True, slots=True)
class Recover:
    """The device behind this file comes back."""

    path: str


Act = Arrive | Leave | Fail | Recover


class Scenario:
    """Chooses what happens next, knowing which pods are there and which devices have failed."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def opening(self) -> Sequence[Arrive]:
        """What is there to begin with: one pod of each workload."""
        return [Arrive(self._pod(workload)) for workload in WORKLOADS]

    def next(self, pods: Sequence[PodSpec], failed: Sequence[str]) -> Act:
        """One thing that happens. `pods` and `failed` are what came and has not gone."""
        chance = self._rng.random()
        if failed and chance < 0.25:
            return Recover(self._rng.choice(failed))
        if not failed and chance < 0.1:
            return Fail(self._rng.choice(FRAGILE))
        possible = [w for w in WORKLOADS if sum(_of(w, pod) for pod in pods) < w.most]
        if possible and (len(pods) < 3 or self._rng.random() < 0.55):
            return Arrive(self._pod(self._rng.choice(possible)))
        leaving = self._rng.choice(pods)
        return Leave(leaving.namespace, leaving.name)

    def _pod(self, workload: Workload) -> PodSpec:
        owner, labels = workload.name, {"app.kubernetes.io/name": workload.name}
        if workload.kind == "Deployment":
            template_hash = self._letters(10)
            owner = f"{workload.name}-{template_hash}"
            labels["pod-template-hash"] = template_hash
        return PodSpec(
            name=f"{owner}-{self._letters(5)}",
            namespace=workload.namespace,
            containers=tuple(
                ContainerSpec(
                    name, resources=wish, claim_refs=(ClaimRef("device"),) if workload.claim else ()
                )
                for name, wish in workload.containers.items()
            ),
            resource_claims=(PodClaim("device", template=workload.claim),) if workload.claim else (),
            labels=labels,
            owner=Owner(
                *("ReplicaSet" if workload.kind == "Deployment" else workload.kind, owner),
                api_version="batch/v1" if workload.kind == "Job" else "apps/v1",
            ),
        )

    def _letters(self, count: int) -> str:
        return "".join(self._rng.choices(_SUFFIX, k=count))


def _of(workload: Workload, pod: PodSpec) -> bool:
    return pod.labels.get("app.kubernetes.io/name") == workload.name
