"""A pod as the API server shows it. Pure."""

from simulator.dra_objects import Object, rfc3339
from simulator.model import ContainerSpec, Pod


def pod_object(pod: Pod, node: str) -> Object:
    """A core/v1 Pod, bound to `node`: the fields that monitors read."""
    spec = pod.spec
    meta: Object = {
        "name": spec.name,
        "namespace": spec.namespace,
        "uid": pod.uid,
        "creationTimestamp": rfc3339(pod.created),
        "labels": dict(spec.labels),
        "annotations": dict(spec.annotations),
    }
    if pod.deleted is not None:
        meta["deletionTimestamp"] = rfc3339(pod.deleted)
    if spec.owner is not None:
        owner = spec.owner
        meta["ownerReferences"] = [
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
            }
        ]
    devices = device_facts(pod)
    status = {"phase": pod.phase.value} | (
        {} if pod.taken_on is None else {"startTime": rfc3339(pod.taken_on)}
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "nodeName": node,
            "priorityClassName": spec.priority_class,
            "containers": [_container(one) for one in spec.containers],
            **(
                {"initContainers": [_container(c) for c in spec.init_containers]}
                if spec.init_containers
                else {}
            ),
            **devices["spec"],
        },
        "status": status | devices["status"],
    }


def device_facts(pod: Pod) -> dict[str, Object]:
    """What a pod's `spec` and `status` say about claims and devices' health, in the API's names."""
    spec: Object = {}
    status: Object = {}
    if pod.spec.resource_claims:
        spec["resourceClaims"] = [
            {"name": one.name}
            | (
                {"resourceClaimTemplateName": one.template}
                if one.template
                else {"resourceClaimName": one.claim}
            )
            for one in pod.spec.resource_claims
        ]
    if pod.generated_claims:
        status["resourceClaimStatuses"] = [
            {"name": name, "resourceClaimName": claim} for name, claim in pod.generated_claims.items()
        ]
    if pod.extended is not None:
        status["extendedResourceClaimStatus"] = {
            "resourceClaimName": pod.extended.claim,
            "requestMappings": [
                {"containerName": one.container, "resourceName": one.resource, "requestName": one.request}
                for one in pod.extended.requests
            ],
        }
    # kubelet: of app containers alone; sidecars, which are init containers, have no health.
    statuses = [
        {"name": c.name, "allocatedResourcesStatus": _health(pod, c.name)}
        for c in pod.spec.containers
        if pod.health.get(c.name)
    ]
    if statuses:
        status["containerStatuses"] = statuses
    return {"spec": spec, "status": status}


def _container(container: ContainerSpec) -> Object:
    resources: Object = {}
    if container.resources:
        limits = {name: str(amount) for name, amount in container.resources.items()}
        resources = {"limits": limits, "requests": limits}
    if container.claim_refs:
        resources["claims"] = [
            {"name": one.name} | ({"request": one.request} if one.request else {})
            for one in container.claim_refs
        ]
    return {"name": container.name, "resources": resources} | (
        {"restartPolicy": "Always"} if container.sidecar else {}
    )


def _health(pod: Pod, container: str) -> list[Object]:
    return [
        {
            "name": name,
            "resources": [
                {"resourceID": one.resource_id, "health": one.health}
                | ({"message": one.message} if one.message else {})
                for one in entries
            ],
        }
        for name, entries in pod.health[container].items()
    ]
