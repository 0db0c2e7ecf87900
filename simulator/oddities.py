"""Answers that are true to the letter of the API and odd all the same: what a monitor must live with."""

from typing import Any, TypeVar

from kubelet.pb.podresources.v1 import api_pb2 as v1
from kubelet.pb.podresources.v1alpha1 import api_pb2 as v1alpha1
from simulator.faults import Faults

Listed = TypeVar("Listed", v1.ListPodResourcesResponse, v1alpha1.ListPodResourcesResponse)


def odd_list(answer: Listed, faults: Faults) -> Listed:
    """List as `faults` want it: without the pods that are forgotten, and with every device twice."""
    pods: Any = answer.pod_resources  # of either API: what is done to them is the same
    if faults.forgets:
        kept = [pod for pod in pods if f"{pod.namespace}/{pod.name}" not in faults.forgets]
        del pods[:]
        pods.extend(kept)
    if faults.twice:
        for pod in pods:
            for container in pod.containers:
                container.devices.extend(list(container.devices))
    return answer


def odd_allocatable(
    answer: v1.AllocatableResourcesResponse, faults: Faults
) -> v1.AllocatableResourcesResponse:
    """GetAllocatableResources likewise."""
    if faults.twice:
        answer.devices.extend(list(answer.devices))
    return answer
