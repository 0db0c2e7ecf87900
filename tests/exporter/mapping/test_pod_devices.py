"""exporter.mapping.pod_devices: bounds, and what both sources say of recorded pods."""

import json

import msgspec
from google.protobuf.json_format import ParseDict

from exporter.mapping.dra import (
    NO_DEVICES,
    ChosenDevice,
    ContainerClaim,
    ExtendedClaim,
    ExtendedRequest,
    PodClaim,
    PodDevices,
    ResourceHealth,
)
from exporter.mapping.pod_devices import CLAIMS, HEALTH, REQUESTS, USES, pod_devices
from exporter.pods.source import ApiPod, LabelFilter, of_message, of_object
from harness.recordings import RECORDINGS
from kubelet.pb.core.v1 import pod_pb2
from kubelet.pb.pods.v1alpha1 import api_pb2

NONE = LabelFilter(None)
RECORDED = "dra-extended-resource-admin-access-and-health.pods"


def _of_api_server() -> dict[str, PodDevices]:
    found: dict[str, PodDevices] = {}
    for pod in json.loads((RECORDINGS / f"{RECORDED}.json").read_text(encoding="utf-8")):
        identity = of_object(msgspec.convert(pod, ApiPod, strict=False), NONE)
        assert identity is not None
        found[identity.pod] = identity.devices
    return found


def _of_kubelet() -> dict[str, PodDevices]:
    answer = api_pb2.ListPodsResponse.FromString((RECORDINGS / f"{RECORDED}.binpb").read_bytes())
    identities = [of_message(pod_pb2.Pod.FromString(pod), NONE) for pod in answer.pods]
    return {identity.pod: identity.devices for identity in identities if identity is not None}


def test_recorded_pods_of_the_api_server() -> None:
    found = _of_api_server()
    claim = "by-extended-resource-extended-resources-jrvwl"
    request = ExtendedRequest("main", "example.com/gpu", "container-0-request-0")
    assert found["by-extended-resource"] == PodDevices(extended=ExtendedClaim(claim, (request,)))
    assert found["by-extended-resource"].claim_names() == (claim,)
    assert found["by-claim"].claims == (PodClaim("g", "by-claim-g-84m7g"),)
    assert found["watcher"].claims == (PodClaim("g", "watch-all"),)
    assert found["holds-disk"].health == (
        ResourceHealth("c", "held.example/disk", "a", "Unhealthy"),
        ResourceHealth("c", "held.example/disk", "b", "Healthy"),
    )


def test_recorded_pods_of_the_kubelet_lack_what_others_write_into_the_status() -> None:
    # kubelet 1.36: the Pods API sends the status that the kubelet reports.
    found, complete = _of_kubelet(), _of_api_server()
    assert found["by-extended-resource"] is NO_DEVICES
    assert found["by-claim"].claims == (PodClaim("g", ""),)
    assert found["by-claim"].claim_names() == ()
    assert found["watcher"] == complete["watcher"]
    assert {pod: one.health for pod, one in found.items()} == {p: one.health for p, one in complete.items()}


def test_claims_that_were_reported_before_are_kept() -> None:
    found, complete = _of_kubelet(), _of_api_server()
    for pod, later in found.items():
        assert later.keeping(complete[pod]) == complete[pod]
        assert later.keeping(NO_DEVICES) is later
        assert complete[pod].keeping(later) is complete[pod]
    unhealthy = PodDevices(health=(ResourceHealth("c", "r", "a", "Unhealthy"),))
    assert NO_DEVICES.keeping(unhealthy) is NO_DEVICES, "health is the last report's"


FULL = """{
  "metadata": {"name": "p", "namespace": "n", "uid": "u",
               "annotations": {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,1:;;"}},
  "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c", "resources": {
             "claims": [{"name": "a"}, {"name": "b", "request": "r"}]}}],
           "resourceClaims": [{"name": "a", "resourceClaimName": "x"}, {"name": "b"}, {"name": "later"}]},
  "status": {
    "initContainerStatuses": [{"name": "i", "allocatedResourcesStatus": [
      {"name": "claim:a/r", "resources": [{"resourceID": "d/p/1", "health": "Broken", "message": "m"}]}]}],
    "containerStatuses": [{"name": "c", "allocatedResourcesStatus": [
      {"name": "v.example/gpu", "resources": [{"resourceID": "1", "health": "Healthy"}]}]}],
    "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-1"}, {"name": "later"}],
    "extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": [
      {"containerName": "c", "resourceName": "v.example/gpu", "requestName": "r"}]}
  }
}"""


def test_both_sources_say_the_same() -> None:
    of_json = of_object(msgspec.json.decode(FULL, type=ApiPod), NONE)
    of_protobuf = of_message(ParseDict(json.loads(FULL), pod_pb2.Pod()), NONE)
    assert of_json is not None
    assert of_json == of_protobuf
    assert of_json.devices == PodDevices(
        claims=(PodClaim("a", "x"), PodClaim("b", "p-b-1"), PodClaim("later", "")),
        extended=ExtendedClaim("e", (ExtendedRequest("c", "v.example/gpu", "r"),)),
        health=(
            ResourceHealth("c", "v.example/gpu", "1", "Healthy"),
            ResourceHealth("i", "claim:a/r", "d/p/1", "Unknown", "m"),
        ),
        chosen=(ChosenDevice("HAMi", "i", "GPU-1"),),
        uses=(ContainerClaim("c", "a", ""), ContainerClaim("c", "b", "r")),
    )
    assert of_json.devices.claim_names() == ("x", "p-b-1", "e")


def test_sizes_are_bounded() -> None:
    found = pod_devices(
        annotations={},
        init_containers=(),
        containers=(),
        claims=[("x" * 254, "y"), ("a", "y" * 254), *[("b", "c")] * 1000],
        uses=[("c" * 254, "a", ""), ("c", "a" * 254, ""), ("c", "a", "r" * 254), *[("c", "a", "")] * 1000],
        generated=[("a", "y")] * 1000,
        extended_claim="e",
        extended=[("c" * 254, "r", "q"), ("c", "r" * 318, "q"), *[("c", "r", "q")] * 1000],
        health=[
            ("c" * 254, "r", "d", "Healthy", ""),
            ("c", "r" * 318, "d", "Healthy", ""),
            ("c", "r", "d" * 1025, "Healthy", ""),
            ("c", "r", "d", "healthy", "m" * 2000),
            *[("c", "r", "e", "Healthy", "")] * 1000,
        ],
    )
    assert found.claims[0] == PodClaim("a", "")
    assert len(found.claims) == CLAIMS - 1
    assert found.uses == (ContainerClaim("c", "a", ""),) * (USES - 3)
    assert found.extended is not None
    assert len(found.extended.requests) == REQUESTS - 2
    assert len(found.health) == HEALTH - 3
    assert found.health[0] == ResourceHealth("c", "r", "d", "Unknown", "m" * 1024)
    nothing = pod_devices(
        annotations={},
        init_containers=(),
        containers=("c",),
        claims=(),
        uses=(),
        generated=(),
        extended_claim="",
        extended=(),
        health=(),
    )
    assert nothing is NO_DEVICES


def test_container_uses_the_requests_that_its_spec_names() -> None:
    """kubelet: List names all devices of a claim for each container that uses any of its requests."""
    served = ExtendedRequest("a", "e/gpu", "container-0-request-0")
    devices = PodDevices(
        claims=(PodClaim("gpus", ""), PodClaim("nic", "shared-nic")),
        extended=ExtendedClaim("p-extended-resources-x", (served,)),
        uses=(
            ContainerClaim("a", "gpus", "big"),
            ContainerClaim("b", "gpus", "small"),
            ContainerClaim("b", "nic", ""),
        ),
    )

    def used(container: str, claim: str, request: str) -> bool | None:
        return devices.uses_request("p", container, claim, request)

    # The claim of a template, by its generated name.
    assert [used("a", "p-gpus-5mx2k", request) for request in ("big", "small")] == [True, False]
    assert [used("b", "p-gpus-5mx2k", request) for request in ("big", "small")] == [False, True]
    assert used("b", "shared-nic", "any") is True
    assert used("a", "p-extended-resources-x", "container-0-request-0") is True
    assert used("b", "p-extended-resources-x", "container-0-request-0") is False
    # What the object does not say is not known.
    assert used("a", "another", "big") is None
    assert used("c", "p-gpus-5mx2k", "big") is None
    assert used("a", "p-extended-resources-x", "container-1-request-0") is None
