"""Finds claims that pods of this node wait for: allocated, reserved for a pod, and not prepared (unprepared).

kubelet: it has the driver prepare a pod's claims before it starts the pod's containers, and List names a
device from then on. A device that List does not name AFTER seconds after the claim was reserved for a pod of
this node is one that its driver fails to prepare; or the pod waits for something else before, such as a
volume, or an init container alone uses the claim, which List leaves out.

Only claims that are read count, and nothing that is for administration.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from exporter.mapping.claimed_devices import NO_CLAIMS, ClaimFacts
from exporter.mapping.dra import ClaimName
from exporter.mapping.identity import EMPTY_VIEW, PodIdentity, PodView
from exporter.mapping.model import Anomaly, DeviceKey, PodKey, Snapshot

AFTER: Final = 60.0
_HERE: Final = frozenset({"Running", "Pending"})
"""Phases of a pod that the kubelet runs, or starts: one whose claim is not prepared stays Pending."""


class _Waiting(NamedTuple):
    """A device of a claim, and the pod that it is reserved for."""

    key: DeviceKey
    claim: ClaimName
    uid: str
    pod: PodKey


class UnpreparedTracker:
    """Tracks devices of claims that List does not name. All times are unix times."""

    def __init__(self, after: float = AFTER) -> None:
        """`after`: seconds for which the kubelet may prepare a claim."""
        self._after = after
        self._since: dict[_Waiting, float] = {}
        self._inputs: tuple[Snapshot, ClaimFacts, PodView] | None = None

    def advance(
        self, snapshot: Snapshot, claims: ClaimFacts = NO_CLAIMS, view: PodView = EMPTY_VIEW, *, now: float
    ) -> tuple[Anomaly, ...]:
        """The devices that are unprepared at `now`, by the List of `snapshot`."""
        if not claims.view.claims:
            self._since, self._inputs = {}, None
            return ()
        last, self._inputs = self._inputs, (snapshot, claims, view)
        if last is None or any(one is not was for one, was in zip(self._inputs, last, strict=True)):
            self._since = {one: self._since.get(one, now) for one in _waiting(snapshot, claims, view)}
        return tuple([_anomaly(one) for one, since in self._since.items() if now >= since + self._after])


def _waiting(snapshot: Snapshot, claims: ClaimFacts, view: PodView) -> Iterator[_Waiting]:
    prepared = {
        (device.key, one.claim_namespace, one.claim)
        for device in snapshot.devices
        if device.claimed is not None
        for one in device.claimed.through
    }
    pods = _pods(view)
    for name, claim in claims.view.claims.items():
        for uid in claim.reserved_for & pods.keys():
            for device in claim.devices if _uses(pods[uid], name.name) else ():
                key = claims.key(device.name)
                if not device.admin and (key, *name) not in prepared:
                    yield _Waiting(key, name, uid, pods[uid].key)


def _pods(view: PodView) -> Mapping[str, PodIdentity]:
    """The pods of this node that may use claims, by uid."""
    return {
        record.identity.uid: record.identity
        for records in view.records.values()
        for record in records
        if record.active and record.identity.phase in _HERE and record.identity.devices.claim_names()
    }


def _uses(pod: PodIdentity, claim: str) -> bool:
    """Whether a container may use the claim. Kubernetes: a pod may name claims that none of them uses."""
    reference = pod.devices.reference(pod.pod, claim)
    return not reference or reference in {one.reference for one in pod.devices.uses}


def _anomaly(one: _Waiting) -> Anomaly:
    claim, pod = "/".join(one.claim), "/".join(one.pod)
    evidence = (
        f"claim {claim} reserves it for {pod}, and the kubelet does not list it after {AFTER:.0f} s: its "
        "driver has not prepared it, or the pod waits for something else, or an init container uses it"
    )
    return Anomaly("unprepared", *one.key, evidence=evidence, devices=(one.key.device,), pods=(one.pod,))
