"""The scheduler and the controllers behind it: claims are made, allocated, reserved, and released again."""

from collections.abc import Callable, Iterable

from simulator.dra_allocation import NO_EXECUTE, Devices, UnschedulableError, allocate, name_of, results
from simulator.dra_claims import claim_names
from simulator.dra_objects import (
    CLAIMS,
    CLASSES,
    EXTENDED_CLAIM,
    SLICES,
    TEMPLATES,
    Object,
    ObjectStore,
    allocated,
    request,
)
from simulator.model import ExtendedClaim, ExtendedRequest, Pod

_POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Every class serves the extended resource of this prefix and its own name."""


class Scheduler:
    """Gives pods of one node their claims. All or nothing: a pod that does not fit takes nothing."""

    def __init__(self, objects: ObjectStore, node: str, wall: Callable[[], float]) -> None:
        self._objects = objects
        self._node = node
        self._wall = wall

    def place(self, pod: Pod, offered: Callable[[str], int]) -> None:
        """Allocate the pod's claims and reserve them for the pod. Raises UnschedulableError.

        `offered`: how many devices of a resource a device plugin offers. Kubernetes: where it offers some, an
        extended resource is the plugin's affair; else it is DRA's, if a DeviceClass has its name.
        """
        self._generate(pod)
        extended = self._extended_requests(pod, offered)
        claims = [self._claim(pod, name) for name in claim_names(pod)]
        if not claims and not extended:
            return
        made = _extended_claim(pod, [one for _, one in extended]) if extended else None
        devices = Devices.of(self._slices(), self._objects.all(CLAIMS))
        classes = {one["metadata"]["name"]: one for one in self._objects.all(CLASSES)}
        decided = [
            (one, results(one) or allocate(one, devices, classes))
            for one in [*claims, *([made] if made is not None else [])]
        ]
        for one, given in decided:
            if one is made:
                one = self._objects.create(CLAIMS, one)  # noqa: PLW2901 -- it has a name now
                mappings = tuple(mapping for mapping, _ in extended)
                pod.extended = ExtendedClaim(one["metadata"]["name"], mappings)
            self._objects.update(CLAIMS, self._reserved(one, given, pod))

    def release(self, pod: Pod) -> None:
        """The pod has ended: its own claims go, others are not reserved for it any more.

        Kubernetes: a claim that is reserved for nobody loses its allocation.
        """
        namespace = pod.spec.namespace
        own = {*pod.generated_claims.values(), *([pod.extended.claim] if pod.extended is not None else [])}
        for name in claim_names(pod):
            one = self._objects.get(CLAIMS, name, namespace)
            if one is not None and name in own:
                self._objects.delete(CLAIMS, name, namespace)
            if one is None or name in own or "status" not in one:
                continue
            left = [who for who in one["status"].get("reservedFor", ()) if who["uid"] != pod.uid]
            one["status"] = one["status"] | {"reservedFor": left} if left else {}
            self._objects.update(CLAIMS, one)

    def evicted(self, pods: Iterable[Pod]) -> list[Pod]:
        """Pods that hold a device with a NoExecute taint that their claim does not tolerate."""
        offered = Devices.of(self._slices(), ()).published
        return [
            pod
            for pod in pods
            if any(
                name_of(one) in offered
                and not one.get("adminAccess")
                and any(offered[name_of(one)].repelling(one.get("tolerations", ()), (NO_EXECUTE,)))
                for name in claim_names(pod)
                for one in results(self._objects.get(CLAIMS, name, pod.spec.namespace) or {})
            )
        ]

    def _slices(self) -> list[Object]:
        return [one for one in self._objects.all(SLICES) if one["spec"].get("nodeName") == self._node]

    def _claim(self, pod: Pod, name: str) -> Object:
        one = self._objects.get(CLAIMS, name, pod.spec.namespace)
        if one is None:
            raise UnschedulableError(f"resourceclaim {name} not found")
        return one

    def _generate(self, pod: Pod) -> None:
        """A claim for each template that the pod names (Kubernetes: the resource claim controller)."""
        generated = dict(pod.generated_claims)
        for one in pod.spec.resource_claims:
            if not one.template or one.name in generated:
                continue
            template = self._objects.get(TEMPLATES, one.template, pod.spec.namespace)
            if template is None:
                raise UnschedulableError(f"resourceclaimtemplate {one.template} not found")
            meta = _owned(pod, f"{pod.spec.name}-{one.name}-", {_POD_CLAIM: one.name})
            made = self._objects.create(CLAIMS, {"metadata": meta, "spec": template["spec"]["spec"]})
            generated[one.name] = made["metadata"]["name"]
        pod.generated_claims = generated

    def _extended_requests(
        self, pod: Pod, offered: Callable[[str], int]
    ) -> list[tuple[ExtendedRequest, Object]]:
        """What DRA serves of the pod's extended resources."""
        classes = {IMPLICIT + one["metadata"]["name"]: one for one in self._objects.all(CLASSES)}
        classes |= {
            one["spec"]["extendedResourceName"]: one
            for one in classes.values()
            if "extendedResourceName" in one["spec"]
        }
        found: list[tuple[ExtendedRequest, Object]] = []
        for n, container in enumerate(pod.spec.all_containers()):
            served = [r for r in sorted(container.resources) if r in classes and not offered(r)]
            for m, resource in enumerate(served):
                name = f"container-{n}-request-{m}"
                wanted = request(name, classes[resource]["metadata"]["name"], container.resources[resource])
                found.append((ExtendedRequest(container.name, resource, name), wanted))
        return found

    def _reserved(self, claim: Object, given: list[Object], pod: Pod) -> Object:
        status = claim.get("status", {})
        reserved = {who["uid"]: who["name"] for who in status.get("reservedFor", ())} | {
            pod.uid: pod.spec.name
        }
        pods = [(name, uid) for uid, name in reserved.items()]
        made = allocated(claim, *given, pods=pods, at=self._wall(), node=self._node)
        if "allocation" in status:
            made["status"]["allocation"] = status["allocation"]
        return made


def _extended_claim(pod: Pod, requests: list[Object]) -> Object:
    meta = _owned(pod, f"{pod.spec.name}-extended-resources-", {EXTENDED_CLAIM: "true"})
    return {"metadata": meta, "spec": {"devices": {"requests": requests}}}


def _owned(pod: Pod, prefix: str, annotations: dict[str, str]) -> Object:
    owner = {"apiVersion": "v1", "controller": True, "kind": "Pod", "name": pod.spec.name, "uid": pod.uid}
    return {
        "generateName": prefix,
        "namespace": pod.spec.namespace,
        "annotations": annotations,
        "ownerReferences": [owner],
    }
