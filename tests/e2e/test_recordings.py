"""What a real kubelet answered, replayed: the owners must be those of the recording's text form."""

import json
from pathlib import Path
from tempfile import mkdtemp

import pytest
from google.protobuf import text_format

from harness import owners
from harness.processes import Process
from harness.recordings import RECORDINGS
from harness.simulated import SimulatedNode
from harness.waiting import until
from kubelet.pb.podresources.v1 import api_pb2

pytestmark = pytest.mark.simulated

NAMES = (
    "after-kubelet-restart-plugin-not-registered",
    "dra-shared-and-inline-claims",
    "init-sidecar-guaranteed-and-completed-job",
)

Owner = tuple[str, str, str, str, str]


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_answer_gives_its_owners(name: str) -> None:
    recording = RECORDINGS / f"{name}.list.binpb"
    listed = text_format.Parse(
        (RECORDINGS / f"{name}.list.txtpb").read_text(), api_pb2.ListPodResourcesResponse()
    )
    offered = text_format.Parse(
        (RECORDINGS / f"{name}.allocatable.txtpb").read_text(), api_pb2.AllocatableResourcesResponse()
    )
    expected: set[Owner] = {
        (entry.resource_name, device, pod.namespace, pod.name, container.name)
        for pod in listed.pod_resources
        for container in pod.containers
        for entry in container.devices
        for device in entry.device_ids
    }
    claims = {
        (
            claimed.driver_name,
            claimed.pool_name,
            claimed.device_name,
            resource.claim_name,
            pod.name,
            container.name,
        )
        for pod in listed.pod_resources
        for container in pod.containers
        for resource in container.dynamic_resources
        for claimed in resource.claim_resources
    }
    allocatable = {(entry.resource_name, device) for entry in offered.devices for device in entry.device_ids}
    assert expected

    async with SimulatedNode("--replay", str(recording)) as node:
        socket = Path(mkdtemp(prefix="dl-")) / "web.sock"
        flags = ("--kubelet.root", str(node.root), "--web.listen-address", f"unix:{socket}")
        async with Process("exporter", *flags, "--node-name", "replayed") as exporter:
            url = await exporter.url()

            async def answered() -> bool:
                return (await owners.scrape(url)).value("devicelens_up") == 1

            await until("the recorded answer is read", answered)
            samples = await owners.scrape(url)
            document = await owners.get_json(url, "/api/v1/devices")
            status, out, errors = await owners.devicelens(
                "who", "--socket", str(node.root / "pod-resources" / "kubelet.sock"), "-o", "json"
            )
        # It is empty: the exporter took its socket away.
        socket.parent.rmdir()

    assert _owners_of(samples) == expected
    assert _owners_of_document(document) == expected
    assert status == 0, errors
    assert _owners_of_document(json.loads(out)) == expected
    seen_claims = {
        (
            labels["driver"],
            labels["pool"],
            labels["device"],
            labels["claim"],
            labels["pod"],
            labels["container"],
        )
        for labels, _ in samples.of("devicelens_claim_device_info")
    }
    assert seen_claims == claims
    healthy = {
        (labels["resource"], labels["device"])
        for labels, value in samples.of("devicelens_device_healthy")
        if value == 1
    }
    assert healthy == allocatable
    # No pod that holds nothing, and none that the recording does not have, is named anywhere.
    pods = {pod.name for pod in listed.pod_resources}
    for line in samples.text.splitlines():
        if ' pod="' in line or ',pod="' in line:
            assert any(f'pod="{pod}"' in line for pod in pods | {""}), line


def _owners_of(samples: owners.Samples) -> set[Owner]:
    return {
        (labels["resource"], labels["device"], labels["namespace"], labels["pod"], labels["container"])
        for labels, _ in samples.of("devicelens_device_owner_info")
    }


def _owners_of_document(document: dict[str, list[dict[str, object]]]) -> set[Owner]:
    found: set[Owner] = set()
    for device in document["devices"]:
        holders = device["holders"]
        assert isinstance(holders, list)
        for holder in holders:
            found.add(
                (
                    str(device["resource"]),
                    str(device["device"]),
                    holder["namespace"],
                    holder["pod"],
                    holder["container"],
                )
            )
    return found
