"""What a real kubelet answered, replayed: the owners must be those of the recording's text form."""

import json
from pathlib import Path

import pytest
from google.protobuf import text_format

from harness import owners
from harness.processes import Process
from harness.recordings import RECORDINGS
from harness.simulated import SimulatedNode
from harness.trials.owners_check import owner_of, owners_in
from harness.truth import Claimed, claims_of, owners_of
from harness.waiting import until
from kubelet.pb.podresources.v1 import api_pb2

pytestmark = pytest.mark.simulated

NAMES = (
    "after-kubelet-restart-plugin-not-registered",
    "dra-extended-resource-admin-access-and-health",
    "dra-shared-and-inline-claims",
    "init-sidecar-guaranteed-and-completed-job",
)


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_answer_gives_its_owners(name: str, root: Path) -> None:
    recording = RECORDINGS / f"{name}.list.binpb"
    listed = text_format.Parse(
        (RECORDINGS / f"{name}.list.txtpb").read_text(), api_pb2.ListPodResourcesResponse()
    )
    offered = text_format.Parse(
        (RECORDINGS / f"{name}.allocatable.txtpb").read_text(), api_pb2.AllocatableResourcesResponse()
    )
    expected, claims = owners_of(listed), claims_of(listed)
    allocatable = {(entry.resource_name, device) for entry in offered.devices for device in entry.device_ids}
    assert expected

    async with SimulatedNode("--replay", str(recording)) as node:
        socket = root / "web.sock"
        flags = ("--kubelet.root", str(node.root), "--web.listen-address", f"unix:{socket}")
        async with Process("exporter", *flags, "--node-name", "replayed") as exporter:
            url = await exporter.url()

            async def answered() -> bool:
                return (await owners.scrape(url)).value("devicelens_up") == 1

            await until("the recorded answer is read", answered)
            samples = await owners.scrape(url)
            document = await owners.get_json(url, "/api/v1/devices")
            status, out, errors = await owners.devicelens_again(
                "who", "--socket", str(node.root / "pod-resources" / "kubelet.sock"), "-o", "json"
            )
        assert not socket.exists()

    assert {owner_of(labels) for labels, _ in samples.of("devicelens_device_owner_info")} == expected
    assert set(owners_in(document)) == expected
    assert status == 0, errors
    assert set(owners_in(json.loads(out))) == expected
    seen = [labels for labels, _ in samples.of("devicelens_claim_device_info")]
    assert {Claimed(*(labels[name] for name in Claimed._fields)) for labels in seen} == claims
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
