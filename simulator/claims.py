"""Prepared ResourceClaims, and how a kubelet lists those that several pods share."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.model import ClaimDevice, ClaimSpec, PodSpec


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
        """A pod ended: claims that nobody uses any more are unprepared."""
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
